/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a job file, which says in YAML what a command line says in
 * words, and those of other launchers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "conf/option.h"

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
        uint64_t weight; /* 0: not stated. */
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
        int tls; /* enum tls_choice, without its first. */
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

/* True for a mode of training, and its names in other systems. */
bool job_is_mode(const char *name);

/* What to write in place of an option of launch.py, dmlc-submit, horovodrun,
 * torchrun, mpirun or srun, as in "instead: -n N"; NULL: it is none of theirs.
 * `word` has its dashes, and may have a value after '='. */
const char *job_foreign_option(const char *word);
