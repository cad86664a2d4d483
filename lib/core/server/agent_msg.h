/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of agents, memory for their payloads. */
#pragma once

#include "core/server/sessions.h"

void ps_server_agent_on_msg(struct ps_server_step *st, ps_conn_id conn,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload, int discard_reason);
int ps_server_agent_payload(struct ps_server *s, ps_conn_id conn,
                            const struct ps_msg *msg, uint64_t len,
                            struct ps_slice *ret_slice);
