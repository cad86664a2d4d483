/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler, seen from an agent. Training goes on without it; what it must
 * know waits in the link, and is said again when it has forgotten us. A ping
 * that is not answered before the next one makes the agent dial beside the
 * connection that it has. */
#include "core/agent_inner.h"

#include "base/str.h"
#include "core/beat.h"
#include "core/claim.h"

#include <string.h>

void ps_agent_hello(struct ps_agent_step *st, const struct ps_caller *c,
                    ps_conn_id conn)
{
    const struct ps_agent *a = st->a;

    ps_effects_tell(st->fx, conn,
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
                                  .address = a->up.pulse},
                    });
}

void ps_agent_up_init(struct ps_agent *a, ps_time now)
{
    struct ps_caller *c = &a->up.caller;
    struct ps_link_options link = a->opt.link;

    link.ledger = &a->account;
    link.peer = "scheduler";
    ps_caller_init(c,
                   &(struct ps_caller_options){.instance = a->opt.instance,
                                               .dial_first = a->opt.dial_first,
                                               .dial_max = a->opt.dial_max,
                                               .link = link},
                   &a->rng, now);
    ps_str_copy(c->address, sizeof(c->address), a->opt.sched);
    c->wanted = true;
    a->up.heartbeat = PS_BEAT_DEFAULT;
}

void ps_agent_up_open(struct ps_agent_step *st, ps_conn_id conn,
                      const char *pulse)
{
    struct ps_caller *c = &st->a->up.caller;

    ps_str_copy(st->a->up.pulse, sizeof(st->a->up.pulse),
                pulse != NULL ? pulse : "");
    if (ps_caller_open(c, 0, conn, st->now, st->fx)) {
        ps_agent_hello(st, c, conn);
    }
}

static void tell_lost(struct ps_agent_step *st, const char *why)
{
    ps_effects_note(st->fx, PS_LOG_INFO, "scheduler at %s: %s",
                    st->a->up.caller.address, why);
}

void ps_agent_up_dial_failed(struct ps_agent_step *st, uint64_t target, int rc,
                             const char *why)
{
    if (ps_caller_failed(&st->a->up.caller, target, rc, st->now)) {
        ps_effects_note(
            st->fx, PS_LOG_WARNING, "scheduler at %s cannot be reached: %s",
            st->a->up.caller.address, why != NULL ? why : ps_strerror(rc));
    }
}

void ps_agent_up_closed(struct ps_agent_step *st, ps_conn_id conn)
{
    if (ps_caller_closed(&st->a->up.caller, conn, st->now)) {
        tell_lost(st, "connection lost");
    }
}

void ps_agent_up_tell(struct ps_agent_step *st, const struct ps_msg *m)
{
    if (st->a->node == 0) {
        return; /* Said when it knows us: welcomed(). */
    }
    ps_link_tell(st->a->up.caller.link, m, st->now, st->fx);
}

/* The scheduler that is there now counts epochs from its own start, and its
 * servers have other numbers: what was told before is of another cluster. */
static void took_scheduler(struct ps_agent_step *st, uint64_t instance)
{
    struct ps_agent *a = st->a;

    if (a->sched != 0 && a->sched != instance) {
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "the scheduler was restarted; jobs that it does "
                        "not know end");
        a->epoch = 0;
        ps_agent_departed_sift(a);
        ps_agent_job_reopen(st);
    }
    a->sched = instance;
}

static void welcomed(struct ps_agent_step *st, ps_conn_id conn,
                     const struct ps_msg_welcome *m)
{
    struct ps_agent *a = st->a;
    struct ps_agent_up *up = &a->up;

    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol > PS_PROTOCOL) {
        tell_lost(st, "wants a protocol that this agent does not speak");
        (void)ps_caller_drop(&up->caller, conn, st->now, st->fx);
        return;
    }
    if (!ps_caller_welcomed(&up->caller, conn, st->now, st->fx)) {
        return;
    }
    took_scheduler(st, m->instance);
    a->refused_since = 0;
    a->node = m->node;
    a->incarnation = m->incarnation;
    up->heartbeat = m->heartbeat_ns != 0 ? m->heartbeat_ns : PS_BEAT_DEFAULT;
    up->ping_at = st->now;
    up->pinged_at = 0;
    ps_effects_note(
        st->fx, PS_LOG_INFO, "registered node %u incarnation %llu%s", m->node,
        (unsigned long long)m->incarnation, m->resumed ? " again" : "");
    ps_link_open(up->caller.link, conn, m->resumed, m->received, st->now,
                 st->fx);
    if (!m->resumed) {
        ps_agent_job_offer_again(st);
    }
}

void ps_agent_up_msg(struct ps_agent_step *st, ps_conn_id conn,
                     const struct ps_msg *m, const struct ps_slice *payload)
{
    struct ps_caller *c = &st->a->up.caller;

    ps_caller_heard(c, conn, st->now);
    if (m->code == PS_MSG_WELCOME) {
        welcomed(st, conn, &m->welcome);
        return;
    }
    if (m->code == PS_MSG_REJECT) {
        ps_effects_note(st->fx, PS_LOG_WARNING, "the scheduler rejects us: %s",
                        m->reject.text);
        if (m->reject.error == PS_E_EXIST &&
            ps_claim_lost(&st->a->refused_since, st->a->node != 0, st->now)) {
            ps_effects_note(st->fx, PS_LOG_ERROR, "ending: %s", m->reject.text);
            st->a->name_lost = true;
        }
        (void)ps_caller_drop(c, conn, st->now, st->fx);
        return;
    }
    if (conn != c->conn || !ps_link_receive(c->link, m, st->now, st->fx)) {
        return;
    }
    switch (m->code) {
    case PS_MSG_MAP:
        ps_agent_server_map(st, &m->map);
        break;
    case PS_MSG_JOB_OPENED:
        ps_agent_job_opened(st, &m->job_opened);
        break;
    case PS_MSG_JOB_STATE:
        ps_agent_job_state(st, &m->job_state);
        break;
    case PS_MSG_KEY_OPENED:
        ps_agent_key_opened(st, &m->key_opened, payload);
        break;
    case PS_MSG_BARRIER_DONE:
        ps_agent_job_barrier(st, &m->barrier_done);
        break;
    case PS_MSG_OPTIMIZER_DONE:
        ps_agent_job_optimizer(st, &m->optimizer_done);
        break;
    case PS_MSG_PING_REQ:
        ps_agent_server_ping_req(st, &m->ping_req);
        break;
    case PS_MSG_STALL_ASK:
        ps_agent_job_stall(st, &m->stall_ask);
        break;
    case PS_MSG_STALL_ANSWER:
        ps_agent_why_answer(st, &m->stall_answer);
        break;
    default:
        break;
    }
}

static uint64_t stored(const struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_job *j;
    uint64_t bytes = 0;

    while ((j = ps_map_next(a->jobs, &c)) != NULL) {
        bytes += ps_pool_used(j->results);
    }
    return bytes;
}

static void tell_costs(struct ps_agent_step *st)
{
    struct ps_rec_cost list[PS_COSTS_SHOWN_MAX];
    const uint32_t count = ps_ledger_records(&st->a->account, list);

    ps_effects_tell(
        st->fx, st->a->up.caller.conn,
        &(struct ps_msg){.code = PS_MSG_COSTS,
                         .costs = {.costs = list, .costs_count = count}});
}

static void ping(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;
    struct ps_agent_stats s;

    ps_agent_stats(a, &s);
    ps_effects_tell(st->fx, a->up.caller.conn,
                    &(struct ps_msg){.code = PS_MSG_PING,
                                     .ack = ps_link_received(a->up.caller.link),
                                     .ping = {.stamp = st->now,
                                              .epoch = a->epoch,
                                              .rounds = s.rounds,
                                              .bytes_in = s.bytes_in,
                                              .bytes_out = s.bytes_out,
                                              .stored = stored(a),
                                              .resent = s.resent,
                                              .waiting = s.waiting}});
    if (a->costs_at <= st->now) {
        tell_costs(st);
        a->costs_at = ps_time_add(st->now, PS_LEDGER_TELL_EVERY);
    }
}

static ps_time silent_at(const struct ps_agent_up *up)
{
    return ps_time_add(up->caller.heard_at, ps_beat_silence(up->heartbeat));
}

void ps_agent_up_tick(struct ps_agent_step *st)
{
    struct ps_agent_up *up = &st->a->up;

    if (ps_caller_is_known(&up->caller)) {
        if (silent_at(up) <= st->now) {
            tell_lost(st, "is silent");
            ps_caller_cut(&up->caller, st->now, st->fx);
        } else if (up->ping_at <= st->now) {
            if (up->caller.heard_at < up->pinged_at) {
                ps_caller_trouble(&up->caller, st->now);
            }
            ping(st);
            up->pinged_at = st->now;
            up->ping_at = ps_time_add(st->now, up->heartbeat);
        }
    }
    ps_caller_tick(&up->caller, st->now, st->fx);
}

ps_time ps_agent_up_deadline(const struct ps_agent *a)
{
    const struct ps_agent_up *up = &a->up;
    ps_time at = ps_caller_deadline(&up->caller);

    if (ps_caller_is_known(&up->caller)) {
        at = ps_time_min(at, ps_time_min(up->ping_at, silent_at(up)));
    }
    return at;
}
