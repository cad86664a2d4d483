/* SPDX-License-Identifier: Apache-2.0 */
/* Probes: servers at wrong addresses; members whose process has ended, and
 * those whose connection was merely cut. */
#include "sched_world.h"

static void result(struct world *w, uint64_t target, int rc)
{
    struct ps_event ev = {.type = PS_EV_PROBED};

    ev.dial_failed.target = target;
    ev.dial_failed.rc = rc;
    feed_event(w, ev);
}

static void probed(struct world *w, int rc)
{
    result(w, w->probed, rc);
}

static uint32_t servers(const struct world *w, enum ps_node_state state)
{
    return ps_sched_member_count(w->sched, PS_ROLE_SERVER, state);
}

static void a_refused_liveness_probe_means_death(void **state)
{
    struct world *w = world_new();
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s0");

    (void)state;
    assert_int_equal(w->probes, 1); /* It said hello. */
    probed(w, 0);
    lose_conn(w, s);
    assert_int_equal(w->probes, 2);
    assert_int_equal(servers(w, PS_NODE_STATE_SUSPECT), 1);
    /* Its sockets close one after the other. */
    probed(w, 0);
    advance_time(w, PS_MILLIS(100));
    assert_int_equal(w->probes, 3);
    probed(w, PS_E_REFUSED);
    assert_int_equal(servers(w, PS_NODE_STATE_GONE), 1);
    expect_substring(w->story, "its process has ended: 10.0.0.1:9 refuses");
    end_world(w);
}

/* The server ends before the result of its first probe is here. */
static void a_probe_from_before_the_loss_counts(void **state)
{
    struct world *w = world_new();
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s0");

    (void)state;
    lose_conn(w, s);
    assert_int_equal(w->probes, 1);
    probed(w, 0);
    advance_time(w, PS_MILLIS(100));
    assert_int_equal(w->probes, 2);
    probed(w, PS_E_REFUSED);
    assert_int_equal(servers(w, PS_NODE_STATE_GONE), 1);
    end_world(w);
}

static void cut_without_a_refused_probe_ends_no_lease(void **state)
{
    struct world *w = world_new();
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s0");

    (void)state;
    probed(w, 0);
    lose_conn(w, s);
    for (int i = 0; i < 5; i++) {
        probed(w, i % 2 == 0 ? 0 : PS_E_TIMEOUT);
        advance_time(w, PS_MILLIS(100));
    }
    connect_peer(w, s);
    /* A late result of an earlier probe. */
    probed(w, PS_E_REFUSED);
    assert_int_equal(servers(w, PS_NODE_STATE_ACTIVE), 1);
    advance_time(w, PS_SECONDS(5));
    assert_int_equal(servers(w, PS_NODE_STATE_ACTIVE), 1);
    end_world(w);
}

/* A firewall refuses the scheduler's connections: no evidence of death. */
static void member_without_a_successful_probe_keeps_its_lease(void **state)
{
    struct world *w = world_new();
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s0");

    (void)state;
    join_peer(w, PS_ROLE_AGENT, "a0");
    assert_int_equal(w->probes, 1); /* The agent names no address. */
    probed(w, PS_E_REFUSED);
    assert_int_equal(servers(w, PS_NODE_STATE_ACTIVE), 1);
    lose_conn(w, s);
    advance_time(w, PS_SECONDS(1));
    assert_int_equal(w->probes, 1);
    assert_int_equal(servers(w, PS_NODE_STATE_SUSPECT), 1);
    advance_time(w, PS_MILLIS(1100));
    assert_int_equal(servers(w, PS_NODE_STATE_GONE), 1);
    end_world(w);
}

/* The answer is of the process that was probed. */
static void late_probe_of_an_old_process_is_ignored(void **state)
{
    struct world *w = world_new();
    struct peer *s = join_peer(w, PS_ROLE_SERVER, "s0");
    uint64_t before = w->probed;

    (void)state;
    probed(w, 0);
    lose_conn(w, s);
    s->instance += 100;
    s->session += 100;
    connect_peer(w, s);
    /* At once: the new process may end as soon as the old one did. */
    assert_true(w->probed != before);
    probed(w, 0);
    lose_conn(w, s);
    result(w, before, PS_E_REFUSED);
    assert_int_equal(servers(w, PS_NODE_STATE_SUSPECT), 1);
    world_free(w);
}

/* Returns the reason why the server cannot be reached; "": it can be, or
 * unknown. */
static const char *reach_of(struct world *w, struct peer *ctl)
{
    drop_inbox(ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_NODES, .job = ""}});
    for (uint32_t i = 0; i < ctl->count; i++) {
        const struct ps_msg *msg = ctl->inbox[i].msg;

        if (msg->code == PS_MSG_NODE_ROW &&
            msg->node_row.role == PS_ROLE_SERVER) {
            assert_int_equal(msg->node_row.state, PS_NODE_STATE_ACTIVE);
            return msg->node_row.unreachable != NULL ? msg->node_row.unreachable
                                                     : "";
        }
    }
    fail_msg("no server");
    return "";
}

static void send_new_hello(struct world *w, struct peer *s)
{
    lose_conn(w, s);
    s->instance++;
    connect_peer(w, s);
}

static void servers_are_probed_at_their_advertised_address(void **state)
{
    struct world *w = world_new();
    struct peer *s = peer_new(w, PS_ROLE_SERVER, "s0");
    struct peer *ctl = join_peer(w, PS_ROLE_CTL, "");
    uint64_t target;

    (void)state;
    join_peer(w, PS_ROLE_AGENT, "a0");
    assert_int_equal(w->probes, 0);
    connect_peer(w, s);
    assert_int_equal(w->probes, 1);
    assert_string_equal(w->probed_address, "10.0.0.1:9");
    target = w->probed;
    assert_string_equal(reach_of(w, ctl), "");
    probed(w, PS_E_UNREACH);
    assert_string_equal(reach_of(w, ctl), ps_strerror(PS_E_UNREACH));
    /* Again; an earlier result does not count any more. */
    advance_time(w, PS_SECONDS(9));
    assert_int_equal(w->probes, 1);
    advance_time(w, PS_SECONDS(2));
    assert_int_equal(w->probes, 2);
    result(w, target, 0);
    assert_string_not_equal(reach_of(w, ctl), "");
    probed(w, 0);
    assert_string_equal(reach_of(w, ctl), "");
    advance_time(w, PS_SECONDS(30));
    assert_int_equal(w->probes, 2);
    /* One for the loss and one for the new process, at once. */
    send_new_hello(w, s);
    assert_int_equal(w->probes, 4);
    /* A failure on the scheduler's side is no evidence about a server. */
    probed(w, PS_E_FULL);
    assert_string_equal(reach_of(w, ctl), "");
    /* Unreached processes are probed once a second, however often they send
     * hello. */
    for (int i = 0; i < 5; i++) {
        send_new_hello(w, s);
    }
    assert_int_equal(w->probes, 4);
    advance_time(w, PS_MILLIS(1100));
    assert_int_equal(w->probes, 5);
    end_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_are_probed_at_their_advertised_address),
        cmocka_unit_test(a_refused_liveness_probe_means_death),
        cmocka_unit_test(a_probe_from_before_the_loss_counts),
        cmocka_unit_test(cut_without_a_refused_probe_ends_no_lease),
        cmocka_unit_test(member_without_a_successful_probe_keeps_its_lease),
        cmocka_unit_test(late_probe_of_an_old_process_is_ignored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
