/* SPDX-License-Identifier: Apache-2.0 */
/* A child process of a daemon. Its standard input gets some bytes and then stays
 * open, so that its end shows the process that the daemon has gone; what it
 * writes on standard output, until it closes that, is a report; standard error
 * is that of the daemon. It has a session of its own. */
#pragma once

#include "base/err.h"

#include <stddef.h>

struct ps_loop;
struct ps_child;

/* Most bytes of a report; the rest is dropped. */
#define PS_CHILD_REPORT_MAX 400u

struct ps_child_options {
    struct ps_loop *loop;
    const char *const *argv; /* The first is the path; NULL ends it. */
    const void *input;       /* Copied. */
    size_t input_len;
    /* Its standard output has ended; `report` is borrowed. Once. */
    void (*reported)(void *ctx, const char *report);
    /* It has ended. The last callback; ps_child_free() is allowed from now
     * on. */
    void (*ended)(void *ctx);
    void *ctx;
};

/* The callbacks run from the loop, and only after success. */
PS_MUST_USE int ps_child_start(const struct ps_child_options *opt,
                               struct ps_child **ret_child);
/* Closes its standard input; no effect if it is closed. */
void ps_child_release(struct ps_child *c);
/* Stops to wait for it: `ended` follows, even if it lives. */
void ps_child_abandon(struct ps_child *c);
/* Requires that `ended` has run. */
void ps_child_free(struct ps_child *c);
