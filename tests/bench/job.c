/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"
#include "measure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void job_give_up(const struct job *j, const char *format, ...)
{
    char detail[PSC_TEXT_MAX] = "";
    va_list args;

    va_start(args, format);
    fprintf(stderr, "%s: ", j->program);
    vfprintf(stderr, format, args);
    va_end(args);
    if (j->client != NULL) {
        (void)psc_last_detail(j->client, detail, sizeof(detail));
    }
    fprintf(stderr, ": %s\n", detail);
    exit(1);
}

void job_check(const struct job *j, const char *call, int rc)
{
    if (rc != 0) {
        job_give_up(j, "%s: %s", call, psc_strerror(rc));
    }
}

void job_open(struct job *j, const char *program)
{
    struct psc_options options;
    char why[PSC_TEXT_MAX] = "";

    *j = (struct job){.program = program};
    psc_options_init(&options, sizeof(options));
    if (psc_options_env(&options, why, sizeof(why)) != 0 ||
        psc_open(&options, &j->client, why, sizeof(why)) != 0) {
        fprintf(stderr, "%s: %s\n", program, why);
        exit(1);
    }
    j->rank = psc_rank(j->client);
    j->ranks = psc_size(j->client);
    j->optimizer = getenv("BENCH_OPTIMIZER");
    if (j->optimizer != NULL) {
        JOB_CHECK(j, psc_optimizer_set(j->client, j->optimizer, NULL, 0));
    }
}

size_t job_check_result(const struct job *j, const float *values, size_t count,
                        unsigned round)
{
    return j->optimizer != NULL ? measure_check_finite(values, count)
                                : measure_check(values, count, j->ranks, round);
}

uint32_t job_key(const struct job *j, const char *name, uint32_t dtype,
                 uint64_t count, const void *first)
{
    uint32_t key;

    JOB_CHECK(j, psc_key(j->client, name, dtype, 1, &count, &key));
    JOB_CHECK(j, psc_init(j->client, key, j->rank == 0 ? first : NULL));
    return key;
}

size_t job_gather(const struct job *j, unsigned rounds, double *seconds,
                  size_t wrong)
{
    const size_t ranks = (size_t)j->ranks;
    const uint64_t count = (rounds + 1) * ranks;
    double *all = calloc(count, sizeof(double));
    const struct psc_array array = {.dtype = PSC_FLOAT64,
                                    .ndim = 1,
                                    .dims = &count,
                                    .src = all,
                                    .out = all};
    struct psc_op *op;

    if (all == NULL) {
        job_give_up(j, "no memory");
    }
    for (unsigned i = 0; i < rounds; i++) {
        all[i * ranks + (size_t)j->rank] = seconds[i];
    }
    all[rounds * ranks] = (double)wrong;
    JOB_CHECK(j, psc_allreduce_start(j->client, "times", &array, NULL, &op));
    JOB_CHECK(j, psc_op_wait(op, PSC_WAIT_DEFAULT));
    psc_op_free(op);
    for (unsigned i = 0; i < rounds; i++) {
        seconds[i] = 0;
        for (size_t r = 0; r < ranks; r++) {
            if (all[i * ranks + r] > seconds[i]) {
                seconds[i] = all[i * ranks + r];
            }
        }
    }
    wrong = (size_t)all[rounds * ranks];
    free(all);
    return wrong;
}
