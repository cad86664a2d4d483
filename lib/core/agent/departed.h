/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that are gone. */
#pragma once

#include <stdint.h>

struct ps_agent;
struct ps_agent_session;
struct ps_agent_step;

/* Records that the worker of a session is gone, and reports it. */
void ps_agent_departed_add(struct ps_agent_step *st,
                           const struct ps_agent_session *s);
/* Resends all departures. */
void ps_agent_departed_resend(struct ps_agent_step *st);
/* Forgets the departures of a job that is over. */
void ps_agent_departed_drop_job(struct ps_agent *a, uint64_t gen);
/* Drops departures that a new scheduler cannot know. Those of jobs on this node
 * stay: the scheduler answers them with the job's end. */
void ps_agent_departed_drop_unknown(struct ps_agent *a);
