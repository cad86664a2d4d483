/* SPDX-License-Identifier: Apache-2.0 */
/* Authority of one job, in memory only. It issues one certificate for each
 * daemon of the job, for a key that was made on the host of the daemon, and
 * erases its own key with the last one: from then on nobody can make another
 * member of the job. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "proto/ps_msg.h"

#include <openssl/types.h>
#include <stdint.h>

/* Bytes of the text of a certificate and its authority's, with the
 * terminator. */
#define AUTHORITY_TEXT_BYTES 16384u

struct authority;

/* Functions that fail append the reason to `why`. */

/* Name of the cluster in the certificates of a job: that of the job if it can
 * be one. */
const char *authority_cluster(const char *job);
/* An authority for `count` certificates. */
PS_MUST_USE int authority_new(const char *job, uint32_t count,
                              struct authority **ret_authority,
                              struct ps_str *why);
/* Erases the key. NULL is allowed. */
void authority_free(struct authority *a);
/* Issues one for a daemon, by the name of its node, and the public part of `key`;
 * appends certificate and authority to `pem` (AUTHORITY_TEXT_BYTES). PS_E_PERM: all
 * certificates are issued. */
PS_MUST_USE int authority_issue(struct authority *a, enum ps_role role,
                                const char *node, EVP_PKEY *key,
                                struct ps_str *pem, struct ps_str *why);

/* Writes key and certificates (PEM) to memory that nobody can change any more
 * (a sealed memfd), as a daemon reads it by security.tls.fd, and erases its own
 * copy of the key's text. Returns the descriptor, which is closed on exec, or
 * a negative errno value. */
int credential_open(const EVP_PKEY *key, const char *certificates);
