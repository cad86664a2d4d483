/* SPDX-License-Identifier: Apache-2.0 */
/* Pull and init. */
#pragma once

#include "core/agent/inner.h"

/* Returns true when version `least` will arrive without another request. */
bool ps_agent_pull_is_expected(const struct ps_agent_part *p, int64_t least);
void ps_agent_pull_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Ends a pull of the worker that waits; an answer to it is ignored. Nothing
 * happens if it has ended. */
void ps_agent_pull_cancel(struct ps_agent_step *st, struct ps_agent_session *s,
                          struct ps_agent_key *k, uint64_t op_id);
/* Kind's advance() for versions. */
void ps_agent_pull_advance(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_init_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Sends the root's init if one is waiting. */
void ps_agent_init_start_pending(struct ps_agent_step *st,
                                 struct ps_agent_key *k);
/* Reopens an init that was committed at a lost server. Returns true if the root
 * is on this node, so that the init is sent again. */
bool ps_agent_init_reopen_part(struct ps_agent_part *p);
