/* SPDX-License-Identifier: Apache-2.0 */
/* Stall queries: the reason why an operation waits. */
#pragma once

#include "core/agent/inner.h"

void ps_agent_diagnose_op(struct ps_agent_step *st, struct ps_agent_session *s,
                          uint64_t op_id);
/* Answers, as to operation 0, what the start of the session's job waits for. */
void ps_agent_diagnose_start(struct ps_agent_step *st,
                             struct ps_agent_session *s);
void ps_agent_diagnose_on_reply(struct ps_agent_step *st,
                                const struct ps_msg_stall_reply *m);
/* Reports to the scheduler which local ranks and servers an operation of the
 * job waits for. */
void ps_agent_diagnose_on_collect(struct ps_agent_step *st,
                                  const struct ps_msg_stall_collect *m);
void ps_agent_diagnose_resend(struct ps_agent_step *st);
/* Answers queries to which the scheduler is silent. */
void ps_agent_diagnose_tick(struct ps_agent_step *st);
void ps_agent_diagnose_fini(struct ps_agent *a);
/* Drops the queries of a session that is gone. */
void ps_agent_diagnose_drop_session(struct ps_agent *a,
                                    struct ps_agent_session *s);
