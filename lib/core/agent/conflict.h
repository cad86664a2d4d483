/* SPDX-License-Identifier: Apache-2.0 */
/* Failure of the operations of a key; rounds aborted because of conflicting
 * requests; declarations of ranks that contradict each other. */
#pragma once

#include "core/agent/inner.h"

/* ----------------------------------------------------------------- failure */

/* Fails all operations of the key, other than transfers of state. */
void ps_agent_fail_key(struct ps_agent_step *st, struct ps_agent_key *k,
                       int error, const char *text);
void ps_agent_fail_inits(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text);
void ps_agent_fail_list(struct ps_agent_step *st, struct ps_list *list,
                        int error, const char *text);

/* --------------------------------------------------------------- conflicts */

/* Frees the conflict of the last round, if there is one: a new round begins. */
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
/* Sends abort_round again to `node` (0: all owners), which may have lost it. */
void ps_agent_conflict_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint32_t node);

/* ----------------------------------------------------------- disagreements */

void ps_agent_disagreement_free(struct ps_agent_disagreement *d);
/* Message of the scheduler about the key; `k` NULL: about the whole job. Returns
 * true if the inits of all keys of the job end, or, of one key, if its init has
 * ended and a round goes on that may have waited for it. */
bool ps_agent_disagreement_on_msg(struct ps_agent_step *st,
                                  struct ps_agent_job *j,
                                  struct ps_agent_key *k,
                                  const struct ps_msg_disagreement *m);
/* Ends the inits of the key, because the ranks of its job disagree: the root's
 * array may never come. Returns true if one was under way. */
bool ps_agent_disagreement_end_inits(struct ps_agent_step *st,
                                     struct ps_agent_key *k);
/* The declaration of the session's rank contradicts that of another local rank.
 * Returns true as ps_agent_disagreement_on_msg() of a key. */
bool ps_agent_disagreement_refuse_key(struct ps_agent_step *st,
                                      struct ps_agent_session *s,
                                      struct ps_agent_key *k, const char *text);
/* The session's rank declares the key as the others do. */
void ps_agent_disagreement_accept_key(struct ps_agent_step *st,
                                      const struct ps_agent_session *s,
                                      struct ps_agent_key *k);
/* The scheduler has refused or accepted what the local rank declares for the
 * whole job. */
void ps_agent_disagreement_answer(struct ps_agent_job *j, uint32_t local_rank,
                                  bool is_refused);
/* Rejects the operation, and returns true, if its rank has not been notified of
 * a disagreement. */
bool ps_agent_disagreement_reject_op(struct ps_agent_step *st,
                                     struct ps_agent_session *s,
                                     struct ps_agent_key *k,
                                     const struct ps_msg_l_op *m);
/* Refuses the contribution of a process that was started again if it begins a
 * round while a round of another key waits for it, in which its predecessor
 * ended: both would wait for ever. All ranks get the text. */
bool ps_agent_conflict_refuse_successor(struct ps_agent_step *st,
                                        struct ps_agent_op *op);
