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
 * This file has what is common to the roles and what leaves the old owner: the
 * scheduler reads value and states in chunks, from a partition that no merge
 * writes meanwhile. restore.c has what arrives at the new owner, and the end.
 *
 * Contributions at the old owner are not migrated (rule M3): agents keep them
 * until the round is committed, and send them to the new owner as after the
 * loss of a server. An aborted migration changes nothing. */
#include "core/server/migration.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/reply.h"

static struct ps_server_migration *
find_migration(const struct ps_server_job *job, uint32_t key, uint32_t index)
{
    return job->migrations != NULL
               ? ps_map_get(job->migrations, ps_part_id(key, index))
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
    if (job->migrations == NULL) {
        return;
    }
    PS_MAP_EACH(struct ps_server_migration, mv, job->migrations)
    {
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
    struct ps_server_migration *mv = find_migration(job, key, index);

    if (mv == NULL) {
        if (job->migrations == NULL) {
            job->migrations = ps_map_new();
        }
        mv = ps_calloc(1, sizeof(*mv));
        mv->key = key;
        mv->index = index;
        mv->role = kind;
        mv->id = number;
        ps_map_put(job->migrations, ps_part_id(key, index), mv);
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
    struct ps_server_migration *mv = find_migration(job, key, index);

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
    const struct ps_server_migration *mv = find_migration(job, part->key,
                                                          part->index);

    return mv != NULL && mv->role == MIG_OUT;
}

bool ps_server_migration_involves(const struct ps_server_job *job,
                                  const struct ps_rec_part *rec)
{
    const struct ps_server_migration *mv = find_migration(job, rec->key,
                                                          rec->index);

    return (mv != NULL && mv->role != MIG_BACK && mv->role != MIG_ENDED) ||
           ps_server_job_backs_up(job, rec->key, rec->index);
}

int ps_server_migration_check_use(const struct ps_server_slot *slot,
                                  const struct ps_rec_part *rec)
{
    const struct ps_server_migration *mv = find_migration(slot->job, rec->key,
                                                          rec->index);

    if (ps_server_job_backs_up(slot->job, rec->key, rec->index)) {
        return PS_E_MIGRATING; /* Rule O13: it may be about to be promoted. */
    }
    if (mv == NULL || mv->role == MIG_OUT || mv->role == MIG_ENDED ||
        (mv->role == MIG_BACK && ps_bits_get(&mv->reported, slot->index))) {
        return 0;
    }
    return mv->role == MIG_IN ? PS_E_MIGRATING : PS_E_STALE;
}

/* Rule M8: asks all slots but this one for their state; agents send it when
 * they are refused as stale. They know by the epoch of the placement that this
 * server may ask, even if they have heard of it no more than the server. */
static void begin_return(struct ps_server_step *st,
                         const struct ps_server_slot *slot,
                         struct ps_server_migration *mv, uint32_t epoch)
{
    struct ps_server_job *job = slot->job;
    const struct ps_rec_part rec = {.key = mv->key, .index = mv->index};
    struct ps_server_refusal refusal;

    mv->role = MIG_BACK;
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

int ps_server_migration_check_restore(struct ps_server_step *st,
                                      const struct ps_server_slot *slot,
                                      const struct ps_rec_part *rec,
                                      uint32_t epoch)
{
    struct ps_server_migration *mv = find_migration(slot->job, rec->key,
                                                    rec->index);

    if (ps_server_job_backs_up(slot->job, rec->key, rec->index)) {
        return PS_E_STALE; /* The agent sends it again. */
    }
    if (mv == NULL || mv->role == MIG_ENDED) {
        return 0;
    }
    if ((mv->role != MIG_AWAY && mv->role != MIG_BACK) ||
        epoch <= mv->away_epoch) {
        return PS_E_STALE;
    }
    if (mv->role == MIG_AWAY) {
        begin_return(st, slot, mv, epoch);
    }
    return 0;
}

void ps_server_migration_on_restored(const struct ps_server_slot *slot,
                                     const struct ps_rec_part *rec)
{
    struct ps_server_migration *mv = find_migration(slot->job, rec->key,
                                                    rec->index);

    if (mv != NULL && mv->role == MIG_BACK) {
        ps_bits_set(&mv->reported, slot->index);
        if (ps_bits_full(&mv->reported)) {
            ps_server_migration_end(mv);
        }
    }
}

/* -------------------------------------------------------- chunks that leave */

static void send_chunk_msg(struct ps_server_step *st, const struct ps_msg *msg,
                           const struct ps_slice *copy)
{
    st->s->uplink_has_changed = true;
    ps_link_send(st->s->uplink.dialer.link,
                 ps_packet_new(msg, copy, copy->buf != NULL ? 1 : 0), st->now,
                 st->fx);
    ps_buf_unref(copy->buf);
}

static void send_chunk_error(struct ps_server_step *st,
                             const struct ps_server_job *job,
                             const struct ps_server_migration *mv, int rc,
                             const char *text)
{
    send_chunk_msg(st,
                   &(struct ps_msg){.code = PS_MSG_PART_CHUNK,
                                    .part_chunk = {.migration = mv->id,
                                                   .gen = job->gen,
                                                   .key = mv->key,
                                                   .index = mv->index,
                                                   .error = rc,
                                                   .text = text}},
                   &(struct ps_slice){0});
}

static void send_chunk(struct ps_server_step *st, struct ps_server_job *job,
                       struct ps_server_migration *mv)
{
    const struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);
    uint64_t lens[PS_PART_BUFFERS];
    struct ps_msg msg = {.code = PS_MSG_PART_CHUNK,
                         .part_chunk = {.migration = mv->id,
                                        .gen = job->gen,
                                        .key = mv->key,
                                        .index = mv->index,
                                        .text = "",
                                        .offset = mv->offset,
                                        .newest_version = job->newest_version}};
    struct ps_slice copy = {0};
    const char *text;

    if (part != NULL && part->merge != NULL) {
        return; /* ps_server_migration_on_merged() sends it. */
    }
    mv->read_pending = false;
    int rc = ps_image_check_use(part, job->has_optimizer, PS_IMAGE_MIGRATE,
                                &text);

    if (rc != 0) {
        send_chunk_error(st, job, mv, rc, text);
        return;
    }
    if (part != NULL && ps_image_fetch(part->buffers) != 0) {
        send_chunk_error(st, job, mv, PS_E_IO,
                         "its states were on a device that has failed");
        return;
    }
    ps_image_write(part, lens, &msg.part_chunk);
    const uint64_t total = ps_image_bytes(lens);
    const uint64_t len = mv->offset < total
                             ? ps_min_u64(total - mv->offset, mv->max_bytes)
                             : 0;

    if (len > 0) {
        /* A copy: the link may send it again after an aborted migration, when
         * the next step has changed the states. */
        if (ps_server_memory_alloc(job, len, &copy) != 0) {
            send_chunk_error(st, job, mv, PS_E_NOMEM,
                             "its server has no memory for a copy of a piece");
            return;
        }
        ps_image_read_bytes(part->buffers, mv->offset, copy.buf);
    }
    send_chunk_msg(st, &msg, &copy);
}

void ps_server_migration_on_merged(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   const struct ps_part *part)
{
    struct ps_server_migration *mv = find_migration(job, part->key,
                                                    part->index);

    if (mv != NULL && mv->role == MIG_OUT && mv->read_pending) {
        send_chunk(st, job, mv);
    }
}

void ps_server_on_part_read(struct ps_server_step *st,
                            const struct ps_msg_part_read *m)
{
    struct ps_server_job *job = ps_map_get(st->s->jobs.by_gen, m->gen);
    struct ps_server_migration *mv;

    if (job == NULL) {
        return; /* The job has ended, and its migrations with it. */
    }
    mv = ps_server_migration_obtain(job, m->migration, m->key, m->index,
                                    MIG_OUT);
    if (mv == NULL) {
        return;
    }
    mv->read_pending = true;
    mv->offset = m->offset;
    mv->max_bytes = (uint32_t)ps_min_u64(m->max_bytes, PS_MIGRATION_CHUNK_MAX);
    send_chunk(st, job, mv);
}
