/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of psctl: the connection to psched, the rows of its
 * answers, and the two output formats. */
#pragma once

#include "base/str.h"
#include "base/time.h"
#include "proto/ps_msg.h"

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes; those from 64 on are shared by all programs of pskv. */
enum {
    EXIT_HEALTHY = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_DEGRADED = 3,
    EXIT_NOJOB = 4,
    EXIT_UNAVAILABLE = 69,
    EXIT_TEMPFAIL = 75,
    EXIT_NOPERM = 77,
};

enum verb {
    VERB_STATUS,
    VERB_JOBS,
    VERB_CANCEL,
    VERB_SET,
    VERB_NODES,
    VERB_KEYS,
    VERB_STALL,
    VERB_BENCH,
    VERB_REBALANCE,
};

struct rows {
    struct ps_msg **row; /* Owned. */
    size_t count;
    size_t capacity;
};

#define QUERY_KINDS 7 /* Number of values of enum ps_query. */

/* All answers to one verb. */
struct report {
    struct rows rows_of[QUERY_KINDS]; /* By enum ps_query. */
    bool has_migrated;  /* The migrations in it were carried out. */
    struct ps_msg *end; /* Last query_end; owned. */
};

void report_fini(struct report *r);
/* True until the job has ended or failed. */
bool job_is_open(const struct ps_msg_job_row *j);

/* ----------------------------------------------------------------- lookup.c */

/* Resolves a name for a stream to the numeric port; the list is freed with
 * freeaddrinfo(). False with a reason, a constant; `deadline` is on
 * CLOCK_MONOTONIC. */
bool lookup_name(const char *host, const char *port, ps_time deadline,
                 struct addrinfo **ret_list, const char **ret_why);

/* ------------------------------------------------------------------- wire.c */

struct wire;

/* Connects and completes the handshake. NULL after a message on standard
 * error, with the exit code in *ret_exit. `silence` limits the time without
 * an answer. */
struct wire *wire_open(const char *endpoint, ps_time silence, int *ret_exit);
void wire_close(struct wire *w);
/* Connection to the same psched by its Unix socket, if it has one on this host:
 * psched knows the user there. Takes over `w`; returns `w` if there is none. */
struct wire *wire_switch_to_local(struct wire *w);
/* True if a process listens at this path. */
bool wire_is_listening(const char *path);
/* Sends a query and collects the rows of the answer. Returns an exit code. */
int wire_query(struct wire *w, enum ps_query what, const char *job,
               struct report *r);
/* Requests migrations that balance the job's servers, or that drain the server
 * `off` (NULL: none); rows go to PS_QUERY_REBALANCE_PLAN. `dry`: plans only.
 * Else they are carried out, without the limit on silence. */
int wire_rebalance(struct wire *w, const char *job, const char *off, bool dry,
                   struct report *r);
int wire_cancel(struct wire *w, const char *job, const char *reason,
                struct report *r);

/* Change of an optimizer setting from a round on. */
struct setting {
    char name[33];
    double value;
    uint64_t round;
};
int wire_set(struct wire *w, const char *job, const struct setting *s,
             struct report *r);

/* ----------------------------------------------------------------- health.c */

#define PROBLEMS_MAX 16u

struct health {
    /* Sentences; the first PROBLEMS_MAX of all. */
    char problems[PROBLEMS_MAX][400];
    size_t count;
    size_t omitted_count; /* Problems that did not fit. */
};

/* Finds the problems that an operator has to look at. Waits shorter than
 * `after` are normal. */
void health_check(const struct report *r, ps_time after, struct health *ret);
bool stall_is_problem(const struct ps_msg_stall_row *s, ps_time after);
/* Adds "rank 3 (n07, lost), rank 5 (n09)", escaped. */
void describe_missing(const struct ps_msg_stall_row *s, struct ps_str *out);

/* ------------------------------------------------------------------- help.c */

void help_all(FILE *out);
/* Prints the help of a verb on standard output. False, after a message: no such
 * verb. */
bool help_verb(const char *verb);
/* Reports an unknown verb on standard error, with the nearest one. */
void help_no_verb(const char *verb);
/* Prints a completion script for bash. */
void help_completion(void);

/* ------------------------------------------------------------------ table.c */

#define TABLE_COLUMNS 16u

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

/* ------------------------------------------------------------------ bench.c */

#define BENCH_WORKERS_MAX 64u
#define BENCH_KEYS_MAX    100000u
#define BENCH_ROUNDS_MAX  1000000u
#define BENCH_BYTES_MAX   (UINT64_C(64) << 30)

struct bench_options {
    uint64_t size; /* Bytes of all keys in all. */
    uint32_t keys;
    uint32_t rounds;
    uint32_t workers;
    uint32_t servers;
    const char *socket; /* Socket of this node's agent. */
    ps_time timeout;    /* Limit on waiting for the agent. */
};

/* Runs the benchmark. Returns an exit code. */
int bench_run(const struct bench_options *o, bool json);

/* ---------------------------------------------------------------- balance.c */

/* Load of one server of a job, before and after the migrations. */
struct job_load {
    const char *job; /* Borrowed from the row, as is `server`. */
    const char *server;
    uint64_t bytes;
    uint64_t bytes_after;
    /* Bytes of each server if all were equal. */
    double fair_share;
};

/* Loads for all rows of PS_QUERY_SHARES, in their order, then for servers that
 * only receive; the caller frees the list. */
struct job_load *make_job_loads(const struct report *r, size_t *ret_count);
/* Ratio of `bytes` to the fair share. */
double job_load_ratio(const struct job_load *l, uint64_t bytes);

/* -------------------------------------------------------- show.c and json.c */

void show_table(enum verb verb, const struct report *r, const struct health *h,
                bool headings);
void show_json(enum verb verb, const struct report *r, const struct health *h);
