/* SPDX-License-Identifier: Apache-2.0 */
/* Contribution set of one round: which of a fixed number of contributors have
 * contributed, their payloads, and the order of the sum. A server has one for
 * each open round of a partition, over the slots of a job.
 *
 * A contributor counts once, by its index, however often it offers. An empty
 * contribution counts without adding numbers.
 *
 * The order of the sum is the tree of kernel/kernel.h over all contributors,
 * where the sum of a value and nothing is that value, moved up unchanged: of 5
 * contributors with contributor 1 empty, the sum is (0+(2+3))+4. So the bits
 * depend on each contributor's data, never on the order of arrival. */
#pragma once

#include "base/bits.h"
#include "base/buf.h"
#include "base/dtype.h"
#include "base/limits.h"
#include "core/base/machine.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_round {
    uint32_t size;     /* Number of contributors. */
    uint32_t nonempty; /* Contributions with data. */
    uint64_t weight;   /* Total weight of contributions with data. */
    uint64_t bytes;    /* Total bytes of `contributions`. */
    /* Contributors that have contributed, empty or not. */
    struct ps_bits contributed;
    /* One for each contributor; buf NULL: empty or missing. */
    struct ps_slice *contributions;
};

void ps_round_init(struct ps_round *r, uint32_t size);
/* Drops the references on all contributions. */
void ps_round_fini(struct ps_round *r);

/* Records the contribution of contributor `place` and references the slice's
 * buffer; `slice` NULL: it is empty, and `weight` does not count. False, with
 * no effect, if it has contributed before. */
bool ps_round_contribute(struct ps_round *r, uint32_t place,
                         const struct ps_slice *slice, uint64_t weight);
bool ps_round_has_contributed(const struct ps_round *r, uint32_t place);
bool ps_round_is_complete(const struct ps_round *r);
/* Contribution of the first contributor with data; NULL: all are empty. */
const struct ps_slice *ps_round_first_nonempty(const struct ps_round *r);

/* Drops the references on all contributions; `contributed` stays. */
void ps_round_release_payloads(struct ps_round *r);

/* Kernel operation that joins two contributions. A mean is a sum here, divided
 * later. */
enum ps_fold ps_round_fold(uint8_t reduce);

/* Appends the contributions with data to `c` as sources, with the levels that
 * give the order above. `c` has capacity for `nonempty` sources. */
void ps_round_add_sources(const struct ps_round *r, struct ps_compute *c);

/* Batch: small partitions that leave in one frame. It has their records, and
 * refers to their bytes without a copy, in the order of the records. Bytes that
 * lie behind each other are one slice. Its user sends the batch when the next
 * partition has no room, has another receiver or another head of its message,
 * and at the latest at the next tick. */

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
