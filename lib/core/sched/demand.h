/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the partitions of a job need on a server, computed from their
 * declarations alone, before any value has arrived. The scheduler admits keys
 * by it, and servers reserve it for the job.
 *
 *     stored    values, the optimizer's state, residuals of codecs, tables
 *     versions  values that are made while those before them are still on their
 *               way to agents: one of each value, up to 64 MiB
 *     rounds    a contribution of every slot to each of two partitions, the
 *               largest, or a frame of small ones: with these a round of the
 *               job can always be merged */
#pragma once

#include "core/codec/compression.h"
#include "core/optim/optim.h"

#include <stdint.h>

/* Memory that a job keeps beside its values. */
struct ps_demand_profile {
    uint32_t state_buffers; /* Of the optimizer. */
    bool has_optimizer;
    bool accumulates; /* Gradients of several rounds are added up. */
    bool needs_norms; /* A step waits for norms, with the gradient put aside. */
    bool encodes_values; /* Values travel as codes. */
};

/* `optim` NULL: none. */
void ps_demand_profile_set(struct ps_demand_profile *kind,
                           const struct ps_optim *optim,
                           const struct ps_compression *compress);

/* Of one job on one server. */
struct ps_demand {
    uint64_t stored_bytes;
    uint64_t value_bytes; /* The values of `stored`, once. */
    uint64_t
        largest_part_bytes; /* The largest partition that there ever was. */
};

/* A partition of `count` elements comes, and goes. */
void ps_demand_add(struct ps_demand *n, const struct ps_demand_profile *kind,
                   uint8_t dtype, uint64_t count);
void ps_demand_remove(struct ps_demand *n, const struct ps_demand_profile *kind,
                      uint8_t dtype, uint64_t count);

/* For the round that is merged next, in a job of `slots` slots. */
uint64_t ps_demand_round_bytes(const struct ps_demand *n, uint32_t slots);
/* All of it. */
uint64_t ps_demand_bytes(const struct ps_demand *n, uint32_t slots);
