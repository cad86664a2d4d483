/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler, seen from a server, which dials it (core/caller): hello,
 * welcome, then pings. A ping that is not answered before the next one makes
 * it dial beside the connection that it has. A scheduler that does not answer
 * stops nothing here: agents are served all the same. */
#include "core/shard_inner.h"

#include "base/num.h"
#include "base/str.h"
#include "core/beat.h"
#include "core/claim.h"

#include <string.h>

static void cut(struct ps_shard_step *st, const char *why)
{
    ps_effects_note(st->fx, PS_LOG_WARNING, "scheduler cut off: %s", why);
    ps_caller_cut(&st->s->up.caller, st->now, st->fx);
}

void ps_shard_up_init(struct ps_shard *s, ps_time now)
{
    struct ps_shard_up *up = &s->up;
    struct ps_link_options link = s->opt.link;

    link.ledger = &s->account;
    link.peer = "scheduler";
    ps_caller_init(&up->caller,
                   &(struct ps_caller_options){.instance = s->opt.instance,
                                               .dial_first = s->opt.dial_first,
                                               .dial_max = s->opt.dial_max,
                                               .link = link},
                   &s->rng, now);
    ps_str_copy(up->caller.address, sizeof(up->caller.address), s->opt.sched);
    up->caller.wanted = true;
    up->heartbeat = PS_BEAT_DEFAULT;
}

void ps_shard_up_fini(struct ps_shard *s)
{
    ps_caller_fini(&s->up.caller);
}

void ps_shard_up_end(struct ps_shard_step *st)
{
    st->s->up.caller.wanted = false;
    ps_caller_cut(&st->s->up.caller, st->now, st->fx);
}

void ps_shard_up_open(struct ps_shard_step *st, uint64_t target,
                      ps_conn_id conn)
{
    struct ps_shard *s = st->s;
    struct ps_shard_up *up = &s->up;

    if (!ps_caller_open(&up->caller, target, conn, st->now, st->fx)) {
        return;
    }
    ps_effects_tell(st->fx, conn,
                    &(struct ps_msg){
                        .code = PS_MSG_HELLO,
                        .hello =
                            {
                                .protocol = PS_PROTOCOL,
                                .protocol_least = PS_PROTOCOL_LEAST,
                                .role = PS_ROLE_SERVER,
                                .name = s->opt.name,
                                .cluster = s->opt.cluster,
                                .instance = s->opt.instance,
                                .node = up->node,
                                .incarnation = up->incarnation,
                                .session = up->caller.session,
                                .received = ps_link_received(up->caller.link),
                                .address = s->opt.address,
                                .memory = ps_pool_budget(s->opt.pool),
                            },
                    });
}

void ps_shard_up_dial_failed(struct ps_shard_step *st, uint64_t target, int rc,
                             const char *why)
{
    if (ps_caller_failed(&st->s->up.caller, target, rc, st->now)) {
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "scheduler at %s cannot be reached: %s",
                        st->s->opt.sched, why != NULL ? why : ps_strerror(rc));
    }
}

void ps_shard_up_stalled(struct ps_shard_step *st)
{
    ps_caller_trouble(&st->s->up.caller, st->now);
}

void ps_shard_up_closed(struct ps_shard_step *st, ps_conn_id conn, int rc)
{
    if (ps_caller_closed(&st->s->up.caller, conn, st->now)) {
        ps_effects_note(st->fx, PS_LOG_INFO, "scheduler connection lost: %s",
                        ps_strerror(rc));
    }
}

void ps_shard_up_tell(struct ps_shard_step *st, const struct ps_msg *msg)
{
    ps_link_tell(st->s->up.caller.link, msg, st->now, st->fx);
}

void ps_shard_up_ready(struct ps_shard_step *st, const struct ps_shard_job *job)
{
    if (!ps_caller_is_known(&st->s->up.caller)) {
        return; /* Told when it knows us: welcomed(). */
    }
    ps_link_tell(st->s->up.caller.link,
                 &(struct ps_msg){.code = PS_MSG_JOB_READY,
                                  .job_ready = {.gen = job->gen,
                                                .version = job->version,
                                                .round = job->newest}},
                 st->now, st->fx);
}

void ps_shard_up_lost(struct ps_shard_step *st, const struct ps_shard_job *job)
{
    if (!job->lost.known) {
        return;
    }
    ps_shard_up_tell(
        st, &(struct ps_msg){.code = PS_MSG_VALUE_LOST,
                             .value_lost = {.gen = job->gen,
                                            .key = job->lost.key,
                                            .index = job->lost.index,
                                            .version = job->lost.version}});
}

/* On a fresh link the scheduler hears which jobs we hold, so that it can tell
 * us of those that ended while we were away. */
static void offer_jobs(struct ps_shard_step *st)
{
    struct ps_map_cursor c = {0};
    const struct ps_shard_job *job;

    while ((job = ps_map_next(st->s->jobs, &c)) != NULL) {
        ps_shard_up_ready(st, job);
        ps_shard_norm_offer(st, job);
        ps_shard_up_lost(st, job);
    }
}

/* Links keep no order: of a partition that has come here, the scheduler may
 * have heard what was asked before it heard that it is here, and have thought
 * nothing of it. */
static void took_map(struct ps_shard_step *st, uint32_t epoch)
{
    struct ps_map_cursor c = {0};
    const struct ps_shard_job *job;

    if (epoch <= st->s->epoch) {
        return;
    }
    st->s->epoch = epoch;
    while ((job = ps_map_next(st->s->jobs, &c)) != NULL) {
        ps_shard_norm_offer(st, job);
    }
}

/* Epochs are counted from the start of the scheduler that is there now. */
static void took_scheduler(struct ps_shard_step *st, uint64_t instance)
{
    struct ps_shard_up *up = &st->s->up;

    if (up->instance != 0 && up->instance != instance) {
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "the scheduler was restarted; jobs that it does "
                        "not know end");
        st->s->epoch = 0;
    }
    up->instance = instance;
}

static void welcomed(struct ps_shard_step *st, ps_conn_id conn,
                     const struct ps_msg_welcome *m)
{
    struct ps_shard_up *up = &st->s->up;

    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol > PS_PROTOCOL) {
        cut(st, "it wants a protocol that this server does not speak");
        return;
    }
    if (!ps_caller_welcomed(&up->caller, conn, st->now, st->fx)) {
        return;
    }
    took_scheduler(st, m->instance);
    up->node = m->node;
    up->incarnation = m->incarnation;
    up->refused_since = 0;
    up->heartbeat = m->heartbeat_ns != 0 ? m->heartbeat_ns : PS_BEAT_DEFAULT;
    up->ping_at = st->now;
    up->pinged_at = 0;
    ps_effects_note(
        st->fx, PS_LOG_INFO, "registered node %u incarnation %llu%s", m->node,
        (unsigned long long)m->incarnation, m->resumed ? " resumed" : "");
    ps_link_open(up->caller.link, conn, m->resumed, m->received, st->now,
                 st->fx);
    if (!m->resumed) {
        offer_jobs(st);
    }
}

static void rejected(struct ps_shard_step *st, ps_conn_id conn,
                     const struct ps_msg_reject *m)
{
    struct ps_shard_up *up = &st->s->up;
    char text[256];
    struct ps_str why;
    const char *said = m->text != NULL ? m->text : "";

    ps_str_init(&why, text, sizeof(text));
    ps_str_add_escaped(&why, said, strlen(said), 200);
    ps_effects_note(st->fx, PS_LOG_WARNING,
                    "scheduler cut off: it refuses this server: %s", text);
    (void)ps_caller_drop(&up->caller, conn, st->now, st->fx);
    if (m->error != PS_E_EXIST) {
        ps_caller_slow(&up->caller, st->now);
    } else if (ps_claim_lost(&up->refused_since, up->node != 0, st->now)) {
        ps_effects_note(st->fx, PS_LOG_ERROR, "ending: %s", text);
        up->name_lost = true;
    }
}

int ps_shard_up_payload(struct ps_shard *s, const struct ps_msg *msg,
                        uint64_t len, struct ps_slice *ret_slice)
{
    if (msg->code != PS_MSG_PART_PIECE || len > PS_MOVE_PIECE_MAX) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(s->up.caller.link, msg->seq)) {
        return PS_E_EXIST;
    }
    struct ps_buf *buf = ps_buf_try_new(len);

    if (buf == NULL) {
        return PS_E_NOMEM; /* The move is given up. */
    }
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}

void ps_shard_up_msg(struct ps_shard_step *st, ps_conn_id conn,
                     const struct ps_msg *msg, const struct ps_slice *payload)
{
    struct ps_shard_up *up = &st->s->up;

    if (conn == up->caller.next) {
        if (msg->code == PS_MSG_WELCOME) {
            welcomed(st, conn, &msg->welcome);
        } else if (msg->code == PS_MSG_REJECT) {
            rejected(st, conn, &msg->reject);
        } else {
            ps_effects_note(st->fx, PS_LOG_WARNING,
                            "scheduler cut off: it spoke before its welcome");
            (void)ps_caller_drop(&up->caller, conn, st->now, st->fx);
        }
        return;
    }
    ps_caller_heard(&up->caller, conn, st->now);
    if (!ps_link_receive(up->caller.link, msg, st->now, st->fx)) {
        return;
    }
    switch (msg->code) {
    case PS_MSG_ACK:
    case PS_MSG_PONG:
        break;
    case PS_MSG_MAP:
        took_map(st, msg->map.epoch);
        break;
    case PS_MSG_PING_REQ:
        ps_shard_peer_ping_req(st, &msg->ping_req);
        break;
    case PS_MSG_JOB_STATE:
        ps_shard_job_state(st, &msg->job_state);
        break;
    case PS_MSG_JOB_ROOM:
        ps_shard_job_room(st, &msg->job_room);
        break;
    case PS_MSG_NORMS:
        ps_shard_norms(st, &msg->norms);
        break;
    case PS_MSG_PART_READ:
        ps_shard_move_read(st, &msg->part_read);
        break;
    case PS_MSG_PART_PIECE:
        ps_shard_move_write(st, &msg->part_piece, payload);
        break;
    case PS_MSG_PART_END:
        ps_shard_move_end(st, &msg->part_end);
        break;
    default:
        cut(st, "it sent what is not for a server");
        break;
    }
}

/* Tensors and, of each partition, its place in the table. */
static void measure(struct ps_shard *s)
{
    struct ps_map_cursor c = {0};
    struct ps_shard_job *job;
    uint64_t tables = 0;

    while ((job = ps_map_next(s->jobs, &c)) != NULL) {
        const uint64_t parts = ps_map_count(job->store.parts);

        ps_account_set(&job->account, PS_COST_PARTITIONS, parts);
        ps_account_set(&job->account, PS_COST_MEMORY,
                       ps_pool_share_used(job->share) +
                           parts * sizeof(struct ps_part));
        tables += parts * sizeof(struct ps_part);
    }
    /* With what is of no job, or of none any more. */
    ps_account_set(&s->account, PS_COST_MEMORY,
                   ps_pool_used(s->opt.pool) + tables);
}

static void tell_costs(struct ps_shard_step *st)
{
    struct ps_rec_cost list[PS_COSTS_SHOWN_MAX];
    uint32_t count;

    measure(st->s);
    count = ps_ledger_records(&st->s->account, list);
    ps_effects_tell(
        st->fx, st->s->up.caller.conn,
        &(struct ps_msg){.code = PS_MSG_COSTS,
                         .costs = {.costs = list, .costs_count = count}});
}

static void ping(struct ps_shard_step *st)
{
    struct ps_shard_up *up = &st->s->up;
    struct ps_shard_stats stats;

    ps_shard_stats(st->s, &stats);
    ps_effects_tell(
        st->fx, up->caller.conn,
        &(struct ps_msg){.code = PS_MSG_PING,
                         .ack = ps_link_received(up->caller.link),
                         .ping = {.stamp = st->now,
                                  .epoch = st->s->epoch,
                                  .rounds = stats.rounds,
                                  .bytes_in = stats.bytes_in,
                                  .bytes_out = stats.bytes_out,
                                  .stored = stats.stored,
                                  .resent = stats.resent,
                                  .waiting = stats.waiting,
                                  .memory = ps_pool_used(st->s->opt.pool),
                                  .full = ps_shard_room_is_full(st->s),
                                  .draining = st->s->draining}});
    if (up->costs_at <= st->now) {
        tell_costs(st);
        up->costs_at = ps_time_add(st->now, PS_LEDGER_TELL_EVERY);
    }
    up->pinged_at = st->now;
    up->ping_at = ps_time_add(st->now, up->heartbeat);
}

void ps_shard_up_drain(struct ps_shard_step *st)
{
    if (ps_caller_is_known(&st->s->up.caller)) {
        ping(st);
    }
}

static ps_time silent_at(const struct ps_shard_up *up)
{
    return ps_time_add(up->caller.heard_at, ps_beat_silence(up->heartbeat));
}

void ps_shard_up_tick(struct ps_shard_step *st)
{
    struct ps_shard_up *up = &st->s->up;

    if (ps_caller_is_known(&up->caller)) {
        if (st->now >= silent_at(up)) {
            cut(st, "nothing was heard of it");
        } else if (st->now >= up->ping_at) {
            if (up->caller.heard_at < up->pinged_at) {
                ps_caller_trouble(&up->caller, st->now);
            }
            ping(st);
        }
    }
    ps_caller_tick(&up->caller, st->now, st->fx);
}

ps_time ps_shard_up_deadline(const struct ps_shard *s)
{
    const struct ps_shard_up *up = &s->up;
    ps_time at = ps_caller_deadline(&up->caller);

    if (ps_caller_is_known(&up->caller)) {
        at = ps_time_min(at, ps_time_min(up->ping_at, silent_at(up)));
    }
    return at;
}
