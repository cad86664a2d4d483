/* SPDX-License-Identifier: Apache-2.0 */
/* Options of psworker-agent. */
#pragma once

#include "common/options.h"

struct psagent_options {
    struct ps_common_options common;
    struct ps_scheduler_options scheduler;
    struct ps_transport_options transport;
    struct ps_key_limits key_limits;
    const char *socket;
    unsigned mode;
    const char *group;      /* "": that of the process. */
    uint64_t liveness_port; /* Or PS_LISTEN_PORT_AUTO. */
    uint64_t max_clients;
    struct ps_compute_options compute;
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
        uint64_t user_operations;
        uint64_t session_queries;
        uint64_t user_queries;
        uint64_t daemon_regions; /* 0: half of vm.max_map_count. */
        uint64_t daemon_mapped;
    } limits;
};

extern const struct ps_option_set psagent_set;
