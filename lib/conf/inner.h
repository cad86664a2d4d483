/* SPDX-License-Identifier: Apache-2.0 */
/* Result of one load, and the conversion of option texts to values and back.
 * Private to conf. */
#pragma once

#include "conf/option.h"

/* Texts of one row in one load, and their origin. */
struct ps_option_slot {
    const struct ps_option *row;
    size_t offset; /* In the program's struct. */
    enum ps_option_origin origin;
    char *where;  /* "psched.yaml:3:5", "environment PORT", ... */
    char **items; /* One text; for a LIST any number. */
    size_t item_count;
    bool expanded; /* References to variables in it have been replaced. */
    /* Variable of other systems that set it; NULL: none. */
    const struct ps_option_alias *alias;
};

struct ps_options {
    const struct ps_option_set *set;
    struct ps_option_slot *slots;
    size_t count;
};

/* Number of rows of a set, and row `i` with its member's offset; tables are
 * concatenated. */
size_t ps_option_set_count(const struct ps_option_set *set);
const struct ps_option *ps_option_set_row(const struct ps_option_set *set,
                                          size_t i, size_t *ret_offset);
/* Returns the i-th variable of other systems that sets a row; NULL: no more. */
const struct ps_option_alias *
ps_option_set_alias(const struct ps_option_set *set,
                    const struct ps_option *row, size_t i);
/* Default text of a row in this set; NULL: empty. */
const char *ps_option_set_default(const struct ps_option_set *set,
                                  const struct ps_option *row);
/* Appends the row's variable: PSD_LISTEN_PORT for listen.port. */
void ps_option_variable(const struct ps_option *row, struct ps_str *s);
/* Returns the path of a row similar to `path`; NULL: none. */
const char *ps_option_nearest(const struct ps_option_set *set,
                              const char *path);
/* Splits "a, b" at commas. Returns new texts; the caller frees each and the
 * array with ps_free(). */
char **ps_option_split(const char *text, size_t *ret_count);

struct ps_value_context {
    char *const *env; /* For rows that are EXPANDED; NULL: empty. */
    uint64_t memory;  /* Bytes that 100 % stands for; 0: unknown. */
};

/* Returns the value of a variable; NULL: unset or empty, because many tools
 * cannot unset a variable. */
const char *ps_value_getenv(char *const *env, const char *name);

/* Writes the member of any type but LIST and STRING. False: `why` has the
 * problem and a correction. */
bool ps_value_parse(const struct ps_option *row, const char *text,
                    const struct ps_value_context *ctx, void *member,
                    struct ps_str *why);
/* Checks a string or an item of a list: UTF-8 without control characters,
 * accepted by the row's check. */
bool ps_value_check_text(const struct ps_option *row, const char *text,
                         struct ps_str *why);
/* Checks the length of a string, or the number of items, against the range. */
bool ps_value_check_length(const struct ps_option *row, size_t length,
                           struct ps_str *why);
/* Replaces references such as $NAME; the caller frees with ps_free(). NULL on
 * failure. */
char *ps_value_expand(const char *text, const struct ps_value_context *ctx,
                      struct ps_str *why);

/* Appends a description of valid values: "a whole number from 1 to 64". */
void ps_value_describe(const struct ps_option *row, struct ps_str *s);
/* Index of a word in "a|b|c"; -1: not found. */
int ps_value_word(const char *words, const char *word, size_t len);
