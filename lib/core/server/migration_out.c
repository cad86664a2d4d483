/* SPDX-License-Identifier: Apache-2.0 */
/* Migration of a partition at its old owner: the scheduler reads value and
 * states in chunks, from a partition that no merge writes meanwhile. */
#include "core/server/migration_out.h"

#include "base/num.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/migration.h"

#include <string.h>

static void send_chunk_msg(struct ps_server_step *st, const struct ps_msg *msg,
                           struct ps_buf *copy)
{
    const struct ps_slice slice = {.buf = copy,
                                   .len = copy != NULL ? copy->size : 0};

    ps_link_send(st->s->uplink.dialer.link,
                 ps_packet_new(msg, &slice, copy != NULL ? 1 : 0), st->now,
                 st->fx);
    ps_buf_unref(copy);
}

/* Lists the partition's buffers; `part` NULL: none. */
static void list_buffers(const struct ps_part *part,
                         struct ps_slice list[MIG_BUF_COUNT])
{
    memset(list, 0, MIG_BUF_COUNT * sizeof(*list));
    if (part == NULL) {
        return;
    }
    list[MIG_BUF_VALUE] = part->value;
    list[MIG_BUF_ENCODED] = part->encoded_value;
    list[MIG_BUF_ACCUMULATED] = part->accumulated;
    for (unsigned i = 0; i < PS_PART_STATES; i++) {
        if (part->states[i] != NULL) {
            list[MIG_BUF_STATES + i] = (struct ps_slice){
                .buf = part->states[i], .len = part->states[i]->size};
        }
    }
}

/* Makes the listed buffers current. */
static int fetch_buffers(const struct ps_slice list[MIG_BUF_COUNT])
{
    int rc = 0;

    for (unsigned i = 0; i < MIG_BUF_COUNT && rc == 0; i++) {
        rc = list[i].buf != NULL ? ps_buf_fetch(list[i].buf) : 0;
    }
    return rc;
}

/* Fills `to` with bytes of the concatenated buffers from offset `at`. */
static void copy_from_buffers(const struct ps_slice list[MIG_BUF_COUNT],
                              uint64_t at, struct ps_buf *to)
{
    uint64_t first = 0;
    size_t filled = 0;

    for (unsigned i = 0; i < MIG_BUF_COUNT && filled < to->size; i++) {
        const uint64_t end = first + list[i].len;

        if (at < end) {
            size_t n = (size_t)ps_min_u64(end - at, to->size - filled);

            memcpy(to->data + filled, ps_slice_data(&list[i]) + (at - first),
                   n);
            filled += n;
            at += n;
        }
        first = end;
    }
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
                   NULL);
}

static void send_chunk(struct ps_server_step *st, struct ps_server_job *job,
                       struct ps_server_migration *mv)
{
    const struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);
    struct ps_slice list[MIG_BUF_COUNT];
    uint64_t lens[MIG_BUF_COUNT];
    uint64_t total = 0;
    struct ps_buf *copy = NULL;

    if (part != NULL && part->merge != NULL) {
        return; /* ps_server_migration_on_merged() sends it. */
    }
    mv->read_pending = false;
    if (part != NULL && (part->row_width != 0 || part->async_slots != NULL)) {
        send_chunk_error(
            st, job, mv, PS_E_UNSUPPORTED,
            "keys of rows, and keys without rounds, stay where they "
            "are");
        return;
    }
    list_buffers(part, list);
    if (fetch_buffers(list) != 0) {
        send_chunk_error(st, job, mv, PS_E_IO,
                         "its states were on a device that has failed");
        return;
    }
    for (unsigned i = 0; i < MIG_BUF_COUNT; i++) {
        lens[i] = list[i].len;
        total += list[i].len;
    }
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
        copy_from_buffers(list, mv->offset, copy);
    }
    struct ps_msg msg = {.code = PS_MSG_PART_CHUNK,
                         .part_chunk = {.migration = mv->id,
                                        .gen = job->gen,
                                        .key = mv->key,
                                        .index = mv->index,
                                        .text = "",
                                        .offset = mv->offset,
                                        .buffer_bytes = lens,
                                        .buffer_bytes_count = MIG_BUF_COUNT,
                                        .newest_version = job->newest_version}};

    if (part != NULL) {
        msg.part_chunk.version = part->version;
        msg.part_chunk.has_dtype = part->has_dtype;
        msg.part_chunk.dtype = part->dtype;
        msg.part_chunk.count = part->count;
        msg.part_chunk.name_hash = part->name_hash;
        msg.part_chunk.first_elem = part->first_elem;
        msg.part_chunk.retry = part->retry;
        msg.part_chunk.all_skipped = part->all_skipped;
        msg.part_chunk.step_offset = part->step_offset;
        msg.part_chunk.codec = part->codec;
        msg.part_chunk.accumulated_rounds = part->accumulated_rounds;
        msg.part_chunk.accumulated_weight = part->accumulated_weight;
        msg.part_chunk.accumulated_reduce = part->accumulated_reduce;
    }
    send_chunk_msg(st, &msg, copy);
}

void ps_server_migration_on_merged(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   const struct ps_part *part)
{
    struct ps_server_migration *mv = ps_server_migration_find(job, part->key,
                                                              part->index);

    if (mv != NULL && mv->role == MIG_OUT && mv->read_pending) {
        send_chunk(st, job, mv);
    }
}

void ps_server_on_part_read(struct ps_server_step *st,
                            const struct ps_msg_part_read *m)
{
    struct ps_server_job *job = ps_server_job_find(st->s, m->gen);
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
