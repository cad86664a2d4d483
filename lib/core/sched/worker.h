/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that join and leave jobs, and barriers of their ranks. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched_step;

void ps_sched_on_job_open(struct ps_sched_step *st, struct ps_member *agent,
                          const struct ps_msg_job_open *m);
void ps_sched_on_worker_gone(struct ps_sched_step *st, struct ps_member *agent,
                             uint64_t seq, const struct ps_msg_worker_gone *m);
void ps_sched_on_barrier_enter(struct ps_sched_step *st,
                               struct ps_member *agent,
                               const struct ps_msg_barrier_enter *m);
/* Sends the newest open barrier to all agents of the job. */
void ps_sched_barrier_notify(struct ps_sched_step *st, struct ps_sched_job *j);
