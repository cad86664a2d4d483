/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the machine, for its reports to the scheduler and for checkers. */
#include "core/agent/inspect.h"

#include "core/agent/inner.h"

bool ps_agent_is_ready(const struct ps_agent *a)
{
    return ps_uplink_is_connected(&a->uplink);
}

uint64_t ps_agent_residue(const struct ps_agent *a)
{
    return ps_map_count(a->jobs) + ps_map_count(a->sessions_by_conn) +
           ps_map_count(a->stall_queries) + a->draining_pools.count;
}

void ps_agent_stats(const struct ps_agent *a, struct ps_agent_stats *ret)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_server *s;

    *ret = a->stats;
    ret->sessions = (uint32_t)ps_map_count(a->sessions_by_conn);
    ret->resent = ps_link_resent(a->uplink.dialer.link);
    ret->pending_ops = 0;
    PS_LIST_EACH(n, &a->sessions)
    {
        ret->pending_ops +=
            PS_CONTAINER(n, struct ps_agent_session, node)->op_count;
    }
    while ((s = ps_map_next(a->servers.by_node, &c)) != NULL) {
        ret->resent += ps_link_resent(s->dialer.link);
    }
}

bool ps_agent_peek(const struct ps_agent *a, uint64_t gen, uint32_t key,
                   uint32_t index, uint64_t *ret_committed)
{
    const struct ps_agent_job *j = ps_agent_job_find(a, gen);
    const struct ps_agent_key *k = j == NULL ? NULL : ps_map_get(j->keys, key);

    if (k == NULL || index >= k->part_count ||
        k->parts[index].committed_version == NO_VERSION) {
        return false;
    }
    *ret_committed = (uint64_t)k->parts[index].committed_version;
    return true;
}

bool ps_agent_peek_part(const struct ps_agent *a, uint64_t gen, uint32_t key,
                        uint32_t index, struct ps_agent_part_facts *ret)
{
    const struct ps_agent_server *s;
    const struct ps_agent_job *j = ps_agent_job_find(a, gen);
    const struct ps_agent_key *k = j == NULL ? NULL : ps_map_get(j->keys, key);

    if (k == NULL || index >= k->part_count) {
        return false;
    }
    s = ps_map_get(a->servers.by_node, k->parts[index].owner_node);
    if (s == NULL) {
        return false;
    }
    *ret = (struct ps_agent_part_facts){
        .count = k->parts[index].count, .dtype = k->dtype, .owner = s->name};
    return true;
}

bool ps_agent_peek_slot(const struct ps_agent *a, uint64_t gen,
                        uint32_t *ret_slot)
{
    const struct ps_agent_job *j = ps_agent_job_find(a, gen);

    if (j == NULL || !j->ranks_assigned) {
        return false;
    }
    *ret_slot = j->slot;
    return true;
}
