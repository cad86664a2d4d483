/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of optimizer state. */
#pragma once

#include "core/agent/inner.h"

void ps_agent_opt_state_accept_op(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_optimizer_state *m);
void ps_agent_opt_state_on_state(struct ps_agent_step *st,
                                 const struct ps_agent_server *server,
                                 const struct ps_msg_state *m,
                                 const struct ps_slice *payload);
/* Resends the unanswered requests to a server that may have lost them. */
void ps_agent_opt_state_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                               uint32_t node);
/* Sends the partition's unanswered request to its new owner. */
void ps_agent_opt_state_reset_part(struct ps_agent_step *st,
                                   struct ps_agent_part *p);
/* Sends as many requests as may be in flight. */
void ps_agent_opt_state_advance(struct ps_agent_step *st,
                                struct ps_agent_key *k);
