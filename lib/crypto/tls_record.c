/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/tls_record.h"

#include "base/alloc.h"
#include "crypto/gcm.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <string.h>

_Static_assert(PS_TLS_NONCE == PS_GCM_NONCE && PS_TLS_TAG == PS_GCM_TAG,
               "records are messages of AES-GCM");

struct ps_tls_keys {
    const struct ps_gcm_ops *gcm;
    void *cipher; /* Of `gcm`. */
    bool seals;
    uint8_t secret[PS_TLS_SECRET_MAX];
    size_t secret_len;
    uint8_t nonce[PS_TLS_NONCE]; /* Of record 0. */
    uint64_t records;
};

/* HKDF-Expand-Label(secret, label, "", len). */
static bool expand_label(const struct ps_tls_keys *k, const char *label,
                         uint8_t *out, size_t len)
{
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, OSSL_KDF_NAME_TLS1_3_KDF, NULL);
    EVP_KDF_CTX *ctx = kdf == NULL ? NULL : EVP_KDF_CTX_new(kdf);
    char digest[] = "SHA2-256";
    char wide_digest[] = "SHA2-384";
    char mode[] = "EXPAND_ONLY";
    char prefix[] = "tls13 ";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(
            OSSL_KDF_PARAM_DIGEST, k->secret_len == 32 ? digest : wide_digest,
            0),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_MODE, mode, 0),
        OSSL_PARAM_construct_octet_string(
            OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)k->secret, k->secret_len),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_PREFIX, prefix,
                                          strlen(prefix)),
        OSSL_PARAM_construct_octet_string(
            OSSL_KDF_PARAM_LABEL, (void *)(uintptr_t)label, strlen(label)),
        OSSL_PARAM_construct_end()};
    bool is_good = ctx != NULL && EVP_KDF_derive(ctx, out, len, params) == 1;

    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    return is_good;
}

/* Derives the key of the cipher; returns its length, 0: OpenSSL failed. */
static size_t derive_key(const struct ps_tls_keys *k,
                         uint8_t key[PS_TLS_KEY_MAX])
{
    const size_t len = k->secret_len == 32 ? 16 : 32;

    return expand_label(k, "key", key, len) ? len : 0;
}

static void close_cipher(struct ps_tls_keys *k)
{
    if (k->cipher != NULL) {
        k->gcm->close(k->cipher);
        k->cipher = NULL;
    }
}

/* Derives key and nonce from the secret. */
static bool keys_derive(struct ps_tls_keys *k)
{
    uint8_t key[PS_TLS_KEY_MAX];
    const size_t len = derive_key(k, key);

    close_cipher(k);
    if (len > 0 && expand_label(k, "iv", k->nonce, PS_TLS_NONCE)) {
        k->cipher = k->gcm->open(key, len, k->seals);
    }
    OPENSSL_cleanse(key, sizeof(key));
    k->records = 0;
    return k->cipher != NULL;
}

struct ps_tls_keys *ps_tls_keys_new(const uint8_t *secret, size_t len,
                                    bool seals)
{
    struct ps_tls_keys *k;

    if (len != 32 && len != 48) {
        return NULL;
    }
    k = ps_calloc(1, sizeof(*k));
    k->gcm = ps_gcm_fastest();
    k->seals = seals;
    memcpy(k->secret, secret, len);
    k->secret_len = len;
    if (!keys_derive(k)) {
        ERR_clear_error();
        ps_tls_keys_free(k);
        return NULL;
    }
    return k;
}

void ps_tls_keys_free(struct ps_tls_keys *k)
{
    if (k != NULL) {
        close_cipher(k);
        OPENSSL_cleanse(k, sizeof(*k));
        ps_free(k);
    }
}

int ps_tls_keys_update(struct ps_tls_keys *k)
{
    uint8_t next[PS_TLS_SECRET_MAX];
    bool is_good = expand_label(k, "traffic upd", next, k->secret_len);

    if (is_good) {
        memcpy(k->secret, next, k->secret_len);
        is_good = keys_derive(k);
    }
    OPENSSL_cleanse(next, sizeof(next));
    ERR_clear_error();
    return is_good ? 0 : PS_E_BUG;
}

uint64_t ps_tls_keys_records(const struct ps_tls_keys *k)
{
    return k->records;
}

int ps_tls_keys_material(const struct ps_tls_keys *k,
                         struct ps_tls_material *ret_material)
{
    struct ps_tls_material *m = ret_material;

    m->key_len = derive_key(k, m->key);
    memcpy(m->nonce, k->nonce, PS_TLS_NONCE);
    m->records = k->records;
    return m->key_len > 0 ? 0 : PS_E_BUG;
}

void ps_tls_material_erase(struct ps_tls_material *m)
{
    OPENSSL_cleanse(m, sizeof(*m));
}

/* Begins the next record: its nonce, and its header, which is authenticated. */
static bool record_begin(struct ps_tls_keys *k, const uint8_t *header)
{
    uint8_t nonce[PS_TLS_NONCE];
    uint64_t n = k->records++;

    memcpy(nonce, k->nonce, sizeof(nonce));
    for (size_t i = 0; i < 8; i++) {
        nonce[PS_TLS_NONCE - 1 - i] ^= (uint8_t)(n >> (8 * i));
    }
    return k->gcm->begin(k->cipher, nonce, header, PS_TLS_HEADER);
}

size_t ps_tls_seal(struct ps_tls_keys *k, enum ps_tls_type type,
                   const struct iovec *iov, size_t len, uint8_t *out)
{
    const size_t protected_len = len + 1 + PS_TLS_TAG;
    const uint8_t type_byte = (uint8_t)type;
    uint8_t *at = out + PS_TLS_HEADER;

    out[0] = PS_TLS_DATA;
    out[1] = 3;
    out[2] = 3;
    out[3] = (uint8_t)(protected_len >> 8);
    out[4] = (uint8_t)protected_len;
    if (!record_begin(k, out)) {
        return 0;
    }
    for (size_t left = len; left > 0; iov++) {
        size_t piece = iov->iov_len < left ? iov->iov_len : left;

        if (!k->gcm->update(k->cipher, at, iov->iov_base, piece)) {
            return 0;
        }
        at += piece;
        left -= piece;
    }
    if (!k->gcm->update(k->cipher, at, &type_byte, 1) ||
        !k->gcm->finish(k->cipher, at + 1)) {
        return 0;
    }
    return PS_TLS_HEADER + protected_len;
}

int ps_tls_parse_header(const uint8_t *header, size_t *ret_content)
{
    size_t len = (size_t)header[3] << 8 | header[4];

    if (header[0] != PS_TLS_DATA || header[1] != 3 || header[2] != 3 ||
        len < 1 + PS_TLS_TAG || len > PS_TLS_CONTENT + 1 + PS_TLS_TAG) {
        return PS_E_PROTO;
    }
    *ret_content = len - 1 - PS_TLS_TAG;
    return 0;
}

int ps_tls_open(struct ps_tls_keys *k, const uint8_t *record, size_t content,
                const struct iovec *iov, uint8_t *ret_type)
{
    const uint8_t *at = record + PS_TLS_HEADER;
    uint8_t tag[PS_TLS_TAG];
    uint8_t type;

    if (!record_begin(k, record)) {
        return PS_E_BUG;
    }
    for (size_t left = content; left > 0; iov++) {
        size_t piece = iov->iov_len < left ? iov->iov_len : left;

        if (!k->gcm->update(k->cipher, iov->iov_base, at, piece)) {
            return PS_E_BUG;
        }
        at += piece;
        left -= piece;
    }
    memcpy(tag, at + 1, sizeof(tag));
    if (!k->gcm->update(k->cipher, &type, at, 1) ||
        !k->gcm->finish(k->cipher, tag) || type == 0) {
        return PS_E_PROTO;
    }
    *ret_type = type;
    return 0;
}
