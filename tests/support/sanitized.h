/* SPDX-License-Identifier: Apache-2.0 */
/* Differences of builds and machines that tests take into account. */
#ifndef PS_TEST_SANITIZED_H
#define PS_TEST_SANITIZED_H

#include <stdint.h>
#include <time.h>

/* 1 under the address or thread sanitizer. They replace malloc(), need most of
 * the address space, and make loops of allocations about ten times longer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PS_TEST_SANITIZED 1
#else
#define PS_TEST_SANITIZED 0
#endif

/* Milliseconds of `work` on one core. */
static inline double ps_test_measure_ms(uint32_t work)
{
    struct timespec begin, end;
    volatile uint32_t sum = 0;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint32_t i = 0; i < work; i++) {
        sum = sum * 31u + i;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - begin.tv_sec) * 1e3 +
           (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
}

/* Milliseconds after which a test may fail for what takes `ms` at most on a
 * machine without other work: more on a slower one, on one with more work than
 * cores, and under sanitizers. Every time limit of tests in C comes from here. */
static inline int ps_test_limit_ms(int ms)
{
    static double load;

    if (load == 0) {
        /* Takes 10 to 20 ms on a core without other work. */
        load = ps_test_measure_ms(10u * 1000 * 1000) / 40;
        load = load < 1 ? 1 : load;
    }
    return (int)(ms * load);
}

#endif
