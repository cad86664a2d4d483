/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

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
}

uint32_t job_key(const struct job *j, const char *name, uint32_t dtype,
                 uint64_t count, const void *first)
{
    uint32_t key;

    JOB_CHECK(j, psc_key(j->client, name, dtype, 1, &count, &key));
    JOB_CHECK(j, psc_init(j->client, key, j->rank == 0 ? first : NULL));
    return key;
}

size_t job_gather(const struct job *j, const char *name, unsigned rounds,
                  double *seconds, size_t wrong)
{
    size_t ranks = (size_t)j->ranks;
    size_t count = (rounds + 1) * ranks;
    double *all = calloc(count, sizeof(double));
    uint32_t key;

    if (all == NULL) {
        job_give_up(j, "no memory");
    }
    key = job_key(j, name, PSC_FLOAT64, count, all);
    for (unsigned i = 0; i < rounds; i++) {
        all[i * ranks + (size_t)j->rank] = seconds[i];
    }
    all[rounds * ranks] = (double)wrong;
    JOB_CHECK(j, psc_pushpull(j->client, key, all, all));
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
