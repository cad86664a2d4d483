/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: what the user writes of them, and what psctl prints. */
#include "psctl/psctl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

void token_add_rights(struct ps_str *s, uint32_t rights)
{
    const char *comma = "";

    for (uint32_t right = PS_TOKEN_RIGHT_TRAIN; right <= PS_TOKEN_RIGHT_ADMIN;
         right <<= 1) {
        if ((rights & right) != 0) {
            ps_str_addf(s, "%s%s", comma,
                        ps_token_right_name((enum ps_token_right)right));
            comma = ",";
        }
    }
}

void token_add_time(struct ps_str *s, uint64_t seconds)
{
    time_t at = (time_t)seconds;
    struct tm tm;
    char text[32];

    if (seconds < (UINT64_C(1) << 40) && gmtime_r(&at, &tm) != NULL &&
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm) > 0) {
        ps_str_add(s, text);
    } else {
        ps_str_addf(s, "%" PRIu64, seconds);
    }
}

void show_tokens(const struct rows *rows, bool headings)
{
    static const char *const names[] = {"TOKEN",  ">UID",  "JOB",
                                        "RIGHTS", "STATE", "EXPIRES"};
    struct table t;

    table_init(&t, names, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_token_row *k = &rows->row[i]->token_row;
        char rights[64];
        char expires[64];
        struct ps_str s;

        ps_str_init(&s, rights, sizeof(rights));
        token_add_rights(&s, k->rights);
        ps_str_init(&s, expires, sizeof(expires));
        token_add_time(&s, k->not_after);
        table_cell(&t, "%016" PRIx64, k->id);
        table_cell(&t, "%u", k->uid);
        table_text(&t, k->job[0] != '\0' ? k->job : "*");
        table_cell(&t, "%s", rights);
        table_cell(&t, "%s", k->is_revoked ? "REVOKED" : "VALID");
        table_cell(&t, "%s", expires);
    }
    table_print(&t, headings);
    table_fini(&t);
}
