/* SPDX-License-Identifier: Apache-2.0 */
/* Key and certificate of a daemon on its way to it: through a descriptor, on no
 * disk. */
#pragma once

#include <openssl/types.h>

/* Writes key and certificates (PEM) to memory that nobody can change any more
 * (a sealed memfd), as a daemon reads it by security.tls.fd, and erases its own
 * copy of the key's text. Returns the descriptor, which is closed on exec, or
 * a negative errno value. */
int credential_open(const EVP_PKEY *key, const char *certificates);
