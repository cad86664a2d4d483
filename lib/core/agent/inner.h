/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the agent machine: structs and functions that its files share.
 * Only files of this folder include it. Structs are in headers of the things
 * that they describe: keys.h, operations.h, jobs.h, sessions.h, servers.h,
 * residuals.h, supervisors.h.
 *
 * Layers, top to bottom; a file uses only those below it, and declares in a
 * header of its own what those above it may use:
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
 *     request.c       requests that the scheduler answers
 *     placement.c     owners of partitions, takeover
 *
 *     dense.c         sums of dense partitions
 *     send.c          partitions from the queue to the frame
 *     conflict.c      rounds aborted because of conflicting requests
 *     advance.c       new versions: end of rounds and inits
 *     launch.c        partitions of a complete round or init
 *     deliver.c       copies of values into memory of GPUs
 *     fail.c          failure of a key's operations
 *     encode.c        encoded gradients and their residuals
 *     residual_log.c  residuals in memory that outlives the agent
 *     opt_state.c     transfers of optimizer state
 *     send_queue.c    send queues per server: priority, credit
 *     server.c        links to servers: map, dialling, pings
 *     batch.c         frames with one partition or many small ones
 *
 *     diagnose.c      stall queries: the reason why an operation waits
 *     waits.c         standstills: what processes wait for, for the scheduler
 *     report.c        training scalars, sent to the scheduler in batches
 *     span.c          spans of the workers' programs, for the trace
 *     barrier.c       barriers
 *     departed.c      workers that are gone
 *     session.c       training processes: hello, memory, errors
 *     budget.c        accounts of sessions, jobs and users
 *     supervisor.c    supervisors of pslaunch that this node starts
 *     inspect.c       figures for reports and checkers
 *     prefetch.c      cache prefetch ahead of a batch of operations
 *     contribution.c  contributions of the local ranks to a round
 *     part.c          partitions of keys: states, sizes, look-up
 *     op.c            operations, from their acceptance to their end
 *     row_set.c       row numbers that an operation names */
#pragma once

#include "core/agent/jobs.h"
#include "core/agent/keys.h"
#include "core/agent/operations.h"
#include "core/agent/options.h"
#include "core/agent/residuals.h"
#include "core/agent/servers.h"
#include "core/agent/sessions.h"
#include "core/agent/supervisors.h"
#include "core/base/ledger.h"
#include "core/base/peer.h"
#include "core/link/link.h"
#include "core/link/uplink.h"

/* Context of one call of step(). */
struct ps_agent_step {
    struct ps_agent *a;
    ps_time now;
    struct ps_effects *fx;
};

struct ps_agent_server_table {
    struct ps_map *by_node;
    struct ps_map *by_conn; /* Until the connection is closed. */
    uint32_t met;           /* Structs made for servers so far. */
    uint32_t map_epoch;     /* Epoch of the newest map. */
};

/* Last assigned numbers. */
struct ps_agent_last_numbers {
    uint64_t worker;
    uint64_t token; /* Token of a computation. */
    uint64_t request;
    uint64_t supervisor;
};

/* Generations of ended jobs in a ring. */
struct ps_agent_ended_jobs {
    uint64_t gens[PS_AGENT_ENDED_JOBS];
    uint32_t next; /* Modulo the size of the ring: index of the oldest. */
};

/* Result memory of ended jobs. */
struct ps_agent_draining_pools {
    struct ps_agent_draining_pool *pools;
    uint32_t count;
    ps_time next_reap_at; /* PS_TIME_NEVER: no pool has memory to free. */
};

/* Regions of ended sessions; a few are unmapped at a time. */
struct ps_agent_unmapping {
    struct ps_map *regions; /* struct ps_buf */
    uint64_t last;          /* Number of the last one. */
    ps_time next_at;        /* PS_TIME_NEVER: there are none. */
};

struct ps_agent_departed_workers {
    struct ps_agent_departed_worker *workers;
    uint32_t count;
};

/* Ended operations kept for reuse, a stack. */
struct ps_agent_spare_ops {
    uint32_t in_use; /* Operations of all sessions. */
    struct ps_agent_op **ops;
    uint32_t count;
    uint32_t capacity;
};

/* Small sums one behind the other until the tick. */
struct ps_agent_sum_arena {
    struct ps_buf *buf; /* NULL: none. */
    uint64_t used;
};

/* When something is due; PS_TIME_NEVER: */
struct ps_agent_due {
    ps_time scratch_retry_at; /* No sum lacks memory. */
    ps_time resend_at;        /* Nothing was refused. */
    ps_time scratch_trim_at;  /* No trim is due. */
    ps_time report_at;        /* No scalar waits for its report. */
};

/* See waits.c. */
struct ps_agent_waits {
    struct ps_list collects; /* struct ps_agent_wait_collect */
    uint32_t collect_count;
    ps_time check_at; /* When the first job is looked at; or never. */
};

struct ps_agent {
    struct ps_agent_options opt;
    struct ps_rng rng;
    ps_time now;
    struct ps_uplink uplink;
    /* Port on which this agent only listens, for liveness probes; "": none. */
    char liveness_address[PS_ADDRESS_MAX + 1];
    bool draining;
    bool scheduler_is_proven; /* By its certificate, on the present link. */
    struct ps_certificate_end certificate;
    struct ps_agent_server_table servers;
    struct ps_list sessions;
    struct ps_map *sessions_by_conn; /* struct ps_agent_session */
    struct ps_map *jobs;             /* By generation. */
    struct ps_agent_ended_jobs ended_jobs;
    struct ps_map *computations;  /* By token. */
    struct ps_map *stall_queries; /* By request. */
    struct ps_map *users;         /* By uid. */
    struct ps_map *supervisors;   /* struct ps_agent_supervisor */
    struct ps_agent_waits waits;
    struct ps_account account;
    struct ps_agent_last_numbers last;
    struct ps_agent_draining_pools draining_pools;
    struct ps_agent_unmapping unmapping;
    struct ps_agent_departed_workers departed;
    uint32_t deferred_session_count; /* Sessions whose job_open waits. */
    struct ps_agent_spare_ops spare_ops;
    uint64_t residual_bytes; /* Bytes used of the segments of all jobs. */
    bool must_flush;         /* Batches or the arena wait for the tick. */
    struct ps_agent_sum_arena sum_arena;
    struct ps_agent_due due;
    struct ps_agent_stats stats;
};

static inline struct ps_agent_job *ps_agent_job_find(const struct ps_agent *a,
                                                     uint64_t gen)
{
    return ps_map_get(a->jobs, gen);
}

/* An operation of the job begins or ends. */
static inline void ps_agent_note_move(struct ps_agent_step *st,
                                      struct ps_agent_job *j)
{
    j->standstill.moved_at = st->now;
    if (j->standstill.check_at == PS_TIME_NEVER) {
        j->standstill.check_at = ps_time_add(st->now, PS_AGENT_STILL);
        st->a->waits.check_at = ps_time_min(st->a->waits.check_at,
                                            j->standstill.check_at);
    }
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

static inline struct ps_uplink_call
ps_agent_uplink_call(struct ps_agent_step *st)
{
    return (struct ps_uplink_call){.context = st, .now = st->now, .fx = st->fx};
}
