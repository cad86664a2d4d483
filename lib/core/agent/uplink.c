/* SPDX-License-Identifier: Apache-2.0 */
/* Uplink: the agent's link to the scheduler, with registration and heartbeat.
 * Training continues while the scheduler is away: messages wait in the link,
 * and the state is resent to a scheduler that does not know this agent. A ping
 * without an answer when the next one is due makes the agent dial a second
 * connection in parallel. */
#include "core/agent/inner.h"

#include "base/str.h"
#include "core/link/heartbeat.h"
#include "core/link/name_claim.h"

#include <string.h>

void ps_agent_send_hello(struct ps_agent_step *st, const struct ps_dialer *c,
                         ps_conn_id conn)
{
    const struct ps_agent *a = st->a;

    ps_effects_send_msg(st->fx, conn,
                        &(struct ps_msg){
                            .code = PS_MSG_HELLO,
                            .hello = {.protocol = PS_PROTOCOL,
                                      .protocol_least = PS_PROTOCOL_LEAST,
                                      .role = PS_ROLE_AGENT,
                                      .name = a->opt.name,
                                      .cluster = a->opt.cluster,
                                      .instance = a->opt.instance,
                                      .node = a->node,
                                      .incarnation = a->incarnation,
                                      .session = c->session,
                                      .received = ps_link_received(c->link),
                                      .address = a->uplink.liveness_address},
                        });
}

void ps_agent_uplink_init(struct ps_agent *a, ps_time now)
{
    struct ps_dialer *c = &a->uplink.dialer;
    struct ps_link_options link = a->opt.link;

    link.ledger = &a->account;
    link.peer = "scheduler";
    ps_dialer_init(
        c,
        &(struct ps_dialer_options){.instance = a->opt.instance,
                                    .backoff_min = a->opt.dial_backoff_min,
                                    .backoff_max = a->opt.dial_backoff_max,
                                    .link = link},
        &a->rng, now);
    ps_str_copy(c->address, sizeof(c->address), a->opt.sched_address);
    c->enabled = true;
    a->uplink.heartbeat_interval = PS_HEARTBEAT_DEFAULT;
}

void ps_agent_uplink_on_open(struct ps_agent_step *st, ps_conn_id conn,
                             const char *pulse)
{
    struct ps_dialer *c = &st->a->uplink.dialer;

    ps_str_copy(st->a->uplink.liveness_address,
                sizeof(st->a->uplink.liveness_address),
                pulse != NULL ? pulse : "");
    if (ps_dialer_on_open(c, 0, conn, st->now, st->fx)) {
        ps_agent_send_hello(st, c, conn);
    }
}

static void note_scheduler(struct ps_agent_step *st, const char *why)
{
    ps_effects_log(st->fx, PS_LOG_INFO, "scheduler at %s: %s",
                   st->a->uplink.dialer.address, why);
}

void ps_agent_uplink_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why)
{
    if (ps_dialer_on_dial_failed(&st->a->uplink.dialer, target, rc, st->now)) {
        ps_effects_log(
            st->fx, PS_LOG_WARNING, "scheduler at %s cannot be reached: %s",
            st->a->uplink.dialer.address, why != NULL ? why : ps_strerror(rc));
    }
}

void ps_agent_uplink_on_closed(struct ps_agent_step *st, ps_conn_id conn)
{
    if (ps_dialer_on_closed(&st->a->uplink.dialer, conn, st->now)) {
        note_scheduler(st, "connection lost");
    }
}

void ps_agent_uplink_send_msg(struct ps_agent_step *st, const struct ps_msg *m)
{
    if (st->a->node == 0) {
        return; /* Not registered: on_welcome() resends it. */
    }
    ps_link_send_msg(st->a->uplink.dialer.link, m, st->now, st->fx);
}

/* Discards the state of an earlier scheduler process. A new one counts map
 * epochs from its own start and gives the servers other numbers. */
static void on_sched_instance(struct ps_agent_step *st, uint64_t instance)
{
    struct ps_agent *a = st->a;

    if (a->sched_instance != 0 && a->sched_instance != instance) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "the scheduler was restarted; jobs that it does "
                       "not know end");
        a->map_epoch = 0;
        ps_agent_departed_drop_unknown(a);
        ps_agent_job_reoffer(st);
    }
    a->sched_instance = instance;
}

static void on_welcome(struct ps_agent_step *st, ps_conn_id conn,
                       const struct ps_msg_welcome *m)
{
    struct ps_agent *a = st->a;
    struct ps_agent_uplink *up = &a->uplink;

    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol > PS_PROTOCOL) {
        note_scheduler(st, "wants a protocol that this agent does not speak");
        (void)ps_dialer_drop_conn(&up->dialer, conn, st->now, st->fx);
        return;
    }
    if (!ps_dialer_on_welcome(&up->dialer, conn, st->now, st->fx)) {
        return;
    }
    on_sched_instance(st, m->instance);
    a->name_refused_since = 0;
    a->node = m->node;
    a->incarnation = m->incarnation;
    up->heartbeat_interval = m->heartbeat_ns != 0 ? m->heartbeat_ns
                                                  : PS_HEARTBEAT_DEFAULT;
    up->next_ping_at = st->now;
    up->last_ping_at = 0;
    ps_effects_log(st->fx, PS_LOG_INFO, "registered node %u incarnation %llu%s",
                   m->node, (unsigned long long)m->incarnation,
                   m->resumed ? " again" : "");
    ps_link_open(up->dialer.link, conn, m->resumed, m->received, st->now,
                 st->fx);
    if (!m->resumed) {
        ps_agent_job_resend_all(st);
    }
}

void ps_agent_uplink_on_msg(struct ps_agent_step *st, ps_conn_id conn,
                            const struct ps_msg *m,
                            const struct ps_slice *payload)
{
    struct ps_dialer *c = &st->a->uplink.dialer;

    ps_dialer_on_recv(c, conn, st->now);
    if (m->code == PS_MSG_WELCOME) {
        on_welcome(st, conn, &m->welcome);
        return;
    }
    if (m->code == PS_MSG_REJECT) {
        ps_effects_log(st->fx, PS_LOG_WARNING, "the scheduler rejects us: %s",
                       m->reject.text);
        if (m->reject.error == PS_E_EXIST &&
            ps_name_claim_lost(&st->a->name_refused_since, st->a->node != 0,
                               st->now)) {
            ps_effects_log(st->fx, PS_LOG_ERROR, "ending: %s", m->reject.text);
            st->a->name_lost = true;
        }
        (void)ps_dialer_drop_conn(c, conn, st->now, st->fx);
        return;
    }
    if (conn != c->conn || !ps_link_receive(c->link, m, st->now, st->fx)) {
        return;
    }
    switch (m->code) {
    case PS_MSG_MAP:
        ps_agent_server_on_map(st, &m->map);
        break;
    case PS_MSG_JOB_OPENED:
        ps_agent_job_on_opened(st, &m->job_opened);
        break;
    case PS_MSG_JOB_STATE:
        ps_agent_job_on_state(st, &m->job_state);
        break;
    case PS_MSG_KEY_OPENED:
        ps_agent_key_on_opened(st, &m->key_opened, payload);
        break;
    case PS_MSG_BARRIER_DONE:
        ps_agent_job_on_barrier_done(st, &m->barrier_done);
        break;
    case PS_MSG_OPTIMIZER_DONE:
        ps_agent_job_on_optimizer_done(st, &m->optimizer_done);
        break;
    case PS_MSG_PING_REQ:
        ps_agent_server_on_ping_req(st, &m->ping_req);
        break;
    case PS_MSG_STALL_COLLECT:
        ps_agent_job_on_stall_collect(st, &m->stall_collect);
        break;
    case PS_MSG_STALL_REPLY:
        ps_agent_diagnose_on_reply(st, &m->stall_reply);
        break;
    default:
        break;
    }
}

static uint64_t stored_bytes(const struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_job *j;
    uint64_t bytes = 0;

    while ((j = ps_map_next(a->jobs, &c)) != NULL) {
        bytes += ps_pool_used(j->result_pool);
    }
    return bytes;
}

static void send_costs(struct ps_agent_step *st)
{
    struct ps_rec_cost list[PS_COSTS_SHOWN_MAX];
    const uint32_t count = ps_ledger_records(&st->a->account, list);

    ps_effects_send_msg(
        st->fx, st->a->uplink.dialer.conn,
        &(struct ps_msg){.code = PS_MSG_COSTS,
                         .costs = {.costs = list, .costs_count = count}});
}

static void send_ping(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;
    struct ps_agent_stats s;

    ps_agent_stats(a, &s);
    ps_effects_send_msg(
        st->fx, a->uplink.dialer.conn,
        &(struct ps_msg){.code = PS_MSG_PING,
                         .ack = ps_link_received(a->uplink.dialer.link),
                         .ping = {.stamp = st->now,
                                  .epoch = a->map_epoch,
                                  .rounds = s.rounds,
                                  .bytes_in = s.bytes_in,
                                  .bytes_out = s.bytes_out,
                                  .stored_bytes = stored_bytes(a),
                                  .resent = s.resent,
                                  .waiting_requests = s.pending_ops}});
    if (a->next_costs_at <= st->now) {
        send_costs(st);
        a->next_costs_at = ps_time_add(st->now, PS_LEDGER_REPORT_INTERVAL);
    }
}

static ps_time silence_deadline(const struct ps_agent_uplink *up)
{
    return ps_time_add(up->dialer.last_recv_at,
                       ps_heartbeat_timeout(up->heartbeat_interval));
}

void ps_agent_uplink_tick(struct ps_agent_step *st)
{
    struct ps_agent_uplink *up = &st->a->uplink;

    if (ps_dialer_is_connected(&up->dialer)) {
        if (silence_deadline(up) <= st->now) {
            note_scheduler(st, "is silent");
            ps_dialer_drop_all(&up->dialer, st->now, st->fx);
        } else if (up->next_ping_at <= st->now) {
            if (up->dialer.last_recv_at < up->last_ping_at) {
                ps_dialer_on_stalled(&up->dialer, st->now);
            }
            send_ping(st);
            up->last_ping_at = st->now;
            up->next_ping_at = ps_time_add(st->now, up->heartbeat_interval);
        }
    }
    ps_dialer_tick(&up->dialer, st->now, st->fx);
}

ps_time ps_agent_uplink_deadline(const struct ps_agent *a)
{
    const struct ps_agent_uplink *up = &a->uplink;
    ps_time at = ps_dialer_deadline(&up->dialer);

    if (ps_dialer_is_connected(&up->dialer)) {
        at = ps_time_min(at,
                         ps_time_min(up->next_ping_at, silence_deadline(up)));
    }
    return at;
}
