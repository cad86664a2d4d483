/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of enrolment: version 1.3 only, and no certificate of the node, which has
 * none yet. The authority's side has a certificate of its own, which is no
 * member's; its key is in memory only. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "crypto/pki.h"

#include <openssl/types.h>

#include <stdint.h>

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
