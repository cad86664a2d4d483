/* SPDX-License-Identifier: Apache-2.0 */
/* Credit that travels alone: what is due while no reply is about to carry it,
 * and grants to slots that block their job (rule C4). */
#include "core/server/grant.h"

#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/session.h"

void ps_server_grant_send(struct ps_server_step *st,
                          struct ps_server_session *p,
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

void ps_server_grant_unblock(struct ps_server_step *st,
                             struct ps_server_job *job)
{
    struct ps_server_slot *slot;

    /* With many slots the search takes longer than a push, and most jobs never
     * use up a credit. */
    if (!job->may_be_exhausted) {
        return;
    }
    slot = slot_to_unblock(job);
    if (slot == NULL) {
        job->may_be_exhausted = has_exhausted_slot(job);
        return;
    }
    struct ps_server_session *p = ps_server_slot_session(slot);
    struct ps_credit *f = ps_server_credit_get(st->s, p, job->gen);

    /* The regular credit suffices if it lets the slot send. */
    (void)ps_credit_announce(f, slot->unmerged_bytes);
    if (ps_credit_is_exhausted(f)) {
        ps_credit_grant_extra(f);
    }
    ps_server_grant_send(st, p, slot);
}
