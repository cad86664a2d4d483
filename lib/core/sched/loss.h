/* SPDX-License-Identifier: Apache-2.0 */
/* Lost workers, agents and servers, and fresh links. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched_step;

/* Filter for LIVE workers. ps_sched_job_lose_workers() makes those that match
 * LOST, or removes them before the start; it may free the job. */
struct ps_sched_loss {
    uint32_t agent_node;
    uint64_t worker;
    uint64_t token;   /* Not 0: all of the agent that joined by this token. */
    bool all_workers; /* All of the agent; else only `worker`. */
    bool only_unconfirmed; /* Only workers not confirmed on a fresh link. */
};
void ps_sched_job_lose_workers(struct ps_sched_step *st, struct ps_sched_job *j,
                               const struct ps_sched_loss *which,
                               const char *why);
void ps_sched_jobs_lose_agent(struct ps_sched_step *st, struct ps_member *agent,
                              const char *why);
void ps_sched_jobs_lose_server(struct ps_sched_step *st,
                               struct ps_member *server, const char *why);
/* Loses the workers that an agent on a fresh link has not reported. */
void ps_sched_workers_drop_missing(struct ps_sched_step *st,
                                   struct ps_member *agent);
/* Loses the workers whose tokens have expired or were revoked, and has their
 * agents end them with that reason. */
void ps_sched_workers_drop_tokens(struct ps_sched_step *st);
/* Sends a member on a fresh link all that it needs of its jobs; an agent has to
 * report its workers again. */
void ps_sched_jobs_on_fresh_link(struct ps_sched_step *st, struct ps_member *m);
