/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a rows key: blocks of row numbers and row data, and their sums. Row
 * numbers ascend without duplicates. On the wire a block has the numbers as
 * u32, then the rows, each padded to a multiple of 8 bytes. */
#pragma once

#include "core/base/machine.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows of `width` elements that fit into one frame, both as a block and as the
 * optimizer state of these rows. 0: not even one row fits, or `dtype` is not
 * valid. */
uint32_t ps_rows_per_frame(uint32_t width, uint8_t dtype);
/* Bytes of the numbers, and of the rows, of `count` rows in a block, padding
 * included. Neither overflows for a width of which one row fits into a
 * frame. */
uint64_t ps_rows_numbers_bytes(uint32_t count);
uint64_t ps_rows_data_bytes(uint32_t count, uint32_t width, uint8_t dtype);
/* True if the numbers ascend, without duplicates, and are below `limit`. */
bool ps_rows_are_valid(const uint32_t *row, uint32_t count, uint32_t limit);
/* First index whose number is at least `row_wanted`; `count`: none. */
uint32_t ps_rows_lower_bound(const uint32_t *row, uint32_t count,
                             uint32_t row_wanted);

/* Contributions to one partition, to be summed by row. */
struct ps_rows_sum {
    uint8_t dtype;
    uint32_t row_width;
    uint32_t leaf_count;   /* Leaves of the sum's tree. */
    uint32_t source_count; /* Sources added so far. */
    struct ps_row_source *sources;
};

void ps_rows_sum_init(struct ps_rows_sum *s, uint8_t dtype, uint32_t width,
                      uint32_t places);
/* Adds a source; `place` must ascend, and `row` and `data` must outlive the
 * computation. */
void ps_rows_sum_add(struct ps_rows_sum *s, uint32_t place, const uint32_t *row,
                     uint32_t count, const void *data);
void ps_rows_sum_fini(struct ps_rows_sum *s);
/* Makes `c` a computation by rows, with copies of everything but the sources'
 * data. `all`: rows of the array if rows without contribution are computed,
 * too, else 0. *ret_rows: size of the union. PS_E_NOMEM: `c` is unchanged. */
PS_MUST_USE int ps_rows_sum_plan(const struct ps_rows_sum *s, uint32_t all,
                                 struct ps_compute *c, uint32_t *ret_rows);
/* Makes the result contain only the rows of the union, contiguous. */
void ps_rows_plan_compact(struct ps_compute *c);
