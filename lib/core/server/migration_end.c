/* SPDX-License-Identifier: Apache-2.0 */
/* End of a migration, at both servers: one has the partition, the other has it
 * no more. */
#include "core/server/migration_end.h"

#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/merge.h"
#include "core/server/migration.h"
#include "core/server/migration_in.h"
#include "core/server/reply.h"

static void send_end_ack(struct ps_server_step *st,
                         const struct ps_msg_part_end *m, int rc)
{
    ps_server_migration_send_ack(
        st, &(struct ps_msg_part_ack){.migration = m->migration,
                                      .gen = m->gen,
                                      .key = m->key,
                                      .index = m->index,
                                      .is_end_ack = true,
                                      .error = rc});
}

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
    PS_LIST_EACH(n, &part->waiting_pulls)
    {
        ps_bits_set(&waiting,
                    PS_CONTAINER(n, struct ps_waiting_pull, node)->slot);
    }
    return waiting;
}

/* Removes the partition, and refuses its contributions and pulls as stale
 * (rule M6). Agents that learn of the new owner repeat them there; an agent to
 * which the partition comes back before it has learned of that repeats them for
 * the refusal. */
static void discard_part(struct ps_server_step *st, struct ps_server_job *job,
                         uint32_t key, uint32_t index)
{
    struct ps_part *part = ps_store_find(&job->store, key, index);
    const struct ps_rec_part rec = {.key = key, .index = index};
    struct ps_server_refusal refusal;
    struct ps_bits waiting;

    if (part == NULL) {
        return;
    }
    waiting = waiting_slots(job, part);
    ps_server_merge_discard(st->s, job, part);
    ps_store_remove(&job->store, part);
    ps_server_refusal_init(&refusal);
    ps_server_refusal_add(&refusal, &rec, PS_E_STALE, 0);
    ps_server_refusal_send_to(st, job, &waiting, &refusal);
    ps_bits_fini(&waiting);
}

/* Rule M4: ends an aborted migration at the old owner, and merges a round that
 * is complete by now. */
static void unfreeze_part(struct ps_server_step *st, struct ps_server_job *job,
                          struct ps_server_migration *mv)
{
    struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);

    ps_server_migration_end(mv);
    if (part != NULL && part->open_round != NULL && part->merge == NULL &&
        ps_round_is_complete(&part->open_round->round)) {
        ps_server_merge_start(st, job, part);
    }
}

static int end_as_owner(struct ps_server_step *st, struct ps_server_job *job,
                        struct ps_server_migration *mv)
{
    switch (mv->role) {
    case MIG_OUT:
        unfreeze_part(st, job, mv);
        return 0;
    case MIG_IN:
        if (mv->first_chunk == NULL || mv->received_bytes < mv->total_bytes) {
            return PS_E_PROTO;
        }
        discard_part(st, job, mv->key, mv->index);
        ps_server_migration_install(job, mv);
        ps_server_migration_end(mv);
        return 0;
    case MIG_AWAY:
    case MIG_BACK:
    case MIG_ENDED:
        break;
    }
    return 0;
}

static void end_as_non_owner(struct ps_server_step *st,
                             struct ps_server_job *job,
                             struct ps_server_migration *mv, uint32_t epoch)
{
    switch (mv->role) {
    case MIG_OUT:
        discard_part(st, job, mv->key, mv->index);
        mv->role = MIG_AWAY;
        mv->away_epoch = epoch;
        break;
    case MIG_IN:
        ps_server_migration_drop_buffers(mv);
        mv->role = MIG_AWAY;
        if (mv->away_epoch == 0) {
            ps_server_migration_end(mv); /* It was never here. */
        }
        break;
    case MIG_AWAY:
    case MIG_BACK:
    case MIG_ENDED:
        break;
    }
}

void ps_server_on_part_end(struct ps_server_step *st,
                           const struct ps_msg_part_end *m)
{
    struct ps_server_job *job = ps_server_job_find(st->s, m->gen);
    struct ps_server_migration *mv =
        job != NULL ? ps_server_migration_find_ending(job, m->migration, m->key,
                                                      m->index)
                    : NULL;
    int rc = 0;

    if (mv != NULL) {
        if (m->is_owner) {
            rc = end_as_owner(st, job, mv);
        } else {
            end_as_non_owner(st, job, mv, m->epoch);
        }
    }
    send_end_ack(st, m, rc);
}
