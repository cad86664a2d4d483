/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of members: silence that counts as death, and silence because the
 * scheduler is isolated. */
#include "sched_world.h"

static uint32_t in_state(const struct world *w, enum ps_node_state state)
{
    return ps_sched_member_count(w->sched, PS_ROLE_AGENT, state) +
           ps_sched_member_count(w->sched, PS_ROLE_SERVER, state);
}

static void mute_all(struct world *w, bool mute)
{
    for (uint32_t i = 0; i < w->peers; i++) {
        w->peer[i].mute = mute;
    }
}

static void all_are_well(const struct job *j)
{
    assert_null(strstr(j->w->story, "GONE"));
    assert_int_equal(in_state(j->w, PS_NODE_STATE_ACTIVE), 4);
    assert_int_equal(last_job_state(j->a[0])->phase, PS_JOB_PHASE_RUNNING);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(last_job_state(j->a[0])->ranks[i].state,
                         PS_RANK_STATE_LIVE);
    }
}

static void no_lease_ends_while_all_members_are_silent(void **state)
{
    const ps_time lengths[] = {PS_SECONDS(5), PS_SECONDS(20), PS_SECONDS(60)};

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct job j = start_job(PS_LOSS_POLICY_FAIL);

        advance_time(j.w, PS_SECONDS(1));
        mute_all(j.w, true);
        advance_time(j.w, lengths[i]);
        assert_int_equal(in_state(j.w, PS_NODE_STATE_SUSPECT), 4);
        expect_substring(j.w->story, "no member can be reached");
        mute_all(j.w, false);
        advance_time(j.w, PS_SECONDS(20));
        all_are_well(&j);
        finish_job(&j);
    }
}

/* The smallest cluster with a network: one server and one agent. */
static void two_members_silent_at_once_keep_their_leases(void **state)
{
    struct world *w = world_new();

    (void)state;
    join_peer(w, PS_ROLE_SERVER, "s0");
    join_peer(w, PS_ROLE_AGENT, "a0");
    advance_time(w, PS_SECONDS(1));
    mute_all(w, true);
    advance_time(w, PS_SECONDS(60));
    assert_int_equal(in_state(w, PS_NODE_STATE_SUSPECT), 2);
    mute_all(w, false);
    advance_time(w, PS_SECONDS(20));
    assert_int_equal(in_state(w, PS_NODE_STATE_ACTIVE), 2);
    end_world(w);
}

static void one_silent_member_of_two_is_gone_in_time(void **state)
{
    struct world *w = world_new();
    struct peer *s;

    (void)state;
    s = join_peer(w, PS_ROLE_SERVER, "s0");
    join_peer(w, PS_ROLE_AGENT, "a0");
    advance_time(w, PS_SECONDS(1));
    s->mute = true;
    advance_time(w, PS_MILLIS(2100));
    assert_int_equal(in_state(w, PS_NODE_STATE_GONE), 1);
    assert_int_equal(in_state(w, PS_NODE_STATE_ACTIVE), 1);
    end_world(w);
}

/* Returns the number of ping_req that the peer got about another one. */
static uint32_t asked_of(const struct peer *p, const struct peer *other)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        const struct ps_msg *m = p->inbox[i].msg;

        n += m->code == PS_MSG_PING_REQ && m->ping_req.node == other->node;
    }
    return n;
}

static void hears(struct world *w, struct peer *witness, const struct peer *m,
                  uint64_t incarnation, ps_time silence)
{
    deliver_unsequenced(w, witness,
                        (struct ps_msg){.code = PS_MSG_PING_ACK,
                                        .ping_ack = {.node = m->node,
                                                     .incarnation = incarnation,
                                                     .silent_ns = silence}});
}

/* For servers and agents: as long as a peer hears the member, up to a limit. */
static void report_of_a_witness_extends_the_lease(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct job j = start_job(PS_LOSS_POLICY_FAIL);
        struct peer *m = i == 0 ? j.s[1] : j.a[1];
        struct peer *witness = i == 0 ? j.a[0] : j.s[0];
        ps_time lost;

        advance_time(j.w, PS_SECONDS(1));
        m->mute = true;
        lost = j.w->now;
        while (j.w->now < lost + PS_SECONDS(290)) {
            advance_time(j.w, PS_MILLIS(500));
            hears(j.w, witness, m, 1, PS_MILLIS(300));
        }
        assert_true(asked_of(witness, m) > 500);
        assert_int_equal(asked_of(i == 0 ? j.s[0] : j.a[0], m), 0);
        assert_int_equal(in_state(j.w, PS_NODE_STATE_SUSPECT), 1);
        expect_substring(j.w->story, "it is not given up");
        while (j.w->now < lost + PS_SECONDS(301)) {
            advance_time(j.w, PS_MILLIS(500));
            hears(j.w, witness, m, 1, PS_MILLIS(300));
        }
        assert_int_equal(in_state(j.w, PS_NODE_STATE_GONE), 1);
        world_free(j.w);
    }
}

/* The lease begins with the last message that any witness heard; a report about
 * an earlier process of the name is ignored. */
static void lease_starts_at_the_last_report_of_a_witness(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    advance_time(j.w, PS_SECONDS(1));
    j.s[1]->mute = true;
    advance_time(j.w, PS_SECONDS(1));
    hears(j.w, j.a[0], j.s[1], 1, PS_MILLIS(800));
    hears(j.w, j.a[0], j.s[1], 2, 0);
    hears(j.w, j.s[0], j.s[1], 1, 0); /* Servers have no links to others. */
    advance_time(j.w, PS_MILLIS(1100));
    assert_int_equal(in_state(j.w, PS_NODE_STATE_SUSPECT), 1);
    advance_time(j.w, PS_MILLIS(200));
    assert_int_equal(in_state(j.w, PS_NODE_STATE_GONE), 1);
    finish_job(&j);
}

/* Time begins at 1,000,000 s. A certificate that has not ended is no reason. */
static void reason_of_a_loss_names_a_certificate_that_has_ended(void **state)
{
    (void)state;
    for (int has_ended = 0; has_ended < 2; has_ended++) {
        struct job j = start_job(PS_LOSS_POLICY_FAIL);
        const char *reason;

        j.a[1]->certificate_ends = has_ended ? 1000002 : 2000000;
        advance_time(j.w, PS_SECONDS(1));
        j.a[1]->mute = true;
        advance_time(j.w, PS_SECONDS(20));
        assert_int_equal(in_state(j.w, PS_NODE_STATE_GONE), 1);
        reason = last_job_state(j.a[0])->reason;
        expect_substring(reason, "agent a1 is gone: not heard for ");
        assert_int_equal(
            strstr(reason, "; its certificate has expired") != NULL, has_ended);
        world_free(j.w);
    }
}

/* Until the member is accepted again. */
static void reason_of_a_loss_names_a_refusal(void **state)
{
    (void)state;
    for (int returns = 0; returns < 2; returns++) {
        struct job j = start_job(PS_LOSS_POLICY_FAIL);
        struct peer *a = j.a[1];
        struct ps_event refused = {
            .type = PS_EV_CLOSED,
            .conn = a->conn,
            .closed = {PS_E_PERM,
                       "its certificate is revoked (ps://c/agent/a1)"}};

        a->conn = 0;
        feed_event(j.w, refused);
        if (returns) {
            connect_peer(j.w, a);
            lose_conn(j.w, a);
        }
        advance_time(j.w, PS_SECONDS(20));
        assert_int_equal(in_state(j.w, PS_NODE_STATE_GONE), 1);
        const char *reason = last_job_state(j.a[0])->reason;

        expect_substring(reason, "agent a1 is gone: not heard for ");
        assert_int_equal(strstr(reason, "; its certificate is revoked") != NULL,
                         !returns);
        assert_null(strstr(reason, "ps://"));
        world_free(j.w);
    }
}

/* Members return one after the other, some dial only seconds later. */
static void leases_restart_when_a_member_is_heard(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    advance_time(j.w, PS_SECONDS(1));
    mute_all(j.w, true);
    advance_time(j.w, PS_SECONDS(5));
    j.s[0]->mute = false;
    advance_time(j.w, PS_SECONDS(1));
    expect_substring(j.w->story, "members can be reached again");
    assert_null(strstr(strstr(j.w->story, "can be reached again") + 1,
                       "can be reached again")); /* Logged once. */
    for (uint32_t i = 0; i < 2; i++) {
        advance_time(j.w, PS_SECONDS(4));
        lose_conn(j.w, j.a[i]);
        j.a[i]->mute = false;
        connect_peer(j.w, j.a[i]);
    }
    j.s[1]->mute = false;
    advance_time(j.w, PS_SECONDS(1));
    all_are_well(&j);
    finish_job(&j);
}

/* A member that died while none was heard is detected when the others are back;
 * further silences of others do not extend its lease. */
static void silence_of_all_members_extends_a_lease_once(void **state)
{
    struct world *w = world_new();
    struct peer *a;

    (void)state;
    join_peer(w, PS_ROLE_SERVER, "s0");
    a = join_peer(w, PS_ROLE_AGENT, "a0");
    advance_time(w, PS_SECONDS(1));
    mute_all(w, true);
    advance_time(w, PS_SECONDS(30));
    for (uint32_t i = 0; i < 6; i++) {
        a->mute = false;
        advance_time(w, PS_SECONDS(1));
        a->mute = true;
        advance_time(w, PS_SECONDS(1));
    }
    assert_int_equal(
        ps_sched_member_count(w->sched, PS_ROLE_SERVER, PS_NODE_STATE_GONE), 1);
    a->mute = false;
    advance_time(w, PS_SECONDS(1));
    assert_int_equal(
        ps_sched_member_count(w->sched, PS_ROLE_AGENT, PS_NODE_STATE_ACTIVE),
        1);
    end_world(w);
}

/* Part of the network is down: leases are longer, then the members are given
 * up. */
static void silence_of_most_members_extends_leases(void **state)
{
    for (uint32_t back = 0; back < 2; back++) {
        struct job j = start_job(PS_LOSS_POLICY_WAIT);

        (void)state;
        advance_time(j.w, PS_SECONDS(1));
        for (uint32_t i = 0; i < 2; i++) {
            j.s[i]->mute = true;
        }
        j.a[1]->mute = true;
        advance_time(j.w, PS_SECONDS(5));
        assert_int_equal(in_state(j.w, PS_NODE_STATE_SUSPECT), 3);
        if (back == 1) {
            mute_all(j.w, false);
            advance_time(j.w, PS_SECONDS(5));
            all_are_well(&j);
            finish_job(&j);
            continue;
        }
        advance_time(j.w, PS_MILLIS(1500));
        assert_int_equal(in_state(j.w, PS_NODE_STATE_GONE), 3);
        world_free(j.w);
    }
}

/* Half of the members are not most of them: a host with a server and an agent. */
static void silence_of_half_of_the_members_extends_no_lease(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    advance_time(j.w, PS_SECONDS(1));
    j.s[1]->mute = true;
    j.a[1]->mute = true;
    advance_time(j.w, PS_MILLIS(2100));
    assert_int_equal(in_state(j.w, PS_NODE_STATE_GONE), 2);
    world_free(j.w);
}

static void silence_of_all_members_ends_leases_at_a_limit(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    advance_time(j.w, PS_SECONDS(1));
    mute_all(j.w, true);
    advance_time(j.w, PS_SECONDS(290));
    assert_int_equal(in_state(j.w, PS_NODE_STATE_SUSPECT), 4);
    advance_time(j.w, PS_SECONDS(20));
    assert_int_equal(in_state(j.w, PS_NODE_STATE_GONE), 4);
    world_free(j.w);
}

/* Its process was stopped; meanwhile the members have cut their connections
 * and wait before they dial again. */
static void suspended_scheduler_waits_for_members_to_dial(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    advance_time(j.w, PS_SECONDS(1));
    j.w->now += PS_SECONDS(20);
    for (uint32_t i = 0; i < 2; i++) {
        lose_conn(j.w, j.s[i]);
        lose_conn(j.w, j.a[i]);
    }
    advance_time(j.w, PS_SECONDS(6));
    for (uint32_t i = 0; i < 2; i++) {
        connect_peer(j.w, j.s[i]);
        connect_peer(j.w, j.a[i]);
    }
    advance_time(j.w, PS_SECONDS(1));
    all_are_well(&j);
    finish_job(&j);
}

/* An agent on a fresh link has some time to report its workers again. Neither
 * the scheduler's own suspension counts for that, nor a time when the agent is
 * disconnected. */
static void workers_are_not_lost_while_their_agent_is_disconnected(void **state)
{
    for (uint32_t sleeps = 0; sleeps < 2; sleeps++) {
        struct job j = start_job(PS_LOSS_POLICY_FAIL);

        (void)state;
        advance_time(j.w, PS_SECONDS(1));
        lose_conn(j.w, j.a[0]);
        advance_time(j.w, PS_MILLIS(1200)); /* The link is forgotten. */
        connect_peer(j.w, j.a[0]);
        if (sleeps == 1) {
            j.w->now += PS_SECONDS(4);
            lose_conn(j.w, j.a[0]);
            advance_time(j.w, PS_SECONDS(1));
        } else {
            mute_all(j.w, true);
            lose_conn(j.w, j.a[0]);
            advance_time(j.w, PS_SECONDS(4));
            mute_all(j.w, false);
        }
        connect_peer(j.w, j.a[0]);
        if (strstr(j.w->story, "does not know it any more") != NULL) {
            fail_msg("sleeps %u:\n%s", sleeps, j.w->story);
        }
        world_free(j.w);
    }
}

/* Enough that the next tick is not computed after each message. */
static struct world *large_world(uint32_t agents)
{
    struct world *w = world_new();

    for (uint32_t i = 0; i < agents; i++) {
        char name[16];

        snprintf(name, sizeof(name), "a%u", i);
        join_peer(w, PS_ROLE_AGENT, name);
    }
    advance_time(w, PS_SECONDS(1));
    assert_int_equal(in_state(w, PS_NODE_STATE_ACTIVE), agents);
    return w;
}

static void silent_member_of_many_is_gone_in_time(void **state)
{
    struct world *w = large_world(200);

    (void)state;
    w->peer[77].mute = true;
    advance_time(w, PS_MILLIS(1900));
    assert_int_equal(in_state(w, PS_NODE_STATE_SUSPECT), 1);
    advance_time(w, PS_MILLIS(200));
    assert_int_equal(in_state(w, PS_NODE_STATE_GONE), 1);
    assert_int_equal(in_state(w, PS_NODE_STATE_ACTIVE), 199);
    end_world(w);
}

static void acknowledgements_to_many_members_leave_in_time(void **state)
{
    struct world *w = large_world(200);
    uint32_t before[200];

    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        before[i] = count_msgs(&w->peer[i], PS_MSG_ACK);
        deliver_msg(w, &w->peer[i], (struct ps_msg){.code = PS_MSG_COSTS});
        w->now += PS_MICROS(10);
    }
    advance_time(w, PS_MILLIS(21));
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(count_msgs(&w->peer[i], PS_MSG_ACK), before[i] + 1);
    }
    end_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_lease_ends_while_all_members_are_silent),
        cmocka_unit_test(reason_of_a_loss_names_a_certificate_that_has_ended),
        cmocka_unit_test(reason_of_a_loss_names_a_refusal),
        cmocka_unit_test(two_members_silent_at_once_keep_their_leases),
        cmocka_unit_test(one_silent_member_of_two_is_gone_in_time),
        cmocka_unit_test(report_of_a_witness_extends_the_lease),
        cmocka_unit_test(lease_starts_at_the_last_report_of_a_witness),
        cmocka_unit_test(leases_restart_when_a_member_is_heard),
        cmocka_unit_test(silence_of_all_members_extends_a_lease_once),
        cmocka_unit_test(silence_of_most_members_extends_leases),
        cmocka_unit_test(silence_of_half_of_the_members_extends_no_lease),
        cmocka_unit_test(silence_of_all_members_ends_leases_at_a_limit),
        cmocka_unit_test(suspended_scheduler_waits_for_members_to_dial),
        cmocka_unit_test(silent_member_of_many_is_gone_in_time),
        cmocka_unit_test(acknowledgements_to_many_members_leave_in_time),
        cmocka_unit_test(
            workers_are_not_lost_while_their_agent_is_disconnected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
