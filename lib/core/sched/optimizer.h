/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of optimizers and compression. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

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
void ps_sched_on_optimizer_tune(struct ps_sched_step *st,
                                struct ps_member *agent,
                                const struct ps_msg_optimizer_tune *m);
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
/* Replies to a request with optimizer_done when all servers have the job's
 * state; at once if they have it. */
void ps_sched_optimizer_await(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_member *agent, uint64_t request);
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
