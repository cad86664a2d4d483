/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine and its links: when it dials and when it does not, and what
 * a server may tell it. */
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

/* Other servers have taken over its partitions; it would refuse an agent whose
 * jobs it does not know. */
static void a_server_without_partitions_is_dialled_once(void **state)
{
    struct ps_buf *table = ps_buf_new(PS_FIXED_PLACEMENT_PART_BYTES);
    const struct ps_slice payload = {.buf = table, .len = table->size};
    struct bench b;

    (void)state;
    wait_for_server(&b);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_MAP, .map = {.epoch = 2}},
                NULL);
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = SERVER_CONN});
    ps_fixed_put_placement_part(
        table->data, &(struct ps_fixed_placement_part){.node = SERVER_NODE + 1,
                                                       .count = 16});
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_KEY_OPENED,
                                 .key_opened = {.gen = GEN,
                                                .epoch = 2,
                                                .parts = 1,
                                                .compression = "",
                                                .is_reassigned = true}},
                &payload);
    ps_buf_unref(table);
    /* The server returns. */
    b.dialled_node = 0;
    deliver_map_epoch(&b, 3);
    (void)run(&b, PS_MILLIS(100));
    open_conn(&b, SECOND_CONN, PS_CONN_DIALLED, SERVER_NODE);
    feed_event(&b,
               (struct ps_event){.type = PS_EV_CLOSED, .conn = SECOND_CONN});
    assert_int_equal(run(&b, PS_SECONDS(10)), 0);
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

/* -------------------------------------------------------- a server that lies */

#define LIAR_NODE (SERVER_NODE + 1)
#define LIAR_CONN (SERVER_CONN + 1)
#define LIE       666.0f

static uint64_t refused(const struct bench *b)
{
    struct ps_agent_stats s;

    ps_agent_stats(b->agent, &s);
    return s.refused_frames;
}

/* Two servers with a link to the agent. ps0 owns both partitions of key 0, ps1
 * owns key 1 alone. A round of both keys is open. */
static void meet_liar(struct bench *b)
{
    const struct ps_rec_server servers[] = {
        {.node = SERVER_NODE,
         .name = "ps0",
         .incarnation = 1,
         .address = "ps0:1",
         .state = PS_NODE_STATE_ACTIVE},
        {.node = LIAR_NODE,
         .name = "ps1",
         .incarnation = 1,
         .address = "ps1:1",
         .state = PS_NODE_STATE_ACTIVE},
    };

    begin_bench(b, 1, 2);
    deliver_msg(
        b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_MAP,
            .map = {.epoch = 2, .servers = servers, .servers_count = 2}},
        NULL);
    open_key(b, 0, 2, 16, SERVER_NODE);
    open_key(b, 1, 1, 16, LIAR_NODE);
    share_region(b, 0, 256);
    feed_tick(b);
    connect_server(b, false, 0);
    submit_push(b, 0, 1, 1, 0);
    feed_tick(b);
    open_conn(b, LIAR_CONN, PS_CONN_DIALLED, LIAR_NODE);
    deliver_welcome(b, LIAR_CONN, false, 0);
    submit_push(b, 0, 0, 1, 0);
    (void)run(b, PS_MILLIS(1));
    assert_int_equal(count_sent(b, LIAR_CONN, PS_MSG_PUSH), 1);
    assert_int_not_equal(count_sent(b, SERVER_CONN, PS_MSG_PUSH), 0);
}

/* Sends a message of ps1; with `len`, a payload of that many bytes, all floats
 * of which are LIE. Returns what the agent said to the payload. */
static int lie(struct bench *b, struct ps_msg m, uint64_t len)
{
    struct ps_slice at = {.buf = NULL};
    int rc = 0;

    if (len > 0) {
        rc = b->machine.ops->payload(b->machine.self, LIAR_CONN, &m, len, &at);
    }
    for (uint64_t i = 0; at.buf != NULL && i < len / 4; i++) {
        ((float *)(void *)ps_slice_data(&at))[i] = LIE;
    }
    deliver_msg(b, LIAR_CONN, &m, len > 0 ? &at : NULL);
    ps_buf_unref(at.buf);
    return rc;
}

static struct ps_rec_part part_of(uint32_t key, uint32_t index, uint64_t round)
{
    return (struct ps_rec_part){.key = key,
                                .index = index,
                                .round = round,
                                .dtype = PS_DTYPE_FLOAT32,
                                .count = 16};
}

/* The round of key 0 ends with the owner's value, and no earlier. */
static void end_honest_round(struct bench *b)
{
    assert_int_equal(count_sent(b, WORKER_CONN, PS_MSG_L_DONE), 0);
    deliver_value(b, 0, 0, 1, 16, 3, 0);
    assert_int_equal(count_sent(b, WORKER_CONN, PS_MSG_L_DONE), 0);
    deliver_value(b, 0, 1, 1, 16, 4, 0);
    assert_int_equal(count_sent(b, WORKER_CONN, PS_MSG_L_DONE), 1);
    assert_int_equal(last_op_done(b, 0)->error, 0);
    assert_int_equal(last_op_done(b, 0)->version, 1);
}

/* No memory is lent for a value of another server's partition, and a value of
 * its own is refused with it. */
static void values_of_other_owners_are_refused(void **state)
{
    struct ps_rec_part parts[2] = {part_of(1, 0, 1), part_of(0, 1, 1)};
    struct ps_msg m = {.code = PS_MSG_VALUE,
                       .value = {.gen = GEN, .parts = parts}};
    struct bench b;

    (void)state;
    meet_liar(&b);
    m.value.parts_count = 2;
    assert_int_equal(lie(&b, m, 128), PS_E_PERM);
    m.value.parts = &parts[1];
    m.value.parts_count = 1;
    assert_int_equal(lie(&b, m, 64), PS_E_PERM);
    parts[1].round = 1000000;
    m.value.parts = parts;
    m.value.parts_count = 2;
    assert_int_equal(lie(&b, m, 128), PS_E_PERM);
    assert_int_equal(refused(&b), 3);
    end_honest_round(&b);
    /* Its own partition is its own. */
    m.value.parts_count = 1;
    assert_int_equal(lie(&b, m, 64), 0);
    assert_int_equal(refused(&b), 3);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 2);
    end_bench(&b);
}

/* The owner itself cannot write a version that is not due (rule R14), in a frame
 * of several partitions as in a frame of one. */
static void values_that_are_not_due_are_ignored(void **state)
{
    struct ps_rec_part parts[2] = {part_of(0, 0, 2), part_of(0, 1, 1000000)};
    struct ps_msg m = {.code = PS_MSG_VALUE,
                       .value = {.gen = GEN, .parts = parts, .parts_count = 2}};
    struct ps_slice at;
    struct bench b;

    (void)state;
    meet_liar(&b);
    end_honest_round(&b);
    submit_push(&b, 0, 0, 2, 0);
    feed_tick(&b);
    m.seq = b.server_seq + 1;
    assert_int_equal(
        b.machine.ops->payload(b.machine.self, SERVER_CONN, &m, 128, &at), 0);
    memset(ps_slice_data(&at), 0, 128);
    deliver_msg(&b, SERVER_CONN, &m, &at);
    ps_buf_unref(at.buf);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 1);
    deliver_value(&b, 0, 1, 2, 16, 5, 0);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 2);
    assert_int_equal(last_op_done(&b, 0)->version, 2);
    end_bench(&b);
}

static void other_messages_about_partitions_of_others_are_refused(void **state)
{
    struct ps_rec_part part = part_of(0, 0, 1);
    struct ps_rec_rows rows = {.key = 0,
                               .index = 1,
                               .round = 1,
                               .dtype = PS_DTYPE_FLOAT32,
                               .row_width = 4,
                               .count = 4};
    const struct ps_msg lies[] = {
        {.code = PS_MSG_COMMIT,
         .commit = {.gen = GEN, .parts = &part, .parts_count = 1}},
        {.code = PS_MSG_REFUSE,
         .refuse = {.gen = GEN,
                    .error = PS_E_JOBFAILED,
                    .text = "a lie",
                    .parts = &part,
                    .parts_count = 1}},
        {.code = PS_MSG_REFUSE,
         .refuse = {.gen = GEN,
                    .error = PS_E_MISMATCH,
                    .text = "",
                    .retry = 7,
                    .parts = &part,
                    .parts_count = 1}},
        {.code = PS_MSG_STATE,
         .state = {.gen = GEN,
                   .request = 1,
                   .text = "",
                   .parts = &part,
                   .parts_count = 1}},
        {.code = PS_MSG_ROWS,
         .rows = {.gen = GEN, .request = 1, .parts = &rows, .parts_count = 1}},
    };
    const uint32_t count = sizeof(lies) / sizeof(lies[0]);
    struct bench b;

    (void)state;
    meet_liar(&b);
    for (uint32_t i = 0; i < count; i++) {
        const bool has_payload = lies[i].code == PS_MSG_STATE ||
                                 lies[i].code == PS_MSG_ROWS;

        assert_int_equal(lie(&b, lies[i], has_payload ? 64 : 0),
                         has_payload ? PS_E_PERM : 0);
        assert_int_equal(refused(&b), i + 1);
    }
    end_honest_round(&b);
    end_bench(&b);
}

/* A server asks for the state of a partition that it was given by a placement of
 * which this agent has not heard. */
static void requests_for_state_may_precede_the_placement(void **state)
{
    struct ps_rec_part part = part_of(0, 0, 0);
    struct ps_msg m = {.code = PS_MSG_REFUSE,
                       .refuse = {.gen = GEN,
                                  .epoch = 1000,
                                  .error = PS_E_STALE,
                                  .text = "",
                                  .parts = &part,
                                  .parts_count = 1}};
    struct bench b;

    (void)state;
    meet_liar(&b);
    lie(&b, m, 0);
    assert_int_equal(refused(&b), 0);
    m.refuse.epoch = 0;
    lie(&b, m, 0);
    assert_int_equal(refused(&b), 1);
    end_honest_round(&b);
    end_bench(&b);
}

/* The connection ends at the 16th such message, and is dialled again later. */
static void server_that_goes_on_lying_is_cut_off(void **state)
{
    const struct ps_rec_part part = part_of(0, 0, 1);
    const struct ps_msg m = {
        .code = PS_MSG_COMMIT,
        .commit = {.gen = GEN, .parts = &part, .parts_count = 1}};
    struct bench b;

    (void)state;
    meet_liar(&b);
    for (uint32_t i = 0; i < PS_MISUSE_MAX + 5; i++) {
        (void)lie(&b, m, 0);
    }
    assert_int_equal(refused(&b), PS_MISUSE_MAX);
    b.dialled_node = 0;
    end_honest_round(&b);
    while (b.dialled_node != LIAR_NODE) {
        b.now = b.machine.ops->deadline(b.machine.self);
        assert_true(b.now < PS_SECONDS(5));
        feed_tick(&b);
    }
    open_conn(&b, LIAR_CONN + 100, PS_CONN_DIALLED, LIAR_NODE);
    assert_non_null(find_sent(&b, LIAR_CONN + 100, PS_MSG_HELLO, 0));
    end_bench(&b);
}

/* A server is the owner of the partition until the scheduler gives that to
 * another one, while a value of the former is being read into the results. */
static void results_are_recalled_from_a_previous_owner(void **state)
{
    const uint32_t record[4] = {LIAR_NODE, 16, SERVER_NODE, 16};
    struct ps_rec_part part = part_of(0, 0, 1);
    struct ps_msg m = {.code = PS_MSG_VALUE,
                       .value = {.gen = GEN, .parts = &part, .parts_count = 1}};
    struct ps_buf *table = ps_buf_new(16);
    struct ps_slice payload = {.buf = table, .len = table->size};
    struct ps_slice at;
    struct bench b;

    (void)state;
    memcpy(table->data, record, 16);
    meet_liar(&b);
    m.seq = b.server_seq + 1;
    assert_int_equal(
        b.machine.ops->payload(b.machine.self, SERVER_CONN, &m, 64, &at), 0);
    deliver_msg(&b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_KEY_OPENED,
                                 .key_opened = {.gen = GEN,
                                                .text = "",
                                                .key = 0,
                                                .epoch = 3,
                                                .parts = 2,
                                                .compression = ""}},
                &payload);
    /* Closed: the rest of the value is not read. */
    b.dialled_node = 0;
    assert_int_not_equal(run(&b, PS_SECONDS(1)), 0);
    deliver_msg(&b, SERVER_CONN, &m, &at);
    ps_buf_unref(at.buf);
    ps_buf_unref(table);
    assert_int_equal(count_sent(&b, WORKER_CONN, PS_MSG_L_DONE), 0);
    assert_int_equal(refused(&b), 0);
    end_bench(&b);
}

/* The server's process has died, and another one of its name has what it had:
 * the agent sends what is open again, and says what it knows to be committed.
 * The values stay where they are. */
static void
the_next_process_of_a_server_gets_versions_and_open_rounds(void **state)
{
    const struct sent *s;
    struct bench b;

    (void)state;
    begin_bench(&b, 1, 1);
    open_key(&b, 0, 2, 16, SERVER_NODE);
    feed_tick(&b);
    connect_server(&b, false, 0);
    share_region(&b, 0, 128);
    submit_push(&b, 0, 0, 1, 0);
    feed_tick(&b);
    run_computations(&b);
    deliver_value(&b, 0, 0, 1, 16, 9, 0);
    deliver_value(&b, 0, 1, 1, 16, 9, 0);
    submit_push(&b, 0, 0, 2, 0);
    feed_tick(&b);
    run_computations(&b);
    deliver_value(&b, 0, 0, 2, 16, 9, 0);
    for (int restarts = 0; restarts < 2; restarts++) {
        b.server_restarts = (uint32_t)restarts;
        drop_sent(&b);
        feed_event(
            &b, (struct ps_event){.type = PS_EV_CLOSED, .conn = SERVER_CONN});
        b.now += PS_SECONDS(1);
        feed_tick(&b);
        connect_server(&b, false, 0);
        feed_tick(&b);
        run_computations(&b);
        /* Of the same process: the link alone was lost. */
        assert_int_equal(count_sent(&b, SERVER_CONN, PS_MSG_RESTORE),
                         2 * restarts);
        for (uint32_t i = 0; restarts > 0 && i < 2; i++) {
            s = find_sent(&b, SERVER_CONN, PS_MSG_RESTORE, i);
            assert_int_equal(s->packet->msg->restore.parts[0].index, i);
            assert_false(s->packet->msg->restore.has_value);
            assert_true(s->packet->msg->restore.has_committed);
            assert_int_equal(s->packet->msg->restore.committed_version, 2 - i);
        }
        s = find_sent(&b, SERVER_CONN, PS_MSG_PUSH, 0);
        assert_non_null(s);
        assert_int_equal(s->packet->msg->push.parts_count, 1);
        assert_int_equal(s->packet->msg->push.parts[0].index, 1);
        assert_int_equal(s->packet->msg->push.parts[0].round, 2);
    }
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
        cmocka_unit_test(a_server_without_partitions_is_dialled_once),
        cmocka_unit_test(silent_scheduler_is_dialled_again),
        cmocka_unit_test(values_of_other_owners_are_refused),
        cmocka_unit_test(values_that_are_not_due_are_ignored),
        cmocka_unit_test(other_messages_about_partitions_of_others_are_refused),
        cmocka_unit_test(requests_for_state_may_precede_the_placement),
        cmocka_unit_test(server_that_goes_on_lying_is_cut_off),
        cmocka_unit_test(results_are_recalled_from_a_previous_owner),
        cmocka_unit_test(
            the_next_process_of_a_server_gets_versions_and_open_rounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
