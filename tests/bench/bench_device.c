/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of a GPU's memory and link, and of the module's kernels and jobs beside
 * them: a line of JSON each, in GB/s, counting every array read and every array
 * written once (10^9 bytes). Sums are compared with those of the CPU.
 *
 *     bench_device [BYTES [SECONDS-PER-LINE]]
 *
 * Without a GPU the only line has the reason. */
#include "kernel/cuda/module.h"

#include "base/rng.h"
#include "measure.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOURCES      8u
#define RUNS_MAX     2000u
/* Operations that are waited for together, so that the wait takes no part. */
#define BATCH        10u
/* Bytes of a copy of the module. */
#define PIECE        (8u * 1024 * 1024)
#define CHECKED      65536u
/* CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE and _GLOBAL_MEMORY_BUS_WIDTH. */
#define MEMORY_CLOCK 36
#define MEMORY_BITS  37

extern const struct ps_kernel_api ps_kernel_plugin;

static struct ps_cuda *c;
static struct ps_cuda_slot *slots; /* Two, of one lane. */
static uint64_t bytes = 256u << 20;
static double limit = 0.2;
static ps_cu_address src[SOURCES];
static ps_cu_address dst;
static char *host[2];        /* Pinned. */
static void *array[SOURCES]; /* Of the host, not pinned. */
static ps_cu_result (*copy_on_device)(ps_cu_address to, ps_cu_address from,
                                      size_t bytes, ps_cu_stream s);
static int (*scale)(ps_cublas_handle h, int n, const float *alpha, float *x,
                    int step);

static const struct ps_step adam = {.kind = PS_STEP_ADAM,
                                    .lr = 0.01,
                                    .rescale = 1,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .epsilon = 1e-8};

static void must(const char *call, int error)
{
    if (error != 0) {
        fprintf(stderr, "bench_device: %s: %s\n", call,
                ps_cuda_error(c, error));
        exit(1);
    }
}

static void wait_all(void)
{
    must("wait", c->cu.wait(slots[0].stream));
    must("wait", c->cu.wait(slots[1].stream));
}

static void print_rate(const char *what, double gb_s, double least, double most)
{
    printf("{\"what\": \"%s\", \"median\": %.3f, \"least\": %.3f, "
           "\"most\": %.3f}\n",
           what, gb_s, least, most);
    fflush(stdout);
}

/* Measures an operation that moves `moved` bytes. */
static void measure(const char *what, void (*start)(unsigned), unsigned n,
                    double moved, unsigned batch)
{
    static double seconds[RUNS_MAX];
    unsigned runs = 0;

    start(n);
    wait_all();
    const double end = measure_now() + limit;
    while (runs < RUNS_MAX && (runs < 3 || measure_now() < end)) {
        const double begin = measure_now();

        for (unsigned i = 0; i < batch; i++) {
            start(n);
        }
        wait_all();
        seconds[runs++] = (measure_now() - begin) / batch;
    }
    measure_sort(seconds, runs);
    print_rate(what, moved / seconds[runs / 2] / 1e9,
               moved / seconds[runs - 1] / 1e9, moved / seconds[0] / 1e9);
}

/* ------------------------------------------------------------------- links */

static void copy_on(unsigned n)
{
    (void)n;
    must("copy", copy_on_device(dst, src[0], bytes, slots[0].stream));
}

static void copy_to_device(unsigned n)
{
    (void)n;
    must("copy", c->cu.to_device(src[0], host[0], bytes, slots[0].stream));
}

static void copy_to_host(unsigned n)
{
    (void)n;
    must("copy", c->cu.to_host(host[0], src[0], bytes, slots[0].stream));
}

static void copy_both_ways(unsigned n)
{
    (void)n;
    must("copy", c->cu.to_device(src[0], host[0], bytes, slots[0].stream));
    must("copy", c->cu.to_host(host[1], src[1], bytes, slots[1].stream));
}

/* As the module copies: by pieces, each to the device and back, in turns by
 * two streams. */
static void copy_pieces(unsigned n)
{
    unsigned turn = 0;

    (void)n;
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        const uint64_t len = bytes - at < PIECE ? bytes - at : PIECE;
        struct ps_cuda_slot *s = &slots[turn++ % PS_CUDA_SLOTS];

        must("copy",
             c->cu.to_device(src[0] + at, host[0] + at, len, s->stream));
        must("copy", c->cu.to_host(host[1] + at, src[0] + at, len, s->stream));
    }
}

/* Bandwidth by the attributes of the device; 0: unknown. */
static double bandwidth_of_memory(void)
{
    int khz = 0;
    int bits = 0;

    if (c->cu.attribute(&khz, MEMORY_CLOCK, c->device) != 0 ||
        c->cu.attribute(&bits, MEMORY_BITS, c->device) != 0) {
        return 0;
    }
    return 2.0 * khz * 1e3 * bits / 8 / 1e9;
}

static void measure_links(void)
{
    const double b = (double)bytes;
    const double most = bandwidth_of_memory();

    print_rate("memory, as specified", most, most, most);
    measure("copy on the device", copy_on, 0, 2 * b, BATCH);
    measure("to the device", copy_to_device, 0, b, 2);
    measure("to the host", copy_to_host, 0, b, 2);
    measure("both ways at once", copy_both_ways, 0, 2 * b, 2);
    measure("both ways, in pieces", copy_pieces, 0, 2 * b, 2);
}

/* ----------------------------------------------------------------- kernels */

static void *address(ps_cu_address at)
{
    return (void *)(uintptr_t)at;
}

/* Sums the first n sources into `to`. */
static void start_fold(enum ps_cuda_kernel kernel, unsigned n, uint64_t size,
                       ps_cu_address to)
{
    struct ps_cuda_fold k = {
        .count = bytes / size,
        .dst = address(to),
        .fold = PS_FOLD_SUM,
        .src_count = n,
        .is_short = n <= PS_CUDA_LEAVES_MAX,
    };

    for (unsigned i = 0; i < n; i++) {
        k.src[i] = address(src[i]);
        k.merges[i] = (uint8_t)__builtin_ctz(i + 1);
    }
    k.merges[n - 1] += (uint8_t)(__builtin_popcount(n) - 1);
    must("fold", ps_cuda_launch(c, slots, kernel, &k,
                                k.count / (PS_CUDA_PACK_BYTES / size) + 1));
}

static void sum_f32(unsigned n)
{
    start_fold(PS_CUDA_ps_fold_f32, n, 4, dst);
}

static void sum_f64(unsigned n)
{
    start_fold(PS_CUDA_ps_fold_f64, n, 8, dst);
}

static void sum_f16(unsigned n)
{
    start_fold(PS_CUDA_ps_fold_f16, n, 2, dst);
}

static void sum_bf16(unsigned n)
{
    start_fold(PS_CUDA_ps_fold_bf16, n, 2, dst);
}

/* In place, as cuBLAS does. */
static void add_own(unsigned n)
{
    start_fold(PS_CUDA_ps_fold_f32, n, 4, src[0]);
}

static void add_blas(unsigned n)
{
    static const float one = 1;

    (void)n;
    must("cublasSaxpy", c->blas.saxpy(slots->blas, (int)(bytes / 4), &one,
                                      address(src[1]), 1, address(src[0]), 1));
}

static void divide_own(unsigned n)
{
    const struct ps_cuda_fold k = {
        .count = bytes / 4,
        .divide_by = n,
        .dst = address(dst),
        .fold = PS_FOLD_SUM,
        .src_count = 1,
        .is_short = 1,
        .src = {address(dst)},
    };

    must("fold",
         ps_cuda_launch(c, slots, PS_CUDA_ps_fold_f32, &k, k.count / 4 + 1));
}

static void scale_blas(unsigned n)
{
    const float by = 1 / (float)n;

    must("cublasSscal",
         scale(slots->blas, (int)(bytes / 4), &by, address(dst), 1));
}

static void run_sgd(unsigned n)
{
    const struct ps_cuda_sgd k = {
        .sgd = {.lr = 0.1, .momentum = n > 0 ? 0.9 : 0, .rescale = 1},
        .count = bytes / 4,
        .dst = address(dst),
        .weight = address(dst),
        .grad = address(src[0]),
        .state = n > 0 ? address(src[1]) : NULL,
    };

    must("sgd", ps_cuda_launch(c, slots, PS_CUDA_ps_sgd_f32, &k, k.count));
}

static void run_adam(unsigned n)
{
    const struct ps_cuda_step k = {
        .step = adam,
        .count = bytes / 4,
        .dst = address(dst),
        .weight = address(dst),
        .grad = address(src[0]),
        .states = {address(src[1]), address(src[2])},
    };

    (void)n;
    must("step", ps_cuda_launch(c, slots, PS_CUDA_ps_step_f32, &k, k.count));
}

/* Fails if a sum of n sources differs from the CPU's. */
static void check_sum(unsigned n)
{
    const uint64_t count = bytes / 4 < CHECKED ? bytes / 4 : CHECKED;
    float *want = malloc(count * sizeof(*want));
    const struct ps_job job = {
        .op = PS_JOB_SUM,
        .dtype = PS_DTYPE_FLOAT32,
        .count = count,
        .src = (const void *const *)array,
        .src_count = n,
        .dst = want,
    };

    sum_f32(n);
    must("copy",
         c->cu.to_host(host[0], dst, count * sizeof(*want), slots->stream));
    wait_all();
    if (want == NULL || ps_kernel_run(&job) != 0 ||
        memcmp(want, host[0], count * sizeof(*want)) != 0) {
        fprintf(stderr, "bench_device: a wrong sum of %u\n", n);
        exit(1);
    }
    free(want);
}

static void measure_kernels(void)
{
    const double b = (double)bytes;

    measure("sum of 2 float32", sum_f32, 2, 3 * b, BATCH);
    measure("sum of 3 float32", sum_f32, 3, 4 * b, BATCH);
    measure("sum of 4 float32", sum_f32, 4, 5 * b, BATCH);
    measure("sum of 5 float32", sum_f32, 5, 6 * b, BATCH);
    measure("sum of 8 float32", sum_f32, 8, 9 * b, BATCH);
    measure("sum of 4 float64", sum_f64, 4, 5 * b, BATCH);
    measure("sum of 4 float16", sum_f16, 4, 5 * b, BATCH);
    measure("sum of 4 bfloat16", sum_bf16, 4, 5 * b, BATCH);
    measure("sgd", run_sgd, 0, 3 * b, BATCH);
    measure("sgd, momentum", run_sgd, 1, 5 * b, BATCH);
    measure("adam", run_adam, 0, 7 * b, BATCH);
    measure("two in place, own kernel", add_own, 2, 3 * b, BATCH);
    if (slots->blas != NULL) {
        measure("two in place, cuBLAS", add_blas, 2, 3 * b, BATCH);
    }
    measure("scaling, own kernel", divide_own, 4, 2 * b, BATCH);
    if (slots->blas != NULL && scale != NULL) {
        measure("scaling, cuBLAS", scale_blas, 4, 2 * b, BATCH);
    }
}

/* ---------------------------------------------------------- jobs of psserver */

enum job { SUM_4, SGD, MOMENTUM, ADAM };
/* Of a job whose weights and states stay in the device's memory. */
#define KEPT 8u

static enum ps_job_op op_of(unsigned kind)
{
    return kind == SUM_4 ? PS_JOB_SUM : kind == ADAM ? PS_JOB_STEP : PS_JOB_SGD;
}

static void keep_arrays(struct ps_kernel_range *range)
{
    range->kept[PS_KEPT_WEIGHT] = (struct ps_kernel_kept){.address = dst,
                                                          .is_current = 1};
    for (unsigned i = 0; i < 2; i++) {
        range->kept[PS_KEPT_STATE_0 + i] = (struct ps_kernel_kept){
            .address = src[1 + i], .is_current = 1, .stays = 1};
    }
}

static struct ps_job job_of(unsigned kind)
{
    return (struct ps_job){
        .op = op_of(kind),
        .dtype = PS_DTYPE_FLOAT32,
        .storage_dtype = PS_DTYPE_FLOAT32,
        .count = bytes / 4,
        .src = (const void *const *)array,
        .src_count = kind == SUM_4 ? 4 : 1,
        .dst = array[4],
        .weight = array[5],
        .state = array[6],
        .states = {array[6], array[7]},
        .sgd = {.lr = 0.1,
                .momentum = kind == MOMENTUM ? 0.9 : 0,
                .rescale = 1},
        .step = adam,
    };
}

static void run_on_device(unsigned number)
{
    const unsigned kind = number % KEPT;
    const struct ps_job job = job_of(kind);
    struct ps_kernel_range range = {.job = &job, .to = job.count, .states = 2};
    char why[PS_KERNEL_WHY_MAX] = "";
    uint64_t done;

    if (number >= KEPT) {
        keep_arrays(&range);
    }
    if (ps_kernel_plugin.submit(c, &range, &done, why, sizeof(why)) != 0) {
        fprintf(stderr, "bench_device: job %u: %s\n", kind, why);
        exit(1);
    }
}

static void run_on_cpu(unsigned kind)
{
    const struct ps_job job = job_of(kind);

    if (ps_kernel_run(&job) != 0) {
        fprintf(stderr, "bench_device: the CPU refused job %u\n", kind);
        exit(1);
    }
}

static void measure_jobs(void)
{
    static const struct {
        const char *device;
        const char *cpu;
        const char *kept; /* NULL: it has nothing to keep. */
        unsigned arrays;  /* Read and written. */
    } jobs[] = {
        [SUM_4] = {"job, sum of 4: GPU", "job, sum of 4: a core", NULL, 5},
        [SGD] = {"job, sgd: GPU", "job, sgd: a core",
                 "job, sgd: GPU that keeps weights", 3},
        [MOMENTUM] = {"job, sgd, momentum: GPU", "job, sgd, momentum: a core",
                      "job, sgd, momentum: GPU that keeps weights and state",
                      5},
        [ADAM] = {"job, adam: GPU", "job, adam: a core",
                  "job, adam: GPU that keeps weights and states", 7},
    };

    for (unsigned i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        const double moved = jobs[i].arrays * (double)bytes;

        measure(jobs[i].device, run_on_device, i, moved, 1);
        if (jobs[i].kept != NULL) {
            measure(jobs[i].kept, run_on_device, KEPT + i, moved, 1);
        }
        measure(jobs[i].cpu, run_on_cpu, i, moved, 1);
    }
}

/* ------------------------------------------------------------------- start */

static void *symbol(void *library, const char *name)
{
    return library == NULL ? NULL : dlsym(library, name);
}

static void allocate(void)
{
    struct ps_rng rng;

    ps_rng_init(&rng, 1);
    must("cuMemHostAlloc",
         c->cu.host_alloc((void **)&host[0], bytes, PS_CU_HOST_PORTABLE));
    must("cuMemHostAlloc",
         c->cu.host_alloc((void **)&host[1], bytes, PS_CU_HOST_PORTABLE));
    must("cuMemAlloc", c->cu.alloc(&dst, bytes));
    for (unsigned i = 0; i < SOURCES; i++) {
        float *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

        if (p == NULL) {
            fprintf(stderr, "bench_device: no memory\n");
            exit(1);
        }
        for (uint64_t j = 0; j < bytes / sizeof(*p); j++) {
            p[j] = j >= CHECKED ? p[j - CHECKED]
                                : 1 + (float)ps_rng_below(&rng, 1000) / 1000;
        }
        array[i] = p;
        must("cuMemAlloc", c->cu.alloc(&src[i], bytes));
        memcpy(host[0], p, bytes);
        must("copy", c->cu.to_device(src[i], host[0], bytes, slots->stream));
        wait_all();
    }
}

/* False: there is no GPU, and the line has been printed. */
static bool open_all(void)
{
    char why[PS_KERNEL_WHY_MAX] = "";
    void *kernel;

    if (ps_kernel_plugin.open(0, &kernel, why, sizeof(why)) != 0) {
        for (char *p = why; *p != '\0'; p++) {
            *p = *p == '"' || *p == '\\' ? '\'' : *p;
        }
        printf("{\"what\": \"no GPU\", \"why\": \"%s\"}\n", why);
        return false;
    }
    c = kernel;
    ps_kernel_plugin.describe(c, why, sizeof(why));
    printf("{\"what\": \"device\", \"name\": \"%s\"}\n", why);
    must("cuCtxPushCurrent", c->cu.push(c->context));
    slots = ps_cuda_lane_get(c)->slots;
    *(void **)&copy_on_device = symbol(c->cu.library, "cuMemcpyDtoDAsync_v2");
    *(void **)&scale = symbol(c->blas.library, "cublasSscal_v2");
    return true;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        bytes = strtoull(argv[1], NULL, 10) / 4096 * 4096;
    }
    limit = argc > 2 ? atof(argv[2]) : limit;
    if (!open_all()) {
        return 0;
    }
    allocate();
    check_sum(2);
    check_sum(5);
    check_sum(8);
    measure_links();
    measure_kernels();
    measure_jobs();
    return 0;
}
