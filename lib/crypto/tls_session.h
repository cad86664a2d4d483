/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of one connection, without its socket: bytes of the network in and out,
 * bytes of the user in and out. OpenSSL makes the handshake; after it,
 * crypto/tls_record.h protects the records with the keys that it made.
 *
 * One thread at a time calls the functions of a group. After the handshake, the
 * two directions may be with different threads. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "crypto/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ps_tls_context;
struct ps_tls_material;
struct ps_tls_session;
struct ssl_st;
struct x509_store_ctx_st;

/* Records sealed by one write. */
#define PS_TLS_BATCH       8u
/* Records after which the keys change, far below the limit of AES-GCM. */
#define PS_TLS_RECORDS_MAX (UINT64_C(1) << 23)

/* Holds a reference to the context until the end of the handshake. NULL:
 * OpenSSL failed. */
struct ps_tls_session *ps_tls_session_new(struct ps_tls_context *c,
                                          bool dialled);
/* NULL is allowed. */
void ps_tls_session_free(struct ps_tls_session *s);

/* Goes on with the handshake as far as the input allows. 0: it is complete, and
 * output may be left; PS_E_AGAIN: write the output, and add input; others: it
 * failed, `why` has the reason, and the output tells the peer. PS_E_VERSION:
 * the peer does not use TLS. */
PS_MUST_USE int ps_tls_session_handshake(struct ps_tls_session *s,
                                         struct ps_str *why);
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

/* Input: place for bytes of the network. The place has room while
 * ps_tls_session_read() and the handshake have returned PS_E_AGAIN. */
void *ps_tls_session_place(struct ps_tls_session *s, size_t *ret_room);
void ps_tls_session_received(struct ps_tls_session *s, size_t n);
/* Opens bytes to up to `count` places. Returns their number; PS_E_AGAIN: input
 * is needed; PS_E_CLOSED: the peer has ended its output; PS_E_PERM: the peer
 * refuses this side, see ps_tls_session_failure(); PS_E_PROTO. */
ssize_t ps_tls_session_read(struct ps_tls_session *s, const struct iovec *iov,
                            int count);
/* Bytes, of the user or not opened yet, that the next read gets without input.
 * 0: none. */
size_t ps_tls_session_pending(const struct ps_tls_session *s);
/* Why the last read failed. */
const char *ps_tls_session_failure(const struct ps_tls_session *s);

/* Output: bytes for the network; NULL: there are none. */
const void *ps_tls_session_output(const struct ps_tls_session *s,
                                  size_t *ret_len);
void ps_tls_session_sent(struct ps_tls_session *s, size_t n);
/* Seals bytes from up to `count` places, as output; returns their number.
 * PS_E_AGAIN: earlier output has to leave first; PS_E_BUG: OpenSSL failed. */
ssize_t ps_tls_session_write(struct ps_tls_session *s, const struct iovec *iov,
                             int count);
/* Adds the message that ends the output. */
void ps_tls_session_end(struct ps_tls_session *s);

/* The keys of a direction, for the kernel, which goes on from the next record:
 * the session then neither seals nor opens. PS_E_AGAIN: it holds bytes of the
 * direction, which have to leave first; PS_E_BUG: OpenSSL failed. */
PS_MUST_USE int ps_tls_session_export(const struct ps_tls_session *s,
                                      bool of_output,
                                      struct ps_tls_material *ret_material);
/* Handles a record without data that the kernel has opened. 0: reading goes on;
 * PS_E_CLOSED, PS_E_PERM and PS_E_PROTO as ps_tls_session_read(). A KeyUpdate
 * has changed the keys of the input: *ret_update. */
PS_MUST_USE int ps_tls_session_control(struct ps_tls_session *s, uint8_t type,
                                       const uint8_t *bytes, size_t len,
                                       bool *ret_update);
/* True if the keys of the output have to change: after this number of records,
 * or once after the peer has asked. */
bool ps_tls_session_update_due(struct ps_tls_session *s, uint64_t records);
/* Changes the keys of the output, after its KeyUpdate. */
PS_MUST_USE int ps_tls_session_update_output(struct ps_tls_session *s);

/* For tests: a session after a handshake that made these secrets of its input
 * and output, of `len` bytes each. NULL: OpenSSL failed. */
struct ps_tls_session *ps_tls_session_of_secrets(const uint8_t *input,
                                                 const uint8_t *output,
                                                 size_t len);
/* For tests: records after which the keys change. */
void ps_tls_session_set_records_max(struct ps_tls_session *s, uint64_t records);
/* For crypto/tls_context.c: takes note of a certificate that is refused; and
 * receives the secrets of a handshake. */
int ps_tls_session_on_verify(int is_valid, struct x509_store_ctx_st *v);
void ps_tls_session_keylog(const struct ssl_st *ssl, const char *line);
