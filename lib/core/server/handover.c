/* SPDX-License-Identifier: Apache-2.0 */
/* Begin and end of moves, as the scheduler says, at the old owner and at the new
 * one; move.c has the roles. */
#include "core/server/handover.h"

#include "core/server/backup.h"
#include "core/server/copies.h"
#include "core/server/copy.h"
#include "core/server/inner.h"
#include "core/server/merge.h"
#include "core/server/move.h"
#include "core/server/reply.h"

/* Slots that have contributed to the partition or wait for a pull. */
static struct ps_bits waiting_slots(const struct ps_server_job *job,
                                    const struct ps_part *part)
{
    struct ps_bits waiting;

    ps_bits_init(&waiting, job->slot_count);
    for (uint32_t i = 0; part->open_round != NULL && i < job->slot_count; i++) {
        if (ps_round_has_contributed(&part->open_round->round, i)) {
            ps_bits_set(&waiting, i);
        }
    }
    PS_LIST_EACH_OF(const struct ps_waiting_pull, p, node, &part->waiting_pulls)
    {
        ps_bits_set(&waiting, p->slot);
    }
    return waiting;
}

/* Removes the partition, and refuses its contributions and pulls, and those whose
 * replies wait for a target, as stale (rule M6). Agents that learn of the new owner
 * repeat them there; an agent to which the partition comes back before it has
 * learned of that repeats them for the refusal. */
static void discard_part(struct ps_server_step *st, struct ps_server_job *job,
                         const struct ps_server_move *mv)
{
    struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);
    const struct ps_rec_part rec = {.key = mv->key, .index = mv->index};
    struct ps_server_target *t = mv->role == MOVE_OUT
                                     ? ps_server_target_find(job, mv->id)
                                     : NULL;
    struct ps_server_refusal refusal;
    struct ps_bits waiting;

    if (part == NULL) {
        if (t != NULL) {
            ps_server_target_free(t);
        }
        return;
    }
    waiting = waiting_slots(job, part);
    ps_server_copies_take_due(job, mv->key, mv->index, &waiting);
    if (t != NULL) {
        ps_server_target_free(t);
    }
    ps_server_merge_discard(st->s, job, part);
    ps_store_remove(&job->store, part);
    ps_server_copies_on_removal(job, mv->key, mv->index);
    ps_server_refusal_init(&refusal);
    ps_server_refusal_add(&refusal, &rec, PS_E_STALE, 0);
    ps_server_refusal_send_to(st, job, &waiting, &refusal);
    ps_bits_fini(&waiting);
}

/* False: the source was lost, and this server may have taken over what it had. */
static bool has_source(const struct ps_server_job *job,
                       const struct ps_msg_move *m)
{
    bool has = job->moves.process_count == 0;

    for (uint32_t i = 0; i < job->moves.process_count; i++) {
        has |= job->moves.processes[i].node == m->source &&
               job->moves.processes[i].instance == m->source_instance;
    }
    return has;
}

/* The partition is this server's. */
static void own_part(struct ps_server_step *st, struct ps_server_job *job,
                     struct ps_server_move *mv)
{
    const struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);

    ps_server_move_end(mv);
    if (part != NULL) {
        ps_server_norm_adopt(st, job, part);
    }
}

/* True if the other server of the move was lost, and what this one has of it as its
 * backup is all that was answered: the target may have owned the partition, or the
 * source may own it still. The scheduler says `is_owner` after the takeover in
 * any case. */
static bool has_other_copy(const struct ps_server_job *job,
                           const struct ps_server_move *mv)
{
    return (mv->role == MOVE_IN || mv->is_reported) &&
           ps_server_backup_has_of(
               job, mv->role == MOVE_IN ? mv->source : mv->target,
               ps_part_id(mv->key, mv->index));
}

/* `epoch`: placements up to it do not bring the partition back. */
static void end_move(struct ps_server_step *st, struct ps_server_job *job,
                     struct ps_server_move *mv, bool is_owner, uint32_t epoch)
{
    is_owner = is_owner && !has_other_copy(job, mv);
    if (mv->role == MOVE_OUT && is_owner) {
        ps_server_copies_end_move(st, mv);
    } else if (mv->role == MOVE_OUT) {
        discard_part(st, job, mv);
        ps_server_move_set_away(mv, epoch);
    } else if (mv->role == MOVE_IN && is_owner) {
        own_part(st, job, mv);
    } else if (mv->role == MOVE_IN) {
        discard_part(st, job, mv);
        ps_server_move_set_away(mv, mv->away_epoch);
        if (mv->away_epoch == 0) {
            ps_server_move_end(mv); /* It was never here. */
        }
    }
}

void ps_server_on_move(struct ps_server_step *st, const struct ps_msg_move *m)
{
    const struct ps_server *s = st->s;
    struct ps_server_job *job = ps_map_get(s->jobs.by_gen, m->gen);
    const bool is_source = m->source == s->uplink.node &&
                           m->source_instance == s->opt.instance;
    const bool is_target = m->target == s->uplink.node &&
                           m->target_instance == s->opt.instance;
    struct ps_server_move *mv;

    if (job == NULL || is_source == is_target || !has_source(job, m)) {
        return; /* Of a job that has ended, or of another process. */
    }
    mv = ps_server_move_find(job, m->key, m->index);
    if (is_target && ps_server_move_is_late(mv, m)) {
        return;
    }
    if (mv != NULL && mv->id < m->move && mv->role == MOVE_BACK && is_source) {
        ps_server_copies_refuse_move(st, mv, m->move);
        return;
    }
    if (mv != NULL && mv->id < m->move) {
        end_move(st, job, mv, is_source, m->epoch);
    }
    mv = ps_server_move_obtain(job, m->move, m->key, m->index);
    if (mv == NULL || mv->role != MOVE_ENDED) {
        return; /* It is over, or has begun. */
    }
    if (is_source) {
        /* The scheduler names it as the owner. */
        ps_server_backup_set_owner(st, job, ps_part_id(m->key, m->index), 0,
                                   true);
        ps_server_copies_begin_move(st, mv, m->target, m->target_instance);
    } else {
        discard_part(st, job, mv);
        ps_server_backup_begin_move(st, mv, m);
    }
}

void ps_server_on_move_end(struct ps_server_step *st,
                           const struct ps_msg_move_end *m)
{
    struct ps_server_job *job = ps_map_get(st->s->jobs.by_gen, m->gen);
    const uint64_t id = ps_part_id(m->key, m->index);
    struct ps_server_move *mv;

    if (job == NULL) {
        return;
    }
    if (m->version != 0) {
        ps_server_backup_set_owner(st, job, id, m->version, m->is_owner);
        return;
    }
    mv = ps_server_move_find_ending(job, m->move, m->key, m->index);
    if (mv == NULL || (mv->role != MOVE_OUT && mv->role != MOVE_IN)) {
        return;
    }
    end_move(st, job, mv, m->is_owner, m->epoch);
    ps_server_backup_ask_owner(st, job, id);
    ps_server_copies_drop_unused_peers(st, true);
}
