/* SPDX-License-Identifier: Apache-2.0 */
/* Program options, defined by tables. A program declares a plain struct and
 * one row for each member; reading, checking, printing, the sample file, the
 * JSON schema and the man page are all derived from the row.
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
 *          .text = "wait", .enum_names = "wait|shrink|fail",
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
 * row), file, default. This module does not read the environment or the amount
 * of memory: the caller passes both. Invalid input never aborts. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "base/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum ps_option_type {
    PS_OPTION_BOOL, /* bool: true, false, yes, no, on, off, 1, 0. */
    PS_OPTION_INT,  /* int */
    PS_OPTION_U64,  /* uint64_t */
    /* uint64_t bytes: B, KiB, MiB, GiB, TiB, decimal units, or % of memory. */
    PS_OPTION_SIZE,
    PS_OPTION_DURATION, /* ps_time: us, ms, s, m, h, d. */
    PS_OPTION_MODE,     /* unsigned: permission bits in octal, "0660". */
    PS_OPTION_STRING,   /* const char *, never NULL: null becomes "". */
    PS_OPTION_ENUM,     /* int: index in `enum_names`. */
    PS_OPTION_LIST,     /* struct ps_option_list */
};

/* Values that a row takes beside those of its type. */
enum ps_option_form {
    PS_OPTION_PLAIN,
    PS_OPTION_PERCENT, /* SIZE: a percentage of the memory. */
    /* STRING: $NAME, ${NAME} and ${NAME:-default} are replaced from the
     * environment, for the directories that systemd passes. */
    PS_OPTION_EXPANDED,
    PS_OPTION_PAIRS, /* LIST: a map in the file gives "key=value" items. */
};

struct ps_option_list {
    const char *const *items;
    size_t count;
};

/* An environment variable of other systems that sets a row. */
struct ps_option_alias {
    const char *name;
    /* Appended to a value that is a bare number: "ms". NULL: nothing. */
    const char *unit;
    /* Translation of values, "1=debug 2=trace". NULL: none. */
    const char *values;
};

#define PS_OPTION_ALIASES_MAX 4

struct ps_option {
    const char *path; /* "listen.port": a-z, 0-9, '_', separated by dots. */
    const char *text; /* Default, as in the file; a list: "a,b". */
    /* Description for the sample file and man page; one sentence. */
    const char *help;
    /* Of a program whose rows are options of the command line, too: "--nodes N",
     * "-n, --num-workers N". NULL: it is none. */
    const char *flag;
    int group; /* Of its help; the program's own numbers. */
    /* ENUM: "wait|shrink|fail", in order of the C enum. */
    const char *enum_names;
    /* Name of `special_value` for numbers, sizes and durations: "auto". The
     * value may lie outside the range. */
    const char *special;
    int64_t special_value;
    /* Inclusive range, in bytes, nanoseconds or plain numbers; for a string or
     * list, of its length. max 0: no upper bound. */
    int64_t min;
    int64_t max;
    size_t offset; /* Offset of the member in its struct. */
    enum ps_option_type type;
    enum ps_option_form form;
    bool reloadable; /* A reload (SIGHUP) may change it. */
    struct ps_option_alias aliases[PS_OPTION_ALIASES_MAX];
    /* Checks a STRING or each item of a LIST. False: the value is refused, with
     * the reason and a correction added to `why`. NULL: no check. */
    bool (*check)(const char *value, struct ps_str *why);
};

/* Rows shared by several programs: their offsets are relative to `base` in the
 * program's struct. */
struct ps_option_table {
    const struct ps_option *rows;
    size_t count;
    size_t base;
};

#define PS_OPTION_COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* Differences of one program for a shared row. */
struct ps_option_default {
    const char *path;
    const char *text; /* NULL: the default of the row. */
    /* Has precedence over the row's own aliases; name NULL: none. */
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

/* Texts and origins of all options of one load. */
struct ps_options;

struct ps_option_input {
    const char *file; /* NULL: no file. */
    /* No error if it is missing, as for the default path. */
    bool file_optional;
    /* Contents of the file, if not NULL; `file` is then only its name. */
    const char *text;
    size_t text_len;
    /* "path=value"; the last one has precedence. */
    const char *const *overrides;
    size_t override_count;
    char *const *env; /* As environ; NULL: empty. */
    /* All programs with variables in this environment, NULL-terminated. A
     * variable PSD_* that none of them reads is reported. NULL: no check. */
    const struct ps_option_set *const *sets;
    /* Bytes that 100 % stands for; 0: percentages are refused. */
    uint64_t memory;
    /* On a reload: the values before. Rows that are not reloadable keep them,
     * with a warning in the report. */
    const struct ps_options *previous;
};

/* Loads all options into `values`, the program's struct. Its strings and lists
 * belong to *ret_options. `report` gets one line per error: "FILE:LINE:COLUMN:
 * problem; correction". On failure (PS_E_CONFIG; PS_E_NOENT: no such file;
 * PS_E_IO: not readable) *ret_options is unchanged, and `values` must not be
 * used. On success `report` has the warnings, if any. */
PS_MUST_USE int ps_options_load(const struct ps_option_set *set,
                                const struct ps_option_input *in, void *values,
                                struct ps_options **ret_options,
                                struct ps_str *report);
void ps_options_free(struct ps_options *o); /* NULL: no effect. */

/* Reads the value of a row that is no list, as from a command line; a string
 * borrows `text`. False: `why` gets the problem and a correction. */
PS_MUST_USE bool ps_option_read(const struct ps_option *row, const char *text,
                                void *member, struct ps_str *why);

/* Origin of a value; `path` must be in the set. */
enum ps_option_origin ps_options_origin(const struct ps_options *o,
                                        const char *path);
/* Appends the source of a value: "psched.yaml:3:5", "environment PORT",
 * "command line", "default". For checks across rows. */
void ps_options_where(const struct ps_options *o, const char *path,
                      struct ps_str *s);
/* Appends the text of a value; list items are separated by commas. */
void ps_options_text(const struct ps_options *o, const char *path,
                     struct ps_str *s);
/* Calls `each` for every row whose text differs. */
void ps_options_compare(const struct ps_options *before,
                        const struct ps_options *after,
                        void (*each)(void *ctx, const struct ps_option *row),
                        void *ctx);

/* Prints a YAML file that gives the same values, with their origins in
 * comments. */
void ps_options_print(const struct ps_options *o, FILE *out);
/* Prints the sample file: defaults, with help and range in comments. */
void ps_option_set_print_defaults(const struct ps_option_set *set, FILE *out);
/* Prints a JSON Schema (draft 2020-12) for editors. */
void ps_option_set_print_schema(const struct ps_option_set *set, FILE *out);
