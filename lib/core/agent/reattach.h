/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that lost an earlier agent. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ps_agent_key;
struct ps_agent_op;
struct ps_agent_session;
struct ps_agent_step;

/* Takes over the completed barriers of a reattached worker. */
void ps_agent_reattach_session(struct ps_agent_step *st,
                               struct ps_agent_session *s);
/* A reattached worker declares a key of which it completed `pushed` rounds.
 * Returns false if that is inconsistent; the session is then closed. */
bool ps_agent_reattach_key(struct ps_agent_step *st, struct ps_agent_session *s,
                           struct ps_agent_key *k, uint64_t pushed);
/* Applies the prior state to a key that has been opened. */
void ps_agent_reattach_key_opened(struct ps_agent_step *st,
                                  struct ps_agent_key *k);
/* Returns true if the operation's round was completed before the reattach, as
 * another rank reported; the operation is then handled here. */
bool ps_agent_reattach_accept_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op);
void ps_agent_reattach_free(struct ps_agent_key *k);
