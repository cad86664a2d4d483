/* SPDX-License-Identifier: Apache-2.0 */
/* Servers of jobs: those that a job may get, and its own. */
#include "core/sched/job_server.h"

#include "base/alloc.h"
#include "core/sched/inner.h"

#include <string.h>

/* True: this process was notified that the job has ended for it. */
static bool was_removed(const struct ps_sched_job *j, const struct ps_member *m)
{
    for (uint32_t i = 0; i < j->servers.removed_count; i++) {
        if (j->servers.removed[i].node == m->node &&
            j->servers.removed[i].incarnation == m->incarnation) {
            return true;
        }
    }
    return false;
}

static bool is_usable_server(const struct ps_sched_job *j,
                             const struct ps_member *m)
{
    return m->role == PS_ROLE_SERVER && m->state == PS_NODE_STATE_ACTIVE &&
           !m->last_ping.draining &&
           ps_sched_job_server_of(j, m->node) == NULL && !was_removed(j, m);
}

uint32_t ps_sched_count_servers(const struct ps_sched *s,
                                uint32_t *ret_draining, const char **ret_name)
{
    uint32_t active = ps_members_count(&s->members, PS_ROLE_SERVER,
                                       PS_NODE_STATE_ACTIVE);

    *ret_draining = 0;
    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        if (m->role == PS_ROLE_SERVER && m->state == PS_NODE_STATE_ACTIVE &&
            m->last_ping.draining) {
            *ret_name = m->name;
            ++*ret_draining;
        }
    }
    return active - *ret_draining;
}

void ps_sched_describe_servers(const struct ps_sched *s,
                               const struct ps_sched_job *j, struct ps_str *out)
{
    const char *name = "";
    uint32_t draining;
    uint32_t active = ps_sched_count_servers(s, &draining, &name);

    if (j->phase != PS_JOB_PHASE_FORMING || active >= j->opt.num_servers) {
        return;
    }
    ps_str_addf(out, "needs %u server%s, %u %s here", j->opt.num_servers,
                j->opt.num_servers == 1 ? "" : "s", active,
                active == 1 ? "is" : "are");
    if (draining > 0) {
        ps_str_addf(out, ", and %s is shutting down", name);
    }
    ps_str_addf(out, ": start more, or ask for fewer (%s)",
                "PSKV_NUM_SERVERS, pslaunch -s");
}

struct ps_member *ps_sched_job_next_server(const struct ps_sched *s,
                                           const struct ps_sched_job *j)
{
    struct ps_member *best = NULL;

    for (uint32_t i = 0; i < s->members.count; i++) {
        struct ps_member *m = s->members.sorted[i];

        if (is_usable_server(j, m) &&
            (best == NULL || m->placed_bytes < best->placed_bytes)) {
            best = m;
        }
    }
    return best;
}

uint32_t
ps_sched_job_spare_servers(const struct ps_sched *s,
                           const struct ps_sched_job *j,
                           const struct ps_member *list[PS_SERVERS_MAX])
{
    uint32_t lacking = j->opt.num_servers > j->servers.count
                           ? j->opt.num_servers - j->servers.count
                           : 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];
        uint32_t at = count;

        if (!is_usable_server(j, m)) {
            continue;
        }
        while (at > 0 && list[at - 1]->placed_bytes > m->placed_bytes) {
            at--;
        }
        if (at < lacking) {
            count += count < lacking;
            memmove(&list[at + 1], &list[at],
                    (count - 1 - at) * sizeof(list[0]));
            list[at] = m;
        }
    }
    return count;
}

/* Keeps the list sorted by name. */
void ps_sched_job_add_server(struct ps_sched_job *j, const struct ps_member *m)
{
    uint32_t i = j->servers.count;

    j->servers.list = ps_realloc(j->servers.list, (j->servers.count + 1u) *
                                                      sizeof(*j->servers.list));
    while (i > 0 && strcmp(j->servers.list[i - 1].name, m->name) > 0) {
        j->servers.list[i] = j->servers.list[i - 1];
        i--;
    }
    j->servers.list[i] = (struct ps_sched_job_server){.node = m->node};
    ps_str_copy(j->servers.list[i].name, sizeof(j->servers.list[i].name),
                m->name);
    j->servers.count++;
}

/* Takes the load of the job off the server. */
static void subtract_server_load(struct ps_sched *s,
                                 const struct ps_sched_job_server *on)
{
    struct ps_member *m = ps_members_get(&s->members, on->node);

    if (m != NULL) {
        assert(m->placed_bytes >= on->bytes);
        m->placed_bytes -= on->bytes;
        m->reserved_bytes -= on->reserved_bytes;
    }
}

static void add_removed_server(struct ps_sched_job *j,
                               const struct ps_member *m)
{
    j->servers.removed = ps_realloc(j->servers.removed,
                                    (j->servers.removed_count + 1u) *
                                        sizeof(*j->servers.removed));
    j->servers.removed[j->servers.removed_count++] =
        (struct ps_sched_removed_server){.node = m->node,
                                         .incarnation = m->incarnation};
}

void ps_sched_job_remove_server(struct ps_sched *s, struct ps_sched_job *j,
                                struct ps_sched_job_server *on,
                                const struct ps_member *server)
{
    add_removed_server(j, server);
    subtract_server_load(s, on);
    memmove(on, on + 1,
            (size_t)(&j->servers.list[j->servers.count] - (on + 1)) *
                sizeof(*on));
    j->servers.count--;
}

void ps_sched_job_release_servers(struct ps_sched *s,
                                  const struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->servers.count; i++) {
        subtract_server_load(s, &j->servers.list[i]);
    }
}
