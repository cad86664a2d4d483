/* SPDX-License-Identifier: Apache-2.0 */
/* Links to servers: one each, dialled while a job has a send queue for the
 * server. Handles the cluster map, connections and pings. */
#include "core/agent/server.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/batch.h"
#include "core/agent/inner.h"
#include "core/base/machine.h"

#include <assert.h>

/* Silence after which a server is pinged while operations wait. The interval
 * between pings doubles from the minimum to the maximum. */
#define PING_INTERVAL_MIN PS_MILLIS(500)
#define PING_INTERVAL_MAX PS_SECONDS(2)

struct ps_agent_server *ps_agent_server_get(struct ps_agent_step *st,
                                            uint32_t node)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_node, node);
    struct ps_link_options link = st->a->opt.link;
    struct ps_str name;

    if (s == NULL) {
        s = ps_calloc(1, sizeof(*s));
        s->node = node;
        s->ping_interval = PING_INTERVAL_MIN;
        link.ledger = &st->a->account;
        ps_str_init(&name, s->peer, sizeof(s->peer));
        ps_str_addf(&name, "node %u", node);
        link.peer = s->peer;
        ps_list_init(&s->send_queues);
        ps_fair_init(&s->fair);
        /* Target 0 is the scheduler. An earlier server may have had the same
         * number and dials in flight; first_generation tells them apart. */
        st->a->servers.met++;
        ps_dialer_init(
            &s->dialer,
            &(struct ps_dialer_options){
                .target = node,
                .first_generation = st->a->servers.met << 12,
                .instance = st->a->opt.instance,
                .backoff_min = st->a->opt.dial_backoff_min,
                .backoff_max = ps_time_min(st->a->opt.dial_backoff_max,
                                           PS_DIALER_PARALLEL_DELAY),
                .link = link},
            &st->a->rng, st->now);
        ps_map_put(st->a->servers.by_node, node, s);
    }
    return s;
}

void ps_agent_server_free(struct ps_agent_server *s)
{
    assert(ps_list_empty(&s->send_queues));
    if (ps_list_linked(&s->work_node)) {
        ps_list_remove(&s->work_node);
    }
    ps_fair_fini(&s->fair);
    ps_dialer_fini(&s->dialer);
    ps_agent_batch_fini(&s->batch);
    ps_free(s);
}

void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s)
{
    if (!ps_list_empty(&s->send_queues)) {
        return;
    }
    s->dialer.enabled = false;
    ps_dialer_reset(&s->dialer, st->now, st->fx); /* New link. */
    s->unsent = 0;
}

void ps_agent_server_note(struct ps_agent_step *st,
                          const struct ps_agent_server *s, const char *why)
{
    ps_effects_log(st->fx, PS_LOG_INFO, "%s at %s: %s",
                   *s->name == '\0' ? "server" : s->name, s->dialer.address,
                   why);
}

/* Applies one entry of the map. Another incarnation is another process:
 * connections to the old one are dropped. */
static void update_server(struct ps_agent_step *st,
                          const struct ps_rec_server *m)
{
    struct ps_agent_server *s = ps_agent_server_get(st, m->node);
    bool other = s->was_in_map && s->incarnation != m->incarnation;

    if (other) {
        ps_agent_server_note(st, s, "was restarted");
        ps_dialer_drop_all(&s->dialer, st->now, st->fx);
    }
    if (other || s->removed) {
        ps_dialer_dial_now(&s->dialer, st->now);
    }
    s->was_in_map = true;
    s->removed = false;
    s->map_epoch = st->a->servers.map_epoch;
    s->incarnation = m->incarnation;
    ps_str_copy(s->name, sizeof(s->name), m->name);
    ps_dialer_set_address(&s->dialer, m->address, st->now, st->fx);
    s->dialer.enabled = !ps_list_empty(&s->send_queues);
}

/* Marks a server that the map does not list. It is not dialled until a map
 * lists it again. */
static void remove_server(struct ps_agent_step *st, struct ps_agent_server *s)
{
    s->removed = true;
    s->dialer.enabled = false;
    ps_agent_server_note(st, s, "is gone");
    ps_dialer_drop_all(&s->dialer, st->now, st->fx);
}

/* Returns true if the server has no connection, not even a closing one. */
static bool is_unconnected(const struct ps_agent *a,
                           const struct ps_agent_server *s)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_server *other;

    while ((other = ps_map_next(a->servers.by_conn, &c)) != NULL) {
        if (other == s) {
            return false;
        }
    }
    return true;
}

/* Frees servers that the map does not list and no job here uses. They would
 * accumulate, because a restarted scheduler numbers all servers again. */
static void free_unused_servers(struct ps_agent *a, const struct ps_msg_map *m)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_server *s;

    while ((s = ps_map_next(a->servers.by_node, &c)) != NULL) {
        bool named = false;

        for (uint32_t i = 0; i < m->servers_count && !named; i++) {
            named = m->servers[i].node == s->node;
        }
        if (!named && s->was_in_map && ps_list_empty(&s->send_queues) &&
            is_unconnected(a, s)) {
            ps_map_remove(a->servers.by_node, s->node);
            ps_agent_server_free(s);
        }
    }
}

void ps_agent_server_on_map(struct ps_agent_step *st,
                            const struct ps_msg_map *m)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_server *s;

    if (m->epoch < st->a->servers.map_epoch) {
        return;
    }
    st->a->servers.map_epoch = m->epoch;
    for (uint32_t i = 0; i < m->servers_count; i++) {
        update_server(st, &m->servers[i]);
    }
    while ((s = ps_map_next(st->a->servers.by_node, &c)) != NULL) {
        if (s->was_in_map && !s->removed && s->map_epoch != m->epoch) {
            remove_server(st, s);
        }
    }
    free_unused_servers(st->a, m);
}

/* -------------------------------------------------------------- connections */

/* Limits of a server that several jobs use, by the kind of its link. A sum of
 * one job waits behind those that run, and one of 1 MiB keeps all threads
 * busy. */
static const struct ps_agent_queue_limits of_jobs_by_reference = {
    .computing = 1024ull * 1024, .unsent = UINT64_MAX};
/* One partition of each: the loop takes about 0.5 ms to encrypt one, and a small
 * round of another job waits behind all of them. */
static const struct ps_agent_queue_limits of_jobs_by_stream = {
    .computing = 64ull * 1024, .unsent = 64ull * 1024};

void ps_agent_server_on_open(struct ps_agent_step *st,
                             const struct ps_event *ev)
{
    const uint64_t target = ev->open.target;
    const ps_conn_id conn = ev->conn;
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_node,
                                           (uint32_t)target);
    const struct ps_msg_hello hello = ps_agent_hello(st->a);
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (s == NULL) {
        ps_effects_close(st->fx, conn);
    } else if (!ps_peer_check_name(ev->open.identity, s->name, &why)) {
        ps_effects_close(st->fx, conn);
        ps_agent_server_on_dial_failed(st, target, PS_E_PERM, text);
    } else if (ps_dialer_on_open(&s->dialer, target, conn, st->now, st->fx)) {
        s->shared_limits = ev->open.is_by_reference ? &of_jobs_by_reference
                                                    : &of_jobs_by_stream;
        ps_map_put(st->a->servers.by_conn, conn, s);
        ps_dialer_send_hello(&s->dialer, conn, &hello, st->fx);
    }
}

void ps_agent_server_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_node,
                                           (uint32_t)target);

    if (s != NULL &&
        ps_dialer_on_dial_failed(&s->dialer, target, rc, st->now)) {
        ps_effects_log(st->fx, PS_LOG_WARNING,
                       "server %s at %s cannot be reached: %s", s->name,
                       s->dialer.address, why != NULL ? why : ps_strerror(rc));
    }
}

/* Returns true if a key of this node has a partition on the server. */
static bool has_partitions(const struct ps_agent_server *s)
{
    PS_LIST_EACH(n, &s->send_queues)
    {
        const struct ps_agent_send_queue *f = PS_CONTAINER(
            n, struct ps_agent_send_queue, node);
        struct ps_map_cursor c = {0};
        const struct ps_agent_key *k;

        while ((k = ps_map_next(f->job->keys, &c)) != NULL) {
            for (uint32_t i = 0; i < k->part_count; i++) {
                if (k->parts[i].owner_node == s->node) {
                    return true;
                }
            }
        }
    }
    return false;
}

void ps_agent_server_on_closed(struct ps_agent_step *st,
                               struct ps_agent_server *s, ps_conn_id conn)
{
    if (ps_dialer_on_closed(&s->dialer, conn, st->now)) {
        ps_agent_server_note(st, s, "connection lost");
    }
    if (s->dialer.enabled && !ps_dialer_is_connected(&s->dialer) &&
        !has_partitions(s)) {
        /* A server that was restarted, and whose partitions others have taken
         * over, does not know the jobs here, and would refuse each dial. */
        s->dialer.enabled = false;
        ps_agent_server_note(st, s,
                             "has no partition of a job here; it is "
                             "dialled when one is placed there");
    }
}

void ps_agent_server_on_stalled(struct ps_agent_step *st,
                                struct ps_agent_server *s, ps_conn_id conn)
{
    if (conn == s->dialer.conn) {
        ps_dialer_on_stalled(&s->dialer, st->now);
    }
}

void ps_agent_server_on_recv(struct ps_agent_step *st,
                             struct ps_agent_server *s)
{
    ps_dialer_on_recv(&s->dialer, s->dialer.conn, st->now);
    s->ping_interval = PING_INTERVAL_MIN;
    /* Any acknowledgement may open the window. */
    ps_agent_server_add_work(st->a, s);
}

/* Returns true while operations wait and this server may be the reason. At
 * least the server's host acknowledges a ping; a missing acknowledgement shows
 * that the connection is broken (PS_EV_STALLED). */
static bool needs_ping(const struct ps_agent *a,
                       const struct ps_agent_server *s)
{
    return a->spare_ops.in_use > 0 && ps_dialer_is_connected(&s->dialer) &&
           !ps_list_empty(&s->send_queues);
}

static ps_time ping_due_at(const struct ps_agent_server *s)
{
    return s->next_ping_at >
                   ps_time_add(s->dialer.last_recv_at, PING_INTERVAL_MIN)
               ? s->next_ping_at
               : ps_time_add(s->dialer.last_recv_at, PING_INTERVAL_MIN);
}

static void send_ping(struct ps_agent_step *st, const struct ps_agent_server *s)
{
    ps_effects_send_msg(
        st->fx, s->dialer.conn,
        &(struct ps_msg){.code = PS_MSG_PING,
                         .ack = ps_link_received(s->dialer.link),
                         .ping = {.stamp = st->now}});
}

static void send_server_ping(struct ps_agent_step *st,
                             struct ps_agent_server *s)
{
    send_ping(st, s);
    s->next_ping_at = ps_time_add(st->now, s->ping_interval);
    s->ping_interval = ps_time_min(2 * s->ping_interval, PING_INTERVAL_MAX);
}

void ps_agent_server_on_ping_req(struct ps_agent_step *st,
                                 const struct ps_msg_ping_req *m)
{
    const struct ps_agent_server *s = ps_map_get(st->a->servers.by_node,
                                                 m->node);

    if (s == NULL || s->incarnation != m->incarnation ||
        s->dialer.last_recv_at == 0) {
        return;
    }
    ps_uplink_send_ping_ack(&st->a->uplink, m, st->now - s->dialer.last_recv_at,
                            st->fx);
    if (ps_dialer_is_connected(&s->dialer)) {
        send_ping(st, s);
    }
}

void ps_agent_server_tick(struct ps_agent_step *st, struct ps_agent_server *s)
{
    if (needs_ping(st->a, s) && ping_due_at(s) <= st->now) {
        send_server_ping(st, s);
    }
    ps_dialer_tick(&s->dialer, st->now, st->fx);
}

ps_time ps_agent_server_deadline(const struct ps_agent *a,
                                 const struct ps_agent_server *s)
{
    ps_time at = ps_dialer_deadline(&s->dialer);

    return needs_ping(a, s) ? ps_time_min(at, ping_due_at(s)) : at;
}

int ps_agent_server_alloc_payload(struct ps_agent *a, uint64_t len,
                                  struct ps_slice *ret_slice)
{
    struct ps_buf *buf;

    if (ps_pool_get(a->opt.scratch_pool, len, &buf) != 0) {
        /* The pool may be full of sums whose acknowledgements come after this
         * frame, so the frame is read in spite of the limit: at most one per
         * connection at a time. */
        buf = ps_buf_new(len);
    }
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}
