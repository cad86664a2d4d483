/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: clusters to which the user has given a name, in a file of the
 * user's, pskv/contexts.json in $XDG_CONFIG_HOME or ~/.config:
 *
 *     {"schema": 1,
 *      "current": "lab",
 *      "contexts": {
 *          "lab": {"endpoint": "10.0.0.1:9091", "tls": "/home/u/lab/tls"}}}
 *
 * It holds no secret: "token" is the name of a file. A file that another user
 * can write is refused, because it decides to which host a token is sent. */
#pragma once

#include <stdbool.h>

#define CONTEXT_NAME_MAX 64u
#define CONTEXT_TEXT_MAX 1023u

/* Way to a cluster; an empty text is not stated. */
struct context {
    char endpoint[CONTEXT_TEXT_MAX + 1];
    char tls[CONTEXT_TEXT_MAX + 1];
    char token[CONTEXT_TEXT_MAX + 1];
};

/* Reads the context `name`, or the one in use if it is NULL. All texts are empty
 * if none is in use. Returns an exit code, after a message. */
int context_get(const char *name, struct context *ret);
/* Calls `each` for every context. */
void context_each(void (*each)(void *arg, const char *name,
                               const char *endpoint),
                  void *arg);
