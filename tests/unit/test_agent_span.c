/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine: spans of its ranks' programs. */
#include "agent_world.h"

#include "base/limits.h"

/* A message of `count` spans, each with the name of its number. */
static void submit_spans(struct bench *b, uint32_t worker,
                         const struct ps_rec_span *spans, uint32_t count,
                         const struct ps_rec_span_name *names)
{
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){.code = PS_MSG_L_SPANS,
                                 .l_spans = {.names = names,
                                             .names_count = count,
                                             .spans = spans,
                                             .spans_count = count}},
                NULL);
}

/* The answer to the n-th request for the trace. */
static const struct ps_msg_trace_entries *read_trace(struct bench *b,
                                                     uint64_t gen, uint32_t n)
{
    const struct sent *s;

    deliver_msg(b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_TRACE_GET,
                                 .trace_get = {.gen = gen, .request = n}},
                NULL);
    for (uint32_t i = 0;
         (s = find_sent(b, SCHED_CONN, PS_MSG_TRACE_ENTRIES, i)) != NULL; i++) {
        if (s->packet->msg->trace_entries.request == n) {
            return &s->packet->msg->trace_entries;
        }
    }
    fail_msg("no answer to request %u", n);
    return NULL;
}

static struct bench begin_traced(uint32_t workers)
{
    return (struct bench){.workers = workers, .trace = ps_trace_new()};
}

static void end_traced(struct bench *b)
{
    struct ps_trace *t = b->trace;

    end_bench(b);
    ps_trace_free(t);
}

static void spans_are_entries_of_their_ranks(void **state)
{
    const struct ps_rec_span_name names[] = {{"forward"}, {"backward"}};
    const struct ps_rec_span_name others[] = {{"backward"}, {"step"}};
    struct bench b = begin_traced(2);
    const struct ps_msg_trace_entries *e;

    (void)state;
    restart_bench(&b, 2, 1);
    submit_spans(&b, 0,
                 (struct ps_rec_span[]){
                     {.name = 0, .begun_ns = 1000},
                     {.name = 1, .begun_ns = 2000, .duration_ns = 500}},
                 2, names);
    submit_spans(&b, 1,
                 (struct ps_rec_span[]){{.name = 0, .begun_ns = 3000},
                                        {.name = 1, .begun_ns = 4000}},
                 2, others);
    e = read_trace(&b, GEN, 1);
    assert_int_equal(e->entries_count, 4);
    assert_int_equal(e->span_names_count, 3);
    for (uint32_t i = 0; i < 4; i++) {
        static const char *const expected[] = {"forward", "backward",
                                               "backward", "step"};

        assert_int_equal(e->entries[i].kind, PS_TRACE_KIND_SPAN);
        assert_int_equal(e->entries[i].key, UINT32_MAX);
        assert_int_equal(e->entries[i].peer, i / 2);
        assert_int_equal(e->entries[i].begun_ns, 1000 * (i + 1));
        assert_string_equal(e->span_names[e->entries[i].index].name,
                            expected[i]);
    }
    assert_int_equal(e->entries[1].duration_ns, 500);
    e = read_trace(&b, GEN + 1, 2);
    assert_int_equal(e->entries_count, 0);
    assert_int_equal(e->span_names_count, 0);
    end_traced(&b);
}

static void garbage_is_ignored(void **state)
{
    const struct ps_rec_span good = {.begun_ns = 1000, .duration_ns = 1};
    const ps_time later = PS_SECONDS(100);
    const struct ps_rec_span bad[] = {
        {.name = 1, .begun_ns = 1000},
        {.begun_ns = later},
        {.begun_ns = 1000, .duration_ns = later},
        {.begun_ns = 1000, .duration_ns = UINT64_MAX},
    };
    struct bench b = begin_traced(1);

    (void)state;
    restart_bench(&b, 1, 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        submit_spans(&b, 0, &bad[i], 1, &(struct ps_rec_span_name){"a"});
    }
    submit_spans(&b, 0, &good, 1, &(struct ps_rec_span_name){"a\nb"});
    submit_spans(&b, 0, &good, 1, &(struct ps_rec_span_name){""});
    assert_int_equal(b.trace->count, 0);
    submit_spans(&b, 0, &good, 1, &(struct ps_rec_span_name){"b"});
    assert_int_equal(b.trace->count, 1);
    end_traced(&b);
}

/* The spans of further names stay, without one. */
static void names_of_a_node_are_bounded(void **state)
{
    const struct ps_rec_span one = {.begun_ns = 1000};
    struct bench b = begin_traced(1);
    const struct ps_msg_trace_entries *e;
    char name[8];

    (void)state;
    restart_bench(&b, 1, 1);
    for (uint32_t i = 0; i < PS_SPAN_NAMES_NODE_MAX + 2; i++) {
        snprintf(name, sizeof(name), "n%u", i);
        submit_spans(&b, 0, &one, 1, &(struct ps_rec_span_name){name});
    }
    submit_spans(&b, 0, &one, 1, &(struct ps_rec_span_name){"n255"});
    e = read_trace(&b, GEN, 1);
    assert_int_equal(e->entries_count, PS_SPAN_NAMES_NODE_MAX + 3);
    assert_int_equal(e->span_names_count, PS_SPAN_NAMES_NODE_MAX);
    assert_int_equal(e->entries[255].index, 255);
    assert_int_equal(e->entries[256].index, UINT32_MAX);
    assert_int_equal(e->entries[258].index, 255);
    end_traced(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_are_entries_of_their_ranks),
        cmocka_unit_test(garbage_is_ignored),
        cmocka_unit_test(names_of_a_node_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
