/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers of one job. The n-th barrier of a rank is the job's n-th, and a rank
 * at the n-th has entered all before it. So one number per rank gives the set
 * of ranks at a barrier, even if messages arrive twice or out of order. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_barrier {
    /* Highest barrier, by rank; PS_BARRIER_LEFT: rank has left. */
    uint64_t *entered;
    uint32_t rank_count;
    uint32_t behind_count;    /* Ranks with `entered` not beyond last_open. */
    uint64_t last_open;       /* This barrier and all before it are open. */
    uint64_t highest_entered; /* Highest barrier that any rank entered. */
    /* When the oldest barrier not open was first entered. */
    ps_time waiting_since;
};

#define PS_BARRIER_LEFT UINT64_MAX

void ps_barrier_init(struct ps_barrier *b, uint32_t ranks);
void ps_barrier_fini(struct ps_barrier *b);
/* True: further barriers are open now. */
bool ps_barrier_enter(struct ps_barrier *b, uint32_t rank, uint64_t number,
                      ps_time now);
/* The rank has left; no barrier waits for it. Returns as ps_barrier_enter. */
bool ps_barrier_leave(struct ps_barrier *b, uint32_t rank, ps_time now);
/* True: ranks wait at a barrier that is not open. */
bool ps_barrier_is_waiting(const struct ps_barrier *b);
/* True: the barrier waits for this rank. */
bool ps_barrier_is_missing(const struct ps_barrier *b, uint32_t rank,
                           uint64_t number);
