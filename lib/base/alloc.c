/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations. Nobody checks them: when memory is gone the process ends
 * here, with one line, and its supervisor starts it again. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Atomic, because compute threads may allocate too. */
static atomic_size_t live;

static void *must(void *p)
{
    if (p == NULL) {
        fputs("out of memory\n", stderr);
        abort();
    }
    return p;
}

static void *count(void *p)
{
    must(p);
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return p;
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
    return must(realloc(p, size == 0 ? 1 : size));
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
    free(p);
}

size_t ps_alloc_live(void)
{
    return atomic_load_explicit(&live, memory_order_relaxed);
}
