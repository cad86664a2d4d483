/* SPDX-License-Identifier: Apache-2.0 */
/* Which partitions would have to lie elsewhere so that the servers of a job
 * have about the same to hold. Pure arithmetic, as core/sched/place.h: the same
 * question has the same answer everywhere. */
#pragma once

#include "base/err.h"

#include <stdint.h>

/* A server is even when its bytes are within a part of this of the mean. */
#define PS_BALANCE_TOLERANCE_DIV 20u

struct ps_balance_part {
    uint32_t source; /* Position of its server. */
    uint32_t target; /* Out: where it would go; `from` when it stays. */
    uint64_t bytes;
};

/* Say of each piece where it goes. `bytes` of every server becomes what it
 * would hold; pieces of `count` are all that there are. As little as possible
 * moves: no piece twice, always from the fullest server to the emptiest, and
 * the largest piece that makes neither of the two cross the mean; a piece
 * beyond that only where it still makes the two more alike. A server that is
 * too full and has no piece to give stays out of it, and out of the mean of
 * the others. PS_E_NOMEM: there is none to plan with, and all is as it was. */
PS_MUST_USE int ps_balance_plan(struct ps_balance_part *pieces, uint32_t count,
                                uint64_t *bytes, uint32_t server_count,
                                uint32_t *ret_moved);
