/* SPDX-License-Identifier: Apache-2.0 */
/* Migrations of partitions to other servers: the role of this server in each,
 * and what follows from it for messages of agents.
 *
 *     MIG_OUT   The old owner. Rounds take contributions and are not merged,
 *               so that version, value and states stay as they are while chunks
 *               of them are read. A merge in progress ends first.
 *     MIG_IN    The new owner. Chunks are kept beside the store until the
 *               scheduler makes this server the owner.
 *     MIG_AWAY  The old owner, afterwards. Agents may learn late of the new
 *               placement, and messages of a link may overtake each other, so
 *               late messages must not create the partition again. Only a
 *               restore that names a newer placement ends this state.
 *     MIG_BACK  The old owner that is the owner again without a migration,
 *               because the new one was lost. An agent that has not heard of
 *               the placement in between sees no change of owner. So every slot
 *               is asked for its state, and is refused until it has sent it.
 *     MIG_ENDED None. Messages of a link may overtake each other: a part_read
 *               or part_chunk that comes after the end of its migration must
 *               not begin it again, because nothing would end it.
 *
 * The files migration_out.c, migration_in.c and migration_end.c have what the
 * scheduler asks of a server in these roles.
 *
 * Contributions at the old owner are not migrated (rule M3): agents keep them
 * until the round is committed, and send them to the new owner as after the
 * loss of a server. An aborted migration changes nothing. */
#include "core/server/migration.h"

#include "base/alloc.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/reply.h"

static uint64_t part_id(uint32_t key, uint32_t index)
{
    return (uint64_t)key << 32 | index;
}

struct ps_server_migration *
ps_server_migration_find(const struct ps_server_job *job, uint32_t key,
                         uint32_t index)
{
    return job->migrations != NULL
               ? ps_map_get(job->migrations, part_id(key, index))
               : NULL;
}

void ps_server_migration_drop_buffers(struct ps_server_migration *mv)
{
    ps_msg_free(mv->first_chunk);
    mv->first_chunk = NULL;
    ps_image_drop(mv->buffers);
    mv->received_bytes = 0;
}

void ps_server_migration_end(struct ps_server_migration *mv)
{
    ps_server_migration_drop_buffers(mv);
    ps_bits_fini(&mv->reported);
    mv->role = MIG_ENDED;
    mv->away_epoch = 0;
}

void ps_server_migration_free_all(struct ps_server_job *job)
{
    struct ps_map_cursor c = {0};
    struct ps_server_migration *mv;

    while (job->migrations != NULL &&
           (mv = ps_map_next(job->migrations, &c)) != NULL) {
        ps_server_migration_end(mv);
        ps_free(mv);
    }
    ps_map_free(job->migrations);
    job->migrations = NULL;
}

struct ps_server_migration *
ps_server_migration_obtain(struct ps_server_job *job, uint64_t number,
                           uint32_t key, uint32_t index,
                           enum ps_server_migration_role kind)
{
    struct ps_server_migration *mv = ps_server_migration_find(job, key, index);

    if (mv == NULL) {
        if (job->migrations == NULL) {
            job->migrations = ps_map_new();
        }
        mv = ps_calloc(1, sizeof(*mv));
        mv->key = key;
        mv->index = index;
        mv->role = kind;
        mv->id = number;
        ps_map_put(job->migrations, part_id(key, index), mv);
    }
    if (number < mv->id) {
        return NULL;
    }
    if (number > mv->id) {
        ps_server_migration_drop_buffers(mv);
        ps_bits_fini(&mv->reported);
        mv->id = number;
        mv->role = kind;
        mv->read_pending = false;
    }
    return mv->role == kind ? mv : NULL;
}

struct ps_server_migration *
ps_server_migration_find_ending(struct ps_server_job *job, uint64_t number,
                                uint32_t key, uint32_t index)
{
    struct ps_server_migration *mv = ps_server_migration_find(job, key, index);

    if (mv == NULL) {
        return ps_server_migration_obtain(job, number, key, index, MIG_ENDED);
    }
    /* The former migration is over, and no message of this one has come. */
    if (number > mv->id && mv->role != MIG_OUT && mv->role != MIG_IN) {
        mv->id = number;
    }
    return mv->id == number ? mv : NULL;
}

/* ------------------------------------------------------- messages of agents */

bool ps_server_migration_freezes(const struct ps_server_job *job,
                                 const struct ps_part *part)
{
    const struct ps_server_migration *mv = ps_server_migration_find(
        job, part->key, part->index);

    return mv != NULL && mv->role == MIG_OUT;
}

bool ps_server_migration_involves(const struct ps_server_job *job,
                                  const struct ps_rec_part *rec)
{
    const struct ps_server_migration *mv = ps_server_migration_find(
        job, rec->key, rec->index);

    return mv != NULL && mv->role != MIG_BACK && mv->role != MIG_ENDED;
}

int ps_server_migration_check_use(const struct ps_server_slot *slot,
                                  const struct ps_rec_part *rec)
{
    const struct ps_server_migration *mv = ps_server_migration_find(
        slot->job, rec->key, rec->index);

    if (mv == NULL || mv->role == MIG_OUT || mv->role == MIG_ENDED ||
        (mv->role == MIG_BACK && ps_bits_get(&mv->reported, slot->index))) {
        return 0;
    }
    return mv->role == MIG_IN ? PS_E_MIGRATING : PS_E_STALE;
}

/* Rule M8: asks all slots but this one for their state; agents send it when
 * they are refused as stale. */
static void begin_return(struct ps_server_step *st,
                         const struct ps_server_slot *slot,
                         struct ps_server_migration *mv)
{
    struct ps_server_job *job = slot->job;
    const struct ps_rec_part rec = {.key = mv->key, .index = mv->index};
    struct ps_server_refusal refusal;

    mv->role = MIG_BACK;
    ps_bits_init(&mv->reported, job->slot_count);
    ps_server_refusal_init(&refusal);
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

int ps_server_migration_check_restore(struct ps_server_step *st,
                                      const struct ps_server_slot *slot,
                                      const struct ps_rec_part *rec,
                                      uint32_t epoch)
{
    struct ps_server_migration *mv = ps_server_migration_find(
        slot->job, rec->key, rec->index);

    if (mv == NULL || mv->role == MIG_ENDED) {
        return 0;
    }
    if ((mv->role != MIG_AWAY && mv->role != MIG_BACK) ||
        epoch <= mv->away_epoch) {
        return PS_E_STALE;
    }
    if (mv->role == MIG_AWAY) {
        begin_return(st, slot, mv);
    }
    return 0;
}

void ps_server_migration_on_restored(const struct ps_server_slot *slot,
                                     const struct ps_rec_part *rec)
{
    struct ps_server_migration *mv = ps_server_migration_find(
        slot->job, rec->key, rec->index);

    if (mv != NULL && mv->role == MIG_BACK) {
        ps_bits_set(&mv->reported, slot->index);
        if (ps_bits_full(&mv->reported)) {
            ps_server_migration_end(mv);
        }
    }
}
