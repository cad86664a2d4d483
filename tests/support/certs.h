/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates for tests: authorities, what they sign, and lists of what they
 * revoke, as PEM files in a folder. Every function ends the test if it fails. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct certs_authority;

/* Seconds for which an authority's certificate is valid. */
#define CERTS_AUTHORITY_ENDS (730L * 86400)

/* Makes an authority with its key; reads one that certs_write() left. */
struct certs_authority *certs_new(const char *name);
struct certs_authority *certs_read(const char *dir);
/* Writes ca.crt and ca.key. */
void certs_write(const struct certs_authority *a, const char *dir);
/* Makes an intermediate authority, with a certificate of this number. */
struct certs_authority *certs_new_below(const struct certs_authority *above,
                                        const char *name, uint64_t serial);
void certs_free(struct certs_authority *a);

struct certs_wish {
    const char *uri; /* NULL: no name. */
    const char *second_uri;
    long begins; /* Seconds from now; so is the end. 0 for both: a year. */
    long ends;
    uint64_t serial;
    int self_signed;
};
/* Writes FILE.crt and FILE.key. */
void certs_issue(const struct certs_authority *a, const struct certs_wish *wish,
                 const char *dir, const char *file);
/* Appends the certificate of an intermediate authority to FILE.crt. */
void certs_add_to_chain(const struct certs_authority *a, const char *dir,
                        const char *file);
/* Writes the list of the revoked numbers, as crl.pem. */
void certs_revoke(const struct certs_authority *a, const uint64_t *serials,
                  size_t count, const char *dir);
/* The same, behind the lists that the file has. */
void certs_revoke_also(const struct certs_authority *a, const uint64_t *serials,
                       size_t count, const char *dir);
/* A list of revoked certificates, without any, that has a number, or 0, and was
 * made as many seconds from now. */
void certs_list(const struct certs_authority *a, uint64_t number, long made,
                const char *dir);
struct ps_tls_context;

/* Context of the daemon whose files are FILE.crt and FILE.key, with ca.crt. */
struct ps_tls_context *certs_load(const char *dir, const char *file);
/* Text of a file, terminated, to be freed. */
char *certs_text(const char *dir, const char *file);
