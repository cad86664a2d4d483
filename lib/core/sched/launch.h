/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of tools to agents, which start the supervisors of pslaunch. */
#pragma once

#include "base/time.h"

struct ps_member;
struct ps_msg;
struct ps_msg_launch_begun;
struct ps_msg_launch_order;
struct ps_sched;
struct ps_sched_conn;
struct ps_sched_step;

void ps_sched_on_launch_order(struct ps_sched_step *st, struct ps_sched_conn *c,
                              const struct ps_msg_launch_order *m);
/* As ps_sched_migration_check_answer(), of a launch_begun. */
int ps_sched_launch_check_answer(const struct ps_sched *s,
                                 const struct ps_member *member,
                                 const struct ps_msg *msg);
/* Passes the answer on to the tool that ordered. */
void ps_sched_on_launch_begun(struct ps_sched_step *st,
                              const struct ps_member *member,
                              const struct ps_msg_launch_begun *m);
/* Ends the connection's order if the agent did not answer in time. */
void ps_sched_launch_tick(struct ps_sched_step *st, struct ps_sched_conn *c);
/* When that is; PS_TIME_NEVER: there is no order. */
ps_time ps_sched_launch_deadline(const struct ps_sched_conn *c);
/* Forgets the connection's order. */
void ps_sched_launch_drop(struct ps_sched_conn *c);
