/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of psctl share: a connection to psched, the rows it answered
 * with, and the two ways to write them down. */
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
    struct ps_msg **row; /* Own. */
    size_t count;
    size_t capacity;
};

#define QUERY_KINDS 7 /* enum ps_query counts up to here. */

/* Everything that was asked for one verb. */
struct report {
    struct rows rows_of[QUERY_KINDS]; /* By enum ps_query. */
    bool has_migrated;                /* Those moves were made. */
    struct ps_msg *end;               /* The last query_end; own. */
};

void report_fini(struct report *r);
/* Phases that are not over. */
bool job_is_open(const struct ps_msg_job_row *j);

/* --------------------------------------------------------------- lookup.c */

/* Addresses for a stream to the numeric port, to be freed with freeaddrinfo.
 * False with a reason, which lives as long as the program; `deadline` is on
 * CLOCK_MONOTONIC. */
bool lookup_name(const char *host, const char *port, ps_time deadline,
                 struct addrinfo **ret_list, const char **ret_why);

/* ----------------------------------------------------------------- wire.c */

struct wire;

/* Connects and greets. NULL, after a message on standard error, with the exit
 * code in *ret_exit. `silence` is how long psched may say nothing. */
struct wire *wire_open(const char *endpoint, ps_time silence, int *ret_exit);
void wire_close(struct wire *w);
/* The same psched, by its Unix socket where it has one on this host: there it
 * knows the user. Takes over `w`, which is returned where there is none. */
struct wire *wire_switch_to_local(struct wire *w);
/* True: a process listens behind this path. */
bool wire_is_listening(const char *path);
/* Asks, and gathers the rows until the end of the answer; an exit code. */
int wire_query(struct wire *w, enum ps_query what, const char *job,
               struct report *r);
/* The moves that make the job's servers even, or empty the one called `off`
 * (NULL: none), in the place of PS_QUERY_REBALANCE_PLAN; `dry`: these would be made,
 * else they are, however long psched is silent meanwhile. */
int wire_rebalance(struct wire *w, const char *job, const char *off, bool dry,
                   struct report *r);
int wire_cancel(struct wire *w, const char *job, const char *reason,
                struct report *r);

/* A change of the job's optimizer from a round on. */
struct setting {
    char name[33];
    double value;
    uint64_t round;
};
int wire_set(struct wire *w, const char *job, const struct setting *s,
             struct report *r);

/* --------------------------------------------------------------- health.c */

#define PROBLEMS_MAX 16u

struct health {
    char problems[PROBLEMS_MAX][400]; /* Sentences; the first ones of all. */
    size_t count;
    size_t omitted_count; /* That did not fit. */
};

/* What an operator has to look at. Waits shorter than `after` are work. */
void health_check(const struct report *r, ps_time after, struct health *ret);
bool stall_is_problem(const struct ps_msg_stall_row *s, ps_time after);
/* "rank 3 (n07, lost), rank 5 (n09)"; escaped. */
void describe_missing(const struct ps_msg_stall_row *s, struct ps_str *out);

/* ----------------------------------------------------------------- help.c */

void help_all(FILE *out);
/* On standard output. False, after a message: there is no such verb. */
bool help_verb(const char *verb);
/* On standard error, with the one that may have been meant. */
void help_no_verb(const char *verb);
/* A script for bash. */
void help_completion(void);

/* ---------------------------------------------------------------- table.c */

#define TABLE_COLUMNS 16u

struct table {
    size_t columns;
    bool right_aligned[TABLE_COLUMNS]; /* Numbers. */
    char **cells;                      /* Own; rows one after the other. */
    size_t count;
    size_t capacity;
};

/* Headings; one that begins with '>' is a column of numbers. */
void table_init(struct table *t, const char *const *headings, size_t columns);
void table_fini(struct table *t);
/* Text from anywhere, of up to `max` bytes, without anything that a terminal
 * obeys: letters of other alphabets as they are where the terminal shows them,
 * all else as \xNN. */
void add_printable(struct ps_str *s, const char *text, size_t max);
/* The next cell, cut and escaped: strings may come from anywhere. */
void table_text(struct table *t, const char *text);
void table_cell(struct table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void table_print(const struct table *t, bool headings);

/* "s" behind a word, unless there is one. */
const char *plural(size_t n);
/* "412 MB", "1.5 GB"; decimal units. */
void format_bytes(uint64_t bytes, char *out, size_t cap);
/* "4.1s", "12m03s", "3d02h" */
void format_age(uint64_t ns, char *out, size_t cap);
/* "10,412" */
void format_count(uint64_t n, char *out, size_t cap);

/* ---------------------------------------------------------------- bench.c */

#define BENCH_WORKERS_MAX 64u
#define BENCH_KEYS_MAX    100000u
#define BENCH_ROUNDS_MAX  1000000u
#define BENCH_BYTES_MAX   (UINT64_C(64) << 30)

struct bench_options {
    uint64_t size; /* Bytes of all keys together. */
    uint32_t keys;
    uint32_t rounds;
    uint32_t workers;
    uint32_t servers;
    const char *socket; /* Of this node's agent. */
    ps_time timeout;    /* For it to be there. */
};

/* An exit code. */
int bench_run(const struct bench_options *o, bool json);

/* ---------------------------------------------------------------- balance.c */

/* A server of a job: what it has, and what it would have after the moves. */
struct job_load {
    const char *job; /* Both of the row. */
    const char *server;
    uint64_t bytes;
    uint64_t bytes_after;
    double
        fair_share; /* What each server of the job had if all had the same. */
};

/* One for each row of PS_QUERY_SHARES, in their order, and behind them servers
 * that would get something; the caller frees. */
struct job_load *make_job_loads(const struct report *r, size_t *ret_count);
/* To what would be even: 1 is even. */
double job_load_ratio(const struct job_load *l, uint64_t bytes);

/* ---------------------------------------------------- show.c and json.c */

void show_table(enum verb verb, const struct report *r, const struct health *h,
                bool headings);
void show_json(enum verb verb, const struct report *r, const struct health *h);
