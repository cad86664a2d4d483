/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over the ranks of this node. */
#pragma once

#include "core/agent/inner.h"

/* Handles a new version of the partition: ends its init, round or pulls. */
void ps_agent_round_advance(struct ps_agent_step *st, struct ps_agent_part *p);
/* The server has committed `version` of the partition: raises it, and advances
 * the partition. `all_skipped`: all ranks skipped its round. */
void ps_agent_round_on_commit(struct ps_agent_step *st, struct ps_agent_part *p,
                              uint64_t version, bool all_skipped);
/* The init of the key has ended or failed: starts a round that became complete
 * meanwhile. */
void ps_agent_round_after_init(struct ps_agent_step *st,
                               struct ps_agent_key *k);
/* A copy of a value to GPUs has ended. */
void ps_agent_round_on_delivered(struct ps_agent_step *st,
                                 struct ps_agent_computation *run, int error);
/* A sum into the results has ended. `error`: 0 or a PS_E_*. */
void ps_agent_round_on_computed(struct ps_agent_step *st,
                                struct ps_agent_computation *run, int error);

/* Adds the contribution to its round, or defers it until that is open. */
void ps_agent_round_accept_op(struct ps_agent_step *st, struct ps_agent_op *op);
/* Ends the operations of the open round after its last partition; deferred
 * pushes start the next one. */
void ps_agent_round_end(struct ps_agent_step *st, struct ps_agent_key *k);
/* All local ranks have contributed: launches the ready partitions. */
void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k);
/* Launches, in order, the partitions whose bytes are ready on all ranks. */
void ps_agent_round_launch_ready(struct ps_agent_step *st,
                                 struct ps_agent_key *k);
