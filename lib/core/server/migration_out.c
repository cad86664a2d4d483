/* SPDX-License-Identifier: Apache-2.0 */
/* Migration of a partition at its old owner: the scheduler reads value and
 * states in chunks, from a partition that no merge writes meanwhile. */
#include "core/server/migration_out.h"

#include "base/num.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/migration.h"

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
    uint64_t lens[PS_PART_BUFFERS];
    struct ps_msg msg = {.code = PS_MSG_PART_CHUNK,
                         .part_chunk = {.migration = mv->id,
                                        .gen = job->gen,
                                        .key = mv->key,
                                        .index = mv->index,
                                        .text = "",
                                        .offset = mv->offset,
                                        .newest_version = job->newest_version}};
    struct ps_buf *copy = NULL;
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
        ps_image_read_bytes(part->buffers, mv->offset, copy);
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
