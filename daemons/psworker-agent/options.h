/* SPDX-License-Identifier: Apache-2.0 */
/* Options of psworker-agent. */
#pragma once

#include "common/options.h"

struct psagent_options {
    struct ps_common_options common;
    struct ps_scheduler_options scheduler;
    const char *socket;
    unsigned mode;
    uint64_t liveness_port; /* Or PS_LISTEN_PORT_AUTO. */
    uint64_t max_clients;
    int same_host;       /* 0: auto, 1: off. */
    int travel_together; /* 0: auto, 1: off. */
    int threads;         /* Compute threads; 0: one for each processor. */
    /* I/O threads, the loop's own included; 0: by measured need. */
    int loops;
    uint64_t memory;
    uint64_t hand_over;
    /* Connections to each server; 0: as many as I/O threads need. */
    uint64_t connections;
    struct psagent_limits {
        uint64_t session_regions;
        uint64_t session_mapped;
        uint64_t user_sessions;
        uint64_t user_regions; /* 0: half of `daemon_regions`. */
        uint64_t user_mapped;
        uint64_t user_memory; /* 0: four fifths of `memory`. */
        uint64_t job_keys;
        uint64_t user_keys;
        uint64_t job_partitions;
        uint64_t user_partitions;
        uint64_t user_operations;
        uint64_t session_queries;
        uint64_t user_queries;
        uint64_t daemon_regions; /* 0: half of vm.max_map_count. */
        uint64_t daemon_mapped;
    } limits;
};

extern const struct ps_option_set psagent_set;
