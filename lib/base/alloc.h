/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations: these end the process when memory is gone and the reserve
 * as well, so they are for daemons and tests; the client library has its own
 * that return NULL. Tensor memory comes from base/pool.h. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *ps_alloc(size_t size) __attribute__((malloc, returns_nonnull));
void *ps_calloc(size_t count, size_t size)
    __attribute__((malloc, returns_nonnull));
void *ps_realloc(void *p, size_t size) __attribute__((returns_nonnull));
/* For sizes that a peer has chosen: NULL when memory is gone. */
void *ps_try_alloc(size_t size) __attribute__((malloc));
void *ps_try_calloc(size_t count, size_t size) __attribute__((malloc));
char *ps_strdup(const char *s) __attribute__((malloc, returns_nonnull));
void ps_free(void *p);
/* Bytes that an allocation takes, what the allocator keeps beside it included.
 * NULL: 0. */
size_t ps_alloc_size(const void *p);
/* Bytes of all allocations of this thread, and the most there were since the
 * last call. Where threads free what others took it is an estimate. */
uint64_t ps_alloc_bytes(void);
uint64_t ps_alloc_peak(void);
/* A reserve, of which a thirtieth part is touched: the first allocation that
 * fails gives it up and is tried again. The daemon then gets memory back from
 * who holds most of it, and takes a new reserve. False: there is no room for
 * one, and the old one, if any, stays. Size 0: there shall be none. */
PS_MUST_USE bool ps_alloc_reserve(size_t size);
/* For allocations that are made elsewhere. True: try again. */
bool ps_alloc_use_reserve(void);
/* The reserve has been given up. */
bool ps_alloc_is_starved(void);
/* Tests: the n-th allocation from now fails once, 0: none; and so many of the
 * reserves that are asked for. */
void ps_alloc_fail_at(uint64_t n, uint32_t reserves);
/* Live allocations, for leak checks in tests. */
size_t ps_alloc_live(void);
