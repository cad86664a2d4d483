/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of a span of the program, in processor time: COUNT of them, with the
 * messages to the agent that they lead to, beside as many pairs of readings of
 * the clock. A worker of a job:
 *
 *     pslaunch --private -n 1 -s 1 -- bench_span COUNT */
#include "job.h"
#include "measure.h"

#include <time.h>

#include <stdio.h>
#include <stdlib.h>

static double processor_time(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double time_clocks(uint64_t count)
{
    const double begin = processor_time();
    volatile double sum = 0;

    for (uint64_t i = 0; i < count; i++) {
        sum = sum + measure_now();
        sum = sum + measure_now();
    }
    return processor_time() - begin;
}

static double time_spans(const struct job *j, uint64_t count)
{
    static const char *const names[] = {"step", "forward", "backward", "sum"};
    const double begin = processor_time();

    for (uint64_t i = 0; i < count; i++) {
        struct psc_span s;

        JOB_CHECK(j, psc_span_begin(j->client, names[i % 4], &s));
        JOB_CHECK(j, psc_span_end(j->client, &s));
    }
    return processor_time() - begin;
}

int main(int argc, char **argv)
{
    const uint64_t count = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    struct job j;
    double clocks;
    double spans;

    if (count == 0) {
        fputs("bench_span COUNT\n", stderr);
        return 2;
    }
    job_open(&j, "bench_span");
    clocks = time_clocks(count);
    spans = time_spans(&j, count);
    printf("{\"count\": %llu, \"clocks_ns\": %.1f, \"span_ns\": %.1f}\n",
           (unsigned long long)count, clocks * 1e9 / (double)count,
           spans * 1e9 / (double)count);
    psc_close(j.client);
    return 0;
}
