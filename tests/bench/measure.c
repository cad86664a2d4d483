/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STRIDE 997u /* A prime: meets every position within a vector. */

bool measure_parse(const char *text, struct measure_size *ret_size)
{
    char *end;
    unsigned long long bytes;
    unsigned long iterations = 0;

    errno = 0;
    bytes = strtoull(text, &end, 10);
    if (*end == ':') {
        iterations = strtoul(end + 1, &end, 10);
    }
    if (errno != 0 || *end != '\0' || bytes < sizeof(float) ||
        bytes > SIZE_MAX / 2 || iterations == 0 || iterations > 100000) {
        fprintf(stderr, "'%s' is not BYTES:ITERATIONS\n", text);
        return false;
    }
    ret_size->bytes = (size_t)bytes / sizeof(float) * sizeof(float);
    ret_size->iterations = (unsigned)iterations;
    return true;
}

double measure_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float number(size_t i, int rank, unsigned round)
{
    return (float)((i + (size_t)rank + round) % 7);
}

void measure_fill(float *data, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++) {
        data[i] = number(i, rank, 0);
    }
}

void measure_stamp(float *data, size_t count, int rank, unsigned round)
{
    for (size_t i = 0; i < count; i += STRIDE) {
        data[i] = number(i, rank, round);
    }
    data[count - 1] = number(count - 1, rank, round);
}

static bool is_wrong(const float *sum, size_t i, int ranks, unsigned round)
{
    float want = 0;

    for (int rank = 0; rank < ranks; rank++) {
        want += number(i, rank, round);
    }
    return sum[i] != want;
}

size_t measure_check(const float *sum, size_t count, int ranks, unsigned round)
{
    size_t wrong = is_wrong(sum, count - 1, ranks, round);

    for (size_t i = 0; i < count; i += STRIDE) {
        wrong += is_wrong(sum, i, ranks, round);
    }
    return wrong;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

void measure_print(const struct measure_size *size, const char *what, int ranks,
                   double *seconds, size_t wrong)
{
    unsigned n = size->iterations;

    qsort(seconds, n, sizeof(seconds[0]), by_value);
    printf("{\"what\": \"%s\", \"bytes\": %zu, \"workers\": %d, "
           "\"iterations\": %u, \"median_ms\": %.6f, \"min_ms\": %.6f, "
           "\"max_ms\": %.6f, \"wrong\": %zu}\n",
           what, size->bytes, ranks, n, seconds[n / 2] * 1e3, seconds[0] * 1e3,
           seconds[n - 1] * 1e3, wrong);
    fflush(stdout);
}
