/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the kernel on one thread, beside memcpy: a table of GB/s, counting
 * each source read and each result written once (10^9 bytes).
 *
 *     bench_kernel [SECONDS-PER-CELL [VARIANT ...]]
 *
 * A cell is the median of as many runs as fit, at least three. */
#include "kernel/kernel.h"
#include "measure.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOURCES_MAX 8u
#define RUNS_MAX    2000u
#define MIB         ((size_t)1 << 20)

static const size_t sizes[] = {1 * MIB, 4 * MIB, 256 * MIB};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct row {
    const char *what;
    unsigned src_count; /* 0: plain memcpy. */
    enum ps_job_op op;
    unsigned streams; /* Buffers read and written. */
};

static const struct row rows[] = {
    {"memcpy", 0, PS_JOB_SUM, 2},         {"sum of 1", 1, PS_JOB_SUM, 2},
    {"sum of 2", 2, PS_JOB_SUM, 3},       {"sum of 4", 4, PS_JOB_SUM, 5},
    {"sum of 8", 8, PS_JOB_SUM, 9},       {"sgd, 1 source", 1, PS_JOB_SGD, 5},
    {"sgd, 4 sources", 4, PS_JOB_SGD, 8},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static float *src[SOURCES_MAX];
static float *dst;
static float *state;

static void run_once(const struct row *row, size_t bytes)
{
    const void *from[SOURCES_MAX];
    struct ps_job job = {
        .op = row->op,
        .dtype = PS_DTYPE_FLOAT32,
        .count = bytes / sizeof(float),
        .src_count = row->src_count,
        .src = from,
        .dst = dst,
        .weight = dst,
        .state = state,
        .sgd = {.lr = 0.1, .momentum = 0.9, .rescale = 1},
    };

    if (row->src_count == 0) {
        memcpy(dst, src[0], bytes);
        return;
    }
    for (unsigned i = 0; i < row->src_count; i++) {
        from[i] = src[i];
    }
    if (ps_kernel_run(&job) != 0) {
        fprintf(stderr, "bench_kernel: the kernel refused %s\n", row->what);
        exit(1);
    }
}

static double rate(const struct row *row, size_t bytes, double limit)
{
    static double seconds[RUNS_MAX];
    double end;
    unsigned runs = 0;

    run_once(row, bytes);
    end = measure_now() + limit;
    while (runs < RUNS_MAX && (runs < 3 || measure_now() < end)) {
        double begin = measure_now();

        run_once(row, bytes);
        seconds[runs++] = measure_now() - begin;
    }
    measure_sort(seconds, runs);
    return (double)row->streams * (double)bytes / seconds[runs / 2] / 1e9;
}

static float *buffer(size_t bytes, float value)
{
    float *p = aligned_alloc(2 * MIB, bytes);

    if (p == NULL) {
        fprintf(stderr, "bench_kernel: no memory\n");
        exit(1);
    }
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        p[i] = value;
    }
    return p;
}

static void print_table(const char *variant, double limit)
{
    printf("%s, GB/s\n%-16s", variant, "");
    for (size_t s = 0; s < SIZES; s++) {
        printf(" %7zu MiB", sizes[s] / MIB);
    }
    printf("\n");
    for (size_t r = 0; r < ROWS; r++) {
        printf("%-16s", rows[r].what);
        for (size_t s = 0; s < SIZES; s++) {
            printf(" %11.1f", rate(&rows[r], sizes[s], limit));
            fflush(stdout);
        }
        printf("\n");
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"portable", "avx2", "avx512"};
    double limit = argc > 1 ? atof(argv[1]) : 0.2;
    const char *const *names = argc > 2 ? (const char **)argv + 2 : all;
    size_t names_count = argc > 2 ? (size_t)argc - 2 : 3;

    for (unsigned i = 0; i < SOURCES_MAX; i++) {
        src[i] = buffer(sizes[SIZES - 1], (float)i);
    }
    dst = buffer(sizes[SIZES - 1], 0);
    state = buffer(sizes[SIZES - 1], 0);
    for (size_t i = 0; i < names_count; i++) {
        if (ps_kernel_force(names[i]) != 0) {
            printf("%s: not on this processor\n\n", names[i]);
            continue;
        }
        print_table(names[i], limit);
    }
    return 0;
}
