/* SPDX-License-Identifier: Apache-2.0 */
/* Normal numbers by position: the generator's published values, the functions
 * against those of libm, and the distribution. */
#include "kernel/normal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

/* Of the authors' file kat_vectors. */
static void generator_has_its_published_values(void **state)
{
    static const struct {
        uint32_t counter[4];
        uint32_t key[2];
        uint32_t out[4];
    } rows[] = {
        {{0, 0, 0, 0},
         {0, 0},
         {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t out[4];

        ps_philox(rows[i].counter, rows[i].key, out);
        assert_memory_equal(out, rows[i].out, sizeof(out));
    }
}

static bool near(double a, double b)
{
    /* The reference rounds the angle, too. */
    return fabs(a - b) <= 1e-15 * (1 + fabs(b));
}

static void functions_are_those_of_libm(void **state)
{
    const double turn = 2 * acos(-1.0);
    uint64_t y = 1;

    (void)state;
    assert_true(ps_log_of_fraction((uint64_t)1 << 53) == 0);
    assert_true(near(ps_log_of_fraction(1), -53 * log(2)));
    for (int i = 0; i < 100000; i++) {
        const uint64_t m = (y >> 11) + 1;
        double c;
        double s;

        assert_true(near(ps_log_of_fraction(m), log(ldexp((double)m, -53))));
        ps_turn(y, &c, &s);
        assert_true(near(c, cos(turn * ldexp((double)y, -64))));
        assert_true(near(s, sin(turn * ldexp((double)y, -64))));
        assert_true(near(c * c + s * s, 1));
        y = y * 6364136223846793005u + 1442695040888963407u;
    }
}

/* Of a million numbers: mean, variance, skewness, kurtosis, tails, and the
 * correlation of neighbours, each within five standard deviations. */
static void numbers_are_normal(void **state)
{
    enum { PAIRS = 500000, COUNT = 2 * PAIRS };
    double power[5] = {0};
    double beyond_two = 0;
    double product = 0;
    double before = 0;

    (void)state;
    for (uint64_t step = 1; step <= 3; step++) {
        const struct ps_normal_stream stream = {.key = 12345, .step = step};

        memset(power, 0, sizeof(power));
        beyond_two = product = 0;
        for (uint64_t i = 0; i < PAIRS; i++) {
            double two[2];

            ps_normal_pair(&stream, i, two);
            for (int k = 0; k < 2; k++) {
                double x = 1;

                for (int p = 1; p <= 4; p++) {
                    x *= two[k];
                    power[p] += x / COUNT;
                }
                beyond_two += fabs(two[k]) > 2 ? 1.0 / COUNT : 0;
                product += two[k] * before / COUNT;
                before = two[k];
            }
        }
        const double unit = 5 / sqrt(COUNT);

        assert_true(fabs(power[1]) < unit);
        assert_true(fabs(power[2] - 1) < unit * sqrt(2));
        assert_true(fabs(power[3]) < unit * sqrt(15));
        assert_true(fabs(power[4] - 3) < unit * sqrt(96));
        assert_true(fabs(beyond_two - 0.0455002638963584) < unit * 0.21);
        assert_true(fabs(product) < unit);
    }
}

static void streams_differ(void **state)
{
    const struct ps_normal_stream streams[] = {{1, 1},
                                               {2, 1},
                                               {1, 2},
                                               {(uint64_t)1 << 32 | 1, 1},
                                               {1, (uint64_t)1 << 32 | 1}};
    double two[5][2];

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        ps_normal_pair(&streams[i], (uint64_t)1 << 40, two[i]);
        for (size_t k = 0; k < i; k++) {
            assert_true(two[i][0] != two[k][0] && two[i][1] != two[k][1]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generator_has_its_published_values),
        cmocka_unit_test(functions_are_those_of_libm),
        cmocka_unit_test(numbers_are_normal),
        cmocka_unit_test(streams_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
