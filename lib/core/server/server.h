/* SPDX-License-Identifier: Apache-2.0 */
/* Server machine: merges the rounds of partitions over the slots of a job,
 * keeps versions and values, answers pulls, and grants credit. docs/protocol.md
 * has the message sequences. */
#pragma once

#include "base/buf.h"
#include "base/pool.h"
#include "base/trace.h"
#include "core/base/machine.h"
#include "core/base/peer.h"
#include "core/link/link.h"
#include "core/part/records.h"

#include <stdbool.h>
#include <stdint.h>

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
    /* Servers with the same number compute the same bits; 0: not known. */
    uint32_t kernel_class;
    /* State memory, the source of the pool; not owned. NULL: the state does not
     * outlive the process. */
    struct ps_records *records;
};

struct ps_server;

struct ps_server *ps_server_new(const struct ps_server_options *opt,
                                ps_time now);
void ps_server_free(struct ps_server *s);
struct ps_machine ps_server_machine(struct ps_server *s);

/* Figures of the machine, for pings, reports and tests. */

/* True if registered with the scheduler; the service's readiness. */
bool ps_server_is_ready(const struct ps_server *s);
/* Number of partitions, open rounds and waiting pulls of all jobs; 0 when all
 * jobs have ended. */
uint64_t ps_server_residue(const struct ps_server *s);

struct ps_server_stats {
    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t stored_bytes;   /* Values and optimizer states. */
    uint64_t unmerged_bytes; /* Contributions received, not merged. */
    uint64_t resent;
    uint32_t waiting_requests; /* Waiting pulls and open rounds. */
    uint64_t refused_parts;
    uint64_t refused_frames; /* About slots that are not the sender's. */
};
void ps_server_stats(const struct ps_server *s, struct ps_server_stats *ret);
