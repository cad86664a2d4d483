/* SPDX-License-Identifier: Apache-2.0 */
/* The client's spans of the program. */
#include "test_client_fixture.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sys/wait.h>
#include <time.h>

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL) {
        return -1;
    }
    fixture_begin(f, 0);
    *state = f;
    return 0;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Until an interval has ended after what was sent before: the next span takes
 * all along that wait. */
static void wait_interval(void)
{
    const uint64_t begun = now_ns();

    while (now_ns() < begun + 30000000u) {
    }
}

static void add_span(struct fixture *f, const char *name)
{
    struct psc_span s;

    assert_int_equal(psc_span_begin(f->c, name, &s), 0);
    assert_int_equal(psc_span_end(f->c, &s), 0);
}

/* Receives messages until `count` spans have come; returns their number. */
static uint32_t expect_spans(struct fixture *f, uint32_t count)
{
    uint32_t messages = 0;
    uint32_t got = 0;

    while (got < count) {
        const struct ps_msg m = peer_expect(&f->peer, PS_MSG_L_SPANS);

        assert_true(m.l_spans.spans_count > 0);
        assert_true(m.l_spans.spans_count <= PS_SPANS_SEND_MAX);
        got += m.l_spans.spans_count;
        messages++;
    }
    assert_int_equal(got, count);
    return messages;
}

static void nested_spans_have_their_times_and_names(void **state)
{
    struct fixture *f = *state;
    const uint64_t before = now_ns();
    struct psc_span outer;
    struct psc_span inner;
    struct ps_msg m;
    const struct ps_rec_span *s;

    assert_int_equal(psc_span_begin(f->c, "step", &outer), 0);
    assert_int_equal(psc_span_begin(f->c, "forward", &inner), 0);
    assert_int_equal(psc_span_end(f->c, &inner), 0);
    m = peer_expect(&f->peer, PS_MSG_L_SPANS); /* The first leaves at once. */
    assert_int_equal(m.l_spans.names_count, 1);
    assert_string_equal(m.l_spans.names[0].name, "forward");
    assert_int_equal(m.l_spans.spans_count, 1);
    s = &m.l_spans.spans[0];
    assert_int_equal(s->name, 0);
    assert_true(s->begun_ns >= before);
    assert_true(s->begun_ns + s->duration_ns <= now_ns());
    /* After an interval, and in the order of their ends. */
    wait_interval();
    assert_int_equal(psc_span_end(f->c, &outer), 0);
    m = peer_expect(&f->peer, PS_MSG_L_SPANS);
    assert_string_equal(m.l_spans.names[0].name, "step");
    assert_true(m.l_spans.spans[0].begun_ns >= before);
    assert_true(m.l_spans.spans[0].duration_ns >= 30000000u);
}

static void many_spans_are_few_messages(void **state)
{
    struct fixture *f = *state;

    add_span(f, "a");
    assert_int_equal(expect_spans(f, 1), 1);
    for (uint32_t i = 0; i < 4 * PS_SPANS_SEND_MAX; i++) {
        add_span(f, i % 2 == 0 ? "a" : "b");
    }
    /* If an interval has ended meanwhile, the last ones wait for the next. */
    wait_interval();
    add_span(f, "a");
    assert_in_range(expect_spans(f, 4 * PS_SPANS_SEND_MAX + 1), 4, 40);
    assert_true(peer_is_silent(&f->peer));
}

static void *leave_main(void *arg)
{
    (void)psc_leave(arg);
    return NULL;
}

static void last_spans_are_sent_before_the_departure(void **state)
{
    struct fixture *f = *state;
    pthread_t thread;

    for (int i = 0; i < 9; i++) {
        add_span(f, "a");
    }
    assert_int_equal(pthread_create(&thread, NULL, leave_main, f->c), 0);
    expect_spans(f, 9);
    peer_expect(&f->peer, PS_MSG_L_DETACH);
    peer_close_conn(&f->peer);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (uint32_t i = 0; i < 2 * PS_SPANS_KEPT_MAX; i++) {
        add_span(f, "a"); /* Lost; no error. */
    }
    psc_close(f->c);
    f->closed = true;
}

static void mistakes_are_errors(void **state)
{
    struct fixture *f = *state;
    char name[PS_SCALAR_NAME_MAX + 2];
    struct psc_span s;

    assert_int_equal(psc_span_begin(f->c, "not good", &s), PSC_E_INVAL);
    assert_text(peer_detail(f->c),
                "span 'not good': a name has 1 to 63 characters: letters, "
                "digits and any of _ . / : -");
    assert_int_equal(psc_span_end(f->c, &s), PSC_E_INVAL);
    assert_text(peer_detail(f->c), "the span has not begun, or has ended");
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(psc_span_begin(f->c, name, &s), PSC_E_INVAL);
    assert_int_equal(psc_span_begin(f->c, "a", &s), 0);
    assert_int_equal(psc_span_end(f->c, &s), 0);
    assert_int_equal(psc_span_end(f->c, &s), PSC_E_INVAL);
    memset(&s, 0xff, sizeof(s));
    assert_int_equal(psc_span_end(f->c, &s), PSC_E_INVAL);
    for (uint32_t i = 1; i < PS_SPAN_NAMES_MAX; i++) {
        snprintf(name, sizeof(name), "n%u", i);
        assert_int_equal(psc_span_begin(f->c, name, &s), 0);
    }
    assert_int_equal(psc_span_begin(f->c, "more", &s), PSC_E_FULL);
    assert_text(peer_detail(f->c),
                "span 'more': this worker has 64 others, which is the limit");
    assert_int_equal(psc_span_begin(f->c, "n63", &s), 0);
    expect_spans(f, 1);
}

static void a_forked_child_has_no_spans(void **state)
{
    struct fixture *f = *state;
    struct psc_span s;
    int status;
    pid_t child;

    assert_int_equal(psc_span_begin(f->c, "a", &s), 0);
    child = fork();
    if (child == 0) {
        struct psc_span of_child;

        _exit(psc_span_begin(f->c, "a", &of_child) == PSC_E_FORKED &&
                      psc_span_end(f->c, &s) == PSC_E_FORKED
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(psc_span_end(f->c, &s), 0);
    expect_spans(f, 1);
}

static void *add_spans_main(void *arg)
{
    struct fixture *f = arg;
    char name[8];

    for (int i = 0; i < 2000; i++) {
        struct psc_span s;

        snprintf(name, sizeof(name), "n%d", i % 40);
        PEER_CHECK(psc_span_begin(f->c, name, &s) == 0);
        PEER_CHECK(psc_span_end(f->c, &s) == 0);
    }
    return NULL;
}

/* Several threads add spans, and none waits for an agent that reads nothing. */
static void threads_add_spans_without_an_agent_that_reads(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[3];

    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_spans_main, f),
                         0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    peer_close_conn(&f->peer);
    psc_close(f->c);
    f->closed = true;
}

#define story(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(nested_spans_have_their_times_and_names),
        story(many_spans_are_few_messages),
        story(last_spans_are_sent_before_the_departure),
        story(mistakes_are_errors),
        story(a_forked_child_has_no_spans),
        story(threads_add_spans_without_an_agent_that_reads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
