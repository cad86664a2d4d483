/* SPDX-License-Identifier: Apache-2.0 */
/* Members whose process has ended, and those whose connection was merely
 * cut. */
#include "sched_world.h"

static void probed(struct world *w, int rc)
{
    struct ps_event ev = {.type = PS_EV_PROBED};

    ev.dial_failed.target = w->asked_of;
    ev.dial_failed.rc = rc;
    step(w, ev);
}

static uint32_t servers(const struct world *w, enum ps_node_state state)
{
    return ps_sched_member_count(w->sched, PS_ROLE_SERVER, state);
}

static void who_is_refused_where_it_listened_is_dead(void **state)
{
    struct world *w = world_new();
    struct peer *s = join(w, PS_ROLE_SERVER, "s0");

    (void)state;
    assert_int_equal(w->asks_made, 1); /* It said hello. */
    probed(w, 0);
    lose_conn(w, s);
    assert_int_equal(w->asks_made, 2);
    assert_int_equal(servers(w, PS_NODE_STATE_SUSPECT), 1);
    /* Its sockets close one after the other. */
    probed(w, 0);
    pass(w, PS_MILLIS(100));
    assert_int_equal(w->asks_made, 3);
    probed(w, PS_E_REFUSED);
    assert_int_equal(servers(w, PS_NODE_STATE_GONE), 1);
    expect_in(w->story, "its process has ended: 10.0.0.1:9 refuses");
    end_world(w);
}

static void a_cut_alone_is_not_death(void **state)
{
    struct world *w = world_new();
    struct peer *s = join(w, PS_ROLE_SERVER, "s0");

    (void)state;
    probed(w, 0);
    lose_conn(w, s);
    for (int i = 0; i < 5; i++) {
        probed(w, i % 2 == 0 ? 0 : PS_E_TIMEOUT);
        pass(w, PS_MILLIS(100));
    }
    hello(w, s);
    /* The answer to a probe from before comes late. */
    probed(w, PS_E_REFUSED);
    assert_int_equal(servers(w, PS_NODE_STATE_ACTIVE), 1);
    pass(w, PS_SECONDS(5));
    assert_int_equal(servers(w, PS_NODE_STATE_ACTIVE), 1);
    end_world(w);
}

/* A firewall refuses what the scheduler dials: that says nothing. */
static void who_was_never_reached_has_its_lease(void **state)
{
    struct world *w = world_new();
    struct peer *s = join(w, PS_ROLE_SERVER, "s0");

    (void)state;
    join(w, PS_ROLE_AGENT, "a0");
    assert_int_equal(w->asks_made, 1); /* The agent names no address. */
    probed(w, PS_E_REFUSED);
    assert_int_equal(servers(w, PS_NODE_STATE_ACTIVE), 1);
    lose_conn(w, s);
    pass(w, PS_SECONDS(1));
    assert_int_equal(w->asks_made, 1);
    assert_int_equal(servers(w, PS_NODE_STATE_SUSPECT), 1);
    pass(w, PS_MILLIS(1100));
    assert_int_equal(servers(w, PS_NODE_STATE_GONE), 1);
    end_world(w);
}

/* The answer is of the process that was probed. */
static void a_new_process_is_not_taken_for_the_old_one(void **state)
{
    struct world *w = world_new();
    struct peer *s = join(w, PS_ROLE_SERVER, "s0");
    uint64_t before = w->asked_of;
    struct ps_event ev = {.type = PS_EV_PROBED};

    (void)state;
    probed(w, 0);
    lose_conn(w, s);
    s->instance += 100;
    s->session += 100;
    hello(w, s);
    assert_true(w->asked_of != before);
    probed(w, 0);
    lose_conn(w, s);
    ev.dial_failed.target = before;
    ev.dial_failed.rc = PS_E_REFUSED;
    step(w, ev);
    assert_int_equal(servers(w, PS_NODE_STATE_SUSPECT), 1);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_refused_where_it_listened_is_dead),
        cmocka_unit_test(a_cut_alone_is_not_death),
        cmocka_unit_test(who_was_never_reached_has_its_lease),
        cmocka_unit_test(a_new_process_is_not_taken_for_the_old_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
