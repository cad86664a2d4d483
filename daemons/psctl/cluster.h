/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the cluster that a command is for, and contexts: clusters to which the
 * user has given a name, in a file of the user's, pskv/contexts.json in
 * $XDG_CONFIG_HOME or ~/.config:
 *
 *     {"schema": 1,
 *      "current": "lab",
 *      "contexts": {
 *          "lab": {"endpoint": "10.0.0.1:9091", "tls": "/home/u/lab/tls"}}}
 *
 * It holds no secret: "token" is the name of a file. A file that another user
 * can write is refused, because it decides to which host a token is sent. */
#pragma once

#include "base/file_check.h"
#include "psctl/psctl.h"

#include <stdbool.h>

#define CONTEXT_NAME_MAX 64u
#define CONTEXT_TEXT_MAX 1023u

/* Way to a cluster; an empty text is not stated. */
struct context {
    char endpoint[CONTEXT_TEXT_MAX + 1];
    char tls[CONTEXT_TEXT_MAX + 1];
    char token[CONTEXT_TEXT_MAX + 1];
};

struct cluster {
    /* As options have them, NULL: not given; then as they are chosen. "context
     * set" keeps these: "" removes a part. */
    const char *endpoint;
    const char *tls;
    const char *token_file;
    const char *context_name; /* NULL: the one in use. */
    struct context context;
    char endpoint_buffer[300];
    char token[PS_TOKEN_TEXT_MAX + 1];
    bool insecure; /* The token may travel over plain TCP. */
};

/* Chooses address, certificate and token, and reads the token. Options come
 * first. A context that the user names replaces all variables; else these come
 * before the context in use, which counts only if its address does: no other
 * cluster gets its token. Returns an exit code, after a message. */
int cluster_choose(struct cluster *c);
/* Calls `each` for every context. */
void context_each(void (*each)(void *arg, const char *name,
                               const char *endpoint),
                  void *arg);
/* The way to a cluster that is chosen; borrows from it. */
struct wire_target cluster_target(const struct cluster *c, ps_time silence);
