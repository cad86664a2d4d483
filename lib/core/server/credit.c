/* SPDX-License-Identifier: Apache-2.0 */
/* Credit (rule C2) and pacing: how far agents may run ahead. Received and
 * announced bytes are counted for each job and session, so that refused pushes
 * of a job not known yet count too. Unmerged bytes are counted for each slot,
 * because they outlive the link.
 *
 * Credit travels with replies; alone only where it is due and no reply is about
 * to carry it, and to slots that block their job (rule C4). */
#include "core/server/credit.h"

#include "base/alloc.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/session.h"

/* Above the maximum of jobs: an agent may still push for jobs that have
 * ended. */
#define CREDITS_MAX        (4u * PS_JOBS_MAX)

/* After its last contribution a job counts as user of a link for this time. */
#define SHARED_LINK_MEMORY PS_SECONDS(1)

/* Drops the credit of one job that is not known here. */
static void evict_stale_credit(const struct ps_server *s,
                               struct ps_server_session *p)
{
    struct ps_map_cursor c = {0};
    struct ps_credit *f;

    while ((f = ps_map_next(p->credits, &c)) != NULL) {
        if (ps_map_get(s->jobs.by_gen, c.key) == NULL) {
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

void ps_server_credit_on_receive(struct ps_server *s,
                                 const struct ps_server_request *q)
{
    struct ps_credit *f = ps_server_credit_get(s, q->from.session, q->from.gen);
    struct ps_server_job *job;

    ps_credit_on_receive(f, q->bytes);
    if (ps_credit_is_exhausted(f)) {
        job = ps_map_get(s->jobs.by_gen, q->from.gen);
        if (job != NULL) {
            job->may_be_exhausted = true;
        }
    }
}

/* Returns the slot of the node, of any incarnation; NULL: none. */
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
                                   const struct ps_server_recipient *to)
{
    struct ps_credit *f = ps_server_credit_get(s, to->session, to->gen);
    const struct ps_server_slot *slot = to->slot;

    if (slot == NULL) {
        const struct ps_server_job *job = ps_map_get(s->jobs.by_gen, to->gen);

        /* The message named another slot, or an incarnation not known here yet.
         * Its payload was refused and is not held: without credit for it the
         * agent could not push once it is known. */
        slot = job != NULL ? slot_of_node(job, to->session->agent_node) : NULL;
    }
    return ps_credit_announce(f, slot != NULL ? slot->unmerged_bytes : 0);
}

void ps_server_credit_push_ended(const struct ps_server_request *q)
{
    struct ps_server_slot *slot = q->from.slot;
    struct ps_server_job *job = slot->job;

    ps_server_credit_mark_job(job);
    if (q->rows == NULL && q->bytes > 0) { /* Rows are not paced. */
        slot->receiving_since = 0;
        slot->last_push_at = job->server->now;
        (void)ps_rate_meter_add(&job->push_rate, job->server->now, q->bytes);
    }
}

void ps_server_credit_push_accepted(const struct ps_server_request *q)
{
    if (q->rows == NULL && q->bytes > 0) {
        q->from.slot->last_accepted_at = q->from.slot->job->server->now;
    }
}

/* Returns the time until which others wait for the slot, for pacing. It has
 * passed if the slot sends nothing or takes long to recover a lost packet, or if
 * what it sends is refused: it may lack a message that waits behind a push of one
 * of the others. */
static ps_time awaited_until(const struct ps_server_slot *slot)
{
    const struct ps_server_job *job = slot->job;
    /* An agent with more to send alternates between its servers, so a gap
     * between two pushes is no reason not to wait. */
    ps_time since = slot->receiving_since != 0 ? slot->receiving_since
                                               : slot->last_accepted_at;

    return since != 0 ? ps_time_add(since, ps_pacing_patience(&job->push_rate,
                                                              job->slot_count))
                      : 0;
}

/* True if contributions of another job have arrived from the slot's agent of
 * late: a pause of the link for this slot would hold them up. */
static bool shares_link(const struct ps_server_slot *slot)
{
    const struct ps_server *s = slot->job->server;

    PS_MAP_EACH(const struct ps_server_job, job, s->jobs.by_gen)
    {
        const struct ps_server_slot *other =
            job == slot->job ? NULL : slot_of_node(job, slot->agent_node);

        if (other != NULL && other->last_push_at != 0 &&
            s->now < ps_time_add(other->last_push_at, SHARED_LINK_MEMORY)) {
            return true;
        }
    }
    return false;
}

/* Never true for all slots at once. */
bool ps_server_credit_must_wait(const struct ps_server_slot *slot)
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
            slowest->unmerged_bytes + ps_pacing_max_lead(&job->push_rate) ||
        shares_link(slot)) {
        return false;
    }
    s->memory.read_retry_at = ps_time_min(s->memory.read_retry_at,
                                          awaited_until(slowest));
    return true;
}

/* With many slots the search for one that blocks takes longer than a push, and
 * most jobs never use up a credit. */
void ps_server_credit_mark_job(struct ps_server_job *job)
{
    if (job->may_be_exhausted && !ps_list_linked(&job->node)) {
        ps_list_push_back(&job->server->jobs.credit_check, &job->node);
    }
}

/* ------------------------------------------------ credit that travels alone */

static void send_credit(struct ps_server_step *st,
                        const struct ps_server_recipient *to)
{
    struct ps_msg m = {
        .code = PS_MSG_CREDIT,
        .credit = {.gen = to->gen,
                   .credit = ps_server_credit_announce(st->s, to)},
    };

    ps_server_session_send(st, to->session, ps_packet_new(&m, NULL, 0));
}

void ps_server_credit_send_due(struct ps_server_step *st,
                               const struct ps_server_recipient *to)
{
    /* Batched replies carry the credit at the next tick. */
    if (to->session != NULL && !ps_list_linked(&to->slot->list_node) &&
        ps_credit_announce_due(
            ps_server_credit_get(st->s, to->session, to->gen),
            to->slot->unmerged_bytes)) {
        send_credit(st, to);
    }
}

/* True if the slot's peer, which is connected, may send nothing more. */
static bool is_exhausted(const struct ps_server_job *job,
                         const struct ps_server_slot *slot)
{
    struct ps_server_session *p = ps_server_slot_session(slot);

    return p != NULL && ps_credit_is_exhausted(
                            ps_server_credit_get(job->server, p, job->gen));
}

/* Among slots with exhausted credit, returns the one with least unmerged bytes
 * that has not contributed to `open`; `open` NULL: to some open round. */
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

        if (gave ||
            (best != NULL && slot->unmerged_bytes >= best->unmerged_bytes)) {
            continue;
        }
        if (is_exhausted(job, slot)) {
            best = slot;
        }
    }
    return best;
}

/* Rule C4: returns the slot that blocks the job; NULL: none. When memory is
 * short this is one that the reserved round lacks, even if it has many unmerged
 * bytes: no other contribution finds memory before that round is merged. */
static struct ps_server_slot *slot_to_unblock(struct ps_server_job *job)
{
    const struct ps_open_round *open = ps_server_memory_reserved_round(job);
    struct ps_server_slot *slot = open != NULL ? find_blocked_slot(job, open)
                                               : NULL;

    return slot != NULL ? slot : find_blocked_slot(job, NULL);
}

static bool has_exhausted_slot(const struct ps_server_job *job)
{
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (is_exhausted(job, &job->slots[i])) {
            return true;
        }
    }
    return false;
}

void ps_server_credit_unblock(struct ps_server_step *st,
                              struct ps_server_job *job)
{
    if (job->incomplete_rounds == 0 || job->merging_rounds != 0) {
        return; /* It waits for no contribution, or credit follows. */
    }
    struct ps_server_slot *slot = slot_to_unblock(job);

    if (slot == NULL) {
        job->may_be_exhausted = has_exhausted_slot(job);
        return;
    }
    const struct ps_server_recipient to = {ps_server_slot_session(slot),
                                           job->gen, slot};
    struct ps_credit *f = ps_server_credit_get(st->s, to.session, to.gen);

    /* The regular credit suffices if it lets the slot send. */
    (void)ps_credit_announce(f, slot->unmerged_bytes);
    if (ps_credit_is_exhausted(f)) {
        ps_credit_grant_extra(f);
    }
    send_credit(st, &to);
}
