/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars and spans of the programs of this node's ranks. */
#pragma once

#include "core/agent/inner.h"

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

/* Adds the spans of a worker to the trace. */
void ps_agent_span_accept(struct ps_agent_step *st,
                          const struct ps_agent_session *s,
                          const struct ps_msg_l_spans *m);
/* Writes the names of the job's spans, borrowed, and returns their number. */
uint32_t
ps_agent_span_list(const struct ps_agent_job *j,
                   struct ps_rec_span_name list[PS_SPAN_NAMES_NODE_MAX]);
void ps_agent_span_free(struct ps_agent_job *j);
