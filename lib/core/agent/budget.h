/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts of sessions, jobs and users. */
#pragma once

#include "base/err.h"

#include <stdint.h>

struct ps_agent;
struct ps_agent_draining_pool;
struct ps_agent_job;
struct ps_agent_key;
struct ps_agent_key_kind;
struct ps_agent_session;
struct ps_agent_user;
struct ps_buf;
struct ps_msg_l_key;
struct ps_refusal;

void ps_agent_budget_init(struct ps_agent *a);
void ps_agent_budget_fini(struct ps_agent *a);
struct ps_agent_user *ps_agent_user_get(struct ps_agent *a, uint32_t uid);
void ps_agent_user_put(struct ps_agent_user *u);
/* Charges a new session to its user. On refusal no charge or reference
 * stays. */
PS_MUST_USE int ps_agent_budget_open_session(struct ps_agent *a,
                                             struct ps_agent_session *s,
                                             uint32_t pid,
                                             struct ps_refusal *ret_refusal);
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
/* Charges the key's table of `count` partitions to the job. */
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
