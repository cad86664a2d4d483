/* SPDX-License-Identifier: Apache-2.0 */
/* Memory demand of a job's partitions on a server, computed from declarations
 * alone, before any value arrives. The scheduler admits keys by it, and servers
 * reserve it for the job.
 *
 *     stored    values, optimizer state, residuals of codecs, tables
 *     versions  new values made while earlier ones are still being sent to
 *               agents: one of each value, up to 64 MiB
 *     rounds    a contribution of every slot to each of the two largest
 *               partitions, or a frame of small ones: enough to merge a round
 *               of the job at any time */
#pragma once

#include "core/codec/compression.h"
#include "core/optim/optim.h"

#include <stdint.h>

/* Properties of a job that need memory beside its values. */
struct ps_demand_profile {
    bool has_optimizer;
    bool encodes_values; /* Values are sent encoded. */
    /* Buffers of each partition in the precision of a step: optimizer state,
     * and the gradient that a step keeps while it waits for norms. */
    uint32_t step_buffers;
    /* Buffers of each partition in its own type: the sum of gradients of
     * several rounds. */
    uint32_t sum_buffers;
};

/* `optim` NULL: no optimizer. */
void ps_demand_profile_set(struct ps_demand_profile *kind,
                           const struct ps_optim *optim,
                           const struct ps_compression *compress);

/* Demand of one job on one server. */
struct ps_demand {
    uint64_t stored_bytes;
    uint64_t value_bytes; /* Bytes of values in stored_bytes. */
    /* Largest partition so far; does not shrink. */
    uint64_t largest_part_bytes;
};

/* Add and remove a partition of `count` elements. */
void ps_demand_add(struct ps_demand *n, const struct ps_demand_profile *kind,
                   uint8_t dtype, uint64_t count);
void ps_demand_remove(struct ps_demand *n, const struct ps_demand_profile *kind,
                      uint8_t dtype, uint64_t count);

/* Bytes for the round that is merged next, in a job of `slots` slots. */
uint64_t ps_demand_round_bytes(const struct ps_demand *n, uint32_t slots);
/* Whole demand: stored, versions and rounds. */
uint64_t ps_demand_bytes(const struct ps_demand *n, uint32_t slots);
