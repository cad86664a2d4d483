/* SPDX-License-Identifier: Apache-2.0 */
/* Agent machine: collects the contributions of the local ranks, sends their
 * sums to the servers by priority and credit, and keeps results in memory that
 * the workers map. docs/protocol.md has the message sequences. */
#pragma once

#include "core/agent/options.h"
#include "core/base/machine.h"

struct ps_agent;

struct ps_agent *ps_agent_new(const struct ps_agent_options *opt, ps_time now);
void ps_agent_free(struct ps_agent *a);
struct ps_machine ps_agent_machine(struct ps_agent *a);

/* Returns true while the agent is registered and connected. */
bool ps_agent_is_ready(const struct ps_agent *a);
/* Returns the number of jobs, sessions, stall queries and draining pools. */
uint64_t ps_agent_residue(const struct ps_agent *a);
void ps_agent_stats(const struct ps_agent *a, struct ps_agent_stats *ret);

/* For checkers: what this agent knows of a partition. Returns false if its key
 * is not open here. */
struct ps_agent_part_facts {
    int64_t committed_version; /* Newest that is known to be; -1: none is. */
    uint32_t count;
    uint8_t dtype;
    const char *owner; /* Name of its server; NULL: it belongs to none. */
};

bool ps_agent_peek(const struct ps_agent *a, uint64_t gen, uint32_t key,
                   uint32_t index, struct ps_agent_part_facts *ret);
/* For checkers: slot of this agent in a job. Returns false if it knows none. */
bool ps_agent_peek_slot(const struct ps_agent *a, uint64_t gen,
                        uint32_t *ret_slot);
