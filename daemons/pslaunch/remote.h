/* SPDX-License-Identifier: Apache-2.0 */
/* pslaunch's side of the supervisors on hosts. A launcher opens the connection;
 * from then on all launchers with hosts are alike. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "pslaunch/command.h"
#include "pslaunch/run.h"
#include "pslaunch/link.h"

/* Table of transitions: remote.c. */
enum remote_state {
    REMOTE_NEW,
    REMOTE_PREPARING, /* A program copies files there. */
    REMOTE_PREPARED,
    REMOTE_OPENING, /* Its supervisor has not said hello. */
    REMOTE_OPEN,
    REMOTE_CLOSED,
};

struct remote {
    uint8_t state;      /* enum remote_state */
    struct link link;   /* From REMOTE_OPENING on. */
    pid_t pid;          /* Program that copies or connects; 0: none. */
    struct stream *err; /* Its standard error; NULL: none. */
    uint64_t owed;      /* Bytes of output for which credit is due. */
    uint64_t heard_ms;
    uint64_t beat_ms;
};

/* Starts a program for this host, such as ssh, with its standard error in the
 * output of the job; `what` names it. False after a message. */
bool remote_spawn(struct run *r, uint32_t host, char *const *argv,
                  const char *what, struct process *ret_process);
/* A program of remote_spawn() copies files to this host; or nothing has to be
 * copied. */
void remote_on_copying(struct run *r, uint32_t host);
void remote_on_prepared(struct run *r, uint32_t host);
/* The connection is made: waits for hello. Takes over the descriptors. */
void remote_open(struct run *r, uint32_t host, int in, int out);
/* The same for a supervisor that has connected to the listener of the run
 * (listener_cb). */
void remote_accept(void *run, uint32_t host, int fd, SSL *tls);
/* The host takes part no more, for a reason that is reported. */
void remote_lose(struct run *r, uint32_t host, const char *why);
/* After poll() reported input. */
void remote_read(struct run *r, uint32_t host);
/* The program of `pid` has ended, if it is one of hosts. */
void remote_on_exit(struct run *r, pid_t pid, int status);
/* Sends what is due; to be called after each wait, and every BEAT_MS. */
void remotes_tick(struct run *r);
/* True if all hosts are in this state. */
bool remotes_are(const struct run *r, enum remote_state state);
/* Asks the supervisors to end everything. */
void remotes_finish(struct run *r);
/* Closes the connections that are left. */
void remotes_abandon(struct run *r);

/* For tables of launchers. */
bool remote_start(struct run *r, struct child *c, const struct spawn *s);
void remote_signal(struct run *r, bool daemons, int sig);

/* Adds the words of a command that starts the supervisor of a host and is
 * connected to it by standard input and output. */
typedef void (*remote_command_cb)(const struct plan *p, uint32_t host,
                                  struct command *c);

/* Starts the supervisors of all hosts and waits for them; `what` names the
 * program. False after a message, or when the run was interrupted. */
bool remotes_open(struct run *r, const char *what, remote_command_cb make);
/* The same, but the supervisors of the first `first` hosts are awaited before
 * the programs for the others start. */
bool remotes_open_after(struct run *r, uint32_t first, const char *what,
                        remote_command_cb make);

/* Waits until the first `count` hosts are in this state. False after a message,
 * or when the run was interrupted. */
bool remotes_await(struct run *r, uint32_t count, enum remote_state state);
void remote_close(struct run *r);
