/* SPDX-License-Identifier: Apache-2.0 */
/* Balance plan: which partitions change servers so that all servers of a job
 * hold about the same number of bytes. Pure arithmetic, as place.h: the same
 * input has the same result everywhere. */
#pragma once

#include "base/err.h"

#include <stdint.h>

/* A server is balanced within mean / PS_BALANCE_TOLERANCE_DIV of the mean. */
#define PS_BALANCE_TOLERANCE_DIV 20u

struct ps_balance_part {
    uint32_t source; /* Index of its server. */
    /* Output: index of its new server; `source` if it stays. */
    uint32_t target;
    uint64_t bytes;
};

/* Sets the target of each part; `pieces` has all parts of the job, and `bytes`
 * of each server becomes the result. Few parts move: none twice, always from
 * the fullest server to the emptiest, and the largest part with which neither
 * of the two crosses the mean, or else the smallest that still makes the two
 * more alike. A server that is too full and has no such part is left out, also
 * of the mean of the others. PS_E_NOMEM: no plan; all is unchanged. */
PS_MUST_USE int ps_balance_plan(struct ps_balance_part *pieces, uint32_t count,
                                uint64_t *bytes, uint32_t server_count,
                                uint32_t *ret_moved);
