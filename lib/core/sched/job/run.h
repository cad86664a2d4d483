/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in the cluster: requests of their agents, their state as sent to members,
 * losses, start and end. The sections are those of the files here, bottom to
 * top. */
#pragma once

#include "core/sched/job/job.h"
#include "core/sched/member/member.h"

struct ps_sched;
struct ps_sched_conn;
struct ps_sched_step;

/* ----------------------------------------------------------------- state.c */

/* NULL: no such job. By owner and name, only an open job is found. */
struct ps_sched_job *ps_sched_find_job(const struct ps_sched *s, uint64_t gen);
struct ps_sched_job *ps_sched_find_open_job(const struct ps_sched *s,
                                            uint32_t uid, const char *name);
/* The parent of a group of this name, "job/group": an open job of user `uid`,
 * else one of any user, else a failed one of `uid`, else NULL. */
const struct ps_sched_job *ps_sched_find_parent_job(const struct ps_sched *s,
                                                    const char *name,
                                                    uint32_t uid);
/* Error code for a generation without a job; the reason goes to `ret`. `name`:
 * name of the job as the peer gives it; NULL: unknown. */
int ps_sched_job_end_reason(const struct ps_sched *s, uint64_t gen,
                            const char *name, struct ps_str *ret);
/* Checks that the agent may make requests in `j`, the job of `gen` or NULL. 0,
 * or an error code with the reason. */
int ps_sched_job_check_agent(const struct ps_sched *s,
                             const struct ps_sched_job *j, uint64_t gen,
                             const struct ps_member *agent, struct ps_str *why);
/* Sends a new version of the job's state to its servers and agents. */
void ps_sched_job_publish(struct ps_sched_step *st, struct ps_sched_job *j);
/* The same after a short delay, together with other changes. */
void ps_sched_job_publish_later(struct ps_sched_step *st,
                                struct ps_sched_job *j);
/* The state as servers get it. */
struct ps_packet *ps_sched_job_state(const struct ps_sched_job *j);
void ps_sched_job_send_state(struct ps_sched_step *st, struct ps_sched_job *j,
                             struct ps_member *m);
/* Sends the state of a job of the file to its agents once its servers have it (rule
 * G6). */
void ps_sched_job_announce_restored(struct ps_sched_step *st,
                                    struct ps_sched_job *j);
/* Sends state ENDED to a member whose job has ended, or is not its own. */
void ps_sched_job_send_ended(struct ps_sched_step *st, struct ps_member *m,
                             uint64_t gen, uint32_t version);

/* -------------------------------------------------- state.c: disagreements */

/* Appends "rank 3 on HOST"; without a host, or for a number that is no rank of
 * the job, less. */
void ps_sched_add_rank_text(const struct ps_sched_job *j, uint32_t rank,
                            struct ps_str *s);

/* The agent of `slot` has declared the key otherwise: notifies the agents that
 * have it open, and those that open it until that slot has it open, too. `text`
 * names both declarations. */
void ps_sched_key_disagreement_begin(struct ps_sched_step *st,
                                     struct ps_sched_job *j,
                                     struct ps_sched_key *k, uint32_t slot,
                                     const char *text);
/* The agent of `slot` has the key open: ends its part in a disagreement, and
 * notifies it of that of others. */
void ps_sched_key_disagreement_opened(struct ps_sched_step *st,
                                      const struct ps_sched_job *j,
                                      struct ps_sched_key *k, uint32_t slot);

/* The rank has declared for the whole job what contradicts a declaration of
 * another one: notifies all agents. */
void ps_sched_job_disagreement_begin(struct ps_sched_step *st,
                                     struct ps_sched_job *j, uint32_t rank,
                                     const char *text);
/* The rank has declared what the others have. */
void ps_sched_job_disagreement_end(struct ps_sched_step *st,
                                   const struct ps_sched_job *j, uint32_t rank);

/* Two ranks of the agent disagree about a key, or agree again. */
ps_sched_handler ps_sched_on_disagreement;

/* ------------------------------------------------------ admission.c: costs */

void ps_sched_account_init(struct ps_sched *s);
void ps_sched_account_fini(struct ps_sched *s);
/* Open the job's account, and refund it before the job is freed. */
void ps_sched_account_open_job(struct ps_sched *s, struct ps_sched_job *j);
void ps_sched_account_close_job(struct ps_sched_job *j);
/* Charges a key with `parts` partitions. 0, or PS_E_FULL with the reason. */
int ps_sched_account_charge_key(struct ps_sched_job *j, const char *name,
                                uint32_t parts, struct ps_refusal *ret_refusal);
/* Charges a key that the file has, which no limit refuses. */
void ps_sched_account_restore_key(struct ps_sched_job *j, const char *name,
                                  uint32_t parts);
void ps_sched_account_refund_key(struct ps_sched_job *j, const char *name,
                                 uint32_t parts);

/* ---------------------------------------------------- admission.c: servers */

/* Servers that a new job may use. *ret_draining: further ACTIVE servers that
 * are draining, *ret_name: name of one of them. */
uint32_t ps_sched_count_servers(const struct ps_sched *s,
                                uint32_t *ret_draining, const char **ret_name);
/* Appends "needs 4 servers, 2 are here", and what to do, if a job that forms
 * lacks servers. */
void ps_sched_describe_servers(const struct ps_sched *s,
                               const struct ps_sched_job *j,
                               struct ps_str *out);
/* Server that the job would get next: the one with fewest bytes, then by name;
 * NULL: none is usable. */
struct ps_member *ps_sched_job_next_server(const struct ps_sched *s,
                                           const struct ps_sched_job *j);
/* Servers that could join the job, at most as many as it lacks of num_servers.
 * Returns their count. */
uint32_t
ps_sched_job_spare_servers(const struct ps_sched *s,
                           const struct ps_sched_job *j,
                           const struct ps_member *list[PS_SERVERS_MAX]);
/* True if `m` could become a server of the job. */
bool ps_sched_job_may_use_server(const struct ps_sched_job *j,
                                 const struct ps_member *m);
/* Makes `m` a server of the job; the caller publishes the job. */
void ps_sched_job_add_server(const struct ps_sched *s, struct ps_sched_job *j,
                             const struct ps_member *m);
/* Takes that back, if nobody has heard of it. */
void ps_sched_job_drop_server(struct ps_sched *s, struct ps_sched_job *j,
                              struct ps_sched_job_server *on);
/* Gives the place to the present process of its server, in this epoch. */
void ps_sched_job_take_place(const struct ps_sched *s,
                             struct ps_sched_job_server *on,
                             const struct ps_member *m);
/* Removes a server that is lost; this process of it is not used again. */
void ps_sched_job_remove_server(struct ps_sched *s, struct ps_sched_job *j,
                                struct ps_sched_job_server *on,
                                const struct ps_member *server);
/* Takes the load of a job that ends off its servers. */
void ps_sched_job_release_servers(struct ps_sched *s,
                                  const struct ps_sched_job *j);
/* True if a process of the place has answered, so that its memory has the job; a
 * place with keys, because it got them after that. */
bool ps_sched_job_server_has_taken(const struct ps_sched_job_server *on);

/* ----------------------------------------------------- admission.c: memory */

/* Placement of a key. */
struct ps_sched_placement {
    const struct ps_place_part *parts;
    uint32_t count;
};
/* Reserves memory on the job's servers for a key with these partitions. When
 * refused, nothing changes and the reason is appended to `why`. */
int ps_sched_admission_add_key(struct ps_sched_step *st, struct ps_sched_job *j,
                               uint8_t dtype,
                               const struct ps_sched_placement *places,
                               struct ps_str *why);
/* Releases the memory of the key. */
void ps_sched_admission_remove_key(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_sched_key *k);
/* True: node `to` has memory for the partition of another node. */
bool ps_sched_admission_fits_part(const struct ps_sched *s,
                                  const struct ps_sched_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to);
/* Moves the reservation of a partition from its present owner to node `to`. */
void ps_sched_admission_move_part(struct ps_sched_step *st,
                                  struct ps_sched_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to);
/* Sets the demand profile of the job; fails as ps_sched_admission_add_key. */
int ps_sched_admission_set_profile(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_demand_profile *kind,
                                   struct ps_str *why);
/* Reserves memory again after placements changed; fails as
 * ps_sched_admission_add_key. */
int ps_sched_admission_recount(struct ps_sched_step *st, struct ps_sched_job *j,
                               struct ps_str *why);
/* Reserves memory for all keys of a job that the file has, without a limit. */
void ps_sched_admission_restore(struct ps_sched_step *st,
                                struct ps_sched_job *j);
/* Releases the reservations of a failed job. */
void ps_sched_admission_release(struct ps_sched_step *st,
                                struct ps_sched_job *j);
/* Sends the servers of the job its quotas. */
void ps_sched_admission_send_quota(struct ps_sched_step *st,
                                   struct ps_sched_job *j);

/* ------------------------------------------------------------------ norm.c */

/* Norm allreduce over the partitions of a key. */

ps_sched_handler ps_sched_on_norm_part;
/* A server says what a scheduler before this one has answered (rule G10). */
ps_sched_handler ps_sched_on_norm_result;
/* Norms of all keys that the job has had. */
uint64_t ps_sched_norms_so_far(const struct ps_sched_job *j);
/* Called once the job has optimizer `o`; keys may exist already. */
void ps_sched_norm_init(struct ps_sched_job *j, const struct ps_optim *o);
/* Called at the end of a job. */
void ps_sched_norm_free(struct ps_sched_job *j);
/* Takes a key without norms out of the global norm; called before its
 * removal. */
void ps_sched_norm_remove_key(struct ps_sched_job *j,
                              const struct ps_sched_key *k);
/* Publishes the global norm when a removed key was the last one missing. */
void ps_sched_norm_recheck_global(struct ps_sched_step *st,
                                  struct ps_sched_job *j);
/* Appends the names of keys that the global norm of this key's step waits for;
 * appends nothing when it does not wait. */
void ps_sched_norm_describe_missing(const struct ps_sched_job *j, uint32_t key,
                                    struct ps_str *out);

/* ------------------------------------------------------------------- key.c */

ps_sched_handler ps_sched_on_key_open;
/* Adds a key that the file has, with its next number. 0, or an error code with
 * the reason. */
PS_MUST_USE int ps_sched_key_restore(struct ps_sched *s, struct ps_sched_job *j,
                                     uint64_t number,
                                     const struct ps_msg_row_key *row,
                                     const struct ps_slice *payload,
                                     struct ps_str *why);
/* Removes the agent, which could not take the key, from its openers; removes a
 * key without openers. */
ps_sched_handler ps_sched_on_key_close;
/* Moves the partitions of the lost server `gone` to the servers of the job.
 * PS_E_FULL: they lack memory; the reason is appended to `why`. */
int ps_sched_keys_reassign(struct ps_sched_step *st, struct ps_sched_job *j,
                           uint32_t gone, struct ps_str *why);
/* Makes `next` the owner of the partitions of the lost server `gone`; fails as
 * ps_sched_keys_reassign(). The caller announces them. */
int ps_sched_keys_take_over(struct ps_sched_step *st, struct ps_sched_job *j,
                            uint32_t gone, uint32_t next, struct ps_str *why);
/* Number of keys with a partition on the server. */
uint32_t ps_sched_keys_count_on(const struct ps_sched_job *j, uint32_t node);
/* Appends the server for which the job waits, if it waits for one. */
void ps_sched_job_describe_awaited(const struct ps_sched_job *j, ps_time now,
                                   struct ps_str *out);
/* Begins to send agents the placements that have changed. */
void ps_sched_keys_announce(struct ps_sched_step *st, struct ps_sched_job *j);
/* Sends agents the placements that they lack: some now, the others from
 * keys.send_at on. */
void ps_sched_keys_send_placements(struct ps_sched_step *st,
                                   struct ps_sched_job *j);
/* Makes node `to` the owner of the partition, in a new epoch. */
void ps_sched_key_reassign_part(struct ps_sched_step *st,
                                struct ps_sched_job *j, struct ps_sched_key *k,
                                uint32_t index, uint32_t to);
/* Sends an agent on a fresh link all placements other than first ones: some
 * now, the others from keys.send_at on. */
void ps_sched_keys_send_reassigned(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_member *m);

/* ------------------------------------------------------------- optimizer.c */

ps_sched_handler ps_sched_on_optimizer_set;
ps_sched_handler ps_sched_on_compression_set;
ps_sched_handler ps_sched_on_optimizer_change;
ps_sched_handler ps_sched_on_optimizer_tune;
ps_sched_handler ps_sched_on_profile_set;
/* Sets what a job of the file has declared by this message. 0, or an error code
 * with the reason: the job cannot have it. */
PS_MUST_USE int ps_sched_declaration_restore(struct ps_sched_job *j,
                                             const struct ps_msg *msg,
                                             struct ps_str *why);
/* Sends optimizer_done. */
void ps_sched_optimizer_done(struct ps_sched_step *st, struct ps_member *agent,
                             uint64_t gen, uint64_t request, int rc,
                             const char *text);
/* Job of a request that optimizer_done answers. NULL: it is not open, or the
 * agent has no worker in it, and the request has been refused. */
struct ps_sched_job *ps_sched_optimizer_find_job(struct ps_sched_step *st,
                                                 struct ps_member *agent,
                                                 uint64_t gen,
                                                 uint64_t request);
/* Applies an operator's change; replied to when all servers have taken it
 * in. */
void ps_sched_job_change_param(struct ps_sched_step *st,
                               struct ps_sched_conn *c, struct ps_sched_job *j,
                               const struct ps_msg_job_set *m);
/* Gives the job another weight from now on; replied to as above. */
void ps_sched_job_change_weight(struct ps_sched_step *st,
                                struct ps_sched_conn *c, struct ps_sched_job *j,
                                uint32_t weight);
/* Replies to waiters when all servers have taken in the last declaration, or
 * when the job is not open. */
void ps_sched_waiters_reply(struct ps_sched_step *st, struct ps_sched_job *j);
/* Drops the waiters of an agent that is gone: a successor of the same name
 * numbers its requests from 1. */
void ps_sched_waiters_drop_agent(struct ps_sched_job *j, uint32_t agent);

/* ------------------------------------------------------------------ rank.c */

ps_sched_handler ps_sched_on_barrier_enter;
/* Sends the newest open barrier to one agent, or to all of the job. */
void ps_sched_barrier_send_done(struct ps_sched_step *st,
                                const struct ps_sched_job *j,
                                struct ps_member *agent);
void ps_sched_barrier_notify(struct ps_sched_step *st, struct ps_sched_job *j);
/* Training scalars. */
ps_sched_handler ps_sched_on_report;

/* ---------------------------------------------------------- rank.c: traces */

/* Sends a tool entries of this scheduler's trace, or asks a member for them. */
void ps_sched_trace_ask(struct ps_sched_step *st, struct ps_sched_conn *c,
                        const struct ps_sched_job *j,
                        const struct ps_msg_trace_get *m);
/* An agent asks for the recording of a server. */
ps_sched_handler ps_sched_on_recording_get;
ps_sched_answer_check ps_sched_trace_check_answer;
/* Passes the answer on to who asked. */
ps_sched_handler ps_sched_on_trace_entries;
/* Asks a member on a fresh link again for what it has not answered. */
void ps_sched_trace_resend(struct ps_sched_step *st, const struct ps_member *m);
/* Refuses agents what a lost server has not answered. */
void ps_sched_trace_lose_server(struct ps_sched_step *st, uint32_t node);
/* Ends requests of tools that a member has not answered in time. */
void ps_sched_trace_tick(struct ps_sched_step *st);
/* Forgets the request of a tool's connection or, if 0, those of agents of a
 * job. */
void ps_sched_trace_drop(struct ps_sched *s, ps_conn_id conn, uint64_t gen);

/* ------------------------------------------------------------- lifecycle.c */

ps_sched_handler ps_sched_on_job_ready;
ps_sched_handler ps_sched_on_value_lost;
void ps_sched_job_try_start(struct ps_sched_step *st, struct ps_sched_job *j);
void ps_sched_jobs_try_start(struct ps_sched_step *st);
/* Fails the job; may free it. */
void ps_sched_job_fail(struct ps_sched_step *st, struct ps_sched_job *j,
                       const char *reason);
/* Without a live worker, ends and frees the job; while ranks are LOST, starts
 * its rejoin_grace instead. */
void ps_sched_job_end_if_unused(struct ps_sched_step *st,
                                struct ps_sched_job *j);
void ps_sched_jobs_tick(struct ps_sched_step *st);

/* Extends the time limits of jobs by the time for which the scheduler slept. */
void ps_sched_jobs_on_wakeup(struct ps_sched_step *st, ps_time late);
ps_time ps_sched_jobs_deadline(const struct ps_sched *s);

/* ----------------------------------------------------- lifecycle.c: losses */

/* Filter for LIVE workers. ps_sched_job_lose_workers() makes those that match
 * LOST, or removes them before the start; it may free the job. */
struct ps_sched_loss {
    uint32_t agent_node;
    uint64_t worker;
    uint64_t token;   /* Not 0: all of the agent that joined by this token. */
    bool all_workers; /* All of the agent; else only `worker`. */
    bool only_unconfirmed; /* Only workers not confirmed on a fresh link. */
};
void ps_sched_job_lose_workers(struct ps_sched_step *st, struct ps_sched_job *j,
                               const struct ps_sched_loss *which,
                               const char *why);
void ps_sched_jobs_lose_agent(struct ps_sched_step *st, struct ps_member *agent,
                              const char *why);
/* `is_silent`: its host may be lost, too. A job that waits for the next process
 * of the server keeps it. */
void ps_sched_jobs_lose_server(struct ps_sched_step *st,
                               struct ps_member *server, bool is_silent,
                               const char *why);
/* Loses the workers that an agent on a fresh link has not reported. */
void ps_sched_workers_drop_missing(struct ps_sched_step *st,
                                   struct ps_member *agent);
/* Loses the workers whose tokens have expired or were revoked, and has their
 * agents end them with that reason. */
void ps_sched_workers_drop_tokens(struct ps_sched_step *st);
/* Sends a member on a fresh link all that it needs of its jobs; an agent has to
 * report its workers again. */
void ps_sched_jobs_on_fresh_link(struct ps_sched_step *st, struct ps_member *m);

/* ---------------------------------------------------------------- worker.c */

/* 0, or an error code with the reason: its fields are not valid. */
PS_MUST_USE int ps_sched_check_job_open(const struct ps_msg_job_open *m,
                                        struct ps_str *why);
ps_sched_handler ps_sched_on_job_open;
ps_sched_handler ps_sched_on_worker_gone;
