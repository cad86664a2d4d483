/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of pslaunch: the plan (processes to start, and their
 * environment), output streams, and child processes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Exit codes shared by all programs of pskv. */
enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_UNAVAILABLE = 69,
    EXIT_CANTCREAT = 73,
};

enum output_style { OUTPUT_TAGGED, OUTPUT_PLAIN };

struct plan {
    uint32_t workers;
    uint32_t servers;
    /* Agents to start on this host, one for each simulated node. */
    uint32_t nodes;
    const char *name;
    const char *on_loss;
    const char *placement;
    const char *mode;
    /* Socket of a running agent; NULL: starts daemons of its own. */
    const char *socket;
    bool private_trio; /* Daemons of its own were requested. */
    const char *output_dir;
    const char *log_level; /* Level of its own daemons. */
    enum output_style output;
    uint64_t grace_ms;
    uint64_t start_timeout_ms;
    bool keep_going;
    bool dry_run;
    const char **env; /* "NAME=VALUE" for workers; NULL ends the list. */
    size_t env_count;
    char **command;
    char name_buffer[64];
};

/* ------------------------------------------------------------------- plan.c */

/* Parses the command line. Returns 0, or an exit code after a message; -1: help
 * or version was printed. */
int plan_parse(int argc, char **argv, struct plan *ret_plan);
/* Environment of a worker: a copy of pslaunch's own, with the variables of the
 * job. */
char **plan_worker_env(const struct plan *p, uint32_t rank, const char *socket,
                       uint16_t sched_port);
void plan_free_env(char **env);
uint32_t plan_node_of(const struct plan *p, uint32_t rank);
uint32_t plan_local_rank(const struct plan *p, uint32_t rank);
uint32_t plan_local_size(const struct plan *p, uint32_t node);

/* ----------------------------------------------------------------- output.c */

/* Bytes waiting for pslaunch's standard output or error. */
struct sink {
    int fd;
    bool is_broken; /* The reader is gone; output is dropped. */
    /* Valid from `read_offset` to `len`; freed by the sink's owner. */
    char *bytes;
    size_t read_offset;
    size_t len;
    size_t capacity;
};

/* True if the sink accepts no more lines of workers now. */
bool sink_is_full(const struct sink *k);
bool sink_is_empty(const struct sink *k);
/* Writes the bytes that fit, after poll() reported space. */
void sink_write(struct sink *k);
/* Adds "pslaunch: " and the text, as one line. */
void sink_print(struct sink *k, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Line splitter of one output stream of one process. */
struct stream {
    int in;            /* Read end of the pipe; -1: closed. */
    bool is_lossy;     /* A full sink drops its lines instead of blocking it. */
    struct sink *sink; /* Sink of standard output or error; borrowed. */
    int file;     /* Log file that gets the lines without tags; -1: none. */
    char tag[32]; /* "[3] "; "": none. */
    char line[65536];
    size_t len;
    char tail[2048]; /* Last bytes, for the closing message. */
    size_t tail_len;
};

void stream_init(struct stream *s, int in, struct sink *sink, int file,
                 const char *tag);
/* True while its sink is full: it must not be read. */
bool stream_is_blocked(const struct stream *s);
/* Reads the bytes available, as far as they fit; false at the end of the
 * stream. */
bool stream_read(struct stream *s);
void stream_close(struct stream *s);

/* ---------------------------------------------------------------- process.c */

struct child {
    pid_t pid;     /* 0: not running. */
    char name[32]; /* "rank 3", "psserver 1" */
    bool is_daemon;
    bool has_ended;
    int status;
    struct stream *out;
    struct stream *err;
};

struct spawn {
    char *const *argv;
    char **env; /* NULL: pslaunch's own. */
    int out;    /* Becomes stdout; -1: inherited. `err`: the same for stderr. */
    int err;
    int keep_open_fd; /* Stays open in the child; -1: none. */
};

/* Starts a process in a session of its own that dies with its parent. */
pid_t process_start(const struct spawn *s);
/* Signals all descendants of this process, found by walking /proc, orphans
 * included. Returns the number of processes signalled. */
size_t process_signal_all(int sig);
/* Makes this process the parent of orphaned descendants. */
void process_become_subreaper(void);

/* -------------------------------------------------------------------- run.c */

int run_plan(const struct plan *p);
