/* SPDX-License-Identifier: Apache-2.0 */
/* The job of a command line and its job file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pslaunch/hosts.h"
#include "pslaunch/options.h"

/* Exit codes shared by all programs of pskv. */
enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_UNAVAILABLE = 69,
    EXIT_CANTCREAT = 73,
    EXIT_IOERR = 74,
    EXIT_CONFIG = 78,
};

/* Variables of options, each "NAME=VALUE". */
struct variables {
    char **items;
    size_t count;
};

struct plan {
    struct job_options job; /* As the command line and the job file state it. */
    char name_buffer[64];   /* Name of a job to which the user gives none. */
    uint32_t workers;
    uint32_t servers;
    /* Agents to start on this host, one for each simulated node. */
    uint32_t nodes;
    const struct launcher *launcher;
    struct host_list hosts; /* Empty: this host. */
    struct layout layout;
    /* Socket of a running agent; NULL: starts daemons of its own. */
    const char *socket;
    uint64_t grace_ms;
    uint64_t start_timeout_ms;
    bool dry_run;
    struct variables env; /* Of workers and servers. */
    struct variables worker_env;
    struct variables server_env;
    char **command; /* A shell and the text that it splits, or words. */
};

/* Parses the command line. Returns 0, or an exit code after a message; -1: help
 * or version was printed. */
int plan_parse(int argc, char **argv, struct plan *ret_plan);
/* Takes the list of hosts of an option. False after a message. */
bool plan_set_hosts(struct plan *p, const char *option, const char *text);
/* Checks what options have set, and completes it. Returns 0, or an exit code
 * after a message. */
int plan_check(struct plan *p);
/* True if the job has daemons of its own. */
bool plan_has_daemons(const struct plan *p);
/* True if the job has daemons of its own whose connections are encrypted. */
bool plan_encrypts(const struct plan *p);
/* Names of nodes of the daemons; with a number for servers and agents. */
#define SCHED_NODE  "psched"
#define SERVER_NODE "ps"
#define AGENT_NODE  "node"
void plan_node_name(const char *prefix, uint32_t number, char ret_name[16]);
/* True if daemons of the job run on this host, or hosts read files of it. */
bool plan_needs_folder(const struct plan *p);
/* True if hosts read files of the job in the present folder. */
bool plan_shares_folder(const struct plan *p);
