/* SPDX-License-Identifier: Apache-2.0 */
/* Stall queries: which ranks an operation waits for. */
#pragma once

#include "core/sched/job/job.h"
#include "core/sched/member/member.h"

struct ps_sched;
struct ps_sched_conn;
struct ps_sched_step;
struct ps_str;

void ps_sched_on_stall_query(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_stall_query *m);
/* Returns a job that must fail, with the reason: a round needs a rank that has
 * left. NULL: none. */
struct ps_sched_job *
ps_sched_on_stall_report(struct ps_sched_step *st, struct ps_member *agent,
                         const struct ps_msg_stall_report *m,
                         struct ps_str *why);
/* As ps_sched_migration_check_answer(), of a stall_report. */
int ps_sched_stall_check_answer(const struct ps_sched *s,
                                const struct ps_member *agent,
                                const struct ps_msg *msg);
/* Sends psctl the stall rows of one job, then decrements open_stalls. */
void ps_sched_stall_query_job(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_sched_conn *ctl);
/* A rank has left the job. While others are live, the agents are asked again and
 * again whether a round needs a rank that has left. */
void ps_sched_stall_check_left(struct ps_sched_step *st,
                               struct ps_sched_job *j);
void ps_sched_stall_drop_job(struct ps_sched_step *st, struct ps_sched_job *j);
/* Frees all queries, without a reply. */
void ps_sched_stalls_free(struct ps_sched *s);
void ps_sched_stall_drop_ctl(struct ps_sched *s, ps_conn_id ctl);
/* Continues queries whose time is up. Returns as ps_sched_on_stall_report(); the
 * caller then calls it again. */
struct ps_sched_job *ps_sched_stalls_tick(struct ps_sched_step *st,
                                          struct ps_str *why);
ps_time ps_sched_stalls_deadline(const struct ps_sched *s);
