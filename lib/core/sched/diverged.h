/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that wait for each other (rules T6 to T12 of docs/protocol.md). */
#pragma once

#include "core/sched/job/job.h"
#include "core/sched/member/member.h"

struct ps_sched;
struct ps_sched_step;

/* An agent says that the job stands still there: it is watched from now on. */
void ps_sched_on_job_still(struct ps_sched_step *st, struct ps_member *agent,
                           const struct ps_msg_job_still *m);
void ps_sched_on_wait_report(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_wait_report *m);
/* As ps_sched_migration_check_answer(), of a wait_report. */
int ps_sched_diverged_check_answer(const struct ps_sched *s,
                                   const struct ps_member *agent,
                                   const struct ps_msg *msg);
/* Returns a job that must fail, with the reason; NULL: none. Called again until
 * there is none. */
struct ps_sched_job *ps_sched_diverged_tick(struct ps_sched_step *st,
                                            struct ps_str *why);
ps_time ps_sched_diverged_deadline(const struct ps_sched *s);
/* Text that begins with DIVERGED and names the calls of all ranks; "": the job
 * is not DIVERGED. */
const char *ps_sched_diverged_text(const struct ps_sched *s, uint64_t gen);
/* Sends psctl the stall row of a job that is DIVERGED. */
void ps_sched_diverged_send_row(struct ps_sched_step *st,
                                const struct ps_sched_job *j, ps_conn_id ctl);
/* Jobs that are DIVERGED. */
uint32_t ps_sched_diverged_jobs(const struct ps_sched *s);
void ps_sched_diverged_drop_job(struct ps_sched *s, uint64_t gen);
void ps_sched_diverged_free(struct ps_sched *s);
