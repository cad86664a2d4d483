/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of optimizers and compression. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member.h"

struct ps_sched_conn;
struct ps_sched_step;

void ps_sched_on_optimizer_set(struct ps_sched_step *st,
                               struct ps_member *agent,
                               const struct ps_msg_optimizer_set *m);
void ps_sched_on_compression_set(struct ps_sched_step *st,
                                 struct ps_member *agent,
                                 const struct ps_msg_compression_set *m);
void ps_sched_on_optimizer_change(struct ps_sched_step *st,
                                  struct ps_member *agent,
                                  const struct ps_msg_optimizer_change *m);
/* Applies an operator's change; replied to when all servers have taken it
 * in. */
void ps_sched_job_change_param(struct ps_sched_step *st,
                               struct ps_sched_conn *c, struct ps_sched_job *j,
                               const struct ps_msg_job_set *m);
/* Replies to waiters when all servers have taken in the last declaration, or
 * when the job is not open. */
void ps_sched_waiters_reply(struct ps_sched_step *st, struct ps_sched_job *j);
/* Drops the waiters of an agent that is gone: a successor of the same name
 * numbers its requests from 1. */
void ps_sched_waiters_drop_agent(struct ps_sched_job *j, uint32_t agent);
