/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of codecs on one thread beside memcpy: GB/s of the float32 vector,
 * counted once (10^9 bytes), by partitions of 1 MiB as agents and servers have
 * them.
 *
 *     bench_grad_codec [SECONDS-PER-CELL [VARIANT ...]]
 *     bench_grad_codec --json [SECONDS-PER-CELL]
 *
 * With --json, a line for each cell, with the best variant of the processor. */
#include "kernel/kernel.h"
#include "kernel/codec.h"
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT    ((size_t)1 << 18)
#define PARTS    16u /* 16 MiB: beyond the nearest caches. */
#define RUNS_MAX 4000u

static const struct {
    const char *what;
    struct ps_codec codec;
} rows[] = {
    {"memcpy", {.kind = PS_CODEC_NONE}},
    {"2bit", {.kind = PS_CODEC_2BIT, .feedback = true, .threshold = 0.5f}},
    {"1bit", {.kind = PS_CODEC_1BIT, .feedback = true}},
    {"fp16", {.kind = PS_CODEC_FP16}},
    {"bf16", {.kind = PS_CODEC_BF16}},
    {"onebit", {.kind = PS_CODEC_ONEBIT, .feedback = true, .scaling = true}},
    {"topk 1%", {.kind = PS_CODEC_TOPK, .feedback = true, .k = 0.01}},
    {"randomk 1%", {.kind = PS_CODEC_RANDOMK, .feedback = true, .k = 0.01}},
    {"dither 7", {.kind = PS_CODEC_DITHER, .feedback = true, .levels = 7}},
    {"natural 7", {.kind = PS_CODEC_NATURAL, .feedback = true, .levels = 7}},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static float *vector[PARTS];
static float *residual[PARTS];
static void *code[PARTS];
static float *out[PARTS];

static void encode_part(const struct ps_codec *c, unsigned i)
{
    const void *src = vector[i];
    struct ps_job job = {.op = PS_JOB_ENCODE,
                         .dtype = PS_DTYPE_FLOAT32,
                         .count = COUNT,
                         .src_count = 1,
                         .src = &src,
                         .dst = code[i],
                         .codec = *c,
                         .rng_stream = i,
                         .residual = residual[i]};

    if (ps_kernel_run(&job) != 0) {
        fprintf(stderr, "bench_grad_codec: the kernel refused\n");
        exit(1);
    }
}

static void run_once(const struct ps_codec *c, bool decode)
{
    for (unsigned i = 0; i < PARTS; i++) {
        if (c->kind == PS_CODEC_NONE) {
            memcpy(out[i], vector[i], COUNT * sizeof(float));
        } else if (decode) {
            ps_codec_decode(c, &(struct ps_codec_data){i, code[i], COUNT}, 0,
                            COUNT, out[i]);
        } else {
            encode_part(c, i);
        }
    }
}

static double rate(const struct ps_codec *c, bool decode, double limit)
{
    static double seconds[RUNS_MAX];
    unsigned runs = 0;

    run_once(c, false);
    double end = measure_now() + limit;
    while (runs < RUNS_MAX && (runs < 3 || measure_now() < end)) {
        double begin = measure_now();

        run_once(c, decode);
        seconds[runs++] = measure_now() - begin;
    }
    measure_sort(seconds, runs);
    return PARTS * COUNT * sizeof(float) / seconds[runs / 2] / 1e9;
}

static void *buffer(void)
{
    void *p = aligned_alloc(64, COUNT * sizeof(float));

    if (p == NULL) {
        fprintf(stderr, "bench_grad_codec: no memory\n");
        exit(1);
    }
    memset(p, 0, COUNT * sizeof(float));
    return p;
}

static void print_json(const char *what, const char *how, double gbps)
{
    printf("{\"what\": \"%s%s\", \"median\": %.3f}\n", what, how, gbps);
    fflush(stdout);
}

static void run_json(double limit)
{
    for (size_t r = 0; r < ROWS; r++) {
        const struct ps_codec *c = &rows[r].codec;

        if (c->kind == PS_CODEC_NONE) {
            print_json(rows[r].what, "", 2 * rate(c, false, limit));
        } else {
            print_json(rows[r].what, ", encoded", rate(c, false, limit));
            print_json(rows[r].what, ", decoded", rate(c, true, limit));
        }
    }
}

int main(int argc, char **argv)
{
    const bool json = argc > 1 && strcmp(argv[1], "--json") == 0;

    if (json) {
        argc--;
        argv++;
    }
    static const char *const all[] = {"portable", "avx2", "avx512"};
    double limit = argc > 1 ? atof(argv[1]) : 0.2;
    const char *const *names = argc > 2 ? (const char **)argv + 2 : all;
    size_t names_count = argc > 2 ? (size_t)argc - 2 : 3;
    uint32_t x = 1;

    for (unsigned i = 0; i < PARTS; i++) {
        vector[i] = buffer();
        residual[i] = buffer();
        code[i] = buffer();
        out[i] = buffer();
        for (size_t j = 0; j < COUNT; j++) {
            x = x * 1664525u + 1013904223u;
            vector[i][j] = (float)(int32_t)x * 0x1p-31f;
        }
    }
    if (json) {
        run_json(limit);
        return 0;
    }
    for (size_t v = 0; v < names_count; v++) {
        if (ps_kernel_force(names[v]) != 0) {
            printf("%s: not on this processor\n\n", names[v]);
            continue;
        }
        printf("%s, GB/s\n%-12s %8s %8s\n", names[v], "", "encode", "decode");
        for (size_t r = 0; r < ROWS; r++) {
            printf("%-12s %8.2f", rows[r].what,
                   rate(&rows[r].codec, false, limit));
            printf(" %8.2f\n", rate(&rows[r].codec, true, limit));
            fflush(stdout);
        }
        printf("\n");
    }
    return 0;
}
