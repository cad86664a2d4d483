/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of TCP: listening, accepting on the loop, and dialling. */
#pragma once

#include "base/err.h"
#include "base/time.h"

#include <stdint.h>

struct ps_dial;
struct ps_listener;
struct ps_loop;

/* ---------------------------------------------------------------- listening */

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

/* ----------------------------------------------------------------- dialling */

/* One dial: resolves the name and connects to the first of its addresses that
 * answers. The caller retries. */

#define PS_DIAL_DETAIL_MAX 128u

/* `fd` >= 0: connected, owned by the callee; `detail` is the peer's numeric
 * address. Else `detail` is the text of the failure. PS_E_UNREACH,
 * PS_E_TIMEOUT, PS_E_CANCELED, or a system error. */
typedef void (*ps_dial_cb)(void *ctx, int fd, int rc, const char *detail);

/* Time limit of the look-up. */
#define PS_DIAL_LOOKUP_MAX PS_SECONDS(10)

/* Dials `address`, "host:port"; `timeout` counts from the end of the look-up.
 * Calls back once, never before it returns. */
PS_MUST_USE int ps_dial_start(struct ps_loop *l, const char *address,
                              ps_time timeout, ps_dial_cb done, void *ctx,
                              struct ps_dial **ret_dial);
/* Calls back soon, with PS_E_CANCELED unless the dial had ended. */
void ps_dial_cancel(struct ps_dial *d);
