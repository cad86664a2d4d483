/* SPDX-License-Identifier: Apache-2.0 */
/* Text of an option to value and back. Private to conf. */
#pragma once

#include "conf/option.h"

struct ps_value_context {
    char *const *env; /* For rows that expand; NULL: empty. */
    uint64_t memory;  /* Bytes that 100 % means; 0: unknown. */
};

/* Value of a variable, or NULL where it is unset or empty: an empty one is
 * how many tools unset it. */
const char *ps_value_getenv(char *const *env, const char *name);

/* Everything but LIST and STRING: write the member. False, with what is wrong
 * and what to write instead in `why`. */
bool ps_value_parse(const struct ps_option *row, const char *text,
                    const struct ps_value_context *ctx, void *member,
                    struct ps_str *why);
/* A string or the item of a list: UTF-8 without control characters that the
 * row's check accepts. */
bool ps_value_check_text(const struct ps_option *row, const char *text,
                         struct ps_str *why);
/* Length of a string, or number of items, against the range. */
bool ps_value_check_length(const struct ps_option *row, size_t length,
                           struct ps_str *why);
/* $NAME and kin; the caller frees with ps_free(). NULL on failure. */
char *ps_value_expand(const char *text, const struct ps_value_context *ctx,
                      struct ps_str *why);

/* "a whole number from 1 to 64": what the row takes. */
void ps_value_describe(const struct ps_option *row, struct ps_str *s);
/* Position of a word in "a|b|c", or -1. */
int ps_value_word(const char *words, const char *word, size_t len);
/* Code point at *at, moving it; -1 for what is not UTF-8. */
int32_t ps_value_utf8(const unsigned char **at);

size_t ps_value_member_size(enum ps_option_type type);
