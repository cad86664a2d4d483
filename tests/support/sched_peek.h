/* SPDX-License-Identifier: Apache-2.0 */
/* Places of jobs as a scheduler machine has them, for tests. */
#pragma once

#include "core/sched/inner.h"

#include <string.h>

/* Process that has the name of a server; 0: none. */
static inline uint64_t sched_peek_instance(const struct ps_sched *s,
                                           const char *name)
{
    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        if (m->role == PS_ROLE_SERVER && strcmp(m->name, name) == 0) {
            return m->instance;
        }
    }
    return 0;
}

/* True if the scheduler has given up the server of that name, or has none. */
static inline bool sched_peek_is_gone(const struct ps_sched *s,
                                      const char *name)
{
    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        if (m->role == PS_ROLE_SERVER && strcmp(m->name, name) == 0) {
            return m->state == PS_NODE_STATE_GONE;
        }
    }
    return true;
}

/* True if each place of each job has a backup that counts, and all owners and
 * backups are connected: any one of them may be lost. */
static inline bool sched_peek_has_two_copies(const struct ps_sched *s)
{
    PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
    {
        for (uint32_t i = 0; ps_sched_job_is_open(j) && i < j->servers.count;
             i++) {
            const struct ps_sched_job_server *on = &j->servers.list[i];
            const struct ps_member *m = ps_members_get(&s->members, on->node);
            const struct ps_member *b = ps_members_get(&s->members, on->backup);

            if (!on->is_filled || m == NULL || b == NULL ||
                m->state != PS_NODE_STATE_ACTIVE ||
                b->state != PS_NODE_STATE_ACTIVE ||
                m->instance != on->instance ||
                b->instance != on->backup_instance) {
                return false;
            }
        }
    }
    return true;
}

/* True if the job has failed or ended, or is not known. */
static inline bool sched_peek_is_over(const struct ps_sched *s, uint64_t gen)
{
    const struct ps_sched_job *j = ps_map_get(s->jobs, gen);

    return j == NULL || !ps_sched_job_is_open(j);
}

/* Marks all that the scheduler has as changed, so that its next step writes all
 * of its file. */
static inline void sched_peek_mark_all(struct ps_sched *s)
{
    for (uint32_t i = 0; i < s->members.count; i++) {
        ps_sched_store_member(s, s->members.sorted[i]);
    }
    s->store.has_saved_meta = false;
    PS_MAP_EACH(struct ps_sched_job, j, s->jobs)
    {
        ps_sched_store_job(s, j);
        for (uint32_t i = 0; i < j->workers.count; i++) {
            j->workers.list[i].unsaved = true;
        }
        for (uint32_t i = 0; i < j->keys.count; i++) {
            if (j->keys.list[i] != NULL) {
                ps_sched_store_key(s, j, j->keys.list[i]);
            }
        }
    }
}
