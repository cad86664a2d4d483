/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the scheduler machine; for the files of this folder alone.
 *
 *     sched.c         events, time
 *     membership.c    hello, the cluster map
 *     lease.c         members that are silent
 *     witness.c       members that others hear
 *     probe.c         members that can be reached, or refuse
 *     worker.c        workers that come and go
 *     lifecycle.c     phases of a job, losses
 *     job_state.c     the state of a job for its members
 *     key.c           keys and their placement
 *     optimizer.c     declarations of optimizers and compression
 *     norm.c          sums over the partitions of a key
 *     rebalance.c     moves of partitions that make servers even
 *     migration.c     moves of partitions under way
 *     admission.c     memory of servers that jobs may use
 *     account.c       costs of members, users and tools
 *     stall.c         operations that wait
 *     query.c         questions of tools */
#pragma once

#include "base/bits.h"
#include "base/list.h"
#include "core/sched/job.h"
#include "core/sched/member.h"
#include "core/sched/sched.h"

/* Jobs of earlier schedulers that are remembered while their workers come. */
#define PS_SCHED_EARLIER_JOBS 64u
/* Finished jobs that are still shown. */
#define PS_SCHED_HISTORY_MAX  16u

enum ps_sched_conn_kind {
    PS_SCHED_CONN_HANDSHAKE, /* Has not said hello. */
    PS_SCHED_CONN_MEMBER,    /* Carries a member's link. */
    PS_SCHED_CONN_CTL,
    PS_SCHED_CONN_CLOSING, /* Hung up; what still comes is ignored. */
};

struct ps_sched_conn {
    ps_conn_id id;
    enum ps_sched_conn_kind kind;
    struct ps_member *member; /* MEMBER */
    ps_time opened_at;
    char peer_text[64];
    bool is_local; /* By the Unix socket: a tool, whose user is known: */
    uint32_t uid;  /* this one. */
    /* CTL: the query under way. */
    uint32_t open_stalls; /* Still to be answered. */
    bool lists_keys;      /* Rows of keys still to be sent: */
    uint64_t list_gen;    /* of this job, */
    uint32_t list_next;   /* from this one on, */
    bool lists_all_jobs;  /* and of all jobs behind it. */
    struct ps_sched_rebalance_reply
        *rebalance_reply; /* Own; NULL: no rows of moves to send. */
};

/* Answers gathered from agents: what is missing? */
struct ps_sched_stall {
    struct ps_list_node node;
    uint64_t collect_id; /* Our request number to the agents. */
    uint64_t gen;
    uint32_t asker_node; /* Who asks, with its request number... */
    uint64_t asker_request;
    ps_conn_id asker_conn; /* ...or this connection. */
    bool seeks_oldest;     /* First the oldest wait is looked for. */
    uint32_t key;
    uint64_t round;
    ps_time deadline;
    struct ps_bits pending_slots; /* Slots that have not reported. */
    struct ps_bits missing_ranks; /* Ranks. */
    char unheard[320]; /* Servers that agents do not hear, in words. */
    /* Of reports to `any`: */
    char oldest_key[PS_KEY_NAME_MAX + 1];
    uint64_t oldest_wait;
    uint32_t waiting_ops;
};

struct ps_sched_ended_job {
    struct ps_msg_job_row row; /* Strings point into the arrays below. */
    ps_time created_at;
    ps_time ended_at;
    char name[PS_NAME_MAX + 1];
    char optimizer[33];
    char compression[PS_COMPRESSION_TEXT_MAX];
    char reason[PS_TEXT_MAX + 1];
};

/* A job that a scheduler before this one had begun. */
struct ps_sched_earlier_job {
    uint32_t uid;
    char name[PS_NAME_MAX + 1]; /* "": none. */
};

struct ps_sched {
    struct ps_sched_options opt;
    struct ps_rng rng;
    ps_time started_at;
    ps_time deadline;     /* As told after the last step. */
    ps_time last_recv_at; /* Any member, last. */
    bool is_isolated;     /* None is heard; the log has been told. */
    bool draining;        /* Takes no new job. */
    bool ending;
    struct ps_members members;
    struct ps_map *conns; /* By id. */
    struct ps_map *jobs;  /* By generation, not ended. */
    struct ps_map *users; /* struct ps_sched_user by uid: those with jobs. */
    struct ps_account account;
    uint64_t last_gen; /* Last one given. */
    uint32_t epoch;
    struct ps_list stalls;
    uint32_t stall_count;
    uint64_t last_collect_id;
    uint64_t last_migration_id; /* Last number given. */
    struct ps_sched_ended_job history[PS_SCHED_HISTORY_MAX];
    uint64_t ended_job_count; /* All that ever ended. */
    struct ps_sched_earlier_job earlier_jobs[PS_SCHED_EARLIER_JOBS];
    uint32_t earlier_jobs_next;
};

/* One call of step. */
struct ps_sched_step {
    struct ps_sched *s;
    ps_time now;
    struct ps_effects *fx;
};

/* Strings of messages made in this process may be NULL. */
static inline const char *ps_sched_text_or_empty(const char *s)
{
    return s != NULL ? s : "";
}

/* ----- sched.c */
void ps_sched_close_conn(struct ps_sched_step *st, struct ps_sched_conn *c);
/* Only printable ASCII, not empty, not too long. */
bool ps_sched_name_is_valid(const char *name);

/* ----- membership.c */
void ps_sched_on_hello(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_hello *m);
/* True: so much waits for the member's acknowledgement that it is cut off. */
bool ps_sched_member_is_backlogged(struct ps_sched_step *st,
                                   struct ps_member *m);
void ps_sched_member_on_closed(struct ps_sched_step *st, struct ps_member *m);
/* It takes part no more; its jobs are told. */
void ps_sched_member_set_gone(struct ps_sched_step *st, struct ps_member *m,
                              const char *why);
void ps_sched_members_tick(struct ps_sched_step *st);
/* Placements that are told from now on are newer. */
void ps_sched_begin_epoch(struct ps_sched_step *st);
ps_time ps_sched_members_deadline(const struct ps_sched *s, ps_time now);
/* In sequence on the member's link; dropped when it has none: what matters is
 * offered again when it comes. NULL is fine. */
void ps_sched_send_msg(struct ps_sched_step *st, struct ps_member *m,
                       const struct ps_msg *msg);
/* The same for a parcel; takes over the reference. */
void ps_sched_send(struct ps_sched_step *st, struct ps_member *m,
                   struct ps_packet *parcel);

/* ----- lease.c */

/* The lease begins again. */
void ps_sched_lease_renew(struct ps_sched_step *st, struct ps_member *m);
/* The member has spoken: the same, and it is ACTIVE. */
void ps_sched_lease_on_message(struct ps_sched_step *st, struct ps_member *m);
/* This process has run so much later than it was to. */
void ps_sched_lease_extend_all(struct ps_sched_step *st, ps_time late);
void ps_sched_lease_tick(struct ps_sched_step *st);
ps_time ps_sched_lease_deadline(const struct ps_sched *s, ps_time now);

/* ----- probe.c */

/* It has said hello. */
void ps_sched_probe_hello(struct ps_sched_step *st, struct ps_member *m);
/* Its connection is lost. */
void ps_sched_probe_lost(struct ps_sched_step *st, struct ps_member *m);
void ps_sched_on_probed(struct ps_sched_step *st, uint64_t target, int rc);
void ps_sched_probe_tick(struct ps_sched_step *st, struct ps_member *m);

/* ----- witness.c */

/* Asks what others have heard of a member that is SUSPECT, when it is time. */
void ps_sched_witness_tick(struct ps_sched_step *st, struct ps_member *m);
ps_time ps_sched_witness_deadline(const struct ps_sched *s,
                                  const struct ps_member *m, ps_time now);
void ps_sched_on_ping_ack(struct ps_sched_step *st,
                          const struct ps_member *witness,
                          const struct ps_msg_ping_ack *ack);

/* ----- worker.c */
void ps_sched_on_job_open(struct ps_sched_step *st, struct ps_member *agent,
                          const struct ps_msg_job_open *m);
void ps_sched_on_worker_gone(struct ps_sched_step *st, struct ps_member *agent,
                             uint64_t seq, const struct ps_msg_worker_gone *m);
void ps_sched_on_job_ready(struct ps_sched_step *st, struct ps_member *server,
                           const struct ps_msg_job_ready *m);
void ps_sched_on_value_lost(struct ps_sched_step *st, struct ps_member *server,
                            const struct ps_msg_value_lost *m);
void ps_sched_on_barrier_enter(struct ps_sched_step *st,
                               struct ps_member *agent,
                               const struct ps_msg_barrier_enter *m);
/* More barriers are open: all agents of the job hear of it. */
void ps_sched_barrier_notify(struct ps_sched_step *st,
                             struct ps_sched_find_job *j);
/* An agent on a fresh link: it will name its workers again. */
void ps_sched_workers_unconfirm(struct ps_sched_step *st,
                                struct ps_member *agent);
void ps_sched_workers_drop_missing(struct ps_sched_step *st,
                                   struct ps_member *agent);

/* ----- job_state.c */
/* NULL: not there. By name: one that is open for work. */
struct ps_sched_find_job *ps_sched_find_job(const struct ps_sched *s,
                                            uint64_t gen);
struct ps_sched_find_job *ps_sched_find_open_job(const struct ps_sched *s,
                                                 const char *name);
/* Why a job of this generation is no more; code and text. `name` is the job's
 * as a peer says it; NULL: the peer has not said it. */
int ps_sched_job_end_reason(const struct ps_sched *s, uint64_t gen,
                            const char *name, struct ps_str *ret);
/* May the agent ask anything of `j`, which is the job of `gen` or NULL? 0, or
 * the code with the reason. */
int ps_sched_job_check_agent(const struct ps_sched *s,
                             const struct ps_sched_find_job *j, uint64_t gen,
                             const struct ps_member *agent, struct ps_str *why);
/* A new version of the job's state to all. */
void ps_sched_job_publish(struct ps_sched_step *st,
                          struct ps_sched_find_job *j);
/* The same before long, together with what else changes. */
void ps_sched_job_publish_later(struct ps_sched_step *st,
                                struct ps_sched_find_job *j);
void ps_sched_job_send_state(struct ps_sched_step *st,
                             struct ps_sched_find_job *j, struct ps_member *m);
/* All of its jobs, on a fresh link. */
void ps_sched_jobs_send_state(struct ps_sched_step *st, struct ps_member *m);
/* To somebody who holds a job that is no more or not his. */
void ps_sched_job_send_ended(struct ps_sched_step *st, struct ps_member *m,
                             uint64_t gen, uint32_t version);

/* ----- lifecycle.c */
void ps_sched_job_try_start(struct ps_sched_step *st,
                            struct ps_sched_find_job *j);
void ps_sched_jobs_try_start(struct ps_sched_step *st);
/* Servers that a new job may have; *ret_draining: how many more there would be
 * if they were not about to end, *ret_name: one of these. */
uint32_t ps_sched_count_servers(const struct ps_sched *s,
                                uint32_t *ret_draining, const char **ret_name);
void ps_sched_job_try_run(struct ps_sched_step *st,
                          struct ps_sched_find_job *j);
/* Servers that the job could have beside its own, up to as many as it asked
 * for. Returns how many. */
uint32_t
ps_sched_job_spare_servers(const struct ps_sched *s,
                           const struct ps_sched_find_job *j,
                           const struct ps_member *list[PS_SERVERS_MAX]);
/* One of these becomes a server of the job, which is to be told. */
void ps_sched_job_add_server(struct ps_sched_find_job *j,
                             const struct ps_member *m);
/* The job may be freed. */
void ps_sched_job_fail(struct ps_sched_step *st, struct ps_sched_find_job *j,
                       const char *reason);
/* The job ends, and is freed, when nobody is left. */
void ps_sched_job_end_if_unused(struct ps_sched_step *st,
                                struct ps_sched_find_job *j);
/* Workers that fit are lost. The job may be freed. */
struct ps_sched_loss {
    uint32_t agent_node;
    uint64_t worker;
    bool all_workers;      /* Of the agent, not only `worker`. */
    bool only_unconfirmed; /* Of these, the ones not named again. */
};
void ps_sched_job_lose_workers(struct ps_sched_step *st,
                               struct ps_sched_find_job *j,
                               const struct ps_sched_loss *which,
                               const char *why);
void ps_sched_jobs_lose_agent(struct ps_sched_step *st, struct ps_member *agent,
                              const char *why);
void ps_sched_jobs_lose_server(struct ps_sched_step *st,
                               struct ps_member *server, const char *why);
void ps_sched_jobs_tick(struct ps_sched_step *st);

/* Moves the time limits of jobs by the time for which the scheduler slept. */
void ps_sched_jobs_on_wakeup(struct ps_sched_step *st, ps_time late);
ps_time ps_sched_jobs_deadline(const struct ps_sched *s);

/* ----- key.c */
void ps_sched_on_key_open(struct ps_sched_step *st, struct ps_member *agent,
                          const struct ps_msg_key_open *m);
/* An agent has not taken the key: the last one that lets go of it undoes it. */
void ps_sched_on_key_close(struct ps_sched_step *st,
                           const struct ps_member *agent,
                           const struct ps_msg_key_close *m);
/* Node `gone` is no server of the job any more; others are: give them what it
 * had. PS_E_FULL: they have no memory for it, and `why` goes on with that. */
int ps_sched_keys_reassign(struct ps_sched_step *st,
                           struct ps_sched_find_job *j, uint32_t gone,
                           struct ps_str *why);
/* Agents hear of keys whose present placement they do not know: of some now,
 * and of the others when tell_due is over. */
void ps_sched_keys_send_placements(struct ps_sched_step *st,
                                   struct ps_sched_find_job *j);
/* Node `to` has the partition from now on, in a new epoch. */
void ps_sched_key_reassign_part(struct ps_sched_step *st,
                                struct ps_sched_find_job *j,
                                struct ps_sched_key *k, uint32_t index,
                                uint32_t to);
/* To an agent on a fresh link: placements that are not the first ones. */
void ps_sched_keys_send_reassigned(struct ps_sched_step *st,
                                   struct ps_sched_find_job *j,
                                   struct ps_member *m);

/* ----- account.c */
void ps_sched_account_init(struct ps_sched *s);
void ps_sched_account_fini(struct ps_sched *s);
/* The job begins, and is about to be freed. */
void ps_sched_account_open_job(struct ps_sched *s, struct ps_sched_find_job *j);
void ps_sched_account_close_job(struct ps_sched_find_job *j);
/* One key more, with so many partitions: 0, or PS_E_FULL with the reason. */
int ps_sched_account_charge_key(struct ps_sched_find_job *j, const char *name,
                                uint32_t parts, struct ps_refusal *ret_refusal);
void ps_sched_account_refund_key(struct ps_sched_find_job *j, const char *name,
                                 uint32_t parts);

/* ----- admission.c */
/* Where the partitions of a key lie. */
struct ps_sched_placement {
    const struct ps_place_part *parts;
    uint32_t count;
};
/* Memory on the job's servers for a key with these parts. Refused, nothing has
 * changed, and `why` goes on with the reason. */
int ps_sched_admission_add_key(struct ps_sched_step *st,
                               struct ps_sched_find_job *j, uint8_t dtype,
                               const struct ps_sched_placement *places,
                               struct ps_str *why);
/* The key needs none any more. */
void ps_sched_admission_remove_key(struct ps_sched_step *st,
                                   struct ps_sched_find_job *j,
                                   const struct ps_sched_key *k);
/* True: node `to` has memory for the partition of another node. */
bool ps_sched_admission_fits_part(const struct ps_sched *s,
                                  const struct ps_sched_find_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to);
/* The partition, which lies where its table says, goes to node `to`. */
void ps_sched_admission_move_part(struct ps_sched_step *st,
                                  struct ps_sched_find_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to);
/* The job's keys are to be of this kind; as ps_sched_admission_add_key. */
int ps_sched_admission_set_profile(struct ps_sched_step *st,
                                   struct ps_sched_find_job *j,
                                   const struct ps_demand_profile *kind,
                                   struct ps_str *why);
/* The keys have been placed afresh, after a loss; as ps_sched_admission_add_key. */
int ps_sched_admission_recount(struct ps_sched_step *st,
                               struct ps_sched_find_job *j, struct ps_str *why);
/* The job has failed and needs none any more. */
void ps_sched_admission_release(struct ps_sched_step *st,
                                struct ps_sched_find_job *j);
/* The job's servers hear what it may count on. */
void ps_sched_admission_send_quota(struct ps_sched_step *st,
                                   struct ps_sched_find_job *j);

/* ----- optimizer.c */
void ps_sched_on_optimizer_set(struct ps_sched_step *st,
                               struct ps_member *agent,
                               const struct ps_msg_optimizer_set *m);
void ps_sched_on_compression_set(struct ps_sched_step *st,
                                 struct ps_member *agent,
                                 const struct ps_msg_compression_set *m);
/* Answer those whose servers are ready, or all when the job has failed. */
void ps_sched_on_optimizer_change(struct ps_sched_step *st,
                                  struct ps_member *agent,
                                  const struct ps_msg_optimizer_change *m);
/* An operator's; answered when servers have it. */
void ps_sched_job_change_param(struct ps_sched_step *st,
                               struct ps_sched_conn *c,
                               struct ps_sched_find_job *j,
                               const struct ps_msg_job_set *m);
void ps_sched_waiters_reply(struct ps_sched_step *st,
                            struct ps_sched_find_job *j);
/* The agent is gone, and another process of its name begins to count its
 * requests from 1. */
void ps_sched_waiters_drop_agent(struct ps_sched_find_job *j, uint32_t agent);

/* ----- norm.c */
void ps_sched_on_norm_part(struct ps_sched_step *st, struct ps_member *server,
                           const struct ps_msg_norm_part *m);
/* The job's optimizer has been declared; there may be keys already. */
void ps_sched_norm_init(struct ps_sched_find_job *j);
/* At the end of a job. */
void ps_sched_norm_free(struct ps_sched_find_job *j);
/* The key, for which nobody gave a norm, is about to be removed. */
void ps_sched_norm_remove_key(struct ps_sched_find_job *j,
                              const struct ps_sched_key *k);
/* A key less to wait for. */
void ps_sched_norm_recheck_global(struct ps_sched_step *st,
                                  struct ps_sched_find_job *j);
/* Does a step of this key wait for gradients of others? Adds their names. */
void ps_sched_norm_describe_missing(const struct ps_sched_find_job *j,
                                    uint32_t key, struct ps_str *out);

/* ----- stall.c */
void ps_sched_on_stall_query(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_stall_query *m);
void ps_sched_on_stall_report(struct ps_sched_step *st, struct ps_member *agent,
                              const struct ps_msg_stall_report *m);
/* For psctl: rows of one job, and its share of the query is done. */
void ps_sched_stall_query_job(struct ps_sched_step *st,
                              struct ps_sched_find_job *j,
                              struct ps_sched_conn *ctl);
void ps_sched_stall_drop_job(struct ps_sched_step *st,
                             struct ps_sched_find_job *j);
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
/* Rows of keys go on when the connection has room. */
void ps_sched_query_send_rows(struct ps_sched_step *st,
                              struct ps_sched_conn *c);

/* ----- rebalance.c */
/* Answers with the moves that make the job's servers even, or that empty the
 * one called `off`; `makes`: they are made. */
void ps_sched_rebalance_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                              struct ps_sched_find_job *j, const char *off,
                              bool makes);
/* The moves of the job are made, or given up: connection `ctl` hears of it. */
void ps_sched_rebalance_ended(struct ps_sched_step *st, ps_conn_id ctl,
                              uint64_t gen, int rc, const char *text);
/* Sends up to so many rows of them, and the end behind the last. */
void ps_sched_rebalance_send_rows(struct ps_sched_step *st,
                                  struct ps_sched_conn *c, uint32_t rows);
void ps_sched_rebalance_drop_reply(struct ps_sched_conn *c);

/* ----- migration.c */
/* Moves begin when the event is over: ps_sched_migrations_start. */
void ps_sched_migrations_init(struct ps_sched_find_job *j, ps_conn_id ctl);
struct ps_sched_part_migration {
    uint32_t key;
    uint32_t index;
    uint32_t source_node; /* Nodes. */
    uint32_t target_node;
};
PS_MUST_USE int
ps_sched_migrations_add(struct ps_sched *s, struct ps_sched_find_job *j,
                        const struct ps_sched_part_migration *m);
/* As many as may be under way, to servers that know the job. */
void ps_sched_migrations_start(struct ps_sched_step *st,
                               struct ps_sched_find_job *j);
/* Nothing comes of those that are not made; servers forget them with the
 * job. */
void ps_sched_migrations_cancel(struct ps_sched_step *st,
                                struct ps_sched_find_job *j, const char *why);
void ps_sched_migrations_free(struct ps_sched_find_job *j);
void ps_sched_migrations_lose_server(struct ps_sched_step *st,
                                     const struct ps_member *server);
/* A server on a fresh link: what it was asked is asked again. */
void ps_sched_migrations_resend(struct ps_sched_step *st,
                                const struct ps_member *server);
void ps_sched_on_part_chunk(struct ps_sched_step *st,
                            const struct ps_member *server,
                            const struct ps_msg_part_chunk *m,
                            const struct ps_slice *payload);
void ps_sched_on_part_ack(struct ps_sched_step *st,
                          const struct ps_member *server,
                          const struct ps_msg_part_ack *m);
void ps_sched_query_send_end(struct ps_sched_step *st, struct ps_sched_conn *c,
                             int rc, const char *text);
void ps_sched_job_fill_row(const struct ps_sched_find_job *j, ps_time now,
                           struct ps_msg_job_row *ret);
