/* SPDX-License-Identifier: Apache-2.0 */
/* Agents, seen from a server. An accepted connection is a stranger until its
 * hello; then it carries the link of an agent. Of an agent there is one start
 * and one connection at a time: a newer start replaces the older, a newer
 * connection the one before. Which start is the newer one, the scheduler says:
 * an agent that it has not named yet waits for that. What is known of an agent
 * outlives its connection for `link_linger`.
 *
 * Errors of one agent end its connection, with a line for the log; it dials
 * again and both go on where they were. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "base/str.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------ connections */

static void conn_free(struct ps_shard *s, struct ps_shard_conn *c)
{
    if (ps_list_linked(&c->node)) {
        ps_list_remove(&c->node);
    }
    ps_map_take(s->conns, c->id);
    ps_msg_free(c->hello);
    ps_free(c);
}

void ps_shard_peer_open(struct ps_shard_step *st, ps_conn_id conn,
                        const char *who)
{
    struct ps_shard *s = st->s;

    if (s->ending || ps_map_count(s->conns) >= PS_PEERS_MAX) {
        ps_effects_note(st->fx, PS_LOG_WARNING, "connection of %s refused: %s",
                        who != NULL ? who : "?",
                        s->ending ? "ending" : "too many");
        ps_effects_hangup(st->fx, conn);
        return;
    }
    struct ps_shard_conn *c = ps_calloc(1, sizeof(*c));

    c->id = conn;
    c->since = st->now;
    ps_map_put(s->conns, conn, c);
    ps_list_push_back(&s->strangers, &c->node);
}

static void set_timer(struct ps_shard *s, struct ps_shard_peer *p)
{
    ps_time at = p->conn != NULL
                     ? ps_link_deadline(p->link)
                     : ps_time_add(p->closed_at, s->opt.link_linger);

    if (!ps_heap_linked(&p->timer) || p->timer.key != at) {
        ps_heap_update(&s->timers, &p->timer, at);
    }
}

/* The connection is gone, or no longer wanted; the agent may come back. */
static void detach(struct ps_shard_step *st, struct ps_shard_conn *c)
{
    struct ps_shard_peer *p = c->peer;

    if (p != NULL) {
        p->conn = NULL;
        p->closed_at = st->now;
        ps_link_close(p->link, st->now);
        set_timer(st->s, p);
    }
    conn_free(st->s, c);
}

static void hang_up(struct ps_shard_step *st, struct ps_shard_conn *c)
{
    ps_effects_hangup(st->fx, c->id);
    detach(st, c);
}

void ps_shard_peer_cut(struct ps_shard_step *st, struct ps_shard_conn *c,
                       const char *why)
{
    if (c->peer != NULL) {
        ps_effects_note(st->fx, PS_LOG_WARNING, "node %u cut off: %s",
                        c->peer->number, why);
    } else {
        ps_effects_note(st->fx, PS_LOG_WARNING, "stranger cut off: %s", why);
    }
    hang_up(st, c);
}

void ps_shard_peer_closed(struct ps_shard_step *st, ps_conn_id conn)
{
    struct ps_shard_conn *c = ps_map_get(st->s->conns, conn);

    if (c != NULL) {
        detach(st, c);
    }
}

/* ------------------------------------------------------------------ peers */

static void peer_free(struct ps_shard *s, struct ps_shard_peer *p)
{
    s->resent += ps_link_resent(p->link);
    if (ps_list_linked(&p->node)) {
        ps_list_remove(&p->node);
    }
    if (ps_heap_linked(&p->timer)) {
        ps_heap_remove(&s->timers, &p->timer);
    }
    ps_map_take(s->peers, p->number);
    ps_link_free(p->link);
    ps_shard_credit_drop(p);
    ps_map_free(p->flows);
    ps_free(p);
}

static void forget(struct ps_shard_step *st, struct ps_shard_peer *p)
{
    if (p->conn != NULL) {
        hang_up(st, p->conn);
    }
    peer_free(st->s, p);
}

void ps_shard_peer_fini(struct ps_shard *s)
{
    struct ps_map_cursor c = {0};
    struct ps_shard_conn *conn;
    struct ps_shard_peer *p;

    while ((conn = ps_map_next(s->conns, &c)) != NULL) {
        conn_free(s, conn);
    }
    c = (struct ps_map_cursor){0};
    while ((p = ps_map_next(s->peers, &c)) != NULL) {
        peer_free(s, p);
    }
}

void ps_shard_peer_end(struct ps_shard_step *st)
{
    struct ps_map_cursor c = {0};
    struct ps_shard_conn *conn;

    while ((conn = ps_map_next(st->s->conns, &c)) != NULL) {
        hang_up(st, conn);
    }
}

/* Room for one more: the agent that is away longest gives way. */
static bool make_room(struct ps_shard *s)
{
    struct ps_map_cursor c = {0};
    struct ps_shard_peer *oldest = NULL;
    struct ps_shard_peer *p;

    if (ps_map_count(s->peers) < PS_PEERS_MAX) {
        return true;
    }
    while ((p = ps_map_next(s->peers, &c)) != NULL) {
        if (p->conn == NULL &&
            (oldest == NULL || p->closed_at < oldest->closed_at)) {
            oldest = p;
        }
    }
    if (oldest == NULL) {
        return false;
    }
    peer_free(s, oldest);
    return true;
}

static struct ps_shard_peer *peer_new(struct ps_shard *s,
                                      const struct ps_msg_hello *m)
{
    struct ps_shard_peer *p = ps_calloc(1, sizeof(*p));
    struct ps_link_options link = s->opt.link;
    char name[PS_NAME_MAX + 1];

    snprintf(name, sizeof(name), "node %u", m->node);
    link.ledger = &s->account;
    link.peer = name;
    p->number = m->node;
    p->incarnation = m->incarnation;
    p->instance = m->instance;
    p->link = ps_link_new(&link, &s->rng);
    p->flows = ps_map_new();
    ps_map_put(s->peers, p->number, p);
    return p;
}

static uint64_t most_answers(const struct ps_shard *s)
{
    return s->opt.link.memory_max != 0 ? s->opt.link.memory_max : UINT64_MAX;
}

void ps_shard_peer_send(struct ps_shard_step *st, struct ps_shard_peer *p,
                        struct ps_parcel *parcel)
{
    const struct ps_shard *s = st->s;

    st->s->bytes_out += parcel->payload_len;
    ps_link_send(p->link, parcel, st->now, st->fx);
    set_timer(st->s, p);
    if (!ps_list_linked(&p->node) &&
        (ps_link_in_flight(p->link) > PS_BACKLOG_MAX ||
         ps_link_memory(p->link) > most_answers(s))) {
        ps_list_push_back(&st->s->crowded, &p->node);
    }
}

/* ------------------------------------------------------------------ hello */

static void reject(struct ps_shard_step *st, struct ps_shard_conn *c, int rc,
                   const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static void reject(struct ps_shard_step *st, struct ps_shard_conn *c, int rc,
                   const char *fmt, ...)
{
    char text[PS_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    ps_effects_tell(st->fx, c->id,
                    &(struct ps_msg){.code = PS_MSG_REJECT,
                                     .reject = {.error = rc, .text = text}});
    ps_shard_peer_cut(st, c, text);
}

/* False: rejected, and the connection is gone. */
static bool is_welcome(struct ps_shard_step *st, struct ps_shard_conn *c,
                       const struct ps_msg_hello *m)
{
    const char *cluster = m->cluster != NULL ? m->cluster : "";

    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol_least > PS_PROTOCOL) {
        reject(st, c, PS_E_VERSION,
               "protocol %u to %u offered, this server speaks %u to %u",
               m->protocol_least, m->protocol, PS_PROTOCOL_LEAST, PS_PROTOCOL);
    } else if (strcmp(cluster, st->s->opt.cluster) != 0) {
        char theirs[PS_NAME_MAX * 4 + 1];
        struct ps_str s;

        ps_str_init(&s, theirs, sizeof(theirs));
        ps_str_add_escaped(&s, cluster, strlen(cluster), PS_NAME_MAX);
        reject(st, c, PS_E_MISMATCH,
               "this server is of cluster '%s', not of '%s'",
               st->s->opt.cluster, theirs);
    } else if (m->role != PS_ROLE_AGENT) {
        reject(st, c, PS_E_PERM, "agents alone talk to servers");
    } else if (m->node == 0 || m->incarnation == 0) {
        reject(st, c, PS_E_PERM, "the scheduler is to be asked first");
    } else {
        return true;
    }
    return false;
}

static void refuse_oldest_held(struct ps_shard_step *st)
{
    struct ps_shard_conn *c = PS_CONTAINER(ps_list_first(&st->s->held),
                                           struct ps_shard_conn, node);

    reject(st, c, PS_E_AGAIN,
           "the scheduler has not named node %u with incarnation %llu as an "
           "agent of a job here; try again when it has",
           c->hello->hello.node,
           (unsigned long long)c->hello->hello.incarnation);
}

/* Waits for the scheduler's word. */
static void hold(struct ps_shard_step *st, struct ps_shard_conn *c,
                 const struct ps_msg_hello *m)
{
    const struct ps_msg msg = {.code = PS_MSG_HELLO, .hello = *m};

    uint32_t count = 0;

    assert(c->hello == NULL);
    PS_LIST_EACH(n, &st->s->held)
    {
        count++;
    }
    if (count >= PS_HELD_MAX) {
        refuse_oldest_held(st);
    }
    c->hello = ps_msg_dup(&msg);
    c->since = st->now;
    ps_list_remove(&c->node);
    ps_list_push_back(&st->s->held, &c->node);
}

/* The agent of this hello; NULL: rejected, or held. Anybody may say anything
 * here, so an agent is what the scheduler has named: a node, its incarnation
 * and the number that its process has drawn. */
static struct ps_shard_peer *meet(struct ps_shard_step *st,
                                  struct ps_shard_conn *c,
                                  const struct ps_msg_hello *m)
{
    struct ps_shard *s = st->s;
    struct ps_shard_peer *p = ps_map_get(s->peers, m->node);

    if (p != NULL && p->incarnation == m->incarnation &&
        p->instance == m->instance) {
        return p;
    }
    if (!ps_shard_job_names(s, m)) {
        if (p != NULL && p->incarnation > m->incarnation) {
            reject(st, c, PS_E_STALE, "node %u was restarted since", m->node);
        } else if (p != NULL && p->incarnation == m->incarnation) {
            reject(st, c, PS_E_EXIST, "node %u is somebody else", m->node);
        } else {
            hold(st, c, m);
        }
        return NULL;
    }
    if (p != NULL) {
        ps_effects_note(st->fx, PS_LOG_INFO, "node %u was restarted", m->node);
        forget(st, p);
    }
    if (!make_room(s)) {
        reject(st, c, PS_E_FULL, "too many agents");
        return NULL;
    }
    return peer_new(s, m);
}

/* Its agent is known: the connection carries that one's link. */
static void attach(struct ps_shard_step *st, struct ps_shard_conn *c,
                   struct ps_shard_peer *p, const struct ps_msg_hello *m)
{
    struct ps_shard *s = st->s;

    if (p->conn != NULL) {
        hang_up(st, p->conn);
    }
    ps_list_remove(&c->node);
    c->peer = p;
    p->conn = c;
    p->heard_at = st->now;

    bool resumed = m->session != 0 && p->session == m->session &&
                   ps_link_resumable(p->link);
    if (!resumed) {
        p->session = m->session;
        ps_shard_credit_drop(p);
        ps_shard_job_forget(s, p);
    }
    ps_effects_note(st->fx, PS_LOG_INFO, "agent node %u incarnation %llu %s",
                    p->number, (unsigned long long)p->incarnation,
                    resumed ? "resumed" : "connected");
    ps_effects_tell(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_WELCOME,
            .welcome = {
                .protocol = m->protocol < PS_PROTOCOL ? m->protocol
                                                      : (uint16_t)PS_PROTOCOL,
                .name = s->opt.name,
                .instance = s->opt.instance,
                .node = p->number,
                .incarnation = p->incarnation,
                .resumed = resumed,
                .received = resumed ? ps_link_received(p->link) : 0,
            }});
    ps_link_open(p->link, c->id, resumed, m->received, st->now, st->fx);
    set_timer(s, p);
}

static void hello(struct ps_shard_step *st, struct ps_shard_conn *c,
                  const struct ps_msg_hello *m)
{
    struct ps_shard_peer *p;

    if (!is_welcome(st, c, m)) {
        return;
    }
    p = meet(st, c, m);
    if (p != NULL) {
        attach(st, c, p, m);
    }
}

void ps_shard_peer_named(struct ps_shard_step *st)
{
    struct ps_list *held = &st->s->held;
    struct ps_list_node *n = ps_list_first(held);

    while (n != NULL) {
        struct ps_shard_conn *c = PS_CONTAINER(n, struct ps_shard_conn, node);

        if (!ps_shard_job_names(st->s, &c->hello->hello)) {
            n = ps_list_next(held, n);
            continue;
        }
        struct ps_msg *msg = c->hello;

        c->hello = NULL;
        hello(st, c, &msg->hello);
        ps_msg_free(msg);
        n = ps_list_first(held); /* Others of that agent may be gone. */
    }
}

/* Nobody has named them in time. */
static void held_tick(struct ps_shard_step *st)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&st->s->held)) != NULL) {
        const struct ps_shard_conn *c = PS_CONTAINER(n, struct ps_shard_conn,
                                                     node);

        if (st->now < ps_time_add(c->since, HELD_WAIT)) {
            break;
        }
        refuse_oldest_held(st);
    }
}

/* --------------------------------------------------------------- messages */

static void deliver(struct ps_shard_step *st, struct ps_shard_conn *c,
                    const struct ps_msg *msg, const struct ps_slice *payload)
{
    switch (msg->code) {
    case PS_MSG_ACK:
    case PS_MSG_PONG:
        break;
    case PS_MSG_PING:
        ps_effects_tell(st->fx, c->id,
                        &(struct ps_msg){
                            .code = PS_MSG_PONG,
                            .ack = ps_link_received(c->peer->link),
                            .pong = {.stamp = msg->ping.stamp},
                        });
        break;
    case PS_MSG_PUSH:
        ps_shard_push(st, c, msg, payload);
        break;
    case PS_MSG_PULL:
        ps_shard_pull(st, c, msg);
        break;
    case PS_MSG_PUSH_ROWS:
        ps_shard_push_rows(st, c, msg, payload);
        break;
    case PS_MSG_PULL_ROWS:
        ps_shard_pull_rows(st, c, msg, payload);
        break;
    case PS_MSG_INIT:
        ps_shard_init(st, c, msg, payload);
        break;
    case PS_MSG_STATE_GET:
        ps_shard_state_get(st, c, &msg->state_get);
        break;
    case PS_MSG_STATE_PUT:
        ps_shard_state_put(st, c, &msg->state_put, payload);
        break;
    case PS_MSG_GIVE_UP:
        ps_shard_give_up(st, c, &msg->give_up);
        break;
    case PS_MSG_RESUME:
        ps_shard_resume(st, c, msg, payload);
        break;
    default:
        ps_shard_peer_cut(st, c, "it sent what is not for a server");
        break;
    }
}

void ps_shard_peer_ping_req(struct ps_shard_step *st,
                            const struct ps_msg_ping_req *m)
{
    const struct ps_shard_peer *p = ps_map_get(st->s->peers, m->node);
    const struct ps_caller *up = &st->s->up.caller;

    if (p == NULL || p->incarnation != m->incarnation || p->conn == NULL) {
        return;
    }
    ps_effects_tell(
        st->fx, up->conn,
        &(struct ps_msg){.code = PS_MSG_PING_ACK,
                         .ack = ps_link_received(up->link),
                         .ping_ack = {.node = m->node,
                                      .incarnation = m->incarnation,
                                      .silent_ns = st->now - p->heard_at}});
    ps_effects_tell(st->fx, p->conn->id,
                    &(struct ps_msg){.code = PS_MSG_PING,
                                     .ack = ps_link_received(p->link),
                                     .ping = {.stamp = st->now}});
}

void ps_shard_peer_msg(struct ps_shard_step *st, ps_conn_id conn,
                       const struct ps_msg *msg, const struct ps_slice *payload,
                       int thrown)
{
    struct ps_shard_conn *c = ps_map_get(st->s->conns, conn);

    if (c == NULL) {
        return; /* We hung up; what still comes is nobody's. */
    }
    if (c->peer == NULL) {
        if (msg->code == PS_MSG_HELLO && c->hello == NULL) {
            hello(st, c, &msg->hello);
        } else {
            ps_shard_peer_cut(st, c,
                              c->hello == NULL
                                  ? "it did not say hello"
                                  : "it did not wait for a welcome");
        }
        return;
    }
    c->thrown = thrown;
    c->peer->heard_at = st->now;
    bool fresh = ps_link_receive(c->peer->link, msg, st->now, st->fx);

    set_timer(st->s, c->peer);
    if (fresh && payload != NULL && payload->buf != NULL) {
        st->s->bytes_in += payload->len;
    }
    if (fresh) {
        deliver(st, c, msg, payload);
    }
    c = ps_map_get(st->s->conns, conn);
    if (c != NULL) {
        c->thrown = 0;
    }
}

/* May the payload of this message come in? */
static int judge(struct ps_shard *s, struct ps_shard_peer *p,
                 const struct ps_msg *msg, uint64_t len,
                 struct ps_shard_slot **ret_slot)
{
    const struct ps_rec_part *parts = NULL;
    uint32_t count = 0;
    uint32_t slot = 0;
    uint64_t gen = 0;
    uint64_t total;

    switch (msg->code) {
    case PS_MSG_PUSH:
        parts = msg->push.parts;
        count = msg->push.parts_count;
        slot = msg->push.slot;
        gen = msg->push.gen;
        break;
    case PS_MSG_PUSH_ROWS:
    case PS_MSG_PULL_ROWS:
        return ps_shard_rows_judge(s, p, msg, len, ret_slot);
    case PS_MSG_INIT:
        parts = msg->init.parts;
        count = msg->init.parts_count;
        slot = msg->init.slot;
        gen = msg->init.gen;
        break;
    case PS_MSG_STATE_PUT:
        parts = msg->state_put.parts;
        count = msg->state_put.parts_count;
        slot = msg->state_put.slot;
        gen = msg->state_put.gen;
        break;
    case PS_MSG_RESUME:
        parts = msg->resume.parts;
        count = msg->resume.parts_count;
        slot = msg->resume.slot;
        gen = msg->resume.gen;
        break;
    default:
        return PS_E_PROTO;
    }
    if (!ps_shard_parts_bytes(parts, count, &total) || total != len) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(p->link, msg->seq)) {
        return PS_E_EXIST;
    }
    struct ps_shard_job *job = ps_shard_job_find(s, gen);

    if (job == NULL) {
        return PS_E_NOJOB;
    }
    int rc = ps_shard_job_slot(job, p, slot, ret_slot);
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_PUSH) {
        if (!ps_flow_admits(ps_shard_credit_flow(s, p, gen), len)) {
            return PS_E_FULL;
        }
        if (ps_shard_push_is_known(job, &msg->push)) {
            return PS_E_EXIST;
        }
        return 0;
    }
    if (msg->code == PS_MSG_INIT && ps_shard_init_is_known(job, &msg->init)) {
        return PS_E_EXIST;
    }
    return 0;
}

int ps_shard_peer_payload(struct ps_shard *s, ps_conn_id conn,
                          const struct ps_msg *msg, uint64_t len,
                          struct ps_slice *ret_slice)
{
    struct ps_shard_conn *c = ps_map_get(s->conns, conn);
    struct ps_shard_slot *slot = NULL;
    struct ps_buf *buf;

    if (c == NULL || c->peer == NULL) {
        return PS_E_CLOSED;
    }
    int rc = len <= PS_PAYLOAD_MAX ? judge(s, c->peer, msg, len, &slot)
                                   : PS_E_PROTO;
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_PUSH && ps_shard_credit_ahead(slot)) {
        return PS_E_AGAIN;
    }
    rc = ps_shard_room_get(s, slot, msg, len, &buf);
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_PUSH) {
        ps_shard_credit_begin(slot);
    }
    *ret_slice = (struct ps_slice){.buf = buf, .offset = 0, .len = len};
    return 0;
}

/* ------------------------------------------------------------------- time */

static void tick_peer(struct ps_shard_step *st, struct ps_shard_peer *p)
{
    if (p->conn != NULL) {
        ps_link_tick(p->link, st->now, st->fx);
        set_timer(st->s, p);
    } else {
        ps_effects_note(st->fx, PS_LOG_INFO, "agent node %u forgotten",
                        p->number);
        peer_free(st->s, p);
    }
}

void ps_shard_peer_tick(struct ps_shard_step *st)
{
    struct ps_shard *s = st->s;
    struct ps_list_node *n;
    size_t due = ps_map_count(s->peers);

    while ((n = ps_list_first(&s->strangers)) != NULL) {
        struct ps_shard_conn *c = PS_CONTAINER(n, struct ps_shard_conn, node);

        if (st->now < ps_time_add(c->since, HELLO_WAIT)) {
            break;
        }
        ps_shard_peer_cut(st, c, "it did not say hello in time");
    }
    held_tick(st);
    /* Each at most once, whatever its next time is. */
    for (; due > 0; due--) {
        struct ps_heap_item *item = ps_heap_peek(&s->timers);

        if (item == NULL || item->key > st->now) {
            break;
        }
        tick_peer(st, PS_CONTAINER(item, struct ps_shard_peer, timer));
    }
    while ((n = ps_list_pop(&s->crowded)) != NULL) {
        struct ps_shard_peer *p = PS_CONTAINER(n, struct ps_shard_peer, node);

        ps_effects_note(st->fx, PS_LOG_WARNING,
                        "node %u takes no answers and is forgotten", p->number);
        forget(st, p);
    }
}

ps_time ps_shard_peer_deadline(const struct ps_shard *s)
{
    const struct ps_heap_item *item = ps_heap_peek(&s->timers);
    ps_time at = item != NULL ? item->key : PS_TIME_NEVER;
    const struct ps_list_node *n = ps_list_first(&s->strangers);

    if (n != NULL) {
        const struct ps_shard_conn *c = PS_CONTAINER(n, struct ps_shard_conn,
                                                     node);

        at = ps_time_min(at, ps_time_add(c->since, HELLO_WAIT));
    }
    n = ps_list_first(&s->held);
    if (n != NULL) {
        const struct ps_shard_conn *c = PS_CONTAINER(n, struct ps_shard_conn,
                                                     node);

        at = ps_time_min(at, ps_time_add(c->since, HELD_WAIT));
    }
    return ps_list_empty(&s->crowded) ? at : 0;
}
