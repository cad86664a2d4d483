/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer state, saved and loaded. */
#pragma once

#include "core/server/session.h"

void ps_server_on_state_get(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_get *m);
void ps_server_on_state_put(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_put *m,
                            const struct ps_slice *payload);
