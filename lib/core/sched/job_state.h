/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs by generation and name, and their state as sent to members. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched;
struct ps_sched_step;

/* NULL: no such job. By owner and name, only an open job is found. */
struct ps_sched_job *ps_sched_find_job(const struct ps_sched *s, uint64_t gen);
struct ps_sched_job *ps_sched_find_open_job(const struct ps_sched *s,
                                            uint32_t uid, const char *name);
/* The parent of a group of this name, "job/group": an open job of user `uid`,
 * else one of any user, else a failed one of `uid`, else NULL. */
const struct ps_sched_job *ps_sched_find_parent_job(const struct ps_sched *s,
                                                    const char *name,
                                                    uint32_t uid);
/* Error code for a generation without a job; the reason goes to `ret`. `name`:
 * name of the job as the peer gives it; NULL: unknown. */
int ps_sched_job_end_reason(const struct ps_sched *s, uint64_t gen,
                            const char *name, struct ps_str *ret);
/* Checks that the agent may make requests in `j`, the job of `gen` or NULL. 0,
 * or an error code with the reason. */
int ps_sched_job_check_agent(const struct ps_sched *s,
                             const struct ps_sched_job *j, uint64_t gen,
                             const struct ps_member *agent, struct ps_str *why);
/* Sends a new version of the job's state to its servers and agents. */
void ps_sched_job_publish(struct ps_sched_step *st, struct ps_sched_job *j);
/* The same after a short delay, together with other changes. */
void ps_sched_job_publish_later(struct ps_sched_step *st,
                                struct ps_sched_job *j);
void ps_sched_job_send_state(struct ps_sched_step *st, struct ps_sched_job *j,
                             struct ps_member *m);
/* Sends state ENDED to a member whose job has ended, or is not its own. */
void ps_sched_job_send_ended(struct ps_sched_step *st, struct ps_member *m,
                             uint64_t gen, uint32_t version);
