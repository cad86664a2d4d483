/* SPDX-License-Identifier: Apache-2.0 */
/* The Unix socket to the agent: frames and descriptors in both directions,
 * never blocking except in ps_sock_wait. Nothing here locks; all but
 * ps_sock_wait must be called by one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/ps_msg.h"

struct ps_sock;

/* Connects to the path. PS_E_UNREACH: nobody listens there (yet); *ret_errno
 * says why. */
PS_MUST_USE int ps_sock_open(const char *path, struct ps_sock **ret_sock,
                             int *ret_errno);
/* Closes what is open and frees it. NULL is fine. */
void ps_sock_free(struct ps_sock *s);
/* Closes the connection and forgets what was on its way in both directions;
 * until
 * ps_sock_dial has connected again nothing may be put, flushed or read. */
void ps_sock_hang_up(struct ps_sock *s);
/* Connects again, as ps_sock_open, but never waits. */
PS_MUST_USE int ps_sock_dial(struct ps_sock *s, const char *path,
                             int *ret_errno);
/* ps_sock_wait returns, and ps_sock_fd is readable, after `after_ms` until this
 * is called again; < 0: never. */
PS_MUST_USE int ps_sock_alarm(struct ps_sock *s, int after_ms);

/* Queues a message; with `fd` >= 0 that descriptor travels beside it, and on
 * success it is the socket's, which closes it when it is sent. */
PS_MUST_USE int ps_sock_put(struct ps_sock *s, const struct ps_msg *msg,
                            int fd);
/* The same of one that is encoded already. */
PS_MUST_USE int ps_sock_put_frame(struct ps_sock *s, const void *frame,
                                  size_t len);
/* Sends what the kernel takes now. */
PS_MUST_USE int ps_sock_flush(struct ps_sock *s);
bool ps_sock_flushed(const struct ps_sock *s);
size_t ps_sock_pending(const struct ps_sock *s); /* Bytes to be sent. */
/* Reads once. PS_E_AGAIN: nothing there; PS_E_CLOSED: the agent hung up. */
PS_MUST_USE int ps_sock_read(struct ps_sock *s);
/* The next message that is here in full. PS_E_AGAIN: none; else the stream is
 * broken. The message is valid until the next call; the descriptor of an
 * l_arena or l_residual_segment (else -1) is the caller's. */
PS_MUST_USE int ps_sock_next(struct ps_sock *s, struct ps_msg *ret_msg,
                             int *ret_fd);
/* Until there is something to read or room for what is queued, at most
 * `timeout_ms` (< 0: for ever). PS_E_TIMEOUT. Any thread. */
PS_MUST_USE int ps_sock_wait(struct ps_sock *s, int timeout_ms);
/* Readable when ps_sock_wait would return at once. */
int ps_sock_fd(const struct ps_sock *s);
/* No more will be sent; waits for the peer's end of file. PS_E_CLOSED: it was
 * gone before it had read everything. */
PS_MUST_USE int ps_sock_end(struct ps_sock *s, int timeout_ms);

/* Makes a thread in ps_sock_wait return, or the next that comes there, until
 * ps_sock_unkick, which that thread calls. */
void ps_sock_kick(struct ps_sock *s);
void ps_sock_unkick(struct ps_sock *s);

/* Messages queued so far on this connection. */
uint64_t ps_sock_frames(const struct ps_sock *s);
uint64_t ps_sock_sends(const struct ps_sock *s);
uint64_t ps_sock_receives(const struct ps_sock *s);
