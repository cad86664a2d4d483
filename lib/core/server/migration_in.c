/* SPDX-License-Identifier: Apache-2.0 */
/* Migration of a partition at its new owner: chunks are kept beside the store,
 * and become the partition at the end. */
#include "core/server/migration_in.h"

#include "base/num.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/migration.h"

/* Allocates all buffers, and keeps the first chunk's message. */
static int alloc_buffers(struct ps_server_job *job,
                         struct ps_server_migration *mv,
                         const struct ps_msg_part_chunk *m)
{
    const struct ps_msg about = {.code = PS_MSG_PART_CHUNK, .part_chunk = *m};

    if (!ps_image_is_valid(m, job->slot_count)) {
        return PS_E_PROTO;
    }
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        const uint64_t len = m->buffer_bytes[i];
        int rc = len == 0
                     ? 0
                     : ps_server_memory_alloc(job, len, &mv->buffers[i].buf);

        if (rc != 0) {
            ps_server_migration_drop_buffers(mv);
            return rc;
        }
        mv->buffers[i].len = len;
    }
    mv->first_chunk = ps_msg_dup(&about);
    mv->total_bytes = ps_image_bytes(m->buffer_bytes);
    return 0;
}

void ps_server_migration_send_ack(struct ps_server_step *st,
                                  const struct ps_msg_part_ack *m)
{
    ps_server_uplink_send_msg(
        st, &(struct ps_msg){.code = PS_MSG_PART_ACK, .part_ack = *m});
}

void ps_server_on_part_chunk(struct ps_server_step *st,
                             const struct ps_msg_part_chunk *m,
                             const struct ps_slice *payload)
{
    struct ps_server_job *job = ps_server_job_find(st->s, m->gen);
    const size_t len = payload != NULL && payload->buf != NULL ? payload->len
                                                               : 0;
    struct ps_server_migration *mv;
    int rc = 0;

    if (job == NULL) {
        return;
    }
    mv = ps_server_migration_obtain(job, m->migration, m->key, m->index,
                                    MIG_IN);
    if (mv == NULL) {
        return;
    }
    if (mv->first_chunk == NULL) {
        rc = alloc_buffers(job, mv, m);
    }
    /* A repeated chunk, whose ack was lost, is acknowledged again. */
    if (rc == 0 && m->offset == mv->received_bytes) {
        rc = len > mv->total_bytes - mv->received_bytes ? PS_E_PROTO : 0;
        if (rc == 0 && len > 0) {
            ps_image_write_bytes(mv->buffers, mv->received_bytes,
                                 ps_slice_data(payload), len);
            mv->received_bytes += len;
        }
    }
    ps_server_migration_send_ack(
        st, &(struct ps_msg_part_ack){
                .migration = m->migration,
                .gen = m->gen,
                .key = m->key,
                .index = m->index,
                .received_bytes = mv->received_bytes,
                .error = rc,
                .text = rc == PS_E_NOMEM ? "the new server has no memory for it"
                                         : ""});
}

void ps_server_migration_install(struct ps_server_job *job,
                                 struct ps_server_migration *mv)
{
    const struct ps_msg_part_chunk *m = &mv->first_chunk->part_chunk;
    struct ps_part *part = ps_store_find_or_add(&job->store, mv->key,
                                                mv->index);

    ps_store_install(&job->store, part, m, mv->buffers);
    job->newest_version = ps_max_u64(job->newest_version, m->newest_version);
    ps_store_remove_if_empty(&job->store, part);
}
