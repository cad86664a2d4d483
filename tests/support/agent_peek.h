/* SPDX-License-Identifier: Apache-2.0 */
/* State of an agent machine, for tests: partitions, its slot in a job. */
#pragma once

#include "core/agent/inner.h"

/* A partition; NULL: its key is not open at the agent. */
static inline const struct ps_agent_part *
agent_peek_part(const struct ps_agent *a, uint64_t gen, uint32_t key,
                uint32_t index)
{
    const struct ps_agent_job *j = ps_agent_job_find(a, gen);
    const struct ps_agent_key *k = j != NULL ? ps_map_get(j->keys, key) : NULL;

    return k != NULL && index < k->part_count ? &k->parts[index] : NULL;
}

/* Name of the server that owns the partition; NULL: none does, the agent does not
 * know its name yet, or `p` is NULL. */
static inline const char *agent_peek_owner(const struct ps_agent *a,
                                           const struct ps_agent_part *p)
{
    const struct ps_agent_server *s = p != NULL ? ps_map_get(a->servers.by_node,
                                                             p->owner_node)
                                                : NULL;

    return s != NULL && s->name[0] != '\0' ? s->name : NULL;
}

/* Slot of the agent in the job; UINT32_MAX: it knows none. */
static inline uint32_t agent_peek_slot(const struct ps_agent *a, uint64_t gen)
{
    const struct ps_agent_job *j = ps_agent_job_find(a, gen);

    return j != NULL && j->ranks_assigned ? j->slot : UINT32_MAX;
}
