/* SPDX-License-Identifier: Apache-2.0 */
/* Rows keys: contributions, merge, pulls. */
#pragma once

#include "core/server/kind.h"
#include "core/server/merges.h"

struct ps_compute;

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
/* Returns the computation that merges a round of rows into run->result.
 * PS_E_NOMEM: nothing has changed. */
int ps_server_rows_plan_merge(struct ps_server_merge *run,
                              struct ps_compute **ret_compute);
/* True if the round changes no row: it has none, and rows without a gradient
 * stay. */
bool ps_server_rows_is_noop(const struct ps_server_job *job,
                            const struct ps_part *part);
