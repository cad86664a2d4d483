/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that were compiled for the CPU, in a library of their own: their
 * loads and stores call functions of kernel_calls.c, which the compiler inserts
 * for the thread sanitizer. The driver finds a kernel by name and runs it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emu_kernel {
    struct emu_kernel *next;
    const char *name;
    /* Runs one thread of the kernel. */
    void (*call)(void **params);
    size_t params_count;
    const size_t *params_sizes;
};

struct emu_grid {
    unsigned blocks[3];
    unsigned threads[3]; /* Of a block. */
};

/* Memory that a kernel may access: [begin, end). */
struct emu_window {
    uintptr_t begin;
    uintptr_t end;
    void *range;
};

/* The driver, as a kernel needs it. */
struct emu_kernel_host {
    void *launch;           /* First argument of the functions. */
    uintptr_t device_begin; /* Addresses of devices. */
    uintptr_t device_end;
    /* Makes the memory that has an address accessible until the launch ends;
     * false: there is none. */
    bool (*open)(void *launch, uintptr_t address, struct emu_window *ret);
    /* Accesses to bytes [begin, end) of a window, after the launch. */
    void (*access)(void *launch, const struct emu_window *window,
                   uintptr_t begin, uintptr_t end, bool write);
    /* Ends the process; `text` completes the sentence "kernel NAME ...". */
    void (*fail)(void *launch, const char *text, uintptr_t address);
};

/* Called by PSKV_KERNEL() before main(). */
void pskv_emu_kernel_register(struct emu_kernel *kernel);
const struct emu_kernel *pskv_emu_kernel_find(const char *name);
/* Runs all threads of a launch, one after the other. */
void pskv_emu_kernel_run(const struct emu_kernel *kernel,
                         const struct emu_grid *grid, void **params,
                         const struct emu_kernel_host *host);

#ifdef __cplusplus
}
#endif
