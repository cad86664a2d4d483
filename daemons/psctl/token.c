/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens, as the user writes them. */
#include "psctl/psctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool token_rights_parse(const char *text, uint32_t *ret_rights)
{
    static const enum ps_token_right all[] = {
        PS_TOKEN_RIGHT_TRAIN, PS_TOKEN_RIGHT_READ, PS_TOKEN_RIGHT_OPERATE,
        PS_TOKEN_RIGHT_ADMIN};
    uint32_t rights = 0;

    for (const char *word = text;; word++) {
        size_t len = strcspn(word, ",");
        uint32_t right = 0;

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
            const char *name = ps_token_right_name(all[i]);

            if (strlen(name) == len && strncmp(name, word, len) == 0) {
                right = all[i];
            }
        }
        if (right == 0) {
            fprintf(stderr,
                    "psctl: --rights '%s': give one or more of train, "
                    "read, operate and admin, with commas between\n",
                    text);
            return false;
        }
        rights |= right;
        word += len;
        if (*word == '\0') {
            *ret_rights = rights;
            return true;
        }
    }
}

bool token_id_parse(const char *text, uint64_t *ret_id)
{
    char *end;

    *ret_id = strtoull(text, &end, 16);
    if (strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16) {
        return true;
    }
    fprintf(stderr,
            "psctl: token revoke '%s': give the number of a token, 16 digits "
            "as psctl token list prints them\n",
            text);
    return false;
}
