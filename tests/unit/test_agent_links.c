/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine and its links: when it dials, and when it does not. */
#include "agent_world.h"

#define SECOND_CONN 77u

static void stall(struct bench *b, ps_conn_id conn)
{
    feed_event(b, (struct ps_event){.type = PS_EV_STALLED, .conn = conn});
}

/* Ticks as a driver does. Returns how often a server was dialled. */
static uint32_t run(struct bench *b, ps_time how_long)
{
    ps_time end = b->now + how_long;
    uint32_t dials = 0;
    ps_time due;

    while ((due = b->machine.ops->deadline(b->machine.self)) <= end) {
        b->now = due > b->now ? due : b->now;
        b->dialled_node = 0;
        feed_tick(b);
        dials += b->dialled_node == SERVER_NODE;
    }
    b->now = end;
    return dials;
}

/* A worker waits for a round that has gone to the server. */
static void wait_for_server(struct bench *b)
{
    begin_bench(b, 1, 1);
    open_key(b, 0, 1, 16, SERVER_NODE);
    feed_tick(b);
    connect_server(b, false, 0);
    share_region(b, 0, 64);
    submit_push(b, 0, 0, 1, 0);
    (void)run(b, PS_MILLIS(1));
    assert_int_equal(count_sent(b, SERVER_CONN, PS_MSG_PUSH), 1);
}

static void a_stalled_link_moves_to_another_connection(void **state)
{
    struct bench b;
    const struct sent *hello;
    uint64_t session;

    (void)state;
    wait_for_server(&b);
    session =
        find_sent(&b, SERVER_CONN, PS_MSG_HELLO, 0)->packet->msg->hello.session;
    b.dialled_node = 0;
    stall(&b, SERVER_CONN);
    feed_tick(&b);
    assert_int_equal(b.dialled_node, SERVER_NODE);
    open_conn(&b, SECOND_CONN, PS_CONN_DIALLED, SERVER_NODE);
    hello = find_sent(&b, SECOND_CONN, PS_MSG_HELLO, 0);
    assert_non_null(hello);
    assert_true(hello->packet->msg->hello.session == session);
    deliver_welcome(&b, SECOND_CONN, true, 0);
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SECOND_CONN, PS_MSG_PUSH), 1);
    /* Frames on the old connection are ignored, and its close does not affect
     * the link. */
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = SERVER_CONN});
    assert_int_equal(run(&b, PS_SECONDS(3)), 0);
    end_bench(&b);
}

/* The scheduler does not hear the server: the agent reports when it last did,
 * and pings the server, so that its next report is newer. */
static void witness_reports_the_last_message_of_a_server(void **state)
{
    struct ps_msg ask = {.code = PS_MSG_PING_REQ,
                         .ping_req = {.node = SERVER_NODE, .incarnation = 1}};
    const struct ps_msg_ping_ack *ack;
    struct bench b;
    uint32_t pings;

    (void)state;
    wait_for_server(&b);
    deliver_msg(&b, SERVER_CONN, &(struct ps_msg){.code = PS_MSG_PONG}, NULL);
    b.now += PS_MILLIS(300);
    pings = count_sent(&b, SERVER_CONN, PS_MSG_PING);
    deliver_msg(&b, SCHED_CONN, &ask, NULL);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_PING_ACK), 1);
    ack = &find_sent(&b, SCHED_CONN, PS_MSG_PING_ACK, 0)->packet->msg->ping_ack;
    assert_int_equal(ack->node, SERVER_NODE);
    assert_int_equal(ack->silent_ns, PS_MILLIS(300));
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PING), pings + 1);
    ask.ping_req.incarnation = 2; /* Nothing is known of that member. */
    deliver_msg(&b, SCHED_CONN, &ask, NULL);
    ask.ping_req.node = 99;
    deliver_msg(&b, SCHED_CONN, &ask, NULL);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_PING_ACK), 1);
    /* Also after the connection has closed. */
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = SERVER_CONN});
    ask.ping_req.node = SERVER_NODE;
    ask.ping_req.incarnation = 1;
    b.now += PS_MILLIS(100);
    deliver_msg(&b, SCHED_CONN, &ask, NULL);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_PING_ACK), 2);
    ack = &find_sent(&b, SCHED_CONN, PS_MSG_PING_ACK, 1)->packet->msg->ping_ack;
    assert_int_equal(ack->silent_ns, PS_MILLIS(400));
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PING), pings + 1);
    end_bench(&b);
}

/* The address of a server leads to another member that has taken it. */
static void a_server_is_recognised_by_its_certificate(void **state)
{
    static const struct ps_peer_identity other = {PS_ROLE_SERVER, "c", "ps1"};
    static const struct ps_peer_identity right = {PS_ROLE_SERVER, "c", "ps0"};
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = SECOND_CONN};
    struct bench b;

    (void)state;
    wait_for_server(&b);
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = SERVER_CONN});
    assert_int_not_equal(run(&b, PS_SECONDS(1)), 0);
    ev.open.kind = PS_CONN_DIALLED;
    ev.open.target = b.dial_targets[SERVER_NODE % 8];
    ev.open.peer = "test";
    ev.open.identity = &other;
    feed_event(&b, ev);
    assert_null(find_sent(&b, SECOND_CONN, PS_MSG_HELLO, 0));
    /* It is dialled again. */
    assert_int_not_equal(run(&b, PS_SECONDS(3)), 0);
    ev.conn = SECOND_CONN + 1;
    ev.open.target = b.dial_targets[SERVER_NODE % 8];
    ev.open.identity = &right;
    feed_event(&b, ev);
    assert_non_null(find_sent(&b, SECOND_CONN + 1, PS_MSG_HELLO, 0));
    end_bench(&b);
}

static void agent_answers_the_ping_of_a_server(void **state)
{
    struct bench b;

    (void)state;
    wait_for_server(&b);
    deliver_msg(&b, SERVER_CONN, &(struct ps_msg){.code = PS_MSG_PING}, NULL);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PONG), 1);
    end_bench(&b);
}

static void connection_is_kept_when_the_server_answers(void **state)
{
    struct bench b;

    (void)state;
    wait_for_server(&b);
    stall(&b, SERVER_CONN);
    feed_tick(&b);
    deliver_msg(&b, SERVER_CONN, &(struct ps_msg){.code = PS_MSG_PONG}, NULL);
    open_conn(&b, SECOND_CONN, PS_CONN_DIALLED, SERVER_NODE);
    assert_null(find_sent(&b, SECOND_CONN, PS_MSG_HELLO, 0));
    end_bench(&b);
}

/* Its answer may be stuck where the agent has nothing to send. */
static void a_server_is_pinged_while_an_operation_waits(void **state)
{
    struct bench b;
    uint32_t pings;

    (void)state;
    wait_for_server(&b);
    deliver_msg(&b, SERVER_CONN, &(struct ps_msg){.code = PS_MSG_ACK, .ack = 1},
                NULL);
    (void)run(&b, PS_SECONDS(10));
    pings = count_sent(&b, SERVER_CONN, PS_MSG_PING);
    assert_in_range(pings, 5, 8);
    deliver_value(&b, 0, 0, 1, 16, 1, 0);
    assert_int_equal(last_op_done(&b, 0)->error, 0);
    (void)run(&b, PS_SECONDS(10));
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PING), pings);
    end_bench(&b);
}

static void gone_server_is_not_dialled(void **state)
{
    struct bench b;

    (void)state;
    wait_for_server(&b);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_MAP, .map = {.epoch = 2}},
                NULL);
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = SERVER_CONN});
    b.dialled_node = 0;
    assert_int_equal(run(&b, PS_SECONDS(3)), 0);
    /* The server returns. */
    deliver_map_epoch(&b, 3);
    assert_int_equal(run(&b, PS_MILLIS(100)), 1);
    end_bench(&b);
}

static void silent_scheduler_is_dialled_again(void **state)
{
    struct bench b;
    bool dialled = false;

    (void)state;
    begin_bench(&b, 1, 1);
    /* No answer comes until the next ping. */
    deliver_msg(&b, SCHED_CONN, &(struct ps_msg){.code = PS_MSG_PONG}, NULL);
    for (int i = 0; i < 25 && !dialled; i++) {
        b.dial_targets[0] = UINT64_MAX;
        b.now += PS_MILLIS(100);
        feed_tick(&b);
        dialled = b.dial_targets[0] == 0;
    }
    assert_true(dialled);
    assert_in_range(b.now, PS_SECONDS(2), PS_MILLIS(2300));
    open_conn(&b, SECOND_CONN, PS_CONN_DIALLED, 0);
    assert_non_null(find_sent(&b, SECOND_CONN, PS_MSG_HELLO, 0));
    deliver_welcome(&b, SECOND_CONN, true, 0);
    assert_true(ps_agent_is_ready(b.agent));
    feed_tick(&b);
    assert_int_equal(count_sent(&b, SECOND_CONN, PS_MSG_PING), 1);
    end_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stalled_link_moves_to_another_connection),
        cmocka_unit_test(witness_reports_the_last_message_of_a_server),
        cmocka_unit_test(a_server_is_recognised_by_its_certificate),
        cmocka_unit_test(agent_answers_the_ping_of_a_server),
        cmocka_unit_test(connection_is_kept_when_the_server_answers),
        cmocka_unit_test(a_server_is_pinged_while_an_operation_waits),
        cmocka_unit_test(gone_server_is_not_dialled),
        cmocka_unit_test(silent_scheduler_is_dialled_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
