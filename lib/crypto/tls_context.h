/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials of a daemon or tool for TLS: its key and certificate, the
 * authorities that it trusts, and the list of revoked certificates. TLS 1.3 only, with
 * certificates on both sides; no session tickets, no early data. A context does
 * not change: a reload makes another one. Threads may share it. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "crypto/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_tls_context;
struct ssl_st;
struct x509_st;
struct x509_store_ctx_st;
struct stack_st_X509;

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

/* Name and version of the library, for reports. */
const char *ps_tls_library(void);

/* For crypto/tls_session.c. */
struct ssl_st *ps_tls_context_make(const struct ps_tls_context *c);
