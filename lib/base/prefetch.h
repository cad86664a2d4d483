/* SPDX-License-Identifier: Apache-2.0 */
/* Cache prefetching. A walk over many objects waits for the memory of each in
 * turn; with prefetching some steps ahead, these waits overlap. */
#pragma once

#include <stddef.h>

/* Prefetches `bytes` from `p` on for writing; NULL: no effect. */
static inline void ps_prefetch(const void *p, size_t bytes)
{
    const char *at = p;

    for (size_t i = 0; at != NULL && i < bytes; i += 64) {
        __builtin_prefetch(at + i, 1);
    }
}
