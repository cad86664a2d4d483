/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of a job, which tools read member by member. */
#pragma once

#include "base/time.h"

struct ps_member;
struct ps_msg;
struct ps_msg_trace_get;
struct ps_sched;
struct ps_sched_conn;
struct ps_sched_step;

void ps_sched_on_trace_get(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg_trace_get *m);
/* As ps_sched_migration_check_answer(), of trace_entries. */
int ps_sched_trace_check_answer(const struct ps_sched *s,
                                const struct ps_member *member,
                                const struct ps_msg *msg);
/* Passes the answer on to the tool that asked. */
void ps_sched_on_trace_entries(struct ps_sched_step *st,
                               const struct ps_member *member,
                               const struct ps_msg *msg);
/* Ends the connection's request if the member did not answer in time. */
void ps_sched_trace_tick(struct ps_sched_step *st, struct ps_sched_conn *c);
/* When that is; PS_TIME_NEVER: there is no request. */
ps_time ps_sched_trace_deadline(const struct ps_sched_conn *c);
/* Forgets the connection's request. */
void ps_sched_trace_drop(struct ps_sched_conn *c);
