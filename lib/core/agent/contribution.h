/* SPDX-License-Identifier: Apache-2.0 */
/* Contributions of the local ranks to a round. */
#pragma once

#include "core/agent/inner.h"

struct ps_agent_key;
struct ps_agent_part;
struct ps_slice;

void ps_agent_round_set_state(struct ps_agent_key *k,
                              enum ps_agent_round_state to);
/* Returns the number of contributions to the open round that are not skips, or
 * in a mean their samples (rule R20). */
uint64_t ps_agent_contribution_weight(const struct ps_agent_key *k);
/* Returns true if all local ranks have copied their contribution to it. */
bool ps_agent_contribution_is_ready(const struct ps_agent_part *p);
/* Returns true if the rank has not contributed to the round, or is still
 * copying its contribution. */
bool ps_agent_contribution_awaits_rank(const struct ps_agent_key *k,
                                       uint32_t local, uint64_t round);
/* Writes the contribution of a local rank to a partition; returns false if it
 * has none. */
bool ps_agent_contribution_source(const struct ps_agent_part *p, uint32_t local,
                                  struct ps_slice *ret);
/* Writes this node's sources of a partition in rank order; returns their
 * number, at most one per local rank. */
uint32_t ps_agent_contribution_sources(const struct ps_agent_part *p,
                                       struct ps_slice *slices);
/* Returns true when all ranks of the job skipped the round. A server's report
 * is ignored if a local rank contributed (rule R23). */
bool ps_agent_contribution_all_skipped(const struct ps_agent_key *k);
