/* SPDX-License-Identifier: Apache-2.0 */
/* psc_pushpull() of float32, as a worker of a job on one machine:
 *
 *     pslaunch -n WORKERS -s SERVERS -- bench_pushpull [array|view]
 *         BYTES:ITERATIONS ...
 *
 * Each size is measured twice: into an array of the worker ("array", what an
 * allreduce does) and with the result read where the agent put it ("view");
 * or one of them, when it is named.
 * A barrier before each round; the time of a round is that of its slowest
 * worker. */
#include "job.h"
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One round into `out`, or where the agent likes if that is NULL; the time
 * that it took this worker. */
static double run_round(const struct job *j, uint32_t key, const float *src,
                        float *out, size_t count, unsigned round, size_t *wrong)
{
    const void *view = out;
    size_t bytes = count * sizeof(float);
    struct psc_op *op;
    double begin;
    double took;

    JOB_CHECK(j, psc_barrier(j->client));
    begin = measure_now();
    JOB_CHECK(j, psc_pushpull_start(j->client, key, src, out, NULL, &op));
    JOB_CHECK(j, psc_op_wait(op, PSC_WAIT_DEFAULT));
    took = measure_now() - begin;
    if (out == NULL) {
        JOB_CHECK(j, psc_op_view(op, &view, &bytes));
    }
    if (bytes != count * sizeof(float)) {
        job_give_up(j, "a result of %zu bytes for %zu elements", bytes, count);
    }
    *wrong += job_check_result(j, view, count, round);
    psc_op_free(op);
    return took;
}

static void run_size(const struct job *j, const struct measure_size *size,
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
        job_give_up(j, "no memory");
    }
    JOB_CHECK(j, psc_alloc(j->client, size->bytes, &src));
    if (!view) {
        JOB_CHECK(j, psc_alloc(j->client, size->bytes, &out));
    }
    measure_fill(src, count, j->rank);
    snprintf(name, sizeof(name), "bench.%s.%zu", what, size->bytes);
    key = job_key(j, name, PSC_FLOAT32, count, src);
    for (unsigned round = 0; round < MEASURE_WARM_UP + size->iterations;
         round++) {
        double took;

        measure_stamp(src, count, j->rank, round);
        took = run_round(j, key, src, out, count, round, &wrong);
        if (round >= MEASURE_WARM_UP) {
            seconds[round - MEASURE_WARM_UP] = took;
        }
    }
    wrong = job_gather(j, size->iterations, seconds, wrong);
    if (j->rank == 0) {
        measure_print(size, what, j->ranks, seconds, wrong);
    }
    JOB_CHECK(j, psc_free(j->client, src));
    JOB_CHECK(j, psc_free(j->client, out));
    free(seconds);
}

int main(int argc, char **argv)
{
    const char *only = "";
    struct job j;

    if (argc > 1 &&
        (strcmp(argv[1], "array") == 0 || strcmp(argv[1], "view") == 0)) {
        only = argv[1];
        argc--;
        argv++;
    }
    job_open(&j, "bench_pushpull");
    for (int i = 1; i < argc; i++) {
        struct measure_size size;

        if (!measure_parse(argv[i], &size)) {
            return 2;
        }
        if (strcmp(only, "view") != 0) {
            run_size(&j, &size, "array");
        }
        if (strcmp(only, "array") != 0) {
            run_size(&j, &size, "view");
        }
    }
    psc_close(j.client);
    return 0;
}
