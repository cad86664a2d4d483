/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls, now or when their version is made. */
#pragma once

#include "core/server/job.h"

void ps_server_on_pull(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg);
/* Replies to pulls that the present version satisfies. `up_to_date`: slots that
 * have its value already; may be NULL. */
void ps_server_pull_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part,
                                  const struct ps_bits *up_to_date);

/* Decides whether the payload of a pull_rows is received: 0, or the discard
 * reason. */
int ps_server_rows_check_payload(struct ps_server *s,
                                 struct ps_server_session *p,
                                 const struct ps_msg *msg, uint64_t len,
                                 struct ps_server_slot **ret_slot);
void ps_server_on_pull_rows(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload);
