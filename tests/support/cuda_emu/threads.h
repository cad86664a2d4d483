/* SPDX-License-Identifier: Apache-2.0 */
/* Indices of the thread that runs, and its accesses to memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emu_dim3 {
    unsigned x;
    unsigned y;
    unsigned z;
};

extern __thread struct emu_dim3 threadIdx;
extern __thread struct emu_dim3 blockIdx;
extern __thread struct emu_dim3 blockDim;
extern __thread struct emu_dim3 gridDim;

/* Notes an access of the running kernel; ends the process if it is not one to
 * memory that the kernel may use. */
void emu_note_access(uintptr_t address, size_t size, bool write);

/* Loads a word of 4 or 8 bytes, for an atomic operation that writes it. */
uint64_t emu_atomic_load(void *address, size_t size);
/* Stores `next` if the word is still *seen; else loads it to *seen. */
bool emu_atomic_swap(void *address, size_t size, uint64_t *seen, uint64_t next);

#ifdef __cplusplus
}
#endif
