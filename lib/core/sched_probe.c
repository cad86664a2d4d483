/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a server can be reached where it says that agents should dial it:
 * the scheduler dials it once and hangs up. A server on the wrong address
 * registers, reports and is ACTIVE, and all of its jobs wait; the result is
 * shown to operators and changes nothing else, because agents may have ways
 * that the scheduler does not have. One that cannot be reached is dialled
 * again from time to time, until it can.
 *
 * The target of such a dial is the node number and, above it, which probe of
 * the member it is: a result of an earlier address says nothing. */
#include "core/sched_inner.h"

#include "base/err.h"

#define AGAIN       PS_SECONDS(10)
/* Between two probes of one member, however often it says hello. */
#define PROBE_PAUSE PS_SECONDS(1)

static void start_probe(struct ps_sched_step *st, struct ps_member *m)
{
    m->probed = st->now;
    m->probe_at = 0;
    m->probe_seq++;
    ps_effects_dial(st->fx, (uint64_t)m->probe_seq << 32 | m->node, m->address,
                    0);
}

void ps_sched_probe(struct ps_sched_step *st, struct ps_member *m)
{
    if (!st->s->opt.probes || m->role != PS_ROLE_SERVER) {
        return;
    }
    if (m->probed != 0 && st->now < ps_time_add(m->probed, PROBE_PAUSE)) {
        m->probe_at = ps_time_add(m->probed, PROBE_PAUSE);
        return;
    }
    start_probe(st, m);
}

/* NULL: the member is no more, or is probed again. */
static struct ps_member *find_probed(const struct ps_sched *s, uint64_t target)
{
    struct ps_member *m = ps_members_get(&s->members, (uint32_t)target);

    return m != NULL && m->probe_seq == target >> 32 ? m : NULL;
}

void ps_sched_probe_reached(struct ps_sched_step *st, uint64_t target)
{
    struct ps_member *m = find_probed(st->s, target);

    if (m == NULL) {
        return;
    }
    if (m->unreachable != 0) {
        ps_effects_note(st->fx, PS_LOG_INFO, "server %s reached at %s", m->name,
                        m->address);
    }
    m->unreachable = 0;
}

void ps_sched_probe_failed(struct ps_sched_step *st, uint64_t target, int rc)
{
    struct ps_member *m = find_probed(st->s, target);

    if (m == NULL) {
        return;
    }
    m->probe_at = ps_time_add(st->now, AGAIN);
    if (rc != PS_E_UNREACH && rc != PS_E_TIMEOUT && rc != PS_E_REFUSED &&
        rc != PS_E_CLOSED && rc != PS_E_INVAL) {
        return; /* No descriptor, no memory: nothing is known of the server. */
    }
    if (m->unreachable == 0) {
        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "server %s cannot be reached at %s: %s; see "
                        "listen.address and advertise.address there",
                        m->name, m->address, ps_strerror(rc));
    }
    m->unreachable = rc;
}

void ps_sched_probes_tick(struct ps_sched_step *st)
{
    for (uint32_t i = 0; i < st->s->members.count; i++) {
        struct ps_member *m = st->s->members.sorted[i];

        if (m->probe_at == 0 || m->probe_at > st->now) {
            continue;
        }
        if (m->state == PS_NODE_STATE_ACTIVE) {
            start_probe(st, m);
        } else {
            m->probe_at = 0; /* It is probed when it comes back. */
        }
    }
}

ps_time ps_sched_probes_deadline(const struct ps_sched *s)
{
    ps_time due = PS_TIME_NEVER;

    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        if (m->probe_at != 0) {
            due = ps_time_min(due, m->probe_at);
        }
    }
    return due;
}
