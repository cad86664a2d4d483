/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: claims with the signature of a scheduler, as text. The text is
 * "pskv1." and, in base64url without padding, the bytes of the record
 * token_claims and the Ed25519 signature of these bytes. A token has exactly one
 * text. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "proto/ps_fixed.h"

#include <openssl/types.h>
#include <stdbool.h>

#define PS_TOKEN_SIGNATURE_BYTES 64u
#define PS_TOKEN_BYTES           (PS_FIXED_TOKEN_CLAIMS_BYTES + PS_TOKEN_SIGNATURE_BYTES)
/* Characters of a token's text: 6 bits each after the prefix. */
#define PS_TOKEN_TEXT_LEN        (6u + (PS_TOKEN_BYTES * 8u + 5u) / 6u)

/* A new random key of Ed25519; NULL: OpenSSL has failed. */
EVP_PKEY *ps_token_key_new(void);
/* Reads the key of a file in PEM, or, if there is no such file, makes a key and
 * the file with mode 0600. NULL with the reason: no regular file of this user,
 * others may read or write it, or it has no such key. */
EVP_PKEY *ps_token_key_open(const char *path, struct ps_str *why);
void ps_token_key_free(EVP_PKEY *key);

/* True if no other record has the meaning of this one: names are valid and
 * filled up with zeros, and a right is stated. */
bool ps_token_claims_are_valid(const struct ps_fixed_token_claims *claims);
/* Writes the text of a token with a terminator. False: OpenSSL has failed. */
bool ps_token_sign(EVP_PKEY *key, const struct ps_fixed_token_claims *claims,
                   char ret_text[PS_TOKEN_TEXT_LEN + 1]);
/* Reads any text. False: it is not a text that ps_token_sign() writes, or not
 * signed by this key. Whether the token counts at this time is for the caller to
 * decide. */
bool ps_token_verify(EVP_PKEY *key, const char *text,
                     struct ps_fixed_token_claims *ret_claims);
