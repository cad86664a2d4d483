/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums of squares, against sums that are added bit by bit. */
#include "base/square_sum.h"

#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* A number as its bits; bit 0 counts 2^-1200. */
#define BITS  2400
#define LEAST (-1200)

struct exact {
    uint8_t bit[BITS];
};

static void exact_add(struct exact *e, uint64_t v, int power)
{
    unsigned carry = 0;

    for (int i = power - LEAST; v != 0 || carry != 0; i++, v >>= 1) {
        assert_true(i >= 0 && i < BITS);
        carry += e->bit[i] + (unsigned)(v & 1);
        e->bit[i] = (uint8_t)(carry & 1);
        carry >>= 1;
    }
}

/* v = mantissa * 2^power, of a number that is not negative. */
static uint64_t parts_of(double v, int *ret_power)
{
    int power;
    const double m = frexp(v, &power);

    *ret_power = power - 53;
    return (uint64_t)ldexp(m, 53);
}

static void exact_add_double(struct exact *e, double v, int times)
{
    int power;
    const uint64_t m = parts_of(v, &power);

    exact_add(e, m, power + times);
}

static void exact_add_square(struct exact *e, float x)
{
    int power;
    const uint64_t m = parts_of(fabs((double)x), &power) >> 29;

    exact_add(e, m * m, 2 * (power + 29));
}

/* The next double above or below one that is positive. */
static double next_to(double v, int step)
{
    int64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    bits += step;
    memcpy(&v, &bits, sizeof(v));
    return v;
}

static int exact_compare(const struct exact *a, const struct exact *b)
{
    for (int i = BITS; i-- > 0;) {
        if (a->bit[i] != b->bit[i]) {
            return a->bit[i] < b->bit[i] ? -1 : 1;
        }
    }
    return 0;
}

/* Fails unless `v` is the double nearest to the sum, the even one of two. */
static void assert_nearest(const struct exact *sum, double v)
{
    struct exact twice = {0};
    struct exact up = {0};
    struct exact down = {0};
    int power;
    const bool even = parts_of(v, &power) % 2 == 0;

    memmove(twice.bit + 1, sum->bit, BITS - 1);
    exact_add_double(&up, v, 0);
    exact_add_double(&up, next_to(v, 1), 0);
    exact_add_double(&down, v, 0);
    exact_add_double(&down, next_to(v, -1), 0);
    assert_true(exact_compare(&twice, &up) < (even ? 1 : 0));
    assert_true(exact_compare(&twice, &down) > (even ? -1 : 0));
}

static struct ps_square_sum of_floats(const float *x, size_t count)
{
    struct ps_square_sum s = {0};
    struct ps_square_bins b = {0};

    ps_square_sum_add_floats(&s, &b, x, count);
    ps_square_sum_flush_bins(&s, &b);
    return s;
}

static float any_float(struct ps_rng *r)
{
    uint32_t bits = (uint32_t)ps_rng_next(r);
    float x;

    if ((bits >> 23 & 255) == 255) {
        bits &= ~(1u << 30);
    }
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void a_sum_is_exact_and_rounded_once(void **state)
{
    struct ps_rng r;

    (void)state;
    ps_rng_init(&r, 1);
    for (int round = 0; round < 300; round++) {
        float x[40];
        const size_t count = 1 + ps_rng_below(&r, 40);
        const int range = (int)ps_rng_below(&r, 3);
        struct exact want = {0};

        for (size_t i = 0; i < count; i++) {
            x[i] = any_float(&r);
            if (range < 2) { /* Of one size, or nearly. */
                x[i] = 1 + (float)ps_rng_below(&r, 1u << 23) / (1u << 23);
                x[i] = ldexpf(x[i], range == 0 ? 0 : -(int)(i % 30));
            }
            exact_add_square(&want, x[i]);
        }
        struct ps_square_sum s = of_floats(x, count);

        assert_nearest(&want, ps_square_sum_value(&s));
        assert_int_equal(s.nonfinite_count, 0);
    }
}

static void ties_round_to_even(void **state)
{
    /* 2^54 + 2, and with what is far below it. */
    const float tie[] = {0x1p27f, 1, 1, 0x1p-149f};
    struct ps_square_sum s = of_floats(tie, 3);
    (void)state;

    assert_true(ps_square_sum_value(&s) == 0x1p54);
    s = of_floats(tie, 4);
    assert_true(ps_square_sum_value(&s) == 0x1p54 + 4);
}

static void extreme_squares_are_exact(void **state)
{
    const float small = 0x1p-149f;
    const double tiny[] = {0x1p-537, -0x1p511, 0};
    struct ps_square_sum s = of_floats(&small, 1);

    (void)state;
    assert_true(ps_square_sum_value(&s) == 0x1p-298);
    s = of_floats((const float[]){FLT_MAX, FLT_MAX}, 2);
    assert_true(ps_square_sum_value(&s) ==
                2 * ((double)FLT_MAX * (double)FLT_MAX));
    s = (struct ps_square_sum){0};
    assert_true(ps_square_sum_value(&s) == 0);
    ps_square_sum_add_doubles(&s, tiny, 1);
    assert_true(ps_square_sum_value(&s) == 0x1p-1074);
    ps_square_sum_add_doubles(&s, tiny, 3);
    assert_true(ps_square_sum_value(&s) == 0x1p1022);
    assert_int_equal(s.nonfinite_count, 0);
}

static void numbers_that_are_not_finite_are_counted(void **state)
{
    const float x[] = {1, NAN, 2, -INFINITY, INFINITY};
    const double y[] = {NAN, 3, INFINITY, 0x1p600};
    struct ps_square_sum s = of_floats(x, 5);

    (void)state;
    assert_int_equal(s.nonfinite_count, 3);
    assert_true(ps_square_sum_value(&s) == 5);
    ps_square_sum_add_doubles(&s, y, 4);
    assert_int_equal(s.nonfinite_count, 6);
    assert_true(ps_square_sum_value(&s) == 14);
}

/* Through merges and through the form in which sums travel. */
static void square_sums_do_not_depend_on_the_split(void **state)
{
    static float x[70001]; /* More than the bins take at once. */
    const size_t count = sizeof(x) / sizeof(x[0]);
    struct ps_rng r;

    (void)state;
    ps_rng_init(&r, 2);
    for (size_t i = 0; i < count; i++) {
        x[i] = any_float(&r);
    }
    x[5] = NAN;
    struct ps_square_sum whole = of_floats(x, count);

    ps_square_sum_normalize(&whole);
    for (int round = 0; round < 50; round++) {
        struct ps_square_sum total = {0};
        struct ps_square_sum travelled = {0};

        for (size_t i = 0; i < count;) {
            size_t n = 1 + ps_rng_below(&r, (uint32_t)count / 3);
            uint32_t digits[PS_SQUARE_SUM_DIGITS];
            uint32_t first;

            n = n < count - i ? n : count - i;
            struct ps_square_sum s = of_floats(x + i, n);

            ps_square_sum_merge(&total, &s);
            ps_square_sum_normalize(&s);
            const uint32_t packed = ps_square_sum_pack(&s, &first, digits);

            ps_square_sum_add_packed(&travelled, s.nonfinite_count, first,
                                     digits, packed);
            i += n;
        }
        ps_square_sum_normalize(&total);
        ps_square_sum_normalize(&travelled);
        assert_memory_equal(&total, &whole, sizeof(whole));
        assert_memory_equal(&travelled, &whole, sizeof(whole));
    }
}

static void invalid_digits_add_nothing(void **state)
{
    const uint32_t digits[PS_SQUARE_SUM_DIGITS] = {1, 1};
    struct ps_square_sum s = {0};

    (void)state;
    ps_square_sum_add_packed(&s, 1, PS_SQUARE_SUM_DIGITS - 1, digits, 2);
    ps_square_sum_add_packed(&s, 1, UINT32_MAX, digits, 2);
    ps_square_sum_add_packed(&s, 1, 0, digits, UINT32_MAX);
    assert_int_equal(s.nonfinite_count, 0);
    assert_true(ps_square_sum_value(&s) == 0);
    ps_square_sum_add_packed(&s, 0, PS_SQUARE_SUM_DIGITS - 1, digits, 1);
    assert_int_equal(s.digit[PS_SQUARE_SUM_DIGITS - 1], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_is_exact_and_rounded_once),
        cmocka_unit_test(ties_round_to_even),
        cmocka_unit_test(extreme_squares_are_exact),
        cmocka_unit_test(numbers_that_are_not_finite_are_counted),
        cmocka_unit_test(square_sums_do_not_depend_on_the_split),
        cmocka_unit_test(invalid_digits_add_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
