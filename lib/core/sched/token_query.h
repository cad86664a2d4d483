/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of tools about tokens. */
#pragma once

#include "core/sched/inner.h"

struct ps_sched_step;

/* Sends a row for each token that the tool may manage. */
void ps_sched_token_send_rows(struct ps_sched_step *st,
                              struct ps_sched_conn *c);
void ps_sched_on_token_issue(struct ps_sched_step *st, struct ps_sched_conn *c,
                             const struct ps_msg_token_issue *m);
void ps_sched_on_token_revoke(struct ps_sched_step *st, struct ps_sched_conn *c,
                              const struct ps_msg_token_revoke *m);
