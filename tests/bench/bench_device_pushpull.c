/* SPDX-License-Identifier: Apache-2.0 */
/* psc_pushpull() of float32 in the memory of a GPU, as a worker of a job on one
 * machine:
 *
 *     pslaunch -n WORKERS -s SERVERS -- bench_device_pushpull shared|private
 *         BYTES:ITERATIONS ...
 *
 * "shared" arrays are of psc_alloc_device(), "private" ones of cuMemAlloc(). A
 * barrier before each round; the time of a round is that of its slowest worker,
 * from arrays that are complete to results that are. Sums are checked. */
#include "job.h"
#include "measure.h"

#include "client/psclient_device.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

#define CALLS(X)                                                               \
    X(init, "cuInit", (unsigned flags))                                        \
    X(count, "cuDeviceGetCount", (int *ret))                                   \
    X(find, "cuDeviceGet", (int *ret, int ordinal))                            \
    X(retain, "cuDevicePrimaryCtxRetain", (void **ret, int device))            \
    X(use, "cuCtxSetCurrent", (void *context))                                 \
    X(alloc, "cuMemAlloc_v2", (address * ret, size_t bytes))                   \
    X(release, "cuMemFree_v2", (address at))                                   \
    X(stream_new, "cuStreamCreate", (void **ret, unsigned flags))              \
    X(put, "cuMemcpyHtoDAsync_v2",                                             \
      (address to, const void *from, size_t bytes, void *stream))              \
    X(get, "cuMemcpyDtoHAsync_v2",                                             \
      (void *to, address from, size_t bytes, void *stream))                    \
    X(wait, "cuStreamSynchronize", (void *stream))

#define MEMBER(member, name, arguments) int(*member) arguments;
static struct {
    CALLS(MEMBER)
} cu;
#undef MEMBER

static struct job j;
static void *stream;
static int ordinal;
static bool is_shared;

static void must(const char *call, int error)
{
    if (error != 0) {
        job_give_up(&j, "%s: error %d", call, error);
    }
}

/* False: there is no GPU. Processes take them in turns. */
static bool open_gpu(void)
{
    const char *given = getenv("PSKV_CUDA_DRIVER");
    void *library = dlopen(given != NULL ? given : "libcuda.so.1",
                           RTLD_NOW | RTLD_LOCAL);
    void *context;
    int gpus = 0;
    int number;

    if (library == NULL) {
        return false;
    }
#define FIND(member, name, arguments)                                          \
    *(void **)&cu.member = dlsym(library, name);                               \
    must(name, cu.member == NULL);
    CALLS(FIND)
#undef FIND
    if (cu.init(0) != 0 || cu.count(&gpus) != 0 || gpus == 0) {
        return false;
    }
    ordinal = j.rank % gpus;
    must("cuDeviceGet", cu.find(&number, ordinal));
    must("cuDevicePrimaryCtxRetain", cu.retain(&context, number));
    must("cuCtxSetCurrent", cu.use(context));
    must("cuStreamCreate", cu.stream_new(&stream, 1));
    return true;
}

static void *device_array(size_t bytes)
{
    void *array = NULL;
    address at = 0;

    if (is_shared) {
        JOB_CHECK(&j, psc_alloc_device(j.client, ordinal, bytes, &array));
        return array;
    }
    must("cuMemAlloc", cu.alloc(&at, bytes));
    return (void *)(uintptr_t)at;
}

static void free_array(void *array)
{
    if (is_shared) {
        JOB_CHECK(&j, psc_free_device(j.client, array));
    } else {
        must("cuMemFree", cu.release((address)(uintptr_t)array));
    }
}

/* Seconds of a round on this worker. */
static double run_round(uint32_t key, const void *src, void *out)
{
    const struct psc_device device = {.size = sizeof(device),
                                      .ordinal = ordinal,
                                      .stream = stream,
                                      .flags = PSC_DEVICE_COMPLETE};
    const struct psc_op_options options = {.size = sizeof(options),
                                           .device = &device};
    struct psc_op *op;
    double begin;

    JOB_CHECK(&j, psc_barrier(j.client));
    begin = measure_now();
    JOB_CHECK(&j, psc_pushpull_start(j.client, key, src, out, &options, &op));
    JOB_CHECK(&j, psc_op_wait(op, PSC_WAIT_DEFAULT));
    begin = measure_now() - begin;
    psc_op_free(op);
    return begin;
}

static void run_size(const struct measure_size *size, const char *what)
{
    const size_t count = size->bytes / sizeof(float);
    double *seconds = calloc(size->iterations, sizeof(double));
    float *host = malloc(size->bytes);
    float *result = malloc(size->bytes);
    void *src = device_array(size->bytes);
    void *out = device_array(size->bytes);
    size_t wrong = 0;
    char name[64];

    if (seconds == NULL || host == NULL || result == NULL) {
        job_give_up(&j, "no memory");
    }
    measure_fill(host, count, j.rank);
    snprintf(name, sizeof(name), "bench.%s.%zu", what, size->bytes);
    const uint32_t key = job_key(&j, name, PSC_FLOAT32, count, host);

    for (unsigned round = 0; round < MEASURE_WARM_UP + size->iterations;
         round++) {
        measure_stamp(host, count, j.rank, round);
        must("copy",
             cu.put((address)(uintptr_t)src, host, size->bytes, stream));
        must("wait", cu.wait(stream));
        const double took = run_round(key, src, out);

        if (round >= MEASURE_WARM_UP) {
            seconds[round - MEASURE_WARM_UP] = took;
        }
        must("copy",
             cu.get(result, (address)(uintptr_t)out, size->bytes, stream));
        must("wait", cu.wait(stream));
        wrong += measure_check(result, count, j.ranks, round);
    }
    wrong = job_gather(&j, size->iterations, seconds, wrong);
    if (j.rank == 0) {
        measure_print(size, what, j.ranks, seconds, wrong);
    }
    free_array(src);
    free_array(out);
    free(seconds);
    free(host);
    free(result);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_device_pushpull shared|private "
                        "BYTES:ITERATIONS ...\n");
        return 2;
    }
    is_shared = strcmp(argv[1], "shared") == 0;
    job_open(&j, "bench_device_pushpull");
    if (!open_gpu()) {
        job_give_up(&j, "no GPU");
    }
    for (int i = 2; i < argc; i++) {
        struct measure_size size;

        if (!measure_parse(argv[i], &size)) {
            return 2;
        }
        run_size(&size, argv[1]);
    }
    psc_close(j.client);
    return 0;
}
