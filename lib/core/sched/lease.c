/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: when the silence of a member counts as its death. Verdicts only:
 * membership.c makes the member GONE.
 *
 * A member that is silent while others are heard is dead after dead_after,
 * unless its peers on data links still hear it (witness.c). While no member is
 * heard, the scheduler itself is isolated or suspended: data paths may work,
 * and no member could be notified of a death, so none is declared dead before
 * one is heard, and then all have time to reconnect (rules D8 and D9). While
 * most members are silent at once, part of the network is down, on their side
 * or on the scheduler's: leases are longer (rule D10). */
#include "core/sched/lease.h"

#include "core/sched/events.h"
#include "core/sched/inner.h"
#include "core/sched/witness.h"

#include <inttypes.h>

/* Longest silence of a member before it is GONE in any case. Without it, jobs
 * of a cluster that is lost for good would never end while the scheduler is
 * isolated, and barriers and new keys would wait for ever for a member that
 * only others hear. */
#define ISOLATION_MAX   PS_SECONDS(300)
/* Time to reconnect after the scheduler was isolated: dialers back off. */
#define GRACE_TIME      PS_SECONDS(10)
/* Factor on dead_after while most members are silent at once. */
#define MAJORITY_FACTOR 3u

static bool is_participant(const struct ps_member *m)
{
    return m->state == PS_NODE_STATE_ACTIVE ||
           m->state == PS_NODE_STATE_SUSPECT;
}

static bool is_silent(const struct ps_sched *s, const struct ps_member *m,
                      ps_time now)
{
    return ps_time_add(m->last_recv_at, s->opt.suspect_after) <= now;
}

/* True: no member was heard for suspect_after, so this process is suspect. */
static bool is_isolated(const struct ps_sched *s, ps_time now)
{
    return ps_time_add(s->last_recv_at, s->opt.suspect_after) <= now;
}

static bool is_majority_silent(const struct ps_sched *s, ps_time now)
{
    uint32_t present = 0;
    uint32_t silent = 0;

    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        present += is_participant(m);
        silent += is_participant(m) && is_silent(s, m, now);
    }
    return silent >= 2 && 2 * silent > present;
}

static struct ps_sched_lease current_lease(const struct ps_sched *s,
                                           ps_time now)
{
    struct ps_sched_lease l = {.timeout = s->opt.dead_after};

    if (is_isolated(s, now)) {
        l.not_before = ps_time_add(s->last_recv_at, ISOLATION_MAX);
    } else if (is_majority_silent(s, now)) {
        l.timeout = ps_time_min(s->opt.dead_after,
                                PS_TIME_NEVER / MAJORITY_FACTOR) *
                    MAJORITY_FACTOR;
    }
    return l;
}

/* When the lease of a SUSPECT member ends; otherwise PS_TIME_NEVER. */
static ps_time lease_end(const struct ps_sched_lease *l,
                         const struct ps_member *m)
{
    ps_time at = ps_time_add(m->last_recv_at, l->timeout);
    ps_time seen = ps_time_min(
        ps_time_add(m->witness.last_heard_at, l->timeout),
        ps_time_add(m->last_recv_at, ISOLATION_MAX));

    if (m->state != PS_NODE_STATE_SUSPECT) {
        return PS_TIME_NEVER;
    }
    at = at > seen ? at : seen;
    at = at > l->not_before ? at : l->not_before;
    return at > m->grace_until ? at : m->grace_until;
}

/* Grants GRACE_TIME to each member heard since its last grace, after the
 * scheduler could not hear. A member that stays silent gets no second grace, so
 * repeated isolation does not keep a dead one. */
static void grant_grace_all(struct ps_sched_step *st)
{
    struct ps_sched *s = st->s;

    for (uint32_t i = 0; i < s->members.count; i++) {
        struct ps_member *m = s->members.sorted[i];

        if (m->last_recv_at != m->grace_recv_at) {
            m->grace_recv_at = m->last_recv_at;
            m->grace_until = ps_time_add(st->now, GRACE_TIME);
        }
    }
}

bool ps_sched_lease_extend_all(struct ps_sched_step *st, ps_time late)
{
    struct ps_sched *s = st->s;

    if (late <= s->opt.suspect_after / 2) {
        return false;
    }
    ps_effects_log(st->fx, PS_LOG_WARNING,
                   "this process was late by %" PRIu64
                   " ms; leases are extended",
                   (uint64_t)(late / PS_MILLIS(1)));
    for (uint32_t i = 0; i < s->members.count; i++) {
        struct ps_member *m = s->members.sorted[i];

        m->last_recv_at = ps_time_min(ps_time_add(m->last_recv_at, late),
                                      st->now);
        m->confirm_at = ps_time_add(m->confirm_at, late);
    }
    s->last_recv_at = ps_time_min(ps_time_add(s->last_recv_at, late), st->now);
    if (late > s->opt.suspect_after) {
        /* Members have closed their connections meanwhile. */
        grant_grace_all(st);
    }
    return true;
}

void ps_sched_lease_renew(struct ps_sched_step *st, struct ps_member *m)
{
    struct ps_sched *s = st->s;

    if (s->is_isolated) {
        s->is_isolated = false;
        ps_effects_log(
            st->fx, PS_LOG_WARNING,
            "members can be reached again after %.1f s; all leases restart",
            (double)(st->now - s->last_recv_at) / 1e9);
        ps_sched_event_own(st, "reached again", false, NULL);
        grant_grace_all(st);
    }
    s->last_recv_at = st->now;
    m->last_recv_at = st->now;
}

bool ps_sched_lease_on_message(struct ps_sched_step *st, struct ps_member *m)
{
    ps_sched_lease_renew(st, m);
    if (m->state != PS_NODE_STATE_SUSPECT) {
        return false;
    }
    ps_sched_move_member(st, m, PS_NODE_STATE_ACTIVE, NULL);
    return true;
}

static bool has_participants(const struct ps_sched *s)
{
    for (uint32_t i = 0; i < s->members.count; i++) {
        if (is_participant(s->members.sorted[i])) {
            return true;
        }
    }
    return false;
}

struct ps_sched_lease ps_sched_lease_tick(struct ps_sched_step *st)
{
    struct ps_sched *s = st->s;

    if (!s->is_isolated && is_isolated(s, st->now) && has_participants(s)) {
        s->is_isolated = true;
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "no member can be reached: this scheduler considers "
                       "itself cut off, and declares no member dead for %u s",
                       (unsigned)(ISOLATION_MAX / PS_SECONDS(1)));
        ps_sched_event_own(st, "cut off", true, "no member can be reached");
    }
    return current_lease(s, st->now);
}

bool ps_sched_lease_check(struct ps_sched_step *st,
                          const struct ps_sched_lease *l, struct ps_member *m,
                          struct ps_str *why)
{
    const bool falls_silent = m->state == PS_NODE_STATE_ACTIVE &&
                              is_silent(st->s, m, st->now);

    if (!falls_silent && m->state != PS_NODE_STATE_SUSPECT) {
        return false;
    }
    ps_str_addf(why, "not heard for %.1f s",
                (double)(st->now - m->last_recv_at) / 1e9);
    if (falls_silent) {
        ps_sched_move_member(st, m, PS_NODE_STATE_SUSPECT, why->data);
    }
    return lease_end(l, m) <= st->now;
}

ps_time ps_sched_lease_deadline(const struct ps_sched *s, ps_time now)
{
    struct ps_sched_lease l = current_lease(s, now);
    ps_time due = PS_TIME_NEVER;

    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        due = ps_time_min(due, ps_sched_witness_deadline(s, m, now));
        due = ps_time_min(
            due, m->state == PS_NODE_STATE_ACTIVE
                     ? ps_time_add(m->last_recv_at, s->opt.suspect_after)
                     : lease_end(&l, m));
    }
    return due;
}
