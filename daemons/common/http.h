/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP for monitoring systems: GET /metrics, /healthz and /readyz, on a thread
 * of its own. Requests are answered from the last snapshot that the loop thread
 * has published, so no request takes time of that thread, and /healthz tells
 * when it has stopped to publish.
 *
 * libmicrohttpd parses requests. It is loaded when a server is opened, not
 * linked: daemons without one, and hosts without the library, need none of
 * it. */
#pragma once

#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

struct ps_http;

/* Bytes of metrics in one answer. */
#define PS_HTTP_TEXT_MAX 65536u

struct ps_http_options {
    /* Adds metrics to those of the snapshot; runs on the server's thread. */
    void (*add)(void *ctx, struct ps_str *text);
    void *ctx;
};

struct ps_http_snapshot {
    const char *metrics; /* Copied. */
    size_t len;          /* At most PS_HTTP_TEXT_MAX. */
    /* Reason why the daemon cannot serve, a constant; NULL: it can. */
    const char *not_ready;
};

/* True if libmicrohttpd can be used; else `why` has the reason and what to
 * do. */
bool ps_http_is_available(struct ps_str *why);

/* Serves the listening socket `fd`, which it takes over. Every answer is 503
 * until the first snapshot. */
PS_MUST_USE int ps_http_open(int fd, const struct ps_http_options *opt,
                             struct ps_http **ret_http);
/* Ends all connections. NULL is allowed. */
void ps_http_close(struct ps_http *h);

/* Replaces the snapshot; /healthz is good for five seconds from then on. */
void ps_http_publish(struct ps_http *h, const struct ps_http_snapshot *s);
