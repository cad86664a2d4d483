/* SPDX-License-Identifier: Apache-2.0 */
/* Internal interface of the scheduler machine, for files of this folder only.
 *
 *     sched.c         events, time
 *     conn.c          connections, messages on them
 *     map.c           cluster map and its epochs
 *     membership.c    hello; members that fall silent, go and return
 *     lease.c         verdicts on silent members
 *     witness.c       silence of a member as others see it
 *     probe.c         liveness and reach probes
 *     worker.c        workers that join and leave jobs, barriers
 *     loss.c          lost workers, agents and servers, fresh links
 *     lifecycle.c     phases of a job
 *     job_server.c    servers that jobs may get and have
 *     job_state.c     state of a job as sent to its members
 *     history.c       jobs as operators see them, jobs that ended
 *     key.c           keys and their placement
 *     optimizer.c     declarations of optimizers and compression
 *     norm.c          norm allreduce over the partitions of a key
 *     rebalance.c     plans that balance or drain servers
 *     rebalance_reply.c  rows of a plan, for operators
 *     migration.c     migrations of partitions
 *     admission.c     memory of servers reserved for jobs
 *     account.c       costs of jobs and users
 *     stall.c         stall queries
 *     query.c         queries of operators' tools */
#pragma once

#include "base/bits.h"
#include "base/list.h"
#include "core/sched/history.h"
#include "core/sched/job.h"
#include "core/sched/jobs.h"
#include "core/sched/member.h"
#include "core/sched/options.h"

/* Jobs of earlier schedulers that are remembered while their workers
 * reconnect. */
#define PS_SCHED_EARLIER_JOBS 64u

/* One stall query: collects from the job's agents which ranks are missing. */
struct ps_sched_stall {
    struct ps_list_node node;
    uint64_t collect_id; /* Request number of the current collection. */
    uint64_t gen;
    uint32_t asker_node; /* Agent that asked, with asker_request. */
    uint64_t asker_request;
    ps_conn_id asker_conn; /* psctl connection that asked; 0: an agent did. */
    bool seeks_oldest;     /* First phase for psctl: find the longest wait. */
    uint32_t key;
    uint64_t round;
    ps_time deadline;
    struct ps_bits pending_slots; /* Slots that have not reported. */
    struct ps_bits missing_ranks; /* Ranks reported as missing. */
    char unheard[320]; /* Servers that an agent does not hear, as text. */
    /* Results of the first phase (seeks_oldest). */
    char oldest_key[PS_KEY_NAME_MAX + 1];
    uint64_t oldest_wait;
    uint32_t waiting_ops;
};

/* A job that an earlier scheduler had started. */
struct ps_sched_earlier_job {
    uint32_t uid;
    char name[PS_NAME_MAX + 1]; /* "": free entry. */
};

struct ps_sched {
    struct ps_sched_options opt;
    struct ps_rng rng;
    ps_time started_at;
    ps_time deadline;     /* Next tick, computed by the last step. */
    ps_time last_recv_at; /* Last message of any member. */
    bool is_isolated;     /* No member is heard, and this was logged. */
    bool draining;        /* Accepts no new job. */
    bool ending;
    struct ps_members members;
    struct ps_map *conns; /* By id. */
    struct ps_map *jobs;  /* By generation; jobs that have not ended. */
    struct ps_map *users; /* struct ps_sched_user by uid; users with jobs. */
    struct ps_account account;
    uint64_t last_gen; /* Generation of the newest job. */
    uint32_t epoch;
    struct ps_list stalls;
    uint32_t stall_count;
    uint64_t last_collect_id;
    uint64_t last_migration_id; /* Number of the newest migration. */
    struct ps_sched_history history;
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

/* ----- membership.c */
void ps_sched_on_hello(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_hello *m);
/* True: the unacknowledged messages of the member exceeded their limit, and its
 * link was dropped. */
bool ps_sched_member_is_backlogged(struct ps_sched_step *st,
                                   struct ps_member *m);
void ps_sched_member_on_closed(struct ps_sched_step *st, struct ps_member *m);
/* A message of the member has arrived. */
void ps_sched_member_on_message(struct ps_sched_step *st, struct ps_member *m);
void ps_sched_on_probed(struct ps_sched_step *st, uint64_t target, int rc);
void ps_sched_members_tick(struct ps_sched_step *st);
ps_time ps_sched_members_deadline(const struct ps_sched *s, ps_time now);
/* ----- lease.c */

/* Restarts the lease of the member. */
void ps_sched_lease_renew(struct ps_sched_step *st, struct ps_member *m);
/* Restarts the lease of a member that sent a message. True: it was SUSPECT and
 * is ACTIVE. */
bool ps_sched_lease_on_message(struct ps_sched_step *st, struct ps_member *m);
/* Extends all leases by `late`, the delay of this step behind its deadline.
 * False: that is too short to matter. */
bool ps_sched_lease_extend_all(struct ps_sched_step *st, ps_time late);

/* Lease terms that hold for all members at one time. */
struct ps_sched_lease {
    ps_time not_before; /* No member is GONE before this time. */
    ps_time timeout;    /* Silence before a member is GONE. */
};
/* Returns the terms of this time, and logs when no member is heard. */
struct ps_sched_lease ps_sched_lease_tick(struct ps_sched_step *st);
/* Makes a silent member SUSPECT. True: its lease has ended, and it is to be
 * GONE for the reason that is appended. */
bool ps_sched_lease_check(struct ps_sched_step *st,
                          const struct ps_sched_lease *l, struct ps_member *m,
                          struct ps_str *why);
ps_time ps_sched_lease_deadline(const struct ps_sched *s, ps_time now);

/* ----- probe.c */

/* The member has completed its handshake. */
void ps_sched_probe_hello(struct ps_sched_step *st, struct ps_member *m);
/* The member's connection is lost. */
void ps_sched_probe_lost(struct ps_sched_step *st, struct ps_member *m);
/* Records the result of a probe. Returns the member whose process has ended as
 * the result shows, which is to be GONE for the reason that is appended; NULL:
 * none. */
struct ps_member *ps_sched_probe_result(struct ps_sched_step *st,
                                        uint64_t target, int rc,
                                        struct ps_str *why);
void ps_sched_probe_tick(struct ps_sched_step *st, struct ps_member *m);

/* ----- witness.c */

/* Asks witnesses about a SUSPECT member when that is due. */
void ps_sched_witness_tick(struct ps_sched_step *st, struct ps_member *m);
ps_time ps_sched_witness_deadline(const struct ps_sched *s,
                                  const struct ps_member *m, ps_time now);
void ps_sched_on_ping_ack(struct ps_sched_step *st,
                          const struct ps_member *witness,
                          const struct ps_msg_ping_ack *ack);

/* ----- stall.c */
void ps_sched_on_stall_query(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_stall_query *m);
void ps_sched_on_stall_report(struct ps_sched_step *st, struct ps_member *agent,
                              const struct ps_msg_stall_report *m);
/* Sends psctl the stall rows of one job, then decrements open_stalls. */
void ps_sched_stall_query_job(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_sched_conn *ctl);
void ps_sched_stall_drop_job(struct ps_sched_step *st, struct ps_sched_job *j);
void ps_sched_stall_drop_ctl(struct ps_sched *s, ps_conn_id ctl);
void ps_sched_stalls_tick(struct ps_sched_step *st);
ps_time ps_sched_stalls_deadline(const struct ps_sched *s);

/* ----- query.c */
void ps_sched_on_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_query *m);
void ps_sched_on_job_set(struct ps_sched_step *st, struct ps_sched_conn *c,
                         const struct ps_msg_job_set *m);
void ps_sched_on_job_cancel(struct ps_sched_step *st, struct ps_sched_conn *c,
                            const struct ps_msg_job_cancel *m);
/* Sends further rows; called when the output of the connection has drained. */
void ps_sched_query_send_rows(struct ps_sched_step *st,
                              struct ps_sched_conn *c);

/* ----- rebalance.c */
/* Replies with the migrations that balance the job's servers, or that drain
 * server `off` ("": none). `makes`: also starts them. */
void ps_sched_rebalance_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                              struct ps_sched_job *j, const char *off,
                              bool makes);

/* ----- migration.c */
/* Makes an empty rebalance; ps_sched_migrations_start() begins it. */
void ps_sched_migrations_init(struct ps_sched_job *j, ps_conn_id ctl);
struct ps_sched_part_migration {
    uint32_t key;
    uint32_t index;
    uint32_t source_node; /* Node number. */
    uint32_t target_node;
};
PS_MUST_USE int
ps_sched_migrations_add(struct ps_sched *s, struct ps_sched_job *j,
                        const struct ps_sched_part_migration *m);
/* Starts queued migrations, up to PS_MIGRATIONS_MAX at once, to servers that
 * are ready for the job. */
void ps_sched_migrations_start(struct ps_sched_step *st,
                               struct ps_sched_job *j);
/* Drops all migrations; uncommitted ones count as failed. Servers discard
 * theirs with the job. */
void ps_sched_migrations_cancel(struct ps_sched_step *st,
                                struct ps_sched_job *j, const char *why);
void ps_sched_migrations_free(struct ps_sched_job *j);
void ps_sched_migrations_lose_server(struct ps_sched_step *st,
                                     const struct ps_member *server);
/* Repeats pending requests to a server on a fresh link. */
void ps_sched_migrations_resend(struct ps_sched_step *st,
                                const struct ps_member *server);
void ps_sched_on_part_chunk(struct ps_sched_step *st,
                            const struct ps_member *server,
                            const struct ps_msg_part_chunk *m,
                            const struct ps_slice *payload);
void ps_sched_on_part_ack(struct ps_sched_step *st,
                          const struct ps_member *server,
                          const struct ps_msg_part_ack *m);
