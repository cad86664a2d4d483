/* SPDX-License-Identifier: Apache-2.0 */
/* Batch: small partitions that leave in one frame. It has their records, and
 * refers to their bytes without a copy, in the order of the records. Bytes that
 * lie behind each other are one slice. Its user sends the batch when the next
 * partition has no room, has another receiver or another head of its message,
 * and at the latest at the next tick. */
#pragma once

#include "base/buf.h"
#include "base/dtype.h"
#include "base/limits.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

/* All zero: an empty batch. */
struct ps_batch {
    struct ps_rec_part *parts; /* Of `capacity`. */
    struct ps_slice *slices;   /* Of `capacity`. */
    uint32_t capacity;         /* At most PS_PARTS_MAX. */
    uint32_t part_count;
    uint32_t slice_count;
    uint64_t payload_bytes;
};

static inline bool ps_batch_is_empty(const struct ps_batch *g)
{
    return g->part_count == 0;
}
/* True if a partition of `bytes` finds room in the frame. */
static inline bool ps_batch_has_room(const struct ps_batch *g, uint64_t bytes)
{
    return g->part_count < PS_PARTS_MAX &&
           g->payload_bytes + bytes <= PS_BATCH_FRAME_MAX;
}
/* Adds a partition, for which there is room, with a reference to its bytes;
 * `slice` NULL: it has none. Returns its place in `parts`. */
uint32_t ps_batch_add(struct ps_batch *g, const struct ps_rec_part *part,
                      const struct ps_slice *slice);
/* Empties the batch, which keeps its memory for the next partitions. */
void ps_batch_clear(struct ps_batch *g);
/* Empties the batch and frees its memory. */
void ps_batch_fini(struct ps_batch *g);

/* Payload bytes of one part of a message, encoded or not. */
static inline uint64_t ps_part_payload_bytes(const struct ps_rec_part *rec)
{
    return rec->codec != PS_CODEC_NONE
               ? rec->encoded_bytes
               : rec->count * (uint64_t)ps_dtype_size(rec->dtype);
}
