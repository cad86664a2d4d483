/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of connections, by OpenSSL: version 1.3 only, with certificates on both
 * sides; no session tickets, no early data.
 *
 * A context has the credentials of a daemon or tool: its key and certificate,
 * the authorities that it trusts, and the lists of revoked certificates. It does
 * not change: a reload makes another one. Threads may share it.
 *
 * A session is TLS of one connection: its handshake, and the bytes of the user in
 * records through its socket, which is non-blocking. The kernel seals, and opens,
 * records where the context allows it, and OpenSSL and the kernel can. One thread
 * at a time uses a session: OpenSSL has one state for both directions. It writes
 * without MSG_NOSIGNAL, so the process ignores SIGPIPE, or the thread blocks
 * it. */
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
struct ssl_ctx_st;
struct ssl_st;
struct stack_st_X509;
struct x509_st;
struct x509_store_ctx_st;

/* -------------------------------------------------------------- credentials */

/* Bytes of a file, or of the text of an inherited descriptor. */
#define PS_TLS_PEM_MAX (1024u * 1024u)

/* Paths of PEM files; or all of them as one text: a private key, its
 * certificate, further certificates of its chain, and self-signed authorities. */
struct ps_tls_source {
    const char *ca;
    const char *certificate; /* The certificate first, then its chain. */
    const char *key;         /* Readable by its owner only. */
    /* Lists of revoked certificates, of each authority and each intermediate
     * one; NULL: no certificate is revoked. */
    const char *crl;
    const char *pem; /* NULL: the files. */
    /* OpenSSL gives keys of records to the kernel, where both can (kTLS). */
    bool by_kernel;
};

/* On failure `why` names the file, the reason and the remedy. */
PS_MUST_USE int ps_tls_context_new(const struct ps_tls_source *source,
                                   struct ps_tls_context **ret_context,
                                   struct ps_str *why);
struct ps_tls_context *ps_tls_context_ref(struct ps_tls_context *c);
/* NULL is allowed. */
void ps_tls_context_unref(struct ps_tls_context *c);

/* Of the own certificate. */
const struct ps_identity *
ps_tls_context_identity(const struct ps_tls_context *c);
/* Beginning and end of its validity, in seconds since 1970. */
int64_t ps_tls_context_begins_at(const struct ps_tls_context *c);
int64_t ps_tls_context_expires_at(const struct ps_tls_context *c);

/* 0 if these certificates of a peer are valid for this context: signed by one
 * of its authorities, and none of them revoked. Their time is not checked: it was when
 * the connection was made. */
PS_MUST_USE int ps_tls_context_verify(const struct ps_tls_context *c,
                                      struct x509_st *certificate,
                                      struct stack_st_X509 *chain,
                                      struct ps_str *why);

/* 0 if no list of revoked certificates of `next` is older than that of the same
 * authority in `c`, by its number, or by its time where one has no number. Else
 * `why` names both. */
PS_MUST_USE int ps_tls_context_check_lists(const struct ps_tls_context *c,
                                           const struct ps_tls_context *next,
                                           struct ps_str *why);

/* Reads the identity of a certificate from its one URI. */
PS_MUST_USE int ps_tls_identity_of(const struct x509_st *certificate,
                                   struct ps_identity *ret_identity,
                                   struct ps_str *why);
/* End of validity of a certificate, in seconds since 1970. */
int64_t ps_tls_expires_at(const struct x509_st *certificate);
/* Adds the reason for which a chain of certificates was refused, to be read
 * behind "its ". */
void ps_tls_add_refusal(struct ps_str *why, const struct x509_store_ctx_st *v);
/* Adds "this host's clock has 2026-01-31T12:00:00Z". */
void ps_tls_add_clock(struct ps_str *why);

/* A context of OpenSSL with what all have in common here: version 1.3 only, its
 * ciphers and groups, no tickets, no early data. NULL: OpenSSL failed. */
struct ssl_ctx_st *ps_tls_ctx_new(void);
/* Name and version of the library, for reports. */
const char *ps_tls_library(void);

/* For the session. */
struct ssl_st *ps_tls_context_make(const struct ps_tls_context *c);

/* -------------------------------------------------- session of a connection */

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
/* For the context: takes note of a certificate that is refused. */
int ps_tls_session_on_verify(int is_valid, struct x509_store_ctx_st *v);
