/* SPDX-License-Identifier: Apache-2.0 */
/* Rows keys: contributions, merge, pulls. */
#pragma once

#include "core/server/kind.h"
#include "core/server/merge.h"

extern const struct ps_server_contribution_kind ps_server_rows_kind;

/* Decides whether the payload of a pull_rows is received: 0, or the discard
 * reason. */
int ps_server_rows_check_payload(struct ps_server *s,
                                 struct ps_server_session *p,
                                 const struct ps_msg *msg, uint64_t len,
                                 struct ps_server_slot **ret_slot);
void ps_server_on_pull_rows(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload);
/* Replies to row pulls that the present version satisfies. */
void ps_server_rows_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part);
