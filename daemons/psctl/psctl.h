/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of psctl: the connection to psched, the rows of its
 * answers, and the two output formats. */
#pragma once

#include "base/limits.h"
#include "base/str.h"
#include "base/time.h"
#include "proto/ps_msg.h"

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Exit codes; those from 64 on are shared by all programs of pskv. */
enum {
    EXIT_HEALTHY = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_DEGRADED = 3,
    EXIT_NOJOB = 4,
    EXIT_UNAVAILABLE = 69,
    EXIT_IOERR = 74,
    EXIT_TEMPFAIL = 75,
    EXIT_NOPERM = 77,
    EXIT_CONFIG = 78,
};

struct rows {
    struct ps_msg **row; /* Owned. */
    size_t count;
    size_t capacity;
};

#define QUERY_KINDS 9 /* Number of values of enum ps_query. */

enum level {
    LEVEL_OK,
    LEVEL_NOTE,
    LEVEL_PROBLEM,
};

/* Observation about the cluster or this host. */
struct finding {
    enum level level;
    char text[600];
    const char *action; /* What to do; "": nothing. */
};

struct health {
    struct finding *list; /* Owned. */
    size_t count;
    size_t problem_count;
};

/* Problems that psctl status shows. */
#define PROBLEMS_MAX 16u

/* All answers to one verb. */
struct report {
    struct rows rows_of[QUERY_KINDS]; /* By enum ps_query. */
    bool is_plan;                     /* No migration in it was carried out. */
    struct ps_msg *end;               /* Last query_end; owned. */
    struct health health;
};

void report_fini(struct report *r);
/* True until the job has ended or failed. */
bool job_is_open(const struct ps_msg_job_row *j);

/* ------------------------------------------------------------------- dial.c */

struct ps_addr;
struct ps_tls_session;

ps_time monotonic_now(void);
/* Resolves a name for a stream to the numeric port; the list is freed with
 * freeaddrinfo(). False with a reason, a constant. */
bool lookup_name(const char *host, const char *port, ps_time deadline,
                 struct addrinfo **ret_list, const char **ret_why);
/* Waits for `events` of poll(). Returns 0 or an errno value, as does the next. */
int wait_for_io(int fd, short events, ps_time deadline);
int connect_one(int family, const struct sockaddr *sa, socklen_t sa_len,
                ps_time deadline, int *ret_fd);
/* Connects to the first address of a host that answers. NULL, or the reason why
 * none does. */
const char *connect_host(const struct ps_addr *addr, ps_time deadline,
                         int *ret_fd);

/* A connected socket, non-blocking, and TLS on it. */
struct line {
    int fd;                     /* -1: none. */
    struct ps_tls_session *tls; /* NULL: it is plain. */
};

/* Begins TLS with the certificate in `folder`. False with the reason. */
bool line_encrypt(struct line *l, const char *folder, ps_time silence,
                  struct ps_str *why);
/* Reads some bytes, and returns their number. PS_E_AGAIN: none are here;
 * PS_E_CLOSED: the peer has ended its output; others: line_failure() has the
 * reason, or else errno. */
ssize_t line_read(struct line *l, void *out, size_t cap);
/* Writes all bytes. 0, PS_E_TIMEOUT, or PS_E_IO: errno has the reason. */
int line_write(struct line *l, const uint8_t *bytes, size_t len,
               ps_time deadline);
/* Why TLS has failed, such as the peer's refusal; "": it has not. */
const char *line_failure(const struct line *l);
void line_close(struct line *l);

/* ------------------------------------------------------------------- wire.c */

struct wire;

/* A job as the user names it. */
struct job_name {
    const char *name;
    bool has_owner; /* Of the user `owner`; else not stated. */
    uint32_t owner;
};

/* Way to psched. The strings are borrowed. */
struct wire_target {
    const char *endpoint;
    const char *token; /* "": none. */
    /* Folder of a certificate, for connections by TCP; NULL: they are plain. */
    const char *tls;
    ps_time silence; /* Limit on the time without an answer. */
    bool insecure;   /* The token may travel over plain TCP. */
};
/* Connects and completes the handshake. NULL after a message on standard error,
 * with the exit code in *ret_exit. */
struct wire *wire_open(const struct wire_target *target, int *ret_exit);
void wire_close(struct wire *w);
/* Connection to the same psched by its Unix socket, if it has one on this host:
 * psched knows the user there. Takes over `w`; returns `w` if there is none. */
struct wire *wire_switch_to_local(struct wire *w);
/* Connects to a Unix socket, or to the port of psched on this host if `path` is
 * NULL. 0: a process listens there; else an errno value. */
int wire_probe(const char *path);
/* Endpoint without an option, variable or context: the Unix socket of this host,
 * if psched listens there, or if only the user's permission is missing; else its
 * port. */
const char *wire_default_endpoint(void);
/* Sends a query and collects the rows of the answer; `job` NULL: of all jobs.
 * Returns an exit code. */
int wire_query(struct wire *w, enum ps_query what, const struct job_name *job,
               struct report *r);
/* Asks for members, jobs and waits, as status and top show them. */
int wire_query_status(struct wire *w, struct report *r);
/* Requests migrations that balance the job's servers, or that drain the server
 * `off` (NULL: none); rows go to PS_QUERY_REBALANCE_PLAN. `dry`: plans only.
 * Else they are carried out, without the limit on silence. */
int wire_rebalance(struct wire *w, const struct job_name *job, const char *off,
                   bool dry, struct report *r);
/* Sends a request, and collects the rows of its answer with this code; `rows`
 * NULL: there are none. Returns an exit code. */
int wire_ask(struct wire *w, const struct ps_msg *request,
             enum ps_msg_code code, struct rows *rows, struct report *r);

/* Change of an optimizer setting from a round on. */
struct setting {
    char name[33];
    double value;
    uint64_t round;
};
/* Token that the user asks for. */
struct token_request {
    struct job_name job; /* name "": all jobs of the owner. */
    uint32_t rights;
    ps_time valid;
};

/* ----------------------------------------------------------------- status.c */

/* Finds a user by the `len` bytes of a name or number. */
bool find_user(const char *text, size_t len, uint32_t *ret_uid);
/* Reads "NAME" or "USER/NAME", where USER is a name or a number, and NAME may
 * have slashes itself: it is a job's whole name if there is such a job. Returns
 * an exit code. */
int job_name_parse(struct wire *w, const char *text, struct job_name *ret);
/* Adds the name of a job, as USER/NAME if rows of a report have a job of that
 * name of another user. */
void add_job_name(struct ps_str *s, const struct report *r, const char *name,
                  uint32_t uid);

#define PRIVATE_MAX 32u
/* A job of this user with daemons of its own on this host. */
struct private_job {
    char name[256];
    char endpoint[256]; /* "unix:PATH", of its psched. */
};
size_t list_private_jobs(struct private_job list[PRIVATE_MAX]);
void show_private_jobs(FILE *out); /* With the command that shows each. */

/* Drops the rows of jobs that have ended, and of those with another name than
 * `job` (NULL: any). Returns the number of the others. */
size_t settings_keep(struct report *r, const struct job_name *job);

/* Load of one server of a job, before and after the migrations. */
struct job_load {
    const char *job; /* Borrowed from the row, as is `server`. */
    uint32_t uid;
    const char *server;
    uint64_t bytes, bytes_after;
    bool is_spare;   /* No server of the job, which lacks one. */
    bool is_planned; /* The report is a plan: what follows "after" counts. */
    /* Of the bytes, to those of each server if all were equal. */
    double ratio, ratio_after;
};

/* Loads for all rows of PS_QUERY_SHARES, in their order, then for servers that
 * only receive; the caller frees the list. */
struct job_load *make_job_loads(const struct report *r, size_t *ret_count);
void describe_spare(const struct report *r, const struct job_load *spare,
                    struct ps_str *out);

/* Adds a finding, whose text the caller writes. */
struct ps_str begin_finding(struct health *h, enum level level,
                            const char *action);
/* Adds the problems of the cluster that an operator has to look at. Waits shorter
 * than `after` are normal. */
void health_check(struct report *r, ps_time after);
bool stall_is_problem(const struct ps_msg_stall_row *s, ps_time after);
/* Adds "rank 3 on n07 (lost), rank 5 on n09", escaped. */
void describe_missing(const struct ps_msg_stall_row *s, struct ps_str *out);

void show_status(const struct report *r, bool headings);
/* Two lines about the cluster. */
void show_summary(const struct report *r);
/* The first `most` jobs that have not ended. */
void show_open_jobs(const struct report *r, size_t most);

/* -------------------------------------------------------------------- top.c */

enum top_key {
    TOP_NAME,    /* By role and name: rows stay where they are. */
    TOP_TRAFFIC, /* Bytes in and out per second. */
    TOP_ROUNDS,
    TOP_MEMORY,
};

struct top_options {
    bool batch;      /* Frame after frame, without control of a terminal. */
    uint32_t count;  /* Frames; 0: until 'q' or a signal. */
    enum top_key by; /* Order of the members. */
};

bool top_key_parse(const char *word, enum top_key *ret);

/* Sleeps. */
void wait_for(ps_time how_long);

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
