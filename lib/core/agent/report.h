/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars of the ranks of this node. */
#pragma once

#include "proto/ps_msg.h"

struct ps_agent_job;
struct ps_agent_session;
struct ps_agent_step;

/* A worker reports scalars. Its operation ends when the scheduler has them. */
void ps_agent_report_accept(struct ps_agent_step *st,
                            struct ps_agent_session *s,
                            const struct ps_msg_l_report *m);
void ps_agent_report_on_done(struct ps_agent_step *st,
                             const struct ps_msg_report_done *m);
/* Sends reports that are due. */
void ps_agent_report_tick(struct ps_agent_step *st);
/* A fresh link: reports everything again. */
void ps_agent_report_resend(struct ps_agent_step *st, struct ps_agent_job *j);
void ps_agent_report_free(struct ps_agent_job *j);
