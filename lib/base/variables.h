/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables PSKV_* of training processes and tools. One that no
 * program reads is a typing error, and the intended setting keeps its
 * default. */
#pragma once

#include <stddef.h>

/* All names that a program or library of pskv reads, NULL-terminated. */
extern const char *const ps_variables[];

/* Returns the next entry of `env` (as environ), from *cursor on, that begins
 * with PSKV_ and that no program reads; the most similar name in *ret_nearest,
 * or NULL. NULL: no more. *cursor starts at 0. */
const char *ps_variables_unknown(char *const *env, size_t *cursor,
                                 const char **ret_nearest);
