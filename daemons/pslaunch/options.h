/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a job: one table, from which the command line, the job file in YAML,
 * help and completion are made, and with which docs/man/check.py compares the
 * manual page; and the options of other launchers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "conf/option.h"

enum output_style { OUTPUT_TAGGED, OUTPUT_PLAIN };

/* Encryption of TCP connections between daemons of the job. */
enum tls_choice {
    TLS_UNSTATED = -1, /* As auto, or as PSKV_LAUNCH_TLS says. */
    TLS_AUTO,          /* On several hosts. */
    TLS_ON,
    TLS_OFF,
};

struct job_options {
    const char *name; /* "": the file has none; so for all texts below. */
    struct ps_option_list command;
    const char *launcher;
    struct ps_option_list hosts; /* Parts of one list. */
    const char *hostfile;
    struct {
        uint64_t workers; /* 0: not stated. */
        uint64_t servers; /* JOB_SERVERS_AUTO: as many as workers. */
        uint64_t nodes;
    } scaling;
    struct {
        const char *mode;
        const char *placement;
        uint64_t weight;   /* 0: not stated. */
        uint64_t replicas; /* 0: not stated. */
        struct ps_option_list env;
        struct ps_option_list env_worker;
        struct ps_option_list env_server;
        int output; /* enum output_style */
        const char *output_dir;
        const char *sync_dst_dir;
        const char *log_level;
    } run;
    struct {
        const char *on_worker_loss;
        bool keep_going;
        ps_time grace;
        ps_time start_timeout;
    } failure;
    struct {
        const char *socket;
        bool is_private;
        int tls; /* enum tls_choice */
        bool insecure_network;
    } daemons;
    struct {
        const char *image;
        const char *space; /* "namespace" */
        const char *queue;
        uint64_t cpus;
        uint64_t memory; /* Bytes */
    } container;
};

#define JOB_SERVERS_AUTO ((int64_t)UINT32_MAX)

extern const struct ps_option_set job_set;

/* Groups of options in the help. */
enum option_group {
    GROUP_PROCESSES,
    GROUP_HOSTS,
    GROUP_TRAINING,
    GROUP_OUTPUT,
    GROUP_FAILURES,
    GROUP_DAEMONS,
    GROUP_CONTAINERS,
    GROUP_PSLAUNCH,
    OPTION_GROUPS,
};

/* Options that a job file has not. */
enum own_option {
    OWN_DRY_RUN,
    OWN_P3,
    OWN_FILE,
    OWN_PRINT_CONFIG,
    OWN_HELP,
    OWN_VERSION,
    OWN_OPTIONS,
};

/* Option `i` of the command line, those of job files first; NULL: no more. */
const struct ps_option *option_row(size_t i);
/* enum own_option of a row; -1: it is one of job files. */
int option_own(const struct ps_option *row);

/* Its name without what follows. */
struct option_name {
    char letter;      /* Of "-n"; 0: none. */
    const char *word; /* "num-workers N", of which `len` bytes are the name. */
    size_t len;
    bool has_value;
};
struct option_name option_name(const struct ps_option *row);

void options_help(FILE *out);
/* Prints what a group or option is for; "all": of all. False, after a message: it
 * is neither. */
bool options_help_of(const char *topic);
/* Prints the script that completes options in a shell. False after a message. */
bool options_completion(const char *shell);

/* What to write in place of an option of launch.py, dmlc-submit, horovodrun,
 * torchrun, mpirun or srun, as in "instead: -n N"; NULL: it is none of theirs.
 * `word` has its dashes, and may have a value after '='. */
const char *job_foreign_option(const char *word);
