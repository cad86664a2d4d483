/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs: the classic store's vectors, golden codes, every variant the same
 * bits, residuals that hold what the code does not, and hostile codes. */
#include "kernel/half.h"
#include "kernel/kernel.h"
#include "kernel/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_MAX 5000u

static const char *const variants[] = {"portable", "avx2", "avx512"};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static const struct ps_codec codecs[] = {
    {.kind = PS_CODEC_2BIT, .feedback = true, .threshold = 0.5f},
    {.kind = PS_CODEC_1BIT, .feedback = true, .threshold = 0},
    {.kind = PS_CODEC_FP16, .feedback = true},
    {.kind = PS_CODEC_BF16},
    {.kind = PS_CODEC_ONEBIT, .feedback = true, .scaling = true},
    {.kind = PS_CODEC_ONEBIT, .feedback = true},
    {.kind = PS_CODEC_TOPK, .feedback = true, .k = 0.01},
    {.kind = PS_CODEC_TOPK, .feedback = true, .k = 7},
    {.kind = PS_CODEC_RANDOMK, .feedback = true, .k = 0.1, .seed = 5},
    {.kind = PS_CODEC_DITHER, .feedback = true, .levels = 1, .seed = 1},
    {.kind = PS_CODEC_DITHER, .feedback = true, .levels = 7, .l2 = true},
    {.kind = PS_CODEC_DITHER, .feedback = true, .levels = 127, .seed = 3},
    {.kind = PS_CODEC_NATURAL, .feedback = true, .levels = 6, .seed = 4},
    {.kind = PS_CODEC_NATURAL, .feedback = true, .levels = 31, .l2 = true},
    {.kind = PS_CODEC_2BIT,
     .feedback = true,
     .threshold = 0.1f,
     .momentum = 0.9f},
};
#define CODECS (sizeof(codecs) / sizeof(codecs[0]))

static const uint64_t counts[] = {1,  2,  3,  15, 16,  17,   31,   32,
                                  33, 63, 64, 65, 255, 1000, 4096, COUNT_MAX};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static uint64_t random_state;

static float random_float(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

static void fill(float *x, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        x[i] = random_float();
        x[i] *= i % 3 == 0 ? 0.01f : 2.0f;
    }
}

static uint8_t *encode(const struct ps_codec *c, uint64_t stream, float *acc,
                       uint64_t count)
{
    uint64_t bytes = ps_codec_bytes(c, count);
    uint8_t *code = malloc(bytes + 8);

    memset(code, 0xa5, bytes + 8);
    ps_codec_encode(c, stream, acc, count, code);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(code[bytes + i], 0xa5);
    }
    return code;
}

static int check(const struct ps_codec *c, const void *code, uint64_t len,
                 uint64_t count)
{
    char why[200] = "";
    int rc = ps_codec_check(c, code, len, count, why, sizeof(why));

    assert_int_equal(rc != 0, why[0] != '\0');
    return rc;
}

/* The vectors of the classic store's own packing. */
static void two_bit_codes_are_those_of_mxnet(void **state)
{
    const struct ps_codec c = {
        .kind = PS_CODEC_2BIT, .threshold = 0.5f, .feedback = true};
    const float first[4] = {0.4f, 0.5f, -0.7f, 0.0f};
    const float second[4] = {0.1f, 0.0f, -0.3f, 0.6f};
    const float left[4] = {0.4f, 0.0f, -0.19999999f, 0.0f};
    float acc[4] = {0};
    float out[4];
    uint8_t *code;

    (void)state;
    ps_codec_add_feedback(&c, acc, NULL, first, 4);
    code = encode(&c, 0, acc, 4);
    assert_int_equal(ps_codec_bytes(&c, 4), 4);
    assert_memory_equal(code, "\x38\0\0\0", 4);
    assert_memory_equal(acc, left, sizeof(left));
    free(code);

    ps_codec_add_feedback(&c, acc, NULL, second, 4);
    code = encode(&c, 0, acc, 4);
    assert_memory_equal(code, "\xcb\0\0\0", 4);
    assert_true(acc[0] >= 0 && acc[0] <= 0);
    assert_true(acc[3] >= 0.10000002384f && acc[3] <= 0.10000002384f);
    assert_int_equal(check(&c, code, 4, 4), 0);
    ps_codec_decode(&c, &(struct ps_codec_data){0, code, 4}, 0, 4, out);
    assert_memory_equal(out, ((float[]){0.5f, 0, -0.5f, 0.5f}), sizeof(out));
    free(code);
}

static void lengths_of_codes_are_those_of_the_table(void **state)
{
    struct ps_codec c = {.kind = PS_CODEC_2BIT};

    (void)state;
    assert_int_equal(ps_codec_bytes(&c, 6), 4);
    assert_int_equal(ps_codec_bytes(&c, 1466521), 4 * 91658);
    assert_int_equal(ps_codec_bytes(&c, 1440000), 4 * 90000);
    c.kind = PS_CODEC_1BIT;
    assert_int_equal(ps_codec_bytes(&c, 32), 4);
    assert_int_equal(ps_codec_bytes(&c, 33), 8);
    c.kind = PS_CODEC_ONEBIT;
    c.scaling = true;
    assert_int_equal(ps_codec_bytes(&c, 33), 12);
    c.kind = PS_CODEC_FP16;
    assert_int_equal(ps_codec_bytes(&c, 5), 12);
    c.kind = PS_CODEC_TOPK;
    c.k = 0.01;
    assert_int_equal(ps_codec_bytes(&c, 1000), 80);
    c.k = 900; /* At most half of them. */
    assert_int_equal(ps_codec_kept(&c, 1000), 500);
    assert_int_equal(ps_codec_kept(&c, 1), 1);
    assert_int_equal(ps_codec_kept(&c, 0), 0);
    c.kind = PS_CODEC_RANDOMK;
    c.k = 100;
    assert_int_equal(ps_codec_bytes(&c, 1000), 400);
    c.kind = PS_CODEC_DITHER;
    c.levels = 1;
    assert_int_equal(ps_codec_bytes(&c, 17), 4 + 8);
    c.levels = 7;
    assert_int_equal(ps_codec_bytes(&c, 17), 4 + 12);
    c.levels = 8;
    assert_int_equal(ps_codec_bytes(&c, 17), 4 + 20);
}

/* Codes of a short vector, which other versions send, too. */
static void codes_match_the_golden_bytes(void **state)
{
    const float x[9] = {0.75f, -1.5f, 0.0f, 0.25f, -0.125f,
                        3.0f,  -2.0f, 0.5f, 1.0f};
    const struct {
        struct ps_codec c;
        const char *code;
        size_t len;
    } golden[] = {
        /* + - 0 0 | 0 + - + | + */
        {{.kind = PS_CODEC_2BIT, .threshold = 0.5f}, "\xe0\x3b\xc0\0", 4},
        {{.kind = PS_CODEC_1BIT, .threshold = 0}, "\x95\x80\0\0", 4},
        {{.kind = PS_CODEC_FP16},
         "\x00\x3a\x00\xbe\x00\x00\x00\x34\x00\xb0"
         "\x00\x42\x00\xc0\x00\x38\x00\x3c\0\0",
         20},
        {{.kind = PS_CODEC_BF16},
         "\x40\x3f\xc0\xbf\x00\x00\x80\x3e\x00\xbe"
         "\x40\x40\x00\xc0\x00\x3f\x80\x3f\0\0",
         20},
        /* - at 1, 4 and 6; mean 9.125 / 9 = 1.0138888 = 0x3f81c71c */
        {{.kind = PS_CODEC_ONEBIT, .scaling = true},
         "\x4a\0\0\0\x1c\xc7\x81\x3f",
         8},
        {{.kind = PS_CODEC_TOPK, .k = 3},
         "\1\0\0\0\0\0\xc0\xbf\5\0\0\0\0\0\x40\x40\6\0\0\0\0\0\0\xc0",
         24},
        /* Norm 3, and every value on a level of 3/6: rounding is not random. */
        {{.kind = PS_CODEC_NATURAL, .levels = 6}, "\0\0\x40\x40", 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        float acc[9];
        uint8_t *code;

        memcpy(acc, x, sizeof(x));
        code = encode(&golden[i].c, 0, acc, 9);
        assert_memory_equal(code, golden[i].code, golden[i].len);
        free(code);
    }
}

static void all_variants_give_the_same_bits(void **state)
{
    static float base[COUNT_MAX];
    static float moment[COUNT_MAX];
    static float acc[COUNT_MAX];
    static float first_acc[COUNT_MAX];
    static float first_moment[COUNT_MAX];
    static float out[COUNT_MAX];
    static float first_out[COUNT_MAX];

    (void)state;
    for (size_t c = 0; c < CODECS; c++) {
        for (size_t n = 0; n < COUNTS; n++) {
            const uint64_t count = counts[n];
            uint8_t *first = NULL;
            uint64_t bytes = ps_codec_bytes(&codecs[c], count);

            random_state = c * 100 + n;
            fill(base, count);
            if (count > 20) {
                base[3] = -0.0f;
                base[7] = 1e-42f;
                base[9] = 0.5f;
                base[10] = -0.5f;
            }
            for (size_t v = 0; v < VARIANTS; v++) {
                if (ps_kernel_force(variants[v]) != 0) {
                    continue;
                }
                bool moves = codecs[c].momentum > 0;

                for (uint64_t i = 0; i < count; i++) {
                    acc[i] = 0.25f;
                    moment[i] = -0.5f;
                }
                ps_codec_add_feedback(&codecs[c], acc, moves ? moment : NULL,
                                      base, count);
                uint8_t *code = encode(&codecs[c], 77 + c, acc, count);

                assert_int_equal(check(&codecs[c], code, bytes, count), 0);
                ps_codec_decode(&codecs[c],
                                &(struct ps_codec_data){77 + c, code, count}, 0,
                                count, out);
                if (first == NULL) {
                    first = code;
                    memcpy(first_acc, acc, sizeof(acc));
                    memcpy(first_moment, moment, sizeof(acc));
                    memcpy(first_out, out, sizeof(acc));
                    continue;
                }
                assert_memory_equal(code, first, bytes);
                assert_memory_equal(acc, first_acc, count * sizeof(*acc));
                assert_memory_equal(moment, first_moment, count * sizeof(*acc));
                assert_memory_equal(out, first_out, count * sizeof(*acc));
                free(code);
            }
            free(first);
        }
    }
}

/* r + D(c) = x, but for one rounding. */
static void the_residual_is_the_error_of_the_code(void **state)
{
    static float x[COUNT_MAX];
    static float acc[COUNT_MAX];
    static float out[COUNT_MAX];

    (void)state;
    for (size_t c = 0; c < CODECS; c++) {
        random_state = c;
        fill(x, COUNT_MAX);
        memcpy(acc, x, sizeof(acc));
        uint8_t *code = encode(&codecs[c], 9, acc, COUNT_MAX);

        ps_codec_decode(&codecs[c], &(struct ps_codec_data){9, code, COUNT_MAX},
                        0, COUNT_MAX, out);
        for (uint64_t i = 0; i < COUNT_MAX; i++) {
            if (fabsf(acc[i] + out[i] - x[i]) > 1e-6f * (1 + fabsf(out[i]))) {
                fail_msg("codec %zu, element %llu: %g + %g is not %g", c,
                         (unsigned long long)i, (double)acc[i], (double)out[i],
                         (double)x[i]);
            }
        }
        free(code);
    }
}

static void parts_of_a_code_decode_like_the_whole(void **state)
{
    static float acc[COUNT_MAX];
    static float whole[COUNT_MAX];
    static float part[COUNT_MAX];

    (void)state;
    for (size_t c = 0; c < CODECS; c++) {
        random_state = c;
        fill(acc, COUNT_MAX);
        uint8_t *code = encode(&codecs[c], 9, acc, COUNT_MAX);

        ps_codec_decode(&codecs[c], &(struct ps_codec_data){9, code, COUNT_MAX},
                        0, COUNT_MAX, whole);
        for (uint64_t from = 0, step = 16; from < COUNT_MAX;
             from += step, step = (step * 3 % 1040 + 16) & ~15u) {
            uint64_t n = COUNT_MAX - from < step ? COUNT_MAX - from : step;

            ps_codec_decode(&codecs[c],
                            &(struct ps_codec_data){9, code, COUNT_MAX}, from,
                            n, part + from);
        }
        assert_memory_equal(part, whole, sizeof(whole));
        free(code);
    }
}

static int by_size(const void *a, const void *b)
{
    float x = fabsf(*(const float *)a);
    float y = fabsf(*(const float *)b);

    return (x < y) - (x > y);
}

static void topk_keeps_the_largest_elements(void **state)
{
    static float x[COUNT_MAX];
    static float sorted[COUNT_MAX];
    const struct ps_codec c = {.kind = PS_CODEC_TOPK, .k = 100};
    uint8_t *code;
    float least;

    (void)state;
    random_state = 1;
    fill(x, COUNT_MAX);
    memcpy(sorted, x, sizeof(x));
    qsort(sorted, COUNT_MAX, sizeof(*sorted), by_size);
    least = fabsf(sorted[99]);
    code = encode(&c, 0, x, COUNT_MAX);
    for (unsigned i = 0; i < 100; i++) {
        float v;

        memcpy(&v, code + 8 * i + 4, sizeof(v));
        assert_true(fabsf(v) >= least);
    }
    free(code);
    /* Of equal values, the first. */
    for (unsigned i = 0; i < 10; i++) {
        x[i] = i % 2 == 0 ? 1.0f : -1.0f;
    }
    code = encode(&(struct ps_codec){.kind = PS_CODEC_TOPK, .k = 3}, 0, x, 10);
    for (uint8_t i = 0; i < 3; i++) {
        assert_int_equal(code[8 * i], i);
    }
    free(code);
}

static void randomk_takes_one_element_of_each_stretch(void **state)
{
    static float x[COUNT_MAX];
    static float out[COUNT_MAX];
    const struct ps_codec c = {.kind = PS_CODEC_RANDOMK, .k = 50, .seed = 3};
    uint64_t one = ps_codec_rng_stream(
        &c, &(struct ps_codec_position){.key = 1, .round = 1, .slot = 1});

    (void)state;
    for (unsigned i = 0; i < COUNT_MAX; i++) {
        x[i] = 1;
    }
    uint8_t *code = encode(&c, one, x, COUNT_MAX);

    ps_codec_decode(&c, &(struct ps_codec_data){one, code, COUNT_MAX}, 0,
                    COUNT_MAX, out);
    for (unsigned i = 0; i < 50; i++) {
        float sum = 0;

        for (unsigned j = 0; j < 100; j++) {
            sum += out[100 * i + j];
        }
        assert_true(sum >= 1 && sum <= 1);
    }
    free(code);
    /* All slots choose the same elements, other rounds others. */
    assert_true(one ==
                ps_codec_rng_stream(&c, &(struct ps_codec_position){
                                            .key = 1, .round = 1, .slot = 2}));
    assert_true(one !=
                ps_codec_rng_stream(&c, &(struct ps_codec_position){
                                            .key = 1, .round = 2, .slot = 1}));
}

/* Over many tries the mean of what is decoded is what was encoded. */
static void dithering_is_unbiased(void **state)
{
    const struct ps_codec c[2] = {
        {.kind = PS_CODEC_DITHER, .levels = 4},
        {.kind = PS_CODEC_NATURAL, .levels = 4},
    };
    const float x[8] = {1.0f, 0.3f, -0.7f, 0.01f, 0.0f, -0.09f, 0.6f, -0.2f};

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        double sum[8] = {0};

        for (unsigned t = 0; t < 4000; t++) {
            float acc[8];
            float out[8];

            memcpy(acc, x, sizeof(x));
            uint64_t stream = ps_codec_rng_stream(
                &c[k], &(struct ps_codec_position){.round = t});
            uint8_t *code = encode(&c[k], stream, acc, 8);

            ps_codec_decode(&c[k], &(struct ps_codec_data){stream, code, 8}, 0,
                            8, out);
            for (unsigned i = 0; i < 8; i++) {
                sum[i] += (double)out[i];
            }
            free(code);
        }
        for (unsigned i = 0; i < 8; i++) {
            if (fabs(sum[i] / 4000 - (double)x[i]) > 0.015) {
                fail_msg("codec %u: mean %g of %g", k, sum[i] / 4000,
                         (double)x[i]);
            }
        }
    }
}

static void residuals_recover_from_nonfinite_gradients(void **state)
{
    (void)state;
    for (size_t c = 0; c < CODECS; c++) {
        float acc[40];

        for (unsigned i = 0; i < 40; i++) {
            acc[i] = (float)i;
        }
        acc[5] = NAN;
        acc[6] = INFINITY;
        acc[39] = -INFINITY;
        free(encode(&codecs[c], 1, acc, 40));
        for (unsigned i = 0; i < 40; i++) {
            assert_true(isfinite(acc[i]));
        }
    }
}

static void hostile_codes_are_refused(void **state)
{
    const struct ps_codec topk = {.kind = PS_CODEC_TOPK, .k = 2};
    const struct ps_codec two = {.kind = PS_CODEC_2BIT, .threshold = 1};
    uint32_t pairs[4] = {3, 0, 9, 0};

    (void)state;
    assert_int_equal(check(&topk, pairs, 16, 10), 0);
    assert_int_equal(check(&topk, pairs, 16, 9), PS_E_PROTO);
    pairs[0] = 9;
    assert_int_equal(check(&topk, pairs, 16, 10), PS_E_PROTO);
    pairs[0] = UINT32_MAX;
    assert_int_equal(check(&topk, pairs, 16, 10), PS_E_PROTO);
    assert_int_equal(check(&two, "\x40\0\0\0", 4, 16), PS_E_PROTO);
    assert_int_equal(check(&two, "\0\0\0\x03", 4, 15), PS_E_PROTO);
    assert_int_equal(check(&two, "\0\0\0\x0c", 4, 15), 0);
    assert_int_equal(check(&two, "\0\0\0\x03", 4, 16), 0);
    for (size_t c = 0; c < CODECS; c++) {
        for (size_t n = 0; n < COUNTS; n++) {
            uint64_t bytes = ps_codec_bytes(&codecs[c], counts[n]);

            assert_int_equal(check(&codecs[c], NULL, bytes - 1, counts[n]),
                             PS_E_PROTO);
            assert_int_equal(check(&codecs[c], NULL, bytes + 1, counts[n]),
                             PS_E_PROTO);
            assert_int_equal(check(&codecs[c], NULL, 0, counts[n]), PS_E_PROTO);
        }
        assert_int_equal(check(&codecs[c], NULL, 4, UINT64_MAX), PS_E_PROTO);
    }
}

/* The float next to x, away from zero or towards it. */
static float beside(float x, int step)
{
    return ps_float_of_bits(ps_float_bits(x) + (uint32_t)step);
}

static float middle(float a, float b)
{
    return a + (b - a) / 2; /* Exact: halves have few bits. */
}

static void half_floats_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = ps_float_of_fp16((uint16_t)h);

        if ((h & 0x7fffu) > 0x7c00u) {
            assert_true(isnan(x));
            assert_true(isnan(ps_float_of_fp16(ps_fp16_of_float(x))));
            continue;
        }
        assert_int_equal(ps_fp16_of_float(x), h);
        if ((h & 0x7fffu) < 0x7bffu) {
            float next = ps_float_of_fp16((uint16_t)(h + 1));
            float m = middle(x, next);

            assert_int_equal(ps_fp16_of_float(m), h + (h & 1u));
            assert_int_equal(ps_fp16_of_float(beside(m, -1)), h);
            assert_int_equal(ps_fp16_of_float(beside(m, 1)), h + 1);
        }
    }
    assert_int_equal(ps_fp16_of_float(65519.996f), 0x7bff);
    assert_int_equal(ps_fp16_of_float(65520.0f), 0x7c00);
    assert_int_equal(ps_fp16_of_float(-1e30f), 0xfc00);
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = ps_float_of_bf16((uint16_t)h);

        if ((h & 0x7fffu) > 0x7f80u) {
            assert_true(isnan(ps_float_of_bf16(ps_bf16_of_float(x))));
            continue;
        }
        assert_int_equal(ps_bf16_of_float(x), h);
        if ((h & 0x7fffu) < 0x7f7fu) {
            uint32_t even = (h << 16) + 0x8000u;

            assert_int_equal(ps_bf16_of_float(ps_float_of_bits(even)),
                             h + (h & 1u));
            assert_int_equal(ps_bf16_of_float(ps_float_of_bits(even - 1)), h);
            assert_int_equal(ps_bf16_of_float(ps_float_of_bits(even + 1)),
                             h + 1);
        }
    }
}

/* Jobs: codes as sources of every op, in the tree's order and in ranges. */
static void jobs_add_decoded_codes(void **state)
{
    enum { SOURCES = 7, COUNT = 3000 };
    static float plain[SOURCES][COUNT];
    static float acc[COUNT];
    static float want[COUNT];
    static float got[COUNT];
    static const uint8_t level[SOURCES] = {3, 0, 0, 0, 0, 0, 0};
    const void *codes[SOURCES];
    const void *vectors[SOURCES];

    (void)state;
    for (size_t c = 0; c < CODECS; c++) {
        for (uint32_t i = 0; i < SOURCES; i++) {
            random_state = c + 100 * i;
            fill(acc, COUNT);
            codes[i] = encode(&codecs[c], 3, acc, COUNT);
            vectors[i] = plain[i];
            ps_codec_decode(&codecs[c],
                            &(struct ps_codec_data){3, codes[i], COUNT}, 0,
                            COUNT, plain[i]);
        }
        for (uint32_t n = 1; n <= SOURCES; n++) {
            struct ps_job job = {.op = PS_JOB_SUM,
                                 .dtype = PS_DTYPE_FLOAT32,
                                 .count = COUNT,
                                 .src_count = n,
                                 .src = vectors,
                                 .level = n % 2 == 0 ? level : NULL,
                                 .divide_by = n == 5 ? 5 : 1,
                                 .dst = want};

            assert_int_equal(ps_kernel_run(&job), 0);
            job.src = codes;
            job.src_codec = codecs[c];
            job.src_rng_stream = 3;
            job.dst = got;
            assert_int_equal(ps_kernel_run_range(&job, 0, 1600), 0);
            assert_int_equal(ps_kernel_run_range(&job, 1600, COUNT), 0);
            assert_memory_equal(got, want, sizeof(want));
            job.dtype = PS_DTYPE_FLOAT64;
            assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
        }
        for (uint32_t i = 0; i < SOURCES; i++) {
            free((void *)(uintptr_t)codes[i]);
        }
    }
}

static void jobs_encode_sums(void **state)
{
    enum { COUNT = 3000 };
    static float a[COUNT];
    static float b[COUNT];
    static float sum[COUNT];
    static float residual[COUNT];
    static float moment[COUNT];
    static float other_residual[COUNT];
    static float other_moment[COUNT];
    static float value[COUNT];
    static float other_value[COUNT];
    static float before[COUNT];
    static float kept[COUNT];
    static float apart[COUNT];
    static float moment_before[COUNT];
    static float moment_apart[COUNT];
    static uint8_t code[4 * COUNT];
    static uint8_t other[4 * COUNT];
    const void *src[2] = {a, b};

    (void)state;
    for (size_t c = 0; c < CODECS; c++) {
        const struct ps_codec *p = &codecs[c];
        bool moves = p->momentum > 0;

        memset(residual, 0, sizeof(residual));
        memset(moment, 0, sizeof(moment));
        memset(other_residual, 0, sizeof(residual));
        memset(other_moment, 0, sizeof(moment));
        for (unsigned round = 0; round < 5; round++) {
            struct ps_job job = {.op = PS_JOB_ENCODE,
                                 .dtype = PS_DTYPE_FLOAT32,
                                 .count = COUNT,
                                 .src_count = 2,
                                 .src = src,
                                 .dst = code,
                                 .codec = *p,
                                 .rng_stream = round,
                                 .residual = residual,
                                 .moment = moves ? moment : NULL,
                                 .decoded = value};

            random_state = round + c;
            fill(a, COUNT);
            fill(b, COUNT);
            assert_int_equal(ps_kernel_run_range(&job, 16, COUNT), PS_E_INVAL);
            memcpy(before, residual, sizeof(before));
            memcpy(moment_before, moment, sizeof(moment_before));
            assert_int_equal(ps_kernel_run(&job), 0);
            for (unsigned i = 0; i < COUNT; i++) {
                sum[i] = a[i] + b[i];
            }
            ps_codec_add_feedback(p, other_residual,
                                  moves ? other_moment : NULL, sum, COUNT);
            ps_codec_encode(p, round, other_residual, COUNT, other);
            ps_codec_decode(p, &(struct ps_codec_data){round, other, COUNT}, 0,
                            COUNT, other_value);
            assert_memory_equal(code, other, ps_codec_bytes(p, COUNT));
            assert_memory_equal(residual, other_residual, sizeof(residual));
            assert_memory_equal(moment, other_moment, sizeof(moment));
            assert_memory_equal(value, other_value, sizeof(value));
            /* Not in place: the old residual is kept, and the result is the
             * same. */
            memcpy(kept, before, sizeof(kept));
            job.residual = apart;
            job.prior.residual = before;
            job.moment = moves ? moment_apart : NULL;
            job.prior.moment = moves ? moment_before : NULL;
            assert_int_equal(ps_kernel_run(&job), 0);
            assert_memory_equal(apart, residual, sizeof(residual));
            assert_memory_equal(before, kept, sizeof(kept));
            assert_memory_equal(code, other, ps_codec_bytes(p, COUNT));
            if (moves) {
                assert_memory_equal(moment_apart, moment, sizeof(moment));
            }
            job.residual = NULL;
            assert_int_equal(ps_kernel_run(&job), PS_E_INVAL);
        }
    }
}

/* Each source has the code and the residual that it has alone; one that is
 * missing keeps its residual. */
static void jobs_encode_each_source(void **state)
{
    enum { COUNT = 1003, SOURCES = 3 };

    static float given[SOURCES][COUNT];
    static float before[SOURCES][COUNT];
    static float after[SOURCES][COUNT];
    static float alone[COUNT];
    static uint8_t codes[SOURCES * 4 * COUNT];
    static uint8_t other[4 * COUNT];
    const struct ps_codec p = {
        .kind = PS_CODEC_2BIT, .feedback = true, .threshold = 0.5f};
    const uint64_t len = ps_codec_bytes(&p, COUNT);
    const void *src[SOURCES] = {given[0], NULL, given[2]};
    struct ps_job job = {.op = PS_JOB_ENCODE_EACH,
                         .dtype = PS_DTYPE_FLOAT32,
                         .count = COUNT,
                         .src_count = SOURCES,
                         .src = src,
                         .dst = codes,
                         .codec = p,
                         .residual = after[0],
                         .prior.residual = before[0]};

    (void)state;
    assert_false(ps_kernel_is_divisible(&job));
    fill(before[0], COUNT);
    fill(before[1], COUNT);
    fill(before[2], COUNT);
    fill(given[0], COUNT);
    fill(given[2], COUNT);
    assert_int_equal(ps_kernel_run(&job), 0);
    assert_memory_equal(after[1], before[1], sizeof(before[1]));
    for (unsigned i = 0; i < SOURCES; i += 2) {
        memcpy(alone, before[i], sizeof(alone));
        ps_codec_add_feedback(&p, alone, NULL, given[i], COUNT);
        ps_codec_encode(&p, 0, alone, COUNT, other);
        assert_memory_equal(codes + (i / 2) * len, other, len);
        assert_memory_equal(after[i], alone, sizeof(alone));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_bit_codes_are_those_of_mxnet),
        cmocka_unit_test(lengths_of_codes_are_those_of_the_table),
        cmocka_unit_test(codes_match_the_golden_bytes),
        cmocka_unit_test(all_variants_give_the_same_bits),
        cmocka_unit_test(the_residual_is_the_error_of_the_code),
        cmocka_unit_test(parts_of_a_code_decode_like_the_whole),
        cmocka_unit_test(topk_keeps_the_largest_elements),
        cmocka_unit_test(randomk_takes_one_element_of_each_stretch),
        cmocka_unit_test(dithering_is_unbiased),
        cmocka_unit_test(residuals_recover_from_nonfinite_gradients),
        cmocka_unit_test(hostile_codes_are_refused),
        cmocka_unit_test(jobs_add_decoded_codes),
        cmocka_unit_test(jobs_encode_sums),
        cmocka_unit_test(jobs_encode_each_source),
        cmocka_unit_test(half_floats_round_to_nearest_even),
    };

    return cmocka_run_group_tests_name("grad_codec", tests, NULL, NULL);
}
