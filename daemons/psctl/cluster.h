/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the cluster that a command is for. */
#pragma once

#include "psctl/context.h"

#include "base/token_text.h"
#include "psctl/psctl.h"

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
/* The way to a cluster that is chosen; borrows from it. */
struct wire_target cluster_target(const struct cluster *c, ps_time silence);
