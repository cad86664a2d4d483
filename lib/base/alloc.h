/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations for daemons and tests: they abort the process when memory
 * and the reserve are used up. The client library has its own, which return
 * NULL. Tensor memory comes from base/pool.h. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *ps_alloc(size_t size) __attribute__((malloc, returns_nonnull));
void *ps_calloc(size_t count, size_t size)
    __attribute__((malloc, returns_nonnull));
void *ps_realloc(void *p, size_t size) __attribute__((returns_nonnull));
/* The same for sizes that a peer chooses: NULL if memory is used up. */
void *ps_try_alloc(size_t size) __attribute__((malloc));
void *ps_try_calloc(size_t count, size_t size) __attribute__((malloc));
char *ps_strdup(const char *s) __attribute__((malloc, returns_nonnull));
void ps_free(void *p);
/* Bytes that an allocation takes, the allocator's header included. NULL: 0. */
size_t ps_alloc_size(const void *p);
/* Bytes of all allocations of this thread, and their peak since the last
 * ps_alloc_take_peak(). An estimate where threads free memory of other
 * threads. */
uint64_t ps_alloc_bytes(void);
uint64_t ps_alloc_peak(void);
/* Returns the peak, and begins another. */
uint64_t ps_alloc_take_peak(void);
/* Allocates a reserve of `size` bytes, of which a thirtieth is touched: the
 * first allocation that fails frees it and is tried again. The daemon then
 * frees memory by eviction and allocates a new reserve. False: no memory for
 * it; a present reserve stays. Size 0 frees the reserve. */
PS_MUST_USE bool ps_alloc_reserve(size_t size);
/* Frees the reserve for a failed allocation made by other means. True: try
 * again. */
bool ps_alloc_use_reserve(void);
/* True if the reserve is used up. */
bool ps_alloc_is_starved(void);
/* Tests: the n-th allocation from now fails, once (0: none), and so do the next
 * `reserves` allocations of a reserve. */
void ps_alloc_fail_at(uint64_t n, uint32_t reserves);
/* Number of live allocations, for leak checks in tests. */
size_t ps_alloc_live(void);
