/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the server, shared by its jobs. The memory that the scheduler has
 * admitted a job with is the job's own: contributions of other jobs never take
 * it, even while it is unused. The rest is for contributions that run ahead, of
 * any job. A job reserves a part of its own memory for one round, the next one
 * to be merged: only contributions of that round go there, one of each slot, so
 * each job merges one round after the other however full the server is.
 *
 * A frame that finds no memory holds up those behind it for SHORT_WAIT, because
 * memory is mostly about to be freed; then it is dropped, and its agent is told
 * to send it again. A frame that can never have memory, because values and
 * states alone have taken it, fails after HOPELESS_WAIT. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"

#include <string.h>

#define SHORT_WAIT PS_MILLIS(5)
/* A round that nobody has contributed to is given up as the next one. */
#define NEXT_WAIT  PS_SECONDS(1)
/* A contribution to the next round that finds no memory for so long takes it
 * back from other rounds of the job. */
#define MAKE_WAIT  PS_MILLIS(100)
/* So long after the last shortage the server counts as full. */
#define FULL_SHOWN PS_SECONDS(2)

/* ---------------------------------------------------------------- next round */

/* Identity of one part of a contribution. */
struct id {
    uint32_t key;
    uint32_t index;
    uint64_t round;
};

static uint32_t count_parts(const struct ps_msg *msg)
{
    return msg->code == PS_MSG_PUSH ? msg->push.parts_count
                                    : msg->push_rows.parts_count;
}

static struct id part_of(const struct ps_msg *msg, uint32_t i)
{
    if (msg->code == PS_MSG_PUSH) {
        const struct ps_rec_part *p = &msg->push.parts[i];

        return (struct id){p->key, p->index, p->round};
    }
    const struct ps_rec_rows *r = &msg->push_rows.parts[i];

    return (struct id){r->key, r->index, r->round};
}

/* True: the job's next round has begun and is not merged. */
static bool next_stands(const struct ps_shard_job *job)
{
    const struct ps_shard_next *n = &job->next;
    const struct ps_part *part;

    if (n->round == 0) {
        return false;
    }
    part = ps_store_find(&job->store, n->key, n->index);
    if (part != NULL && part->version >= n->round) {
        return false;
    }
    if (part != NULL && part->open != NULL) {
        /* A complete one may wait for others of its key, for their norms. */
        return !ps_round_complete(&part->open->round);
    }
    return job->shard->now < ps_time_add(n->since, NEXT_WAIT);
}

const struct ps_open *ps_shard_room_next(const struct ps_shard_job *job)
{
    const struct ps_shard_next *n = &job->next;
    const struct ps_part *part = n->round != 0 ? ps_store_find(&job->store,
                                                               n->key, n->index)
                                               : NULL;

    return part != NULL && part->version < n->round ? part->open : NULL;
}

/* True if the message contributes to the job's next round. Where there is none,
 * the round of its first part becomes the next one. */
static bool gives_next(struct ps_shard_job *job, const struct ps_msg *msg)
{
    const uint32_t count = count_parts(msg);

    if (count == 0 ||
        (msg->code == PS_MSG_PUSH && msg->push.rule != PS_RULE_NONE)) {
        return true; /* It waits for nobody else, and goes on by itself. */
    }
    if (!next_stands(job)) {
        const struct id first = part_of(msg, 0);

        job->next = (struct ps_shard_next){.key = first.key,
                                           .index = first.index,
                                           .round = first.round,
                                           .since = job->shard->now};
        return true;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct id id = part_of(msg, i);

        if (id.key == job->next.key && id.index == job->next.index &&
            id.round == job->next.round) {
            return true;
        }
    }
    return false;
}

/* -------------------------------------------------------------------- shares */

/* Memory that the job would have, or was admitted with. */
static uint64_t claim_of(const struct ps_shard_job *job, uint64_t more)
{
    return ps_max_u64(job->room.bytes, ps_pool_share_used(job->share) + more);
}

/* Memory reserved for the job's next round: the scheduler's figure, and before
 * that has arrived, two contributions of every slot like this one. */
static uint64_t rounds_of(const struct ps_shard_job *job, uint64_t cost)
{
    return job->room.number != 0 ? job->room.rounds
                                 : 2 * cost * job->slot_count;
}

/* True: the contribution may have this many bytes. */
static bool may_have(struct ps_shard *s, struct ps_shard_job *job,
                     const struct ps_msg *msg, uint64_t len)
{
    const uint64_t budget = ps_pool_budget(s->opt.pool);
    const uint64_t cost = ps_pool_cost(len);
    struct ps_map_cursor c = {0};
    const struct ps_shard_job *other;
    uint64_t admitted = 0;
    /* Buffers of jobs that have ended, on their way to agents. */
    uint64_t claims = ps_pool_used(s->opt.pool);

    while ((other = ps_map_next(s->jobs, &c)) != NULL) {
        admitted += other->room.bytes;
    }
    if (budget == 0 ||
        admitted + rounds_of(job, cost) + ps_pool_used(s->opt.pool) + cost <=
            budget) {
        return true; /* Mostly. */
    }
    c = (struct ps_map_cursor){0};
    while ((other = ps_map_next(s->jobs, &c)) != NULL) {
        claims -= ps_pool_share_used(other->share);
        claims += other == job ? 0 : claim_of(other, 0);
    }
    if (admitted > budget) {
        /* Less memory than was promised: memory in use decides. */
        return gives_next(job, msg);
    }
    if (claims + claim_of(job, cost + rounds_of(job, cost)) <= budget) {
        return true;
    }
    return gives_next(job, msg) && claims + claim_of(job, cost) <= budget;
}

/* ---------------------------------------------------------------- taking back */

/* Discards the contributions to the round; their agents send them again, when
 * there is memory. */
static void void_round(struct ps_shard_step *st, struct ps_shard_job *job,
                       struct ps_part *part)
{
    const struct ps_rec_part rec = {.key = part->key,
                                    .index = part->index,
                                    .round = part->version + 1,
                                    .dtype = part->dtype,
                                    .count = part->count};
    struct ps_shard_refusal refusal;
    struct ps_bits gave;

    ps_bits_init(&gave, job->slot_count);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (ps_round_has(&part->open->round, i)) {
            ps_bits_set(&gave, i);
        }
    }
    ps_shard_merge_drop(st->s, job, part);
    ps_shard_refusal_init(&refusal);
    ps_shard_refusal_add(&refusal, &rec, PS_E_AGAIN, 0);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_shard_peer *p = ps_bits_get(&gave, i)
                                      ? ps_shard_job_peer(&job->slots[i])
                                      : NULL;

        if (p != NULL) {
            ps_shard_refusal_send(st, p, job->gen, &job->slots[i], &refusal);
        }
    }
    ps_bits_fini(&gave);
}

/* Moves the value to memory of its own. Where nothing else is in the frame any
 * more, the frame goes first: it has room for it. */
static void move_out(struct ps_shard_job *job, struct ps_slice *v)
{
    void *aside = ps_alloc(v->len);
    const bool last = v->buf->refs == 1;
    struct ps_buf *own;

    memcpy(aside, ps_slice_data(v), v->len);
    if (last) {
        ps_buf_unref(v->buf);
    }
    if (ps_shard_room_take(job, v->len, &own) == 0) {
        memcpy(own->data, aside, v->len);
        if (!last) {
            ps_buf_unref(v->buf);
        }
        *v = (struct ps_slice){.buf = own, .len = v->len};
    }
    ps_free(aside);
}

/* Values that came in frames keep these alive, each perhaps another one. */
static void compact(struct ps_shard_job *job)
{
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    while ((part = ps_map_next(job->store.parts, &c)) != NULL) {
        if (part->run == NULL && part->value.buf != NULL &&
            ps_pool_cost(part->value.buf->size) >
                ps_pool_cost(part->value.len)) {
            move_out(job, &part->value);
        }
    }
}

void ps_shard_room_make(struct ps_shard_step *st, struct ps_shard_slot *slot,
                        const struct ps_msg *msg, uint64_t len)
{
    struct ps_shard_job *job = slot->job;
    const uint64_t wanted = ps_pool_cost(len) * job->slot_count;
    const uint64_t before = ps_pool_share_used(job->share);
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    if (slot->short_since == 0 ||
        st->now < ps_time_add(slot->short_since, MAKE_WAIT) ||
        !gives_next(job, msg)) {
        return;
    }
    slot->short_since = st->now;
    compact(job);
    while ((part = ps_map_next(job->store.parts, &c)) != NULL &&
           before - ps_pool_share_used(job->share) < wanted) {
        if (part->open != NULL && part->run == NULL &&
            part->open->rule == PS_RULE_NONE &&
            !ps_round_complete(&part->open->round) &&
            (part->key != job->next.key || part->index != job->next.index)) {
            void_round(st, job, part);
        }
    }
}

bool ps_shard_room_is_hopeless(const struct ps_shard *s, uint64_t len)
{
    const uint64_t budget = ps_pool_budget(s->opt.pool);
    struct ps_map_cursor c = {0};
    const struct ps_shard_job *job;
    uint64_t stored = 0;

    while ((job = ps_map_next(s->jobs, &c)) != NULL) {
        stored += job->store.stored;
    }
    return budget == 0 || stored + len > budget;
}

int ps_shard_room_take(struct ps_shard_job *job, uint64_t len,
                       struct ps_buf **ret_buf)
{
    return ps_pool_get_for(job->shard->opt.pool, len, job->share, ret_buf);
}

int ps_shard_room_get(struct ps_shard *s, struct ps_shard_slot *slot,
                      const struct ps_msg *msg, uint64_t len,
                      struct ps_buf **ret_buf)
{
    const bool gives = msg->code == PS_MSG_PUSH ||
                       msg->code == PS_MSG_PUSH_ROWS;

    if ((!gives || may_have(s, slot->job, msg, len)) &&
        ps_shard_room_take(slot->job, len, ret_buf) == 0) {
        slot->short_since = 0;
        return 0;
    }
    if (slot->short_since == 0) {
        slot->short_since = s->now;
    }
    s->short_at = s->now;
    if (s->now < ps_time_add(slot->short_since, SHORT_WAIT)) {
        s->pace_at = ps_time_min(s->pace_at,
                                 ps_time_add(slot->short_since, SHORT_WAIT));
        return PS_E_AGAIN;
    }
    return PS_E_NOMEM;
}

/* ----------------------------------------------------------------- in words */

int ps_shard_room_refuses(struct ps_shard_step *st,
                          const struct ps_shard_slot *slot, uint64_t len,
                          struct ps_str *why)
{
    struct ps_shard *s = st->s;
    struct ps_shard_job *job = slot->job;

    if (st->now >= job->short_noted) {
        job->short_noted = ps_time_add(st->now, PS_SECONDS(10));
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "job %s: no memory for %llu bytes of node %u, which "
                        "is told to send them again",
                        job->name, (unsigned long long)len, slot->number);
    }
    if (st->now < ps_time_add(slot->short_since, HOPELESS_WAIT) ||
        !ps_shard_room_is_hopeless(s, len)) {
        return PS_E_AGAIN;
    }
    ps_shard_room_text(s, job, len, why);
    return PS_E_FULL;
}

void ps_shard_room_text(const struct ps_shard *s,
                        const struct ps_shard_job *job, uint64_t len,
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

void ps_shard_room_starved(struct ps_shard *s)
{
    s->short_at = s->now;
}

bool ps_shard_room_is_full(const struct ps_shard *s)
{
    return s->short_at != 0 && s->now < ps_time_add(s->short_at, FULL_SHOWN);
}
