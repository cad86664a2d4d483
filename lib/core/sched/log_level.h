/* SPDX-License-Identifier: Apache-2.0 */
/* Log levels of running members, which operators change. */
#pragma once

struct ps_msg_log_level;
struct ps_sched_conn;
struct ps_sched_step;

void ps_sched_on_log_level(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg_log_level *m);
