/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures and storage of tokens, which a daemon provides to its scheduler. */
#pragma once

#include "base/limits.h"
#include "proto/ps_fixed.h"

#include <stdbool.h>
#include <stdint.h>

/* A token that was issued. */
struct ps_token_record {
    struct ps_fixed_token_claims claims;
    bool is_revoked;
};

struct ps_token_ops {
    void *arg; /* First argument of the functions. */
    /* Writes the text of a token with these claims. False: failed. */
    bool (*sign)(void *arg, const struct ps_fixed_token_claims *claims,
                 char ret_text[PS_TOKEN_TEXT_MAX + 1]);
    /* True: `text`, of any bytes, is what sign() wrote for these claims. */
    bool (*verify)(void *arg, const char *text,
                   struct ps_fixed_token_claims *ret_claims);
    /* Stores all tokens in place of those stored before. False: failed. */
    bool (*save)(void *arg, const struct ps_token_record *list, uint32_t count);
};
