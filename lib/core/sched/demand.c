/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/demand.h"

#include "base/num.h"
#include "base/pool.h"

/* Partitions whose rounds may be open at once, at least. */
#define OPEN_ROUNDS_MIN      2u
/* Limit of memory for second versions of values. Rounds beyond it wait, which
 * costs less than memory for two versions of all values. */
#define PENDING_VERSIONS_MAX (64ull * 1024 * 1024)
/* Bytes of a partition's table entry on a server. */
#define PART_OVERHEAD_BYTES  512u

void ps_demand_profile_set(struct ps_demand_profile *kind,
                           const struct ps_optim *optim,
                           const struct ps_compression *compress)
{
    *kind = (struct ps_demand_profile){
        .encodes_values = compress->bidirectional && optim == NULL};
    if (optim != NULL) {
        kind->has_optimizer = true;
        kind->step_buffers = ps_optim_state_count(optim) +
                             (ps_optim_needs_norms(optim) ? 1u : 0u);
        kind->sum_buffers = ps_optim_rounds_per_step(optim) > 1 ? 1 : 0;
    }
}

/* Pool bytes of a value. A small value also travels in a batch, whose size
 * class adds less than a quarter; this can exceed the cost in a class of its
 * own. */
static uint64_t part_value_bytes(uint8_t dtype, uint64_t count)
{
    const uint64_t len = count * ps_dtype_size(dtype);
    const uint64_t cost = ps_pool_cost(len);

    return len > PS_BATCH_PART_MAX ? cost
                                   : ps_max_u64(cost, len + (len + 3) / 4);
}

static uint64_t part_stored_bytes(const struct ps_demand_profile *kind,
                                  uint8_t dtype, uint64_t count)
{
    const uint64_t value = part_value_bytes(dtype, count);
    uint64_t all = value + PART_OVERHEAD_BYTES;

    if (kind->has_optimizer && ps_dtype_is_real(dtype)) {
        const bool half = !ps_dtype_is_float(dtype);
        const uint64_t wide = ps_pool_cost(
            count * (half ? sizeof(float) : ps_dtype_size(dtype)));

        all += wide * (kind->step_buffers + (half ? 1u : 0u));
        all += value * kind->sum_buffers;
    }
    if (kind->encodes_values && dtype == PS_DTYPE_FLOAT32) {
        all += 3 * value; /* Residual, encoded values of two versions. */
    }
    return all;
}

void ps_demand_add(struct ps_demand *n, const struct ps_demand_profile *kind,
                   uint8_t dtype, uint64_t count)
{
    const uint64_t value = part_value_bytes(dtype, count);

    n->stored_bytes += part_stored_bytes(kind, dtype, count);
    n->value_bytes += value;
    n->largest_part_bytes = ps_max_u64(n->largest_part_bytes, value);
}

void ps_demand_remove(struct ps_demand *n, const struct ps_demand_profile *kind,
                      uint8_t dtype, uint64_t count)
{
    n->stored_bytes -= part_stored_bytes(kind, dtype, count);
    n->value_bytes -= part_value_bytes(dtype, count);
}

uint64_t ps_demand_round_bytes(const struct ps_demand *n, uint32_t slots)
{
    const uint64_t frame = ps_pool_cost(PS_BATCH_FRAME_MAX + PS_BATCH_PART_MAX);

    return slots * ps_min_u64(n->value_bytes,
                              OPEN_ROUNDS_MIN *
                                  ps_max_u64(n->largest_part_bytes, frame));
}

uint64_t ps_demand_bytes(const struct ps_demand *n, uint32_t slots)
{
    return n->stored_bytes + ps_min_u64(n->value_bytes, PENDING_VERSIONS_MAX) +
           ps_demand_round_bytes(n, slots);
}
