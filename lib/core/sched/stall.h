/* SPDX-License-Identifier: Apache-2.0 */
/* Stall queries: which ranks an operation waits for. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member.h"

struct ps_sched;
struct ps_sched_conn;
struct ps_sched_step;

void ps_sched_on_stall_query(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_stall_query *m);
void ps_sched_on_stall_report(struct ps_sched_step *st, struct ps_member *agent,
                              const struct ps_msg_stall_report *m);
/* Sends psctl the stall rows of one job, then decrements open_stalls. */
void ps_sched_stall_query_job(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_sched_conn *ctl);
void ps_sched_stall_drop_job(struct ps_sched_step *st, struct ps_sched_job *j);
/* Frees all queries, without a reply. */
void ps_sched_stalls_free(struct ps_sched *s);
void ps_sched_stall_drop_ctl(struct ps_sched *s, ps_conn_id ctl);
void ps_sched_stalls_tick(struct ps_sched_step *st);
ps_time ps_sched_stalls_deadline(const struct ps_sched *s);
