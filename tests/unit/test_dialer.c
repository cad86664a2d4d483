/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "core/link/dialer.h"

/* One caller, and what it wants done. */
struct bench {
    struct ps_dialer c;
    struct ps_rng rng;
    struct ps_effects fx;
    ps_time now;
    ps_conn_id conns;
    uint64_t dial_targets[64]; /* Of its dials. */
    uint32_t dials;
    ps_conn_id hung[64];
    uint32_t hangups;
};

static void take(struct bench *b)
{
    for (uint32_t i = 0; i < b->fx.count; i++) {
        const struct ps_fx *f = &b->fx.items[i];

        if (f->type == PS_FX_DIAL) {
            assert_true(b->dials < 64);
            b->dial_targets[b->dials++] = f->dial.target;
            assert_int_equal(f->dial.timeout, PS_DIALER_DIAL_TIMEOUT);
        } else if (f->type == PS_FX_CLOSE) {
            assert_true(b->hangups < 64);
            b->hung[b->hangups++] = f->close.conn;
        }
    }
    ps_effects_clear(&b->fx);
}

/* Ticks as a driver does, up to `how_long` from now. */
static void pass(struct bench *b, ps_time how_long)
{
    ps_time end = b->now + how_long;
    ps_time due;

    while ((due = ps_dialer_deadline(&b->c)) <= end) {
        b->now = due > b->now ? due : b->now;
        ps_dialer_tick(&b->c, b->now, &b->fx);
        take(b);
        assert_true(ps_dialer_deadline(&b->c) > b->now);
    }
    b->now = end;
}

static void begin(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    b->now = PS_SECONDS(100);
    ps_rng_init(&b->rng, 1);
    ps_effects_init(&b->fx);
    ps_dialer_init(&b->c,
                   &(struct ps_dialer_options){.target = 7,
                                               .instance = 1,
                                               .backoff_min = PS_MILLIS(100),
                                               .backoff_max = PS_SECONDS(1)},
                   &b->rng, b->now);
    ps_dialer_set_address(&b->c, "10.0.0.1:9", b->now, &b->fx);
    b->c.enabled = true;
}

static void end(struct bench *b)
{
    ps_dialer_fini(&b->c);
    ps_effects_fini(&b->fx);
}

/* The newest dial has led to a connection; 0: it was hung up. */
static ps_conn_id open_conn(struct bench *b)
{
    ps_conn_id id = ++b->conns;
    bool wanted = ps_dialer_on_open(&b->c, b->dial_targets[b->dials - 1], id,
                                    b->now, &b->fx);

    take(b);
    return wanted ? id : 0;
}

static void fail_dial(struct bench *b)
{
    (void)ps_dialer_on_dial_failed(&b->c, b->dial_targets[b->dials - 1],
                                   PS_E_UNREACH, b->now);
}

static void welcome(struct bench *b, ps_conn_id conn)
{
    assert_true(ps_dialer_on_welcome(&b->c, conn, b->now, &b->fx));
    ps_link_open(b->c.link, conn, true, 0, b->now, &b->fx);
    take(b);
}

static ps_conn_id connect_it(struct bench *b)
{
    ps_conn_id conn;

    pass(b, 0);
    assert_int_equal(b->dials, 1);
    conn = open_conn(b);
    welcome(b, conn);
    assert_true(ps_dialer_is_connected(&b->c));
    return conn;
}

static void dials_that_fail_back_off(void **state)
{
    struct bench b;

    (void)state;
    begin(&b);
    for (int i = 0; i < 20; i++) {
        uint32_t before = b.dials;

        while (b.dials == before) {
            pass(&b, PS_MILLIS(10));
        }
        fail_dial(&b);
    }
    /* Up to half a second less than the longest wait each. */
    assert_in_range(b.now - PS_SECONDS(100), PS_SECONDS(8), PS_SECONDS(19));
    end(&b);
}

/* Nothing answers: one more each half second, and never more than four. */
static void dials_without_an_answer_have_others_beside(void **state)
{
    struct bench b;

    (void)state;
    begin(&b);
    pass(&b, PS_MILLIS(1900));
    assert_int_equal(b.dials, 4);
    pass(&b, PS_SECONDS(1));
    assert_int_equal(b.dials, 4);
    /* The driver ends the first of them. */
    fail_dial(&b);
    pass(&b, 0);
    assert_int_equal(b.dials, 5);
    welcome(&b, open_conn(&b));
    pass(&b, PS_SECONDS(5));
    assert_int_equal(b.dials, 5);
    /* Those that come late are not needed. */
    assert_int_equal(open_conn(&b), 0);
    assert_int_equal(b.hangups, 1);
    end(&b);
}

static void the_newest_connection_carries_the_link(void **state)
{
    struct bench b;
    ps_conn_id first;
    ps_conn_id second;

    (void)state;
    begin(&b);
    first = connect_it(&b);
    ps_dialer_on_stalled(&b.c, b.now);
    pass(&b, 0);
    assert_int_equal(b.dials, 2); /* At once. */
    second = open_conn(&b);
    assert_int_not_equal(second, 0);
    assert_true(ps_dialer_owns_conn(&b.c, first));
    assert_int_equal(ps_link_conn(b.c.link), first);
    welcome(&b, second);
    assert_int_equal(ps_link_conn(b.c.link), second);
    assert_int_equal(b.hung[0], first);
    assert_false(ps_dialer_on_closed(&b.c, first, b.now));
    assert_true(ps_dialer_is_connected(&b.c));
    pass(&b, PS_SECONDS(5));
    assert_int_equal(b.dials, 2);
    end(&b);
}

static void who_is_heard_again_keeps_the_link(void **state)
{
    struct bench b;
    ps_conn_id first;

    (void)state;
    begin(&b);
    first = connect_it(&b);
    ps_dialer_on_stalled(&b.c, b.now);
    pass(&b, PS_MILLIS(700));
    assert_int_equal(b.dials, 3);
    ps_dialer_on_recv(&b.c, first, b.now);
    assert_int_equal(open_conn(&b), 0);
    assert_int_equal(open_conn(&b), 0);
    pass(&b, PS_SECONDS(5));
    assert_int_equal(b.dials, 3);
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
    begin(&b);
    first = connect_it(&b);
    ps_dialer_on_stalled(&b.c, b.now);
    pass(&b, 0);
    second = open_conn(&b);
    assert_true(ps_dialer_on_closed(&b.c, first, b.now));
    assert_false(ps_dialer_is_connected(&b.c));
    assert_int_equal(ps_link_conn(b.c.link), 0);
    pass(&b, PS_MILLIS(500));
    assert_int_equal(b.dials, 2); /* It has a second for its welcome. */
    welcome(&b, second);
    assert_true(ps_dialer_is_connected(&b.c));
    end(&b);
}

/* A busy peer must not get ever more requests. */
static void hellos_without_an_answer_are_sent_ever_more_rarely(void **state)
{
    struct bench b;
    uint32_t hellos = 0;
    ps_time from;

    (void)state;
    begin(&b);
    from = b.now;
    while (b.now < from + PS_SECONDS(60)) {
        uint32_t before = b.dials;

        pass(&b, PS_MILLIS(10));
        if (b.dials > before) {
            hellos += open_conn(&b) != 0;
        }
    }
    assert_in_range(hellos, 12, 20);
    end(&b);
}

static void dials_of_another_address_are_of_no_use(void **state)
{
    struct bench b;
    uint64_t old;

    (void)state;
    begin(&b);
    pass(&b, 0);
    old = b.dial_targets[0];
    ps_dialer_set_address(&b.c, "10.0.0.2:9", b.now, &b.fx);
    pass(&b, 0);
    assert_int_equal(b.dials, 2);
    assert_int_not_equal(b.dial_targets[1], old);
    assert_int_equal((uint32_t)b.dial_targets[1], (uint32_t)old);
    assert_false(ps_dialer_on_open(&b.c, old, 50, b.now, &b.fx));
    assert_false(ps_dialer_on_dial_failed(&b.c, old, PS_E_UNREACH, b.now));
    welcome(&b, open_conn(&b));
    end(&b);
}

static void nobody_is_dialled_who_is_not_wanted(void **state)
{
    struct bench b;

    (void)state;
    begin(&b);
    (void)connect_it(&b);
    b.c.enabled = false;
    ps_dialer_drop_all(&b.c, b.now, &b.fx);
    take(&b);
    assert_int_equal(b.hangups, 1);
    pass(&b, PS_SECONDS(10));
    assert_int_equal(b.dials, 1);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dials_that_fail_back_off),
        cmocka_unit_test(dials_without_an_answer_have_others_beside),
        cmocka_unit_test(the_newest_connection_carries_the_link),
        cmocka_unit_test(who_is_heard_again_keeps_the_link),
        cmocka_unit_test(a_new_connection_outlives_the_old_one),
        cmocka_unit_test(hellos_without_an_answer_are_sent_ever_more_rarely),
        cmocka_unit_test(dials_of_another_address_are_of_no_use),
        cmocka_unit_test(nobody_is_dialled_who_is_not_wanted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
