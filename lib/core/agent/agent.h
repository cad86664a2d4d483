/* SPDX-License-Identifier: Apache-2.0 */
/* Agent machine: collects the contributions of the local ranks, sends their
 * sums to the servers by priority and credit, and keeps results in memory that
 * the workers map. docs/protocol.md has the message sequences. */
#pragma once

#include "base/limits.h"
#include "base/pool.h"
#include "base/trace.h"
#include "core/base/ledger.h"
#include "core/base/machine.h"
#include "core/base/peer.h"
#include "core/link/link.h"

struct ps_agent;

struct ps_agent_options {
    struct ps_facts facts;
    char name[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    char sched_address[PS_ADDRESS_MAX + 1];
    char host[PS_NAME_MAX + 1]; /* Host name, for display only. */
    uint64_t instance;
    uint64_t seed;
    ps_time dial_backoff_min;
    ps_time dial_backoff_max;
    /* Most bytes handed to a connection that the kernel has not taken, so that
     * urgent partitions can overtake; 0: 2 MiB. */
    uint64_t unsent_max;
    /* Push bytes of a job that a server accepts before its first reply; 0:
     * PS_CREDIT_INITIAL. */
    uint64_t initial_credit;
    bool unbatched; /* Each small partition travels in a frame of its own. */
    /* Sums that read and write at most this many bytes are made within the
     * step, because a compute job takes longer than the sum. 0: none. */
    uint64_t inline_sum_max;
    /* Layout of the driver's rings, sent in l_welcome; 0: none. */
    uint32_t ring_layout;
    bool takes_devices; /* The driver maps memory of GPUs. */
    struct ps_link_options link;
    struct ps_trace *trace; /* Ring of what it does; not owned; NULL: none. */
    struct ps_pool *scratch_pool; /* Scratch for local sums; not owned. */
    /* Returns a new pool of memory that workers map; a buffer's tag is its
     * arena number. Each job has its own pool, which the agent frees, so that
     * its workers never map memory of another job. */
    struct ps_pool *(*result_pool_new)(void *ctx);
    void *alloc_ctx;
    /* Allocates zeroed memory that workers can keep open under the buffer's
     * tag; also gets alloc_ctx. NULL: residuals end with this process. */
    int (*residual_segment_new)(void *ctx, size_t size,
                                struct ps_buf **ret_buf);
    uint64_t residual_segment_size; /* Least bytes of a segment; 0: 64 MiB. */
    uint64_t residual_log_max;      /* Most bytes of records; 0: no limit. */
    /* By account kind: limits of each session, job and user, and of the
     * agent. */
    struct ps_account_limits limits[PS_ACCOUNT_KIND_COUNT];
};

struct ps_agent_stats {
    uint64_t rounds;   /* Partition rounds committed. */
    uint64_t bytes_in; /* Tensor bytes received. */
    uint64_t bytes_out;
    uint64_t bytes_summed; /* Bytes read by local sums. */
    uint64_t resent;
    /* Frames of servers about partitions that the sender never owned. */
    uint64_t refused_frames;
    uint32_t sessions;
    uint32_t pending_ops; /* Unfinished local operations. */
};

struct ps_agent *ps_agent_new(const struct ps_agent_options *opt, ps_time now);
void ps_agent_free(struct ps_agent *a);
struct ps_machine ps_agent_machine(struct ps_agent *a);

/* Returns true while the agent is registered and connected. */
bool ps_agent_is_ready(const struct ps_agent *a);
/* Returns the number of jobs, sessions, stall queries and draining pools. */
uint64_t ps_agent_residue(const struct ps_agent *a);
void ps_agent_stats(const struct ps_agent *a, struct ps_agent_stats *ret);
