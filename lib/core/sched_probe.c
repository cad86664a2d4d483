/* SPDX-License-Identifier: Apache-2.0 */
/* Probes: connections to the address that a member names, closed at once.
 *
 * One follows each hello of a process that has not been reached yet. A server
 * on the wrong address registers, reports and is ACTIVE, and all of its jobs
 * wait; so the result is shown to operators, and the server is probed until it
 * is reached. Nothing else follows, because agents may have ways that the
 * scheduler does not have.
 *
 * Others follow the loss of a connection, until the member says hello or is
 * GONE. A connection alone may be cut by any network; a host that refuses is
 * there, and says that the process is not: the member is dead. That counts
 * only where a probe of the same process had succeeded, since a firewall
 * refuses, too. */
#include "core/sched_inner.h"

#include "base/err.h"

/* After a hello: between two probes of one member, however often it says
 * hello, and between two of a server that is not reached. */
#define HELLO_PAUSE PS_SECONDS(1)
#define HELLO_AGAIN PS_SECONDS(10)
#define HELLO_LIMIT PS_SECONDS(10)
/* After a loss: sockets of a process that dies close one after the other. */
#define LOST_AGAIN  PS_MILLIS(100)
#define LOST_LIMIT  PS_SECONDS(1)

static bool is_lost(const struct ps_member *m)
{
    return m->state == PS_NODE_STATE_SUSPECT && !ps_member_here(m);
}

/* Which probe of which member. */
static uint64_t target_of(const struct ps_member *m)
{
    return (uint64_t)m->probe.number << 32 | m->node;
}

static void start(struct ps_sched_step *st, struct ps_member *m)
{
    struct ps_member_probe *p = &m->probe;

    p->at = PS_TIME_NEVER;
    p->last = st->now;
    p->number++;
    p->under_way = true;
    ps_effects_probe(st->fx, target_of(m), m->address,
                     is_lost(m) ? LOST_LIMIT : HELLO_LIMIT);
}

void ps_sched_probe_hello(struct ps_sched_step *st, struct ps_member *m)
{
    struct ps_member_probe *p = &m->probe;

    p->at = PS_TIME_NEVER;
    if (p->reached || p->under_way || m->address[0] == '\0') {
        return;
    }
    if (p->last != 0 && st->now < ps_time_add(p->last, HELLO_PAUSE)) {
        p->at = ps_time_add(p->last, HELLO_PAUSE);
    } else {
        start(st, m);
    }
}

void ps_sched_probe_lost(struct ps_sched_step *st, struct ps_member *m)
{
    if (!st->s->ending && is_lost(m) && m->probe.reached &&
        !m->probe.under_way) {
        start(st, m);
    }
}

/* Of a member that is connected. */
static void take_reach(struct ps_sched_step *st, struct ps_member *m, int rc)
{
    struct ps_member_probe *p = &m->probe;

    p->reached |= rc == 0;
    if (m->role != PS_ROLE_SERVER) {
        return;
    }
    if (rc == 0) {
        if (p->unreachable != 0) {
            ps_effects_note(st->fx, PS_LOG_INFO, "server %s reached at %s",
                            m->name, m->address);
        }
        p->unreachable = 0;
        return;
    }
    if (p->reached) {
        return; /* The probe is of a time when the connection was lost. */
    }
    p->at = ps_time_add(st->now, HELLO_AGAIN);
    if (rc != PS_E_UNREACH && rc != PS_E_TIMEOUT && rc != PS_E_REFUSED &&
        rc != PS_E_CLOSED && rc != PS_E_INVAL) {
        return; /* No descriptor, no memory: nothing is known of the server. */
    }
    if (p->unreachable == 0) {
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "server %s cannot be reached at %s: %s; see "
                        "listen.address and advertise.address there",
                        m->name, m->address, ps_strerror(rc));
    }
    p->unreachable = rc;
}

void ps_sched_probed(struct ps_sched_step *st, uint64_t target, int rc)
{
    struct ps_member *m = ps_members_get(&st->s->members, (uint32_t)target);
    char why[PS_ADDRESS_MAX + 80];
    struct ps_str text;

    if (m == NULL || target != target_of(m) || !m->probe.under_way) {
        return;
    }
    m->probe.under_way = false;
    if (ps_member_here(m)) {
        take_reach(st, m, rc);
        return;
    }
    if (!is_lost(m) || !m->probe.reached) {
        return;
    }
    if (rc != PS_E_REFUSED) {
        m->probe.at = ps_time_add(st->now, LOST_AGAIN);
        return;
    }
    ps_str_init(&text, why, sizeof(why));
    ps_str_addf(&text, "its process has ended: %s refuses connections",
                m->address);
    ps_sched_member_gone(st, m, why);
}

void ps_sched_probe_tick(struct ps_sched_step *st, struct ps_member *m)
{
    if (m->probe.at > st->now) {
        return;
    }
    m->probe.at = PS_TIME_NEVER;
    if (ps_member_here(m)) {
        start(st, m);
    } else {
        ps_sched_probe_lost(st, m);
    }
}
