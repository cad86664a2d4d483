/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine: its three calls, and what can be asked of it. What
 * happens to jobs and peers is in the files that shard_inner.h lists. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "base/num.h"

#include <string.h>

#define DIAL_FIRST_DEFAULT PS_MILLIS(100)
#define DIAL_MAX_DEFAULT   PS_SECONDS(5)
#define LINGER_DEFAULT     PS_SECONDS(60)
#define WINDOW_DEFAULT     (32ull * 1024 * 1024)

struct ps_shard *ps_shard_new(const struct ps_shard_options *opt, ps_time now)
{
    struct ps_shard *s = ps_calloc(1, sizeof(*s));

    s->opt = *opt;
    if (s->opt.window == 0) {
        s->opt.window = WINDOW_DEFAULT;
    }
    if (s->opt.dial_first == 0) {
        s->opt.dial_first = DIAL_FIRST_DEFAULT;
    }
    if (s->opt.dial_max == 0) {
        s->opt.dial_max = DIAL_MAX_DEFAULT;
    }
    s->opt.dial_max = s->opt.dial_max < s->opt.dial_first ? s->opt.dial_first
                                                          : s->opt.dial_max;
    if (s->opt.link_linger == 0) {
        s->opt.link_linger = LINGER_DEFAULT;
    }
    ps_rng_init(&s->rng, opt->seed);
    s->limits.of[PS_COST_MEMORY] = (struct ps_account_limit){
        .max = ps_pool_budget(opt->pool), .option = "store.memory"};
    ps_account_init(&s->account, PS_ACCOUNT_DAEMON, opt->name, &s->limits);
    ps_shard_up_init(s, now);
    s->conns = ps_map_new();
    ps_list_init(&s->strangers);
    ps_list_init(&s->held);
    s->peers = ps_map_new();
    ps_heap_init(&s->timers);
    ps_list_init(&s->crowded);
    s->jobs = ps_map_new();
    s->runs = ps_map_new();
    ps_list_init(&s->starved);
    ps_list_init(&s->gathering);
    s->gathered_at = PS_TIME_NEVER;
    s->now = now;
    s->pace_at = PS_TIME_NEVER;
    s->trim_at = PS_TIME_NEVER;
    ps_list_init(&s->dirty);
    return s;
}

void ps_shard_free(struct ps_shard *s)
{
    struct ps_map_cursor c = {0};
    struct ps_shard_job *job;

    if (s == NULL) {
        return;
    }
    while ((job = ps_map_next(s->jobs, &c)) != NULL) {
        ps_shard_job_free(s, job);
    }
    ps_shard_peer_fini(s);
    ps_shard_up_fini(s);
    ps_map_free(s->conns);
    ps_map_free(s->peers);
    ps_heap_fini(&s->timers);
    ps_map_free(s->jobs);
    ps_map_free(s->runs);
    ps_account_set(&s->account, PS_COST_MEMORY, 0);
    ps_account_fini(&s->account);
    ps_free(s);
}

/* -------------------------------------------------------------- the calls */

static void tick(struct ps_shard_step *st)
{
    struct ps_shard *s = st->s;

    ps_shard_up_tick(st);
    ps_shard_peer_tick(st);
    if (!ps_list_empty(&s->starved) && st->now >= s->starved_at) {
        ps_shard_merge_retry(st);
    }
    if (st->now >= s->gathered_at) {
        ps_shard_answer_flush(st);
    }
    if (st->now >= s->pace_at) {
        s->pace_at = PS_TIME_NEVER; /* After an event they are asked again. */
    }
    if (st->now >= s->trim_at) {
        s->trim_at = PS_TIME_NEVER;
        ps_pool_trim(s->opt.pool);
    }
}

static void shut_down(struct ps_shard_step *st)
{
    struct ps_shard *s = st->s;

    if (s->ending) {
        return;
    }
    s->ending = true;
    ps_shard_answer_flush(st);
    ps_shard_peer_end(st);
    ps_shard_up_end(st);
}

static int step(void *self, const struct ps_event *ev, struct ps_effects *fx)
{
    struct ps_shard *s = self;
    struct ps_shard_step st = {.s = s, .now = ev->now, .fx = fx};
    bool up = ps_caller_has(&s->up.caller, ev->conn);

    s->now = ev->now;
    switch (ev->type) {
    case PS_EV_TICK:
        tick(&st);
        break;
    case PS_EV_OPEN:
        if (ev->open.kind == PS_CONN_DIALLED) {
            ps_shard_up_open(&st, ev->open.target, ev->conn);
        } else {
            ps_shard_peer_open(&st, ev->conn, ev->open.peer);
        }
        break;
    case PS_EV_DIAL_FAILED:
        ps_shard_up_dial_failed(&st, ev->dial_failed.target, ev->dial_failed.rc,
                                ev->dial_failed.why);
        break;
    case PS_EV_MSG:
        if (up) {
            ps_shard_up_msg(&st, ev->conn, ev->msg.msg, ev->msg.payload);
        } else {
            ps_shard_peer_msg(&st, ev->conn, ev->msg.msg, ev->msg.payload,
                              ev->msg.thrown);
        }
        break;
    case PS_EV_STALLED:
        if (up) {
            ps_shard_up_stalled(&st);
        }
        break;
    case PS_EV_CLOSED:
        if (up) {
            ps_shard_up_closed(&st, ev->conn, ev->closed.rc);
        } else {
            ps_shard_peer_closed(&st, ev->conn);
        }
        break;
    case PS_EV_COMPUTED:
        ps_shard_merge_computed(&st, ev->computed.token, ev->computed.rc);
        break;
    case PS_EV_DRAIN:
        s->draining = true;
        ps_shard_up_drain(&st);
        break;
    case PS_EV_SHUTDOWN:
        shut_down(&st);
        break;
    case PS_EV_SENT:
    case PS_EV_PROBED:
    case PS_EV_REGION:
    case PS_EV_KEEP:
    case PS_EV_OPS:
        break;
    }
    ps_shard_credit_settle(&st);
    return s->up.name_lost ? PS_E_CONFIG : 0;
}

static ps_time deadline(const void *self)
{
    const struct ps_shard *s = self;
    ps_time at = ps_time_min(ps_shard_up_deadline(s),
                             ps_shard_peer_deadline(s));

    if (!ps_list_empty(&s->starved)) {
        at = ps_time_min(at, s->starved_at);
    }
    at = ps_time_min(ps_time_min(at, s->gathered_at), s->trim_at);
    return ps_time_min(at, s->pace_at);
}

static int payload(void *self, ps_conn_id conn, const struct ps_msg *msg,
                   uint64_t len, struct ps_slice *ret_slice)
{
    struct ps_shard *s = self;

    return ps_caller_has(&s->up.caller, conn)
               ? ps_shard_up_payload(s, msg, len, ret_slice)
               : ps_shard_peer_payload(s, conn, msg, len, ret_slice);
}

struct ps_machine ps_shard_machine(struct ps_shard *s)
{
    static const struct ps_machine_ops ops = {
        .step = step,
        .deadline = deadline,
        .payload = payload,
    };

    return (struct ps_machine){.ops = &ops, .self = s, .ledger = &s->account};
}

/* -------------------------------------------------------------- questions */

bool ps_shard_ready(const struct ps_shard *s)
{
    return ps_caller_is_known(&s->up.caller);
}

uint64_t ps_shard_residue(const struct ps_shard *s)
{
    struct ps_map_cursor c = {0};
    const struct ps_shard_job *job;
    uint64_t n = 0;

    while ((job = ps_map_next(s->jobs, &c)) != NULL) {
        n += ps_map_count(job->store.parts) + job->store.open_count +
             job->store.parked_count;
    }
    return n;
}

void ps_shard_stats(const struct ps_shard *s, struct ps_shard_stats *ret)
{
    struct ps_map_cursor c = {0};
    const struct ps_shard_job *job;
    const struct ps_shard_peer *p;

    *ret = (struct ps_shard_stats){
        .rounds = s->rounds,
        .bytes_in = s->bytes_in,
        .bytes_out = s->bytes_out,
        .resent = s->resent + ps_link_resent(s->up.caller.link),
        .refused = s->refused,
    };
    while ((job = ps_map_next(s->jobs, &c)) != NULL) {
        ret->stored += job->store.stored;
        ret->waiting += job->store.open_count + job->store.parked_count;
        for (uint32_t i = 0; i < job->slot_count; i++) {
            ret->unmerged += job->slots[i].held;
        }
    }
    c = (struct ps_map_cursor){0};
    while ((p = ps_map_next(s->peers, &c)) != NULL) {
        ret->resent += ps_link_resent(p->link);
    }
}

bool ps_shard_peek(const struct ps_shard *s, uint64_t gen, uint32_t key,
                   uint32_t index, uint64_t *ret_version,
                   const struct ps_slice **ret_value)
{
    const struct ps_shard_job *job = ps_shard_job_find(s, gen);
    const struct ps_part *part = job != NULL
                                     ? ps_store_find(&job->store, key, index)
                                     : NULL;

    if (part == NULL) {
        return false;
    }
    *ret_version = part->version;
    *ret_value = ps_part_has_value(part) ? &part->value : NULL;
    return true;
}

uint64_t ps_shard_unmerged(const struct ps_shard *s, uint64_t gen,
                           uint32_t slot)
{
    const struct ps_shard_job *job = ps_shard_job_find(s, gen);

    return job != NULL && slot < job->slot_count ? job->slots[slot].held : 0;
}

bool ps_shard_lacks(const struct ps_shard *s, uint64_t gen, uint32_t slot)
{
    const struct ps_shard_job *job = ps_shard_job_find(s, gen);

    return job != NULL && slot < job->slot_count &&
           job->slots[slot].present < job->lacking;
}
