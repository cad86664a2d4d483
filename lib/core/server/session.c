/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: agents as the server sees them. An accepted connection carries the
 * link of an agent after its hello. An agent has one session, of one process,
 * and one connection at a time: a newer process or connection replaces the
 * older. The scheduler decides which process is newer: the hello of one that it
 * has not named yet is held (rule H10). A session is kept for link_linger after
 * its connection is lost (rule L7).
 *
 * An error of an agent closes its connection, with a log line. The agent
 * dials again, and the session is resumed. */
#include "core/server/inner.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/server/contribution.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------ connections */

static void conn_free(struct ps_server *s, struct ps_server_conn *c)
{
    if (ps_list_linked(&c->node)) {
        ps_list_remove(&c->node);
    }
    ps_map_remove(s->conns, c->id);
    ps_msg_free(c->unverified_hello);
    ps_free(c);
}

void ps_server_session_on_open(struct ps_server_step *st, ps_conn_id conn,
                               const char *who)
{
    struct ps_server *s = st->s;

    if (s->ending || ps_map_count(s->conns) >= PS_PEERS_MAX) {
        ps_effects_log(st->fx, PS_LOG_WARNING, "connection of %s refused: %s",
                       who != NULL ? who : "?",
                       s->ending ? "ending" : "too many");
        ps_effects_close(st->fx, conn);
        return;
    }
    struct ps_server_conn *c = ps_calloc(1, sizeof(*c));

    c->id = conn;
    c->listed_at = st->now;
    ps_map_put(s->conns, conn, c);
    ps_list_push_back(&s->handshaking, &c->node);
}

static void update_session_timer(struct ps_server *s,
                                 struct ps_server_session *p)
{
    ps_time at = p->conn != NULL
                     ? ps_link_deadline(p->link)
                     : ps_time_add(p->disconnected_at, s->opt.link_linger);

    if (!ps_heap_linked(&p->timer) || p->timer.key != at) {
        ps_heap_update(&s->session_timers, &p->timer, at);
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
        update_session_timer(st->s, p);
    }
    conn_free(st->s, c);
}

static void close_conn(struct ps_server_step *st, struct ps_server_conn *c)
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
        ps_effects_log(st->fx, PS_LOG_WARNING, "stranger cut off: %s", why);
    }
    close_conn(st, c);
}

void ps_server_session_on_closed(struct ps_server_step *st, ps_conn_id conn)
{
    struct ps_server_conn *c = ps_map_get(st->s->conns, conn);

    if (c != NULL) {
        detach_conn(st, c);
    }
}

/* ----------------------------------------------------------------- sessions */

static void session_free(struct ps_server *s, struct ps_server_session *p)
{
    s->resent_closed += ps_link_resent(p->link);
    if (ps_list_linked(&p->list_node)) {
        ps_list_remove(&p->list_node);
    }
    if (ps_heap_linked(&p->timer)) {
        ps_heap_remove(&s->session_timers, &p->timer);
    }
    ps_map_remove(s->sessions, p->agent_node);
    ps_link_free(p->link);
    ps_server_credit_drop_all(p);
    ps_map_free(p->credits);
    ps_free(p);
}

static void close_session(struct ps_server_step *st,
                          struct ps_server_session *p)
{
    if (p->conn != NULL) {
        close_conn(st, p->conn);
    }
    session_free(st->s, p);
}

void ps_server_session_fini(struct ps_server *s)
{
    struct ps_map_cursor c = {0};
    struct ps_server_conn *conn;
    struct ps_server_session *p;

    while ((conn = ps_map_next(s->conns, &c)) != NULL) {
        conn_free(s, conn);
    }
    c = (struct ps_map_cursor){0};
    while ((p = ps_map_next(s->sessions, &c)) != NULL) {
        session_free(s, p);
    }
}

void ps_server_session_close_all(struct ps_server_step *st)
{
    struct ps_map_cursor c = {0};
    struct ps_server_conn *conn;

    while ((conn = ps_map_next(st->s->conns, &c)) != NULL) {
        close_conn(st, conn);
    }
}

/* Makes space for one more session, freeing the one disconnected for longest;
 * false: all are connected. */
static bool evict_oldest_session(struct ps_server *s)
{
    struct ps_map_cursor c = {0};
    struct ps_server_session *oldest = NULL;
    struct ps_server_session *p;

    if (ps_map_count(s->sessions) < PS_PEERS_MAX) {
        return true;
    }
    while ((p = ps_map_next(s->sessions, &c)) != NULL) {
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

static struct ps_server_session *session_new(struct ps_server *s,
                                             const struct ps_msg_hello *m)
{
    struct ps_server_session *p = ps_calloc(1, sizeof(*p));
    struct ps_link_options link = s->opt.link;
    char name[PS_NAME_MAX + 1];

    snprintf(name, sizeof(name), "node %u", m->node);
    link.ledger = &s->account;
    link.peer = name;
    p->agent_node = m->node;
    p->incarnation = m->incarnation;
    p->instance = m->instance;
    p->link = ps_link_new(&link, &s->rng);
    p->credits = ps_map_new();
    ps_map_put(s->sessions, p->agent_node, p);
    return p;
}

static uint64_t unacked_max(const struct ps_server *s)
{
    return s->opt.link.memory_max != 0 ? s->opt.link.memory_max : UINT64_MAX;
}

void ps_server_session_send(struct ps_server_step *st,
                            struct ps_server_session *p,
                            struct ps_packet *parcel)
{
    const struct ps_server *s = st->s;

    st->s->bytes_out += parcel->payload_len;
    ps_link_send(p->link, parcel, st->now, st->fx);
    update_session_timer(st->s, p);
    if (!ps_list_linked(&p->list_node) &&
        (ps_link_unacked(p->link) > PS_BACKLOG_MAX ||
         ps_link_memory(p->link) > unacked_max(s))) {
        ps_list_push_back(&st->s->backlogged, &p->list_node);
    }
}

/* ------------------------------------------------------------------ hello */

static void reject_hello(struct ps_server_step *st, struct ps_server_conn *c,
                         int rc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void reject_hello(struct ps_server_step *st, struct ps_server_conn *c,
                         int rc, const char *fmt, ...)
{
    char text[PS_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){.code = PS_MSG_REJECT,
                         .reject = {.error = rc, .text = text}});
    ps_server_session_close_bad(st, c, text);
}

/* False: rejected, and the connection is closed. */
static bool check_hello(struct ps_server_step *st, struct ps_server_conn *c,
                        const struct ps_msg_hello *m)
{
    const char *cluster = m->cluster != NULL ? m->cluster : "";

    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol_least > PS_PROTOCOL) {
        reject_hello(st, c, PS_E_VERSION,
                     "protocol %u to %u offered, this server speaks %u to %u",
                     m->protocol_least, m->protocol, PS_PROTOCOL_LEAST,
                     PS_PROTOCOL);
    } else if (strcmp(cluster, st->s->opt.cluster) != 0) {
        char theirs[PS_NAME_MAX * 4 + 1];
        struct ps_str s;

        ps_str_init(&s, theirs, sizeof(theirs));
        ps_str_add_escaped(&s, cluster, strlen(cluster), PS_NAME_MAX);
        reject_hello(st, c, PS_E_MISMATCH,
                     "this server is of cluster '%s', not of '%s'",
                     st->s->opt.cluster, theirs);
    } else if (m->role != PS_ROLE_AGENT) {
        reject_hello(st, c, PS_E_PERM, "agents alone talk to servers");
    } else if (m->node == 0 || m->incarnation == 0) {
        reject_hello(st, c, PS_E_PERM, "the scheduler is to be asked first");
    } else {
        return true;
    }
    return false;
}

static void reject_oldest_unverified(struct ps_server_step *st)
{
    struct ps_server_conn *c = PS_CONTAINER(ps_list_first(&st->s->unverified),
                                            struct ps_server_conn, node);

    reject_hello(
        st, c, PS_E_AGAIN,
        "the scheduler has not named node %u with incarnation %llu as an "
        "agent of a job here; try again when it has",
        c->unverified_hello->hello.node,
        (unsigned long long)c->unverified_hello->hello.incarnation);
}

/* Holds the hello until the scheduler names the agent. */
static void await_verification(struct ps_server_step *st,
                               struct ps_server_conn *c,
                               const struct ps_msg_hello *m)
{
    const struct ps_msg msg = {.code = PS_MSG_HELLO, .hello = *m};

    uint32_t count = 0;

    assert(c->unverified_hello == NULL);
    PS_LIST_EACH(n, &st->s->unverified)
    {
        count++;
    }
    if (count >= PS_UNVERIFIED_MAX) {
        reject_oldest_unverified(st);
    }
    c->unverified_hello = ps_msg_dup(&msg);
    c->listed_at = st->now;
    ps_list_remove(&c->node);
    ps_list_push_back(&st->s->unverified, &c->node);
}

/* Returns the session for this hello; NULL: rejected or held. A hello is not
 * trusted: its node, incarnation and instance must be those of an agent that
 * the scheduler has named (rule H9). */
static struct ps_server_session *obtain_session(struct ps_server_step *st,
                                                struct ps_server_conn *c,
                                                const struct ps_msg_hello *m)
{
    struct ps_server *s = st->s;
    struct ps_server_session *p = ps_map_get(s->sessions, m->node);

    if (p != NULL && p->incarnation == m->incarnation &&
        p->instance == m->instance) {
        return p;
    }
    if (!ps_server_job_names_agent(s, m)) {
        if (p != NULL && p->incarnation > m->incarnation) {
            reject_hello(st, c, PS_E_STALE, "node %u was restarted since",
                         m->node);
        } else if (p != NULL && p->incarnation == m->incarnation) {
            reject_hello(st, c, PS_E_EXIST, "node %u is somebody else",
                         m->node);
        } else {
            await_verification(st, c, m);
        }
        return NULL;
    }
    if (p != NULL) {
        ps_effects_log(st->fx, PS_LOG_INFO, "node %u was restarted", m->node);
        close_session(st, p);
    }
    if (!evict_oldest_session(s)) {
        reject_hello(st, c, PS_E_FULL, "too many agents");
        return NULL;
    }
    return session_new(s, m);
}

/* Makes the connection carry the session's link. */
static void attach_conn(struct ps_server_step *st, struct ps_server_conn *c,
                        struct ps_server_session *p,
                        const struct ps_msg_hello *m)
{
    struct ps_server *s = st->s;

    if (p->conn != NULL) {
        close_conn(st, p->conn);
    }
    ps_list_remove(&c->node);
    c->session = p;
    p->conn = c;
    p->heard_at = st->now;

    bool resumed = m->session != 0 && p->session_id == m->session &&
                   ps_link_is_resumable(p->link);
    if (!resumed) {
        p->session_id = m->session;
        ps_server_credit_drop_all(p);
        ps_server_job_drop_waits(s, p);
    }
    ps_effects_log(st->fx, PS_LOG_INFO, "agent node %u incarnation %llu %s",
                   p->agent_node, (unsigned long long)p->incarnation,
                   resumed ? "resumed" : "connected");
    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_WELCOME,
            .welcome = {
                .protocol = m->protocol < PS_PROTOCOL ? m->protocol
                                                      : (uint16_t)PS_PROTOCOL,
                .name = s->opt.name,
                .instance = s->opt.instance,
                .node = p->agent_node,
                .incarnation = p->incarnation,
                .resumed = resumed,
                .received = resumed ? ps_link_received(p->link) : 0,
            }});
    ps_link_open(p->link, c->id, resumed, m->received, st->now, st->fx);
    update_session_timer(s, p);
}

static void on_hello(struct ps_server_step *st, struct ps_server_conn *c,
                     const struct ps_msg_hello *m)
{
    struct ps_server_session *p;

    if (!check_hello(st, c, m)) {
        return;
    }
    p = obtain_session(st, c, m);
    if (p != NULL) {
        attach_conn(st, c, p, m);
    }
}

void ps_server_session_verify_all(struct ps_server_step *st)
{
    struct ps_list *held = &st->s->unverified;
    struct ps_list_node *n = ps_list_first(held);

    while (n != NULL) {
        struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn, node);

        if (!ps_server_job_names_agent(st->s, &c->unverified_hello->hello)) {
            n = ps_list_next(held, n);
            continue;
        }
        struct ps_msg *msg = c->unverified_hello;

        c->unverified_hello = NULL;
        on_hello(st, c, &msg->hello);
        ps_msg_free(msg);
        /* on_hello() may have closed other held connections of the agent. */
        n = ps_list_first(held);
    }
}

/* Rejects agents that were not named in time. */
static void tick_unverified(struct ps_server_step *st)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&st->s->unverified)) != NULL) {
        const struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn,
                                                      node);

        if (st->now < ps_time_add(c->listed_at, VERIFY_TIMEOUT)) {
            break;
        }
        reject_oldest_unverified(st);
    }
}

/* --------------------------------------------------------------- messages */

static void on_session_msg(struct ps_server_step *st, struct ps_server_conn *c,
                           const struct ps_msg *msg,
                           const struct ps_slice *payload)
{
    switch (msg->code) {
    case PS_MSG_ACK:
    case PS_MSG_PONG:
        break;
    case PS_MSG_PING:
        ps_effects_send_msg(st->fx, c->id,
                            &(struct ps_msg){
                                .code = PS_MSG_PONG,
                                .ack = ps_link_received(c->session->link),
                                .pong = {.stamp = msg->ping.stamp},
                            });
        break;
    case PS_MSG_PUSH:
    case PS_MSG_PUSH_ROWS:
        ps_server_on_push(st, c, msg, payload);
        break;
    case PS_MSG_PULL:
        ps_server_on_pull(st, c, msg);
        break;
    case PS_MSG_PULL_ROWS:
        ps_server_on_pull_rows(st, c, msg, payload);
        break;
    case PS_MSG_INIT:
        ps_server_on_init(st, c, msg, payload);
        break;
    case PS_MSG_STATE_GET:
        ps_server_on_state_get(st, c, &msg->state_get);
        break;
    case PS_MSG_STATE_PUT:
        ps_server_on_state_put(st, c, &msg->state_put, payload);
        break;
    case PS_MSG_ABORT_ROUND:
        ps_server_on_abort_round(st, c, &msg->abort_round);
        break;
    case PS_MSG_RESTORE:
        ps_server_on_restore(st, c, msg, payload);
        break;
    default:
        ps_server_session_close_bad(st, c, "it sent what is not for a server");
        break;
    }
}

void ps_server_session_on_ping_req(struct ps_server_step *st,
                                   const struct ps_msg_ping_req *m)
{
    const struct ps_server_session *p = ps_map_get(st->s->sessions, m->node);

    if (p == NULL || p->incarnation != m->incarnation || p->conn == NULL) {
        return;
    }
    ps_uplink_send_ping_ack(&st->s->uplink, m, st->now - p->heard_at, st->fx);
    ps_effects_send_msg(st->fx, p->conn->id,
                        &(struct ps_msg){.code = PS_MSG_PING,
                                         .ack = ps_link_received(p->link),
                                         .ping = {.stamp = st->now}});
}

void ps_server_session_on_msg(struct ps_server_step *st, ps_conn_id conn,
                              const struct ps_msg *msg,
                              const struct ps_slice *payload, int thrown)
{
    struct ps_server_conn *c = ps_map_get(st->s->conns, conn);

    if (c == NULL) {
        return; /* Closed here; late messages are ignored. */
    }
    if (c->session == NULL) {
        if (msg->code == PS_MSG_HELLO && c->unverified_hello == NULL) {
            on_hello(st, c, &msg->hello);
        } else {
            ps_server_session_close_bad(st, c,
                                        c->unverified_hello == NULL
                                            ? "it did not say hello"
                                            : "it did not wait for a welcome");
        }
        return;
    }
    c->discard_reason = thrown;
    c->session->heard_at = st->now;
    bool fresh = ps_link_receive(c->session->link, msg, st->now, st->fx);

    update_session_timer(st->s, c->session);
    if (fresh && payload != NULL && payload->buf != NULL) {
        st->s->bytes_in += payload->len;
    }
    if (fresh) {
        on_session_msg(st, c, msg, payload);
    }
    c = ps_map_get(st->s->conns, conn);
    if (c != NULL) {
        c->discard_reason = 0;
    }
}

/* Decides whether the message's payload is received: 0, or the discard
 * reason. */
static int check_payload(struct ps_server *s, struct ps_server_session *p,
                         const struct ps_msg *msg, uint64_t len,
                         struct ps_server_slot **ret_slot)
{
    const struct ps_rec_part *parts = NULL;
    uint32_t count = 0;
    uint32_t slot = 0;
    uint64_t gen = 0;
    uint64_t total;

    switch (msg->code) {
    case PS_MSG_PUSH:
    case PS_MSG_PUSH_ROWS:
        return ps_server_push_check_payload(s, p, msg, len, ret_slot);
    case PS_MSG_PULL_ROWS:
        return ps_server_rows_check_payload(s, p, msg, len, ret_slot);
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
    case PS_MSG_RESTORE:
        parts = msg->restore.parts;
        count = msg->restore.parts_count;
        slot = msg->restore.slot;
        gen = msg->restore.gen;
        break;
    default:
        return PS_E_PROTO;
    }
    if (!ps_server_parts_bytes(parts, count, &total) || total != len) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(p->link, msg->seq)) {
        return PS_E_EXIST;
    }
    struct ps_server_job *job = ps_server_job_find(s, gen);

    if (job == NULL) {
        return PS_E_NOJOB;
    }
    int rc = ps_server_job_find_slot(job, p, slot, ret_slot);
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_INIT &&
        ps_server_init_is_duplicate(job, &msg->init)) {
        return PS_E_EXIST;
    }
    return 0;
}

int ps_server_session_payload(struct ps_server *s, ps_conn_id conn,
                              const struct ps_msg *msg, uint64_t len,
                              struct ps_slice *ret_slice)
{
    struct ps_server_conn *c = ps_map_get(s->conns, conn);
    struct ps_server_slot *slot = NULL;
    struct ps_buf *buf;

    if (c == NULL || c->session == NULL) {
        return PS_E_CLOSED;
    }
    int rc = len <= PS_PAYLOAD_MAX
                 ? check_payload(s, c->session, msg, len, &slot)
                 : PS_E_PROTO;
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_PUSH && ps_server_credit_is_ahead(slot)) {
        return PS_E_AGAIN;
    }
    rc = ps_server_memory_alloc_payload(s, slot, msg, len, &buf);
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_PUSH) {
        ps_server_credit_push_begins(slot);
    }
    *ret_slice = (struct ps_slice){.buf = buf, .offset = 0, .len = len};
    return 0;
}

/* ------------------------------------------------------------------- time */

static void tick_session(struct ps_server_step *st, struct ps_server_session *p)
{
    if (p->conn != NULL) {
        ps_link_tick(p->link, st->now, st->fx);
        update_session_timer(st->s, p);
    } else {
        ps_effects_log(st->fx, PS_LOG_INFO, "agent node %u forgotten",
                       p->agent_node);
        session_free(st->s, p);
    }
}

void ps_server_session_tick(struct ps_server_step *st)
{
    struct ps_server *s = st->s;
    struct ps_list_node *n;
    size_t due = ps_map_count(s->sessions);

    while ((n = ps_list_first(&s->handshaking)) != NULL) {
        struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn, node);

        if (st->now < ps_time_add(c->listed_at, HELLO_TIMEOUT)) {
            break;
        }
        ps_server_session_close_bad(st, c, "it did not say hello in time");
    }
    tick_unverified(st);
    /* Each session at most once, whatever its next deadline is. */
    for (; due > 0; due--) {
        struct ps_heap_item *item = ps_heap_peek(&s->session_timers);

        if (item == NULL || item->key > st->now) {
            break;
        }
        tick_session(st, PS_CONTAINER(item, struct ps_server_session, timer));
    }
    while ((n = ps_list_pop(&s->backlogged)) != NULL) {
        struct ps_server_session *p = PS_CONTAINER(n, struct ps_server_session,
                                                   list_node);

        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "node %u takes no answers and is forgotten",
                       p->agent_node);
        close_session(st, p);
    }
}

ps_time ps_server_session_deadline(const struct ps_server *s)
{
    const struct ps_heap_item *item = ps_heap_peek(&s->session_timers);
    ps_time at = item != NULL ? item->key : PS_TIME_NEVER;
    const struct ps_list_node *n = ps_list_first(&s->handshaking);

    if (n != NULL) {
        const struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn,
                                                      node);

        at = ps_time_min(at, ps_time_add(c->listed_at, HELLO_TIMEOUT));
    }
    n = ps_list_first(&s->unverified);
    if (n != NULL) {
        const struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn,
                                                      node);

        at = ps_time_min(at, ps_time_add(c->listed_at, VERIFY_TIMEOUT));
    }
    return ps_list_empty(&s->backlogged) ? at : 0;
}
