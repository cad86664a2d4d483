/* SPDX-License-Identifier: Apache-2.0 */
/* Acceptance of operations. */
#pragma once

struct ps_agent_session;
struct ps_agent_step;
struct ps_msg_l_device_op;
struct ps_msg_l_op;

void ps_agent_accept_op(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m);
/* The same with memory of a GPU, of which the worker's event is over. */
void ps_agent_accept_device_op(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_msg_l_device_op *d);
