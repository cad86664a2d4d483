/* SPDX-License-Identifier: Apache-2.0 */
/* The job of a command line and its job file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pslaunch/hosts.h"

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

enum output_style { OUTPUT_TAGGED, OUTPUT_PLAIN };

/* The word of the user that hosts may exchange plain bytes. */
enum network { NETWORK_UNSTATED, NETWORK_INSECURE };

/* Encryption of TCP connections between daemons of the job. */
enum tls_choice {
    TLS_UNSTATED, /* As auto. */
    TLS_AUTO,     /* On several hosts. */
    TLS_ON,
    TLS_OFF,
};

/* Variables of options, each "NAME=VALUE". */
struct variables {
    char **items;
    size_t count;
};

/* Containers in which other systems run the processes of a host. */
struct container {
    const char *image; /* NULL: none is named; so for both below. */
    const char *space; /* Namespace. */
    const char *queue;
    uint32_t cpus;
    uint64_t memory_mib;
};

struct plan {
    uint32_t workers;
    uint32_t servers;
    /* Agents to start on this host, one for each simulated node. */
    uint32_t nodes;
    const struct launcher *launcher;
    struct host_list hosts; /* Empty: this host. */
    struct layout layout;
    enum network network;
    enum tls_choice tls;
    struct container container;
    const char *sync_dir; /* Copy of this folder on each host; NULL: none. */
    const char *name;
    const char *on_loss;
    const char *placement;
    const char *mode;
    uint32_t weight; /* 0: that of the environment. */
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
    struct variables env; /* Of workers and servers. */
    struct variables worker_env;
    struct variables server_env;
    char **command;      /* A shell and the text that it splits, or words. */
    char **file_command; /* Words of the job file; NULL: it has none. */
    char name_buffer[64];
};

/* Parses the command line. Returns 0, or an exit code after a message; -1: help
 * or version was printed. */
int plan_parse(int argc, char **argv, struct plan *ret_plan);
/* Take the value of an option or a variable, which a message names. False after
 * a message. */
bool plan_set_hosts(struct plan *p, const char *option, const char *text);
bool plan_set_tls(struct plan *p, const char *what, const char *text);
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
