/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h by hand: small jobs whose results can be checked on paper, and
 * malformed jobs. Properties of every variant and any size are in
 * tests/conformance/kernel_suite.c. */
#include "kernel/half.h"
#include "kernel/kernel.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Float32 sums that lose bits unless the operands meet as the tree says. */
#define BIG 1e8f

static float sum_of(const float *leaves, const uint8_t *levels, uint32_t n)
{
    const void *src[64];
    float out = NAN;
    struct ps_job job = {
        .op = PS_JOB_SUM,
        .dtype = PS_DTYPE_FLOAT32,
        .count = 1,
        .src_count = n,
        .src = src,
        .level = levels,
        .dst = &out,
    };

    for (uint32_t i = 0; i < n; i++) {
        src[i] = &leaves[i];
    }
    assert_int_equal(ps_kernel_run(&job), 0);
    return out;
}

static void sum_pairs_sources_as_a_binary_counter(void **state)
{
    (void)state;
    /* (0+1)+(2+3): the ones vanish beside the big numbers... */
    assert_float_equal(sum_of((float[]){BIG, 1, -BIG, 1}, NULL, 4), 0, 0);
    /* ...but not where two of them meet first: (0+1)+2. */
    assert_float_equal(sum_of((float[]){BIG, -BIG, 1}, NULL, 3), 1, 0);
    assert_float_equal(sum_of((float[]){1, BIG, -BIG}, NULL, 3), 0, 0);
    /* ((0+1)+(2+3))+(4+5) */
    assert_float_equal(sum_of((float[]){BIG, 0, 0, 0, 1, -BIG}, NULL, 6), 0, 0);
    assert_float_equal(sum_of((float[]){BIG, 0, 0, -BIG, 1, 1}, NULL, 6), 2, 0);
    /* ((0+1)+(2+3))+((4+5)+6): 6 goes with 4 and 5, not with the rest. */
    assert_float_equal(sum_of((float[]){BIG, 0, 0, 0, -BIG, 0, 1}, NULL, 7), 0,
                       0);
    assert_float_equal(sum_of((float[]){1, 0, 0, 0, BIG, 0, -BIG}, NULL, 7), 1,
                       0);
}

static void subtree_counts_as_its_leaves(void **state)
{
    (void)state;
    /* Ranks 0 and 1, then both of 2 and 3 at once, then 4: ((0+1)+(23))+4. */
    assert_float_equal(
        sum_of((float[]){BIG, 1, -BIG, 1}, (uint8_t[]){0, 0, 1, 0}, 4), 1, 0);
    /* The same numbers as leaves give ((0+1)+(2+3)). */
    assert_float_equal(
        sum_of((float[]){BIG, 1, -BIG, 1}, (uint8_t[]){0, 0, 0, 0}, 4), 0, 0);
    /* Four leaves below two subtrees of two: (0123) + ((45)+(67)). */
    assert_float_equal(sum_of((float[]){1, BIG, -BIG}, (uint8_t[]){2, 1, 1}, 3),
                       1, 0);
}

static void nonfinite_numbers_propagate(void **state)
{
    (void)state;
    assert_true(isnan(sum_of((float[]){1, NAN, 2}, NULL, 3)));
    assert_true(isnan(sum_of((float[]){INFINITY, 1, -INFINITY}, NULL, 3)));
    assert_true(isinf(sum_of((float[]){INFINITY, 1, 2}, NULL, 3)));
}

static void mean_divides_instead_of_multiplying(void **state)
{
    const float a[3] = {1, 2, -4};
    const float b[3] = {1, 3, 1};
    const float c[3] = {1, 5, 0};
    const void *src[] = {a, b, c};
    float out[3];
    struct ps_job job = {
        .op = PS_JOB_SUM,
        .dtype = PS_DTYPE_FLOAT32,
        .count = 3,
        .src_count = 3,
        .src = src,
        .divide_by = 3,
        .dst = out,
    };

    (void)state;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(out[0] == 1.0f);
    assert_true(out[1] == 10.0f / 3.0f);
    assert_true(out[2] == -1.0f);
}

static void integers_wrap_and_truncate(void **state)
{
    const int32_t a[5] = {INT32_MAX, -7, 7, INT32_MIN, INT32_MIN};
    const int32_t b[5] = {1, 0, 0, 0, -1};
    const int64_t c[3] = {INT64_MAX, INT64_MIN, -9};
    const int64_t d[3] = {1, 0, 0};
    const void *narrow[] = {a, b};
    const void *wide[] = {c, d};
    int32_t out32[5];
    int64_t out64[3];
    struct ps_job job = {
        .op = PS_JOB_SUM,
        .dtype = PS_DTYPE_INT32,
        .count = 5,
        .src_count = 2,
        .src = narrow,
        .dst = out32,
    };

    (void)state;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_int_equal(out32[0], INT32_MIN);
    assert_int_equal(out32[4], INT32_MAX);
    job.divide_by = 2;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_int_equal(out32[0], INT32_MIN / 2);
    assert_int_equal(out32[1], -3);
    assert_int_equal(out32[2], 3);
    job.divide_by = (uint64_t)1 << 31; /* One more than the type can hold. */
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_int_equal(out32[1], 0);
    assert_int_equal(out32[3], -1);

    job.dtype = PS_DTYPE_INT64;
    job.count = 3;
    job.src = wide;
    job.dst = out64;
    job.divide_by = 0;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(out64[0] == INT64_MIN);
    job.divide_by = 2;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(out64[1] == INT64_MIN / 2);
    assert_true(out64[2] == -4);
    job.divide_by = (uint64_t)1 << 63;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(out64[1] == -1);
}

static void small_integers_wrap_and_truncate(void **state)
{
    const uint8_t a[4] = {127, 249, 7, 128};
    const uint8_t b[4] = {1, 0, 0, 255};
    const void *src[] = {a, b};
    uint8_t out[4];
    struct ps_job job = {
        .op = PS_JOB_SUM,
        .dtype = PS_DTYPE_INT8,
        .count = 4,
        .src_count = 2,
        .src = src,
        .dst = out,
    };

    (void)state;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(out, ((uint8_t[]){128, 249, 7, 127}), 4);
    job.divide_by = 2; /* -128, -7, 7, 127 */
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(out, ((uint8_t[]){192, 253, 3, 63}), 4);
    job.divide_by = 128;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(out, ((uint8_t[]){255, 0, 0, 0}), 4);
    job.dtype = PS_DTYPE_UINT8;
    job.divide_by = 2;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(out, ((uint8_t[]){64, 124, 3, 63}), 4);
    job.dtype = PS_DTYPE_BOOL;
    job.divide_by = 1;
    src[0] = (const uint8_t[]){0, 0, 1, 1};
    src[1] = (const uint8_t[]){0, 1, 0, 1};
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(out, ((uint8_t[]){0, 1, 1, 1}), 4);
}

/* In half precision 2048 + 1 is a tie that goes down to 2048, and in bfloat16
 * 256 + 1 one to 256: a sum kept wider would not lose the ones. */
static void half_sums_round_at_every_step(void **state)
{
    static const struct {
        enum ps_dtype dtype;
        uint16_t big, one, two, big_and_two, third_of_two, tenth;
    } cases[] = {
        {PS_DTYPE_FLOAT16, 0x6800, 0x3c00, 0x4000, 0x6801, 0x3955, 0x2e66},
        {PS_DTYPE_BFLOAT16, 0x4380, 0x3f80, 0x4000, 0x4381, 0x3f2b, 0x3dcd},
    };
    uint16_t leaf[9][100];
    const void *src[9];
    uint16_t out[100];

    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct ps_job job = {
            .op = PS_JOB_SUM,
            .dtype = cases[t].dtype,
            .count = 100,
            .src_count = 3,
            .src = src,
            .dst = out,
        };

        for (size_t j = 0; j < 9; j++) {
            src[j] = leaf[j];
            for (size_t i = 0; i < 100; i++) {
                leaf[j][i] = j == 0 ? cases[t].big : cases[t].one;
            }
        }
        assert_int_equal(ps_kernel_run(&job), 0); /* (big + 1) + 1 */
        for (size_t i = 0; i < 100; i++) {
            assert_int_equal(out[i], cases[t].big);
        }
        job.src_count = 4; /* (big + 1) + (1 + 1) */
        assert_int_equal(ps_kernel_run(&job), 0);
        for (size_t i = 0; i < 100; i++) {
            assert_int_equal(out[i], cases[t].big_and_two);
        }
        src[0] = leaf[1];
        job.src_count = 2;
        job.divide_by = 3;
        assert_int_equal(ps_kernel_run(&job), 0);
        assert_int_equal(out[99], cases[t].third_of_two);
        job.divide_by = 20;
        assert_int_equal(ps_kernel_run(&job), 0);
        assert_int_equal(out[0], cases[t].tenth);
    }
}

/* Every number of sources and every set of instructions, against sums of two
 * made one after the other. */
static void half_trees_are_equal_in_every_variant(void **state)
{
    enum { COUNT = 1003, MOST = 19 };
    static const char *const sets[] = {"portable", "avx2", "avx512"};
    static uint16_t leaf[MOST][COUNT];
    static uint16_t want[COUNT], out[COUNT];
    const char *chosen = ps_kernel_variant();
    uint64_t seed = 88172645463325252u;

    (void)state;
    for (size_t t = 0; t < 2; t++) {
        bool brain = t == 1;

        for (size_t j = 0; j < MOST; j++) {
            for (size_t i = 0; i < COUNT; i++) {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                /* Any sign and digits; small exponents, and no NaN. */
                leaf[j][i] = (uint16_t)(seed & (brain ? 0xbfffu : 0xb7ffu));
            }
        }
        for (uint32_t n = 1; n <= MOST; n++) {
            const void *src[MOST];

            for (size_t j = 0; j < n; j++) {
                src[j] = leaf[j];
            }
            for (size_t i = 0; i < COUNT; i++) {
                float stack[8];
                uint32_t level[8];
                size_t depth = 0;

                for (uint32_t j = 0; j <= n; j++) {
                    if (j < n) {
                        stack[depth] = brain ? ps_float_of_bf16(leaf[j][i])
                                             : ps_float_of_fp16(leaf[j][i]);
                        level[depth++] = 0;
                    }
                    while (depth > 1 &&
                           (j == n || level[depth - 1] == level[depth - 2])) {
                        float sum = stack[depth - 2] + stack[depth - 1];

                        depth--;
                        stack[depth - 1] =
                            brain ? ps_float_of_bf16(ps_bf16_of_float(sum))
                                  : ps_float_of_fp16(ps_fp16_of_float(sum));
                        level[depth - 1]++;
                    }
                }
                want[i] = brain ? ps_bf16_of_float(stack[0])
                                : ps_fp16_of_float(stack[0]);
            }
            for (size_t v = 0; v < 3; v++) {
                struct ps_job job = {
                    .op = PS_JOB_SUM,
                    .dtype = brain ? PS_DTYPE_BFLOAT16 : PS_DTYPE_FLOAT16,
                    .count = COUNT,
                    .src_count = n,
                    .src = src,
                    .dst = out,
                };

                if (ps_kernel_force(sets[v]) != 0) {
                    continue; /* Not of this processor. */
                }
                memset(out, 0xee, sizeof(out));
                assert_int_equal(ps_kernel_run(&job), 0);
                assert_memory_equal(out, want, sizeof(out));
            }
        }
    }
    assert_int_equal(ps_kernel_force(chosen), 0);
}

/* Least and greatest are one of their operands. */
static void minimum_and_maximum_match_worked_examples(void **state)
{
    const float a[6] = {1, 0.0f, -0.0f, NAN, 5, -INFINITY};
    const float b[6] = {2, -0.0f, 0.0f, 3, NAN, NAN};
    const void *src[] = {a, b};
    float out[6];
    struct ps_job job = {
        .op = PS_JOB_SUM,
        .dtype = PS_DTYPE_FLOAT32,
        .fold = PS_FOLD_MIN,
        .count = 6,
        .src_count = 2,
        .src = src,
        .dst = out,
    };

    (void)state;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(out[0] == 1 && !signbit(out[1]) && signbit(out[2]));
    assert_true(isnan(out[3]) && isnan(out[4]) && isnan(out[5]));
    job.fold = PS_FOLD_MAX;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(out[0] == 2 && !signbit(out[1]) && signbit(out[2]));
    assert_true(isnan(out[3]) && isnan(out[4]) && isnan(out[5]));
    job.fold = PS_FOLD_PRODUCT;
    job.count = 2;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(out[0] == 2 && signbit(out[1]));

    job.dtype = PS_DTYPE_INT8;
    job.count = 3;
    src[0] = (const int8_t[]){-1, 100, 16};
    src[1] = (const int8_t[]){1, -100, 16};
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(out, ((int8_t[]){-1, -16, 0}), 3);
    job.fold = PS_FOLD_MIN;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(out, ((int8_t[]){-1, -100, 16}), 3);
    job.dtype = PS_DTYPE_UINT8; /* 255, 156 */
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(out, ((int8_t[]){1, 100, 16}), 3);
}

static void momentum_accumulates_over_steps(void **state)
{
    const float want[] = {-0.1f, -0.29f, -0.561f, -0.9049f};
    const float gradient = 1;
    const void *src[] = {&gradient};
    float weight = 0;
    float speed = 0;
    struct ps_job job = {
        .op = PS_JOB_SGD,
        .dtype = PS_DTYPE_FLOAT32,
        .count = 1,
        .src_count = 1,
        .src = src,
        .dst = &weight,
        .weight = &weight,
        .state = &speed,
        .sgd = {.lr = 0.1, .momentum = 0.9, .rescale = 1},
    };

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(ps_kernel_run(&job), 0);
        assert_float_equal(weight, want[i], 1e-6f);
    }
}

static void sgd_applies_mean_rescale_clip_and_decay(void **state)
{
    const double a[2] = {30, -3};
    const double b[2] = {10, -1};
    const void *src[] = {a, b};
    double weight[2] = {1, 2};
    struct ps_job job = {
        .op = PS_JOB_SGD,
        .dtype = PS_DTYPE_FLOAT64,
        .count = 2,
        .src_count = 2,
        .src = src,
        .divide_by = 2, /* 20, -2 */
        .dst = weight,
        .weight = weight,
        .sgd = {.lr = 0.5, .wd = 0.25, .rescale = 0.5, .clip = 4},
    };

    (void)state;
    /* 10 is clipped to 4: (1 - 0.125) * 1 - 0.5 * 4; -1 stays. */
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(weight[0] == 0.875 - 2);
    assert_true(weight[1] == 1.75 + 0.5);
    /* Without the limit the whole of 10 counts. */
    job.sgd.clip = 0;
    weight[0] = 1;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_true(weight[0] == 0.875 - 5);
}

static void invalid_jobs_leave_their_output_unchanged(void **state)
{
    const float ones[32] = {1, 1, 1, 1};
    const void *src[80];
    uint8_t levels[80];
    float out[32];
    float before[32];
    const struct ps_job good = {
        .op = PS_JOB_SUM,
        .dtype = PS_DTYPE_FLOAT32,
        .count = 32,
        .src_count = 2,
        .src = src,
        .dst = out,
    };
    struct ps_job job = good;

    (void)state;
    for (size_t i = 0; i < 80; i++) {
        src[i] = ones;
        levels[i] = (uint8_t)i;
    }
    for (size_t i = 0; i < 32; i++) {
        out[i] = before[i] = 42;
    }
    job.src_count = 0;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job = good;
    job.dtype = (enum ps_dtype)8;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job = good;
    job.op = (enum ps_job_op)9;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job = good;
    job.fold = (enum ps_fold)PS_FOLDS;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job.fold = PS_FOLD_MAX;
    job.divide_by = 2; /* Only sums have a mean. */
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job = good;
    job.dst = NULL;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job = good;
    job.op = PS_JOB_SGD; /* No weights. */
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job.weight = ones;
    job.sgd.momentum = 0.5; /* Nowhere to keep it. */
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job.state = out;
    job.dtype = PS_DTYPE_INT32;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job = good;
    assert_int_equal(ps_kernel_run_range(&job, 8, 32), PS_E_INVAL);
    assert_int_equal(ps_kernel_run_range(&job, 0, 33), PS_E_INVAL);
    assert_int_equal(ps_kernel_run_range(&job, 32, 16), PS_E_INVAL);
    job.src_count = 80; /* Levels that rise: no counter has made these. */
    job.level = levels;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    job = good;
    src[1] = NULL;
    assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
    src[1] = ones;
    assert_memory_equal(out, before, sizeof(out));

    assert_int_equal(ps_kernel_run(&good), 0);
    assert_true(out[0] == 2 && out[31] == 0);
}

static void job_without_elements_succeeds(void **state)
{
    const void *src[] = {NULL, NULL};
    struct ps_job job = {
        .op = PS_JOB_SUM,
        .dtype = PS_DTYPE_FLOAT32,
        .src_count = 2,
        .src = src,
    };

    (void)state;
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_int_equal(ps_kernel_run_range(&job, 0, 0), 0);
}

static void copies_are_equal_at_every_alignment(void **state)
{
    enum { MOST = 600 * 1024, AROUND = 130 };
    uint8_t *from = malloc(MOST + 2 * AROUND);
    uint8_t *to = malloc(MOST + 2 * AROUND);

    (void)state;
    assert_non_null(from);
    assert_non_null(to);
    for (size_t i = 0; i < MOST + 2 * AROUND; i++) {
        from[i] = (uint8_t)(i * 31 + i / 251);
    }
    for (size_t i = 0; i < AROUND; i += 7) {
        size_t bytes = i % 2 == 0 ? MOST - i : 1000 + i;
        uint8_t *at = to + i;

        memset(to, 0xee, MOST + 2 * AROUND);
        ps_kernel_copy(at, from + AROUND - i, bytes);
        assert_memory_equal(at, from + AROUND - i, bytes);
        assert_int_equal(at[bytes], 0xee);
        assert_true(i == 0 || at[-1] == 0xee);
        bytes = i % 2 == 0 ? 40000 - i : 1000 + i;
        memset(to, 0xee, MOST + 2 * AROUND);
        ps_kernel_copy_part(at, from + AROUND - i, bytes);
        assert_memory_equal(at, from + AROUND - i, bytes);
        assert_int_equal(at[bytes], 0xee);
        assert_true(i == 0 || at[-1] == 0xee);
    }
    ps_kernel_copy(to, from, 0);
    ps_kernel_copy_part(to, from, 0);
    free(from);
    free(to);
}

static void variants_are_chosen_by_name(void **state)
{
    const char *chosen = ps_kernel_variant();

    (void)state;
    assert_int_equal(ps_kernel_force("abacus"), PS_E_UNSUPPORTED);
    assert_string_equal(ps_kernel_variant(), chosen);
    assert_int_equal(ps_kernel_force("portable"), 0);
    assert_string_equal(ps_kernel_variant(), "portable");
    assert_int_equal(ps_kernel_force(chosen), 0);
    assert_string_equal(ps_kernel_variant(), chosen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_pairs_sources_as_a_binary_counter),
        cmocka_unit_test(small_integers_wrap_and_truncate),
        cmocka_unit_test(half_sums_round_at_every_step),
        cmocka_unit_test(half_trees_are_equal_in_every_variant),
        cmocka_unit_test(subtree_counts_as_its_leaves),
        cmocka_unit_test(nonfinite_numbers_propagate),
        cmocka_unit_test(mean_divides_instead_of_multiplying),
        cmocka_unit_test(integers_wrap_and_truncate),
        cmocka_unit_test(minimum_and_maximum_match_worked_examples),
        cmocka_unit_test(momentum_accumulates_over_steps),
        cmocka_unit_test(sgd_applies_mean_rescale_clip_and_decay),
        cmocka_unit_test(invalid_jobs_leave_their_output_unchanged),
        cmocka_unit_test(job_without_elements_succeeds),
        cmocka_unit_test(copies_are_equal_at_every_alignment),
        cmocka_unit_test(variants_are_chosen_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
