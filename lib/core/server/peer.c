/* SPDX-License-Identifier: Apache-2.0 */
/* Links to the backups of this server's places. This side dials, as agents dial
 * servers; the other accepts the hello because the scheduler has named this
 * process in a place (rule O7). A link is that of one process: one that was
 * restarted is another peer, which has nothing of the place. */
#include "core/server/peer.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/server/inner.h"

#include <string.h>

/* A backup that owes confirmations and is silent gets a ping: at least its host
 * acknowledges it, and a missing acknowledgement shows a broken connection. */
#define PING_INTERVAL PS_MILLIS(500)
#define AWAY_TIME     PS_SECONDS(5)

void ps_server_peer_init(struct ps_server *s)
{
    s->peers.by_number = ps_map_new();
}

static void peer_free(struct ps_server *s, struct ps_server_peer *p)
{
    assert(ps_list_empty(&p->waiting) && ps_list_empty(&p->filling));
    ps_map_remove(s->peers.by_number, p->number);
    ps_dialer_fini(&p->dialer);
    ps_free(p);
}

void ps_server_peer_fini(struct ps_server *s)
{
    PS_MAP_EACH(struct ps_server_peer, p, s->peers.by_number)
    {
        peer_free(s, p);
    }
    ps_map_free(s->peers.by_number);
    ps_msg_free(s->peers.map);
}

/* Sets name and address as the newest map states them. */
static void set_address(struct ps_server_step *st, struct ps_server_peer *p)
{
    const struct ps_msg *map = st->s->peers.map;

    for (uint32_t i = 0; map != NULL && i < map->map.servers_count; i++) {
        const struct ps_rec_server *r = &map->map.servers[i];

        if (r->node == p->node) {
            ps_str_copy(p->name, sizeof(p->name), ps_str_or_empty(r->name));
            ps_dialer_set_address(&p->dialer, ps_str_or_empty(r->address),
                                  st->now, st->fx);
        }
    }
}

void ps_server_peer_on_map(struct ps_server_step *st, const struct ps_msg *map)
{
    ps_msg_free(st->s->peers.map);
    st->s->peers.map = ps_msg_dup(map);
    PS_MAP_EACH(struct ps_server_peer, p, st->s->peers.by_number)
    {
        set_address(st, p);
    }
}

static void peer_close(struct ps_server_step *st, struct ps_server_peer *p)
{
    ps_dialer_drop_all(&p->dialer, st->now, st->fx);
    peer_free(st->s, p);
}

static struct ps_server_peer *find_process(const struct ps_server *s,
                                           uint32_t node, uint64_t instance)
{
    PS_MAP_EACH(struct ps_server_peer, p, s->peers.by_number)
    {
        if (p->node == node && p->instance == instance) {
            return p;
        }
    }
    return NULL;
}

struct ps_server_peer *ps_server_peer_obtain(struct ps_server_step *st,
                                             uint32_t node, uint64_t instance)
{
    struct ps_server *s = st->s;
    struct ps_server_peer *p = find_process(s, node, instance);

    if (p == NULL) {
        struct ps_link_options link = s->opt.link;

        link.ledger = &s->account;
        link.peer = "backup";
        p = ps_calloc(1, sizeof(*p));
        p->number = ++s->peers.last_number;
        p->node = node;
        p->instance = instance;
        ps_list_init(&p->waiting);
        ps_list_init(&p->filling);
        ps_dialer_init(
            &p->dialer,
            &(struct ps_dialer_options){.target = p->number,
                                        .instance = s->opt.instance,
                                        .backoff_min = s->opt.dial_backoff_min,
                                        .backoff_max = s->opt.dial_backoff_max,
                                        .link = link},
            &s->rng, st->now);
        p->dialer.enabled = true;
        p->away_since = st->now;
        ps_map_put(s->peers.by_number, p->number, p);
        set_address(st, p);
    }
    p->is_used = true;
    return p;
}

void ps_server_peer_drop_unused(struct ps_server_step *st, bool keeps_connected)
{
    PS_MAP_EACH(struct ps_server_peer, p, st->s->peers.by_number)
    {
        if (!p->is_used && !(keeps_connected && p->dialer.conn != 0)) {
            peer_close(st, p);
        }
    }
}

void ps_server_peer_send(struct ps_server_step *st, struct ps_server_peer *p,
                         struct ps_packet *packet)
{
    st->s->bytes_out += packet->payload_len;
    ps_link_send(p->dialer.link, packet, st->now, st->fx);
}

/* -------------------------------------------------------------- connections */

struct ps_server_peer *ps_server_peer_of_conn(const struct ps_server *s,
                                              ps_conn_id conn)
{
    PS_MAP_EACH(struct ps_server_peer, p, s->peers.by_number)
    {
        if (ps_dialer_owns_conn(&p->dialer, conn)) {
            return p;
        }
    }
    return NULL;
}

static void note_dial_failure(struct ps_server_step *st,
                              struct ps_server_peer *p, uint64_t target, int rc,
                              const char *why)
{
    if (ps_dialer_on_dial_failed(&p->dialer, target, rc, st->now)) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "backup server %s at %s cannot be reached: %s", p->name,
                       p->dialer.address, why != NULL ? why : ps_strerror(rc));
    }
}

void ps_server_peer_on_dial_failed(struct ps_server_step *st,
                                   const struct ps_event *ev)
{
    const uint64_t target = ev->dial_failed.target;
    struct ps_server_peer *p = ps_map_get(st->s->peers.by_number,
                                          (uint32_t)target);

    if (p != NULL) {
        note_dial_failure(st, p, target, ev->dial_failed.rc,
                          ev->dial_failed.why);
    }
}

void ps_server_peer_on_open(struct ps_server_step *st,
                            const struct ps_event *ev)
{
    const uint64_t target = ev->open.target;
    const struct ps_server *s = st->s;
    struct ps_server_peer *p = ps_map_get(s->peers.by_number, (uint32_t)target);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (p == NULL) {
        ps_effects_close(st->fx, ev->conn);
    } else if (!ps_peer_check_name(ev->open.identity, p->name, &why)) {
        ps_effects_close(st->fx, ev->conn);
        note_dial_failure(st, p, target, PS_E_PERM, why.data);
    } else if (ps_dialer_on_open(&p->dialer, target, ev->conn, st->now,
                                 st->fx)) {
        ps_dialer_send_hello(
            &p->dialer, ev->conn,
            &(struct ps_msg_hello){.role = PS_ROLE_SERVER,
                                   .name = s->opt.name,
                                   .cluster = s->opt.cluster,
                                   .address = s->opt.address,
                                   .node = s->uplink.node,
                                   .incarnation = s->uplink.incarnation},
            st->fx);
    }
}

void ps_server_peer_on_closed(struct ps_server_step *st,
                              struct ps_server_peer *p, ps_conn_id conn)
{
    if (ps_dialer_on_closed(&p->dialer, conn, st->now)) {
        ps_effects_log(st->fx, PS_LOG_INFO,
                       "connection to backup server %s lost", p->name);
    }
}

static void drop_conn(struct ps_server_step *st, struct ps_server_peer *p,
                      ps_conn_id conn, const char *why)
{
    ps_effects_log(st->fx, PS_LOG_WARNING, "backup server %s dropped: %s",
                   p->name, why);
    (void)ps_dialer_drop_conn(&p->dialer, conn, st->now, st->fx);
}

/* True: the link has a new session. */
static bool on_welcome(struct ps_server_step *st, struct ps_server_peer *p,
                       ps_conn_id conn, const struct ps_msg_welcome *m)
{
    if (!ps_dialer_speaks(m)) {
        drop_conn(st, p, conn, "it speaks another protocol version");
        return false;
    }
    if (m->instance != p->instance) {
        /* Another process, of which the scheduler will tell. */
        drop_conn(st, p, conn, "it was restarted");
        ps_dialer_max_backoff(&p->dialer, st->now);
        return false;
    }
    if (!ps_dialer_on_welcome(&p->dialer, conn, st->now, st->fx)) {
        return false;
    }
    p->kernel_class = m->kernel_class;
    ps_link_open(p->dialer.link, conn, m->resumed, m->received, st->now,
                 st->fx);
    ps_effects_log(st->fx, PS_LOG_INFO, "backup server %s %s", p->name,
                   m->resumed ? "resumed" : "connected");
    return !m->resumed;
}

bool ps_server_peer_on_msg(struct ps_server_step *st, struct ps_server_peer *p,
                           const struct ps_event *ev)
{
    const struct ps_msg *msg = ev->msg.msg;

    ps_dialer_on_recv(&p->dialer, ev->conn, st->now);
    if (msg->code == PS_MSG_REJECT) {
        drop_conn(st, p, ev->conn, ps_str_or_empty(msg->reject.text));
        return false;
    }
    if (ev->conn != p->dialer.conn && msg->code == PS_MSG_WELCOME) {
        return on_welcome(st, p, ev->conn, &msg->welcome);
    }
    if (ev->conn != p->dialer.conn) {
        drop_conn(st, p, ev->conn, "it did not begin with a welcome");
        return false;
    }
    if (!ps_link_receive(p->dialer.link, msg, st->now, st->fx) ||
        msg->code == PS_MSG_PONG) {
        return false;
    }
    if (msg->code != PS_MSG_COPIED) {
        drop_conn(st, p, ev->conn,
                  "it sent a message that is not for an owner");
        return false;
    }
    return true;
}

void ps_server_peer_close_all(struct ps_server_step *st)
{
    PS_MAP_EACH(struct ps_server_peer, p, st->s->peers.by_number)
    {
        p->dialer.enabled = false;
        ps_dialer_drop_all(&p->dialer, st->now, st->fx);
    }
}

/* ---------------------------------------------------------------- deadlines */

static ps_time ping_due_at(const struct ps_server_peer *p)
{
    return p->dialer.conn == 0 || p->copying_bytes == 0
               ? PS_TIME_NEVER
               : ps_max_u64(p->next_ping_at,
                            ps_time_add(p->dialer.last_recv_at, PING_INTERVAL));
}

/* When the peer will have been away for long; PS_TIME_NEVER: it has been, or is
 * not. */
static ps_time away_due_at(const struct ps_server_peer *p, ps_time now)
{
    return p->away_since == PS_TIME_NEVER || ps_server_peer_is_away(p, now)
               ? PS_TIME_NEVER
               : ps_time_add(p->away_since, AWAY_TIME);
}

bool ps_server_peer_is_away(const struct ps_server_peer *p, ps_time now)
{
    return p->away_since != PS_TIME_NEVER &&
           now >= ps_time_add(p->away_since, AWAY_TIME);
}

bool ps_server_peer_tick(struct ps_server_step *st)
{
    bool any_away = false;

    PS_MAP_EACH(struct ps_server_peer, p, st->s->peers.by_number)
    {
        ps_dialer_tick(&p->dialer, st->now, st->fx);
        if (p->dialer.conn != 0) {
            p->away_since = PS_TIME_NEVER;
        } else if (p->away_since == PS_TIME_NEVER) {
            p->away_since = st->now;
        }
        any_away |= ps_server_peer_is_away(p, st->now);
        if (ping_due_at(p) <= st->now) {
            p->next_ping_at = ps_time_add(st->now, PING_INTERVAL);
            ps_effects_send_msg(
                st->fx, p->dialer.conn,
                &(struct ps_msg){.code = PS_MSG_PING,
                                 .ack = ps_link_received(p->dialer.link),
                                 .ping = {.stamp = st->now}});
        }
    }
    return any_away;
}

ps_time ps_server_peer_deadline(const struct ps_server *s)
{
    ps_time at = PS_TIME_NEVER;

    PS_MAP_EACH(const struct ps_server_peer, p, s->peers.by_number)
    {
        at = ps_time_min(at, ps_dialer_deadline(&p->dialer));
        at = ps_time_min(at, ping_due_at(p));
        at = ps_time_min(at, away_due_at(p, s->now));
        if (!ps_list_empty(&p->filling) && p->fill_at > s->now) {
            at = ps_time_min(at, p->fill_at);
        }
    }
    return at;
}
