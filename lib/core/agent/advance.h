/* SPDX-License-Identifier: Apache-2.0 */
/* New versions: end of rounds and inits. */
#pragma once

struct ps_agent_computation;
struct ps_agent_key;
struct ps_agent_part;
struct ps_agent_step;

/* Handles a new version of the partition: ends its init, round or pulls. */
void ps_agent_advance_part(struct ps_agent_step *st, struct ps_agent_part *p);
/* The init of the key has ended or failed: starts a round that became complete
 * meanwhile. */
void ps_agent_advance_after_init(struct ps_agent_step *st,
                                 struct ps_agent_key *k);
/* Advances partitions of a complete round that are committed already: servers
 * may have merged pushes of the previous agent and reported that to this
 * one. */
void ps_agent_advance_committed(struct ps_agent_step *st,
                                struct ps_agent_key *k);
/* Launches the partition, and advances it if it has the version at once. */
void ps_agent_advance_launch(struct ps_agent_step *st, struct ps_agent_part *p);
/* A copy of a value to GPUs has ended. */
void ps_agent_advance_on_delivered(struct ps_agent_step *st,
                                   struct ps_agent_computation *run, int error);
/* A sum into the results has ended. `error`: 0 or a PS_E_*. */
void ps_agent_advance_on_computed(struct ps_agent_step *st,
                                  struct ps_agent_computation *run, int error);
