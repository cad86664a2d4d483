/* SPDX-License-Identifier: Apache-2.0 */
/* How far agents may run ahead: one flow for each job and link, kept with the
 * agent, so that it also counts what was refused because the job was not known
 * yet. What waits to be merged is counted with the slot, because it outlives
 * the link. */
#include "core/server/inner.h"

#include "base/alloc.h"

/* More generations than there can be jobs: an agent may still push for some
 * that have ended. */
#define CREDITS_MAX (4u * PS_JOBS_MAX)

/* Drop the oldest flow whose job nobody knows. */
static void evict_stale_credit(const struct ps_server *s,
                               struct ps_server_session *p)
{
    struct ps_map_cursor c = {0};
    struct ps_credit *f;

    while ((f = ps_map_next(p->credits, &c)) != NULL) {
        if (ps_server_job_find(s, c.key) == NULL) {
            ps_map_remove(p->credits, c.key);
            ps_free(f);
            return;
        }
    }
}

struct ps_credit *ps_server_credit_get(struct ps_server *s,
                                       struct ps_server_session *p,
                                       uint64_t gen)
{
    struct ps_credit *f = ps_map_get(p->credits, gen);

    if (f == NULL) {
        if (ps_map_count(p->credits) >= CREDITS_MAX) {
            evict_stale_credit(s, p);
        }
        f = ps_calloc(1, sizeof(*f));
        ps_credit_init(
            f, &(struct ps_credit_limits){.initial = s->opt.initial_credit,
                                          .window = s->opt.credit_window});
        ps_map_put(p->credits, gen, f);
    }
    return f;
}

void ps_server_credit_drop_all(struct ps_server_session *p)
{
    struct ps_map_cursor c = {0};
    struct ps_credit *f;

    while ((f = ps_map_next(p->credits, &c)) != NULL) {
        ps_map_remove(p->credits, c.key);
        ps_free(f);
    }
}

/* The slot of the node, whichever incarnation of it the job knows; NULL: it has
 * none. */
static const struct ps_server_slot *
slot_of_node(const struct ps_server_job *job, uint32_t number)
{
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (job->slots[i].agent_node == number) {
            return &job->slots[i];
        }
    }
    return NULL;
}

uint64_t ps_server_credit_announce(struct ps_server *s,
                                   struct ps_server_session *p, uint64_t gen,
                                   const struct ps_server_slot *slot)
{
    struct ps_credit *f = ps_server_credit_get(s, p, gen);
    const struct ps_server_job *job = ps_server_job_find(s, gen);

    if (slot == NULL && job != NULL) {
        /* It named another slot, or an incarnation that this server has not
         * heard of. What it pushed was refused and is not held: without credit
         * for that it could not push when it is heard of. */
        slot = slot_of_node(job, p->agent_node);
    }
    return ps_credit_announce(f, slot != NULL ? slot->unmerged_bytes : 0);
}

static void send_credit(struct ps_server_step *st, struct ps_server_session *p,
                        const struct ps_server_slot *slot)
{
    uint64_t gen = slot->job->gen;
    struct ps_msg m = {
        .code = PS_MSG_CREDIT,
        .credit = {.gen = gen,
                   .credit = ps_server_credit_announce(st->s, p, gen, slot)},
    };

    ps_server_session_send(st, p, ps_packet_new(&m, NULL, 0));
}

void ps_server_credit_send_if_due(struct ps_server_step *st,
                                  struct ps_server_session *p,
                                  const struct ps_server_slot *slot)
{
    struct ps_credit *f = ps_server_credit_get(st->s, p, slot->job->gen);

    /* What is gathered carries it at the next tick. */
    if (slot->value_batch.part_count == 0 &&
        slot->commit_batch.part_count == 0 &&
        ps_credit_announce_due(f, slot->unmerged_bytes)) {
        send_credit(st, p, slot);
    }
}

void ps_server_credit_push_begins(struct ps_server_slot *slot)
{
    slot->receiving_since = slot->job->server->now;
}

void ps_server_credit_push_ended(struct ps_server_slot *slot, uint64_t len)
{
    struct ps_server_job *job = slot->job;

    if (len > 0) {
        slot->receiving_since = 0;
        slot->last_push_at = job->server->now;
        (void)ps_rate_meter_add(&job->push_rate, job->server->now, len);
    }
}

/* Until when others wait for this slot. Nobody does for one that sends
 * nothing, or has lost a packet and takes long to recover. */
static ps_time awaited_until(const struct ps_server_slot *slot)
{
    const struct ps_server_job *job = slot->job;
    /* Between two pushes of an agent that has more to send, others of its
     * servers have their turn. */
    ps_time since = slot->receiving_since != 0 ? slot->receiving_since
                                               : slot->last_push_at;

    return since != 0 ? ps_time_add(since, ps_pacing_patience(&job->push_rate,
                                                              job->slot_count))
                      : 0;
}

bool ps_server_credit_is_ahead(const struct ps_server_slot *slot)
{
    const struct ps_server_job *job = slot->job;
    struct ps_server *s = job->server;
    const struct ps_server_slot *slowest = NULL;

    for (uint32_t i = 0; i < job->slot_count; i++) {
        const struct ps_server_slot *other = &job->slots[i];

        if (other != slot && s->now < awaited_until(other) &&
            (slowest == NULL ||
             other->unmerged_bytes < slowest->unmerged_bytes)) {
            slowest = other;
        }
    }
    if (slowest == NULL ||
        slot->unmerged_bytes <
            slowest->unmerged_bytes + ps_pacing_max_lead(&job->push_rate)) {
        return false;
    }
    s->read_retry_at = ps_time_min(s->read_retry_at, awaited_until(slowest));
    return true;
}

void ps_server_credit_mark_job(struct ps_server_job *job)
{
    if (!ps_list_linked(&job->node)) {
        ps_list_push_back(&job->server->credit_check_jobs, &job->node);
    }
}

/* The slot that has least waiting of those that `open` lacks, or any open round
 * when it is NULL, and that have used up their credit. */
static struct ps_server_slot *
find_blocked_slot(struct ps_server_job *job, const struct ps_open_round *open)
{
    struct ps_server_slot *best = NULL;

    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_slot *slot = &job->slots[i];
        const bool gave = open != NULL
                              ? ps_round_has_contributed(&open->round, i)
                              : slot->contributed_rounds ==
                                    job->incomplete_rounds;
        struct ps_server_session *p;

        if (gave ||
            (best != NULL && slot->unmerged_bytes >= best->unmerged_bytes)) {
            continue;
        }
        p = ps_server_slot_session(slot);
        if (p != NULL && ps_credit_is_exhausted(
                             ps_server_credit_get(job->server, p, job->gen))) {
            best = slot;
        }
    }
    return best;
}

/* Whom the job waits for. Where memory is short that is whoever the next round
 * lacks, however much of it waits: nobody else's contributions find memory
 * before that round is merged. */
static struct ps_server_slot *slot_to_unblock(struct ps_server_job *job)
{
    const struct ps_open_round *open = ps_server_memory_reserved_round(job);
    struct ps_server_slot *slot = open != NULL ? find_blocked_slot(job, open)
                                               : NULL;

    return slot != NULL ? slot : find_blocked_slot(job, NULL);
}

void ps_server_credit_unblock_jobs(struct ps_server_step *st)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(&st->s->credit_check_jobs)) != NULL) {
        struct ps_server_job *job = PS_CONTAINER(n, struct ps_server_job, node);

        if (job->incomplete_rounds == 0 || job->merging_rounds != 0) {
            continue;
        }
        struct ps_server_slot *slot = slot_to_unblock(job);

        if (slot == NULL) {
            continue;
        }
        struct ps_server_session *p = ps_server_slot_session(slot);
        struct ps_credit *f = ps_server_credit_get(st->s, p, job->gen);

        /* What it may have by the rule is enough, if it may send by that. */
        (void)ps_credit_announce(f, slot->unmerged_bytes);
        if (ps_credit_is_exhausted(f)) {
            ps_credit_grant_extra(f);
        }
        send_credit(st, p, slot);
    }
}
