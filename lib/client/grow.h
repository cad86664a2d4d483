/* SPDX-License-Identifier: Apache-2.0 */
/* Growth of lists of the library, which must not end the program that has used up
 * its memory, as base/alloc.h does. */
#pragma once

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Makes room for one more element of `size` bytes in a list that has `count` of
 * them and room for *cap. `list` is the address of the pointer to it.
 * PS_E_NOMEM: nothing has changed. */
static inline int client_grow(void *list, size_t count, size_t *cap,
                              size_t size)
{
    const size_t more = *cap == 0 ? 8 : *cap * 2;
    void *grown;

    if (count < *cap) {
        return 0;
    }
    memcpy(&grown, list, sizeof(grown));
    grown = realloc(grown, more * size);
    if (grown == NULL) {
        return PS_E_NOMEM;
    }
    memcpy(list, &grown, sizeof(grown));
    *cap = more;
    return 0;
}
