/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers of one job. The n-th barrier of a rank is the job's n-th, and a
 * rank that is at the n-th has been at all before it; so the set of ranks at
 * a barrier is what one number for each rank tells, whatever arrives twice or
 * out of order. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_barrier {
    uint64_t
        *entered; /* By rank; PS_BARRIER_LEFT: it waits at none any more. */
    uint32_t rank_count;      /* Ranks. */
    uint32_t behind_count;    /* Ranks that have not gone beyond `open`. */
    uint64_t last_open;       /* This one and all before it. */
    uint64_t highest_entered; /* Highest that any rank is at. */
    ps_time waiting_since; /* When the oldest one not open was first entered. */
};

#define PS_BARRIER_LEFT UINT64_MAX

void ps_barrier_init(struct ps_barrier *b, uint32_t ranks);
void ps_barrier_fini(struct ps_barrier *b);
/* True when more barriers are open now. */
bool ps_barrier_enter(struct ps_barrier *b, uint32_t rank, uint64_t number,
                      ps_time now);
/* The rank needs not be waited for any more. */
bool ps_barrier_leave(struct ps_barrier *b, uint32_t rank, ps_time now);
/* Does somebody wait? */
bool ps_barrier_is_waiting(const struct ps_barrier *b);
/* Is the rank missing at this barrier? */
bool ps_barrier_is_missing(const struct ps_barrier *b, uint32_t rank,
                           uint64_t number);
