/* SPDX-License-Identifier: Apache-2.0 */
/* Members whose process has ended: their connection breaks, and where they
 * listened nobody does any more. A connection alone may be cut by any network;
 * a host that refuses a connection is there, and says that the process is not.
 *
 * Each member is probed once when it has said hello, at the address that it
 * names; where that fails, because a firewall is between, say, a refusal later
 * says nothing, and its lease decides. */
#include "core/sched_inner.h"

/* Sockets of a process that dies close one after the other. */
#define PROBE_AGAIN   PS_MILLIS(100)
#define PROBE_TIMEOUT PS_SECONDS(1)

/* Of this process of the member, and of no later one. */
static uint64_t target_of(const struct ps_member *m)
{
    return (m->incarnation & UINT32_MAX) << 32 | m->node;
}

static void probe(struct ps_sched_step *st, struct ps_member *m)
{
    m->ask_at = PS_TIME_NEVER;
    m->asking = true;
    ps_effects_probe(st->fx, target_of(m), m->address, PROBE_TIMEOUT);
}

void ps_sched_death_begin(struct ps_sched_step *st, struct ps_member *m)
{
    m->ask_at = PS_TIME_NEVER;
    if (!m->reachable && !m->asking && m->address[0] != '\0') {
        probe(st, m);
    }
}

static bool is_lost(const struct ps_member *m)
{
    return m->state == PS_NODE_STATE_SUSPECT && !ps_member_here(m);
}

void ps_sched_death_suspect(struct ps_sched_step *st, struct ps_member *m)
{
    if (!st->s->ending && is_lost(m) && m->reachable && !m->asking) {
        probe(st, m);
    }
}

void ps_sched_death_probed(struct ps_sched_step *st, uint64_t target, int rc)
{
    struct ps_member *m = ps_members_get(&st->s->members, (uint32_t)target);
    char why[PS_ADDRESS_MAX + 80];
    struct ps_str text;

    if (m == NULL || target != target_of(m)) {
        return;
    }
    m->asking = false;
    if (ps_member_here(m)) {
        m->reachable |= rc == 0;
        return;
    }
    if (!is_lost(m) || !m->reachable) {
        return;
    }
    if (rc != PS_E_REFUSED) {
        m->ask_at = ps_time_add(st->now, PROBE_AGAIN);
        return;
    }
    ps_str_init(&text, why, sizeof(why));
    ps_str_addf(&text, "its process has ended: %s refuses connections",
                m->address);
    ps_sched_member_gone(st, m, why);
}

void ps_sched_death_tick(struct ps_sched_step *st, struct ps_member *m)
{
    if (m->ask_at > st->now) {
        return;
    }
    m->ask_at = PS_TIME_NEVER;
    ps_sched_death_suspect(st, m);
}
