/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "core/sched/member/member.h"

static void members_are_sorted_and_numbered(void **state)
{
    const char *const names[] = {"s2", "s10", "s1", "a", "zz"};
    size_t live = ps_alloc_live();
    struct ps_members t;
    struct ps_member *m;

    (void)state;
    ps_members_init(&t);
    for (uint32_t i = 0; i < 5; i++) {
        m = ps_members_add(&t, PS_ROLE_SERVER, names[i]);
        assert_int_equal(m->node, i + 1);
    }
    m = ps_members_add(&t, PS_ROLE_AGENT, "s1"); /* Another role. */
    assert_int_equal(m->node, 6);
    assert_ptr_equal(ps_members_find(&t, PS_ROLE_AGENT, "s1"), m);
    assert_ptr_not_equal(ps_members_find(&t, PS_ROLE_SERVER, "s1"), m);
    assert_null(ps_members_find(&t, PS_ROLE_AGENT, "s2"));
    assert_ptr_equal(ps_members_get(&t, 6), m);
    for (uint32_t i = 1; i < t.count; i++) {
        const struct ps_member *a = t.sorted[i - 1];
        const struct ps_member *b = t.sorted[i];

        assert_true(a->role < b->role ||
                    (a->role == b->role && strcmp(a->name, b->name) < 0));
    }
    ps_members_remove(&t, ps_members_find(&t, PS_ROLE_SERVER, "s10"));
    assert_null(ps_members_find(&t, PS_ROLE_SERVER, "s10"));
    assert_null(ps_members_get(&t, 2));
    assert_int_equal(t.count, 5);
    /* A number is never given twice. */
    assert_int_equal(ps_members_add(&t, PS_ROLE_SERVER, "s10")->node, 7);
    ps_members_fini(&t);
    assert_int_equal(ps_alloc_live(), live);
}

static void states_are_logged(void **state)
{
    struct ps_members t;
    struct ps_effects fx;
    struct ps_member *m;

    (void)state;
    ps_members_init(&t);
    ps_effects_init(&fx);
    m = ps_members_add(&t, PS_ROLE_AGENT, "a");
    ps_member_set_state(m, PS_NODE_STATE_ACTIVE, NULL, &fx);
    ps_member_set_state(m, PS_NODE_STATE_SUSPECT, "why", &fx);
    ps_member_set_state(m, PS_NODE_STATE_GONE, "why", &fx);
    ps_member_set_state(m, PS_NODE_STATE_JOINING, NULL, &fx);
    assert_int_equal(ps_members_count(&t, PS_ROLE_AGENT, PS_NODE_STATE_JOINING),
                     1);
    assert_int_equal(fx.count, 4);
    assert_non_null(strstr(fx.items[2].log.text, "node 1 GONE"));
    ps_effects_fini(&fx);
    ps_members_fini(&t);
}

static void instances_that_were_replaced_are_known(void **state)
{
    struct ps_members t;
    struct ps_member *m;

    (void)state;
    ps_members_init(&t);
    m = ps_members_add(&t, PS_ROLE_SERVER, "s");
    ps_member_replace_instance(m, 1000);
    assert_int_equal(m->incarnation, 1);
    for (uint64_t i = 1; i <= 40; i++) {
        ps_member_replace_instance(m, 1000 + i);
        assert_int_equal(m->incarnation, i + 1);
        assert_false(ps_member_was_replaced(m, 1000 + i));
        assert_true(ps_member_was_replaced(m, 1000 + i - 1));
    }
    assert_true(ps_member_was_replaced(m, 1040 - PS_MEMBER_REPLACED_MAX));
    assert_false(ps_member_was_replaced(m, 0));
    ps_members_fini(&t);
}

static void end_of_a_worker_may_arrive_before_its_start(void **state)
{
    const struct ps_link_options opt = {0};
    struct ps_members t;
    struct ps_member *m;
    struct ps_rng rng;
    struct ps_effects fx;
    struct ps_msg msg = {.code = PS_MSG_WORKER_GONE, .seq = 2};

    (void)state;
    ps_rng_init(&rng, 1);
    ps_effects_init(&fx);
    ps_members_init(&t);
    m = ps_members_add(&t, PS_ROLE_AGENT, "a");
    m->link = ps_link_new(&opt, &rng);
    ps_link_open(m->link, 1, false, 0, 0, &fx);
    /* 2 comes before 1. */
    assert_true(ps_link_receive(m->link, &msg, 0, &fx));
    ps_member_add_pending_exit(m, 77, 2);
    assert_true(ps_member_has_pending_exit(m, 77));
    assert_false(ps_member_has_pending_exit(m, 78));
    msg.seq = 1;
    assert_true(ps_link_receive(m->link, &msg, 0, &fx));
    assert_true(
        ps_member_has_pending_exit(m, 77)); /* It is what closed the gap. */
    /* In order: nothing to remember, and the old entry is dropped. */
    msg.seq = 3;
    assert_true(ps_link_receive(m->link, &msg, 0, &fx));
    ps_member_add_pending_exit(m, 79, 3);
    assert_false(ps_member_has_pending_exit(m, 79));
    assert_false(ps_member_has_pending_exit(m, 77));
    ps_members_fini(&t);
    ps_effects_fini(&fx);
}

static void rates_cover_the_last_seconds(void **state)
{
    struct ps_members t;
    struct ps_msg_ping ping = {.rounds = 10, .bytes_in = 1000};
    struct ps_member *m;

    (void)state;
    ps_members_init(&t);
    m = ps_members_add(&t, PS_ROLE_SERVER, "ps0");
    ps_member_record_ping(m, &ping, PS_SECONDS(10));
    assert_int_equal(m->rates.rounds, 0); /* One ping gives no rate. */
    ping = (struct ps_msg_ping){.rounds = 20,
                                .bytes_in = 5000,
                                .bytes_out = UINT64_MAX,
                                .gpu_up = 40,
                                .gpu_down = 10};
    ps_member_record_ping(m, &ping, PS_SECONDS(11));
    assert_int_equal(m->rates.rounds, 0);
    assert_int_equal(m->last_ping.rounds, 20);
    ps_member_record_ping(m, &ping, PS_SECONDS(12));
    assert_int_equal(m->rates.rounds, 5);
    assert_int_equal(m->rates.bytes_in, 2000);
    assert_int_equal(m->rates.gpu_up, 20);
    assert_int_equal(m->rates.gpu_down, 5);
    assert_true(m->rates.bytes_out > UINT64_MAX / 3);
    ping.rounds = 3; /* It counts from the beginning. */
    ps_member_record_ping(m, &ping, PS_SECONDS(16));
    assert_int_equal(m->rates.rounds, 0);
    assert_int_equal(m->rates.bytes_in, 0);
    ps_member_replace_instance(m, 7);
    assert_int_equal(m->rates.base_at, 0);
    ps_members_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_cover_the_last_seconds),
        cmocka_unit_test(members_are_sorted_and_numbered),
        cmocka_unit_test(states_are_logged),
        cmocka_unit_test(instances_that_were_replaced_are_known),
        cmocka_unit_test(end_of_a_worker_may_arrive_before_its_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
