/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a server. */
#pragma once

#include "base/pool.h"
#include "base/trace.h"
#include "core/base/facts.h"
#include "core/link/link.h"

struct ps_server_options {
    struct ps_facts facts;
    char name[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    char address[PS_ADDRESS_MAX + 1];       /* Advertised to agents. */
    char sched_address[PS_ADDRESS_MAX + 1]; /* Dialled by this server. */
    uint64_t instance;
    uint64_t seed;
    /* Push bytes of an agent and job that may be unmerged; 0: 32 MiB. */
    uint64_t credit_window;
    /* Credit before the first announcement, the same at all agents and servers;
     * 0: PS_CREDIT_INITIAL. */
    uint64_t initial_credit;
    /* Unsent payload bytes at which those of several jobs take turns on a link;
     * 0: 2 MiB. */
    uint64_t unsent_max;
    /* Bytes of running computations at which those of several jobs take turns;
     * 0: 8 MiB. */
    uint64_t computing_max;
    bool unbatched;           /* Small partitions travel alone. */
    ps_time dial_backoff_min; /* Waits between dials to the scheduler. */
    ps_time dial_backoff_max;
    struct ps_link_options link;
    ps_time link_linger;
    struct ps_trace *trace; /* Ring of what it does; not owned; NULL: none. */
    /* Tensor memory; not owned. The scheduler admits keys by its budget. */
    struct ps_pool *pool;
};
