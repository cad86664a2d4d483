/* SPDX-License-Identifier: Apache-2.0 */
/* Rows keys (row-sparse); kind.h has their operations. */
#pragma once

#include <stdint.h>

struct ps_agent_server;
struct ps_agent_step;
struct ps_msg_rows;
struct ps_slice;

void ps_agent_rows_on_rows(struct ps_agent_step *st,
                           const struct ps_agent_server *s,
                           const struct ps_msg_rows *m,
                           const struct ps_slice *payload);
/* Returns the payload bytes of the message; 0: none, or malformed. */
uint64_t ps_agent_rows_payload_bytes(const struct ps_msg_rows *m);
