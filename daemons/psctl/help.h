/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs and options of psctl, as help and completion show them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Option of one verb, or of all. */
struct flag {
    /* "--dry-run", "--round N", "--watch[=TIME]", "-n, --count N". */
    const char *name;
    const char *help;
    /* The words behind the verb that it belongs to, as "issue|renew"; NULL: it
     * belongs to all of them. */
    const char *of;
};

/* Name of an option with its dashes, as "--round" of "--round N", and of its
 * value. */
struct flag_name {
    char letter; /* Of "-n"; 0: none. */
    const char *word;
    size_t len;
    const char *value; /* NULL: none that takes a word of its own. */
};

struct flag_name flag_name_of(const struct flag *f);

#define FLAGS_MAX     9
#define ARGUMENTS_MAX 7

/* Verbs of one kind, under a title. */
enum help_group {
    HELP_LOOK,
    HELP_CHECK,
    HELP_CHANGE,
    HELP_SET_UP,
    HELP_GROUPS,
    HELP_NONE = HELP_GROUPS, /* Named in the first line alone. */
};

struct page {
    const char *verb;
    enum help_group group;
    /* After the verb, NULL ends the list: words in small letters are given as
     * they are, those in capitals stand for a value, brackets mean that it may
     * be left out. */
    const char *arguments[ARGUMENTS_MAX + 1];
    const char *summary;                   /* Help of arguments[0]. */
    const char *others[ARGUMENTS_MAX - 1]; /* Help of the rest. */
    const char *text;
    struct flag flags[FLAGS_MAX]; /* A name that is NULL ends the list. */
};

extern const struct page help_pages[];
extern const size_t help_page_count;
extern const struct flag help_general[];
extern const size_t help_general_count;

/* Returns NULL if no verb has that name. */
const struct page *help_find_page(const char *verb);

/* Refuses an option that belongs to other verbs, or to other words behind this
 * one: it would have no effect. `name`: without dashes; `word`: behind the verb,
 * or "". False after a message on standard error. */
bool help_check_option(const struct page *p, const char *word,
                       const char *name);

/* One screen: each verb in one line. */
void help_short(FILE *out);
/* Prints the help of a verb, or of "all", on standard output. False, after a message: no such
 * verb. */
bool help_verb(const char *verb);
/* Reports an unknown verb on standard error, with the nearest one. */
void help_no_verb(const char *verb);
