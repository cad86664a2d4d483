/* SPDX-License-Identifier: Apache-2.0 */
/* Connections, and sessions: agents as the server sees them. An accepted
 * connection carries the link of an agent after its hello (admission.c). An
 * agent has one session, of one process, and one connection at a time: a newer
 * process or connection replaces the older. A session is kept for link_linger
 * after its connection is lost (rule L7).
 *
 * Replies of several jobs wait in a queue for each job, whose heads take turns
 * by weight. Memory is only made for jobs whose payloads have waited.
 *
 * An error of an agent closes its connection, with a log line. The agent
 * dials again, and the session is resumed. */
#include "core/server/session.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/server/inner.h"
#include "core/server/job.h"

#include <stdio.h>

/* An accepted connection without a hello is closed after this time. */
#define HELLO_TIMEOUT PS_SECONDS(10)

void ps_server_session_init(struct ps_server *s)
{
    s->sessions.conns = ps_map_new();
    ps_list_init(&s->sessions.handshaking);
    ps_list_init(&s->sessions.unverified);
    s->sessions.hello_at = PS_TIME_NEVER;
    s->sessions.by_node = ps_map_new();
    ps_heap_init(&s->sessions.timers);
    ps_list_init(&s->sessions.used);
}

/* ------------------------------------------------------------ connections */

static void conn_free(struct ps_server *s, struct ps_server_conn *c)
{
    if (ps_list_linked(&c->node)) {
        ps_list_remove(&c->node);
    }
    ps_map_remove(s->sessions.conns, c->id);
    s->sessions.streams -= c->session != NULL && !c->is_by_reference;
    ps_msg_free(c->unverified_hello);
    ps_free(c);
}

void ps_server_session_on_open(struct ps_server_step *st,
                               const struct ps_event *ev)
{
    const char *who = ev->open.peer;
    const ps_conn_id conn = ev->conn;
    struct ps_server *s = st->s;

    if (s->ending || ps_map_count(s->sessions.conns) >= PS_PEERS_MAX) {
        ps_effects_log(st->fx, PS_LOG_WARNING, "connection of %s refused: %s",
                       who != NULL ? who : "?",
                       s->ending ? "ending" : "too many");
        ps_effects_close(st->fx, conn);
        return;
    }
    struct ps_server_conn *c = ps_calloc(1, sizeof(*c));

    c->id = conn;
    c->hello_by = ps_time_add(st->now, HELLO_TIMEOUT);
    ps_peer_identity_set(&c->identity, ev->open.identity);
    c->is_by_reference = ev->open.is_by_reference;
    ps_str_copy(c->peer_text, sizeof(c->peer_text), who != NULL ? who : "?");
    ps_map_put(s->sessions.conns, conn, c);
    ps_list_push_back(&s->sessions.handshaking, &c->node);
    s->sessions.hello_at = ps_time_min(s->sessions.hello_at, c->hello_by);
}

void ps_server_session_use(struct ps_server *s, struct ps_server_session *p)
{
    if (!ps_list_linked(&p->used_node)) {
        ps_list_push_back(&s->sessions.used, &p->used_node);
    }
}

void ps_server_session_settle(struct ps_server *s, struct ps_server_session *p)
{
    const uint64_t memory_max = s->opt.link.memory_max; /* 0: no limit. */
    ps_time at = 0;

    p->is_backlogged |=
        ps_link_unacked(p->link) + p->turns.waiting > PS_BACKLOG_MAX ||
        (memory_max != 0 &&
         ps_link_memory(p->link) + p->turns.memory > memory_max);
    if (!p->is_backlogged) {
        at = p->conn != NULL
                 ? ps_link_deadline(p->link)
                 : ps_time_add(p->disconnected_at, s->opt.link_linger);
    }
    if (!ps_heap_linked(&p->timer) || p->timer.key != at) {
        ps_heap_update(&s->sessions.timers, &p->timer, at);
    }
}

/* Frees the connection, lost or closed here; the session stays. */
static void detach_conn(struct ps_server_step *st, struct ps_server_conn *c)
{
    struct ps_server_session *p = c->session;

    if (p != NULL) {
        p->conn = NULL;
        p->disconnected_at = st->now;
        ps_link_close(p->link);
        ps_server_session_use(st->s, p);
    }
    conn_free(st->s, c);
}

void ps_server_conn_close(struct ps_server_step *st, struct ps_server_conn *c)
{
    ps_effects_close(st->fx, c->id);
    detach_conn(st, c);
}

void ps_server_session_close_bad(struct ps_server_step *st,
                                 struct ps_server_conn *c, const char *why)
{
    if (c->session != NULL) {
        ps_effects_log(st->fx, PS_LOG_WARNING, "node %u cut off: %s",
                       c->session->agent_node, why);
    } else {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "connection of %s closed before its handshake: %s",
                       c->peer_text, why);
    }
    ps_server_conn_close(st, c);
}

void ps_server_session_on_closed(struct ps_server_step *st, ps_conn_id conn)
{
    struct ps_server_conn *c = ps_map_get(st->s->sessions.conns, conn);

    if (c != NULL) {
        detach_conn(st, c);
    }
}

/* ------------------------------------------- queues of jobs that take turns */

/* A packet that waits. */
struct waiting_reply {
    struct ps_list_node node;
    struct ps_packet *packet;
};

static uint64_t message_memory(const struct ps_packet *packet)
{
    return sizeof(struct waiting_reply) + sizeof(*packet) + packet->msg_size;
}

static struct ps_server_reply_queue *get_queue(struct ps_server_reply_turns *t,
                                               const struct ps_server_job *job)
{
    struct ps_server_reply_queue *q;

    if (t->queues == NULL) {
        t->queues = ps_map_new();
        ps_fair_init(&t->fair);
    }
    q = ps_map_get(t->queues, job->gen);
    if (q == NULL) {
        q = ps_calloc(1, sizeof(*q));
        q->gen = job->gen;
        ps_list_init(&q->replies);
        ps_map_put(t->queues, job->gen, q);
    }
    q->weight = job->weight;
    return q;
}

/* Takes the oldest packet of the queue; NULL: it is empty. */
static struct ps_packet *pop_packet(struct ps_server_reply_turns *t,
                                    struct ps_server_reply_queue *q)
{
    struct waiting_reply *w = PS_LIST_POP(struct waiting_reply, node,
                                          &q->replies);
    struct ps_packet *packet;

    if (w == NULL) {
        return NULL;
    }
    packet = w->packet;
    ps_free(w);
    t->waiting--;
    t->memory -= message_memory(packet);
    return packet;
}

/* Appends a packet to the queue of the job; takes over one reference. */
static void queue_push(struct ps_server_reply_turns *t,
                       const struct ps_server_job *job,
                       struct ps_packet *packet)
{
    struct ps_server_reply_queue *q = get_queue(t, job);
    struct waiting_reply *w = ps_calloc(1, sizeof(*w));

    w->packet = packet;
    ps_list_push_back(&q->replies, &w->node);
    t->waiting++;
    t->memory += message_memory(packet);
    ps_fair_activate(&t->fair, &q->flow);
}

/* Takes the packet whose turn it is, with its reference; NULL: none waits. */
static struct ps_packet *queue_pop(struct ps_server_reply_turns *t)
{
    struct ps_server_reply_queue *q;
    struct ps_packet *packet;

    if (t->waiting == 0) {
        return NULL;
    }
    q = PS_CONTAINER(ps_fair_next(&t->fair), struct ps_server_reply_queue,
                     flow);
    packet = pop_packet(t, q);
    ps_fair_charge(&t->fair, &q->flow, q->weight, packet->payload_len);
    if (ps_list_empty(&q->replies)) {
        ps_fair_deactivate(&t->fair, &q->flow);
    }
    return packet;
}

static void queue_free(struct ps_server_reply_turns *t,
                       struct ps_server_reply_queue *q)
{
    struct ps_packet *packet;

    while ((packet = pop_packet(t, q)) != NULL) {
        ps_packet_unref(packet);
    }
    ps_fair_deactivate(&t->fair, &q->flow);
    ps_map_remove(t->queues, q->gen);
    ps_free(q);
}

void ps_server_session_drop_replies(struct ps_server_reply_turns *t,
                                    uint64_t gen)
{
    struct ps_server_reply_queue *q = t->queues != NULL
                                          ? ps_map_get(t->queues, gen)
                                          : NULL;

    if (q != NULL) {
        queue_free(t, q);
    }
}

void ps_server_session_drop_replies_all(struct ps_server_reply_turns *t)
{
    if (t->queues == NULL) {
        return;
    }
    PS_MAP_EACH(struct ps_server_reply_queue, q, t->queues)
    {
        queue_free(t, q);
    }
    ps_map_free(t->queues);
    t->queues = NULL;
    ps_fair_fini(&t->fair);
}

/* ----------------------------------------------------------------- sessions */

void ps_server_session_drop_credits(struct ps_server_session *p)
{
    struct ps_map_cursor c = {0};
    struct ps_credit *f;

    while ((f = ps_map_next(p->credits, &c)) != NULL) {
        ps_map_remove(p->credits, c.key);
        ps_free(f);
    }
}

static void session_free(struct ps_server *s, struct ps_server_session *p)
{
    s->sessions.resent += ps_link_resent(p->link);
    if (ps_list_linked(&p->used_node)) {
        ps_list_remove(&p->used_node);
    }
    if (ps_heap_linked(&p->timer)) {
        ps_heap_remove(&s->sessions.timers, &p->timer);
    }
    ps_map_remove(s->sessions.by_node, p->agent_node);
    ps_server_session_drop_replies_all(&p->turns);
    ps_link_free(p->link);
    ps_server_session_drop_credits(p);
    ps_map_free(p->credits);
    ps_free(p);
}

void ps_server_session_close(struct ps_server_step *st,
                             struct ps_server_session *p)
{
    if (p->conn != NULL) {
        ps_server_conn_close(st, p->conn);
    }
    session_free(st->s, p);
}

void ps_server_session_fini(struct ps_server *s)
{
    PS_MAP_EACH(struct ps_server_conn, conn, s->sessions.conns)
    {
        conn_free(s, conn);
    }
    PS_MAP_EACH(struct ps_server_session, p, s->sessions.by_node)
    {
        session_free(s, p);
    }
    ps_map_free(s->sessions.conns);
    ps_map_free(s->sessions.by_node);
    ps_heap_fini(&s->sessions.timers);
}

void ps_server_session_close_all(struct ps_server_step *st)
{
    PS_MAP_EACH(struct ps_server_conn, conn, st->s->sessions.conns)
    {
        ps_server_conn_close(st, conn);
    }
}

/* Makes space for one more session, freeing the one disconnected for longest;
 * false: all are connected. */
static bool evict_oldest_session(struct ps_server *s)
{
    struct ps_server_session *oldest = NULL;

    if (ps_map_count(s->sessions.by_node) < PS_PEERS_MAX) {
        return true;
    }
    PS_MAP_EACH(struct ps_server_session, p, s->sessions.by_node)
    {
        if (p->conn == NULL &&
            (oldest == NULL || p->disconnected_at < oldest->disconnected_at)) {
            oldest = p;
        }
    }
    if (oldest == NULL) {
        return false;
    }
    session_free(s, oldest);
    return true;
}

struct ps_server_session *ps_server_session_new(struct ps_server *s,
                                                const struct ps_msg_hello *m)
{
    struct ps_link_options link = s->opt.link;
    char name[PS_NAME_MAX + 1];

    if (!evict_oldest_session(s)) {
        return NULL;
    }
    struct ps_server_session *p = ps_calloc(1, sizeof(*p));

    snprintf(name, sizeof(name), "node %u", m->node);
    link.ledger = &s->account;
    link.peer = name;
    p->agent_node = m->node;
    p->incarnation = m->incarnation;
    p->instance = m->instance;
    p->is_server = m->role == PS_ROLE_SERVER;
    ps_str_copy(p->name, sizeof(p->name), ps_str_or_empty(m->name));
    p->link = ps_link_new(&link, &s->rng);
    p->credits = ps_map_new();
    ps_map_put(s->sessions.by_node, p->agent_node, p);
    return p;
}

void ps_server_session_send(struct ps_server_step *st,
                            struct ps_server_session *p,
                            struct ps_packet *packet)
{
    st->s->bytes_out += packet->payload_len;
    ps_link_send(p->link, packet, st->now, st->fx);
    ps_server_session_use(st->s, p);
}

/* ------------------------------------------------------------ turns of jobs */

/* A connection sends in the order of handing over, and the values of one job
 * may need many times the length of a round of another. So while the server has
 * several jobs, few bytes are handed over at a time; to a stream, one
 * partition. */
static bool has_capacity(const struct ps_server *s,
                         const struct ps_server_session *p)
{
    return p->conn != NULL &&
           p->turns.unsent <
               (p->conn->is_by_reference
                    ? s->opt.unsent_max
                    : ps_min_u64(s->opt.unsent_max, PS_STREAM_BYTES_MAX)) &&
           ps_link_unacked(p->link) < PS_LINK_IN_FLIGHT_MAX;
}

static void hand_over(struct ps_server_step *st, struct ps_server_session *p,
                      struct ps_packet *packet)
{
    p->turns.unsent += packet->payload_len;
    ps_server_session_send(st, p, packet);
}

void ps_server_session_pump(struct ps_server_step *st,
                            struct ps_server_session *p)
{
    while (p->turns.waiting > 0 && has_capacity(st->s, p)) {
        hand_over(st, p, queue_pop(&p->turns));
    }
}

void ps_server_session_send_payload(struct ps_server_step *st,
                                    struct ps_server_session *p,
                                    const struct ps_server_job *job,
                                    struct ps_packet *packet)
{
    if (p->turns.waiting == 0 && ps_map_count(st->s->jobs.by_gen) < 2) {
        ps_server_session_send(st, p, packet);
    } else if (p->turns.waiting == 0 && has_capacity(st->s, p)) {
        hand_over(st, p, packet);
    } else {
        queue_push(&p->turns, job, packet);
        ps_server_session_pump(st, p);
        ps_server_session_use(st->s, p);
    }
}

void ps_server_session_on_sent(struct ps_server_step *st, ps_conn_id conn,
                               uint64_t queued)
{
    struct ps_server *s = st->s;
    const struct ps_server_conn *c;

    c = ps_map_get(s->sessions.conns, conn);
    if (c != NULL && c->session != NULL && c->session->conn == c) {
        c->session->turns.unsent = queued;
        if (c->session->turns.waiting > 0) {
            ps_server_session_pump(st, c->session);
        }
    }
}

void ps_server_session_begin_turns(struct ps_server *s)
{
    PS_MAP_EACH(struct ps_server_session, p, s->sessions.by_node)
    {
        p->turns.unsent = 0;
    }
}

void ps_server_session_on_ping_req(struct ps_server_step *st,
                                   const struct ps_msg_ping_req *m)
{
    const struct ps_server_session *p = ps_map_get(st->s->sessions.by_node,
                                                   m->node);

    if (p == NULL || p->incarnation != m->incarnation) {
        return;
    }
    ps_uplink_send_ping_ack(&st->s->uplink, m, st->now - p->heard_at, st->fx);
    if (p->conn != NULL) {
        ps_effects_send_msg(st->fx, p->conn->id,
                            &(struct ps_msg){.code = PS_MSG_PING,
                                             .ack = ps_link_received(p->link),
                                             .ping = {.stamp = st->now}});
    }
}

/* ------------------------------------------------------------------- time */

static void tick_session(struct ps_server_step *st, struct ps_server_session *p)
{
    if (p->is_backlogged) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "node %u does not read its answers and is forgotten",
                       p->agent_node);
        ps_server_session_close(st, p);
    } else if (p->conn != NULL) {
        ps_link_tick(p->link, st->now, st->fx);
        ps_server_session_settle(st->s, p);
    } else {
        ps_effects_log(st->fx, PS_LOG_INFO, "%s node %u forgotten",
                       p->is_server ? "server" : "agent", p->agent_node);
        session_free(st->s, p);
    }
}

void ps_server_session_tick(struct ps_server_step *st)
{
    struct ps_server *s = st->s;
    size_t due = ps_map_count(s->sessions.by_node);

    /* Each session at most once, whatever its next deadline is. */
    for (; due > 0; due--) {
        struct ps_heap_item *item = ps_heap_peek(&s->sessions.timers);

        if (item == NULL || item->key > st->now) {
            break;
        }
        tick_session(st, PS_CONTAINER(item, struct ps_server_session, timer));
    }
}
