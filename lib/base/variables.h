/* SPDX-License-Identifier: Apache-2.0 */
/* Variables PSKV_* of training processes and tools. One that no program reads
 * is a typing error, and the setting that it was meant for has its default. */
#pragma once

#include <stddef.h>

/* Every name that a program or library of pskv reads; its end is NULL. */
extern const char *const ps_variables[];

/* The next entry of `env`, which is like environ, from *cursor on that begins
 * with PSKV_ and that nobody reads; the name nearest to it in *ret_nearest, or
 * NULL. Returns NULL behind the last one. *cursor begins with 0. */
const char *ps_variables_unknown(char *const *env, size_t *cursor,
                                 const char **ret_nearest);
