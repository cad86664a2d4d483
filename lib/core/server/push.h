/* SPDX-License-Identifier: Apache-2.0 */
/* Acceptance of contributions, whatever their kind. */
#pragma once

#include "core/server/job.h"

/* Handles PS_MSG_PUSH and PS_MSG_PUSH_ROWS. */
void ps_server_on_push(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg,
                       const struct ps_slice *payload);
/* Decides whether the payload of such a message is received: 0, or the discard
 * reason. */
int ps_server_push_check_payload(struct ps_server *s,
                                 struct ps_server_session *p,
                                 const struct ps_msg *msg, uint64_t len,
                                 struct ps_server_slot **ret_slot);
