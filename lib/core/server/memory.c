/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the server, shared by its jobs. The memory that a job was admitted
 * with is its own: contributions of other jobs never take it, even while it is
 * unused (rule Q1). The rest is for contributions of any job that run ahead. A
 * job reserves a part of its own memory for one round, the next to be merged.
 * Only contributions of that round go there, one of each slot, so each job
 * merges one round after the other however full the server is (rule Q2).
 *
 * A frame without memory delays those behind it for READ_RETRY_TIME, because
 * memory is usually about to be freed; then it is dropped, and the agent is
 * asked to send it again (rule Q4). A frame that can never have memory, because
 * values and states alone have taken it, fails after OUT_OF_MEMORY_AFTER
 * (rule Q6). */
#include "core/server/memory.h"

#include "base/num.h"
#include "base/str.h"
#include "core/server/inner.h"

#define READ_RETRY_TIME     PS_MILLIS(5)
/* A reserved round without a contribution is given up after this time. */
#define RESERVED_ROUND_WAIT PS_SECONDS(1)
/* The server reports a shortage for this long after the last one. */
#define SHORTAGE_SHOWN      PS_SECONDS(2)

/* -------------------------------------------------------------------- time */

void ps_server_memory_init(struct ps_server *s)
{
    s->memory.read_retry_at = PS_TIME_NEVER;
    s->memory.trim_at = PS_TIME_NEVER;
}

void ps_server_memory_trim_later(struct ps_server *s)
{
    s->memory.trim_at = ps_time_add(s->now, PS_TRIM_WAIT);
}

void ps_server_memory_tick(struct ps_server *s, ps_time now)
{
    if (now >= s->memory.read_retry_at) {
        /* The driver asks again after each event. */
        s->memory.read_retry_at = PS_TIME_NEVER;
    }
    if (now >= s->memory.trim_at) {
        s->memory.trim_at = PS_TIME_NEVER;
        ps_pool_trim(s->opt.pool);
    }
}

/* ----------------------------------------------------------- reserved round */

/* True if the reserved round is chosen and neither complete nor given up. */
static bool reserved_round_is_open(const struct ps_server_job *job)
{
    const struct ps_server_reserved_round *n = &job->reserved_round;
    const struct ps_part *part;

    if (n->round == 0) {
        return false;
    }
    part = ps_store_find(&job->store, n->key, n->index);
    if (part != NULL && part->image.version >= n->round) {
        return false;
    }
    if (part != NULL && part->open_round != NULL) {
        /* A complete round may wait for norms, which need other partitions
         * merged. */
        return !ps_round_is_complete(&part->open_round->round);
    }
    return job->server->now < ps_time_add(n->chosen_at, RESERVED_ROUND_WAIT);
}

const struct ps_open_round *
ps_server_memory_reserved_round(const struct ps_server_job *job)
{
    const struct ps_server_reserved_round *n = &job->reserved_round;
    const struct ps_part *part = n->round != 0 ? ps_store_find(&job->store,
                                                               n->key, n->index)
                                               : NULL;

    return part != NULL && part->image.version < n->round ? part->open_round
                                                          : NULL;
}

bool ps_server_memory_serves_next_round(struct ps_server_job *job,
                                        const struct ps_server_request *q)
{
    if (q->rows == NULL && q->msg->push.rule != PS_RULE_NONE) {
        return true; /* It is merged without waiting for other slots. */
    }
    if (!reserved_round_is_open(job)) {
        const struct ps_rec_part first = ps_server_request_part(q, 0);

        job->reserved_round = (struct ps_server_reserved_round){
            .key = first.key,
            .index = first.index,
            .round = first.round,
            .chosen_at = job->server->now};
        return true;
    }
    for (uint32_t i = 0; i < q->count; i++) {
        const struct ps_rec_part part = ps_server_request_part(q, i);

        if (part.key == job->reserved_round.key &&
            part.index == job->reserved_round.index &&
            part.round == job->reserved_round.round) {
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------- shares */

/* Returns the larger of the job's quota and its use with `more` bytes. */
static uint64_t job_claim(const struct ps_server_job *job, uint64_t more)
{
    return ps_max_u64(job->quota.bytes,
                      ps_pool_share_used(job->pool_share) + more);
}

/* True if the contribution may allocate `len` bytes. */
static bool may_allocate(struct ps_server *s, const struct ps_server_request *q)
{
    struct ps_server_job *job = q->from.slot->job;
    const uint64_t budget = ps_pool_budget(s->opt.pool);
    const uint64_t cost = ps_pool_cost(q->bytes);
    /* Reserved for the job's next round: the scheduler's figure, or before its
     * arrival two contributions of this cost for every slot. */
    const uint64_t round_bytes = job->quota.version != 0
                                     ? job->quota.round_bytes
                                     : 2 * cost * job->slot_count;
    uint64_t admitted = 0;
    /* Without the shares subtracted below: buffers of ended jobs that are still
     * being sent. */
    uint64_t claims = ps_pool_used(s->opt.pool);

    PS_MAP_EACH(const struct ps_server_job, other, s->jobs.by_gen)
    {
        admitted += other->quota.bytes;
    }
    if (budget == 0 ||
        admitted + round_bytes + ps_pool_used(s->opt.pool) + cost <= budget) {
        return true; /* The common case. */
    }
    PS_MAP_EACH(const struct ps_server_job, other, s->jobs.by_gen)
    {
        claims -= ps_pool_share_used(other->pool_share);
        claims += other == job ? 0 : job_claim(other, 0);
    }
    if (admitted > budget) {
        /* Less memory than was admitted: only reserved rounds allocate. */
        return ps_server_memory_serves_next_round(job, q);
    }
    if (claims + job_claim(job, cost + round_bytes) <= budget) {
        return true;
    }
    return ps_server_memory_serves_next_round(job, q) &&
           claims + job_claim(job, cost) <= budget;
}

bool ps_server_memory_is_exhausted(const struct ps_server *s, uint64_t len)
{
    const uint64_t budget = ps_pool_budget(s->opt.pool);
    uint64_t stored = 0;

    PS_MAP_EACH(const struct ps_server_job, job, s->jobs.by_gen)
    {
        stored += ps_server_job_stored_bytes(job);
    }
    return budget == 0 || stored + len > budget;
}

int ps_server_memory_alloc_payload(struct ps_server *s,
                                   const struct ps_server_request *q,
                                   struct ps_slice *ret)
{
    struct ps_server_slot *slot = q->from.slot;
    const bool is_push = q->msg->code == PS_MSG_PUSH ||
                         q->msg->code == PS_MSG_PUSH_ROWS;

    if ((!is_push || may_allocate(s, q)) &&
        ps_server_memory_alloc(slot->job, q->bytes, ret) == 0) {
        slot->starved_since = 0;
        return 0;
    }
    if (slot->starved_since == 0) {
        slot->starved_since = s->now;
    }
    s->memory.last_shortage_at = s->now;
    if (s->now < ps_time_add(slot->starved_since, READ_RETRY_TIME)) {
        s->memory.read_retry_at = ps_time_min(
            s->memory.read_retry_at,
            ps_time_add(slot->starved_since, READ_RETRY_TIME));
        return PS_E_AGAIN;
    }
    return PS_E_NOMEM;
}

/* ----------------------------------------------------------------- refusals */

int ps_server_memory_refusal(struct ps_server_step *st,
                             const struct ps_server_slot *slot, uint64_t len,
                             struct ps_str *why)
{
    struct ps_server *s = st->s;
    struct ps_server_job *job = slot->job;

    if (st->now >= job->quota.next_shortage_log_at) {
        job->quota.next_shortage_log_at = ps_time_add(st->now, PS_SECONDS(10));
        ps_effects_log_for(st->fx, &job->account, PS_LOG_WARNING,
                           "job %s: no memory for %llu bytes of node %u, which "
                           "is told to send them again",
                           job->name, (unsigned long long)len,
                           slot->agent_node);
    }
    if (st->now < ps_time_add(slot->starved_since, OUT_OF_MEMORY_AFTER) ||
        !ps_server_memory_is_exhausted(s, len)) {
        return PS_E_AGAIN;
    }
    ps_server_memory_describe(s, job, len, why);
    return PS_E_FULL;
}

void ps_server_memory_describe(const struct ps_server *s,
                               const struct ps_server_job *job, uint64_t len,
                               struct ps_str *why)
{
    ps_str_addf(why, "job %s needs ", job->name);
    ps_str_add_size(why, len);
    ps_str_add(why, " more there, and ");
    ps_str_add_size(why, ps_pool_used(s->opt.pool));
    ps_str_add(why, " of ");
    ps_str_add_size(why, ps_pool_budget(s->opt.pool));
    ps_str_add(why, " are taken (store.memory)");
}

void ps_server_memory_note_shortage(struct ps_server *s)
{
    s->memory.last_shortage_at = s->now;
}

bool ps_server_memory_is_short(const struct ps_server *s)
{
    return s->memory.last_shortage_at != 0 &&
           s->now < ps_time_add(s->memory.last_shortage_at, SHORTAGE_SHOWN);
}
