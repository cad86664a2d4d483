/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of values into memory of GPUs. */
#pragma once

struct ps_agent_computation;
struct ps_agent_key;
struct ps_agent_part;
struct ps_agent_step;

/* Starts the copy of a partition, which has the value of its round, to the
 * workers that want it in memory of a GPU. */
void ps_agent_deliver_part(struct ps_agent_step *st, struct ps_agent_part *p);
/* Ends it, and frees `run`. Returns the key if the round is still the one that it
 * was; else NULL. */
struct ps_agent_key *ps_agent_deliver_end(struct ps_agent_computation *run,
                                          int error);
