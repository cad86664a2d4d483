/* SPDX-License-Identifier: Apache-2.0 */
/* How far agents may run ahead: one flow for each job and link, kept with the
 * agent, so that it also counts what was refused because the job was not known
 * yet. What waits to be merged is counted with the slot, because it outlives
 * the link. */
#include "core/shard_inner.h"

#include "base/alloc.h"

/* More generations than there can be jobs: an agent may still push for some
 * that have ended. */
#define FLOWS_MAX (4u * PS_JOBS_MAX)

/* Drop the oldest flow whose job nobody knows. */
static void make_room(const struct ps_shard *s, struct ps_shard_peer *p)
{
    struct ps_map_cursor c = {0};
    struct ps_flow *f;

    while ((f = ps_map_next(p->flows, &c)) != NULL) {
        if (ps_shard_job_find(s, c.key) == NULL) {
            ps_map_take(p->flows, c.key);
            ps_free(f);
            return;
        }
    }
}

struct ps_flow *ps_shard_credit_flow(struct ps_shard *s,
                                     struct ps_shard_peer *p, uint64_t gen)
{
    struct ps_flow *f = ps_map_get(p->flows, gen);

    if (f == NULL) {
        if (ps_map_count(p->flows) >= FLOWS_MAX) {
            make_room(s, p);
        }
        f = ps_calloc(1, sizeof(*f));
        ps_flow_init(f, &(struct ps_flow_limits){.first = s->opt.credit_first,
                                                 .window = s->opt.window});
        ps_map_put(p->flows, gen, f);
    }
    return f;
}

void ps_shard_credit_drop(struct ps_shard_peer *p)
{
    struct ps_map_cursor c = {0};
    struct ps_flow *f;

    while ((f = ps_map_next(p->flows, &c)) != NULL) {
        ps_map_take(p->flows, c.key);
        ps_free(f);
    }
}

/* The slot of the node, whichever incarnation of it the job knows; NULL: it has
 * none. */
static const struct ps_shard_slot *slot_of(const struct ps_shard_job *job,
                                           uint32_t number)
{
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (job->slots[i].number == number) {
            return &job->slots[i];
        }
    }
    return NULL;
}

uint64_t ps_shard_credit_now(struct ps_shard *s, struct ps_shard_peer *p,
                             uint64_t gen, const struct ps_shard_slot *slot)
{
    struct ps_flow *f = ps_shard_credit_flow(s, p, gen);
    const struct ps_shard_job *job = ps_shard_job_find(s, gen);

    if (slot == NULL && job != NULL) {
        /* It named another slot, or an incarnation that this server has not
         * heard of. What it pushed was refused and is not held: without credit
         * for that it could not push when it is heard of. */
        slot = slot_of(job, p->number);
    }
    return ps_flow_announce(f, slot != NULL ? slot->held : 0);
}

static void tell(struct ps_shard_step *st, struct ps_shard_peer *p,
                 const struct ps_shard_slot *slot)
{
    uint64_t gen = slot->job->gen;
    struct ps_msg m = {
        .code = PS_MSG_CREDIT,
        .credit = {.gen = gen,
                   .credit = ps_shard_credit_now(st->s, p, gen, slot)},
    };

    ps_shard_peer_send(st, p, ps_parcel_new(&m, NULL, 0));
}

void ps_shard_credit_tell(struct ps_shard_step *st, struct ps_shard_peer *p,
                          const struct ps_shard_slot *slot)
{
    struct ps_flow *f = ps_shard_credit_flow(st->s, p, slot->job->gen);

    /* What is gathered carries it at the next tick. */
    if (slot->values.count == 0 && slot->commits.count == 0 &&
        ps_flow_due(f, slot->held)) {
        tell(st, p, slot);
    }
}

void ps_shard_credit_begin(struct ps_shard_slot *slot)
{
    slot->began_at = slot->job->shard->now;
}

void ps_shard_credit_end(struct ps_shard_slot *slot, uint64_t len)
{
    struct ps_shard_job *job = slot->job;

    if (len > 0) {
        slot->began_at = 0;
        slot->ended_at = job->shard->now;
        (void)ps_rate_add(&job->rate, job->shard->now, len);
    }
}

/* Until when others wait for this slot. Nobody does for one that sends
 * nothing, or has lost a packet and takes long to recover. */
static ps_time awaited(const struct ps_shard_slot *slot)
{
    const struct ps_shard_job *job = slot->job;
    /* Between two pushes of an agent that has more to send, others of its
     * servers have their turn. */
    ps_time since = slot->began_at != 0 ? slot->began_at : slot->ended_at;

    return since != 0 ? ps_time_add(since, ps_pace_patience(&job->rate,
                                                            job->slot_count))
                      : 0;
}

bool ps_shard_credit_ahead(const struct ps_shard_slot *slot)
{
    const struct ps_shard_job *job = slot->job;
    struct ps_shard *s = job->shard;
    const struct ps_shard_slot *slowest = NULL;

    for (uint32_t i = 0; i < job->slot_count; i++) {
        const struct ps_shard_slot *other = &job->slots[i];

        if (other != slot && s->now < awaited(other) &&
            (slowest == NULL || other->held < slowest->held)) {
            slowest = other;
        }
    }
    if (slowest == NULL ||
        slot->held < slowest->held + ps_pace_lead(&job->rate)) {
        return false;
    }
    s->pace_at = ps_time_min(s->pace_at, awaited(slowest));
    return true;
}

void ps_shard_credit_dirty(struct ps_shard_job *job)
{
    if (!ps_list_linked(&job->node)) {
        ps_list_push_back(&job->shard->dirty, &job->node);
    }
}

/* The slot that has least waiting of those that `open` lacks, or any open round
 * when it is NULL, and that have used up their credit. */
static struct ps_shard_slot *poorest(struct ps_shard_job *job,
                                     const struct ps_open *open)
{
    struct ps_shard_slot *best = NULL;

    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_shard_slot *slot = &job->slots[i];
        const bool gave = open != NULL ? ps_round_has(&open->round, i)
                                       : slot->present == job->lacking;
        struct ps_shard_peer *p;

        if (gave || (best != NULL && slot->held >= best->held)) {
            continue;
        }
        p = ps_shard_job_peer(slot);
        if (p != NULL &&
            ps_flow_spent(ps_shard_credit_flow(job->shard, p, job->gen))) {
            best = slot;
        }
    }
    return best;
}

/* Whom the job waits for. Where memory is short that is whoever the next round
 * lacks, however much of it waits: nobody else's contributions find memory
 * before that round is merged. */
static struct ps_shard_slot *awaited_slot(struct ps_shard_job *job)
{
    const struct ps_open *open = ps_shard_room_next(job);
    struct ps_shard_slot *slot = open != NULL ? poorest(job, open) : NULL;

    return slot != NULL ? slot : poorest(job, NULL);
}

void ps_shard_credit_settle(struct ps_shard_step *st)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(&st->s->dirty)) != NULL) {
        struct ps_shard_job *job = PS_CONTAINER(n, struct ps_shard_job, node);

        if (job->lacking == 0 || job->running != 0) {
            continue;
        }
        struct ps_shard_slot *slot = awaited_slot(job);

        if (slot == NULL) {
            continue;
        }
        struct ps_shard_peer *p = ps_shard_job_peer(slot);
        struct ps_flow *f = ps_shard_credit_flow(st->s, p, job->gen);

        /* What it may have by the rule is enough, if it may send by that. */
        (void)ps_flow_announce(f, slot->held);
        if (ps_flow_spent(f)) {
            ps_flow_raise(f);
        }
        tell(st, p, slot);
    }
}
