/* SPDX-License-Identifier: Apache-2.0 */
/* A job that runs: its processes, the hosts where they are, and its output. */
#pragma once

#include "pslaunch/authority.h"
#include "pslaunch/output.h"
#include "pslaunch/plan.h"
#include "pslaunch/process.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Table of transitions: loop.c. */
enum child_state {
    CHILD_STARTED,
    CHILD_READY, /* A daemon. */
    CHILD_ENDED,
    CHILD_LOST, /* With the connection to its host. */
};

/* A daemon or worker. */
struct child {
    char name[32]; /* "rank 3", "psserver 1" */
    uint32_t host;
    bool is_daemon;
    bool lacked_memory; /* The kernel has killed it for that, most likely. */
    uint8_t state;      /* enum child_state */
    /* Of a daemon that has to get a certificate; 0: none, or it has it. */
    uint8_t role;
    char node[16]; /* Its name in the certificate. */
    int status;    /* As waitpid() gives it. */
    pid_t pid;     /* On this host, while it runs; else 0. */
    int ready;     /* Pipe of a daemon on this host; -1: none. */
    struct stream *out;
    struct stream *err;
    struct log_file *file; /* Owned; NULL: none. */
};

/* A host of the job; this one, if there is no list. */
struct place {
    char name[256];                 /* For messages and tags. */
    char address[256];              /* Where daemons of this host listen. */
    char dir[256];                  /* Folder of their sockets; "": none. */
    char sched_port[PORT_TEXT_MAX]; /* For psched on this host. */
    /* For the store of torch; "": as the environment says. */
    char store_port[PORT_TEXT_MAX];
};

struct run {
    const struct plan *plan;
    struct child *child; /* Daemons, then workers. */
    uint32_t child_count;
    uint32_t workers_alive;
    struct place *places; /* By index of the host. */
    uint32_t place_count;
    struct remote *remotes;      /* Of these hosts; NULL: the job is here. */
    struct listener *listener;   /* Where supervisors connect; NULL: nowhere. */
    struct authority *authority; /* NULL: connections are not encrypted. */
    int signals;                 /* signalfd */
    uint64_t oom_seen;           /* Of process_lacked_memory(). */
    uint32_t interrupt_count;
    uint32_t interrupt_signal; /* Number of the first interrupting signal. */
    struct sink out;
    struct sink err;
    const struct child *first_failed;
    bool is_stopping;
    bool has_lost_host;
    bool has_lost_output; /* A write of an output has failed. */
};

/* ------------------------------------------------------------------- loop.c */

#define CHILD_TEXT_MAX 256u
/* "was killed by signal 9 (Killed)", "exited with code 7" */
void child_describe(const struct child *c, char *text, size_t cap);
int child_exit_code(const struct child *c);
/* The next child of the run, on a host, with its streams. `file`: log of its
 * output, taken over; NULL: none. */
struct child *child_add(struct run *r, uint32_t host, bool is_daemon,
                        const char *name, const char *tag,
                        struct log_file *file);
/* Starts its process on its host. False after a message. */
bool child_start(struct run *r, struct child *c, const struct spawn *s);
/* The daemon is ready. */
void child_on_ready(struct child *c);
void child_on_ended(struct run *r, struct child *c, int status);
void child_on_lost(struct run *r, struct child *c);
/* Issues the one certificate of a daemon for its key, and writes it with the
 * authority's to `pem`. False after a message. */
bool child_certify(struct run *r, struct child *c, EVP_PKEY *key,
                   char pem[AUTHORITY_TEXT_BYTES]);
bool children_any_alive(const struct run *r, bool daemons);
/* Signals the process groups of all daemons or of all workers. */
void children_signal(struct run *r, bool daemons, int sig);

/* Serves streams, sinks and signals until an event or the time limit. */
void run_loop(struct run *r, uint64_t until_ms);
/* Prints once of each output that has failed the path and reason. */
void outputs_report(struct run *r);

/* -------------------------------------------------------------------- run.c */

/* Runs the job; returns the exit code. */
int run_plan(const struct plan *p);
