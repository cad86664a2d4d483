/* SPDX-License-Identifier: Apache-2.0 */
/* Probes: connections to the address that a member advertises, closed at once.
 *
 * A reach probe follows each hello of a process that was not reached yet. A
 * server with a wrong address registers, sends pings and is ACTIVE, but all its
 * jobs wait; so operators are shown the result, and the server is probed until
 * it is reached. It has no other effect, because agents may have routes that
 * the scheduler lacks (rule D5).
 *
 * A liveness probe follows the loss of a connection, until the member says
 * hello or is GONE. Any network may cut a connection; but a host that refuses
 * one is up, and the process is not: the member is GONE. This counts only if a
 * probe of the same process had succeeded, because a firewall refuses, too
 * (rules D6 and D7). */
#include "core/sched/probe.h"

#include "base/err.h"
#include "core/sched/inner.h"

/* Reach probes: shortest interval for one member, however often it says hello;
 * interval for a server that is not reached; time limit. */
#define HELLO_PAUSE PS_SECONDS(1)
#define HELLO_AGAIN PS_SECONDS(10)
#define HELLO_LIMIT PS_SECONDS(10)
/* Liveness probes: interval, because the sockets of a dying process close one
 * after the other, and time limit. */
#define LOST_AGAIN  PS_MILLIS(100)
#define LOST_LIMIT  PS_SECONDS(1)

static bool is_disconnected(const struct ps_member *m)
{
    return m->state == PS_NODE_STATE_SUSPECT && !ps_member_is_connected(m);
}

/* Identifies a probe: its number and the member's node. */
static uint64_t probe_target(const struct ps_member *m)
{
    return (uint64_t)m->probe.number << 32 | m->node;
}

static void start_probe(struct ps_sched_step *st, struct ps_member *m)
{
    struct ps_member_probe *p = &m->probe;

    p->due_at = PS_TIME_NEVER;
    p->last_at = st->now;
    p->number++;
    p->in_flight = true;
    ps_effects_probe(st->fx, probe_target(m), m->address,
                     is_disconnected(m) ? LOST_LIMIT : HELLO_LIMIT);
}

void ps_sched_probe_hello(struct ps_sched_step *st, struct ps_member *m)
{
    struct ps_member_probe *p = &m->probe;

    p->due_at = PS_TIME_NEVER;
    if (p->was_reached || p->in_flight || m->address[0] == '\0') {
        return;
    }
    if (p->last_at != 0 && st->now < ps_time_add(p->last_at, HELLO_PAUSE)) {
        p->due_at = ps_time_add(p->last_at, HELLO_PAUSE);
    } else {
        start_probe(st, m);
    }
}

void ps_sched_probe_lost(struct ps_sched_step *st, struct ps_member *m)
{
    if (!st->s->ending && is_disconnected(m) && m->probe.was_reached &&
        !m->probe.in_flight) {
        start_probe(st, m);
    }
}

/* Handles the result of a probe of a connected member. */
static void on_reach_result(struct ps_sched_step *st, struct ps_member *m,
                            int rc)
{
    struct ps_member_probe *p = &m->probe;

    if (m->role != PS_ROLE_SERVER) {
        return;
    }
    if (rc == 0) {
        ps_effects_log(st->fx, p->unreachable != 0 ? PS_LOG_INFO : PS_LOG_DEBUG,
                       "server %s reached at %s", m->name, m->address);
        p->unreachable = 0;
        return;
    }
    if (p->was_reached) {
        return; /* The probe began while the connection was lost. */
    }
    p->due_at = ps_time_add(st->now, HELLO_AGAIN);
    if (rc != PS_E_UNREACH && rc != PS_E_TIMEOUT && rc != PS_E_REFUSED &&
        rc != PS_E_CLOSED && rc != PS_E_INVAL) {
        /* No descriptor or memory here: the server's state is unknown. */
        return;
    }
    if (p->unreachable == 0) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "server %s cannot be reached at %s: %s; see "
                       "listen.address and advertise.address there",
                       m->name, m->address, ps_strerror(rc));
    }
    p->unreachable = rc;
}

struct ps_member *ps_sched_probe_result(struct ps_sched_step *st,
                                        uint64_t target, int rc,
                                        struct ps_str *why)
{
    struct ps_member *m = ps_members_get(&st->s->members, (uint32_t)target);

    if (m == NULL || target != probe_target(m) || !m->probe.in_flight) {
        return NULL;
    }
    m->probe.in_flight = false;
    /* Also if the connection was lost meanwhile: the process was there. */
    m->probe.was_reached |= rc == 0;
    if (ps_member_is_connected(m)) {
        on_reach_result(st, m, rc);
        return NULL;
    }
    if (!is_disconnected(m) || !m->probe.was_reached) {
        return NULL;
    }
    if (rc != PS_E_REFUSED) {
        m->probe.due_at = ps_time_add(st->now, LOST_AGAIN);
        return NULL;
    }
    ps_str_addf(why, "its process has ended: %s refuses connections",
                m->address);
    return m;
}

void ps_sched_probe_tick(struct ps_sched_step *st, struct ps_member *m)
{
    if (m->probe.due_at > st->now) {
        return;
    }
    m->probe.due_at = PS_TIME_NEVER;
    if (ps_member_is_connected(m)) {
        start_probe(st, m);
    } else {
        ps_sched_probe_lost(st, m);
    }
}
