/* SPDX-License-Identifier: Apache-2.0 */
#include "base/square_sum.h"

#include <math.h>
#include <string.h>

#define LEAST   (-1088) /* Exponent of digit 0's unit, as a power of two. */
/* Squares of 48 bits that fit into one bin without overflow. */
#define BIN_MAX (1u << 15)
#define LOW(v)  ((v)&0xffffffffu)

/* Adds v * 2^power. */
static void add_scaled(struct ps_square_sum *s, uint64_t v, int power)
{
    const unsigned at = (unsigned)(power - LEAST);
    uint64_t *digit = &s->digit[at / 32];
    const unsigned shift = at % 32;
    const uint64_t low = v << shift;

    digit[0] += LOW(low);
    digit[1] += low >> 32;
    if (shift > 0 && v >> (64 - shift) != 0) {
        digit[2] += v >> (64 - shift);
    }
}

void ps_square_sum_flush_bins(struct ps_square_sum *s, struct ps_square_bins *b)
{
    for (unsigned e = 0; e < 255; e++) {
        const uint64_t v = b->bin[0][e] + b->bin[1][e];

        if (v != 0) {
            /* Subnormal numbers have the exponent of the least normal ones. */
            add_scaled(s, v, 2 * ((e == 0 ? 1 : (int)e) - 150));
        }
    }
    /* Bin 255 has NaN and infinity, which nonfinite_count counts. */
    memset(b, 0, sizeof(*b));
}

static inline void bin_float(uint64_t bin[256], uint64_t *nonfinite, float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));

    const uint32_t e = bits >> 23 & 255;
    const uint64_t m = (bits & 0x7fffff) | (uint32_t)(e != 0) << 23;

    bin[e] += m * m;
    *nonfinite += e == 255;
}

void ps_square_sum_add_floats(struct ps_square_sum *s, struct ps_square_bins *b,
                              const float *x, size_t count)
{
    uint64_t nonfinite = 0;

    while (count > 0) {
        size_t n = BIN_MAX - b->count;
        size_t i = 0;

        if (n == 0) {
            ps_square_sum_flush_bins(s, b);
            n = BIN_MAX;
        }
        n = n < count ? n : count;
        /* Neighbours mostly have the same exponent: two rows of bins avoid a
         * dependency between consecutive additions. */
        for (; i + 2 <= n; i += 2) {
            bin_float(b->bin[0], &nonfinite, x[i]);
            bin_float(b->bin[1], &nonfinite, x[i + 1]);
        }
        if (i < n) {
            bin_float(b->bin[0], &nonfinite, x[i]);
        }
        b->count += (uint32_t)n;
        x += n;
        count -= n;
    }
    s->nonfinite_count += nonfinite;
}

void ps_square_sum_add_doubles(struct ps_square_sum *s, const double *x,
                               size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const double square = x[i] * x[i];
        uint64_t bits;

        memcpy(&bits, &square, sizeof(bits));

        const int e = (int)(bits >> 52 & 2047);
        const uint64_t m = bits & 0xfffffffffffff;

        if (e == 2047) {
            s->nonfinite_count++;
        } else if (bits != 0) {
            add_scaled(s, e == 0 ? m : m | (uint64_t)1 << 52,
                       (e == 0 ? 1 : e) - 1075);
        }
    }
}

void ps_square_sum_merge(struct ps_square_sum *to,
                         const struct ps_square_sum *from)
{
    for (unsigned i = 0; i < PS_SQUARE_SUM_DIGITS; i++) {
        if (from->digit[i] != 0) {
            __atomic_fetch_add(&to->digit[i], from->digit[i], __ATOMIC_RELAXED);
        }
    }
    if (from->nonfinite_count != 0) {
        __atomic_fetch_add(&to->nonfinite_count, from->nonfinite_count,
                           __ATOMIC_RELAXED);
    }
}

void ps_square_sum_normalize(struct ps_square_sum *s)
{
    uint64_t carry = 0;

    for (unsigned i = 0; i < PS_SQUARE_SUM_DIGITS; i++) {
        const uint64_t low = LOW(s->digit[i]) + LOW(carry);

        carry = (s->digit[i] >> 32) + (carry >> 32) + (low >> 32);
        s->digit[i] = LOW(low);
    }
}

uint32_t ps_square_sum_pack(const struct ps_square_sum *s, uint32_t *ret_first,
                            uint32_t digits[PS_SQUARE_SUM_DIGITS])
{
    uint32_t first = 0;
    uint32_t end = PS_SQUARE_SUM_DIGITS;

    while (end > 0 && s->digit[end - 1] == 0) {
        end--;
    }
    while (first < end && s->digit[first] == 0) {
        first++;
    }
    for (uint32_t i = first; i < end; i++) {
        digits[i - first] = (uint32_t)s->digit[i];
    }
    *ret_first = first;
    return end - first;
}

void ps_square_sum_add_packed(struct ps_square_sum *s, uint64_t nonfinite,
                              uint32_t first, const uint32_t *digits,
                              uint32_t count)
{
    if (first > PS_SQUARE_SUM_DIGITS || count > PS_SQUARE_SUM_DIGITS - first) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        s->digit[first + i] += digits[i];
    }
    s->nonfinite_count += nonfinite;
}

double ps_square_sum_value(struct ps_square_sum *s)
{
    int top = PS_SQUARE_SUM_DIGITS - 1;
    uint64_t below = 0;

    ps_square_sum_normalize(s);
    while (top > 1 && s->digit[top] == 0) {
        top--;
    }
    /* The uppermost 64 bits; all lower ones only break ties. */
    uint64_t v = s->digit[top] << 32 | s->digit[top - 1];

    if (v == 0) {
        return 0;
    }
    const unsigned shift = (unsigned)__builtin_clzll(v);

    v <<= shift;
    if (top >= 2) { /* digit[top] != 0 here, so `shift` is below 32. */
        const uint64_t next = s->digit[top - 2] << shift;

        v |= next >> 32;
        below = LOW(next);
    }
    for (int i = top - 3; i >= 0 && below == 0; i--) {
        below = s->digit[i];
    }
    v |= below != 0;
    return ldexp((double)v, LEAST + 32 * (top - 1) - (int)shift);
}
