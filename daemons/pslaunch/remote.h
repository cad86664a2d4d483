/* SPDX-License-Identifier: Apache-2.0 */
/* pslaunch's side of the supervisors on hosts. A launcher opens the connection;
 * from then on all launchers with hosts are alike. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "pslaunch/command.h"
#include "pslaunch/launcher.h"
#include "pslaunch/link.h"
#include "pslaunch/run.h"

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
 * output of the job; `what` names it. Frees the command. False after a
 * message. */
bool remote_spawn(struct run *r, uint32_t host, struct command *c,
                  const char *what, struct process *ret_process);
/* Copies the present folder to all hosts by the command `copy`, if the plan says
 * so: to the first one, then to the others at the same time. Hosts may share the
 * file system; two programs that make the same folders would fail, and after the
 * first copy there is nothing left to make. False after a message. */
bool remotes_copy(struct run *r, host_command_cb copy);
/* Starts the supervisors of all hosts by the commands of the launcher and waits
 * for them. False after a message, or when the run was interrupted. */
bool remotes_open(struct run *r);
/* Takes the connection of a supervisor that has connected to the listener of the
 * run (listener_cb), and waits for hello. */
void remote_accept(void *run, uint32_t host, int fd, SSL *tls);
/* The host takes part no more, for a reason that is reported. */
void remote_lose(struct run *r, uint32_t host, const char *why);
/* After poll() reported input. */
void remote_read(struct run *r, uint32_t host);
/* The program of `pid` has ended, if it is one of hosts. */
void remote_on_exit(struct run *r, pid_t pid, int status);
/* Sends what is due; to be called after each wait, and every BEAT_MS. */
void remotes_tick(struct run *r);
/* True if the first `count` hosts are in this state. */
bool remotes_are(const struct run *r, uint32_t count, enum remote_state state);
/* Starts a process on its host, for child_start(). False after a message. */
bool remote_start(struct run *r, struct child *c, const struct spawn *s);
/* Signals all daemons or all workers, for children_signal(). */
void remotes_signal(struct run *r, bool daemons, int sig);
/* Asks the supervisors to end everything, and waits for that and for their
 * output. */
void remotes_close(struct run *r);
