/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers: ways to start processes on hosts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct child;
struct plan;
struct run;
struct spawn;

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
    /* Makes all hosts of a run ready to start processes. False after a
     * message, or when the run was interrupted. */
    bool (*open)(struct run *r);
    /* Starts a process of the job on its host. False after a message. */
    bool (*start)(struct run *r, struct child *c, const struct spawn *s);
    /* Signals the process groups of all daemons or of all workers. */
    void (*signal)(struct run *r, bool daemons, int sig);
    /* Ends all processes that are left on the hosts. */
    void (*close)(struct run *r);
    /* Dry run: prints the command that reaches this host. NULL: there is
     * none. */
    void (*print)(const struct plan *p, uint32_t host);
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

/* Copies the present folder to all hosts, if the plan says so: to the first one,
 * then to the others at the same time. Hosts may share the file system; two
 * programs that make the same folders would fail, and after the first copy there
 * is nothing left to make. False after a message. */
bool remotes_copy(struct run *r);
/* Dry run: prints the command. */
void remote_print_copy(const struct plan *p, uint32_t host);

/* `pslaunch --join ORDER`: connects, and runs the supervisor of the task that
 * SGE_TASK_ID names. Returns the exit code. */
int join_main(const char *path, int (*run)(const struct plan *none));
