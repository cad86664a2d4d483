/* SPDX-License-Identifier: Apache-2.0 */
/* Result of one load. Private to conf. */
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
