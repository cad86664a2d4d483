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

#include "core/compress.h"
#include "core/optim.h"

#include <stdint.h>

/* Memory that a job keeps beside its values. */
struct ps_need_kind {
    uint32_t states; /* Of the optimizer. */
    bool optimizes;
    bool gathers; /* Gradients of several rounds are added up. */
    bool works;   /* A step waits for norms, with the gradient put aside. */
    bool codes;   /* Values travel as codes. */
};

/* `optim` NULL: none. */
void ps_need_kind_set(struct ps_need_kind *kind, const struct ps_optim *optim,
                      const struct ps_compress *compress);

/* Of one job on one server. */
struct ps_need {
    uint64_t stored;
    uint64_t values;  /* The values of `stored`, once. */
    uint64_t largest; /* The largest partition that there ever was. */
};

/* A partition of `count` elements comes, and goes. */
void ps_need_add(struct ps_need *n, const struct ps_need_kind *kind,
                 uint8_t dtype, uint64_t count);
void ps_need_take(struct ps_need *n, const struct ps_need_kind *kind,
                  uint8_t dtype, uint64_t count);

/* For the round that is merged next, in a job of `slots` slots. */
uint64_t ps_need_rounds(const struct ps_need *n, uint32_t slots);
/* All of it. */
uint64_t ps_need_bytes(const struct ps_need *n, uint32_t slots);
