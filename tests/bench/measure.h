/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, median and connection of all benchmarks; arguments, numbers, checks and the line
 * printed for run.py of the programs that sum an array over processes, so that
 * all do and count the same. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Rounds before the measured ones: memory is touched for the first time. */
#define MEASURE_WARM_UP 3u

struct measure_size {
    size_t bytes; /* Of float32, at least one. */
    unsigned iterations;
};

/* "BYTES:ITERATIONS"; says on stderr what is wrong with it. */
bool measure_parse(const char *text, struct measure_size *ret_size);

/* Seconds of the monotonic clock. */
double measure_now(void);
/* Sorts, the least first: the median is in the middle. */
void measure_sort(double *values, size_t count);

/* The two ends of a TCP connection over the loopback; the caller closes them.
 * Says on stderr what failed. */
bool measure_connect(int ret_ends[2]);

/* Numbers whose sum over `ranks` processes is exact and known, and differs
 * from one round to the next at the places that measure_check() looks at. */
void measure_fill(float *data, size_t count, int rank);
void measure_stamp(float *data, size_t count, int rank, unsigned round);
/* How many of these places are wrong. */
size_t measure_check(const float *sum, size_t count, int ranks, unsigned round);
/* How many of them are no numbers. */
size_t measure_check_finite(const float *values, size_t count);

/* Arrays that a program sums one by one, as a training step does. */
struct measure_set {
    char name[32];
    size_t *counts; /* Elements of each. */
    size_t count;
    size_t total; /* Elements of all. */
    unsigned iterations;
};

/* "KEYSxBYTES:ITERATIONS" (arrays of the same size) or "resnet50:ITERATIONS"
 * (161 arrays of together 102 MB, in the order of the model); says on stderr
 * what is wrong with it. The caller frees `counts`. */
bool measure_parse_set(const char *text, struct measure_set *ret_set);

/* One line of JSON: median, least and most of `seconds`, which it sorts. */
void measure_print(const struct measure_size *size, const char *what, int ranks,
                   double *seconds, size_t wrong);

void measure_print_set(const struct measure_set *set, const char *what,
                       int ranks, double *seconds, size_t wrong);
