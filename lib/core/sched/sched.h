/* SPDX-License-Identifier: Apache-2.0 */
/* Scheduler machine: membership, jobs with their ranks, placement of
 * partitions, barriers. docs/protocol.md shows the message sequences. */
#pragma once

#include "core/base/machine.h"
#include "core/sched/options.h"

struct ps_sched;

struct ps_sched *ps_sched_new(const struct ps_sched_options *opt, ps_time now);
void ps_sched_free(struct ps_sched *s);
struct ps_machine ps_sched_machine(struct ps_sched *s);

/* For checkers and the daemon's state dump. */
uint32_t ps_sched_epoch(const struct ps_sched *s);
/* Messages of members about what is not their own. */
uint64_t ps_sched_refused_frames(const struct ps_sched *s);
/* Jobs that have not ended. */
uint32_t ps_sched_job_count(const struct ps_sched *s);
/* Jobs whose ranks wait for each other. */
uint32_t ps_sched_diverged_count(const struct ps_sched *s);
uint32_t ps_sched_member_count(const struct ps_sched *s, enum ps_role role,
                               enum ps_node_state state);
/* Calls `each` for every scalar of every job that has not ended. */
typedef void (*ps_sched_scalar_cb)(void *ctx, const struct ps_msg_job_row *job,
                                   const struct ps_rec_job_scalar *scalar);
void ps_sched_each_scalar(const struct ps_sched *s, ps_sched_scalar_cb each,
                          void *ctx);
/* Count of jobs, keys, waiters, open barriers, stall queries and servers with
 * placed bytes; 0: no state is left. */
uint64_t ps_sched_residue(const struct ps_sched *s);
