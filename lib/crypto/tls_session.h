/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of one connection, by OpenSSL: its handshake, and the bytes of the user
 * in records through its socket, which is non-blocking. The kernel seals, and
 * opens, records where the context allows it, and OpenSSL and the kernel can.
 *
 * One thread at a time uses a session: OpenSSL has one state for both
 * directions. It writes without MSG_NOSIGNAL, so the process ignores SIGPIPE, or
 * the thread blocks it. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "crypto/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct ps_tls_context;
struct ps_tls_session;
struct x509_store_ctx_st;

/* Bytes that one read, and one write, moves at most. */
#define PS_TLS_BATCH_BYTES (64u * 1024u)
/* Records after which the keys of the output change, far below the limit of
 * AES-GCM. OpenSSL counts none itself; it follows the peer, whose keys change
 * likewise. */
#define PS_TLS_RECORDS_MAX (UINT64_C(1) << 23)

/* Holds a reference to the context. The socket stays the caller's. NULL:
 * OpenSSL failed. */
struct ps_tls_session *ps_tls_session_new(struct ps_tls_context *c, int fd,
                                          bool dialled);
/* NULL is allowed. */
void ps_tls_session_free(struct ps_tls_session *s);

/* Goes on with the handshake as far as the socket allows. 0: it is complete,
 * and all of it has left; PS_E_AGAIN: the socket has to become readable, or
 * writable, see below; others: it failed, `why` has the reason, and the peer
 * has an alert. PS_E_VERSION: the peer does not use TLS; PS_E_CLOSED: it closed the
 * connection before it sent anything, as a probe does; PS_E_REFUSED: it closed
 * the connection later, or was dialled. */
PS_MUST_USE int ps_tls_session_handshake(struct ps_tls_session *s,
                                         struct ps_str *why);
/* After PS_E_AGAIN: the handshake waits for a writable socket. */
bool ps_tls_session_waits_to_write(const struct ps_tls_session *s);
/* True if the peer has sent anything. */
bool ps_tls_session_has_input(const struct ps_tls_session *s);

/* The peer, as its certificate names it. Role 0: not known yet. After a failure:
 * of the refused certificate. */
const struct ps_identity *ps_tls_session_peer(const struct ps_tls_session *s);
/* End of validity of the peer's certificate, or of an authority's in its chain
 * if that is earlier, in seconds since 1970. */
int64_t ps_tls_session_peer_expires_at(const struct ps_tls_session *s);
/* 0 if the peer's certificate is valid by another context, see
 * ps_tls_context_verify(). */
PS_MUST_USE int ps_tls_session_verify(const struct ps_tls_session *s,
                                      const struct ps_tls_context *c,
                                      struct ps_str *why);
const char *ps_tls_session_cipher(const struct ps_tls_session *s);
/* True if the kernel seals the records of the output. */
bool ps_tls_session_is_sealed_by_kernel(const struct ps_tls_session *s);

/* Opens bytes to up to `count` places. Returns their number; PS_E_AGAIN: none
 * are here; PS_E_CLOSED: the peer has ended its output; PS_E_PERM: the peer
 * refuses this side, see ps_tls_session_failure(); PS_E_PROTO; PS_E_IO: errno
 * has the reason. */
ssize_t ps_tls_session_read(struct ps_tls_session *s, const struct iovec *iov,
                            int count);
/* True if the session holds bytes, or a failure, for the next read. */
bool ps_tls_session_has_unread(const struct ps_tls_session *s);
/* Why a read failed with PS_E_PERM or PS_E_PROTO. */
const char *ps_tls_session_failure(const struct ps_tls_session *s);

/* Seals bytes from up to `count` places, and writes them as far as the socket
 * accepts them; returns the number of sealed bytes. With a `count` of 0 it
 * writes what is left, and returns 0: nothing is. PS_E_AGAIN: sealed bytes are
 * left, which have to leave first; PS_E_IO: errno has the reason; EKEYEXPIRED:
 * the kernel has keys that OpenSSL cannot change there. */
ssize_t ps_tls_session_write(struct ps_tls_session *s, const struct iovec *iov,
                             int count);
/* Sealed bytes that the socket has not accepted yet. */
size_t ps_tls_session_unsent(const struct ps_tls_session *s);
/* Tells the peer that no output follows, as far as the socket accepts it. */
void ps_tls_session_end(struct ps_tls_session *s);

/* For tests: records after which the keys change. */
void ps_tls_session_set_records_max(struct ps_tls_session *s, uint64_t records);
/* For crypto/tls_context.c: takes note of a certificate that is refused. */
int ps_tls_session_on_verify(int is_valid, struct x509_store_ctx_st *v);
