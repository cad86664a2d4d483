/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets: TCP bind and listen, and accepting on the loop. */
#pragma once

#include "base/err.h"

#include <stdint.h>

struct ps_loop;
struct ps_listener;

/* `fd` is connected, non-blocking, and owned by the callee; -1: a caller was
 * turned away, because no descriptor was left. */
typedef void (*ps_listener_cb)(void *ctx, int fd);

/* Listens on a numeric address, a name or "localhost". Port 0: any free one.
 * PS_E_EXIST: in use; PS_E_PERM; PS_E_INVAL: no such address here. */
PS_MUST_USE int ps_listen_tcp(const char *host, uint16_t port, int backlog,
                              int *ret_fd, uint16_t *ret_port);

/* The same for a socket that listens already, which stays the caller's.
 * PS_E_INVAL: its address or port is another one. */
PS_MUST_USE int ps_listen_adopt(int fd, const char *host, uint16_t port,
                                uint16_t *ret_port);

/* Accepts on `fd`; on success the listener owns it. */
PS_MUST_USE int ps_listener_open(struct ps_loop *l, int fd,
                                 ps_listener_cb accepted, void *ctx,
                                 struct ps_listener **ret_listener);
/* Closes the socket; the memory is freed when the loop has released it. NULL is
 * allowed. */
void ps_listener_close(struct ps_listener *s);
