/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that use the emulated driver in a process of their own, because misuse
 * aborts it; and objects of the driver in short words. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

/* Exit status of a process in which a check did not hold. */
#define EMU_CHILD_FAILED   90

#define CHECK(holds)       emu_child_check((holds), #holds, __FILE__, __LINE__)
#define CHECK_RC(call, rc) CHECK((call) == (rc))
#define CHECK_OK(call)     CHECK_RC(call, CUDA_SUCCESS)

void emu_child_check(bool holds, const char *text, const char *file, int line);
/* Runs it in a process; true: it returned. `text` gets what the process wrote
 * to its standard error. */
bool emu_child_run(void (*run)(void), char *text, size_t text_cap);

/* In such a process: each checks that it succeeds. */

/* Initializes the driver and makes a device current. */
void emu_child_context(int device);
CUstream emu_child_stream(void);
CUdeviceptr emu_child_memory(size_t size);
void *emu_child_pinned(size_t size);
CUfunction emu_child_function(const char *name);
/* Launches to[i] = a[i] + b[i]. */
void emu_child_sum(CUstream stream, CUdeviceptr to, CUdeviceptr a,
                   CUdeviceptr b, uint64_t count);
