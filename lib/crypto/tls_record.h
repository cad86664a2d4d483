/* SPDX-License-Identifier: Apache-2.0 */
/* Protection of the records of one direction of a TLS 1.3 connection (RFC 8446,
 * section 5), with the keys that the handshake made. crypto/gcm computes; but
 * unlike SSL_write() and SSL_read(), records are sealed from the memory where
 * the bytes lie, and opened to the memory where they belong, and each direction
 * is on its own, so that two threads can serve a connection. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ps_tls_keys;

#define PS_TLS_HEADER     5u
#define PS_TLS_TAG        16u
/* Most bytes of content in a record. */
#define PS_TLS_CONTENT    16384u
/* Bytes that a record has besides its content: header, type, tag. */
#define PS_TLS_OVERHEAD   (PS_TLS_HEADER + 1u + PS_TLS_TAG)
#define PS_TLS_RECORD_MAX (PS_TLS_CONTENT + PS_TLS_OVERHEAD)
#define PS_TLS_KEY_MAX    32u
#define PS_TLS_NONCE      12u
/* Bytes of a traffic secret. */
#define PS_TLS_SECRET_MAX 48u

/* Type of a handshake message. */
#define PS_TLS_KEY_UPDATE 24u

enum ps_tls_type {
    PS_TLS_ALERT = 21,
    PS_TLS_HANDSHAKE = 22,
    PS_TLS_DATA = 23,
};

/* Keys of a traffic secret of 32 (AES-128-GCM, SHA-256) or 48 bytes
 * (AES-256-GCM, SHA-384). NULL: OpenSSL failed. */
struct ps_tls_keys *ps_tls_keys_new(const uint8_t *secret, size_t len,
                                    bool seals);
/* Erases the keys. NULL is allowed. */
void ps_tls_keys_free(struct ps_tls_keys *k);
/* The next keys, after a KeyUpdate. */
PS_MUST_USE int ps_tls_keys_update(struct ps_tls_keys *k);
/* Records under the present keys. */
uint64_t ps_tls_keys_records(const struct ps_tls_keys *k);

/* Keys and number with which another implementation goes on at the next
 * record. */
struct ps_tls_material {
    uint8_t key[PS_TLS_KEY_MAX];
    size_t key_len;
    uint8_t nonce[PS_TLS_NONCE]; /* Of record 0. */
    uint64_t records;
};

/* PS_E_BUG: OpenSSL failed. */
PS_MUST_USE int ps_tls_keys_material(const struct ps_tls_keys *k,
                                     struct ps_tls_material *ret_material);
void ps_tls_material_erase(struct ps_tls_material *m);

/* Seals `len` bytes, up to PS_TLS_CONTENT, from the places `iov` to `out`;
 * returns the length of the record. 0: OpenSSL failed. */
size_t ps_tls_seal(struct ps_tls_keys *k, enum ps_tls_type type,
                   const struct iovec *iov, size_t len, uint8_t *out);
/* Bytes of a record's content, with its type, from its header; PS_E_PROTO if it
 * is not one of protected bytes. */
PS_MUST_USE int ps_tls_parse_header(const uint8_t *header, size_t *ret_content);
/* Opens a whole record with `content` bytes to the places `iov`, which are large
 * enough. PS_E_PROTO: it was changed on its way, or is padded, which this
 * side's peers never do; then the bytes there are worthless. */
PS_MUST_USE int ps_tls_open(struct ps_tls_keys *k, const uint8_t *record,
                            size_t content, const struct iovec *iov,
                            uint8_t *ret_type);
