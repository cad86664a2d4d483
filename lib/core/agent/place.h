/* SPDX-License-Identifier: Apache-2.0 */
/* Owners of partitions, and what is sent again after a loss. */
#pragma once

#include "core/agent/inner.h"

/* --------------------------------------------------------------- placement */

/* Returns true when the table's partitions are exactly the elements of the key
 * and each fits into a frame. */
bool ps_agent_place_covers(const struct ps_agent_key *k,
                           const struct ps_msg_key_opened *m,
                           const struct ps_slice *payload);
/* Makes the partitions of a key from a table that covers it. */
int ps_agent_place_build(struct ps_agent_key *k,
                         const struct ps_msg_key_opened *m,
                         const struct ps_slice *payload);
/* Gives the partitions that a newer table places elsewhere to their owners. */
void ps_agent_place_apply(struct ps_agent_step *st, struct ps_agent_key *k,
                          const struct ps_msg_key_opened *m,
                          const struct ps_slice *payload);
/* Keeps the newest placement of a key until the key is open, because links do
 * not preserve order. */
void ps_agent_place_defer(struct ps_agent_job *j,
                          const struct ps_msg_key_opened *m,
                          const struct ps_slice *payload);
void ps_agent_place_apply_deferred(struct ps_agent_step *st,
                                   struct ps_agent_key *k);
void ps_agent_place_drop_deferred(struct ps_agent_job *j);
/* Sends restore for each partition to its owner, which may have taken the
 * partition over and wait for the report of this slot. */
void ps_agent_place_report_all(struct ps_agent_step *st,
                               struct ps_agent_key *k);

/* ------------------------------------------------------ reattached workers */

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

/* --------------------------------------------------------------- resending */

/* Resends to a server with a new link all that is not committed. `is_next`: the
 * server is another process than before, with what that one had. */
void ps_agent_resend_server(struct ps_agent_step *st, struct ps_agent_server *s,
                            bool is_next);
/* Resends everything that was refused for a transient reason. */
void ps_agent_resend_refused(struct ps_agent_step *st);
