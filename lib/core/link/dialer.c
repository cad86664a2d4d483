/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of the dialling side, and the uplink over them. */
#include "core/link/dialer.h"

#include "base/state_table.h"
#include "base/str.h"

#include <string.h>

/* ------------------------------------------------------------------ dialer */

/* First wait for a welcome before another dial: time to repair one lost
 * packet. */
#define HELLO_WAIT_MIN PS_SECONDS(1)
/* Interval between log lines about the same failure. */
#define NOTE_INTERVAL  PS_SECONDS(30)

static void draw_session(struct ps_dialer *c)
{
    c->session = ps_rng_next(c->rng) ^ c->opt.instance;
    c->session += c->session == 0;
}

void ps_dialer_init(struct ps_dialer *c, const struct ps_dialer_options *opt,
                    struct ps_rng *rng, ps_time now)
{
    *c = (struct ps_dialer){
        .opt = *opt,
        .rng = rng,
        .link = ps_link_new(&opt->link, rng),
        .address_generation = opt->first_generation,
        .backoff = opt->backoff_min,
        .hello_wait = HELLO_WAIT_MIN,
        .next_dial_at = now,
    };
    draw_session(c);
}

void ps_dialer_fini(struct ps_dialer *c)
{
    ps_link_free(c->link);
    c->link = NULL;
}

static uint64_t current_target(const struct ps_dialer *c)
{
    return (uint64_t)c->address_generation << 32 | c->opt.target;
}

void ps_dialer_set_address(struct ps_dialer *c, const char *address,
                           ps_time now, struct ps_effects *fx)
{
    if (strcmp(c->address, address) == 0) {
        return;
    }
    if (c->address[0] != '\0') {
        ps_dialer_drop_all(c, now, fx);
        c->address_generation++;
        /* Results of dials to the old address are ignored. */
        c->dials_in_flight = 0;
    }
    ps_str_copy(c->address, sizeof(c->address), address);
    ps_dialer_dial_now(c, now);
}

bool ps_dialer_owns_conn(const struct ps_dialer *c, ps_conn_id conn)
{
    return conn != 0 && (conn == c->conn || conn == c->pending_conn);
}

static bool needs_dial(const struct ps_dialer *c)
{
    return c->enabled && c->address[0] != '\0' && (c->conn == 0 || c->suspect);
}

/* Once no dial and no hello is pending, sets the next dial after a back-off. */
static void schedule_backoff(struct ps_dialer *c, ps_time now)
{
    ps_time half = c->backoff / 2;

    if (c->dials_in_flight > 0 || c->pending_conn != 0) {
        return;
    }
    c->next_dial_at = ps_time_add(
        now, half + ps_rng_below(c->rng, c->backoff - half + 1));
    c->backoff = ps_time_min(c->backoff * 2, c->opt.backoff_max);
}

static void close_link(struct ps_dialer *c)
{
    c->conn = 0;
    c->suspect = false;
    ps_link_close(c->link);
}

void ps_dialer_reset(struct ps_dialer *c, ps_time now, struct ps_effects *fx)
{
    ps_dialer_drop_all(c, now, fx);
    ps_link_free(c->link);
    c->link = ps_link_new(&c->opt.link, c->rng);
    c->last_recv_at = 0;
    draw_session(c);
    ps_dialer_dial_now(c, now);
}

bool ps_dialer_on_open(struct ps_dialer *c, uint64_t target, ps_conn_id conn,
                       ps_time now, struct ps_effects *fx)
{
    if (target != current_target(c) || c->dials_in_flight == 0) {
        ps_effects_close(fx, conn); /* This target is not dialled any more. */
        return false;
    }
    c->dials_in_flight--;
    if (!needs_dial(c) ||
        (c->pending_conn != 0 &&
         now < ps_time_add(c->pending_since, c->hello_wait))) {
        ps_effects_close(fx, conn);
        return false;
    }
    if (c->pending_conn != 0) {
        ps_effects_close(fx, c->pending_conn);
        c->hello_wait = ps_time_min(c->hello_wait * 2,
                                    PS_DIALER_WELCOME_TIMEOUT);
    }
    c->pending_conn = conn;
    c->pending_since = now;
    c->noted_error = 0;
    return true;
}

void ps_dialer_send_hello(const struct ps_dialer *c, ps_conn_id conn,
                          const struct ps_msg_hello *member,
                          struct ps_effects *fx)
{
    struct ps_msg m = {.code = PS_MSG_HELLO, .hello = *member};

    m.hello.protocol = PS_PROTOCOL;
    m.hello.protocol_least = PS_PROTOCOL_LEAST;
    m.hello.instance = c->opt.instance;
    m.hello.session = c->session;
    m.hello.received = ps_link_received(c->link);
    ps_effects_send_msg(fx, conn, &m);
}

bool ps_dialer_speaks(const struct ps_msg_welcome *m)
{
    return m->protocol >= PS_PROTOCOL_LEAST && m->protocol <= PS_PROTOCOL;
}

bool ps_dialer_on_dial_failed(struct ps_dialer *c, uint64_t target, int rc,
                              ps_time now)
{
    if (target != current_target(c) || c->dials_in_flight == 0) {
        return false;
    }
    c->dials_in_flight--;
    schedule_backoff(c, now);
    if (rc == c->noted_error && now < ps_time_add(c->noted_at, NOTE_INTERVAL)) {
        return false;
    }
    c->noted_error = rc;
    c->noted_at = now;
    return true;
}

bool ps_dialer_on_welcome(struct ps_dialer *c, ps_conn_id conn, ps_time now,
                          struct ps_effects *fx)
{
    if (conn != c->pending_conn || conn == 0) {
        return false;
    }
    if (c->conn != 0) {
        ps_effects_close(fx, c->conn);
        close_link(c);
    }
    c->conn = conn;
    c->pending_conn = 0;
    c->last_recv_at = now;
    c->backoff = c->opt.backoff_min;
    c->hello_wait = HELLO_WAIT_MIN;
    return true;
}

bool ps_dialer_on_closed(struct ps_dialer *c, ps_conn_id conn, ps_time now)
{
    if (!ps_dialer_owns_conn(c, conn)) {
        return false;
    }
    if (conn == c->pending_conn) {
        c->pending_conn = 0;
        schedule_backoff(c, now);
        return false;
    }
    close_link(c);
    schedule_backoff(c, now);
    return true;
}

bool ps_dialer_drop_conn(struct ps_dialer *c, ps_conn_id conn, ps_time now,
                         struct ps_effects *fx)
{
    if (ps_dialer_owns_conn(c, conn)) {
        ps_effects_close(fx, conn);
    }
    return ps_dialer_on_closed(c, conn, now);
}

void ps_dialer_drop_all(struct ps_dialer *c, ps_time now, struct ps_effects *fx)
{
    (void)ps_dialer_drop_conn(c, c->pending_conn, now, fx);
    (void)ps_dialer_drop_conn(c, c->conn, now, fx);
}

void ps_dialer_max_backoff(struct ps_dialer *c, ps_time now)
{
    c->backoff = c->opt.backoff_max;
    schedule_backoff(c, now);
}

void ps_dialer_dial_now(struct ps_dialer *c, ps_time now)
{
    c->backoff = c->opt.backoff_min;
    c->next_dial_at = now;
}

void ps_dialer_on_recv(struct ps_dialer *c, ps_conn_id conn, ps_time now)
{
    if (conn == c->conn) {
        c->last_recv_at = now;
        c->suspect = false;
    }
}

void ps_dialer_on_stalled(struct ps_dialer *c, ps_time now)
{
    if (c->conn == 0 || c->suspect) {
        return;
    }
    c->suspect = true;
    if (c->dials_in_flight == 0 && c->pending_conn == 0) {
        ps_dialer_dial_now(c, now);
    }
}

/* Earliest time of the next dial, if one is needed. */
static ps_time next_dial_time(const struct ps_dialer *c)
{
    ps_time at = c->next_dial_at;

    if (c->dials_in_flight >= PS_DIALER_DIALS_MAX) {
        return PS_TIME_NEVER;
    }
    if (c->pending_conn != 0 &&
        ps_time_add(c->pending_since, c->hello_wait) > at) {
        at = ps_time_add(c->pending_since, c->hello_wait);
    }
    return at;
}

void ps_dialer_tick(struct ps_dialer *c, ps_time now, struct ps_effects *fx)
{
    if (c->pending_conn != 0 &&
        ps_time_add(c->pending_since, PS_DIALER_WELCOME_TIMEOUT) <= now) {
        (void)ps_dialer_drop_conn(c, c->pending_conn, now, fx);
    }
    if (needs_dial(c) && next_dial_time(c) <= now) {
        c->dials_in_flight++;
        c->last_dial_at = now;
        c->next_dial_at = ps_time_add(now, PS_DIALER_PARALLEL_DELAY);
        ps_effects_dial(fx, current_target(c), c->address,
                        PS_DIALER_DIAL_TIMEOUT);
    }
    ps_link_tick(c->link, now, fx);
}

ps_time ps_dialer_deadline(const struct ps_dialer *c)
{
    ps_time at = needs_dial(c) ? next_dial_time(c) : PS_TIME_NEVER;

    if (c->pending_conn != 0) {
        at = ps_time_min(
            at, ps_time_add(c->pending_since, PS_DIALER_WELCOME_TIMEOUT));
    }
    return ps_time_min(at, ps_link_deadline(c->link));
}

/* ------------------------------------------------------------------ uplink */

/* The happy path: tick dials, on_open sends hello, welcome opens the link, and
 * pings follow. A connection is dropped, and dialled again with back-off, when
 * the peer's protocol is another one, when it sends anything before welcome,
 * rejects the member, or is silent. The dialer drops one without a welcome. */

static const uint32_t successors[] = {
    [PS_UPLINK_UNREGISTERED] = PS_STATE_BIT(PS_UPLINK_CONNECTED) |
                               PS_STATE_BIT(PS_UPLINK_NAME_LOST) |
                               PS_STATE_BIT(PS_UPLINK_CLOSED),
    [PS_UPLINK_CONNECTED] = PS_STATE_BIT(PS_UPLINK_DISCONNECTED),
    [PS_UPLINK_DISCONNECTED] = PS_STATE_BIT(PS_UPLINK_CONNECTED) |
                               PS_STATE_BIT(PS_UPLINK_NAME_LOST) |
                               PS_STATE_BIT(PS_UPLINK_CLOSED),
    [PS_UPLINK_NAME_LOST] = 0,
    [PS_UPLINK_CLOSED] = 0,
};

/* The link of a server or agent to the scheduler. */
static const struct ps_state_table uplink_states = {
    .name = "uplink",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

static void uplink_set_state(struct ps_uplink *up, enum ps_uplink_state to)
{
    ps_state_change(&uplink_states, &up->state, (uint8_t)to);
}

/* Follows the dialer: the link may have got or lost its connection. */
static void follow_dialer(struct ps_uplink *up)
{
    const bool connected = ps_dialer_is_connected(&up->dialer);

    if (connected && up->state != PS_UPLINK_CONNECTED) {
        uplink_set_state(up, PS_UPLINK_CONNECTED);
    } else if (!connected && up->state == PS_UPLINK_CONNECTED) {
        uplink_set_state(up, PS_UPLINK_DISCONNECTED);
    }
}

static void drop_conn(struct ps_uplink *up, const struct ps_uplink_call *call,
                      ps_conn_id conn)
{
    (void)ps_dialer_drop_conn(&up->dialer, conn, call->now, call->fx);
    follow_dialer(up);
}

static void drop_all(struct ps_uplink *up, const struct ps_uplink_call *call)
{
    ps_dialer_drop_all(&up->dialer, call->now, call->fx);
    follow_dialer(up);
}

/* Ends the uplink in `final`. */
static void end_uplink(struct ps_uplink *up, const struct ps_uplink_call *call,
                       enum ps_uplink_state final)
{
    up->dialer.enabled = false;
    drop_all(up, call);
    if (up->state == PS_UPLINK_UNREGISTERED ||
        up->state == PS_UPLINK_DISCONNECTED) {
        uplink_set_state(up, final);
    }
}

void ps_uplink_init(struct ps_uplink *up, const struct ps_uplink_options *opt,
                    struct ps_rng *rng, ps_time now)
{
    struct ps_dialer_options dialer = opt->dialer;

    *up = (struct ps_uplink){
        .ops = opt->ops,
        .account = opt->account,
        .state = PS_UPLINK_UNREGISTERED,
        .waits_after_reject = opt->waits_after_reject,
        .heartbeat_interval = PS_HEARTBEAT_DEFAULT,
    };
    dialer.link.ledger = opt->account;
    dialer.link.peer = "scheduler";
    ps_dialer_init(&up->dialer, &dialer, rng, now);
    ps_str_copy(up->dialer.address, sizeof(up->dialer.address), opt->address);
    up->dialer.enabled = true;
}

void ps_uplink_fini(struct ps_uplink *up)
{
    ps_dialer_fini(&up->dialer);
}

void ps_uplink_close(struct ps_uplink *up, const struct ps_uplink_call *call)
{
    end_uplink(up, call, PS_UPLINK_CLOSED);
}

/* -------------------------------------------------------------- connections */

/* Keeps the reason until the next welcome. */
static void note_failure(struct ps_uplink *up, const char *why)
{
    (void)ps_str_copy(up->failure, sizeof(up->failure), why);
}

void ps_uplink_on_open(struct ps_uplink *up, const struct ps_uplink_call *call,
                       uint64_t target, ps_conn_id conn)
{
    struct ps_msg_hello hello = {.node = up->node,
                                 .incarnation = up->incarnation};

    if (ps_dialer_on_open(&up->dialer, target, conn, call->now, call->fx)) {
        up->ops->fill_hello(call->context, &hello);
        ps_dialer_send_hello(&up->dialer, conn, &hello, call->fx);
    }
}

void ps_uplink_on_dial_failed(struct ps_uplink *up,
                              const struct ps_uplink_call *call,
                              uint64_t target, int rc, const char *why)
{
    const char *text = why != NULL ? why : ps_strerror(rc);

    if (ps_dialer_on_dial_failed(&up->dialer, target, rc, call->now)) {
        note_failure(up, text);
        ps_effects_log(call->fx, PS_LOG_WARNING,
                       "scheduler at %s cannot be reached: %s",
                       up->dialer.address, text);
    }
}

void ps_uplink_on_stalled(struct ps_uplink *up, ps_conn_id conn, ps_time now)
{
    if (conn == up->dialer.conn) {
        ps_dialer_on_stalled(&up->dialer, now);
    }
}

void ps_uplink_on_closed(struct ps_uplink *up,
                         const struct ps_uplink_call *call, ps_conn_id conn,
                         int rc, const char *why)
{
    const char *text = why != NULL ? why : ps_strerror(rc);

    /* Of a connection that its peer has closed, what came before says more. */
    if (rc != PS_E_CLOSED || up->failure[0] == '\0') {
        note_failure(up, text);
    }
    if (ps_dialer_on_closed(&up->dialer, conn, call->now)) {
        ps_effects_log(call->fx, PS_LOG_INFO,
                       "scheduler at %s: connection lost: %s",
                       up->dialer.address, text);
    }
    follow_dialer(up);
}

static void log_drop(const struct ps_uplink *up,
                     const struct ps_uplink_call *call, const char *why)
{
    ps_effects_log(call->fx, PS_LOG_WARNING, "scheduler at %s cut off: %s",
                   up->dialer.address, why);
}

void ps_uplink_drop(struct ps_uplink *up, const struct ps_uplink_call *call,
                    const char *why)
{
    log_drop(up, call, why);
    drop_all(up, call);
}

/* ----------------------------------------------------------------- messages */

static void note_sched_instance(struct ps_uplink *up,
                                const struct ps_uplink_call *call,
                                const struct ps_msg_welcome *m)
{
    const bool knows_members = m->store != 0 && m->store == up->sched_store;

    if (up->sched_instance != 0 && up->sched_instance != m->instance) {
        ps_effects_log(call->fx, knows_members ? PS_LOG_INFO : PS_LOG_WARNING,
                       knows_members
                           ? "the scheduler was restarted, and goes on from "
                             "its file"
                           : "the scheduler was restarted; jobs that it does "
                             "not know end");
        up->ops->on_new_scheduler(call->context, knows_members);
    }
    up->sched_instance = m->instance;
    up->sched_store = m->store;
}

static void on_welcome(struct ps_uplink *up, const struct ps_uplink_call *call,
                       ps_conn_id conn, const struct ps_msg_welcome *m)
{
    if (!ps_dialer_speaks(m)) {
        log_drop(up, call,
                 "it has chosen a protocol version that this daemon does not "
                 "support");
        drop_conn(up, call, conn);
        return;
    }
    if (!ps_dialer_on_welcome(&up->dialer, conn, call->now, call->fx)) {
        return;
    }
    follow_dialer(up);
    note_failure(up, "");
    note_sched_instance(up, call, m);
    up->node = m->node;
    up->incarnation = m->incarnation;
    up->name_refused_since = 0;
    up->heartbeat_interval = m->heartbeat_ns != 0 ? m->heartbeat_ns
                                                  : PS_HEARTBEAT_DEFAULT;
    up->next_ping_at = call->now;
    up->last_ping_at = 0;
    ps_effects_log(
        call->fx, PS_LOG_INFO, "registered node %u incarnation %llu%s", m->node,
        (unsigned long long)m->incarnation, m->resumed ? " again" : "");
    ps_link_open(up->dialer.link, conn, m->resumed, m->received, call->now,
                 call->fx);
    if (!m->resumed) {
        up->ops->on_new_session(call->context);
    }
}

static void on_reject(struct ps_uplink *up, const struct ps_uplink_call *call,
                      ps_conn_id conn, const struct ps_msg_reject *m)
{
    const bool at_hello = conn == up->dialer.pending_conn;
    const bool registered = up->node != 0;
    const char *reason = m->text != NULL ? m->text : "";
    struct ps_str why = PS_STR_ROOM(256);

    ps_str_add_escaped(&why, reason, strlen(reason), 200);
    ps_effects_log(call->fx, PS_LOG_WARNING,
                   "the scheduler rejected this daemon: %s", why.data);
    note_failure(up, why.data);
    drop_conn(up, call, conn);
    if (m->error == PS_E_EXIST) {
        if (up->name_refused_since == 0) {
            up->name_refused_since = call->now;
        }
        if (registered || ps_time_add(up->name_refused_since,
                                      PS_NAME_CLAIM_TIMEOUT) <= call->now) {
            ps_effects_log(call->fx, PS_LOG_ERROR, "ending: %s", why.data);
            end_uplink(up, call, PS_UPLINK_NAME_LOST);
        }
    } else if (up->waits_after_reject && at_hello) {
        ps_dialer_max_backoff(&up->dialer, call->now);
    }
}

bool ps_uplink_on_msg(struct ps_uplink *up, const struct ps_uplink_call *call,
                      ps_conn_id conn, const struct ps_msg *msg)
{
    if (msg->code == PS_MSG_WELCOME) {
        on_welcome(up, call, conn, &msg->welcome);
        return false;
    }
    if (msg->code == PS_MSG_REJECT) {
        on_reject(up, call, conn, &msg->reject);
        return false;
    }
    if (conn != up->dialer.conn) {
        log_drop(up, call, "it sent a message before its welcome");
        drop_conn(up, call, conn);
        return false;
    }
    ps_dialer_on_recv(&up->dialer, conn, call->now);
    return ps_link_receive(up->dialer.link, msg, call->now, call->fx);
}

void ps_uplink_send_msg(struct ps_uplink *up, const struct ps_msg *msg,
                        ps_time now, struct ps_effects *fx)
{
    if (up->node != 0) {
        ps_link_send_msg(up->dialer.link, msg, now, fx);
    }
}

void ps_uplink_send_ping_ack(const struct ps_uplink *up,
                             const struct ps_msg_ping_req *m, ps_time silent_ns,
                             struct ps_effects *fx)
{
    ps_effects_send_msg(
        fx, up->dialer.conn,
        &(struct ps_msg){.code = PS_MSG_PING_ACK,
                         .ack = ps_link_received(up->dialer.link),
                         .ping_ack = {.node = m->node,
                                      .incarnation = m->incarnation,
                                      .silent_ns = silent_ns}});
}

/* --------------------------------------------------------------- heartbeat */

static void send_costs(const struct ps_uplink *up,
                       const struct ps_uplink_call *call)
{
    struct ps_rec_cost list[PS_COSTS_SHOWN_MAX];
    struct ps_rec_refusals refusals[PS_REFUSALS_SHOWN_MAX];
    uint32_t refusal_count = 0;
    uint32_t count;

    if (up->ops->update_account != NULL) {
        up->ops->update_account(call->context);
    }
    count = ps_ledger_records(up->account, list);
    if (up->ops->list_refusals != NULL) {
        refusal_count = up->ops->list_refusals(call->context, refusals);
    }
    ps_effects_send_msg(
        call->fx, up->dialer.conn,
        &(struct ps_msg){.code = PS_MSG_COSTS,
                         .costs = {.costs = list,
                                   .costs_count = count,
                                   .refusals = refusals,
                                   .refusals_count = refusal_count}});
}

void ps_uplink_ping_now(struct ps_uplink *up, const struct ps_uplink_call *call)
{
    struct ps_msg m = {.code = PS_MSG_PING};

    if (!ps_uplink_is_connected(up)) {
        return;
    }
    up->ops->fill_ping(call->context, &m.ping);
    m.ping.stamp = call->now;
    m.ack = ps_link_received(up->dialer.link);
    ps_effects_send_msg(call->fx, up->dialer.conn, &m);
    if (up->next_costs_at <= call->now) {
        send_costs(up, call);
        up->next_costs_at = ps_time_add(call->now, PS_LEDGER_REPORT_INTERVAL);
    }
    up->last_ping_at = call->now;
    up->next_ping_at = ps_time_add(call->now, up->heartbeat_interval);
}

static ps_time silence_deadline(const struct ps_uplink *up)
{
    return ps_time_add(up->dialer.last_recv_at,
                       ps_heartbeat_timeout(up->heartbeat_interval));
}

void ps_uplink_tick(struct ps_uplink *up, const struct ps_uplink_call *call)
{
    if (ps_uplink_is_connected(up)) {
        if (silence_deadline(up) <= call->now) {
            ps_uplink_drop(up, call, "it is silent");
        } else if (up->next_ping_at <= call->now) {
            if (up->dialer.last_recv_at < up->last_ping_at) {
                ps_dialer_on_stalled(&up->dialer, call->now);
            }
            ps_uplink_ping_now(up, call);
        }
    }
    ps_dialer_tick(&up->dialer, call->now, call->fx);
}

ps_time ps_uplink_deadline(const struct ps_uplink *up)
{
    ps_time at = ps_dialer_deadline(&up->dialer);

    if (ps_uplink_is_connected(up)) {
        at = ps_time_min(at,
                         ps_time_min(up->next_ping_at, silence_deadline(up)));
    }
    return at;
}
