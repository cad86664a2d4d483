/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of partitions to other servers: the role of this server in each, and what
 * follows from it for messages of agents.
 *
 *     MOVE_OUT   The old owner. It goes on with the partition, and sends copies of
 *                it to the new one, as to a backup (copy.c): when that has the
 *                newest version, replies wait for it, and the scheduler hears that
 *                the partition has moved. Only the scheduler ends the move then.
 *     MOVE_IN    The new owner. Copies become the partition in its store, and in
 *                its state memory and at its backup, before they are confirmed
 *                (backup.c). No agent may use it until the scheduler says so.
 *     MOVE_AWAY  The old owner, afterwards. Agents may learn late of the new
 *                placement, and messages of a link may overtake each other, so
 *                late messages must not create the partition again. Only a
 *                restore that names a newer placement ends this state.
 *     MOVE_BACK  The old owner that is the owner again without a move, because the
 *                new one was lost. An agent that has not heard of the placement in
 *                between sees no change of owner. So every slot is asked for its
 *                state, and is refused until it has sent it.
 *     MOVE_ENDED None. Messages of a link may overtake each other: a move that
 *                comes after its end must not begin.
 *
 * This file has what is common to the roles; handover.c begins and ends them.
 *
 * Contributions at the old owner are not copied (rule M3): agents keep them until
 * the round is committed, and send them to the new owner as after the loss of a
 * server. A move that is given up changes nothing. */
#include "core/server/move.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/server/inner.h"
#include "core/server/reply.h"

struct ps_server_move *ps_server_move_find(const struct ps_server_job *job,
                                           uint32_t key, uint32_t index)
{
    return job->moves.by_part != NULL
               ? ps_map_get(job->moves.by_part, ps_part_id(key, index))
               : NULL;
}

/* Ends the role of the target, or that of before the return. */
static void drop_role(struct ps_server_move *mv)
{
    if (ps_list_linked(&mv->node)) {
        ps_list_remove(&mv->node);
    }
    if (mv->copies != NULL) {
        ps_image_drop(mv->copies->next.buffers);
        ps_free(mv->copies);
        mv->copies = NULL;
    }
    ps_bits_fini(&mv->reported);
    mv->unconfirmed = 0;
    mv->refused = 0;
    mv->is_reported = false;
    mv->role = MOVE_ENDED;
}

void ps_server_move_end(struct ps_server_move *mv)
{
    drop_role(mv);
    mv->away_epoch = 0;
}

void ps_server_move_set_away(struct ps_server_move *mv, uint32_t epoch)
{
    drop_role(mv);
    mv->role = MOVE_AWAY;
    mv->away_epoch = epoch;
}

void ps_server_moves_free(struct ps_server_job *job)
{
    if (job->moves.by_part == NULL) {
        return;
    }
    PS_MAP_EACH(struct ps_server_move, mv, job->moves.by_part)
    {
        drop_role(mv);
        ps_free(mv);
    }
    ps_map_free(job->moves.by_part);
    job->moves.by_part = NULL;
}

static struct ps_server_move *obtain(struct ps_server_job *job, uint32_t key,
                                     uint32_t index)
{
    struct ps_server_move *mv = ps_server_move_find(job, key, index);

    if (mv == NULL) {
        if (job->moves.by_part == NULL) {
            job->moves.by_part = ps_map_new();
        }
        mv = ps_calloc(1, sizeof(*mv));
        mv->job = job;
        mv->key = key;
        mv->index = index;
        ps_map_put(job->moves.by_part, ps_part_id(key, index), mv);
    }
    return mv;
}

struct ps_server_move *ps_server_move_obtain(struct ps_server_job *job,
                                             uint64_t number, uint32_t key,
                                             uint32_t index)
{
    struct ps_server_move *mv = obtain(job, key, index);

    if (number < mv->id ||
        (number == mv->id && mv->role != MOVE_OUT && mv->role != MOVE_IN)) {
        return NULL;
    }
    if (number > mv->id) {
        mv->id = number;
        drop_role(mv);
    }
    return mv;
}

struct ps_server_move *ps_server_move_find_ending(struct ps_server_job *job,
                                                  uint64_t number, uint32_t key,
                                                  uint32_t index)
{
    struct ps_server_move *mv = obtain(job, key, index);

    /* The former move is over, and no message of this one has come. */
    if (number > mv->id && mv->role != MOVE_OUT && mv->role != MOVE_IN) {
        mv->id = number;
    }
    return mv->id == number ? mv : NULL;
}

void ps_server_move_take_in(struct ps_server_move *mv,
                            const struct ps_msg_move *m)
{
    mv->role = MOVE_IN;
    mv->source = m->source;
    mv->source_incarnation = m->source_incarnation;
    mv->source_instance = m->source_instance;
    ps_str_copy(mv->source_name, sizeof(mv->source_name),
                ps_str_or_empty(m->source_name));
    mv->copies = ps_calloc(1, sizeof(*mv->copies));
    mv->copies->move = mv;
    ps_list_push_back(&mv->job->copies.incoming, &mv->node);
}

/* ------------------------------------------------------- messages of agents */

bool ps_server_move_is_reported(const struct ps_server_job *job,
                                const struct ps_part *part)
{
    const struct ps_server_move *mv = ps_server_move_find(job, part->key,
                                                          part->index);

    return mv != NULL && mv->is_reported;
}

bool ps_server_move_involves(const struct ps_server_job *job,
                             const struct ps_rec_part *rec)
{
    const struct ps_server_move *mv = ps_server_move_find(job, rec->key,
                                                          rec->index);

    return (mv != NULL && mv->role != MOVE_BACK && mv->role != MOVE_ENDED) ||
           ps_server_job_backs_up(job, rec->key, rec->index);
}

int ps_server_move_check_use(const struct ps_server_slot *slot,
                             const struct ps_rec_part *rec)
{
    const struct ps_server_move *mv = ps_server_move_find(slot->job, rec->key,
                                                          rec->index);

    if (ps_server_job_backs_up(slot->job, rec->key, rec->index)) {
        return PS_E_MIGRATING; /* Rule O13: it may be about to be promoted. */
    }
    if (mv == NULL || mv->role == MOVE_OUT || mv->role == MOVE_ENDED ||
        (mv->role == MOVE_BACK && ps_bits_get(&mv->reported, slot->index))) {
        return 0;
    }
    return mv->role == MOVE_IN ? PS_E_MIGRATING : PS_E_STALE;
}

/* Rule M8: asks all slots but this one for their state; agents send it when
 * they are refused as stale. They know by the epoch of the placement that this
 * server may ask, even if they have heard of it no more than the server. */
static void begin_return(struct ps_server_step *st,
                         const struct ps_server_slot *slot,
                         struct ps_server_move *mv, uint32_t epoch)
{
    struct ps_server_job *job = slot->job;
    const struct ps_rec_part rec = {.key = mv->key, .index = mv->index};
    struct ps_server_refusal refusal;

    mv->role = MOVE_BACK;
    ps_bits_init(&mv->reported, job->slot_count);
    ps_server_refusal_init(&refusal);
    refusal.epoch = epoch;
    ps_server_refusal_add(&refusal, &rec, PS_E_STALE, 0);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_session *p = ps_server_slot_session(&job->slots[i]);

        if (i != slot->index && p != NULL) {
            ps_server_refusal_send(
                st, &(struct ps_server_recipient){p, job->gen, &job->slots[i]},
                &refusal);
        }
    }
}

/* Rule M7: another server had the partition when a move here began that names an
 * older epoch. */
static void note_restored(const struct ps_server_slot *slot,
                          const struct ps_rec_part *rec, uint32_t epoch)
{
    struct ps_server_move *mv;

    if (slot->job->copies.is_wanted) {
        return;
    }
    mv = obtain(slot->job, rec->key, rec->index);
    if (epoch > mv->restored_epoch) {
        mv->restored_epoch = epoch;
    }
}

bool ps_server_move_is_late(const struct ps_server_move *mv,
                            const struct ps_msg_move *m)
{
    return mv != NULL && m->epoch < mv->restored_epoch;
}

int ps_server_move_check_restore(struct ps_server_step *st,
                                 const struct ps_server_slot *slot,
                                 const struct ps_rec_part *rec, uint32_t epoch)
{
    struct ps_server_move *mv = ps_server_move_find(slot->job, rec->key,
                                                    rec->index);

    if (ps_server_job_backs_up(slot->job, rec->key, rec->index)) {
        return PS_E_STALE; /* The agent sends it again. */
    }
    if (mv == NULL || mv->role == MOVE_ENDED) {
        note_restored(slot, rec, epoch);
        return 0;
    }
    if ((mv->role != MOVE_AWAY && mv->role != MOVE_BACK) ||
        epoch <= mv->away_epoch) {
        return PS_E_STALE;
    }
    if (mv->role == MOVE_AWAY) {
        begin_return(st, slot, mv, epoch);
    }
    note_restored(slot, rec, epoch);
    return 0;
}

void ps_server_move_on_restored(const struct ps_server_slot *slot,
                                const struct ps_rec_part *rec)
{
    struct ps_server_move *mv = ps_server_move_find(slot->job, rec->key,
                                                    rec->index);

    if (mv != NULL && mv->role == MOVE_BACK) {
        ps_bits_set(&mv->reported, slot->index);
        if (ps_bits_full(&mv->reported)) {
            ps_server_move_end(mv);
        }
    }
}
