/* SPDX-License-Identifier: Apache-2.0 */
/* Servers: values, commits and refusals. */
#pragma once

#include "core/base/machine.h"

struct ps_agent;
struct ps_agent_server;
struct ps_agent_step;
struct ps_msg;
struct ps_slice;

void ps_agent_reply_on_msg(struct ps_agent_step *st, struct ps_agent_server *s,
                           ps_conn_id conn, const struct ps_msg *m,
                           const struct ps_slice *payload);
/* Place for the payload of a server's message: 0, or a PS_E_* when it is to be
 * discarded or the message is malformed. */
int ps_agent_reply_payload(struct ps_agent *a, struct ps_agent_server *s,
                           const struct ps_msg *m, uint64_t len,
                           struct ps_slice *ret_slice);
