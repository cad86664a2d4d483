/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a key that are given or asked for: numbers, ascending and each once,
 * and the rows behind them. The block in which they travel has the numbers as
 * u32, then the rows, each of the two filled up to a multiple of 8 bytes. */
#pragma once

#include "core/base/effect.h"

#include <stdbool.h>
#include <stdint.h>

/* The most rows of `width` elements that travel in one frame: as a block, and
 * as the state that an optimizer keeps of them. 0: a row is larger than a
 * frame, or has no elements of a type that exists. */
uint32_t ps_rows_per_frame(uint32_t width, uint8_t dtype);
/* Bytes of the numbers of so many rows, and of the rows, within a block. Of a
 * width of which a frame has room for a row, no count overflows. */
uint64_t ps_rows_numbers_bytes(uint32_t count);
uint64_t ps_rows_data_bytes(uint32_t count, uint32_t width, uint8_t dtype);
/* Are they ascending, each once, and below `limit`? */
bool ps_rows_are_valid(const uint32_t *row, uint32_t count, uint32_t limit);
/* The first place whose number is at least `row`; `count` if there is none. */
uint32_t ps_rows_lower_bound(const uint32_t *row, uint32_t count,
                             uint32_t row_wanted);

/* What the contributors of one partition give, to be summed by row. */
struct ps_rows_sum {
    uint8_t dtype;
    uint32_t row_width;
    uint32_t leaf_count;   /* Of the tree. */
    uint32_t source_count; /* Sources. */
    struct ps_row_source *sources;
};

void ps_rows_sum_init(struct ps_rows_sum *s, uint8_t dtype, uint32_t width,
                      uint32_t places);
/* Places ascend; `row` and `data` must live as long as the computation. */
void ps_rows_sum_add(struct ps_rows_sum *s, uint32_t place, const uint32_t *row,
                     uint32_t count, const void *data);
void ps_rows_sum_fini(struct ps_rows_sum *s);
/* The numbers that any source has, into `out`, which has room for all, and
 * their count; NULL only counts. PS_E_NOMEM. */
PS_MUST_USE int ps_rows_sum_union(const struct ps_rows_sum *s, uint32_t *out,
                                  uint32_t *ret_count);
/* Makes the computation one by rows; it owns copies of all but the sources'
 * memory. `all`: rows of the array when those of nobody are to be handled too,
 * else 0. *ret_rows: how many rows the sources have together. PS_E_NOMEM:
 * nothing has changed. */
PS_MUST_USE int ps_rows_sum_plan(const struct ps_rows_sum *s, uint32_t all,
                                 struct ps_compute *c, uint32_t *ret_rows);
/* The result has the rows of the sources alone, one after the other. */
void ps_rows_plan_compact(struct ps_compute *c);
