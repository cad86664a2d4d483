/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler, seen from a server. One connection at a time, dialled by us:
 * hello, welcome, then pings until it breaks; then again, with back-off. A
 * scheduler that does not answer stops nothing here: agents are served all
 * the same. */
#include "core/shard_inner.h"

#include "base/num.h"
#include "base/str.h"
#include "core/beat.h"
#include "core/claim.h"

#include <string.h>

static void redial(struct ps_shard_step *st)
{
    struct ps_shard_up *up = &st->s->up;
    ps_time half = up->backoff / 2;

    up->state = PS_SHARD_UP_IDLE;
    up->conn = 0;
    up->retry_at = ps_time_add(
        st->now, half + ps_rng_below(&st->s->rng, up->backoff - half + 1));
    up->backoff = ps_time_min(up->backoff * 2, st->s->opt.dial_max);
}

static void cut(struct ps_shard_step *st, const char *why)
{
    struct ps_shard_up *up = &st->s->up;

    ps_effects_note(st->fx, PS_LOG_WARNING, "scheduler cut off: %s", why);
    ps_effects_hangup(st->fx, up->conn);
    ps_link_close(up->link, st->now);
    redial(st);
}

void ps_shard_up_init(struct ps_shard *s, ps_time now)
{
    struct ps_shard_up *up = &s->up;

    up->link = ps_link_new(&s->opt.link, &s->rng);
    up->session = ps_rng_next(&s->rng) ^ s->opt.instance;
    up->session += up->session == 0;
    up->backoff = s->opt.dial_first;
    up->heartbeat = PS_BEAT_DEFAULT;
    up->retry_at = now;
}

void ps_shard_up_fini(struct ps_shard *s)
{
    ps_link_free(s->up.link);
}

void ps_shard_up_open(struct ps_shard_step *st, ps_conn_id conn)
{
    struct ps_shard *s = st->s;
    struct ps_shard_up *up = &s->up;

    if (up->state != PS_SHARD_UP_DIALLED || s->ending) {
        ps_effects_hangup(st->fx, conn);
        return;
    }
    up->state = PS_SHARD_UP_HELLO;
    up->conn = conn;
    up->heard_at = st->now;
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
                                .session = up->session,
                                .received = ps_link_received(up->link),
                                .address = s->opt.address,
                                .memory = ps_pool_budget(s->opt.pool),
                            },
                    });
}

void ps_shard_up_dial_failed(struct ps_shard_step *st, int rc)
{
    if (st->s->up.state == PS_SHARD_UP_DIALLED) {
        ps_effects_note(st->fx, PS_LOG_INFO,
                        "scheduler %s cannot be reached: %s", st->s->opt.sched,
                        ps_strerror(rc));
        redial(st);
    }
}

void ps_shard_up_closed(struct ps_shard_step *st, int rc)
{
    ps_effects_note(st->fx, PS_LOG_INFO, "scheduler connection lost: %s",
                    ps_strerror(rc));
    ps_link_close(st->s->up.link, st->now);
    redial(st);
}

void ps_shard_up_tell(struct ps_shard_step *st, const struct ps_msg *msg)
{
    ps_link_tell(st->s->up.link, msg, st->now, st->fx);
}

void ps_shard_up_ready(struct ps_shard_step *st, const struct ps_shard_job *job)
{
    if (st->s->up.state != PS_SHARD_UP_KNOWN) {
        return; /* Told when it knows us: welcomed(). */
    }
    ps_link_tell(st->s->up.link,
                 &(struct ps_msg){.code = PS_MSG_JOB_READY,
                                  .job_ready = {.gen = job->gen,
                                                .version = job->version,
                                                .round = job->newest}},
                 st->now, st->fx);
}

void ps_shard_up_lost(struct ps_shard_step *st, const struct ps_shard_job *job)
{
    if (st->s->up.state != PS_SHARD_UP_KNOWN || !job->lost.known) {
        return;
    }
    ps_link_tell(st->s->up.link,
                 &(struct ps_msg){.code = PS_MSG_VALUE_LOST,
                                  .value_lost = {.gen = job->gen,
                                                 .key = job->lost.key,
                                                 .index = job->lost.index,
                                                 .version = job->lost.version}},
                 st->now, st->fx);
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
                        "the scheduler was started again; jobs that it does "
                        "not know end");
        st->s->epoch = 0;
    }
    up->instance = instance;
}

static void welcomed(struct ps_shard_step *st, const struct ps_msg_welcome *m)
{
    struct ps_shard_up *up = &st->s->up;

    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol > PS_PROTOCOL) {
        cut(st, "it wants a protocol that this server does not speak");
        return;
    }
    took_scheduler(st, m->instance);
    up->state = PS_SHARD_UP_KNOWN;
    up->node = m->node;
    up->incarnation = m->incarnation;
    up->backoff = st->s->opt.dial_first;
    up->refused_since = 0;
    up->heartbeat = m->heartbeat_ns != 0 ? m->heartbeat_ns : PS_BEAT_DEFAULT;
    up->ping_at = st->now;
    ps_effects_note(
        st->fx, PS_LOG_INFO, "registered node %u incarnation %llu%s", m->node,
        (unsigned long long)m->incarnation, m->resumed ? " resumed" : "");
    ps_link_open(up->link, up->conn, m->resumed, m->received, st->now, st->fx);
    if (!m->resumed) {
        offer_jobs(st);
    }
}

static void rejected(struct ps_shard_step *st, const struct ps_msg_reject *m)
{
    struct ps_shard_up *up = &st->s->up;
    char text[256];
    struct ps_str why;
    const char *said = m->text != NULL ? m->text : "";

    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, "it refuses this server: ");
    ps_str_add_escaped(&why, said, strlen(said), 200);
    if (m->error != PS_E_EXIST) {
        up->backoff = st->s->opt.dial_max;
    } else if (ps_claim_lost(&up->refused_since, up->node != 0, st->now)) {
        ps_effects_note(st->fx, PS_LOG_ERROR, "ending: %s", text);
        up->name_lost = true;
    }
    cut(st, text);
}

int ps_shard_up_payload(struct ps_shard *s, const struct ps_msg *msg,
                        uint64_t len, struct ps_slice *ret_slice)
{
    if (msg->code != PS_MSG_PART_PIECE || len > PS_MOVE_PIECE_MAX) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(s->up.link, msg->seq)) {
        return PS_E_EXIST;
    }
    struct ps_buf *buf = ps_buf_try_new(len);

    if (buf == NULL) {
        return PS_E_NOMEM; /* The move is given up. */
    }
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}

void ps_shard_up_msg(struct ps_shard_step *st, const struct ps_msg *msg,
                     const struct ps_slice *payload)
{
    struct ps_shard_up *up = &st->s->up;

    up->heard_at = st->now;
    if (up->state == PS_SHARD_UP_HELLO) {
        if (msg->code == PS_MSG_WELCOME) {
            welcomed(st, &msg->welcome);
        } else if (msg->code == PS_MSG_REJECT) {
            rejected(st, &msg->reject);
        } else {
            cut(st, "it spoke before its welcome");
        }
        return;
    }
    if (!ps_link_receive(up->link, msg, st->now, st->fx)) {
        return;
    }
    switch (msg->code) {
    case PS_MSG_ACK:
    case PS_MSG_PONG:
        break;
    case PS_MSG_MAP:
        took_map(st, msg->map.epoch);
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

static void tell_costs(struct ps_shard_step *st)
{
    struct ps_rec_cost list[PS_COSTS_SHOWN_MAX];
    uint32_t count;

    ps_account_set(&st->s->account, PS_COST_MEMORY,
                   ps_pool_used(st->s->opt.pool));
    count = ps_ledger_records(&st->s->account, list);
    ps_effects_tell(
        st->fx, st->s->up.conn,
        &(struct ps_msg){.code = PS_MSG_COSTS,
                         .costs = {.costs = list, .costs_count = count}});
}

static void ping(struct ps_shard_step *st)
{
    struct ps_shard_up *up = &st->s->up;
    struct ps_shard_stats stats;

    ps_shard_stats(st->s, &stats);
    ps_effects_tell(
        st->fx, up->conn,
        &(struct ps_msg){.code = PS_MSG_PING,
                         .ack = ps_link_received(up->link),
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
    up->ping_at = ps_time_add(st->now, up->heartbeat);
}

void ps_shard_up_drain(struct ps_shard_step *st)
{
    if (st->s->up.state == PS_SHARD_UP_KNOWN) {
        ping(st);
    }
}

static ps_time silent_at(const struct ps_shard_up *up)
{
    return ps_time_add(up->heard_at, ps_beat_silence(up->heartbeat));
}

void ps_shard_up_tick(struct ps_shard_step *st)
{
    struct ps_shard_up *up = &st->s->up;

    switch (up->state) {
    case PS_SHARD_UP_IDLE:
        if (!st->s->ending && st->now >= up->retry_at) {
            up->state = PS_SHARD_UP_DIALLED;
            ps_effects_dial(st->fx, 0, st->s->opt.sched);
        }
        break;
    case PS_SHARD_UP_DIALLED:
        break;
    case PS_SHARD_UP_HELLO:
    case PS_SHARD_UP_KNOWN:
        if (st->now >= silent_at(up)) {
            cut(st, "nothing was heard of it");
            break;
        }
        if (up->state == PS_SHARD_UP_KNOWN) {
            if (st->now >= up->ping_at) {
                ping(st);
            }
            ps_link_tick(up->link, st->now, st->fx);
        }
        break;
    }
}

ps_time ps_shard_up_deadline(const struct ps_shard *s)
{
    const struct ps_shard_up *up = &s->up;

    switch (up->state) {
    case PS_SHARD_UP_IDLE:
        return s->ending ? PS_TIME_NEVER : up->retry_at;
    case PS_SHARD_UP_DIALLED:
        return PS_TIME_NEVER;
    case PS_SHARD_UP_HELLO:
        return silent_at(up);
    case PS_SHARD_UP_KNOWN:
        return ps_time_min(ps_time_min(up->ping_at, silent_at(up)),
                           ps_link_deadline(up->link));
    }
    return PS_TIME_NEVER;
}
