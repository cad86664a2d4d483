/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of operators' tools. */
#pragma once

#include "core/sched/token.h"

struct ps_sched_step;

/* The open job that a tool names, for which it has the right. NULL: the request
 * was answered with the reason. */
struct ps_sched_job *ps_sched_query_job(struct ps_sched_step *st,
                                        struct ps_sched_conn *c,
                                        struct ps_sched_job_name n,
                                        enum ps_token_right right);
/* True: an earlier request of the connection is not done, and the new one was
 * answered with that. */
bool ps_sched_query_is_busy(struct ps_sched_step *st, struct ps_sched_conn *c);

void ps_sched_on_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_query *m);
void ps_sched_on_job_set(struct ps_sched_step *st, struct ps_sched_conn *c,
                         const struct ps_msg_job_set *m);
void ps_sched_on_job_cancel(struct ps_sched_step *st, struct ps_sched_conn *c,
                            const struct ps_msg_job_cancel *m);
/* Sends further rows; called when the output of the connection has drained. */
void ps_sched_query_send_rows(struct ps_sched_step *st,
                              struct ps_sched_conn *c);
