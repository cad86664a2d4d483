/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated CUDA driver: state and rules that all files share.
 *
 * One lock protects all of the state of the process, see emu_enter(). A stream
 * is a queue of operations and a thread that runs them without the lock; one
 * condition variable is signalled at every change.
 *
 * Order is checked by vector clocks (clock.h): each stream is a timeline on
 * which an operation is one tick. An operation is ordered after those in its
 * stream, those before an event that the stream waits for, and those whose
 * completion a thread of the host had observed when the operation was
 * enqueued. Threads of one host count as ordered among each other, because the
 * driver cannot see how they synchronize. */
#pragma once

#include "clock.h"
#include "control.h"
#include "shadow.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

struct emu_stream;

/* The primary context of a device; contexts of other kinds do not exist. */
struct emu_context {
    CUdevice device;
    unsigned refs;
    uint32_t peers; /* Bit for each device that kernels may access. */
    struct emu_stream *legacy; /* The NULL stream. */
};

struct emu_device {
    unsigned physical; /* Its number without CUDA_VISIBLE_DEVICES. */
    bool lost;
    struct emu_context context;
};

/* Memory of the driver in this process. */
struct emu_state {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int pid; /* Process that has called cuInit(); 0: none. */
    unsigned device_count;
    struct emu_device device[PSKV_EMU_DEVICES_MAX];
    size_t memory_max; /* Of each device, in bytes. */
    uint64_t seed;
    unsigned delay_us;
    bool reuses_addresses;
    struct emu_clock host; /* Operations that the host has seen completed. */
    uint64_t timeline_base;
    struct pskv_emu_stats_file *stats;
};

extern struct emu_state emu;

/* state.c: configuration and calls */

/* Reads the environment; idempotent. */
CUresult emu_init(void);

/* Begin of each call: with the lock held, unless an error is returned. The
 * second form needs a current context of a device that is not lost. */
CUresult emu_enter(void);
CUresult emu_enter_context(struct emu_context **ret_context);
/* End of each call: releases the lock, returns rc. */
CUresult emu_leave(CUresult rc);

/* Prints a message that begins with "cuda_emu: " and aborts. */
_Noreturn void emu_die(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* Counters of a device; never NULL. */
struct pskv_emu_stats *emu_stats(CUdevice device);

/* Marks the calling thread as one that runs a host function, which may not
 * call the driver. */
void emu_set_in_host_function(bool in);

/* context.c */
struct emu_context *emu_current(void);
/* The context of a handle; NULL: no primary context that is retained. */
struct emu_context *emu_context_of(CUcontext handle);
/* This process's number of a physical device, or -1. */
int emu_device_of_physical(unsigned physical);

/* fail.c */

/* True if the call of this kind is one that PSKV_EMU_FAIL lets fail. */
bool emu_fails(const char *kind);
int emu_fail_add(const char *text);
