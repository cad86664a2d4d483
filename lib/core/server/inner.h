/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the server machine; for the files of this folder only.
 *
 * Layers, top to bottom; a file uses only those below it, and declares in a
 * header of its own what those above it may use:
 *
 *     server.c        the machine's three calls, messages, figures
 *     admission.c     hello of agents, jobs from job_state to the end
 *     handover.c      begin and end of moves
 *     kept.c          records in state memory, what a former process has left
 *     backup.c        copies of other servers' partitions, their takeover
 *     copy.c          copies to the backup of this server's place, and in moves
 *     restore.c       init, restore, states saved and loaded
 *     push.c          acceptance of contributions, memory taken back from them
 *
 *     merge.c         merge of a complete round, its version, conflicts
 *     step.c          computations of a merge: sums, steps, norms
 *
 *     pull.c          pulls of values and rows, now or when they are made
 *     kind_rows.c     rows keys: contributions, merge
 *     kind_async.c    pushes of async and ssp jobs
 *     kind_dense.c    dense contributions, plain or encoded
 *     move.c          roles in moves, what they allow agents
 *
 *     reply.c         value, commit, refuse
 *     credit.c        credit, pacing, slots that block their job
 *     copies.c        changes that a target lacks, replies that wait for it
 *     peer.c          links to servers that get copies
 *     session.c       connections and sessions of agents, turns of their jobs
 *     memory.c        quotas, reserved rounds, refusals for memory
 *     job.c           look-ups of jobs and slots, recordings */
#pragma once

#include "core/link/dialer.h"
#include "core/server/job.h"
#include "core/server/kept.h"
#include "core/server/merge.h"
#include "core/server/peer.h"
#include "core/server/server.h"
#include "core/server/session.h"

/* Memory of all jobs. */
struct ps_server_memory {
    /* Next try of payloads that wait; or PS_TIME_NEVER. */
    ps_time read_retry_at;
    ps_time trim_at;          /* PS_TIME_NEVER: nothing to trim. */
    ps_time last_shortage_at; /* An allocation failed; 0: never. */
};

/* Replies of all jobs. */
struct ps_server_replies {
    struct ps_list batching_slots;
    ps_time flush_at; /* PS_TIME_NEVER: no batch is open. */
    uint64_t refused_parts;
};

struct ps_server {
    struct ps_server_options opt;
    struct ps_rng rng;
    struct ps_uplink uplink;
    ps_time uplink_at;       /* Its deadline, after the last step. */
    bool uplink_has_changed; /* In this step: `uplink_at` is not valid. */
    uint32_t epoch;
    bool draining; /* About to end; takes no new job. */
    bool ending;   /* Shutting down; accepts no connection. */

    struct ps_certificate_end certificate;
    struct ps_account account;
    struct ps_account_limits account_limits; /* Limits of `account`. */

    struct ps_server_sessions sessions;
    struct ps_server_peers peers;
    ps_time backup_flush_at; /* Confirmations leave; or PS_TIME_NEVER. */
    struct ps_server_jobs jobs;
    struct ps_server_merges merges;
    struct ps_server_memory memory;
    struct ps_server_kept kept;
    struct ps_server_replies replies;

    ps_time now; /* Time of the last event. */
    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
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
    st->s->uplink_has_changed = true;
    ps_uplink_send_msg(&st->s->uplink, msg, st->now, st->fx);
}
