/* SPDX-License-Identifier: Apache-2.0 */
/* AES-GCM (NIST SP 800-38D) of one key, in one direction, with nonces of 12
 * bytes and tags of 16: by OpenSSL, or by the library libIPSec_MB where it is
 * faster. Both give the same bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_GCM_NONCE 12u
#define PS_GCM_TAG   16u

/* An implementation. A message is one begin(), any number of update(), one
 * finish(). False: the library failed. */
struct ps_gcm_ops {
    const char *name;
    /* A key of 16 or 32 bytes, to encrypt or to decrypt with. NULL: the library
     * failed. */
    void *(*open)(const uint8_t *key, size_t len, bool encrypts);
    /* Erases the key. */
    void (*close)(void *ctx);
    /* With bytes that are authenticated, not encrypted. */
    bool (*begin)(void *ctx, const uint8_t *nonce, const uint8_t *aad,
                  size_t aad_len);
    bool (*update)(void *ctx, uint8_t *out, const uint8_t *in, size_t len);
    /* Encrypting: writes the tag. Decrypting: false if the tag is another one,
     * and the bytes are worthless. */
    bool (*finish)(void *ctx, uint8_t *tag);
};

extern const struct ps_gcm_ops ps_gcm_openssl;
/* NULL: the library is not here, or of another version than that of the build,
 * or the processor has no AVX-512 with VAES, for which the library is faster. */
const struct ps_gcm_ops *ps_gcm_ipsec_mb(void);
/* The faster one. */
const struct ps_gcm_ops *ps_gcm_fastest(void);
