/* SPDX-License-Identifier: Apache-2.0 */
/* Options as table rows. A program declares a plain struct and one row for
 * each member; reading, checking, printing, the sample file, the JSON schema
 * and the man page all come from the row.
 *
 *     struct psched_options {
 *         struct common_options common;
 *         uint64_t jobs_max;
 *         int on_loss;
 *     };
 *     static const struct ps_option rows[] = {
 *         {.path = "jobs.max", .type = PS_OPTION_U64, .text = "64",
 *          .min = 1, .max = PS_JOBS_MAX, .reloadable = true,
 *          .offset = offsetof(struct psched_options, jobs_max),
 *          .help = "Jobs that may run at one time."},
 *         {.path = "jobs.on_worker_loss", .type = PS_OPTION_ENUM,
 *          .text = "wait", .words = "wait|shrink|fail",
 *          .offset = offsetof(struct psched_options, on_loss),
 *          .help = "What becomes of a job that loses a worker."},
 *     };
 *     static const struct ps_option_table tables[] = {
 *         {common_rows, common_row_count,
 *          offsetof(struct psched_options, common)},
 *         {rows, PS_OPTION_COUNT(rows), 0},
 *     };
 *     static const struct ps_option_default defaults[] = {
 *         {"listen.port", "9091"}};
 *     const struct ps_option_set psched_set = {
 *         .program = "psched", .tables = tables, .table_count = 2,
 *         .defaults = defaults, .default_count = 1};
 *
 * Precedence: command line, environment (PSD_<PATH>, then the aliases of the
 * row), file, default. Nothing here reads the environment or the machine: the
 * caller passes both in. Bad input never aborts. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "base/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum ps_option_type {
    PS_OPTION_BOOL,     /* bool: true, false, yes, no, on, off, 1, 0. */
    PS_OPTION_INT,      /* int */
    PS_OPTION_U64,      /* uint64_t */
    PS_OPTION_SIZE,     /* uint64_t bytes: B, KiB, MiB, GiB, TiB, or %. */
    PS_OPTION_DURATION, /* ps_time: us, ms, s, m, h, d. */
    PS_OPTION_RATE,     /* uint64_t a second: 200/s. */
    PS_OPTION_MODE,     /* unsigned: permission bits in octal, "0660". */
    PS_OPTION_STRING,   /* const char *, never NULL: null gives "". */
    PS_OPTION_ENUM,     /* int: position in `words`. */
    PS_OPTION_LIST,     /* struct ps_option_list */
};

struct ps_option_list {
    const char *const *items;
    size_t count;
};

/* A variable of older systems. */
struct ps_option_alias {
    const char *name;
    /* Appended where the value is a bare number: "ms". NULL: nothing. */
    const char *unit;
    /* Their values and ours: "1=debug 2=trace". NULL: as they are. */
    const char *values;
};

#define PS_OPTION_ALIASES_MAX 4

struct ps_option {
    const char *path; /* "listen.port": a-z, 0-9, '_', dots between. */
    const char *text; /* Default, written as in the file; a list: "a,b". */
    const char *help; /* One sentence. */
    /* ENUM: "wait|shrink|fail", in the order of the C enum. */
    const char *enum_names;
    /* A word that stands for `special_value` where the type is a number, a
     * size or a duration: "auto". It may lie outside the range. */
    const char *special;
    int64_t special_value;
    /* Range, both ends included, in bytes, nanoseconds or plain numbers; of a
     * string or list, of its length. max 0: no upper bound. */
    int64_t min;
    int64_t max;
    size_t offset; /* Of the member. */
    enum ps_option_type type;
    bool reloadable; /* SIGHUP may change it. */
    bool percent;    /* SIZE: may be a share of the memory there is. */
    /* STRING: $NAME, ${NAME} and ${NAME:-otherwise} are replaced from the
     * environment, for the directories that systemd passes. */
    bool expand;
    /* LIST: a map in the file gives "key=value" items. */
    bool pairs;
    struct ps_option_alias aliases[PS_OPTION_ALIASES_MAX];
    /* STRING, and each item of a LIST: false, with the reason and what to
     * write instead added to `why`, refuses the value. May be NULL. */
    bool (*check)(const char *value, struct ps_str *why);
};

/* Rows shared by several programs: offsets count from `base` within the
 * program's struct. */
struct ps_option_table {
    const struct ps_option *rows;
    size_t count;
    size_t base;
};

#define PS_OPTION_COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* What one program does differently with a shared row. */
struct ps_option_default {
    const char *path;
    const char *text; /* NULL: the default of the row. */
    /* Asked before those of the row; name NULL: none. */
    struct ps_option_alias alias;
};

struct ps_option_set {
    const char *program;
    const struct ps_option_table *tables;
    size_t table_count;
    const struct ps_option_default *defaults;
    size_t default_count;
};

enum ps_option_origin {
    PS_OPTION_FROM_DEFAULT,
    PS_OPTION_FROM_FILE,
    PS_OPTION_FROM_ENVIRONMENT,
    PS_OPTION_FROM_COMMAND,
};

/* Where the values of one load came from. */
struct ps_options;

struct ps_option_input {
    const char *file;   /* NULL: none. */
    bool file_optional; /* It may be missing: the default path. */
    /* When text is not NULL it is the contents, and `file` is only its name. */
    const char *text;
    size_t text_len;
    const char *const *overrides; /* "path=value", the last one wins. */
    size_t override_count;
    char *const *env; /* Like environ; NULL: empty. */
    /* Programs whose variables may be in it too, the end is NULL. A variable
     * PSD_* that none of these reads is in the report. NULL: not looked for. */
    const struct ps_option_set *const *sets;
    uint64_t memory; /* Bytes that 100 % means; 0: % is refused. */
    /* A reload: rows that are not reloadable keep what they had here, and a
     * line in the report says so. */
    const struct ps_options *previous;
};

/* Fill `values`, the program's struct. Strings and lists in it belong to
 * *ret_options and live as long. `report` gets every error, a line each:
 * "FILE:LINE:COLUMN: what; what to do". On failure PS_E_CONFIG (PS_E_NOENT
 * where the file is missing, PS_E_IO where it cannot be read), *ret_options is
 * untouched, and `values` must not be used. On success the report holds
 * warnings, mostly none. */
PS_MUST_USE int ps_options_load(const struct ps_option_set *set,
                                const struct ps_option_input *in, void *values,
                                struct ps_options **ret_options,
                                struct ps_str *report);
void ps_options_free(struct ps_options *o); /* NULL is fine. */

/* The path must be one of the set's. */
enum ps_option_origin ps_options_origin(const struct ps_options *o,
                                        const char *path);
/* Add the place of a value to a message: "psched.yaml:3:5", "environment
 * PORT", "command line", "default". For checks that look at several rows. */
void ps_options_where(const struct ps_options *o, const char *path,
                      struct ps_str *s);
/* The text of a value, items of a list separated by commas. */
void ps_options_text(const struct ps_options *o, const char *path,
                     struct ps_str *s);
/* Call `each` for every row whose text differs. */
void ps_options_compare(const struct ps_options *before,
                        const struct ps_options *after,
                        void (*each)(void *ctx, const struct ps_option *row),
                        void *ctx);

/* Everything as a YAML file that gives the same values, the origin of each in
 * a comment. */
void ps_options_print(const struct ps_options *o, FILE *out);
/* The sample file: defaults, with help and range in comments. */
void ps_option_set_print_defaults(const struct ps_option_set *set, FILE *out);
/* JSON Schema (draft 2020-12) for editors. */
void ps_option_set_print_schema(const struct ps_option_set *set, FILE *out);
/* Entries of a man page, in scdoc's language. */
void ps_option_set_print_man(const struct ps_option_set *set, FILE *out);

/* A table can be wrong too: repeated paths, defaults that do not parse, names
 * of variables that clash, sentences without an end. For the test of each
 * program. PS_E_BUG with lines in `report`. */
PS_MUST_USE int ps_option_set_check(const struct ps_option_set *set,
                                    struct ps_str *report);
