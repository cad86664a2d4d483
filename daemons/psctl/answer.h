/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of psctl: tables with aligned columns, and JSON. */
#pragma once

#include "psctl/psctl.h"

struct json_t;
struct ps_shape_field;

/* ------------------------------------------------------------------ table.c */

#define TABLE_COLUMNS 21u
/* Bytes of a text in a cell, before they are escaped. */
#define CELL_TEXT_MAX 252u

struct table {
    size_t columns;
    bool right_aligned[TABLE_COLUMNS]; /* Columns of numbers. */
    char **cells;                      /* Owned; row after row. */
    size_t count;
    size_t capacity;
};

/* Begins a table; a heading with '>' in front is a column of numbers. */
void table_init(struct table *t, const char *const *headings, size_t columns);
void table_fini(struct table *t);
/* Adds up to `max` bytes of untrusted text without control sequences: other
 * alphabets as they are if the terminal shows them, all else as \xNN. */
void add_printable(struct ps_str *s, const char *text, size_t max);
/* Adds a cell of untrusted text, cut and escaped. */
void table_text(struct table *t, const char *text);
void table_cell(struct table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void table_print(const struct table *t, bool headings);

/* "s", or "" for one. */
const char *plural(size_t n);
/* "412 MB", "1.5 GB"; decimal units. */
void format_bytes(uint64_t bytes, char *out, size_t cap);
/* "4.1s", "12m03s", "3d02h" */
void format_age(uint64_t ns, char *out, size_t cap);
/* "10,412" */
void format_count(uint64_t n, char *out, size_t cap);

/* ----------------------------------------------------------------- answer.c */

/* How a column shows its field, beyond its type. */
enum unit {
    UNIT_NONE,    /* As the type: digits, text, the name of a value, a flag. */
    UNIT_COUNT,   /* "10,412" */
    UNIT_BYTES,   /* "4.2 MB" */
    UNIT_RATE,    /* "4.2 MB/s" */
    UNIT_AGE,     /* Nanoseconds: "4.1s"; in JSON seconds. */
    UNIT_TIME,    /* Seconds since 1970. */
    UNIT_EXACT,   /* A number with all its digits. */
    UNIT_PERCENT, /* A ratio: "104.2 %". */
    UNIT_UPPER,   /* The name of a value; in the table in capitals. */
    UNIT_JOB,     /* A job's name; in the table with its owner where needed. */
};

struct column {
    const char *title; /* NULL: not in the table. '>' in front: of numbers. */
    const char *json;  /* NULL: not in JSON. */
    const char *field; /* Of the row; NULL: `text` or `value` make it. */
    enum unit unit;
    const struct answer *of; /* Columns of a list of records. */
    /* Makes a text, in place of a field. */
    void (*text)(struct ps_str *s, const void *row);
    /* Makes a value in JSON, of the type `type` of docs/json.md, in place of a
     * field or text. */
    struct json_t *(*value)(const void *row);
    const char *type;
    /* The table has the column if this is true for a row, and "-" for others. */
    bool (*holds)(const void *row);
    bool is_optional; /* JSON has it only where it holds. */
};

/* Rows of one kind. */
struct answer {
    const char *object;  /* Its table in docs/json.md. */
    const char *list;    /* Its name in JSON. */
    enum ps_query query; /* Its rows in a report. */
    unsigned code;       /* Message of the rows; 0: they are records. */
    const struct ps_shape_field *fields; /* Of these; NULL: of their list. */
    size_t field_count;
    const struct column
        *columns; /* NULL: JSON has all fields by their names. */
    size_t count;
    /* Adds to the object, in place of a list of the report's rows. */
    void (*put)(struct json_t *o, const struct report *r);
};

/* Prints the rows of a report as a table. */
void answer_print(const struct answer *a, const struct report *r,
                  bool headings);
void answer_print_list(const struct answer *a, const struct report *r,
                       const void *const *rows, size_t count, bool headings);
/* Prints one object with these answers, of which NULL is the last. */
void answer_print_json(const struct answer *const *answers,
                       const struct report *r);
/* Each row as an object on a line of its own. */
void answer_print_lines(const struct answer *a, const struct report *r);

#define COLUMNS_MAX 48

/* A table of the records that jobs have in one of their lists, each behind the
 * name of its job. */
struct job_table {
    struct table t;
    const struct answer *a;
    const struct ps_shape_field *fields;
    size_t field_count;
    const struct column *used[COLUMNS_MAX];
};

void job_table_begin(struct job_table *j, const struct answer *a,
                     const char *field);
void job_table_add(struct job_table *j, const struct report *r,
                   const struct ps_msg_job_row *job, const void *record);
void job_table_end(struct job_table *j, bool headings);

void add_upper(struct ps_str *s, const char *word);
void cell_upper(struct table *t, const char *word);
void cell_job(struct table *t, const struct report *r, const char *name,
              uint32_t uid);

/* From now on, each answer in JSON is one line. */
void json_use_lines(void);
/* Prints and releases an answer; NULL: it could not be made. */
void json_print(struct json_t *o);
void json_put(struct json_t *o, const char *name, struct json_t *value);
void json_append(struct json_t *list, struct json_t *value);
/* Saturates at the largest signed 64-bit integer. */
struct json_t *json_count(uint64_t n);
/* A number; one that JSON lacks as text. */
struct json_t *json_number(double value);
/* Text; escaped if it is not UTF-8. */
struct json_t *json_text(const char *text);
struct json_t *json_row(const struct answer *a, const void *row);

/* ---------------------------------------------------------------- columns.c */

extern const struct answer answer_health, answer_nodes, answer_top, answer_jobs,
    answer_keys, answer_loads, answer_moves, answer_stalls, answer_tokens,
    answer_events, answer_private_jobs;
/* Of status and top; NULL ends them. */
extern const struct answer *const answers_of_status[];

void show_settings(const struct report *r, bool headings);
/* Shows the first `most` scalars of jobs that have not ended, with an empty line
 * above. Returns the number of lines, 0 if there are none. */
size_t show_scalars(const struct report *r, size_t most, bool headings);
void show_keys(const struct report *r, bool headings);
void show_migrations(const struct report *r, bool headings);
void show_stalls(const struct report *r, bool headings);
