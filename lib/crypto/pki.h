/* SPDX-License-Identifier: Apache-2.0 */
/* Authority of a cluster, certificates of its members, and the list of those
 * that are revoked. Keys are ECDSA on P-256, signatures SHA-256. The subject of
 * the authority names the cluster; a certificate has the identity of its member
 * as URI (crypto/identity.h), and may have names and addresses of its host.
 *
 * Times are seconds since 1970. Functions that fail append the reason to `why`.
 * Nothing here reads or writes files. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "crypto/identity.h"

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_PKI_SERIAL_BYTES      16u
/* A serial as hexadecimal digits, with the terminator. */
#define PS_PKI_SERIAL_TEXT       (2u * PS_PKI_SERIAL_BYTES + 1u)
#define PS_PKI_FINGERPRINT_BYTES 32u
/* Names and addresses of a host in one certificate, and bytes of each: the
 * longest name in DNS. */
#define PS_PKI_HOSTS_MAX         16u
#define PS_PKI_HOST_MAX          253u
/* Bytes of a text with a certificate or key. */
#define PS_PKI_PEM_BYTES         8192u

struct ps_pki_serial {
    uint8_t bytes[PS_PKI_SERIAL_BYTES];
};

struct ps_pki_period {
    int64_t not_before;
    int64_t not_after;
};

/* Certificate of an authority with its key; owned. */
struct ps_pki_authority {
    X509 *certificate;
    EVP_PKEY *key;
};

/* Contents of a certificate. */
struct ps_pki_info {
    struct ps_identity identity;
    struct ps_pki_serial serial;
    struct ps_pki_period period;
    bool is_authority; /* Then only `identity.cluster` is set. */
};

/* Contents of a certificate to issue; borrowed. */
struct ps_pki_request {
    const struct ps_identity *identity;
    const char *const *hosts; /* Names for DNS, IPv4 or IPv6 addresses. */
    size_t host_count;
    struct ps_pki_period period;
};

struct ps_pki_revocation {
    struct ps_pki_serial serial;
    int64_t revoked_at;
};

/* Contents of a list of revoked certificates; borrowed. */
struct ps_pki_crl {
    const struct ps_pki_revocation *revoked;
    size_t count;
    uint64_t number; /* Larger in each new list. */
    int64_t issued_at;
    int64_t next_update;
};

/* --------------------------------------------------------------- authorities */

PS_MUST_USE int ps_pki_authority_new(const char *cluster,
                                     const struct ps_pki_period *period,
                                     struct ps_pki_authority *ret_authority,
                                     struct ps_str *why);
/* Reads both from text; fails if the key is not that of the certificate, or the
 * certificate is not that of an authority. */
PS_MUST_USE int ps_pki_authority_read(const char *certificate, const char *key,
                                      struct ps_pki_authority *ret_authority,
                                      struct ps_str *why);
void ps_pki_authority_fini(struct ps_pki_authority *a);

/* -------------------------------------------------------------- certificates */

PS_MUST_USE int ps_pki_key_new(EVP_PKEY **ret_key, struct ps_str *why);
void ps_pki_key_free(EVP_PKEY *key);
/* Issues a certificate for the public part of `key`, of client and server. Its
 * validity ends with that of the authority at the latest. */
PS_MUST_USE int ps_pki_issue(const struct ps_pki_authority *a,
                             const struct ps_pki_request *request,
                             EVP_PKEY *key, X509 **ret_certificate,
                             struct ps_str *why);
/* Issues a certificate for the service that enrols members. It has no identity,
 * so no daemon takes it for a member's. */
PS_MUST_USE int ps_pki_issue_enrolment(const struct ps_pki_authority *a,
                                       const struct ps_pki_period *period,
                                       EVP_PKEY *key, X509 **ret_certificate,
                                       struct ps_str *why);
void ps_pki_certificate_free(X509 *certificate);

/* True for a name of DNS, of ASCII without wildcards, or an address. */
bool ps_pki_is_host(const char *text);

/* Reads an authority's certificate or one with an identity. */
PS_MUST_USE int ps_pki_describe(const X509 *certificate,
                                struct ps_pki_info *ret_info,
                                struct ps_str *why);
/* Reads the one URI among the names of a certificate. False: it has none, or more,
 * or its bytes are no text of less than `cap`. May leave errors of OpenSSL. */
bool ps_pki_read_uri(const X509 *certificate, char *out, size_t cap);
/* 0 if the authority has signed the certificate, `now` is within the validity of
 * both, and the list (NULL: none) neither has its serial nor is out of date. */
PS_MUST_USE int ps_pki_verify(const X509 *certificate, const X509 *authority,
                              const X509_CRL *crl, int64_t now,
                              struct ps_str *why);
/* The same for the certificate of the service that enrols members. */
PS_MUST_USE int ps_pki_verify_enrolment(const X509 *certificate,
                                        const X509 *authority, int64_t now,
                                        struct ps_str *why);
/* SHA-256 of the certificate. */
void ps_pki_fingerprint(const X509 *certificate,
                        uint8_t ret_bytes[PS_PKI_FINGERPRINT_BYTES]);

/* ---------------------------------------------------------------- revocation */

PS_MUST_USE int ps_pki_crl_new(const struct ps_pki_authority *a,
                               const struct ps_pki_crl *contents,
                               X509_CRL **ret_crl, struct ps_str *why);
void ps_pki_crl_free(X509_CRL *crl);

/* ---------------------------------------------------------------------- text */

/* Append PEM. */
void ps_pki_add_certificate(struct ps_str *s, const X509 *certificate);
void ps_pki_add_key(struct ps_str *s, const EVP_PKEY *key);
void ps_pki_add_crl(struct ps_str *s, const X509_CRL *crl);
PS_MUST_USE int ps_pki_read_certificate(const char *pem, X509 **ret_certificate,
                                        struct ps_str *why);
PS_MUST_USE int ps_pki_read_crl(const char *pem, X509_CRL **ret_crl,
                                struct ps_str *why);
/* Request for a certificate (PKCS #10), without names: it proves that the sender
 * has the key. */
PS_MUST_USE int ps_pki_add_csr(struct ps_str *s, EVP_PKEY *key,
                               struct ps_str *why);
/* Returns the public key of a request whose signature is right and whose key is
 * on P-256. */
PS_MUST_USE int ps_pki_read_csr(const char *pem, EVP_PKEY **ret_key,
                                struct ps_str *why);

/* Appends `what` with OpenSSL's last error, and clears its errors. Returns
 * PS_E_IO. */
int ps_pki_failed(struct ps_str *why, const char *what);

/* For OpenSSL: a key in PEM that is encrypted is refused, instead of asking for its
 * password. */
int ps_pki_refuse_password(char *buf, int size, int rwflag, void *ctx);

/* 0: it is no time. */
int64_t ps_pki_time_of(const ASN1_TIME *time);

/* Digits 0-9 and a-f. */
void ps_pki_add_hex(struct ps_str *s, const uint8_t *bytes, size_t count);
/* False unless `text` is exactly such digits for `count` bytes. */
bool ps_pki_read_hex(const char *text, size_t count, uint8_t *ret_bytes);
