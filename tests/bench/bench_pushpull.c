/* SPDX-License-Identifier: Apache-2.0 */
/* psc_pushpull() of float32, as a worker of a job on one machine:
 *
 *     pslaunch -n WORKERS -s SERVERS -- bench_pushpull BYTES:ITERATIONS ...
 *
 * Each size is measured twice: into an array of the worker ("array", what an
 * allreduce does) and with the result read where the agent put it ("view").
 * A barrier before each round; the time of a round is that of its slowest
 * worker. The workers learn each other's times by summing them as a key. */
#include "measure.h"

#include "client/psclient.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    struct psc_client *client;
    int rank;
    int ranks;
};

__attribute__((noreturn, format(printf, 2, 3))) static void
give_up(const struct bench *b, const char *format, ...)
{
    char detail[PSC_TEXT_MAX] = "";
    va_list args;

    va_start(args, format);
    fprintf(stderr, "bench_pushpull: ");
    vfprintf(stderr, format, args);
    va_end(args);
    if (b->client != NULL) {
        (void)psc_last_detail(b->client, detail, sizeof(detail));
    }
    fprintf(stderr, ": %s\n", detail);
    exit(1);
}

static void check(const struct bench *b, const char *call, int rc)
{
    if (rc != 0) {
        give_up(b, "%s: %s", call, psc_strerror(rc));
    }
}
#define CHECK(b, call) check((b), #call, (call))

static uint32_t key_new(const struct bench *b, const char *name, uint32_t dtype,
                        uint64_t count, const void *first)
{
    uint32_t key;

    CHECK(b, psc_key(b->client, name, dtype, 1, &count, &key));
    CHECK(b, psc_init(b->client, key, b->rank == 0 ? first : NULL));
    return key;
}

/* One round into `out`, or where the agent likes if that is NULL; the time
 * that it took this worker. */
static double run_round(const struct bench *b, uint32_t key, const float *src,
                        float *out, size_t count, unsigned round, size_t *wrong)
{
    const void *view = out;
    size_t bytes = count * sizeof(float);
    struct psc_op *op;
    double begin;
    double took;

    CHECK(b, psc_barrier(b->client));
    begin = measure_now();
    CHECK(b, psc_pushpull_start(b->client, key, src, out, NULL, &op));
    CHECK(b, psc_op_wait(op, PSC_WAIT_DEFAULT));
    took = measure_now() - begin;
    if (out == NULL) {
        CHECK(b, psc_op_view(op, &view, &bytes));
    }
    if (bytes != count * sizeof(float)) {
        give_up(b, "a result of %zu bytes for %zu elements", bytes, count);
    }
    *wrong += measure_check(view, count, b->ranks, round);
    psc_op_free(op);
    return took;
}

/* The slowest worker's time of each round in `seconds`, and the wrong places
 * of all workers. */
static size_t gather(const struct bench *b, const char *what,
                     const struct measure_size *size, double *seconds,
                     size_t wrong)
{
    size_t ranks = (size_t)b->ranks;
    size_t count = (size->iterations + 1) * ranks;
    double *all = calloc(count, sizeof(double));
    char name[64];
    uint32_t key;

    if (all == NULL) {
        give_up(b, "no memory");
    }
    snprintf(name, sizeof(name), "bench.%s.%zu.times", what, size->bytes);
    key = key_new(b, name, PSC_FLOAT64, count, all);
    for (unsigned i = 0; i < size->iterations; i++) {
        all[i * ranks + (size_t)b->rank] = seconds[i];
    }
    all[size->iterations * ranks] = (double)wrong;
    CHECK(b, psc_pushpull(b->client, key, all, all));
    for (unsigned i = 0; i < size->iterations; i++) {
        seconds[i] = 0;
        for (size_t r = 0; r < ranks; r++) {
            if (all[i * ranks + r] > seconds[i]) {
                seconds[i] = all[i * ranks + r];
            }
        }
    }
    wrong = (size_t)all[size->iterations * ranks];
    free(all);
    return wrong;
}

static void run_size(const struct bench *b, const struct measure_size *size,
                     const char *what)
{
    bool view = strcmp(what, "view") == 0;
    size_t count = size->bytes / sizeof(float);
    double *seconds = calloc(size->iterations, sizeof(double));
    size_t wrong = 0;
    char name[64];
    uint32_t key;
    void *src;
    void *out = NULL;

    if (seconds == NULL) {
        give_up(b, "no memory");
    }
    CHECK(b, psc_alloc(b->client, size->bytes, &src));
    if (!view) {
        CHECK(b, psc_alloc(b->client, size->bytes, &out));
    }
    measure_fill(src, count, b->rank);
    snprintf(name, sizeof(name), "bench.%s.%zu", what, size->bytes);
    key = key_new(b, name, PSC_FLOAT32, count, src);
    for (unsigned round = 0; round < MEASURE_WARM_UP + size->iterations;
         round++) {
        double took;

        measure_stamp(src, count, b->rank, round);
        took = run_round(b, key, src, out, count, round, &wrong);
        if (round >= MEASURE_WARM_UP) {
            seconds[round - MEASURE_WARM_UP] = took;
        }
    }
    wrong = gather(b, what, size, seconds, wrong);
    if (b->rank == 0) {
        measure_print(size, what, b->ranks, seconds, wrong);
    }
    CHECK(b, psc_free(b->client, src));
    CHECK(b, psc_free(b->client, out));
    free(seconds);
}

int main(int argc, char **argv)
{
    struct bench b = {.client = NULL};
    struct psc_options options;
    char why[PSC_TEXT_MAX] = "";

    psc_options_init(&options, sizeof(options));
    if (psc_options_env(&options, why, sizeof(why)) != 0 ||
        psc_open(&options, &b.client, why, sizeof(why)) != 0) {
        fprintf(stderr, "bench_pushpull: %s\n", why);
        return 1;
    }
    b.rank = psc_rank(b.client);
    b.ranks = psc_size(b.client);
    for (int i = 1; i < argc; i++) {
        struct measure_size size;

        if (!measure_parse(argv[i], &size)) {
            return 2;
        }
        run_size(&b, &size, "array");
        run_size(&b, &size, "view");
    }
    psc_close(b.client);
    return 0;
}
