/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/gcm.h"

#include "base/alloc.h"

#include <openssl/err.h>
#include <openssl/evp.h>

struct openssl_key {
    EVP_CIPHER_CTX *cipher;
    bool encrypts;
};

static void openssl_close(void *ctx)
{
    struct openssl_key *k = ctx;

    EVP_CIPHER_CTX_free(k->cipher);
    ps_free(k);
}

static void *openssl_open(const uint8_t *key, size_t len, bool encrypts)
{
    struct openssl_key *k = ps_calloc(1, sizeof(*k));

    k->encrypts = encrypts;
    k->cipher = EVP_CIPHER_CTX_new();
    if (k->cipher == NULL ||
        EVP_CipherInit_ex(k->cipher,
                          len == 16 ? EVP_aes_128_gcm() : EVP_aes_256_gcm(),
                          NULL, key, NULL, encrypts) != 1) {
        ERR_clear_error();
        openssl_close(k);
        return NULL;
    }
    return k;
}

static bool openssl_begin(void *ctx, const uint8_t *nonce, const uint8_t *aad,
                          size_t aad_len)
{
    const struct openssl_key *k = ctx;
    int n;

    return EVP_CipherInit_ex(k->cipher, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(k->cipher, NULL, &n, aad, (int)aad_len) == 1;
}

static bool openssl_update(void *ctx, uint8_t *out, const uint8_t *in,
                           size_t len)
{
    const struct openssl_key *k = ctx;
    int n;

    return EVP_CipherUpdate(k->cipher, out, &n, in, (int)len) == 1;
}

static bool openssl_finish(void *ctx, uint8_t *tag)
{
    const struct openssl_key *k = ctx;
    uint8_t none[PS_GCM_TAG];
    int n;
    bool good = k->encrypts
                    ? EVP_CipherFinal_ex(k->cipher, none, &n) == 1 &&
                          EVP_CIPHER_CTX_ctrl(k->cipher, EVP_CTRL_AEAD_GET_TAG,
                                              PS_GCM_TAG, tag) == 1
                    : EVP_CIPHER_CTX_ctrl(k->cipher, EVP_CTRL_AEAD_SET_TAG,
                                          PS_GCM_TAG, tag) == 1 &&
                          EVP_CipherFinal_ex(k->cipher, none, &n) == 1;

    if (!good) {
        ERR_clear_error();
    }
    return good;
}

const struct ps_gcm_ops ps_gcm_openssl = {
    .name = "OpenSSL",
    .open = openssl_open,
    .close = openssl_close,
    .begin = openssl_begin,
    .update = openssl_update,
    .finish = openssl_finish,
};

const struct ps_gcm_ops *ps_gcm_fastest(void)
{
    const struct ps_gcm_ops *other = ps_gcm_ipsec_mb();

    return other != NULL ? other : &ps_gcm_openssl;
}
