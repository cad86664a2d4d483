/* SPDX-License-Identifier: Apache-2.0 */
/* Phases of a job. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched;
struct ps_sched_step;

void ps_sched_on_job_ready(struct ps_sched_step *st, struct ps_member *server,
                           const struct ps_msg_job_ready *m);
void ps_sched_on_value_lost(struct ps_sched_step *st, struct ps_member *server,
                            const struct ps_msg_value_lost *m);
void ps_sched_job_try_start(struct ps_sched_step *st, struct ps_sched_job *j);
void ps_sched_jobs_try_start(struct ps_sched_step *st);
void ps_sched_job_try_run(struct ps_sched_step *st, struct ps_sched_job *j);
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
