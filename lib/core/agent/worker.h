/* SPDX-License-Identifier: Apache-2.0 */
/* Training processes: their messages, acceptance of operations, their end. */
#pragma once

#include "core/agent/inner.h"

void ps_agent_session_on_msg(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg *m);
/* Handles each operation as a message. */
void ps_agent_session_on_ops(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_session_on_closed(struct ps_agent_step *st,
                                struct ps_agent_session *s);
void ps_agent_session_free(struct ps_agent *a, struct ps_agent_session *s);
