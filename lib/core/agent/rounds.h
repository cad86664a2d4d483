/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds, pulls and inits of keys: what operations of workers do. */
#pragma once

#include "core/agent/keys.h"

/* accept.c */
void ps_agent_accept_op(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m);

/* round.c */
uint64_t ps_agent_round_of_op(const struct ps_agent_op *op);
/* Adds the contribution to its round, or defers it until that is open. */
void ps_agent_round_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Ends the operations of the open round after its last partition; deferred
 * pushes start the next one. */
void ps_agent_round_end(struct ps_agent_step *st, struct ps_agent_key *k);
/* All local ranks have contributed: launches the ready partitions. */
void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k);
/* Launches, in order, the partitions whose bytes are ready on all ranks. */
void ps_agent_round_launch_ready(struct ps_agent_step *st,
                                 struct ps_agent_key *k);

/* advance.c */
/* Handles a new version of the partition: ends its init, round or pulls. */
void ps_agent_advance_part(struct ps_agent_step *st, struct ps_agent_part *p);
/* Advances partitions of a complete round that are committed already: servers
 * may have merged pushes of the previous agent and reported that to this one. */
void ps_agent_advance_committed(struct ps_agent_step *st,
                                struct ps_agent_key *k);
/* Launches the partition, and advances it if it has the version at once. */
void ps_agent_advance_launch(struct ps_agent_step *st, struct ps_agent_part *p);
/* A sum into the results has ended. `error`: 0 or a PS_E_*. */
void ps_agent_advance_on_computed(struct ps_agent_step *st,
                                  struct ps_agent_computation *run, int error);

/* launch.c */
/* Queues the partition for its server, or starts the local sum or init. Returns
 * true if it has the version at once: the caller advances it. */
bool ps_agent_launch_part(struct ps_agent_step *st, struct ps_agent_part *p);

/* fail.c */
/* Fails all operations of the key, other than transfers of state. */
void ps_agent_fail_key(struct ps_agent_step *st, struct ps_agent_key *k,
                       int error, const char *text);
void ps_agent_fail_inits(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text);
void ps_agent_fail_list(struct ps_agent_step *st, struct ps_list *list,
                        int error, const char *text);

/* contribution.c */
void ps_agent_round_set_state(struct ps_agent_key *k,
                              enum ps_agent_round_state to);
/* Returns the number of contributions to the open round that are not skips, or
 * in a mean their samples (rule R20). */
uint64_t ps_agent_contribution_weight(const struct ps_agent_key *k);
/* Returns true if all local ranks have copied their contribution to it. */
bool ps_agent_contribution_is_ready(const struct ps_agent_part *p);
/* Returns true if the rank has not contributed to the round, or is still
 * copying its contribution. */
bool ps_agent_contribution_awaits_rank(const struct ps_agent_key *k,
                                       uint32_t local, uint64_t round);
/* Writes this node's sources of a partition in rank order; returns their
 * number, at most one per local rank. */
uint32_t ps_agent_contribution_sources(const struct ps_agent_part *p,
                                       struct ps_slice *slices);
/* Returns true when all ranks of the job skipped the round. A server's report
 * is ignored if a local rank contributed (rule R23). */
bool ps_agent_contribution_all_skipped(const struct ps_agent_key *k);

/* reattach.c */
/* Takes over the completed barriers of a reattached worker. */
void ps_agent_reattach_session(struct ps_agent_step *st,
                               struct ps_agent_session *s);
/* A reattached worker declares a key of which it completed `pushed` rounds.
 * Returns false if that is inconsistent; the session is then closed. */
bool ps_agent_reattach_key(struct ps_agent_step *st, struct ps_agent_session *s,
                           struct ps_agent_key *k, uint64_t pushed);
/* Applies the prior state to a key that has been opened. */
void ps_agent_reattach_key_opened(struct ps_agent_step *st,
                                  struct ps_agent_key *k);
/* Returns true if the operation's round was completed before the reattach, as
 * another rank reported; the operation is then handled here. */
bool ps_agent_reattach_accept_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op);
void ps_agent_reattach_free(struct ps_agent_key *k);

/* dense.c */
/* Kind's measure_array() for whole arrays. */
bool ps_agent_dense_measure(struct ps_agent_step *st,
                            struct ps_agent_session *s,
                            const struct ps_agent_key *k,
                            const struct ps_msg_l_op *m,
                            struct ps_agent_op_input *in);
/* Kind's start_part() for whole arrays. */
bool ps_agent_dense_start(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p);
/* Releases the batch arena; the next small sum allocates another. */
void ps_agent_dense_release_arena(struct ps_agent *a);
/* Kind's part_fits_frame() of keys that are not of rows. */
bool ps_agent_dense_part_fits_frame(const struct ps_agent_key *k,
                                    uint32_t count);

/* async.c */
/* ssp: raises the push count that every rank of the job has reached. */
void ps_agent_async_raise_clock(struct ps_agent_part *p, uint64_t clock);

/* rows.c */
void ps_agent_rows_on_rows(struct ps_agent_step *st,
                           const struct ps_msg_rows *m,
                           const struct ps_slice *payload);
/* Returns the payload bytes of the message; 0: none, or malformed. */
uint64_t ps_agent_rows_payload_bytes(const struct ps_msg_rows *m);

/* conflict.c */
/* Returns the number of the current attempt at the key's round. */
uint32_t ps_agent_conflict_retry(const struct ps_agent_key *k);
/* Frees the conflict of the last round: a new round begins. */
void ps_agent_conflict_clear(struct ps_agent_key *k);
/* If this rank has not yet been notified of the aborted attempt, fails its
 * operation with the conflict text and returns true. */
bool ps_agent_conflict_notify_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op);
/* Aborts the attempt: `op` conflicts with the local ranks before it. */
void ps_agent_conflict_begin(struct ps_agent_step *st, struct ps_agent_op *op,
                             const char *text);
/* Aborts the open attempt if a server refused one of its parts because of a
 * conflict with other slots: `attempt` is above the current retry number. */
void ps_agent_conflict_on_refuse(struct ps_agent_step *st,
                                 struct ps_agent_key *k, uint64_t round,
                                 uint32_t attempt, const char *text);
/* Resends abort_round to `node` (0: all owners), which may have lost it. */
void ps_agent_conflict_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint32_t node);

/* pull.c */
/* Returns true when version `least` will arrive without another request. */
bool ps_agent_pull_is_expected(const struct ps_agent_part *p, int64_t least);
void ps_agent_pull_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Kind's advance() for versions. */
void ps_agent_pull_advance(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_init_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Sends the root's init if one is waiting. */
void ps_agent_init_start_pending(struct ps_agent_step *st,
                                 struct ps_agent_key *k);
/* Reopens an init that was committed at a lost server. Returns true if the root
 * is on this node, so that the init is sent again. */
bool ps_agent_init_reopen_part(struct ps_agent_part *p);

/* opt_state.c */
void ps_agent_opt_state_accept_op(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_optimizer_state *m);
void ps_agent_opt_state_on_state(struct ps_agent_step *st,
                                 const struct ps_msg_state *m,
                                 const struct ps_slice *payload);
/* Resends the unanswered requests to a server that may have lost them. */
void ps_agent_opt_state_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                               uint32_t node);
/* Sends the partition's unanswered request to its new owner. */
void ps_agent_opt_state_reset_part(struct ps_agent_step *st,
                                   struct ps_agent_part *p);
/* Sends as many requests as may be in flight. */
void ps_agent_opt_state_advance(struct ps_agent_step *st,
                                struct ps_agent_key *k);
