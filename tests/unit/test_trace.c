/* SPDX-License-Identifier: Apache-2.0 */
/* Trace rings, and how they are read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/base/peer.h"

static struct ps_rec_trace_entry list[PS_TRACE_READ_MAX];

static struct ps_msg_trace_entries read_from(const struct ps_trace *t,
                                             uint64_t gen, uint64_t first)
{
    struct ps_msg_trace_entries e;

    ps_trace_read(
        t, &(struct ps_msg_trace_get){.gen = gen, .request = 5, .first = first},
        0, 77, list, &e);
    assert_int_equal(e.request, 5);
    assert_int_equal(e.now_ns, 77);
    assert_ptr_equal(e.entries, list);
    return e;
}

/* Entries of a job, with rounds from `first` on. */
static void add_entries(struct ps_trace *t, uint64_t gen, uint64_t first,
                        uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++) {
        ps_trace_add(t, &(struct ps_trace_entry){.begun_at = 10 * i,
                                                 .ended_at = 10 * i + 3,
                                                 .gen = gen,
                                                 .round = i,
                                                 .bytes = 100 + i,
                                                 .key = 7,
                                                 .index = 8,
                                                 .peer = 9,
                                                 .kind = PS_TRACE_KIND_OP,
                                                 .op = PS_OP_PUSHPULL});
    }
}

static void entries_are_as_recorded(void **state)
{
    struct ps_trace *t = ps_trace_new();
    struct ps_msg_trace_entries e;

    (void)state;
    add_entries(t, 1, 1, 2);
    e = read_from(t, 1, 0);
    assert_int_equal(e.first, 0);
    assert_int_equal(e.next, 2);
    assert_int_equal(e.count, 2);
    assert_int_equal(e.entries_count, 2);
    assert_int_equal(list[1].begun_ns, 20);
    assert_int_equal(list[1].duration_ns, 3);
    assert_int_equal(list[1].round, 2);
    assert_int_equal(list[1].bytes, 102);
    assert_int_equal(list[1].key, 7);
    assert_int_equal(list[1].index, 8);
    assert_int_equal(list[1].peer, 9);
    assert_int_equal(list[1].kind, PS_TRACE_KIND_OP);
    assert_int_equal(list[1].op, PS_OP_PUSHPULL);
    ps_trace_free(t);
}

static void entries_of_other_jobs_are_left_out(void **state)
{
    struct ps_trace *t = ps_trace_new();
    struct ps_msg_trace_entries e;

    (void)state;
    for (uint64_t i = 0; i < 10; i++) {
        add_entries(t, 1 + i % 2, i, 1);
    }
    e = read_from(t, 2, 0);
    assert_int_equal(e.entries_count, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(list[i].round, 2 * i + 1);
    }
    assert_int_equal(e.next, 10);
    assert_int_equal(read_from(t, 3, 0).entries_count, 0);
    ps_trace_free(t);
}

static void the_oldest_make_room(void **state)
{
    struct ps_trace *t = ps_trace_new();
    struct ps_msg_trace_entries e;

    (void)state;
    add_entries(t, 1, 0, PS_TRACE_ENTRIES + 3);
    e = read_from(t, 1, 0);
    assert_int_equal(e.first, 3);
    assert_int_equal(list[0].round, 3);
    ps_trace_free(t);
}

static void a_reader_goes_on_where_it_was(void **state)
{
    struct ps_trace *t = ps_trace_new();
    struct ps_msg_trace_entries e;
    uint64_t next = 0;
    uint64_t round = 0;

    (void)state;
    add_entries(t, 1, 0, 2 * PS_TRACE_READ_MAX + 5);
    for (uint32_t i = 0; i < 3; i++) {
        e = read_from(t, 1, next);
        assert_int_equal(e.first, next);
        assert_int_equal(e.entries_count, i < 2 ? PS_TRACE_READ_MAX : 5);
        for (uint32_t k = 0; k < e.entries_count; k++) {
            assert_int_equal(list[k].round, round++);
        }
        next = e.next;
    }
    assert_int_equal(next, e.count);
    e = read_from(t, 1, next);
    assert_int_equal(e.entries_count, 0);
    assert_int_equal(e.next, next);
    /* Beyond the end is the end. */
    assert_int_equal(read_from(t, 1, UINT64_MAX).next, e.count);
    ps_trace_free(t);
}

static void without_a_ring_there_are_no_entries(void **state)
{
    struct ps_msg_trace_entries e;

    (void)state;
    add_entries(NULL, 1, 0, 5);
    e = read_from(NULL, 1, 9);
    assert_int_equal(e.count, 0);
    assert_int_equal(e.next, 0);
    assert_int_equal(e.entries_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_as_recorded),
        cmocka_unit_test(entries_of_other_jobs_are_left_out),
        cmocka_unit_test(the_oldest_make_room),
        cmocka_unit_test(a_reader_goes_on_where_it_was),
        cmocka_unit_test(without_a_ring_there_are_no_entries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
