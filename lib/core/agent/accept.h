/* SPDX-License-Identifier: Apache-2.0 */
/* Acceptance of operations. */
#pragma once

struct ps_agent_session;
struct ps_agent_step;
struct ps_msg_l_op;

void ps_agent_accept_op(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m);
