/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of writing: connections are numbers here, and time is given. */
#include "net/tcp.h"

#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 4u
#define RATE  (25u * 1000u * 1000u)
#define LEAD  (76u * 1000u) /* In 3 ms. */

struct world {
    struct ps_send_scheduler f;
    ps_time now;
};

struct writer {
    struct ps_send_slot turn;
    struct world *w;
    uint64_t written;
    bool stuck;  /* The kernel accepts nothing. */
    bool leaves; /* The first slot in turn removes the next one. */
    struct writer *other;
};

static void try_to_write(struct writer *x)
{
    struct world *w = x->w;
    uint64_t most;

    while (!x->stuck &&
           (most = ps_send_scheduler_request(&w->f, &x->turn, w->now)) > 0) {
        most = ps_min_u64(most, 1024 * 1024);
        x->written += most;
        bool over = ps_send_scheduler_wrote(&w->f, &x->turn, w->now, most,
                                            most);

        w->f.rate.per_second = RATE; /* Whatever came of it here. */
        if (over) {
            return;
        }
    }
}

static void go(struct ps_send_slot *t)
{
    struct writer *x = PS_CONTAINER(t, struct writer, turn);

    if (x->leaves) {
        ps_send_scheduler_leave(&x->w->f, &x->other->turn);
    }
    try_to_write(x);
}

static void begin_world(struct world *w, struct writer x[COUNT])
{
    memset(w, 0, sizeof(*w));
    ps_send_scheduler_init(&w->f);
    w->f.rate.per_second = RATE;
    w->now = PS_SECONDS(1);
    memset(x, 0, COUNT * sizeof(*x));
    for (uint32_t i = 0; i < COUNT; i++) {
        x[i].w = w;
        x[i].turn.on_slot = go;
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        (void)ps_send_scheduler_request(&w->f, &x[i].turn, w->now);
    }
}

static void run(struct world *w, ps_time until)
{
    ps_time at;

    while ((at = ps_send_scheduler_deadline(&w->f, w->now)) <= until) {
        w->now = at > w->now ? at : w->now + PS_MICROS(200);
        ps_send_scheduler_run(&w->f, w->now);
    }
    w->now = until;
}

static void single_connection_writes_without_limit(void **state)
{
    struct world w;
    struct writer x[COUNT];

    (void)state;
    begin_world(&w, x);
    for (uint32_t i = 1; i < COUNT; i++) {
        ps_send_scheduler_leave(&w.f, &x[i].turn);
    }
    assert_true(ps_send_scheduler_request(&w.f, &x[0].turn, w.now) ==
                UINT64_MAX);
    assert_true(ps_send_scheduler_deadline(&w.f, w.now) == PS_TIME_NEVER);
}

static void connections_of_one_rate_stay_level(void **state)
{
    struct world w;
    struct writer x[COUNT];

    (void)state;
    begin_world(&w, x);
    for (uint32_t i = 0; i < COUNT; i++) {
        try_to_write(&x[i]);
        /* After one piece another slot has its turn. */
        assert_in_range(x[i].written, 1, LEAD / 2);
    }
    run(&w, w.now + PS_MILLIS(20));
    for (uint32_t i = 1; i < COUNT; i++) {
        assert_true(x[i].written > LEAD);
        assert_true(x[i].written == x[0].written);
    }
}

static void stalled_connection_delays_others_briefly(void **state)
{
    struct world w;
    struct writer x[COUNT];

    (void)state;
    begin_world(&w, x);
    x[0].stuck = true;
    for (uint32_t i = 0; i < COUNT; i++) {
        try_to_write(&x[i]);
    }
    run(&w, w.now + PS_MILLIS(10));
    for (uint32_t i = 1; i < COUNT; i++) {
        assert_in_range(x[i].written, LEAD / 2, LEAD);
    }
    run(&w, w.now + PS_MILLIS(200));
    for (uint32_t i = 1; i < COUNT; i++) {
        assert_true(x[i].written > 4 * LEAD);
    }
    /* It continues at the progress of the others, which do not wait for its
     * backlog. */
    run(&w, w.now + PS_SECONDS(1));
    uint64_t others = x[1].written;

    x[0].stuck = false;
    try_to_write(&x[0]);
    run(&w, w.now + PS_MILLIS(100));
    assert_true(x[0].written > 4 * LEAD);
    assert_true(x[1].written > others + 4 * LEAD);
}

static void connection_may_close_in_the_send_slot_of_another(void **state)
{
    struct world w;
    struct writer x[COUNT];

    (void)state;
    begin_world(&w, x);
    for (uint32_t i = 0; i < COUNT; i++) {
        try_to_write(&x[i]);
    }
    x[0].leaves = true;
    x[0].other = &x[1];
    uint64_t before = x[1].written;

    run(&w, w.now + PS_MILLIS(5));
    assert_true(x[1].written == before);
    assert_true(x[2].written > before);
    assert_int_equal(w.f.count, COUNT - 1);
}

static void unsent_bytes_follow_the_rate(void **state)
{
    struct ps_send_scheduler f;

    (void)state;
    ps_send_scheduler_init(&f);
    assert_true(ps_send_scheduler_unsent_max(&f) == 0);
    f.rate.per_second = RATE;
    assert_in_range(ps_send_scheduler_unsent_max(&f), LEAD / 5, LEAD / 3);
    f.rate.per_second = 10ull * 1000 * 1000 * 1000;
    assert_true(ps_send_scheduler_unsent_max(&f) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_connection_writes_without_limit),
        cmocka_unit_test(connections_of_one_rate_stay_level),
        cmocka_unit_test(stalled_connection_delays_others_briefly),
        cmocka_unit_test(connection_may_close_in_the_send_slot_of_another),
        cmocka_unit_test(unsent_bytes_follow_the_rate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
