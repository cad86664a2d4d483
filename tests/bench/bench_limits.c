/* SPDX-License-Identifier: Apache-2.0 */
/* Milliseconds that the memory and the loopback of this machine allow at best,
 * for comparison with other figures; one line of JSON each.
 *
 *     bench_limits BYTES SOURCES THREADS ROUNDS
 *
 * sum       threads read SOURCES arrays of BYTES and write one
 * memcpy    threads copy one array of BYTES
 * loopback  BYTES through one TCP connection and, at the same time, back */
#include "kernel/kernel.h"
#include "measure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOURCES_MAX 64u
#define THREADS_MAX 64u
#define ROUNDS_MAX  100u
#define BLOCK       ((size_t)64 * 1024)
#define CHUNK       ((size_t)256 * 1024)

static size_t bytes;
static unsigned sources;
static unsigned threads;
static float *src[SOURCES_MAX];
static float *dst;
static atomic_size_t next;
static int ends[2];

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

/* Blocks of the arrays, for as long as there are any. */
static void *sum_blocks(void *unused)
{
    size_t at;

    while ((at = atomic_fetch_add(&next, BLOCK)) < bytes) {
        const void *from[SOURCES_MAX];
        size_t len = bytes - at < BLOCK ? bytes - at : BLOCK;
        struct ps_job job = {
            .op = PS_JOB_SUM,
            .dtype = PS_DTYPE_FLOAT32,
            .count = len / sizeof(float),
            .src_count = sources,
            .src = from,
            .dst = dst + at / sizeof(float),
        };

        for (unsigned i = 0; i < sources; i++) {
            from[i] = src[i] + at / sizeof(float);
        }
        if (ps_kernel_run(&job) != 0) {
            fputs("bench_limits: the kernel refused\n", stderr);
            exit(1);
        }
    }
    return unused;
}

/* Each thread a piece, as long as pieces can be. */
static void *copy_piece(void *number)
{
    size_t piece = bytes / threads / sizeof(float);
    size_t at = *(const unsigned *)number * piece;

    memcpy(dst + at, src[0] + at, piece * sizeof(float));
    return NULL;
}

static void *loop_send(void *end)
{
    for (size_t done = 0; done < bytes;) {
        size_t len = bytes - done < CHUNK ? bytes - done : CHUNK;
        ssize_t n = send(*(const int *)end, (const char *)src[0] + done, len,
                         MSG_NOSIGNAL);

        if (n <= 0) {
            give_up("send");
        }
        done += (size_t)n;
    }
    return NULL;
}

static void *loop_receive(void *end)
{
    char *into = malloc(CHUNK);
    size_t done = 0;

    if (into == NULL) {
        give_up("memory");
    }
    while (done < bytes) {
        ssize_t n = recv(*(const int *)end, into, CHUNK, 0);

        if (n <= 0) {
            give_up("recv");
        }
        done += (size_t)n;
    }
    free(into);
    return NULL;
}

static void run_threads(void *(*const *work)(void *), void *const *argument,
                        unsigned count)
{
    pthread_t thread[THREADS_MAX];

    for (unsigned i = 0; i < count; i++) {
        if (pthread_create(&thread[i], NULL, work[i], argument[i]) != 0) {
            give_up("thread");
        }
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(thread[i], NULL);
    }
}

static void measure(const char *what, void *(*const *work)(void *),
                    void *const *argument, unsigned count, unsigned rounds)
{
    double ms[ROUNDS_MAX];

    for (unsigned i = 0; i <= rounds; i++) {
        double begin = measure_now();

        atomic_store(&next, 0);
        run_threads(work, argument, count);
        if (i > 0) { /* The first touches memory. */
            ms[i - 1] = (measure_now() - begin) * 1e3;
        }
    }
    measure_sort(ms, rounds);
    printf("{\"what\": \"%s\", \"bytes\": %zu, \"sources\": %u, "
           "\"median_ms\": %.3f, \"min_ms\": %.3f, \"max_ms\": %.3f}\n",
           what, bytes, sources, ms[rounds / 2], ms[0], ms[rounds - 1]);
    fflush(stdout);
}

static float *array(void)
{
    float *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (p == NULL) {
        give_up("memory");
    }
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        p[i] = 1;
    }
    return p;
}

int main(int argc, char **argv)
{
    void *(*work[THREADS_MAX])(void *);
    void *argument[THREADS_MAX];
    unsigned numbers[THREADS_MAX];
    unsigned rounds;

    if (argc != 5) {
        fputs("usage: bench_limits BYTES SOURCES THREADS ROUNDS\n", stderr);
        return 2;
    }
    bytes = strtoull(argv[1], NULL, 10) / sizeof(float) * sizeof(float);
    sources = (unsigned)strtoul(argv[2], NULL, 10);
    threads = (unsigned)strtoul(argv[3], NULL, 10);
    rounds = (unsigned)strtoul(argv[4], NULL, 10);
    if (bytes == 0 || sources == 0 || sources > SOURCES_MAX || threads == 0 ||
        threads > THREADS_MAX || rounds == 0 || rounds > ROUNDS_MAX) {
        fprintf(stderr,
                "bench_limits: at least 4 bytes, 1 to %u sources, 1 to %u "
                "threads, 1 to %u rounds\n",
                SOURCES_MAX, THREADS_MAX, ROUNDS_MAX);
        return 2;
    }
    for (unsigned i = 0; i < sources; i++) {
        src[i] = array();
    }
    dst = array();
    for (unsigned i = 0; i < threads; i++) {
        numbers[i] = i;
        argument[i] = &numbers[i];
        work[i] = sum_blocks;
    }
    measure("sum", work, argument, threads, rounds);
    for (unsigned i = 0; i < threads; i++) {
        work[i] = copy_piece;
    }
    measure("memcpy", work, argument, threads, rounds);
    if (!measure_connect(ends)) {
        return 1;
    }
    work[0] = loop_send;
    work[1] = loop_receive;
    work[2] = loop_send;
    work[3] = loop_receive;
    argument[0] = argument[3] = &ends[0];
    argument[1] = argument[2] = &ends[1];
    measure("loopback", work, argument, 4, rounds);
    return 0;
}
