/* SPDX-License-Identifier: Apache-2.0 */
/* Asking for memory before it is looked at. A walk over many objects waits for
 * the memory of each in turn; asked for some steps ahead, it waits for all of
 * them at once. */
#pragma once

#include <stddef.h>

/* `bytes` from `p` on, which may be NULL. Changes nothing that can be seen. */
static inline void ps_prefetch(const void *p, size_t bytes)
{
    const char *at = p;

    for (size_t i = 0; at != NULL && i < bytes; i += 64) {
        __builtin_prefetch(at + i, 1);
    }
}
