/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers: ways to start processes on hosts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct command;
struct plan;
struct run;

/* Adds the words of a command for a host. */
typedef void (*host_command_cb)(const struct plan *p, uint32_t host,
                                struct command *c);

struct launcher {
    const char *name;
    bool uses_hosts; /* Of a list; else on this host alone. */
    /* True if hosts read files of the job in the present folder; NULL: they do
     * not. */
    bool (*shares_folder)(void);
    /* Reason for the loss of a host, if the program that has its supervisor
     * started has failed; NULL: there is no such program. */
    const char *refusal;
    /* Variable with a list of hosts, if the user gives none; NULL: none. */
    const char *hosts_variable;
    /* Folder of the processes on hosts; NULL: the present one. */
    const char *folder;
    /* Fills the list of hosts, if the user names none. False after a message.
     * NULL: the user names hosts. */
    bool (*make_hosts)(struct plan *p);
    /* Prints the definition of the job for another system; NULL: there is
     * none. */
    void (*define)(const struct plan *p, FILE *out);
    /* Hands the job to another system, which runs it; returns the exit code.
     * NULL: pslaunch runs it, by the operations below. */
    int (*submit)(const struct plan *p);
    /* Adds the words of the command that starts the supervisor of a host and is
     * connected to it by standard input and output; none if the command of the
     * first host starts all. `program` names it in messages. */
    host_command_cb command;
    const char *program;
    /* The first host is open before the commands for the others start. */
    bool opens_first_alone;
    /* Makes all hosts of a run ready to start processes. False after a
     * message, or when the run was interrupted. NULL: remotes_open(). */
    bool (*open)(struct run *r);
    /* Ends all processes that are left on the hosts. NULL: remotes_close(). */
    void (*close)(struct run *r);
};

extern const struct launcher launcher_local;
extern const struct launcher launcher_ssh;
extern const struct launcher launcher_mpi;
extern const struct launcher launcher_slurm;
extern const struct launcher launcher_systemd;
extern const struct launcher launcher_k8s;
extern const struct launcher launcher_yarn;
extern const struct launcher launcher_sge;

/* NULL: there is none of this name. */
const struct launcher *launcher_find(const char *name);
/* Names of all, with ", " between them. */
const char *launcher_names(void);

/* Adds the words that copy the present folder to a host, by rsync over ssh. */
void copy_command(const struct plan *p, uint32_t host, struct command *c);

/* `pslaunch --join ORDER`: connects the supervisor that this process becomes, of
 * the task that SGE_TASK_ID names. False after a message. */
bool join_pslaunch(const char *order);
