/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of kernels: those that the compiler inserts at loads and stores, and
 * atomic operations. The __tsan_ functions belong to this library alone, and
 * have nothing to do with those of the thread sanitizer, which the rest of the
 * process may have. Not compiled for any sanitizer. */
#include "threads.h"

#define ACCESS(name, size, write)                                              \
    void name(void *address);                                                  \
    void name(void *address)                                                   \
    {                                                                          \
        emu_note_access((uintptr_t)address, size, write);                      \
    }
#define ACCESSES(size)                                                         \
    ACCESS(__tsan_read##size, size, false)                                     \
    ACCESS(__tsan_write##size, size, true)                                     \
    ACCESS(__tsan_unaligned_read##size, size, false)                           \
    ACCESS(__tsan_unaligned_write##size, size, true)                           \
    ACCESS(__tsan_volatile_read##size, size, false)                            \
    ACCESS(__tsan_volatile_write##size, size, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void *address, size_t size);
void __tsan_read_range(void *address, size_t size)
{
    emu_note_access((uintptr_t)address, size, false);
}

void __tsan_write_range(void *address, size_t size);
void __tsan_write_range(void *address, size_t size)
{
    emu_note_access((uintptr_t)address, size, true);
}

void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
    (void)caller;
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

void __tsan_init(void);
void __tsan_init(void)
{
}

uint64_t emu_atomic_load(void *address, size_t size)
{
    emu_note_access((uintptr_t)address, size, true);
    return size == 4 ? __atomic_load_n((uint32_t *)address, __ATOMIC_RELAXED)
                     : __atomic_load_n((uint64_t *)address, __ATOMIC_RELAXED);
}

bool emu_atomic_swap(void *address, size_t size, uint64_t *seen, uint64_t next)
{
    uint32_t narrow = (uint32_t)*seen;
    bool swapped;

    if (size == 8) {
        return __atomic_compare_exchange_n((uint64_t *)address, seen, next,
                                           false, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED);
    }
    swapped = __atomic_compare_exchange_n((uint32_t *)address, &narrow,
                                          (uint32_t)next, false,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    *seen = narrow;
    return swapped;
}
