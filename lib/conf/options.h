/* SPDX-License-Identifier: Apache-2.0 */
/* What one load produced. Private to conf. */
#pragma once

#include "conf/option.h"

/* One row in one load: the texts it has and where they are from. */
struct ps_option_slot {
    const struct ps_option *row;
    size_t offset; /* In the program's struct. */
    enum ps_option_origin origin;
    char *where;  /* "psched.yaml:3:5", "environment PORT", ... */
    char **items; /* One text; a LIST any number of them. */
    size_t item_count;
    bool expanded; /* The variables in it have been replaced. */
    /* The variable of other systems that it is from; NULL: none. */
    const struct ps_option_alias *alias;
};

struct ps_options {
    const struct ps_option_set *set;
    struct ps_option_slot *slots;
    size_t count;
};

/* Rows of a set by number, tables one after the other. */
size_t ps_option_set_count(const struct ps_option_set *set);
const struct ps_option *ps_option_set_row(const struct ps_option_set *set,
                                          size_t i, size_t *ret_offset);
/* The i-th variable of other systems that sets a row; NULL: no more. */
const struct ps_option_alias *
ps_option_set_alias(const struct ps_option_set *set,
                    const struct ps_option *row, size_t i);
/* Default text of a row in this set; NULL: empty. */
const char *ps_option_set_default(const struct ps_option_set *set,
                                  const struct ps_option *row);
/* PSD_LISTEN_PORT from listen.port. */
void ps_option_variable(const struct ps_option *row, struct ps_str *s);
/* Name of a row near to `path`, or NULL. */
const char *ps_option_nearest(const struct ps_option_set *set,
                              const char *path);
/* Split "a, b" at commas. Returns new texts; the caller frees each and the
 * array with ps_free(). */
char **ps_option_split(const char *text, size_t *ret_count);
