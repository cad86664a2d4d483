/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by crypto/pki.c and crypto/pki_text.c. */
#pragma once

#include "crypto/pki.h"

/* Appends `what` with OpenSSL's last error, and clears its errors. Returns
 * PS_E_IO. */
int pki_failed(struct ps_str *why, const char *what);
/* Seconds since 1970. */
int64_t pki_time_of(const ASN1_TIME *time);
/* Reads the URI among the alternative names. False if there is not exactly one,
 * or it has a NUL or does not fit. */
bool pki_read_uri(const X509 *certificate, char *out, size_t cap);
