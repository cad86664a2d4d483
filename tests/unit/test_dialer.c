/* SPDX-License-Identifier: Apache-2.0 */
#include "dial_bench.h"

#include "core/link/dialer.h"

struct bench {
    struct dial_bench d;
    struct ps_dialer c;
};

static ps_time next_deadline(const struct dial_bench *d)
{
    return ps_dialer_deadline(&((const struct bench *)d)->c);
}

static void tick_dialer(struct dial_bench *d)
{
    ps_dialer_tick(&((struct bench *)d)->c, d->now, &d->fx);
}

static void check_dial(struct dial_bench *d, const struct ps_fx *f)
{
    (void)d;
    if (f->type == PS_FX_DIAL) {
        assert_int_equal(f->dial.timeout, PS_DIALER_DIAL_TIMEOUT);
    }
}

static void begin_bench(struct bench *b)
{
    static const struct dial_bench_ops ops = {
        .deadline = next_deadline,
        .tick = tick_dialer,
        .note_effect = check_dial,
    };

    dial_bench_init(&b->d, &ops);
    ps_dialer_init(&b->c,
                   &(struct ps_dialer_options){.target = 7,
                                               .instance = 1,
                                               .backoff_min = PS_MILLIS(100),
                                               .backoff_max = PS_SECONDS(1)},
                   &b->d.rng, b->d.now);
    ps_dialer_set_address(&b->c, "10.0.0.1:9", b->d.now, &b->d.fx);
    b->c.enabled = true;
}

static void end(struct bench *b)
{
    ps_dialer_fini(&b->c);
    dial_bench_fini(&b->d);
}

/* The newest dial has led to a connection; 0: it was closed. */
static ps_conn_id open_conn(struct bench *b)
{
    ps_conn_id id = ++b->d.conns;
    bool wanted = ps_dialer_on_open(&b->c, dial_bench_newest(&b->d), id,
                                    b->d.now, &b->d.fx);

    dial_bench_carry_out(&b->d);
    return wanted ? id : 0;
}

static void fail_dial(struct bench *b)
{
    (void)ps_dialer_on_dial_failed(&b->c, dial_bench_newest(&b->d),
                                   PS_E_UNREACH, b->d.now);
}

static void welcome(struct bench *b, ps_conn_id conn)
{
    assert_true(ps_dialer_on_welcome(&b->c, conn, b->d.now, &b->d.fx));
    ps_link_open(b->c.link, conn, true, 0, b->d.now, &b->d.fx);
    dial_bench_carry_out(&b->d);
}

static ps_conn_id connect_it(struct bench *b)
{
    ps_conn_id conn;

    dial_bench_run(&b->d, 0);
    assert_int_equal(b->d.dials, 1);
    conn = open_conn(b);
    welcome(b, conn);
    assert_true(ps_dialer_is_connected(&b->c));
    return conn;
}

static void failed_dials_back_off(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    for (int i = 0; i < 20; i++) {
        dial_bench_await_dial(&b.d);
        fail_dial(&b);
    }
    /* Up to half a second less than the longest wait each. */
    assert_in_range(b.d.now - PS_SECONDS(100), PS_SECONDS(8), PS_SECONDS(19));
    end(&b);
}

/* Without an answer: one more dial each half second, and never more than four. */
static void unanswered_dials_run_in_parallel(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    dial_bench_run(&b.d, PS_MILLIS(1900));
    assert_int_equal(b.d.dials, 4);
    dial_bench_run(&b.d, PS_SECONDS(1));
    assert_int_equal(b.d.dials, 4);
    /* The driver ends the first of them. */
    fail_dial(&b);
    dial_bench_run(&b.d, 0);
    assert_int_equal(b.d.dials, 5);
    welcome(&b, open_conn(&b));
    dial_bench_run(&b.d, PS_SECONDS(5));
    assert_int_equal(b.d.dials, 5);
    /* Late connections are not needed. */
    assert_int_equal(open_conn(&b), 0);
    assert_int_equal(b.d.closed, 1);
    end(&b);
}

static void the_newest_connection_carries_the_link(void **state)
{
    struct bench b;
    ps_conn_id first;
    ps_conn_id second;

    (void)state;
    begin_bench(&b);
    first = connect_it(&b);
    ps_dialer_on_stalled(&b.c, b.d.now);
    dial_bench_run(&b.d, 0);
    assert_int_equal(b.d.dials, 2); /* At once. */
    second = open_conn(&b);
    assert_int_not_equal(second, 0);
    assert_true(ps_dialer_owns_conn(&b.c, first));
    assert_int_equal(ps_link_conn(b.c.link), first);
    welcome(&b, second);
    assert_int_equal(ps_link_conn(b.c.link), second);
    assert_int_equal(b.d.closed_conns[0], first);
    assert_false(ps_dialer_on_closed(&b.c, first, b.d.now));
    assert_true(ps_dialer_is_connected(&b.c));
    dial_bench_run(&b.d, PS_SECONDS(5));
    assert_int_equal(b.d.dials, 2);
    end(&b);
}

static void connection_with_a_new_message_keeps_the_link(void **state)
{
    struct bench b;
    ps_conn_id first;

    (void)state;
    begin_bench(&b);
    first = connect_it(&b);
    ps_dialer_on_stalled(&b.c, b.d.now);
    dial_bench_run(&b.d, PS_MILLIS(700));
    assert_int_equal(b.d.dials, 3);
    ps_dialer_on_recv(&b.c, first, b.d.now);
    assert_int_equal(open_conn(&b), 0);
    assert_int_equal(open_conn(&b), 0);
    dial_bench_run(&b.d, PS_SECONDS(5));
    assert_int_equal(b.d.dials, 3);
    assert_int_equal(ps_link_conn(b.c.link), first);
    end(&b);
}

/* The old one ends while the new one waits for its welcome. */
static void a_new_connection_outlives_the_old_one(void **state)
{
    struct bench b;
    ps_conn_id first;
    ps_conn_id second;

    (void)state;
    begin_bench(&b);
    first = connect_it(&b);
    ps_dialer_on_stalled(&b.c, b.d.now);
    dial_bench_run(&b.d, 0);
    second = open_conn(&b);
    assert_true(ps_dialer_on_closed(&b.c, first, b.d.now));
    assert_false(ps_dialer_is_connected(&b.c));
    assert_int_equal(ps_link_conn(b.c.link), 0);
    dial_bench_run(&b.d, PS_MILLIS(500));
    assert_int_equal(b.d.dials, 2); /* It has a second for its welcome. */
    welcome(&b, second);
    assert_true(ps_dialer_is_connected(&b.c));
    end(&b);
}

/* A busy peer must not get ever more requests. */
static void unanswered_hellos_back_off(void **state)
{
    struct bench b;
    uint32_t hellos = 0;
    ps_time from;

    (void)state;
    begin_bench(&b);
    from = b.d.now;
    while (b.d.now < from + PS_SECONDS(60)) {
        uint32_t before = b.d.dials;

        dial_bench_run(&b.d, PS_MILLIS(10));
        if (b.d.dials > before) {
            hellos += open_conn(&b) != 0;
        }
    }
    assert_in_range(hellos, 12, 20);
    end(&b);
}

static void dials_of_a_former_address_are_abandoned(void **state)
{
    struct bench b;
    uint64_t old;

    (void)state;
    begin_bench(&b);
    dial_bench_run(&b.d, 0);
    old = b.d.dial_targets[0];
    ps_dialer_set_address(&b.c, "10.0.0.2:9", b.d.now, &b.d.fx);
    dial_bench_run(&b.d, 0);
    assert_int_equal(b.d.dials, 2);
    assert_int_not_equal(b.d.dial_targets[1], old);
    assert_int_equal((uint32_t)b.d.dial_targets[1], (uint32_t)old);
    assert_false(ps_dialer_on_open(&b.c, old, 50, b.d.now, &b.d.fx));
    assert_false(ps_dialer_on_dial_failed(&b.c, old, PS_E_UNREACH, b.d.now));
    welcome(&b, open_conn(&b));
    end(&b);
}

static void a_disabled_dialer_does_not_dial(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    (void)connect_it(&b);
    b.c.enabled = false;
    ps_dialer_drop_all(&b.c, b.d.now, &b.d.fx);
    dial_bench_carry_out(&b.d);
    assert_int_equal(b.d.closed, 1);
    dial_bench_run(&b.d, PS_SECONDS(10));
    assert_int_equal(b.d.dials, 1);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_dials_back_off),
        cmocka_unit_test(unanswered_dials_run_in_parallel),
        cmocka_unit_test(the_newest_connection_carries_the_link),
        cmocka_unit_test(connection_with_a_new_message_keeps_the_link),
        cmocka_unit_test(a_new_connection_outlives_the_old_one),
        cmocka_unit_test(unanswered_hellos_back_off),
        cmocka_unit_test(dials_of_a_former_address_are_abandoned),
        cmocka_unit_test(a_disabled_dialer_does_not_dial),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
