/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of rows: how rows lie in the memory that is shared with the agent. */
#pragma once

#include "base/dtype.h"
#include "base/num.h"
#include "client/state.h"

/* Bytes of the numbers of so many rows; the rows lie behind them. */
static inline uint64_t rows_numbers_bytes(uint32_t count)
{
    return ps_round_up(count * (uint64_t)sizeof(uint32_t), 8);
}

/* Bytes of one row. */
static inline size_t rows_bytes(const struct key *k)
{
    return k->row_width * ps_dtype_size(k->dtype);
}

/* The block of a push or pull of these rows, in any order, some of them more
 * than once: a push adds rows that are given twice, first come first. `data`
 * NULL: a pull, whose block will be filled. A negative PSC_E_*, complained. */
PS_MUST_USE int rows_block(struct psc_op *op, const int64_t *rows, size_t count,
                           const void *data);
