/* SPDX-License-Identifier: Apache-2.0 */
#include "dial_bench.h"

#include "core/link/dialer.h"

#include <stdio.h>

#define BEAT PS_MILLIS(500)

/* A member, its driver, and a scheduler that answers as each test says. */
struct bench {
    struct dial_bench d;
    struct ps_uplink up;
    struct ps_account account;
    struct ps_account_limits limits;
    struct ps_msg_hello hello; /* Last one; without its strings. */
    char hello_name[16];
    uint32_t hellos;
    uint32_t pings;
    uint32_t costs;
    uint32_t barriers; /* Messages of the member on the link. */
    uint32_t ping_acks;
    char log[256]; /* Last line. */
    /* Calls of the operations. */
    uint32_t new_schedulers;
    bool knows_members;
    uint32_t new_sessions;
    uint32_t updates;
    bool link_was_open; /* At the last on_new_session(). */
};

static void fill_hello(void *context, struct ps_msg_hello *hello)
{
    (void)context;
    hello->role = PS_ROLE_SERVER;
    hello->name = "member";
}

static void fill_ping(void *context, struct ps_msg_ping *ping)
{
    (void)context;
    *ping = (struct ps_msg_ping){.rounds = 7};
}

static void update_account(void *context)
{
    struct bench *b = context;

    b->updates++;
}

static void on_new_scheduler(void *context, bool knows_members)
{
    struct bench *b = context;

    b->new_schedulers++;
    b->knows_members = knows_members;
}

static void on_new_session(void *context)
{
    struct bench *b = context;

    b->new_sessions++;
    b->link_was_open = ps_link_conn(b->up.dialer.link) == b->up.dialer.conn;
}

static const struct ps_uplink_ops ops = {
    .fill_hello = fill_hello,
    .fill_ping = fill_ping,
    .update_account = update_account,
    .on_new_scheduler = on_new_scheduler,
    .on_new_session = on_new_session,
};

static struct ps_uplink_call call_of(struct bench *b)
{
    return (struct ps_uplink_call){
        .context = b, .now = b->d.now, .fx = &b->d.fx};
}

static void note_sent(struct bench *b, const struct ps_msg *m)
{
    switch (m->code) {
    case PS_MSG_HELLO:
        b->hellos++;
        b->hello = m->hello;
        snprintf(b->hello_name, sizeof(b->hello_name), "%s", m->hello.name);
        break;
    case PS_MSG_PING:
        b->pings++;
        assert_int_equal(m->ping.rounds, 7);
        assert_int_equal(m->ping.stamp, b->d.now);
        break;
    case PS_MSG_COSTS:
        b->costs++;
        break;
    case PS_MSG_BARRIER_ENTER:
        b->barriers++;
        break;
    case PS_MSG_PING_ACK:
        b->ping_acks++;
        break;
    default:
        break;
    }
}

static void note_effect(struct dial_bench *d, const struct ps_fx *f)
{
    struct bench *b = (struct bench *)d;

    if (f->type == PS_FX_SEND) {
        note_sent(b, f->send.packet->msg);
    } else if (f->type == PS_FX_LOG) {
        snprintf(b->log, sizeof(b->log), "%s", f->log.text);
    }
}

static ps_time next_deadline(const struct dial_bench *d)
{
    return ps_uplink_deadline(&((const struct bench *)d)->up);
}

static void tick_uplink(struct dial_bench *d)
{
    struct bench *b = (struct bench *)d;
    const struct ps_uplink_call call = call_of(b);

    ps_uplink_tick(&b->up, &call);
}

static void begin_with(struct bench *b, bool waits_after_reject)
{
    static const struct dial_bench_ops dial_ops = {
        .deadline = next_deadline,
        .tick = tick_uplink,
        .note_effect = note_effect,
    };

    memset(b, 0, sizeof(*b));
    dial_bench_init(&b->d, &dial_ops);
    ps_account_init(&b->account, PS_ACCOUNT_DAEMON, "member", &b->limits);
    ps_uplink_init(
        &b->up,
        &(struct ps_uplink_options){.ops = &ops,
                                    .address = "10.0.0.1:9",
                                    .dialer = {.instance = 5,
                                               .backoff_min = PS_MILLIS(100),
                                               .backoff_max = PS_SECONDS(4)},
                                    .account = &b->account,
                                    .waits_after_reject = waits_after_reject},
        &b->d.rng, b->d.now);
}

static void begin_bench(struct bench *b)
{
    begin_with(b, false);
}

static void end(struct bench *b)
{
    ps_uplink_fini(&b->up);
    ps_account_fini(&b->account);
    dial_bench_fini(&b->d);
}

/* Opens the connection of the newest dial; 0: it was not needed. */
static ps_conn_id open_conn(struct bench *b)
{
    const struct ps_uplink_call call = call_of(b);
    const uint32_t before = b->hellos;

    ps_uplink_on_open(&b->up, &call, dial_bench_newest(&b->d), ++b->d.conns);
    dial_bench_carry_out(&b->d);
    return b->hellos > before ? b->d.conns : 0;
}

/* Waits for the next dial and opens its connection. */
static ps_conn_id dial(struct bench *b)
{
    dial_bench_await_dial(&b->d);
    return open_conn(b);
}

/* True: the member has to handle it. */
static bool receive(struct bench *b, ps_conn_id conn, const struct ps_msg *m)
{
    const struct ps_uplink_call call = call_of(b);
    const bool handle = ps_uplink_on_msg(&b->up, &call, conn, m);

    dial_bench_carry_out(&b->d);
    return handle;
}

static void welcome(struct bench *b, ps_conn_id conn, uint64_t instance,
                    bool resumed)
{
    assert_false(receive(b, conn,
                         &(struct ps_msg){.code = PS_MSG_WELCOME,
                                          .welcome = {.protocol = PS_PROTOCOL,
                                                      .instance = instance,
                                                      .node = 3,
                                                      .incarnation = 4,
                                                      .resumed = resumed,
                                                      .heartbeat_ns = BEAT}}));
}

static void reject(struct bench *b, ps_conn_id conn, int error)
{
    assert_false(receive(
        b, conn,
        &(struct ps_msg){.code = PS_MSG_REJECT,
                         .reject = {.error = error, .text = "not you"}}));
}

static void pong(struct bench *b, ps_conn_id conn)
{
    (void)receive(b, conn, &(struct ps_msg){.code = PS_MSG_PONG});
}

static void lose_conn_for(struct bench *b, ps_conn_id conn, int rc,
                          const char *why)
{
    const struct ps_uplink_call call = call_of(b);

    ps_uplink_on_closed(&b->up, &call, conn, rc, why);
    dial_bench_carry_out(&b->d);
}

static void lose_conn(struct bench *b, ps_conn_id conn)
{
    lose_conn_for(b, conn, PS_E_CLOSED, NULL);
}

static void send_barrier(struct bench *b)
{
    ps_uplink_send_msg(&b->up, &(struct ps_msg){.code = PS_MSG_BARRIER_ENTER},
                       b->d.now, &b->d.fx);
    dial_bench_carry_out(&b->d);
}

static ps_conn_id connect_it(struct bench *b)
{
    const ps_conn_id conn = dial(b);

    welcome(b, conn, 1, false);
    assert_true(ps_uplink_is_connected(&b->up));
    return conn;
}

static void a_welcome_registers_and_a_ping_follows(void **state)
{
    struct bench b;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    assert_int_equal(b.up.state, PS_UPLINK_UNREGISTERED);
    conn = dial(&b);
    assert_string_equal(b.hello_name, "member");
    assert_int_equal(b.hello.role, PS_ROLE_SERVER);
    assert_int_equal(b.hello.protocol, PS_PROTOCOL);
    assert_int_equal(b.hello.protocol_least, PS_PROTOCOL_LEAST);
    assert_int_equal(b.hello.instance, 5);
    assert_int_equal(b.hello.node, 0);
    assert_int_not_equal(b.hello.session, 0);
    welcome(&b, conn, 1, false);
    assert_int_equal(b.up.state, PS_UPLINK_CONNECTED);
    assert_int_equal(b.up.node, 3);
    assert_int_equal(b.new_sessions, 1);
    assert_int_equal(b.new_schedulers, 0);
    assert_true(b.link_was_open);
    dial_bench_run(&b.d, 0);
    assert_int_equal(b.pings, 1);
    end(&b);
}

static void messages_wait_in_the_link_after_registration(void **state)
{
    struct bench b;
    uint64_t session;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    send_barrier(&b);
    assert_int_equal(ps_link_unacked(b.up.dialer.link), 0);
    conn = connect_it(&b);
    session = b.hello.session;
    lose_conn(&b, conn);
    assert_int_equal(b.up.state, PS_UPLINK_DISCONNECTED);
    assert_non_null(strstr(b.log, "10.0.0.1:9: connection lost"));
    send_barrier(&b);
    assert_int_equal(b.barriers, 0);
    conn = dial(&b);
    assert_int_equal(b.hello.node, 3);
    assert_int_equal(b.hello.incarnation, 4);
    assert_int_equal(b.hello.session, session);
    welcome(&b, conn, 1, true);
    assert_int_equal(b.barriers, 1);
    assert_int_equal(b.new_sessions, 1); /* The scheduler knows all of it. */
    end(&b);
}

/* For the members' workers, whose operations wait. */
static void reason_of_a_failure_is_kept_until_the_welcome(void **state)
{
    static const char *const why = "it refuses this side: certificate expired";
    struct bench b;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    conn = connect_it(&b);
    assert_string_equal(b.up.failure, "");
    lose_conn(&b, conn);
    assert_string_equal(b.up.failure, ps_strerror(PS_E_CLOSED));
    lose_conn_for(&b, dial(&b), PS_E_PERM, why);
    assert_string_equal(b.up.failure, why);
    lose_conn(&b, dial(&b)); /* Says less. */
    assert_string_equal(b.up.failure, why);
    reject(&b, dial(&b), PS_E_PERM);
    assert_string_equal(b.up.failure, "not you");
    welcome(&b, dial(&b), 1, true);
    assert_string_equal(b.up.failure, "");
    end(&b);
}

static void new_scheduler_process_is_distinguished(void **state)
{
    struct bench b;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    conn = connect_it(&b);
    lose_conn(&b, conn);
    conn = dial(&b);
    welcome(&b, conn, 1, false); /* It has forgotten the session. */
    assert_int_equal(b.new_schedulers, 0);
    assert_int_equal(b.new_sessions, 2);
    lose_conn(&b, conn);
    welcome(&b, dial(&b), 2, false);
    assert_int_equal(b.new_schedulers, 1);
    assert_int_equal(b.new_sessions, 3);
    end(&b);
}

static void repeated_messages_do_not_reach_the_member(void **state)
{
    const struct ps_msg map = {.code = PS_MSG_MAP, .seq = 1};
    struct bench b;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    conn = connect_it(&b);
    assert_true(receive(&b, conn, &map));
    assert_false(receive(&b, conn, &map));
    assert_false(receive(&b, conn, &(struct ps_msg){.code = PS_MSG_ACK}));
    end(&b);
}

static void message_before_the_welcome_ends_the_connection(void **state)
{
    const struct ps_msg map = {.code = PS_MSG_MAP, .seq = 1};
    struct bench b;

    (void)state;
    begin_bench(&b);
    assert_false(receive(&b, dial(&b), &map));
    assert_int_equal(b.d.closed, 1);
    assert_non_null(strstr(b.log, "sent a message before its welcome"));
    (void)connect_it(&b);
    end(&b);
}

static void unknown_protocol_version_ends_the_connection(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    assert_false(
        receive(&b, dial(&b),
                &(struct ps_msg){.code = PS_MSG_WELCOME,
                                 .welcome = {.protocol = PS_PROTOCOL + 1}}));
    assert_int_equal(b.up.state, PS_UPLINK_UNREGISTERED);
    assert_int_equal(b.d.closed, 1);
    assert_non_null(strstr(b.log, "protocol"));
    end(&b);
}

static void unanswered_hello_ends_the_connection(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    (void)dial(&b);
    dial_bench_run(&b.d, PS_DIALER_WELCOME_TIMEOUT);
    assert_int_equal(b.d.closed, 1);
    assert_int_equal(b.up.state, PS_UPLINK_UNREGISTERED);
    end(&b);
}

static void pings_keep_the_interval_of_the_welcome(void **state)
{
    struct bench b;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    conn = connect_it(&b);
    for (int i = 0; i < 20; i++) {
        dial_bench_run(&b.d, BEAT);
        pong(&b, conn);
    }
    assert_in_range(b.pings, 20, 21);
    assert_int_equal(b.d.dials, 1);
    end(&b);
}

static void costs_follow_a_ping_once_an_interval(void **state)
{
    struct bench b;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    conn = connect_it(&b);
    for (ps_time at = 0; at < 3 * PS_LEDGER_REPORT_INTERVAL; at += BEAT) {
        dial_bench_run(&b.d, BEAT);
        pong(&b, conn);
    }
    assert_in_range(b.costs, 3, 4);
    assert_int_equal(b.updates, b.costs); /* Before each report. */
    end(&b);
}

static void a_ping_without_an_answer_dials_in_parallel(void **state)
{
    struct bench b;
    ps_conn_id first;
    ps_conn_id second;

    (void)state;
    begin_bench(&b);
    first = connect_it(&b);
    dial_bench_run(&b.d, BEAT + PS_MILLIS(1));
    assert_int_equal(b.pings, 2);
    assert_int_equal(b.d.dials, 1);
    dial_bench_run(&b.d, BEAT);
    assert_int_equal(b.d.dials, 2);
    assert_int_equal(b.up.state, PS_UPLINK_CONNECTED);
    second = open_conn(&b);
    welcome(&b, second, 1, true);
    assert_int_equal(b.up.dialer.conn, second);
    assert_int_equal(b.d.closed, 1);
    assert_false(ps_uplink_owns_conn(&b.up, first));
    end(&b);
}

static void a_stalled_connection_dials_in_parallel(void **state)
{
    struct bench b;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    conn = connect_it(&b);
    ps_uplink_on_stalled(&b.up, conn + 1, b.d.now); /* Of another member. */
    dial_bench_run(&b.d, 0);
    assert_int_equal(b.d.dials, 1);
    ps_uplink_on_stalled(&b.up, conn, b.d.now);
    dial_bench_run(&b.d, 0);
    assert_int_equal(b.d.dials, 2);
    end(&b);
}

static void silent_scheduler_is_disconnected(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    (void)connect_it(&b);
    dial_bench_run(&b.d, ps_heartbeat_timeout(BEAT) - 1);
    assert_int_equal(b.up.state, PS_UPLINK_CONNECTED);
    dial_bench_run(&b.d, 1);
    assert_int_equal(b.up.state, PS_UPLINK_DISCONNECTED);
    assert_int_equal(b.d.closed, 1);
    assert_non_null(strstr(b.log, "it is silent"));
    end(&b);
}

static void a_registered_member_loses_its_name_at_once(void **state)
{
    struct bench b;

    (void)state;
    begin_bench(&b);
    lose_conn(&b, connect_it(&b));
    reject(&b, dial(&b), PS_E_EXIST);
    assert_true(ps_uplink_is_name_lost(&b.up));
    assert_non_null(strstr(b.log, "ending: not you"));
    dial_bench_run(&b.d, PS_SECONDS(10));
    assert_int_equal(b.d.dials, 2);
    end(&b);
}

static void a_name_is_claimed_for_a_while(void **state)
{
    struct bench b;
    ps_time from;

    (void)state;
    begin_bench(&b);
    from = b.d.now;
    while (!ps_uplink_is_name_lost(&b.up)) {
        ps_conn_id conn = dial(&b);

        if (conn != 0) {
            reject(&b, conn, PS_E_EXIST);
        }
    }
    assert_in_range(b.d.now - from, PS_NAME_CLAIM_TIMEOUT,
                    PS_NAME_CLAIM_TIMEOUT + PS_SECONDS(10));
    end(&b);
}

/* Time from a reject of the first hello to the next dial. */
static ps_time wait_after_reject(bool waits)
{
    struct bench b;
    ps_time from;

    begin_with(&b, waits);
    reject(&b, dial(&b), PS_E_MISMATCH);
    assert_int_equal(b.up.state, PS_UPLINK_UNREGISTERED);
    from = b.d.now;
    (void)dial(&b);
    from = b.d.now - from;
    end(&b);
    return from;
}

static void a_final_reject_may_raise_the_back_off(void **state)
{
    (void)state;
    assert_in_range(wait_after_reject(false), 0, PS_MILLIS(300));
    assert_in_range(wait_after_reject(true), PS_SECONDS(2), PS_SECONDS(4));
}

static void reject_after_registration_ends_the_connection(void **state)
{
    struct bench b;

    (void)state;
    begin_with(&b, true);
    reject(&b, connect_it(&b), PS_E_FULL);
    assert_int_equal(b.up.state, PS_UPLINK_DISCONNECTED);
    assert_non_null(
        strstr(b.log, "the scheduler rejected this daemon: not you"));
    assert_int_equal(b.d.closed, 1);
    b.d.dials = 0;
    dial_bench_run(&b.d, PS_SECONDS(1));
    assert_true(b.d.dials > 0);
    end(&b);
}

static void a_closed_uplink_dials_no_more(void **state)
{
    struct ps_uplink_call call;
    struct bench b;

    (void)state;
    begin_bench(&b);
    (void)connect_it(&b);
    call = call_of(&b);
    ps_uplink_close(&b.up, &call);
    dial_bench_carry_out(&b.d);
    assert_int_equal(b.up.state, PS_UPLINK_CLOSED);
    assert_int_equal(b.d.closed, 1);
    dial_bench_run(&b.d, PS_SECONDS(10));
    assert_int_equal(b.d.dials, 1);
    ps_uplink_close(&b.up, &call); /* Once more changes nothing. */
    ps_uplink_on_open(&b.up, &call, dial_bench_newest(&b.d), ++b.d.conns);
    dial_bench_carry_out(&b.d);
    assert_int_equal(b.hellos, 1);
    end(&b);
}

static void requested_ping_needs_a_connection(void **state)
{
    struct ps_uplink_call call;
    struct bench b;
    ps_conn_id conn;

    (void)state;
    begin_bench(&b);
    call = call_of(&b);
    ps_uplink_ping_now(&b.up, &call);
    dial_bench_carry_out(&b.d);
    assert_int_equal(b.pings, 0);
    conn = connect_it(&b);
    dial_bench_run(&b.d, 0);
    pong(&b, conn);
    call = call_of(&b);
    ps_uplink_ping_now(&b.up, &call);
    ps_uplink_send_ping_ack(&b.up, &(struct ps_msg_ping_req){.node = 9}, 1,
                            &b.d.fx);
    dial_bench_carry_out(&b.d);
    assert_int_equal(b.pings, 2);
    assert_int_equal(b.ping_acks, 1);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_welcome_registers_and_a_ping_follows),
        cmocka_unit_test(messages_wait_in_the_link_after_registration),
        cmocka_unit_test(reason_of_a_failure_is_kept_until_the_welcome),
        cmocka_unit_test(new_scheduler_process_is_distinguished),
        cmocka_unit_test(repeated_messages_do_not_reach_the_member),
        cmocka_unit_test(message_before_the_welcome_ends_the_connection),
        cmocka_unit_test(unknown_protocol_version_ends_the_connection),
        cmocka_unit_test(unanswered_hello_ends_the_connection),
        cmocka_unit_test(pings_keep_the_interval_of_the_welcome),
        cmocka_unit_test(costs_follow_a_ping_once_an_interval),
        cmocka_unit_test(a_ping_without_an_answer_dials_in_parallel),
        cmocka_unit_test(a_stalled_connection_dials_in_parallel),
        cmocka_unit_test(silent_scheduler_is_disconnected),
        cmocka_unit_test(a_registered_member_loses_its_name_at_once),
        cmocka_unit_test(a_name_is_claimed_for_a_while),
        cmocka_unit_test(a_final_reject_may_raise_the_back_off),
        cmocka_unit_test(reject_after_registration_ends_the_connection),
        cmocka_unit_test(a_closed_uplink_dials_no_more),
        cmocka_unit_test(requested_ping_needs_a_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
