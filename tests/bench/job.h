/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that must not fail, and the slowest worker's times: shared by the
 * programs that run as workers of a job. */
#pragma once

#include "client/psclient.h"

#include <stddef.h>
#include <stdint.h>

struct job {
    const char *program;
    struct psc_client *client;
    int rank;
    int ranks;
    const char *optimizer; /* NULL: none. */
};

/* Opens the client as the environment says; ends the program otherwise.
 * BENCH_OPTIMIZER=NAME: servers step with it, at its default parameters. */
void job_open(struct job *j, const char *program);

/* Says what failed, with the library's sentence, and ends the program. */
__attribute__((noreturn, format(printf, 2, 3))) void
job_give_up(const struct job *j, const char *format, ...);
void job_check(const struct job *j, const char *call, int rc);
#define JOB_CHECK(j, call) job_check((j), #call, (call))

/* How many places of a result are no sums of measure_fill()'s numbers; with an
 * optimizer, no numbers. */
size_t job_check_result(const struct job *j, const float *values, size_t count,
                        unsigned round);

/* A key that has its first value from rank 0. */
uint32_t job_key(const struct job *j, const char *name, uint32_t dtype,
                 uint64_t count, const void *first);

/* The slowest worker's time of each of `rounds` in `seconds`, and the wrong
 * places of all workers; the workers learn them by an allreduce. */
size_t job_gather(const struct job *j, unsigned rounds, double *seconds,
                  size_t wrong);
