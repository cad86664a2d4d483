/* SPDX-License-Identifier: Apache-2.0 */
/* Memory taken back from a job whose reserved round is starved (rule Q3).
 * Values are copied out of frames that they keep alive, then other open rounds
 * of the job are voided, and agents send their contributions again. */
#include "core/server/reclaim.h"

#include "core/server/merge.h"
#include "core/server/inner.h"
#include "core/server/memory.h"

#include <string.h>

/* A contribution to the reserved round that finds no memory for this long voids
 * other rounds of the job. */
#define RECLAIM_AFTER PS_MILLIS(100)

/* Copies the value to a buffer of its own. If the frame has no other user it is
 * freed first, which makes room for the copy. */
static void move_out(struct ps_server_job *job, struct ps_slice *v)
{
    struct ps_buf *copy = ps_buf_new(v->len);
    const bool last = v->buf->refs == 1;
    struct ps_buf *own;

    memcpy(copy->data, ps_slice_data(v), v->len);
    if (last) {
        ps_buf_unref(v->buf);
    }
    if (ps_server_memory_alloc(job, v->len, &own) == 0) {
        memcpy(own->data, copy->data, v->len);
        ps_buf_unref(copy);
    } else if (last) {
        own = copy; /* The frame is gone; the value stays outside the pool. */
    } else {
        ps_buf_unref(copy);
        return;
    }
    if (!last) {
        ps_buf_unref(v->buf);
    }
    *v = (struct ps_slice){.buf = own, .len = v->len};
}

/* Copies values out of frames, which they keep alive for a part of their
 * bytes. */
static void compact(struct ps_server_job *job)
{
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    while ((part = ps_map_next(job->store.parts, &c)) != NULL) {
        if (part->merge == NULL && ps_part_value(part)->buf != NULL &&
            ps_pool_cost(ps_part_value(part)->buf->size) >
                ps_pool_cost(ps_part_value(part)->len)) {
            move_out(job, &part->buffers[PS_PART_BUFFER_VALUE]);
        }
    }
}

void ps_server_reclaim(struct ps_server_step *st, struct ps_server_slot *slot,
                       const struct ps_msg *msg, uint64_t len)
{
    struct ps_server_job *job = slot->job;
    const uint64_t wanted = ps_pool_cost(len) * job->slot_count;
    const uint64_t before = ps_pool_share_used(job->pool_share);
    struct ps_map_cursor c = {0};
    struct ps_part *part;

    if (slot->starved_since == 0 ||
        st->now < ps_time_add(slot->starved_since, RECLAIM_AFTER) ||
        !ps_server_memory_serves_next_round(job, msg)) {
        return;
    }
    slot->starved_since = st->now;
    compact(job);
    while ((part = ps_map_next(job->store.parts, &c)) != NULL &&
           before - ps_pool_share_used(job->pool_share) < wanted) {
        if (part->open_round != NULL && part->merge == NULL &&
            part->open_round->rule == PS_RULE_NONE &&
            !ps_round_is_complete(&part->open_round->round) &&
            (part->key != job->reserved_round.key ||
             part->index != job->reserved_round.index)) {
            ps_server_conflict_void(st, job, part, PS_E_AGAIN);
        }
    }
}
