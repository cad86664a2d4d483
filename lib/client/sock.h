/* SPDX-License-Identifier: Apache-2.0 */
/* Connected socket of the library to the agent, with frames and descriptors in
 * both directions, never blocking except in ps_sock_wait. The peer is not
 * trusted. No locks; all functions but ps_sock_wait must be called by one thread
 * at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/ps_msg.h"

struct ps_sock;

/* Connects to the path of an agent. PS_E_UNREACH: no process listens there
 * (yet); *ret_errno is the cause. */
PS_MUST_USE int ps_sock_open(const char *path, struct ps_sock **ret_sock,
                             int *ret_errno);
/* Closes the socket and frees it. NULL is allowed. */
void ps_sock_free(struct ps_sock *s);
/* In a forked child: the peer would not see the end of the parent's connection
 * while the child has a copy of it. NULL is allowed. */
void ps_sock_close_copy(struct ps_sock *s);
/* Closes the connection and discards unsent and unread bytes. Until
 * ps_sock_dial has connected again, put, flush and read are not allowed. */
void ps_sock_hang_up(struct ps_sock *s);
/* Connects again as ps_sock_open, but never waits. */
PS_MUST_USE int ps_sock_dial(struct ps_sock *s, const char *path,
                             int *ret_errno);
/* Sets a timer: after `after_ms` ps_sock_wait returns, and ps_sock_fd is
 * readable, until the next call; < 0: no timer. */
PS_MUST_USE int ps_sock_alarm(struct ps_sock *s, int after_ms);

/* Queues a message. A copy of the descriptor `fd` >= 0 is sent with it. */
PS_MUST_USE int ps_sock_put(struct ps_sock *s, const struct ps_msg *msg,
                            int fd);
/* Queues an encoded message. */
PS_MUST_USE int ps_sock_put_frame(struct ps_sock *s, const void *frame,
                                  size_t len);
/* Sends as much as the kernel takes now, if bytes are queued. */
PS_MUST_USE int ps_sock_flush(struct ps_sock *s);
size_t ps_sock_pending(const struct ps_sock *s); /* Bytes queued. */
/* Reads once. PS_E_AGAIN: no data; PS_E_CLOSED: the peer closed. */
PS_MUST_USE int ps_sock_read(struct ps_sock *s);
/* The next complete message, valid until the next call. PS_E_AGAIN: none; any
 * other error, of parsing, check or decoding: the stream is broken. The caller
 * owns the descriptor of an l_arena or l_residual_segment (else -1). */
PS_MUST_USE int ps_sock_next(struct ps_sock *s, struct ps_msg *ret_msg,
                             int *ret_fd);
/* Waits for input, or for space to send queued bytes, at most `timeout_ms` (<
 * 0: for ever). PS_E_TIMEOUT. Any thread. */
PS_MUST_USE int ps_sock_wait(struct ps_sock *s, int timeout_ms);
/* A descriptor that is readable when ps_sock_wait would return at once. */
int ps_sock_fd(const struct ps_sock *s);
/* Shuts down sending and waits for the peer's end of file. PS_E_CLOSED: the
 * peer was lost before it had read everything. */
PS_MUST_USE int ps_sock_end(struct ps_sock *s, int timeout_ms);

/* Makes the current or next ps_sock_wait return, until the waiting thread calls
 * ps_sock_unkick. */
void ps_sock_kick(struct ps_sock *s);
void ps_sock_unkick(struct ps_sock *s);

/* Messages queued so far on this connection, and system calls made. */
uint64_t ps_sock_frames(const struct ps_sock *s);
uint64_t ps_sock_sends(const struct ps_sock *s);
uint64_t ps_sock_receives(const struct ps_sock *s);
