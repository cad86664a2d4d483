/* SPDX-License-Identifier: Apache-2.0 */
/* Supervisors of pslaunch on this node, which start the processes of a job. */
#pragma once

#include <stdint.h>

struct ps_agent;
struct ps_agent_step;
struct ps_event;
struct ps_msg_launch_begin;

/* Decides whether this node starts the supervisor, and answers a refusal. */
void ps_agent_supervisor_on_begin(struct ps_agent_step *st,
                                  const struct ps_msg_launch_begin *m);
/* The supervisor has connected to pslaunch, or there is none. */
void ps_agent_supervisor_on_launched(struct ps_agent_step *st,
                                     const struct ps_event *ev);
/* It has ended, and all processes of its job here. */
void ps_agent_supervisor_on_ended(struct ps_agent_step *st, uint64_t id);
void ps_agent_supervisor_free_all(struct ps_agent *a);
