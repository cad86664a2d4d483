/* SPDX-License-Identifier: Apache-2.0 */
/* Silent members: what their peers and probes say of them, and when their
 * silence counts as death. Verdicts only: membership.c makes a member GONE. */
#include "core/sched/member/member.h"

#include "base/err.h"
#include "core/sched/inner.h"

#include <inttypes.h>

/* --------------------------------------------------------------- witnesses */

/* Witnesses: members that exchange data with a SUSPECT member. Its link to the
 * scheduler may be broken while its links to others work, and declaring it GONE
 * would cost jobs the state that only it has. So all agents of the jobs of a
 * server, and all servers of the jobs of an agent, are asked when they last
 * heard it (ping_req, as in SWIM), and a member that any of them heard within a
 * lease is kept (rules D11 and D13).
 *
 * A witness that is asked pings the member, so that its next report shows
 * whether the member lives. */

/* Requests during dead_after. */
#define PING_REQUESTS 8u

static bool is_witness(const struct ps_member *m)
{
    return m != NULL && m->state == PS_NODE_STATE_ACTIVE &&
           ps_member_is_connected(m);
}

static void request_ping(struct ps_sched_step *st, const struct ps_member *m,
                         uint32_t node)
{
    const struct ps_member *witness = ps_members_get(&st->s->members, node);

    if (is_witness(witness)) {
        ps_effects_send_msg(
            st->fx, ps_link_conn(witness->link),
            &(struct ps_msg){
                .code = PS_MSG_PING_REQ,
                .ack = ps_link_received(witness->link),
                .ping_req = {.node = m->node, .incarnation = m->incarnation}});
    }
}

static void request_pings(struct ps_sched_step *st, const struct ps_member *m)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        if (!ps_sched_job_has_started(j)) {
            continue;
        }
        if (m->role == PS_ROLE_SERVER) {
            bool serves = ps_sched_job_server_of(j, m->node) != NULL;

            for (uint32_t i = 0; serves && i < j->slot_count; i++) {
                request_ping(st, m, j->slots[i].agent_node);
            }
        } else if (ps_sched_job_slot_of(j, m->node) < j->slot_count) {
            for (uint32_t i = 0; i < j->servers.count; i++) {
                request_ping(st, m, j->servers.list[i].node);
            }
        }
    }
}

static ps_time witness_deadline(const struct ps_sched *s,
                                const struct ps_member *m, ps_time now)
{
    ps_time at = ps_time_add(m->witness.last_request_at,
                             s->opt.dead_after / PING_REQUESTS);

    if (m->state != PS_NODE_STATE_SUSPECT) {
        return PS_TIME_NEVER;
    }
    return at > now ? at : now; /* Past when it just became SUSPECT. */
}

void ps_sched_witness_tick(struct ps_sched_step *st, struct ps_member *m)
{
    if (witness_deadline(st->s, m, st->now) <= st->now) {
        m->witness.last_request_at = st->now;
        request_pings(st, m);
    }
}

/* True if one of them is a server, and the other an agent, of a job. */
static bool exchange_data(const struct ps_sched *s, const struct ps_member *a,
                          const struct ps_member *b)
{
    const uint32_t server = a->role == PS_ROLE_SERVER ? a->node : b->node;
    const uint32_t agent = a->role == PS_ROLE_SERVER ? b->node : a->node;

    PS_MAP_EACH(struct ps_sched_job, j, s->jobs)
    {
        if (ps_sched_job_has_started(j) &&
            ps_sched_job_server_of(j, server) != NULL &&
            ps_sched_job_slot_of(j, agent) < j->slot_count) {
            return true;
        }
    }
    return false;
}

int ps_sched_witness_check_answer(const struct ps_sched *s,
                                  const struct ps_member *witness,
                                  const struct ps_msg *msg)
{
    const struct ps_member *m = ps_members_get(&s->members, msg->ping_ack.node);

    return m != NULL && m->role != witness->role &&
                   m->state == PS_NODE_STATE_SUSPECT &&
                   exchange_data(s, m, witness)
               ? 0
               : PS_E_NOENT;
}

void ps_sched_on_ping_ack(struct ps_sched_step *st, struct ps_member *witness,
                          const struct ps_msg *msg)
{
    const struct ps_msg_ping_ack *ack = &msg->ping_ack;
    struct ps_member *m = ps_members_get(&st->s->members, ack->node);
    const ps_time silence = ps_time_min(ack->silent_ns, st->now);

    if (m == NULL || m->incarnation != ack->incarnation ||
        m->role == witness->role || m->state != PS_NODE_STATE_SUSPECT) {
        return;
    }
    m->witness.last_heard_at = st->now - silence > m->witness.last_heard_at
                                   ? st->now - silence
                                   : m->witness.last_heard_at;
    if (m->witness.noted_at != m->last_recv_at &&
        silence < st->s->opt.suspect_after &&
        ps_time_add(m->last_recv_at, st->s->opt.dead_after) <= st->now) {
        m->witness.noted_at = m->last_recv_at;
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "%s %s has not been heard for %.1f s, but %s %s hears "
                       "it: the network between it and this scheduler is "
                       "broken; it is not given up",
                       ps_role_name(m->role), m->name,
                       (double)(st->now - m->last_recv_at) / 1e9,
                       ps_role_name(witness->role), witness->name);
    }
}

/* ------------------------------------------------------------------ leases */

/* Leases: when the silence of a member counts as its death.
 *
 * A member that is silent while others are heard is dead after dead_after,
 * unless its peers on data links still hear it. While no member is
 * heard, the scheduler itself is isolated or suspended: data paths may work,
 * and no member could be notified of a death, so none is declared dead before
 * one is heard, and then all have time to reconnect (rules D8 and D9). While
 * most members are silent at once, part of the network is down, on their side
 * or on the scheduler's: leases are longer (rule D10). */

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
    return at > m->grace.until ? at : m->grace.until;
}

/* Grants GRACE_TIME to each member heard since its last grace, after the
 * scheduler could not hear. A member that stays silent gets no second grace, so
 * repeated isolation does not keep a dead one. */
static void grant_grace_all(struct ps_sched_step *st)
{
    struct ps_sched *s = st->s;

    for (uint32_t i = 0; i < s->members.count; i++) {
        struct ps_member *m = s->members.sorted[i];

        if (m->last_recv_at != m->grace.recv_at) {
            m->grace.recv_at = m->last_recv_at;
            m->grace.until = ps_time_add(st->now, GRACE_TIME);
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

void ps_sched_lease_restore(struct ps_member *m, ps_time now)
{
    m->last_recv_at = now;
    m->grace.recv_at = now;
    m->grace.until = ps_time_add(now, GRACE_TIME);
    m->grace.is_restored = true;
}

void ps_sched_lease_end_grace(struct ps_member *m)
{
    m->grace.until = 0;
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

        due = ps_time_min(due, witness_deadline(s, m, now));
        due = ps_time_min(
            due, m->state == PS_NODE_STATE_ACTIVE
                     ? ps_time_add(m->last_recv_at, s->opt.suspect_after)
                     : lease_end(&l, m));
    }
    return due;
}

/* ------------------------------------------------------------------ probes */

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
