/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine: rounds of partitions over the slots of a job, versions,
 * pulls that wait for one, credit. docs/protocol.md has the sequences. */
#pragma once

#include "base/pool.h"
#include "core/link/link.h"
#include "core/base/machine.h"

struct ps_server_options {
    char name[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    char address[PS_ADDRESS_MAX + 1];       /* Where agents dial us. */
    char sched_address[PS_ADDRESS_MAX + 1]; /* Where we dial the scheduler. */
    uint64_t instance;
    uint64_t seed;
    uint64_t
        credit_window; /* Push bytes that an agent may have unmerged, for each
                          * job; 0: 32 MiB. */
    uint64_t initial_credit;  /* Of these, before the server has said anything:
                             * all agents and servers have the same; 0:
                             * PS_CREDIT_INITIAL. */
    bool unbatched;           /* Small partitions do not travel together. */
    ps_time dial_backoff_min; /* Back-off of dialling the scheduler. */
    ps_time dial_backoff_max;
    struct ps_link_options link;
    ps_time link_linger;
    struct ps_pool *pool; /* Tensor memory; not owned. Its budget is what the
                           * scheduler admits keys by. */
};

struct ps_server;

struct ps_server *ps_server_new(const struct ps_server_options *opt,
                                ps_time now);
void ps_server_free(struct ps_server *s);
struct ps_machine ps_server_machine(struct ps_server *s);

/* Registered with the scheduler? For readiness. */
bool ps_server_is_ready(const struct ps_server *s);
/* Partitions, rounds, parked pulls of all jobs: 0 when nothing is left. */
uint64_t ps_server_residue(const struct ps_server *s);

struct ps_server_stats {
    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t stored_bytes;   /* Values and optimizer state. */
    uint64_t unmerged_bytes; /* Contributions waiting. */
    uint64_t resent;
    uint32_t waiting_requests; /* Parked pulls and open rounds. */
    uint64_t refused_parts;
};
void ps_server_stats(const struct ps_server *s, struct ps_server_stats *ret);

/* For checkers: version of a partition, and its value (borrowed, NULL when it
 * has none). False when the server does not know the partition. */
bool ps_server_peek(const struct ps_server *s, uint64_t gen, uint32_t key,
                    uint32_t index, uint64_t *ret_version,
                    const struct ps_slice **ret_value);
/* For checkers: push bytes of the job received from a slot and not merged. */
uint64_t ps_server_unmerged_bytes(const struct ps_server *s, uint64_t gen,
                                  uint32_t slot);
/* For checkers: a round of the job is open that lacks the slot. */
bool ps_server_round_lacks_slot(const struct ps_server *s, uint64_t gen,
                                uint32_t slot);
