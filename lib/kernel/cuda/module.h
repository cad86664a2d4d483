/* SPDX-License-Identifier: Apache-2.0 */
/* State of the CUDA module: a device, and lanes on it. A thread that computes a
 * job takes a lane, which has two slots, so that the copies of one piece of the
 * job overlap the arithmetic of the other. A slot has a stream and two arenas
 * of the same layout, in the device's memory and in pinned memory of the host:
 * one copy brings all inputs of a piece, one all outputs. Private to this
 * folder. */
#pragma once

#include "kernel/cuda/driver.h"
#include "kernel/cuda/kernels.h"
#include "kernel/plugin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PS_CUDA_SLOTS 2u

enum ps_cuda_kernel {
#define KERNEL(name, type) PS_CUDA_##name,
    PS_CUDA_KERNELS(KERNEL)
#undef KERNEL
        PS_CUDA_KERNEL_COUNT
};

struct ps_cuda_slot {
    ps_cu_stream stream;
    ps_cublas_handle blas; /* NULL: none. */
    ps_cu_address device;
    uint64_t device_size;
    char *host;
    uint64_t host_size;
    /* The piece in progress; count 0: none. */
    uint64_t first;
    uint64_t count;
};

struct ps_cuda_lane {
    struct ps_cuda_lane *next;
    struct ps_cuda_slot slots[PS_CUDA_SLOTS];
};

struct ps_cuda {
    struct ps_cu cu;
    struct ps_cublas blas;
    int version; /* Of the driver. */
    int blas_version;
    ps_cu_device device;
    char name[PS_KERNEL_DEVICE_MAX]; /* Of the device. */
    uint64_t memory;                 /* Bytes of the device. */
    ps_cu_context context;
    ps_cu_module module;
    ps_cu_function kernels[PS_CUDA_KERNEL_COUNT];
    unsigned blocks_max;
    pthread_mutex_t lock;
    struct ps_cuda_lane *idle; /* Guarded by the lock. */
    /* As in struct ps_kernel_stats. */
    _Atomic(uint64_t) memory_held;
    _Atomic(uint64_t) bytes_up;
    _Atomic(uint64_t) bytes_down;
};

/* Adds to the counters of copied bytes. */
void ps_cuda_count_copies(struct ps_cuda *c, uint64_t up, uint64_t down);

/* The name of an error of the driver. */
const char *ps_cuda_error(const struct ps_cuda *c, ps_cu_result error);

/* Both with the context current. */
struct ps_cuda_lane *ps_cuda_lane_get(struct ps_cuda *c);
void ps_cuda_lane_put(struct ps_cuda *c, struct ps_cuda_lane *lane);

/* Makes the arenas at least that large; the slot is idle. */
ps_cu_result ps_cuda_slot_reserve(struct ps_cuda *c, struct ps_cuda_slot *s,
                                  uint64_t host_bytes, uint64_t device_bytes);

/* Starts a kernel for that many threads, or fewer that have more to do. */
ps_cu_result ps_cuda_launch(const struct ps_cuda *c, struct ps_cuda_slot *s,
                            enum ps_cuda_kernel kernel, const void *argument,
                            uint64_t threads);
/* The number of blocks that ps_cuda_launch() starts. */
unsigned ps_cuda_blocks(const struct ps_cuda *c, uint64_t threads);
/* Starts one block of `threads` threads. */
ps_cu_result ps_cuda_launch_block(const struct ps_cuda *c,
                                  struct ps_cuda_slot *s,
                                  enum ps_cuda_kernel kernel,
                                  const void *argument, unsigned threads);

/* The kernel that folds sources of this type into it. */
enum ps_cuda_kernel ps_cuda_fold_kernel(uint32_t dtype);

/* The table of plugin.h. */
extern const struct ps_kernel_api ps_kernel_plugin;

/* submit() of plugin.h, with the context current (job.c). */
int32_t ps_cuda_run(struct ps_cuda *c, const struct ps_kernel_range *range,
                    uint64_t *ret_done, char *why, uint64_t why_cap);

/* Starts the kernels that encode (codec.c); `k` has the addresses. */
ps_cu_result ps_cuda_encode(const struct ps_cuda *c, struct ps_cuda_slot *s,
                            const struct ps_cuda_codec *k);
/* Starts the kernels that decode k->n elements. */
ps_cu_result ps_cuda_decode(const struct ps_cuda *c, struct ps_cuda_slot *s,
                            const struct ps_cuda_codec *k);
