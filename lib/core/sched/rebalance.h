/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that balance or drain servers. */
#pragma once

#include "core/sched/job.h"

struct ps_sched_conn;
struct ps_sched_step;

/* Replies with the migrations that balance the job's servers, or that drain
 * server `off` ("": none). `makes`: also starts them. */
void ps_sched_rebalance_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                              struct ps_sched_job *j, const char *off,
                              bool makes);
