/* SPDX-License-Identifier: Apache-2.0 */
/* Witnesses: members that exchange data with a SUSPECT member. Its link to the
 * scheduler may be broken while its links to others work, and declaring it GONE
 * would cost jobs the state that only it has. So all agents of the jobs of a
 * server, and all servers of the jobs of an agent, are asked when they last
 * heard it (ping_req, as in SWIM), and lease.c keeps a member that any of them
 * heard within a lease (rules D11 and D13).
 *
 * A witness that is asked pings the member, so that its next report shows
 * whether the member lives. */
#include "core/sched/witness.h"

#include "core/sched/inner.h"

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
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(st->s->jobs, &cursor)) != NULL) {
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

ps_time ps_sched_witness_deadline(const struct ps_sched *s,
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
    if (ps_sched_witness_deadline(st->s, m, st->now) <= st->now) {
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
    struct ps_map_cursor cursor = {0};
    struct ps_sched_job *j;

    while ((j = ps_map_next(s->jobs, &cursor)) != NULL) {
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

void ps_sched_on_ping_ack(struct ps_sched_step *st,
                          const struct ps_member *witness,
                          const struct ps_msg_ping_ack *ack)
{
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
