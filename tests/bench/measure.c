/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

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

static void add_array(struct measure_set *s, size_t count)
{
    s->counts[s->count++] = count;
    s->total += count;
}

/* Weights and the two vectors of the normalization behind them. */
static void add_layer(struct measure_set *s, size_t weights, size_t channels)
{
    add_array(s, weights);
    add_array(s, channels);
    add_array(s, channels);
}

static void add_resnet50(struct measure_set *s)
{
    static const int blocks[] = {3, 4, 6, 3};
    size_t in = 64;

    add_layer(s, 64 * 3 * 49, 64);
    for (size_t stage = 0; stage < 4; stage++) {
        size_t mid = (size_t)64 << stage;
        size_t out = mid * 4;

        for (int b = 0; b < blocks[stage]; b++) {
            add_layer(s, mid * in, mid);
            add_layer(s, mid * mid * 9, mid);
            add_layer(s, out * mid, out);
            if (b == 0) {
                add_layer(s, out * in, out);
            }
            in = out;
        }
    }
    add_array(s, 1000 * 2048);
    add_array(s, 1000);
}

#define SET_MAX       1000000ul
#define RESNET50_KEYS 161u

bool measure_parse_set(const char *text, struct measure_set *ret_set)
{
    struct measure_set s = {.iterations = 0};
    size_t name = strcspn(text, ":");
    bool resnet50 = name == 8 && strncmp(text, "resnet50", name) == 0;
    unsigned long keys = RESNET50_KEYS;
    unsigned long long bytes = sizeof(float);
    unsigned long iterations = 0;
    char *end = (char *)text + name;

    errno = 0;
    if (!resnet50) {
        keys = strtoul(text, &end, 10);
        bytes = *end == 'x' ? strtoull(end + 1, &end, 10) : 0;
    }
    if (*end == ':') {
        iterations = strtoul(end + 1, &end, 10);
    }
    if (errno != 0 || *end != '\0' || name >= sizeof(s.name) || keys == 0 ||
        keys > SET_MAX || bytes < sizeof(float) || bytes > SIZE_MAX / keys ||
        iterations == 0 || iterations > 100000) {
        fprintf(stderr,
                "'%s' is not KEYSxBYTES:ITERATIONS or "
                "resnet50:ITERATIONS\n",
                text);
        return false;
    }
    s.counts = calloc(keys, sizeof(s.counts[0]));
    if (s.counts == NULL) {
        fprintf(stderr, "no memory for %lu keys\n", keys);
        return false;
    }
    memcpy(s.name, text, name);
    s.iterations = (unsigned)iterations;
    if (resnet50) {
        add_resnet50(&s);
    } else {
        for (unsigned long i = 0; i < keys; i++) {
            add_array(&s, (size_t)bytes / sizeof(float));
        }
    }
    *ret_set = s;
    return true;
}

double measure_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool measure_connect(int ret_ends[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    ret_ends[0] = ret_ends[1] = -1;
    if (listener >= 0 && bind(listener, (struct sockaddr *)&at, len) == 0 &&
        listen(listener, 1) == 0 &&
        getsockname(listener, (struct sockaddr *)&at, &len) == 0) {
        ret_ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    }
    if (ret_ends[0] >= 0 &&
        connect(ret_ends[0], (struct sockaddr *)&at, len) == 0) {
        ret_ends[1] = accept(listener, NULL, NULL);
    }
    if (ret_ends[1] < 0) {
        perror("a connection over the loopback");
        if (ret_ends[0] >= 0) {
            close(ret_ends[0]);
        }
    }
    if (listener >= 0) {
        close(listener);
    }
    return ret_ends[1] >= 0;
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

size_t measure_check_finite(const float *values, size_t count)
{
    size_t wrong = 0;

    for (size_t i = 0; i < count; i += STRIDE) {
        wrong += isfinite(values[i]) ? 0 : 1;
    }
    return wrong;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

void measure_sort(double *values, size_t count)
{
    qsort(values, count, sizeof(values[0]), by_value);
}

void measure_print(const struct measure_size *size, const char *what, int ranks,
                   double *seconds, size_t wrong)
{
    unsigned n = size->iterations;

    measure_sort(seconds, n);
    printf("{\"what\": \"%s\", \"bytes\": %zu, \"workers\": %d, "
           "\"iterations\": %u, \"median_ms\": %.6f, \"min_ms\": %.6f, "
           "\"max_ms\": %.6f, \"wrong\": %zu}\n",
           what, size->bytes, ranks, n, seconds[n / 2] * 1e3, seconds[0] * 1e3,
           seconds[n - 1] * 1e3, wrong);
    fflush(stdout);
}

void measure_print_set(const struct measure_set *set, const char *what,
                       int ranks, double *seconds, size_t wrong)
{
    unsigned n = set->iterations;

    measure_sort(seconds, n);
    printf("{\"what\": \"%s\", \"set\": \"%s\", \"keys\": %zu, "
           "\"bytes\": %zu, \"workers\": %d, \"iterations\": %u, "
           "\"median_ms\": %.6f, \"min_ms\": %.6f, \"max_ms\": %.6f, "
           "\"wrong\": %zu}\n",
           what, set->name, set->count, set->total * sizeof(float), ranks, n,
           seconds[n / 2] * 1e3, seconds[0] * 1e3, seconds[n - 1] * 1e3, wrong);
    fflush(stdout);
}
