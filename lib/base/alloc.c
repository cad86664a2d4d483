/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations that cannot fail for their callers: a failing one frees the
 * memory reserve and is tried again; without a reserve the process aborts with
 * one line, and its supervisor restarts it. */
#include "base/alloc.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Atomic, because compute threads allocate, too. */
static atomic_size_t live_count;
/* Bytes allocated by this thread, counted without atomic operations. Memory
 * that another thread frees makes both threads' sums inexact. */
static _Thread_local int64_t thread_bytes;
static _Thread_local int64_t thread_peak;

static void add_bytes(const void *p)
{
    thread_bytes += (int64_t)ps_alloc_size(p);
    thread_peak = thread_bytes > thread_peak ? thread_bytes : thread_peak;
}

/* The reserve consists of blocks of the allocator's own heap, so that freed
 * memory of others can become part of it. Each block is below glibc's mmap
 * threshold, and only its first page is touched. */
#define RESERVE_BLOCK (120u * 1024u)

struct piece {
    struct piece *next;
};

static _Atomic(struct piece *) reserve; /* NULL: none. */
static atomic_bool starved;
/* Allocations until one fails, for tests; 0: none fails. */
static uint64_t fail_countdown;
/* Allocations of the reserve that are to fail, for tests. */
static uint32_t reserve_failures;

static bool must_fail(void)
{
    return fail_countdown > 0 && --fail_countdown == 0;
}

static void free_reserve(struct piece *p)
{
    while (p != NULL) {
        struct piece *next = p->next;

        free(p);
        p = next;
    }
}

bool ps_alloc_reserve(size_t size)
{
    struct piece *all = NULL;

    if (reserve_failures > 0) {
        reserve_failures--;
        return false;
    }
    for (size_t got = 0; got < size; got += RESERVE_BLOCK) {
        struct piece *p = malloc(RESERVE_BLOCK);

        if (p == NULL) {
            free_reserve(all);
            return false;
        }
        p->next = all;
        all = p;
    }
    free_reserve(atomic_exchange(&reserve, all));
    atomic_store(&starved, false);
    return true;
}

bool ps_alloc_use_reserve(void)
{
    struct piece *all = atomic_exchange(&reserve, NULL);

    if (all == NULL) {
        return false;
    }
    atomic_store(&starved, true);
    free_reserve(all);
    return true;
}

bool ps_alloc_is_starved(void)
{
    return atomic_load_explicit(&starved, memory_order_relaxed);
}

void ps_alloc_fail_at(uint64_t n, uint32_t reserves)
{
    fail_countdown = n;
    reserve_failures = reserves;
}

/* Called after a failed allocation. Returns true if it should be tried again:
 * with the memory of the reserve, or once without it, as another thread may
 * have freed the reserve just now. Else aborts. */
static bool retry_with_reserve(unsigned *tries)
{
    if (ps_alloc_use_reserve() || (*tries)++ == 0) {
        return true;
    }
    fputs("out of memory\n", stderr);
    abort();
}

static void *count_allocation(void *p)
{
    if (p != NULL) {
        add_bytes(p);
        atomic_fetch_add_explicit(&live_count, 1, memory_order_relaxed);
    }
    return p;
}

void *ps_alloc(size_t size)
{
    unsigned tries = 0;
    void *p;

    do {
        p = must_fail() ? NULL : malloc(size == 0 ? 1 : size);
    } while (p == NULL && retry_with_reserve(&tries));
    return count_allocation(p);
}

void *ps_calloc(size_t n, size_t size)
{
    if (n == 0 || size == 0) {
        n = 1;
        size = 1;
    }
    unsigned tries = 0;
    void *p;

    do {
        p = must_fail() ? NULL : calloc(n, size);
    } while (p == NULL && retry_with_reserve(&tries));
    return count_allocation(p);
}

void *ps_realloc(void *p, size_t size)
{
    if (p == NULL) {
        return ps_alloc(size);
    }
    size_t before = ps_alloc_size(p);
    unsigned tries = 0;
    void *now;

    do {
        now = must_fail() ? NULL : realloc(p, size == 0 ? 1 : size);
    } while (now == NULL && retry_with_reserve(&tries));
    thread_bytes -= (int64_t)before;
    add_bytes(now);
    return now;
}

void *ps_try_alloc(size_t size)
{
    return count_allocation(must_fail() ? NULL : malloc(size == 0 ? 1 : size));
}

void *ps_try_calloc(size_t n, size_t size)
{
    if (n == 0 || size == 0) {
        n = 1;
        size = 1;
    }
    return count_allocation(must_fail() ? NULL : calloc(n, size));
}

char *ps_strdup(const char *s)
{
    size_t size = strlen(s) + 1;

    return memcpy(ps_alloc(size), s, size);
}

void ps_free(void *p)
{
    if (p == NULL) {
        return;
    }
    atomic_fetch_sub_explicit(&live_count, 1, memory_order_relaxed);
    thread_bytes -= (int64_t)ps_alloc_size(p);
    free(p);
}

size_t ps_alloc_size(const void *p)
{
    /* malloc_usable_size does not include the allocator's header. */
    return p == NULL
               ? 0
               : malloc_usable_size((void *)(uintptr_t)p) + sizeof(size_t);
}

size_t ps_alloc_live(void)
{
    return atomic_load_explicit(&live_count, memory_order_relaxed);
}

uint64_t ps_alloc_bytes(void)
{
    return thread_bytes > 0 ? (uint64_t)thread_bytes : 0;
}

uint64_t ps_alloc_peak(void)
{
    return thread_peak > 0 ? (uint64_t)thread_peak : 0;
}

uint64_t ps_alloc_take_peak(void)
{
    uint64_t most = ps_alloc_peak();

    thread_peak = thread_bytes;
    return most;
}
