/* SPDX-License-Identifier: Apache-2.0 */
/* Messages sent to servers again. */
#pragma once

struct ps_agent_server;
struct ps_agent_step;

/* Resends to a server with a new link all that is not committed. */
void ps_agent_resend_server(struct ps_agent_step *st,
                            struct ps_agent_server *s);
/* Resends everything that was refused for a transient reason. */
void ps_agent_resend_refused(struct ps_agent_step *st);
