/* SPDX-License-Identifier: Apache-2.0 */
/* A sum of squares that is exact, so that it does not depend on the order in
 * which numbers come, on how they are split, or on the width of a vector. A
 * sum is a number in fixed point with digits of 32 bits, wide enough for the
 * square of every double; each digit lies in 64 bits, so that 2^32 summands
 * need no carry. Squares of floats are exact; those of doubles are rounded to
 * a double, each by itself. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* From 2^-1088 up to 2^1024 and 2^64 times that. */
#define PS_SQUARE_SUM_DIGITS 68u

struct ps_square_sum {
    uint64_t digit[PS_SQUARE_SUM_DIGITS]; /* Least first; see above. */
    uint64_t
        nonfinite_count; /* Elements whose square is no finite number: NaN and
                    * infinity, and doubles beyond 2^512. */
};

/* Floats on their way into a sum: their squares, by exponent. */
struct ps_square_bins {
    uint64_t bin[2][256];
    uint32_t count; /* Elements since the bins were emptied. */
};

/* Both begin as zeros. */
void ps_square_sum_add_floats(struct ps_square_sum *s, struct ps_square_bins *b,
                              const float *x, size_t count);
/* The sum lacks what is in the bins; empties them. */
void ps_square_sum_flush_bins(struct ps_square_sum *s,
                              struct ps_square_bins *b);
void ps_square_sum_add_doubles(struct ps_square_sum *s, const double *x,
                               size_t count);

/* Adds one sum to another; several threads may add to one at once. */
void ps_square_sum_merge(struct ps_square_sum *to,
                         const struct ps_square_sum *from);
/* Makes every digit less than 2^32: the same sum has the same bits then. */
void ps_square_sum_normalize(struct ps_square_sum *s);

/* The digits of a settled sum without zeros on either side: how many, and
 * which is the first of them. */
uint32_t ps_square_sum_pack(const struct ps_square_sum *s, uint32_t *ret_first,
                            uint32_t digits[PS_SQUARE_SUM_DIGITS]);
/* Adds such digits; nothing, where they cannot be of a sum. */
void ps_square_sum_add_packed(struct ps_square_sum *s, uint64_t wild,
                              uint32_t first, const uint32_t *digits,
                              uint32_t count);

/* The sum of what is finite, rounded once; settles it. */
double ps_square_sum_value(struct ps_square_sum *s);
