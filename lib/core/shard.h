/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine: rounds of partitions over the slots of a job, versions,
 * pulls that wait for one, credit. docs/protocol.md has the sequences. */
#pragma once

#include "base/pool.h"
#include "core/link.h"
#include "core/machine.h"

struct ps_shard_options {
    char name[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    char address[PS_ADDRESS_MAX + 1]; /* Where agents dial us. */
    char sched[PS_ADDRESS_MAX + 1];   /* Where we dial the scheduler. */
    uint64_t instance;
    uint64_t seed;
    uint64_t window; /* Push bytes that an agent may have unmerged, for each
                          * job; 0: 32 MiB. */
    uint64_t credit_first; /* Of these, before the server has said anything:
                             * all agents and servers have the same; 0:
                             * PS_CREDIT_FIRST. */
    bool alone;            /* Small partitions do not travel together. */
    ps_time dial_first;    /* Back-off of dialling the scheduler. */
    ps_time dial_max;
    struct ps_link_options link;
    ps_time link_linger;
    struct ps_pool *pool; /* Tensor memory; not owned. Its budget is what the
                           * scheduler admits keys by. */
};

struct ps_shard;

struct ps_shard *ps_shard_new(const struct ps_shard_options *opt, ps_time now);
void ps_shard_free(struct ps_shard *s);
struct ps_machine ps_shard_machine(struct ps_shard *s);

/* Registered with the scheduler? For readiness. */
bool ps_shard_ready(const struct ps_shard *s);
/* Partitions, rounds, parked pulls of all jobs: 0 when nothing is left. */
uint64_t ps_shard_residue(const struct ps_shard *s);

struct ps_shard_stats {
    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t stored;   /* Values and optimizer state. */
    uint64_t unmerged; /* Contributions waiting. */
    uint64_t resent;
    uint32_t waiting; /* Parked pulls and open rounds. */
    uint64_t refused;
};
void ps_shard_stats(const struct ps_shard *s, struct ps_shard_stats *ret);

/* For checkers: version of a partition, and its value (borrowed, NULL when it
 * has none). False when the server does not know the partition. */
bool ps_shard_peek(const struct ps_shard *s, uint64_t gen, uint32_t key,
                   uint32_t index, uint64_t *ret_version,
                   const struct ps_slice **ret_value);
/* For checkers: push bytes of the job received from a slot and not merged. */
uint64_t ps_shard_unmerged(const struct ps_shard *s, uint64_t gen,
                           uint32_t slot);
/* For checkers: a round of the job is open that lacks the slot. */
bool ps_shard_lacks(const struct ps_shard *s, uint64_t gen, uint32_t slot);
