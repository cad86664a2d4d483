/* SPDX-License-Identifier: Apache-2.0 */
/* Migration of a partition at its new owner: chunks are kept beside the store,
 * and become the partition at the end. */
#include "core/server/migration_in.h"

#include "base/num.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/migration.h"

#include <string.h>

/* True if the buffers of a partition can have these lengths. */
static bool is_valid_chunk(const struct ps_msg_part_chunk *m)
{
    const uint64_t size = m->count * (uint64_t)ps_dtype_size(m->dtype);
    const uint64_t wide = ps_dtype_is_float(m->dtype)
                              ? size
                              : m->count * sizeof(float);

    if (m->buffer_bytes_count != MIG_BUF_COUNT || m->version > PS_ROUND_MAX ||
        m->step_offset > (int64_t)PS_ROUND_MAX ||
        m->step_offset < -(int64_t)m->version || size > PS_PAYLOAD_MAX ||
        (m->buffer_bytes[MIG_BUF_VALUE] != 0 &&
         m->buffer_bytes[MIG_BUF_VALUE] != size) ||
        (m->buffer_bytes[MIG_BUF_ACCUMULATED] != 0 &&
         m->buffer_bytes[MIG_BUF_ACCUMULATED] != size) ||
        (m->buffer_bytes[MIG_BUF_ENCODED] != 0 &&
         (m->codec == PS_CODEC_NONE || m->codec >= PS_CODEC_KINDS ||
          m->dtype != PS_DTYPE_FLOAT32 || m->count == 0 ||
          m->buffer_bytes[MIG_BUF_ENCODED] > 4 * (uint64_t)m->count + 8))) {
        return false;
    }
    for (unsigned i = MIG_BUF_STATES; i < MIG_BUF_COUNT; i++) {
        if (m->buffer_bytes[i] != 0 &&
            (m->buffer_bytes[i] != wide || !ps_dtype_is_real(m->dtype))) {
            return false;
        }
    }
    return true;
}

/* Allocates all buffers, and keeps the first chunk's message. */
static int alloc_buffers(struct ps_server_job *job,
                         struct ps_server_migration *mv,
                         const struct ps_msg_part_chunk *m)
{
    const struct ps_msg about = {.code = PS_MSG_PART_CHUNK, .part_chunk = *m};
    uint64_t total = 0;

    if (!is_valid_chunk(m)) {
        return PS_E_PROTO;
    }
    for (unsigned i = 0; i < MIG_BUF_COUNT; i++) {
        total += m->buffer_bytes[i];
    }
    for (unsigned i = 0; i < MIG_BUF_COUNT; i++) {
        int rc = m->buffer_bytes[i] == 0
                     ? 0
                     : ps_server_memory_alloc(job, m->buffer_bytes[i],
                                              &mv->buffers[i]);

        if (rc != 0) {
            ps_server_migration_drop_buffers(mv);
            return rc;
        }
    }
    mv->first_chunk = ps_msg_dup(&about);
    mv->total_bytes = total;
    return 0;
}

static void copy_to_buffers(struct ps_server_migration *mv, const uint8_t *from,
                            size_t len)
{
    uint64_t first = 0;

    for (unsigned i = 0; i < MIG_BUF_COUNT && len > 0; i++) {
        const uint64_t end = first +
                             mv->first_chunk->part_chunk.buffer_bytes[i];

        if (mv->received_bytes < end) {
            size_t n = (size_t)ps_min_u64(end - mv->received_bytes, len);

            memcpy(mv->buffers[i]->data + (mv->received_bytes - first), from,
                   n);
            from += n;
            len -= n;
            mv->received_bytes += n;
        }
        first = end;
    }
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
            copy_to_buffers(mv, ps_slice_data(payload), len);
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

static struct ps_slice detach_buffer(struct ps_server_migration *mv, unsigned i)
{
    struct ps_slice s = {.buf = mv->buffers[i],
                         .len = mv->buffers[i] != NULL ? mv->buffers[i]->size
                                                       : 0};

    mv->buffers[i] = NULL;
    return s;
}

void ps_server_migration_install(struct ps_server_job *job,
                                 struct ps_server_migration *mv)
{
    const struct ps_msg_part_chunk *m = &mv->first_chunk->part_chunk;
    struct ps_slice slice;
    struct ps_part *part = ps_store_find_or_add(&job->store, mv->key,
                                                mv->index);

    part->has_dtype = m->has_dtype;
    part->dtype = m->dtype;
    part->count = m->count;
    part->name_hash = m->name_hash;
    part->first_elem = m->first_elem;
    part->step_offset = m->step_offset;
    part->version = m->version;
    slice = detach_buffer(mv, MIG_BUF_VALUE);
    if (slice.buf != NULL) {
        ps_store_set_value(&job->store, part, m->version, &slice);
    }
    slice = detach_buffer(mv, MIG_BUF_ENCODED);
    if (slice.buf != NULL) {
        ps_store_set_encoded(&job->store, part, m->codec, &slice);
    }
    slice = detach_buffer(mv, MIG_BUF_ACCUMULATED);
    if (slice.buf != NULL) {
        ps_store_accumulate(&job->store, part, &slice, m->accumulated_weight,
                            m->accumulated_reduce);
        part->accumulated_rounds = m->accumulated_rounds;
    }
    part->retry = m->retry;
    part->all_skipped = m->all_skipped;
    for (unsigned i = 0; i < PS_PART_STATES; i++) {
        slice = detach_buffer(mv, MIG_BUF_STATES + i);
        ps_store_set_state(&job->store, part, i, slice.buf);
    }
    job->newest_version = ps_max_u64(job->newest_version, m->newest_version);
    ps_store_remove_if_empty(&job->store, part);
}
