/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sum of squares, independent of the order of elements, of partitioning
 * and of vector width. The sum is a fixed-point number with digits of 32 bits,
 * wide enough for the square of every double; each digit is stored in 64 bits,
 * so that 2^32 additions need no carry. Squares of floats are exact; those of
 * doubles are each rounded to a double. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Digits for values from 2^-1088 to 2^1024, and for 2^64 of them. */
#define PS_SQUARE_SUM_DIGITS 68u

struct ps_square_sum {
    /* Least significant first; above 32 bits until normalized. */
    uint64_t digit[PS_SQUARE_SUM_DIGITS];
    /* Elements without a finite square: NaN, infinity, and doubles beyond
     * 2^512. */
    uint64_t nonfinite_count;
};

/* Intermediate state of a sum of floats: their squares, by exponent. */
struct ps_square_bins {
    uint64_t bin[2][256];
    uint32_t count; /* Elements since the bins were last flushed. */
};

/* Adds squares to the bins, flushed to `s` when full. Both start zeroed. */
void ps_square_sum_add_floats(struct ps_square_sum *s, struct ps_square_bins *b,
                              const float *x, size_t count);
/* Adds the bins to the sum and zeroes them. */
void ps_square_sum_flush_bins(struct ps_square_sum *s,
                              struct ps_square_bins *b);
void ps_square_sum_add_doubles(struct ps_square_sum *s, const double *x,
                               size_t count);

/* Adds one sum to another; atomic, so that threads can share a target. */
void ps_square_sum_merge(struct ps_square_sum *to,
                         const struct ps_square_sum *from);
/* Propagates carries, so that every digit is below 2^32 and equal sums have
 * equal bits. */
void ps_square_sum_normalize(struct ps_square_sum *s);

/* Copies the digits of a normalized sum without leading and trailing zeros;
 * returns their count, and the index of the first in *ret_first. */
uint32_t ps_square_sum_pack(const struct ps_square_sum *s, uint32_t *ret_first,
                            uint32_t digits[PS_SQUARE_SUM_DIGITS]);
/* Adds packed digits; ignores them if they are out of range. */
void ps_square_sum_add_packed(struct ps_square_sum *s, uint64_t nonfinite,
                              uint32_t first, const uint32_t *digits,
                              uint32_t count);

/* Sum of the finite squares, rounded once; normalizes it. */
double ps_square_sum_value(struct ps_square_sum *s);
