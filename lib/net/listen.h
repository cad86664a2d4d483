/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets that wait for connections. */
#pragma once

#include "base/err.h"

#include <stdint.h>

struct ps_loop;
struct ps_listener;

/* `fd` is connected, does not block, and is the callee's. */
typedef void (*ps_listener_cb)(void *ctx, int fd);

/* A TCP socket bound to a numeric address, or to "localhost". Port 0: any.
 * PS_E_EXIST: in use; PS_E_PERM; PS_E_INVAL: no such address here. */
PS_MUST_USE int ps_listen_tcp(const char *host, uint16_t port, int backlog,
                              int *ret_fd, uint16_t *ret_port);

/* Accept on `fd`, which is the listener's from now on when this succeeds. */
PS_MUST_USE int ps_listener_open(struct ps_loop *l, int fd,
                                 ps_listener_cb accepted, void *ctx,
                                 struct ps_listener **ret_listener);
/* Frees it too, when the loop has let go. NULL is fine. */
void ps_listener_close(struct ps_listener *s);
/* Connections that were turned away because descriptors had run out. */
uint64_t ps_listener_refused(const struct ps_listener *s);
