/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations. Nobody checks them: when memory is gone the process ends
 * here, with one line, and its supervisor starts it again. */
#include "base/alloc.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Atomic, because compute threads may allocate too. */
static atomic_size_t live;
/* Bytes of the thread's own, which cost no atomic operation. What one thread
 * takes and another gives back shifts both sums. */
static _Thread_local int64_t bytes;
static _Thread_local int64_t peak;

static void add_bytes(const void *p)
{
    bytes += (int64_t)ps_alloc_size(p);
    peak = bytes > peak ? bytes : peak;
}

static void *must(void *p)
{
    if (p == NULL) {
        fputs("out of memory\n", stderr);
        abort();
    }
    return p;
}

static void *if_any(void *p)
{
    if (p != NULL) {
        add_bytes(p);
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    }
    return p;
}

static void *count(void *p)
{
    return if_any(must(p));
}

void *ps_alloc(size_t size)
{
    return count(malloc(size == 0 ? 1 : size));
}

void *ps_calloc(size_t n, size_t size)
{
    if (n == 0 || size == 0) {
        n = 1;
        size = 1;
    }
    return count(calloc(n, size));
}

void *ps_realloc(void *p, size_t size)
{
    if (p == NULL) {
        return ps_alloc(size);
    }
    size_t before = ps_alloc_size(p);
    void *now = must(realloc(p, size == 0 ? 1 : size));

    bytes -= (int64_t)before;
    add_bytes(now);
    return now;
}

void *ps_try_alloc(size_t size)
{
    return if_any(malloc(size == 0 ? 1 : size));
}

void *ps_try_calloc(size_t n, size_t size)
{
    if (n == 0 || size == 0) {
        n = 1;
        size = 1;
    }
    return if_any(calloc(n, size));
}

char *ps_strdup(const char *s)
{
    return count(strdup(s));
}

void ps_free(void *p)
{
    if (p == NULL) {
        return;
    }
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    bytes -= (int64_t)ps_alloc_size(p);
    free(p);
}

size_t ps_alloc_size(const void *p)
{
    /* The allocator's own word is not part of what can be used. */
    return p == NULL
               ? 0
               : malloc_usable_size((void *)(uintptr_t)p) + sizeof(size_t);
}

size_t ps_alloc_live(void)
{
    return atomic_load_explicit(&live, memory_order_relaxed);
}

uint64_t ps_alloc_bytes(void)
{
    return bytes > 0 ? (uint64_t)bytes : 0;
}

uint64_t ps_alloc_peak(void)
{
    uint64_t most = peak > 0 ? (uint64_t)peak : 0;

    peak = bytes;
    return most;
}
