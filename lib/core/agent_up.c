/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler, seen from an agent. Training goes on without it; what it must
 * know waits in the link, and is said again when it has forgotten us. */
#include "core/agent_inner.h"

#include "base/str.h"
#include "core/beat.h"
#include "core/claim.h"

#include <string.h>

#define WHO "scheduler"

void ps_agent_up_init(struct ps_agent *a, ps_time now)
{
    ps_agent_peer_init(a, &a->up, 0, now);
    a->up.wanted = true;
    a->heartbeat = PS_BEAT_DEFAULT;
    ps_str_copy(a->up.address, sizeof(a->up.address), a->opt.sched);
}

void ps_agent_up_open(struct ps_agent_step *st, ps_conn_id conn)
{
    if (st->a->up.state != PS_AGENT_PEER_DIALLED) {
        ps_effects_hangup(st->fx, conn);
        return;
    }
    ps_agent_peer_hello(st, &st->a->up, conn);
}

void ps_agent_up_tell(struct ps_agent_step *st, const struct ps_msg *m)
{
    if (st->a->node == 0) {
        return; /* Said when it knows us: welcomed(). */
    }
    ps_link_tell(st->a->up.link, m, st->now, st->fx);
}

/* The scheduler that is there now counts epochs from its own start, and its
 * servers have other numbers: what was told before is of another cluster. */
static void took_scheduler(struct ps_agent_step *st, uint64_t instance)
{
    struct ps_agent *a = st->a;

    if (a->sched != 0 && a->sched != instance) {
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "the scheduler was started again; jobs that it does "
                        "not know end");
        a->epoch = 0;
        ps_agent_departed_sift(a);
    }
    a->sched = instance;
}

static void welcomed(struct ps_agent_step *st, const struct ps_msg_welcome *m)
{
    struct ps_agent *a = st->a;
    struct ps_agent_peer *p = &a->up;

    if (p->state != PS_AGENT_PEER_HELLO) {
        return;
    }
    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol > PS_PROTOCOL) {
        ps_agent_peer_lost(st, p, WHO,
                           "wants a protocol that this agent does not speak");
        return;
    }
    took_scheduler(st, m->instance);
    p->state = PS_AGENT_PEER_KNOWN;
    p->backoff = a->opt.dial_first;
    a->refused_since = 0;
    a->node = m->node;
    a->incarnation = m->incarnation;
    a->heartbeat = m->heartbeat_ns != 0 ? m->heartbeat_ns : PS_BEAT_DEFAULT;
    a->ping_at = st->now;
    ps_effects_note(
        st->fx, PS_LOG_INFO, "registered node %u incarnation %llu%s", m->node,
        (unsigned long long)m->incarnation, m->resumed ? " again" : "");
    ps_link_open(p->link, p->conn, m->resumed, m->received, st->now, st->fx);
    if (!m->resumed) {
        ps_agent_job_offer_again(st);
    }
}

void ps_agent_up_msg(struct ps_agent_step *st, const struct ps_msg *m,
                     const struct ps_slice *payload)
{
    struct ps_agent_peer *p = &st->a->up;

    p->heard_at = st->now;
    if (m->code == PS_MSG_WELCOME) {
        welcomed(st, &m->welcome);
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
        ps_agent_peer_lost(st, p, WHO, "hung up");
        return;
    }
    if (p->state != PS_AGENT_PEER_KNOWN ||
        !ps_link_receive(p->link, m, st->now, st->fx)) {
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
        st->fx, st->a->up.conn,
        &(struct ps_msg){.code = PS_MSG_COSTS,
                         .costs = {.costs = list, .costs_count = count}});
}

static void ping(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;
    struct ps_agent_stats s;

    ps_agent_stats(a, &s);
    ps_effects_tell(st->fx, a->up.conn,
                    &(struct ps_msg){.code = PS_MSG_PING,
                                     .ack = ps_link_received(a->up.link),
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

static ps_time silent_at(const struct ps_agent *a)
{
    return ps_time_add(a->up.heard_at, ps_beat_silence(a->heartbeat));
}

void ps_agent_up_tick(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;
    struct ps_agent_peer *p = &a->up;

    if (p->state == PS_AGENT_PEER_KNOWN) {
        if (silent_at(a) <= st->now) {
            ps_agent_peer_lost(st, p, WHO, "is silent");
        } else if (a->ping_at <= st->now) {
            ping(st);
            a->ping_at = ps_time_add(st->now, a->heartbeat);
        }
    }
    ps_agent_peer_tick(st, p, WHO);
}

ps_time ps_agent_up_deadline(const struct ps_agent *a)
{
    ps_time at = ps_agent_peer_deadline(&a->up);

    if (a->up.state == PS_AGENT_PEER_KNOWN) {
        at = ps_time_min(at, a->ping_at);
        at = ps_time_min(at, silent_at(a));
    }
    return at;
}
