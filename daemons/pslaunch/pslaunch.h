/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of pslaunch share: the plan (what to start, with what
 * environment) and the processes that come of it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Exit codes that all programs of pskv share. */
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
    uint32_t nodes; /* Agents: as many nodes are played on this host. */
    const char *name;
    const char *on_loss;
    const char *placement;
    const char *mode;
    const char *socket; /* Agent that runs already; NULL: a trio of our own, */
    bool private_trio;  /* which was asked for. */
    const char *output_dir;
    const char *log_level; /* Of our own daemons. */
    enum output_style output;
    uint64_t grace_ms;
    uint64_t start_timeout_ms;
    bool keep_going;
    bool dry_run;
    const char **env; /* "NAME=VALUE" for workers; NULL at the end. */
    size_t env_count;
    char **command;
    char name_buffer[64];
};

/* ------------------------------------------------------------ plan.c */

/* 0, or an exit code after a message; -1: help or version was printed. */
int plan_parse(int argc, char **argv, struct plan *ret_plan);
/* Environment of a worker: a copy of ours with the names of the job in it. */
char **plan_worker_env(const struct plan *p, uint32_t rank, const char *socket,
                       uint16_t sched_port);
void plan_free_env(char **env);
uint32_t plan_node_of(const struct plan *p, uint32_t rank);
uint32_t plan_local_rank(const struct plan *p, uint32_t rank);
uint32_t plan_local_size(const struct plan *p, uint32_t node);

/* ------------------------------------------------------------ output.c */

/* What is still to be written to our own standard output or error. */
struct sink {
    int fd;
    bool is_broken; /* The reader is gone: what comes is dropped. */
    char *bytes;    /* From `from` to `len`; freed by its owner. */
    size_t read_offset;
    size_t len;
    size_t capacity;
};

/* A full sink takes no more lines of workers for now. */
bool sink_is_full(const struct sink *k);
bool sink_is_empty(const struct sink *k);
/* After poll() found room: writes what fits. */
void sink_write(struct sink *k);
/* "pslaunch: " and the text, as a line. */
void sink_print(struct sink *k, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Lines of one stream of one process, with the rank in front. */
struct stream {
    int in;            /* Our end of the pipe; -1: closed. */
    bool is_lossy;     /* A full sink drops its lines. */
    struct sink *sink; /* Of standard output or error; not owned. */
    int file;          /* Copy without tags; -1: none. */
    char tag[32];      /* "[3] "; empty: none. */
    char line[65536];
    size_t len;
    char tail[2048]; /* The last of it, for the closing message. */
    size_t tail_len;
};

void stream_init(struct stream *s, int in, struct sink *sink, int file,
                 const char *tag);
/* Its sink is full: there is no use in reading it. */
bool stream_is_blocked(const struct stream *s);
/* Read what there is and fits; false at the end of the stream. */
bool stream_read(struct stream *s);
void stream_close(struct stream *s);

/* ------------------------------------------------------------ process.c */

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
    char **env; /* NULL: ours. */
    int out;    /* Becomes stdout; -1: ours. */
    int err;
    int keep_open_fd; /* A descriptor that stays open in the child; -1: none. */
};

/* Start a process in a session of its own that dies with its parent. */
pid_t process_start(const struct spawn *s);
/* Signal every process that descends from this one, found by walking /proc:
 * children of dead children are ours, because we are their subreaper. */
size_t process_signal_all(int sig);
/* Become the one to whom orphans below us are given. */
void process_become_subreaper(void);

/* ------------------------------------------------------------ run.c */

int run_plan(const struct plan *p);
