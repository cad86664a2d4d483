/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the agent machine: structs and functions that its files share.
 * Only files of this folder include it.
 *
 * Layers, top to bottom; a file uses only those below it:
 *
 *     agent.c         entry points of the machine, timers
 *     uplink.c        scheduler: reports to it, its messages
 *     reply.c         servers: values, commits and refusals
 *     resend.c        messages sent to servers again
 *     session_msg.c   training processes: their messages, their end
 *     accept.c        acceptance of operations
 *     job.c           jobs: from job_state to the end
 *     key.c           keys: declaration, results, end
 *
 *     rows.c          kind.h: rows keys (row-sparse)
 *     async.c         kind.h: keys of async and ssp jobs, without rounds
 *     sync.c          kind.h: dense keys with rounds
 *     round.c         rounds over the ranks of this node
 *     reattach.c      workers that lost an earlier agent
 *     pull.c          pull and init
 *     advance.c       new versions: end of rounds and inits
 *     launch.c        partitions of a complete round or init
 *     placement.c     owners of partitions, takeover
 *
 *     dense.c         sums of dense partitions
 *     send.c          partitions from the queue to the frame
 *     conflict.c      rounds aborted because of conflicting requests
 *     fail.c          failure of a key's operations
 *     encode.c        encoded gradients and their residuals
 *     residual_log.c  residuals in memory that outlives the agent
 *     opt_state.c     transfers of optimizer state
 *     send_queue.c    send queues per server: priority, credit
 *     server.c        links to servers: map, dialling, pings
 *     batch.c         frames with one partition or many small ones
 *
 *     diagnose.c      stall queries: the reason why an operation waits
 *     request.c       requests that the scheduler answers
 *     barrier.c       barriers
 *     departed.c      workers that are gone
 *     session.c       training processes: hello, memory, errors
 *     budget.c        accounts of sessions, jobs and users
 *     inspect.c       figures for reports and checkers
 *     prefetch.c      cache prefetch ahead of a batch of operations
 *     contribution.c  contributions of the local ranks to a round
 *     part.c          partitions of keys: states, sizes, look-up
 *     op.c            operations, from their acceptance to their end
 *     row_set.c       row numbers that an operation names */
#pragma once

#include "core/agent/agent.h"
#include "core/agent/jobs.h"
#include "core/agent/keys.h"
#include "core/agent/operations.h"
#include "core/agent/residuals.h"
#include "core/agent/rounds.h"
#include "core/agent/servers.h"
#include "core/agent/sessions.h"
#include "core/base/ledger.h"
#include "core/link/link.h"
#include "core/link/uplink.h"

/* Context of one call of step(). */
struct ps_agent_step {
    struct ps_agent *a;
    ps_time now;
    struct ps_effects *fx;
};

struct ps_agent {
    struct ps_agent_options opt;
    struct ps_rng rng;
    ps_time now;
    struct ps_uplink uplink;
    /* Port on which this agent only listens, for liveness probes; "": none. */
    char liveness_address[PS_ADDRESS_MAX + 1];
    uint32_t map_epoch;
    bool draining;
    struct ps_map *servers; /* By node. */
    struct ps_list sessions;
    struct ps_map *sessions_by_conn; /* struct ps_agent_session */
    struct ps_map *servers_by_conn;  /* Until the connection is closed. */
    struct ps_map *jobs;             /* By generation. */
    /* Generations in a ring; ended_jobs_next modulo its size is the oldest. */
    uint64_t ended_jobs[PS_AGENT_ENDED_JOBS];
    uint32_t ended_jobs_next;
    struct ps_map *computations;  /* By token. */
    struct ps_map *stall_queries; /* By request. */
    struct ps_map *users;         /* By uid. */
    struct ps_account account;
    uint64_t last_worker;
    uint64_t last_token;
    uint64_t last_request;
    struct ps_agent_draining_pool *draining_pools;
    uint32_t draining_pool_count;
    ps_time next_reap_at; /* PS_TIME_NEVER: no pool has memory to free. */
    /* Regions (struct ps_buf) of ended sessions; a few leave at a time. */
    struct ps_map *unmapping_regions;
    uint64_t last_unmapping;
    ps_time next_unmap_at; /* PS_TIME_NEVER: there are none. */
    struct ps_agent_departed_worker *departed_workers;
    uint32_t departed_worker_count;
    uint32_t deferred_session_count; /* Sessions whose job_open waits. */
    uint32_t op_count;               /* Operations of all sessions. */
    uint32_t servers_met;            /* Structs made for servers so far. */
    struct ps_agent_op **spare_ops;  /* A stack. */
    uint32_t spare_op_count;
    uint32_t spare_op_capacity;
    uint64_t residual_bytes; /* Bytes used of the segments of all jobs. */
    bool must_flush;         /* Batches or the arena wait for the tick. */
    /* Small sums one behind the other until the tick; NULL: none. */
    struct ps_buf *batch_arena;
    uint64_t batch_arena_used;
    ps_time scratch_retry_at; /* PS_TIME_NEVER: no sum lacks memory. */
    ps_time resend_at;        /* PS_TIME_NEVER: nothing was refused. */
    ps_time scratch_trim_at;  /* PS_TIME_NEVER: no trim is due. */
    struct ps_agent_stats stats;
};

static inline struct ps_agent_job *ps_agent_job_find(const struct ps_agent *a,
                                                     uint64_t gen)
{
    return ps_map_get(a->jobs, gen);
}

/* Hello of this agent, on connections to the scheduler and to servers. */
static inline struct ps_msg_hello ps_agent_hello(const struct ps_agent *a)
{
    return (struct ps_msg_hello){.role = PS_ROLE_AGENT,
                                 .name = a->opt.name,
                                 .cluster = a->opt.cluster,
                                 .node = a->uplink.node,
                                 .incarnation = a->uplink.incarnation,
                                 .address = a->liveness_address};
}

/* Sends a message to the scheduler on the link, which keeps it until it is
 * acknowledged. Dropped before registration, which resends all state. */
static inline void ps_agent_uplink_send_msg(struct ps_agent_step *st,
                                            const struct ps_msg *m)
{
    ps_uplink_send_msg(&st->a->uplink, m, st->now, st->fx);
}

/* uplink.c */
static inline struct ps_uplink_call
ps_agent_uplink_call(struct ps_agent_step *st)
{
    return (struct ps_uplink_call){.context = st, .now = st->now, .fx = st->fx};
}
void ps_agent_uplink_init(struct ps_agent *a, ps_time now);
/* `liveness_address` NULL: none. */
void ps_agent_uplink_on_open(struct ps_agent_step *st, ps_conn_id conn,
                             const char *liveness_address);
void ps_agent_uplink_on_msg(struct ps_agent_step *st, ps_conn_id conn,
                            const struct ps_msg *m,
                            const struct ps_slice *payload);
