/* SPDX-License-Identifier: Apache-2.0 */
#include "core/need.h"

#include "base/num.h"
#include "base/pool.h"

/* Partitions whose rounds may be under way at once, at the least. */
#define ROUNDS   2u
/* Most memory for second versions of values. Rounds beyond it wait, which costs
 * less than memory for two versions of all values. */
#define VERSIONS (64ull * 1024 * 1024)
/* Table entry of a partition on a server. */
#define TABLE    512u

void ps_need_kind_set(struct ps_need_kind *kind, const struct ps_optim *optim,
                      const struct ps_compress *compress)
{
    *kind = (struct ps_need_kind){.codes = compress->both && optim == NULL};
    if (optim != NULL) {
        kind->optimizes = true;
        kind->states = ps_optim_states(optim);
        kind->gathers = ps_optim_accumulates(optim) > 1;
        kind->works = ps_optim_needs_norms(optim);
    }
}

/* A small value also comes in a frame with others. The size class of the frame
 * adds less than a quarter to them, which can be more than the classes of the
 * values add. */
static uint64_t value_of(uint8_t dtype, uint64_t count)
{
    const uint64_t len = count * ps_dtype_size(dtype);
    const uint64_t cost = ps_pool_cost(len);

    return len > PS_FUSE_PART_MAX ? cost
                                  : ps_max_u64(cost, len + (len + 3) / 4);
}

static uint64_t stored_of(const struct ps_need_kind *kind, uint8_t dtype,
                          uint64_t count)
{
    const uint64_t value = value_of(dtype, count);
    uint64_t all = value + TABLE;

    if (kind->optimizes && ps_dtype_is_real(dtype)) {
        const bool half = !ps_dtype_is_float(dtype);
        const uint64_t wide = ps_pool_cost(
            count * (half ? sizeof(float) : ps_dtype_size(dtype)));

        all += wide *
               (kind->states + (half ? 1u : 0u) + (kind->works ? 1u : 0u));
        all += kind->gathers ? value : 0;
    }
    if (kind->codes && dtype == PS_DTYPE_FLOAT32) {
        all += 3 * value; /* The residual, and the codes of two versions, each
                           * at most as long as the residual. */
    }
    return all;
}

void ps_need_add(struct ps_need *n, const struct ps_need_kind *kind,
                 uint8_t dtype, uint64_t count)
{
    const uint64_t value = value_of(dtype, count);

    n->stored += stored_of(kind, dtype, count);
    n->values += value;
    n->largest = ps_max_u64(n->largest, value);
}

void ps_need_take(struct ps_need *n, const struct ps_need_kind *kind,
                  uint8_t dtype, uint64_t count)
{
    n->stored -= stored_of(kind, dtype, count);
    n->values -= value_of(dtype, count);
}

uint64_t ps_need_rounds(const struct ps_need *n, uint32_t slots)
{
    const uint64_t frame = ps_pool_cost(PS_FUSE_FRAME_MAX + PS_FUSE_PART_MAX);

    return slots *
           ps_min_u64(n->values, ROUNDS * ps_max_u64(n->largest, frame));
}

uint64_t ps_need_bytes(const struct ps_need *n, uint32_t slots)
{
    return n->stored + ps_min_u64(n->values, VERSIONS) +
           ps_need_rounds(n, slots);
}
