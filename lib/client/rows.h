/* SPDX-License-Identifier: Apache-2.0 */
/* Rows keys: layout of rows in the memory shared with the agent. */
#pragma once

#include "base/dtype.h"
#include "base/num.h"
#include "client/state.h"

/* Bytes of `count` row numbers, padded to 8; the rows follow. */
static inline uint64_t rows_numbers_bytes(uint32_t count)
{
    return ps_round_up(count * (uint64_t)sizeof(uint32_t), 8);
}

/* Bytes of one row. */
static inline size_t rows_bytes(const struct key *k)
{
    return k->row_width * ps_dtype_size(k->dtype);
}

/* Allocates and fills the block of a push or pull of these rows, in any order.
 * A push adds duplicate rows in the order given. `data` NULL: a pull, whose
 * block the agent fills. On failure a negative PSC_E_*, with detail. */
PS_MUST_USE int rows_block(struct psc_op *op, const int64_t *rows, size_t count,
                           const void *data);
