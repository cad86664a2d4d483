/* SPDX-License-Identifier: Apache-2.0 */
/* Standstills: what the processes of a job wait for, and whether they can go on
 * by themselves. */
#pragma once

#include "core/agent/inner.h"

/* The scheduler asks about a job. Its processes are asked, then it gets a
 * report. */
void ps_agent_waits_on_collect(struct ps_agent_step *st,
                               const struct ps_msg_wait_collect *m);
/* A process has answered. */
void ps_agent_waits_on_state(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_wait_state *m);
/* Describes the process of a session, as of its last answer and of now.
 * `ret->does` lies in `text`, of PS_DOES_MAX + 1 bytes. */
void ps_agent_waits_describe(const struct ps_agent *a,
                             const struct ps_agent_session *s,
                             struct ps_rec_rank_wait *ret, char *text);
/* A fresh link: a new scheduler does not know which jobs stand still. */
void ps_agent_waits_resend(struct ps_agent_step *st);
void ps_agent_waits_tick(struct ps_agent_step *st);
void ps_agent_waits_fini(struct ps_agent *a);
