/* SPDX-License-Identifier: Apache-2.0 */
/* Training processes: accounts, hello, memory, errors, departure. */
#pragma once

#include "core/agent/inner.h"

/* ---------------------------------------------------------------- accounts */

void ps_agent_budget_init(struct ps_agent *a);
void ps_agent_budget_fini(struct ps_agent *a);
struct ps_agent_user *ps_agent_user_get(struct ps_agent *a, uint32_t uid);
void ps_agent_user_put(struct ps_agent_user *u);
void ps_agent_budget_close_session(struct ps_agent_session *s);
/* Makes the session's account a child of its job's. */
void ps_agent_budget_assign_job(struct ps_agent_session *s,
                                struct ps_agent_job *j);
/* Closes the job's account, which must hold no charge. */
void ps_agent_budget_close_job(struct ps_agent_job *j);
/* Charges a declared key and its results to the job. The caller keeps
 * *ret_charged in the key, whose end refunds it. */
PS_MUST_USE int ps_agent_budget_charge_key(struct ps_agent_job *j,
                                           const struct ps_agent_key_kind *kind,
                                           const struct ps_msg_l_key *m,
                                           uint64_t *ret_charged,
                                           struct ps_refusal *ret_refusal);
/* Charges the key's table of `count` partitions, and what its kind keeps beside,
 * to the job. */
PS_MUST_USE int ps_agent_budget_charge_parts(struct ps_agent_key *k,
                                             uint32_t count,
                                             struct ps_refusal *ret_refusal);
void ps_agent_budget_refund_key(struct ps_agent_key *k);
/* Moves the results of an ended job, which frames still carry, to its user. */
void ps_agent_budget_charge_pool(struct ps_agent_job *j,
                                 struct ps_agent_draining_pool *g);
void ps_agent_budget_refund_pool(struct ps_agent_draining_pool *g);
/* Charges a mapping to the session. *ret_buf holds a reference of `buf`; its
 * last unref refunds the charge. */
PS_MUST_USE int ps_agent_budget_charge_mapping(struct ps_agent_session *s,
                                               struct ps_buf *buf,
                                               struct ps_buf **ret_buf,
                                               struct ps_refusal *ret_refusal);

/* --------------------------------------------------- workers that are gone */

/* Records that the worker of a session is gone, and reports it. */
void ps_agent_departed_add(struct ps_agent_step *st,
                           const struct ps_agent_session *s);
/* Resends all departures. */
void ps_agent_departed_resend(struct ps_agent_step *st);
/* Forgets the departures of a job that is over; `gen` NULL: those that a new
 * scheduler cannot know. Those of jobs on this node stay: the scheduler answers
 * them with the job's end. */
void ps_agent_departed_drop(struct ps_agent *a, const uint64_t *gen);

/* ---------------------------------------------------------------- sessions */

void ps_agent_session_on_open(struct ps_agent_step *st,
                              const struct ps_event *ev);
void ps_agent_session_on_hello(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_msg *m);
void ps_agent_session_on_region(struct ps_agent_step *st,
                                struct ps_agent_session *s, uint32_t region,
                                struct ps_buf *buf);
/* A region could not be mapped. PS_E_NOMEM: operations that name it are refused
 * with the text `why`. Other errors, and region 0, end the session. */
void ps_agent_session_on_unmapped(struct ps_agent_step *st,
                                  struct ps_agent_session *s, uint32_t region,
                                  int rc, const char *why);
/* Returns the error for an operation that names a missing region, and its text
 * in *ret_why. */
int ps_agent_session_on_missing_region(const struct ps_agent_session *s,
                                       uint32_t region, const char **ret_why);
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the session with the text of the limit that it exceeded. */
void ps_agent_session_end_quota(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_refusal *why);
void ps_agent_session_send_open(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* Sends the deferred job_opens once the scheduler has acknowledged everything
 * before. A worker that replaces a dead one must not be announced before that
 * death, and links keep no order. */
void ps_agent_session_send_deferred(struct ps_agent_step *st);
void ps_agent_session_send_welcome(struct ps_agent_step *st,
                                   struct ps_agent_session *s);
void ps_agent_session_on_region_gone(struct ps_agent_session *s,
                                     uint32_t region);
/* Gives up the regions of a session that ends; its operations have ended. */
void ps_agent_session_free_memory(struct ps_agent *a,
                                  struct ps_agent_session *s);
/* Unmaps some regions of sessions that have ended. */
void ps_agent_unmap_regions(struct ps_agent *a);
