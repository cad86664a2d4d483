/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of operators' tools. */
#pragma once

#include "core/base/effect.h"

struct ps_sched_conn;
struct ps_sched_step;

void ps_sched_on_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_query *m);
void ps_sched_on_job_set(struct ps_sched_step *st, struct ps_sched_conn *c,
                         const struct ps_msg_job_set *m);
void ps_sched_on_job_cancel(struct ps_sched_step *st, struct ps_sched_conn *c,
                            const struct ps_msg_job_cancel *m);
/* Sends further rows; called when the output of the connection has drained. */
void ps_sched_query_send_rows(struct ps_sched_step *st,
                              struct ps_sched_conn *c);
