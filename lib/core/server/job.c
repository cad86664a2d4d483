/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of jobs and their slots. */
#include "core/server/job.h"

#include "core/server/inner.h"

struct ps_server_job *ps_server_job_find(const struct ps_server *s,
                                         uint64_t gen)
{
    return ps_map_get(s->jobs.by_gen, gen);
}

int ps_server_job_find_slot(struct ps_server_job *job,
                            const struct ps_server_session *p, uint32_t slot,
                            struct ps_server_slot **ret_slot)
{
    if (slot >= job->slot_count) {
        return PS_E_INVAL;
    }
    if (job->slots[slot].agent_node != p->agent_node) {
        return PS_E_PERM;
    }
    if (job->slots[slot].incarnation != p->incarnation) {
        return PS_E_STALE;
    }
    *ret_slot = &job->slots[slot];
    return 0;
}

struct ps_server_session *
ps_server_slot_session(const struct ps_server_slot *slot)
{
    struct ps_server_session *p = ps_map_get(
        slot->job->server->sessions.by_node, slot->agent_node);

    return p != NULL && p->incarnation == slot->incarnation ? p : NULL;
}

const struct ps_server_slot *ps_server_job_slot_of(const struct ps_server *s,
                                                   const struct ps_msg_hello *m)
{
    struct ps_map_cursor c = {0};
    const struct ps_server_job *job;

    while ((job = ps_map_next(s->jobs.by_gen, &c)) != NULL) {
        for (uint32_t i = 0; i < job->slot_count; i++) {
            const struct ps_server_slot *slot = &job->slots[i];

            if (slot->agent_node == m->node &&
                slot->incarnation == m->incarnation &&
                slot->instance == m->instance) {
                return slot;
            }
        }
    }
    return NULL;
}
