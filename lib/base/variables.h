/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables PSKV_* of training processes and tools. One that no
 * program reads is a typing error, and the intended setting keeps its
 * default. Also the folder of sockets, which a variable decides. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* All names that a program or library of pskv reads, NULL-terminated. */
extern const char *const ps_variables[];

/* Returns the next entry of `env` (as environ), from *cursor on, that begins
 * with PSKV_ and that no program reads; the most similar name in *ret_nearest,
 * or NULL. NULL: no more. *cursor starts at 0. */
const char *ps_variables_unknown(char *const *env, size_t *cursor,
                                 const char **ret_nearest);

/* Folder of the sockets of a user's own daemons, $XDG_RUNTIME_DIR/pskv. False:
 * the user has none. */
bool ps_runtime_folder(char *out, size_t cap);
/* Where a program looks for the socket of a daemon of this host: in the folder
 * of the user's own daemons if the socket is there, else in /run/pskv. */
void ps_runtime_socket(const char *name, char *out, size_t cap);
