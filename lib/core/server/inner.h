/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the server machine; for the files of this folder only.
 *
 * Layers, top to bottom; a file uses only those below it:
 *
 *     server.c        the machine's three calls, timers
 *     uplink.c        the link to the scheduler: reports, messages
 *     agent_msg.c     messages of agents, memory for their payloads
 *     job_state.c     jobs from job_state to the end
 *     hello.c         hello of agents, held until the scheduler names them
 *     opt_state.c     optimizer state, saved and loaded
 *     restore.c       init, restore: values stored as received
 *     contribution.c  acceptance of contributions, whatever their kind
 *     reclaim.c       memory taken back from open rounds
 *     migration_end.c end of a migration, at both servers
 *     migration_in.c  chunks of a partition that migrates to this server
 *
 *     merge.c         merge of a complete round, publication of its version
 *     norm.c          steps that need norms of whole arrays
 *     optimizer.c     optimizer step of a merge
 *     conflict.c      conflicting contributions, retry numbers
 *     merge_run.c     runs of merges, rounds that are discarded
 *
 *     migration_out.c chunks of a partition that migrates away
 *     pull.c          pulls, now or when their version is made
 *     rows.c          rows keys: contributions, merge, pulls
 *     async.c         pushes of async and ssp jobs
 *     push.c          dense contributions
 *     migration.c     migrations and what they allow agents
 *
 *     grant.c         credit without a reply, slots that block their job
 *     reply.c         value, commit, refuse
 *     session.c       connections and sessions of agents
 *     memory.c        quotas, reserved rounds, refusals for memory
 *     credit.c        credit, pacing
 *     stats.c         figures of the machine, for pings and tests
 *     job.c           look-ups of jobs and slots
 *     store.c         partitions of a job: versions, values, open rounds */
#pragma once

#include "base/str.h"
#include "core/link/dialer.h"
#include "core/link/uplink.h"
#include "core/server/jobs.h"
#include "core/server/merges.h"
#include "core/server/migrations.h"
#include "core/server/replies.h"
#include "core/server/server.h"
#include "core/server/sessions.h"

struct ps_server {
    struct ps_server_options opt;
    struct ps_rng rng;
    struct ps_uplink uplink;
    uint32_t epoch;
    bool draining; /* About to end; takes no new job. */
    bool ending;   /* Shutting down; accepts no connection. */

    struct ps_account account;
    struct ps_account_limits account_limits; /* Limits of `account`. */
    struct ps_map *conns;                    /* Accepted connections, by id. */
    struct ps_list handshaking;
    struct ps_list unverified; /* Connections whose hello is held. */
    struct ps_map *sessions;   /* By agent node. */
    struct ps_heap session_timers;
    struct ps_list backlogged; /* Sessions to be closed. */

    struct ps_map *jobs; /* By generation. */
    uint64_t ended_jobs[PS_ENDED_JOBS_MAX];
    uint32_t ended_jobs_next;

    struct ps_map *merges; /* Computing, by token. */
    uint64_t last_token;
    ps_time now;              /* Time of the last event. */
    ps_time read_retry_at;    /* For payloads that wait; or PS_TIME_NEVER. */
    ps_time pool_trim_at;     /* PS_TIME_NEVER: nothing to trim. */
    ps_time last_shortage_at; /* An allocation failed; 0: never. */
    struct ps_list starved_merges;
    ps_time starved_retry_at;

    struct ps_list batching_slots;
    ps_time flush_at;                 /* PS_TIME_NEVER: no batch is open. */
    struct ps_list credit_check_jobs; /* At the end of the step. */

    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t refused_parts;
    uint64_t resent_closed; /* Frames sent again by freed links. */
};

/* Context of one call of step(). */
struct ps_server_step {
    struct ps_server *s;
    ps_time now;
    struct ps_effects *fx;
};

/* Sends to the scheduler on the numbered stream: now, or when the link is
 * resumed. A new session of the link drops the message; on_new_session() then
 * sends state again. */
static inline void ps_server_uplink_send_msg(struct ps_server_step *st,
                                             const struct ps_msg *msg)
{
    ps_uplink_send_msg(&st->s->uplink, msg, st->now, st->fx);
}

/* uplink.c */
static inline struct ps_uplink_call
ps_server_uplink_call(struct ps_server_step *st)
{
    return (struct ps_uplink_call){.context = st, .now = st->now, .fx = st->fx};
}
void ps_server_uplink_init(struct ps_server *s, ps_time now);
void ps_server_uplink_on_msg(struct ps_server_step *st, ps_conn_id conn,
                             const struct ps_msg *msg,
                             const struct ps_slice *payload);
int ps_server_uplink_payload(struct ps_server *s, const struct ps_msg *msg,
                             uint64_t len, struct ps_slice *ret_slice);

/* memory.c */
/* Allocates from the job's share of the pool. PS_E_NOMEM. */
static inline int ps_server_memory_alloc(struct ps_server_job *job,
                                         uint64_t len, struct ps_buf **ret_buf)
{
    return ps_pool_get_for(job->server->opt.pool, len, job->pool_share,
                           ret_buf);
}
/* Allocates a payload for a message of the slot. PS_E_AGAIN: the frame waits;
 * PS_E_NOMEM: it is discarded, see ps_server_memory_refusal(). */
int ps_server_memory_alloc_payload(struct ps_server *s,
                                   struct ps_server_slot *slot,
                                   const struct ps_msg *msg, uint64_t len,
                                   struct ps_buf **ret_buf);
/* Returns the job's reserved round; NULL: none is chosen, or it has no
 * contribution yet. */
const struct ps_open_round *
ps_server_memory_reserved_round(const struct ps_server_job *job);
/* True if the message contributes to the job's reserved round. If there is
 * none, the round of its first part is chosen. */
bool ps_server_memory_serves_next_round(struct ps_server_job *job,
                                        const struct ps_msg *msg);
/* Error for a payload of `len` bytes that was discarded: PS_E_AGAIN, or
 * PS_E_FULL with the reason in `why`. */
int ps_server_memory_refusal(struct ps_server_step *st,
                             const struct ps_server_slot *slot, uint64_t len,
                             struct ps_str *why);
/* True if no merge can free enough memory for `len` bytes. */
bool ps_server_memory_is_exhausted(const struct ps_server *s, uint64_t len);
void ps_server_memory_describe(const struct ps_server *s,
                               const struct ps_server_job *job, uint64_t len,
                               struct ps_str *why);
/* Records that a result found no memory. */
void ps_server_memory_note_shortage(struct ps_server *s);
/* True if a request found no memory within the last seconds. */
bool ps_server_memory_is_short(const struct ps_server *s);

/* reclaim.c */
/* A contribution's payload was discarded. If it is for the reserved round and
 * the slot is starved for long, voids other open rounds of the job. */
void ps_server_reclaim(struct ps_server_step *st, struct ps_server_slot *slot,
                       const struct ps_msg *msg, uint64_t len);
