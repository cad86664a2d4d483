/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of the programs of this node's ranks. */
#pragma once

#include "base/limits.h"
#include "proto/ps_msg.h"

struct ps_agent_job;
struct ps_agent_session;
struct ps_agent_step;

/* Adds the spans of a worker to the trace. */
void ps_agent_span_accept(struct ps_agent_step *st,
                          const struct ps_agent_session *s,
                          const struct ps_msg_l_spans *m);
/* Writes the names of the job's spans, borrowed, and returns their number. */
uint32_t
ps_agent_span_list(const struct ps_agent_job *j,
                   struct ps_rec_span_name list[PS_SPAN_NAMES_NODE_MAX]);
void ps_agent_span_free(struct ps_agent_job *j);
