/* SPDX-License-Identifier: Apache-2.0 */
/* A token of any bytes is refused, or has one text and valid claims. The first
 * byte chooses: the rest is the text itself, or claims that are signed first, so
 * that the checks behind the signature are reached. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "crypto/token.h"
#include "fuzz.h"

static void check_text(EVP_PKEY *key, const char *text)
{
    char again[PS_TOKEN_TEXT_LEN + 1];
    struct ps_fixed_token_claims claims;

    if (ps_token_verify(key, text, &claims)) {
        assert(ps_token_claims_are_valid(&claims));
        assert(memchr(claims.job, 0, sizeof(claims.job)) != NULL);
        /* Signatures of Ed25519 are deterministic. */
        assert(ps_token_sign(key, &claims, again));
        assert(strcmp(text, again) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static EVP_PKEY *key;
    struct ps_fixed_token_claims claims = {0};
    char signed_text[PS_TOKEN_TEXT_LEN + 1];
    char *text;

    if (key == NULL) {
        key = ps_token_key_new();
        assert(key != NULL);
    }
    if (size == 0) {
        return 0;
    }
    if (data[0] % 2 == 0) {
        text = strndup((const char *)data + 1, size - 1);
        assert(text != NULL);
        check_text(key, text);
        free(text);
        return 0;
    }
    size = size - 1 < sizeof(claims) ? size - 1 : sizeof(claims);
    memcpy(&claims, data + 1, size);
    assert(ps_token_sign(key, &claims, signed_text));
    check_text(key, signed_text);
    return 0;
}
