/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations. Nobody checks them: when memory is gone the reserve is
 * given up, so that the one that needed it succeeds; when there is none any
 * more the process ends here, with one line, and its supervisor starts it
 * again. */
#include "base/alloc.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
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

/* Pieces of the allocator's own memory, so that what others have freed can be
 * part of it. Each is below what glibc maps by itself, and but for its first
 * page it is not touched. */
#define PIECE (120u * 1024u)

struct piece {
    struct piece *next;
};

static _Atomic(struct piece *) reserve; /* NULL: there is none. */
static atomic_bool starved;
static uint64_t fails_at;    /* 0: never. */
static uint32_t no_reserves; /* Reserves that fail to be allocated. */

static bool fails(void)
{
    return fails_at > 0 && --fails_at == 0;
}

static void free_pieces(struct piece *p)
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

    if (no_reserves > 0) {
        no_reserves--;
        return false;
    }
    for (size_t got = 0; got < size; got += PIECE) {
        struct piece *p = malloc(PIECE);

        if (p == NULL) {
            free_pieces(all);
            return false;
        }
        p->next = all;
        all = p;
    }
    free_pieces(atomic_exchange(&reserve, all));
    atomic_store(&starved, false);
    return true;
}

bool ps_alloc_release(void)
{
    struct piece *all = atomic_exchange(&reserve, NULL);

    if (all == NULL) {
        return false;
    }
    atomic_store(&starved, true);
    free_pieces(all);
    return true;
}

bool ps_alloc_is_starved(void)
{
    return atomic_load_explicit(&starved, memory_order_relaxed);
}

void ps_alloc_fail_at(uint64_t n, uint32_t reserves)
{
    fails_at = n;
    no_reserves = reserves;
}

/* What was tried did not succeed: it is tried again with the reserve, or once
 * more where another thread may have given that up just now. */
static bool again(unsigned *tries)
{
    if (ps_alloc_release() || (*tries)++ == 0) {
        return true;
    }
    fputs("out of memory\n", stderr);
    abort();
}

static void *if_any(void *p)
{
    if (p != NULL) {
        add_bytes(p);
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    }
    return p;
}

void *ps_alloc(size_t size)
{
    unsigned tries = 0;
    void *p;

    do {
        p = fails() ? NULL : malloc(size == 0 ? 1 : size);
    } while (p == NULL && again(&tries));
    return if_any(p);
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
        p = fails() ? NULL : calloc(n, size);
    } while (p == NULL && again(&tries));
    return if_any(p);
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
        now = fails() ? NULL : realloc(p, size == 0 ? 1 : size);
    } while (now == NULL && again(&tries));
    bytes -= (int64_t)before;
    add_bytes(now);
    return now;
}

void *ps_try_alloc(size_t size)
{
    return if_any(fails() ? NULL : malloc(size == 0 ? 1 : size));
}

void *ps_try_calloc(size_t n, size_t size)
{
    if (n == 0 || size == 0) {
        n = 1;
        size = 1;
    }
    return if_any(fails() ? NULL : calloc(n, size));
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
