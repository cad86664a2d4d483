/* SPDX-License-Identifier: Apache-2.0 */
/* Checked arithmetic on sizes that come from peers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Return false and leave *ret unchanged on overflow. */
static inline bool ps_add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;

    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *ret = r;
    return true;
}

static inline bool ps_mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;

    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *ret = r;
    return true;
}

/* Sum of `count` numbers, `stride` elements apart. */
static inline bool ps_sum_u64(const uint64_t *n, uint32_t count, size_t stride,
                              uint64_t *ret)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (!ps_add_u64(sum, n[i * stride], &sum)) {
            return false;
        }
    }
    *ret = sum;
    return true;
}

/* Rounds up to a multiple of `unit`, a power of two; the caller has checked
 * that the result fits. */
static inline uint64_t ps_round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

/* For sorting: less than 0, 0 or more, as `a` is less than, equal to or greater
 * than `b`. */
static inline int ps_compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static inline uint64_t ps_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t ps_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
