/* SPDX-License-Identifier: Apache-2.0 */
/* Enrolment of a node by a one-time code. The authority gives out a code for one
 * role and name, and keeps the hash of its secret. The node makes a key, and
 * receives a certificate for it in exchange for the code. A node that has no
 * certificate yet knows the authority by the fingerprint in the code.
 *
 * Times are seconds since 1970. Functions that fail append the reason to `why`.
 * Nothing here reads or writes files. */
#pragma once

#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"
#include "crypto/identity.h"
#include "crypto/pki.h"

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_ENROLMENT_SECRET_BYTES 16u
#define PS_ENROLMENT_HASH_BYTES   32u
/* Bytes of the text of a code, with the terminator. */
#define PS_ENROLMENT_CODE_TEXT    128u
/* Codes that are valid at a time: more than a cluster has nodes. */
#define PS_ENROLMENT_CODES_MAX    4096u
/* Wrong secrets for one code, after which it is void. */
#define PS_ENROLMENT_TRIES_MAX    5u
/* Bytes of the names of a host in one text, with commas and the terminator. */
#define PS_ENROLMENT_HOSTS_TEXT   (PS_PKI_HOSTS_MAX * (PS_PKI_HOST_MAX + 1u) + 1u)

/* ---------------------------------------------------------------------- code */

/* Text: ROLE.ID.SECRET.FINGERPRINT, where all but the role is hexadecimal. */
struct ps_enrolment_code {
    enum ps_role role; /* For the node; the authority has a record of it. */
    uint32_t id;
    uint8_t secret[PS_ENROLMENT_SECRET_BYTES];
    uint8_t fingerprint[PS_PKI_FINGERPRINT_BYTES]; /* Of the authority. */
};

PS_MUST_USE int ps_enrolment_code_new(enum ps_role role, const X509 *authority,
                                      struct ps_enrolment_code *ret_code,
                                      struct ps_str *why);
void ps_enrolment_add_code(struct ps_str *s,
                           const struct ps_enrolment_code *code);
/* False unless `text` is the one text of a code. */
bool ps_enrolment_read_code(const char *text,
                            struct ps_enrolment_code *ret_code);

/* ---------------------------------------------------------------------- list */

/* Code that the authority has given out, with the contents of the certificate
 * that it is good for. */
struct ps_enrolment_record {
    uint32_t id;
    uint8_t hash[PS_ENROLMENT_HASH_BYTES]; /* SHA-256 of the secret. */
    enum ps_role role;
    char name[PS_NAME_MAX + 1];
    int64_t ends_at;
    uint32_t tries; /* Wrong secrets so far. */
    uint32_t days;  /* Validity of the certificate. */
    char *hosts;    /* Separated by commas; "-": none. Owned. */
};

struct ps_enrolment_list {
    struct ps_enrolment_record *records;
    size_t count;
    size_t capacity;
};

/* Reads the text of ps_enrolment_list_format(). On failure *ret_line is the
 * number of the line that is malformed. */
PS_MUST_USE int ps_enrolment_list_read(const char *text,
                                       struct ps_enrolment_list *ret_list,
                                       size_t *ret_line);
/* The caller frees the text with ps_free(). */
char *ps_enrolment_list_format(const struct ps_enrolment_list *list);
void ps_enrolment_list_fini(struct ps_enrolment_list *list);

/* Adds a record of `code`; id, hash and number of tries are set here, and the
 * hosts copied. A former code of the same role and name is void, and so are
 * codes that ended more than a day ago. PS_E_FULL: there are too many. */
PS_MUST_USE int ps_enrolment_list_add(struct ps_enrolment_list *list,
                                      const struct ps_enrolment_code *code,
                                      const struct ps_enrolment_record *record,
                                      int64_t now);
/* Removes the codes of a name; returns their number. */
size_t ps_enrolment_list_drop(struct ps_enrolment_list *list, const char *name);

enum ps_enrolment_verdict {
    PS_ENROLMENT_GOOD,
    PS_ENROLMENT_UNKNOWN, /* No such code: used, replaced, or never given. */
    PS_ENROLMENT_WRONG,   /* Another secret. One try counts. */
    PS_ENROLMENT_VOID,    /* Another secret for the last time: removed. */
    PS_ENROLMENT_ENDED,   /* The secret is right, and the code has expired. */
};

/* Judges a secret. GOOD: *ret_record is that of the list, until its next
 * change. */
enum ps_enrolment_verdict
ps_enrolment_list_try(struct ps_enrolment_list *list, uint32_t id,
                      const uint8_t secret[PS_ENROLMENT_SECRET_BYTES],
                      int64_t now, struct ps_enrolment_record **ret_record);
/* Moves a record out of the list: its code is used. The caller frees hosts. */
struct ps_enrolment_record
ps_enrolment_list_remove(struct ps_enrolment_list *list,
                         struct ps_enrolment_record *record);

/* -------------------------------------------------------------------- answer */

/* PEM that a node receives; borrowed. */
struct ps_enrolment_answer {
    const char *certificate;
    const char *authority;
    const char *crl;
};

/* 0 if the authority is that of the code, and its certificate is valid, for this
 * key and for the role of the code; each text is one object in the form of this
 * library. */
PS_MUST_USE int
ps_enrolment_check_answer(const struct ps_enrolment_code *code,
                          const EVP_PKEY *key,
                          const struct ps_enrolment_answer *answer, int64_t now,
                          struct ps_pki_info *ret_info, struct ps_str *why);

/* ---------------------------------------------------------------------- TLS */

/* TLS of the exchange is version 1.3 only, and without a certificate of the node,
 * which has none yet. The authority's side has a certificate of its own, which is
 * no member's; its key is in memory only. */

/* Context of the authority's side, with a new key. */
PS_MUST_USE int ps_enrolment_tls_accepting(const struct ps_pki_authority *a,
                                           const struct ps_pki_period *period,
                                           SSL_CTX **ret_context,
                                           struct ps_str *why);

/* The authority that a node expects. */
struct ps_enrolment_peer {
    uint8_t fingerprint[PS_PKI_FINGERPRINT_BYTES];
    int64_t now;
    char text[256]; /* Reason of a refusal; "": none. */
};

/* Context of the node's side, which borrows `peer`: the handshake fails unless
 * the authority with that fingerprint has signed the other side's certificate. */
PS_MUST_USE int ps_enrolment_tls_dialling(struct ps_enrolment_peer *peer,
                                          SSL_CTX **ret_context,
                                          struct ps_str *why);
