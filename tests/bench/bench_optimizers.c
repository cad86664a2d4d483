/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of every optimizer's step on one thread beside memcpy: a line of JSON
 * each, in GB/s, counting every buffer read and every buffer written once
 * (10^9 bytes). By partitions of 1 MiB as servers have them, 16 of them: more
 * than the nearest caches hold. The new weights go where the gradient lay, as
 * on a server.
 *
 *     bench_optimizers [SECONDS-PER-LINE [VARIANT]] */
#include "kernel/kernel.h"
#include "measure.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT    ((size_t)1 << 18)
#define PARTS    16u
#define RUNS_MAX 4000u

struct row {
    const char *what;
    enum ps_job_op op;
    enum ps_step_kind kind;
    bool moving; /* SGD with momentum. */
    bool aside;  /* The first part of a step, with its norms. */
    enum ps_dtype half;
};

static const struct row rows[] = {
    {.what = "memcpy", .op = PS_JOB_ENCODE},
    {.what = "sgd", .op = PS_JOB_SGD},
    {.what = "sgd, momentum", .op = PS_JOB_SGD, .moving = true},
    {.what = "nag", .op = PS_JOB_STEP, .kind = PS_STEP_NAG},
    {.what = "nag, decay after the step",
     .op = PS_JOB_STEP,
     .kind = PS_STEP_NAG_LATE},
    {.what = "adam", .op = PS_JOB_STEP, .kind = PS_STEP_ADAM},
    {.what = "adamw", .op = PS_JOB_STEP, .kind = PS_STEP_ADAMW},
    {.what = "adagrad", .op = PS_JOB_STEP, .kind = PS_STEP_ADAGRAD},
    {.what = "rmsprop", .op = PS_JOB_STEP, .kind = PS_STEP_RMSPROP},
    {.what = "rmsprop, centered",
     .op = PS_JOB_STEP,
     .kind = PS_STEP_RMSPROP_CENTERED},
    {.what = "adadelta", .op = PS_JOB_STEP, .kind = PS_STEP_ADADELTA},
    {.what = "ftrl", .op = PS_JOB_STEP, .kind = PS_STEP_FTRL},
    {.what = "adamax", .op = PS_JOB_STEP, .kind = PS_STEP_ADAMAX},
    {.what = "nadam", .op = PS_JOB_STEP, .kind = PS_STEP_NADAM},
    {.what = "ftml", .op = PS_JOB_STEP, .kind = PS_STEP_FTML},
    {.what = "signum", .op = PS_JOB_STEP, .kind = PS_STEP_SIGNUM},
    {.what = "signsgd", .op = PS_JOB_STEP, .kind = PS_STEP_SIGNSGD},
    {.what = "dcasgd", .op = PS_JOB_STEP, .kind = PS_STEP_DCASGD},
    {.what = "sgld", .op = PS_JOB_STEP, .kind = PS_STEP_SGLD},
    {.what = "test", .op = PS_JOB_STEP, .kind = PS_STEP_TEST},
    {.what = "gradient and norms",
     .op = PS_JOB_STEP,
     .kind = PS_STEP_GRADIENT,
     .aside = true},
    {.what = "lamb, direction and norms",
     .op = PS_JOB_STEP,
     .kind = PS_STEP_LAMB,
     .aside = true},
    {.what = "lamb, along it", .op = PS_JOB_STEP, .kind = PS_STEP_ALONG},
    {.what = "sgd, momentum, float16",
     .op = PS_JOB_SGD,
     .moving = true,
     .half = PS_DTYPE_FLOAT16},
    {.what = "adam, float16",
     .op = PS_JOB_STEP,
     .kind = PS_STEP_ADAM,
     .half = PS_DTYPE_FLOAT16},
    {.what = "adam, bfloat16",
     .op = PS_JOB_STEP,
     .kind = PS_STEP_ADAM,
     .half = PS_DTYPE_BFLOAT16},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static float *weight[PARTS];
static float *gradient[PARTS];
static float *state[PS_STATES_MAX][PARTS];

static unsigned states_of(const struct row *row)
{
    return row->op == PS_JOB_SGD ? (row->moving ? 1 : 0)
                                 : ps_step_states(row->kind);
}

/* Bytes of all buffers for each element. */
static double bytes_of(const struct row *row)
{
    const double value = row->half != PS_DTYPE_FLOAT32 ? 2 : 4;

    if (row->op == PS_JOB_ENCODE) {
        return 8;
    }
    /* Weights, gradient, new weights; masters are read and written. */
    return (row->half != PS_DTYPE_FLOAT32 ? 8 + 2 * value : 3 * value) +
           8.0 * states_of(row);
}

static void run_optimizer(const struct row *row, unsigned i)
{
    const void *src = gradient[i];
    struct ps_square_sum squares[2] = {0};
    struct ps_job job = {
        .op = row->op,
        .dtype = PS_DTYPE_FLOAT32,
        .storage_dtype = row->half,
        .count = COUNT,
        .src = &src,
        .src_count = 1,
        .dst = gradient[i],
        .weight = weight[i],
        .direction_only = row->aside,
        .square_sum = row->aside ? &squares[0] : NULL,
        .weight_square_sum = row->aside ? &squares[1] : NULL,
        .master = row->half != PS_DTYPE_FLOAT32 ? weight[i] : NULL,
        .state = state[0][i],
        .states = {state[0][i], state[1][i], state[2][i]},
        .sgd = {.lr = 0.1, .momentum = row->moving ? 0.9 : 0, .rescale = 1},
        .step = {.kind = row->kind,
                 .lr = 0.1,
                 .wd = 0.01,
                 .rescale = 1,
                 .beta1 = 0.9,
                 .beta2 = 0.999,
                 .epsilon = 1e-8,
                 .k = {0.5, 0.5, 0.5}},
    };

    if (ps_kernel_run(&job) != 0) {
        fprintf(stderr, "bench_optimizers: the kernel refused %s\n", row->what);
        exit(1);
    }
}

static void run_once(const struct row *row)
{
    for (unsigned i = 0; i < PARTS; i++) {
        if (row->op == PS_JOB_ENCODE) {
            memcpy(gradient[i], weight[i], COUNT * sizeof(float));
        } else {
            run_optimizer(row, i);
        }
    }
}

/* Plain numbers: what others have left there may take longer. */
static void refill(void)
{
    for (unsigned i = 0; i < PARTS; i++) {
        for (size_t j = 0; j < COUNT; j++) {
            weight[i][j] = 0.5f + 1e-3f * (float)(j % 97);
            gradient[i][j] = weight[i][j];
            for (unsigned s = 0; s < PS_STATES_MAX; s++) {
                state[s][i][j] = 1;
            }
        }
    }
}

static void measure(const struct row *row, double limit)
{
    static double seconds[RUNS_MAX];
    const double bytes = bytes_of(row) * PARTS * COUNT;
    unsigned runs = 0;

    refill();
    run_once(row);
    const double end = measure_now() + limit;
    while (runs < RUNS_MAX && (runs < 5 || measure_now() < end)) {
        const double begin = measure_now();

        run_once(row);
        seconds[runs++] = measure_now() - begin;
    }
    measure_sort(seconds, runs);
    printf("{\"what\": \"%s\", \"median\": %.3f, \"least\": %.3f, "
           "\"most\": %.3f}\n",
           row->what, bytes / seconds[runs / 2] / 1e9,
           bytes / seconds[runs - 1] / 1e9, bytes / seconds[0] / 1e9);
    fflush(stdout);
}

static float *buffer(void)
{
    float *p = aligned_alloc(64, COUNT * sizeof(float));

    if (p == NULL) {
        fprintf(stderr, "bench_optimizers: no memory\n");
        exit(1);
    }
    return p;
}

int main(int argc, char **argv)
{
    const double limit = argc > 1 ? atof(argv[1]) : 0.3;

    if (argc > 2 && ps_kernel_force(argv[2]) != 0) {
        fprintf(stderr, "bench_optimizers: %s is not on this processor\n",
                argv[2]);
        return 1;
    }
    for (unsigned i = 0; i < PARTS; i++) {
        weight[i] = buffer();
        gradient[i] = buffer();
        for (unsigned s = 0; s < PS_STATES_MAX; s++) {
            state[s][i] = buffer();
        }
    }
    for (size_t i = 0; i < ROWS; i++) {
        measure(&rows[i], limit);
    }
    return 0;
}
