/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of an entry of the trace ring: adds COUNT of them, as a server does for
 * each contribution, and prints the nanoseconds of one. Two runs of different
 * counts under callgrind give the instructions.
 *
 *     bench_trace COUNT */
#include "base/trace.h"
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

/* Not inlined, so that each entry is made from its arguments. */
__attribute__((noinline)) static void record(struct ps_trace *t, ps_time now,
                                             uint32_t key)
{
    ps_trace_add(t, &(struct ps_trace_entry){.begun_at = now,
                                             .ended_at = now,
                                             .gen = 1,
                                             .round = now,
                                             .bytes = 4000,
                                             .key = key,
                                             .peer = 3});
}

int main(int argc, char **argv)
{
    const uint64_t count = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    struct ps_trace *t = ps_trace_new();
    double begin;

    if (count == 0) {
        fputs("bench_trace COUNT\n", stderr);
        return 2;
    }
    for (uint32_t i = 0; i < PS_TRACE_ENTRIES; i++) {
        record(t, i, i); /* Touches the memory. */
    }
    begin = measure_now();
    for (uint64_t i = 0; i < count; i++) {
        record(t, i, (uint32_t)i);
    }
    printf("{\"count\": %llu, \"ns\": %.2f}\n", (unsigned long long)count,
           (measure_now() - begin) * 1e9 / (double)count);
    ps_trace_free(t);
    return 0;
}
