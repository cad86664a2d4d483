/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine: local rounds over the ranks of this node, what is sent to
 * which server and when, results in memory that the workers map.
 * docs/protocol.md has the sequences. */
#pragma once

#include "base/pool.h"
#include "core/base/ledger.h"
#include "core/link/link.h"
#include "core/base/machine.h"

struct ps_agent_options {
    char name[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    char sched_address[PS_ADDRESS_MAX + 1];
    char host[PS_NAME_MAX + 1]; /* Shown to humans. */
    uint64_t instance;
    uint64_t seed;
    ps_time dial_backoff_min;
    ps_time dial_backoff_max;
    uint64_t unsent_max;     /* Bytes handed to a connection and not yet with
                             * the kernel, so that urgent partitions can
                             * overtake; 0: 2 MiB. */
    uint64_t initial_credit; /* Push bytes of a job that a server takes before
                             * it has said anything; 0: PS_CREDIT_INITIAL. */
    bool unbatched;          /* Small partitions do not travel together. */
    /* Small sums that read and write at most so many bytes are made at once
     * and not by a job: that would take longer than the sum. 0: none. */
    uint64_t inline_sum_max;
    uint32_t
        ring_layout; /* What l_welcome says of the driver's rings; 0: none. */
    struct ps_link_options link;
    struct ps_pool *scratch_pool; /* Scratch for local sums; not owned. */
    /* A new pool of memory that workers map; the tag of a buffer is its arena.
     * Each job has one of its own, which the agent frees, so that the workers
     * of a job never map what another job may see. */
    struct ps_pool *(*result_pool_new)(void *ctx);
    void *alloc_ctx;
    /* Zeroed memory that workers can keep open, to which the tag belongs; the
     * same context. NULL: what codes leave over dies with this process. */
    int (*residual_segment_new)(void *ctx, size_t size,
                                struct ps_buf **ret_buf);
    uint64_t residual_segment_size; /* Of a piece of it, at least; 0: 64 MiB. */
    uint64_t residual_log_max;      /* Of all of it; 0: no limit. */
    /* By kind: what each session, job and user and this agent may hold. */
    struct ps_account_limits limits[PS_ACCOUNT_KIND_COUNT];
};

struct ps_agent;

struct ps_agent *ps_agent_new(const struct ps_agent_options *opt, ps_time now);
void ps_agent_free(struct ps_agent *a);
struct ps_machine ps_agent_machine(struct ps_agent *a);

bool ps_agent_is_ready(const struct ps_agent *a); /* Known to the scheduler. */
uint64_t ps_agent_residue(const struct ps_agent *a);

struct ps_agent_stats {
    uint64_t rounds;   /* Partition rounds committed. */
    uint64_t bytes_in; /* Tensor bytes received. */
    uint64_t bytes_out;
    uint64_t bytes_summed; /* Bytes read by local sums. */
    uint64_t resent;
    uint32_t sessions;
    uint32_t pending_ops; /* Local operations not done. */
};
void ps_agent_stats(const struct ps_agent *a, struct ps_agent_stats *ret);

/* For checkers: newest version of a partition that this agent was told is
 * committed. False when unknown. */
bool ps_agent_peek(const struct ps_agent *a, uint64_t gen, uint32_t key,
                   uint32_t index, uint64_t *ret_committed);
