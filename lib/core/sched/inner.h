/* SPDX-License-Identifier: Apache-2.0 */
/* State of the scheduler machine, for files of this folder only.
 *
 * Layers, top to bottom; a file uses only those below it, and declares in a
 * header of its own what those above it may use:
 *
 *     sched.c            connections, messages and time, for the files below
 *     member/membership.c hello; members that fall silent, go and return
 *     trace.c            traces of jobs, for tools
 *     query.c            queries of operators' tools
 *     token_query.c      requests of tools about tokens
 *     log_level.c        log levels of members, which tools change
 *     place/rebalance.c  plans that balance or drain servers
 *     worker.c           workers that join and leave jobs, barriers
 *     loss.c             lost workers, agents and servers; fresh links
 *     lifecycle.c        phases of a job
 *     stall.c            stall queries
 *     diverged.c         ranks that wait for each other
 *     profile.c          recordings of what servers do
 *     report.c           training scalars that ranks report
 *     optimizer.c        declarations of optimizers and compression, changes
 *     place/migration.c  migrations of partitions, and the reply to who asked
 *     key.c              keys and their placement
 *     disagreement.c     declarations of ranks that contradict each other
 *     norm.c             norm allreduce over the partitions of a key
 *     admission.c        memory of servers reserved for jobs
 *     job_server.c       servers that jobs may get and have
 *     job_state.c        jobs by name, their state as sent to members
 *     rights.c           rights of tools
 *     token.c            tokens that were issued, and whether they count
 *     member/lease.c     silent members: witnesses, leases, probes
 *     map.c              cluster map and its epochs
 *     events.c           the last events of members and jobs, for operators
 *     conn.c             connections, messages on them
 *     account.c          costs of jobs and users
 *
 * The files below know nothing of struct ps_sched:
 *
 *     event_ring.h       the last events
 *     history.c          jobs as operators see them, jobs that ended
 *     job.c              a job: workers, slots, servers, keys
 *     barrier.c          barriers of the ranks of a job
 *     scalar.c           training scalars of a job
 *     place/place.c      where partitions lie, what moves, memory they take
 *     member/member.c    members by role and name */
#pragma once

#include "base/bits.h"
#include "base/list.h"
#include "core/base/peer.h"
#include "core/sched/event_ring.h"
#include "core/sched/history.h"
#include "core/sched/job.h"
#include "core/sched/member/member.h"
#include "core/sched/options.h"
#include "core/sched/token.h"

/* Jobs of earlier schedulers that are remembered while their workers
 * reconnect. */
#define PS_SCHED_EARLIER_JOBS 64u

/* Bytes of a text about the calls in which a process is. */
#define PS_SCHED_DOES_MAX     160u

/* A job that an earlier scheduler had started. */
struct ps_sched_earlier_job {
    uint32_t uid;
    char name[PS_NAME_MAX + 1]; /* "": free entry. */
};

struct ps_sched {
    struct ps_sched_options opt;
    struct ps_rng rng;
    ps_time started_at;
    ps_time deadline;     /* Next tick; see update_deadline(). */
    ps_time deadline_at;  /* When it was last computed for all members. */
    ps_time last_recv_at; /* Last message of any member. */
    bool is_isolated;     /* No member is heard, and this was logged. */
    bool draining;        /* Accepts no new job. */
    bool ending;
    struct ps_certificate_end certificate;
    struct ps_members members;
    struct ps_map *conns; /* By id. */
    struct ps_map *jobs;  /* By generation; jobs that have not ended. */
    struct ps_map *users; /* struct ps_sched_user by uid; users with jobs. */
    struct ps_account account;
    uint64_t last_gen; /* Generation of the newest job. */
    uint32_t epoch;
    uint64_t refused_frames; /* Of members, about what is not their own. */
    struct ps_list watches;  /* See diverged.c. */
    struct ps_list stalls;
    uint32_t stall_count;
    uint64_t last_collect_id;
    uint64_t last_migration_id; /* Number of the newest migration. */
    struct ps_sched_history history;
    struct ps_sched_events events;
    struct ps_sched_tokens tokens;
    struct ps_sched_earlier_job earlier_jobs[PS_SCHED_EARLIER_JOBS];
    uint32_t earlier_jobs_next;
};

/* Context of one call of step(). */
struct ps_sched_step {
    struct ps_sched *s;
    ps_time now;
    struct ps_effects *fx;
};

/* Returns "" for NULL: strings of messages made in this process may be NULL. */
static inline const char *ps_sched_text_or_empty(const char *s)
{
    return s != NULL ? s : "";
}
