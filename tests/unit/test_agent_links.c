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

static void what_is_stuck_goes_over_another_connection(void **state)
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
    /* Frames on the old connection are ignored, and its end does not end the
     * link. */
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = SERVER_CONN});
    assert_int_equal(run(&b, PS_SECONDS(3)), 0);
    end_bench(&b);
}

/* The scheduler does not hear the server: it is told when this agent has, and
 * the server is pinged, so that the next answer is newer. */
static void a_witness_tells_when_it_has_heard_a_server(void **state)
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
    ask.ping_req.incarnation = 2; /* Of that one nothing is known. */
    deliver_msg(&b, SCHED_CONN, &ask, NULL);
    ask.ping_req.node = 99;
    deliver_msg(&b, SCHED_CONN, &ask, NULL);
    assert_int_equal(count_sent(&b, SCHED_CONN, PS_MSG_PING_ACK), 1);
    /* So do servers: */
    deliver_msg(&b, SERVER_CONN, &(struct ps_msg){.code = PS_MSG_PING}, NULL);
    assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_PONG), 1);
    end_bench(&b);
}

static void a_server_that_is_heard_keeps_its_connection(void **state)
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

static void a_server_that_is_gone_is_not_dialled(void **state)
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
    /* It comes back. */
    deliver_map_epoch(&b, 3);
    assert_int_equal(run(&b, PS_MILLIS(100)), 1);
    end_bench(&b);
}

static void a_scheduler_that_does_not_answer_is_dialled(void **state)
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
        cmocka_unit_test(what_is_stuck_goes_over_another_connection),
        cmocka_unit_test(a_witness_tells_when_it_has_heard_a_server),
        cmocka_unit_test(a_server_that_is_heard_keeps_its_connection),
        cmocka_unit_test(a_server_is_pinged_while_an_operation_waits),
        cmocka_unit_test(a_server_that_is_gone_is_not_dialled),
        cmocka_unit_test(a_scheduler_that_does_not_answer_is_dialled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
