/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: opened, greeted, read from, closed; each becomes an event. */
#include "common/driver_inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/str.h"
#include "net/arena.h"
#include "net/process.h"

#include "proto/ps_codec.h"

#include <assert.h>
#include <sys/socket.h>
#include <unistd.h>

void driver_forget_payload(struct link_conn *c)
{
    ps_buf_unref(c->payload.buf);
    c->payload = (struct ps_slice){0};
    c->lent = false;
}

static void greeted(struct link_conn *c)
{
    if (ps_list_linked(&c->stranger)) {
        ps_list_remove(&c->stranger);
        c->driver->stranger_count--;
    }
}

static void first_frame(struct link_conn *c)
{
    if (!c->greeted) {
        c->greeted = true;
        driver_output_greeted(c);
    }
}

static void resumed(struct link_conn *c)
{
    if (ps_list_linked(&c->paused)) {
        ps_list_remove(&c->paused);
        c->driver->paused_count--;
    }
}

/* Frames of one link can be under way at once here. The machine's own memory,
 * which it offers for the only copy of something, might then be written to by
 * an old copy that comes slowly while the next one is in it already. */
static void own_payload(struct link_conn *c)
{
    size_t len = c->payload.len;

    if (c->payload.buf->refs > 1) {
        ps_buf_unref(c->payload.buf);
        c->payload = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    }
}

static int on_header(void *ctx, struct ps_conn *conn, const struct ps_msg *msg,
                     uint64_t len, void **ret_dst)
{
    struct link_conn *c = ctx;
    struct ps_driver *d = c->driver;
    const struct ps_machine *m = &d->opt.machine;
    int rc;

    (void)conn;
    if (d->closing || m->ops->payload == NULL) {
        return PS_E_CANCELED;
    }
    assert(c->payload.buf == NULL);
    if (c->joins && (c->first == NULL || msg->seq == 0)) {
        return PS_E_CANCELED;
    }
    rc = m->ops->payload(m->self, c->joins ? c->first->id : c->id, msg, len,
                         &c->payload);
    c->thrown = rc;
    if (rc == 0) {
        assert(c->payload.len == len);
        if (c->joins || c->several) {
            own_payload(c);
        } else {
            c->lent = c->payload.buf->refs > 1;
        }
        *ret_dst = ps_slice_data(&c->payload);
    }
    if (rc == PS_E_AGAIN && !ps_list_linked(&c->paused)) {
        ps_list_push_back(&d->paused, &c->paused);
        d->paused_count++;
    } else if (rc != PS_E_AGAIN) {
        resumed(c);
    }
    return rc;
}

void driver_deliver(struct link_conn *c, ps_conn_id id,
                    const struct ps_msg *msg, uint64_t len)
{
    struct ps_event ev = {.type = PS_EV_MSG, .conn = id};

    ev.msg.msg = msg;
    ev.msg.payload = len > 0 ? &c->payload : NULL;
    ev.msg.thrown = len > 0 ? c->thrown : 0;
    c->thrown = 0;
    driver_feed(c->driver, &ev);
    driver_forget_payload(c);
}

static void on_frame(void *ctx, struct ps_conn *conn, const struct ps_msg *msg,
                     uint64_t len)
{
    struct link_conn *c = ctx;

    greeted(c);
    first_frame(c);
    if (c->joins || (msg->code == PS_MSG_HELLO &&
                     (msg->hello.features & PS_FEATURE_JOIN) != 0)) {
        driver_strand_frame(c, msg, len);
        return;
    }
    if (c->ring_memory != NULL) {
        /* What its worker did before it sent this. */
        (void)driver_take_ops(c, ps_conn_frames(conn) - 1);
        if (!ps_conn_is_open(conn)) {
            return;
        }
    }
    if (msg->code == PS_MSG_L_REGION) {
        driver_take_region(c, msg);
        return;
    }
    if (msg->code == PS_MSG_L_KEEP) {
        driver_take_keep(c, msg);
        return;
    }
    if (msg->code == PS_MSG_L_RING) {
        driver_take_ring(c, msg);
        return;
    }
    if (msg->code == PS_MSG_L_WAKE) {
        return; /* We are awake; settle() looks at the rings. */
    }
    if (msg->code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(conn, msg->welcome.protocol < PS_PROTOCOL
                                       ? msg->welcome.protocol
                                       : (uint16_t)PS_PROTOCOL);
    }
    if (msg->code == PS_MSG_HELLO) {
        c->who = (struct ps_msg_hello){.instance = msg->hello.instance,
                                       .node = msg->hello.node,
                                       .session = msg->hello.session};
    }
    ps_bundle_acked(&c->bundle, msg->ack);
    driver_deliver(c, c->id, msg, len);
    if (msg->code == PS_MSG_WELCOME && driver_may_join(c) &&
        (msg->welcome.features & PS_FEATURE_JOIN) != 0) {
        c->welcomed = true;
        driver_join_later(c, false);
    }
}

void driver_sent(void *ctx, struct ps_conn *conn, uint64_t queued)
{
    struct link_conn *c = ctx;
    struct ps_event ev = {.type = PS_EV_SENT, .conn = c->id};

    (void)conn;
    driver_output_count(c);
    if (c->joins) {
        c = c->first;
        if (c == NULL || !ps_conn_is_open(c->conn)) {
            return;
        }
        ev.conn = c->id;
    }
    ev.sent.queued = ps_list_empty(&c->bundle.strands)
                         ? queued
                         : ps_bundle_queued(&c->bundle, c->conn);
    driver_feed(c->driver, &ev);
}

static void on_closed(void *ctx, struct ps_conn *conn, int rc)
{
    struct link_conn *c = ctx;
    struct ps_driver *d = c->driver;
    struct ps_event ev = {.type = PS_EV_CLOSED, .conn = c->id};

    ps_process_close(c->process);
    ps_log_of(LOG_CLOSED + (uint64_t)-rc * 8 + c->kind * 2 + c->near,
              rc == PS_E_CLOSED || d->closing ? PS_LOG_DEBUG : PS_LOG_WARNING,
              "connection closed peer=%s reason=\"%s\"", ps_conn_peer(conn),
              ps_conn_reason(conn));
    if (c->ring_memory != NULL) {
        /* The worker is gone, but did this before. */
        (void)driver_take_ops(c, ps_conn_frames(conn));
        driver_forget_ring(c);
    }
    driver_add_stats(&d->gone, conn);
    (void)ps_map_take(d->conns, c->id);
    d->local_count -= c->kind == PS_CONN_LOCAL;
    greeted(c);
    resumed(c);
    if (ps_list_linked(&c->dirty)) {
        ps_list_remove(&c->dirty);
    }
    driver_forget_payload(c);
    if (c->joins) {
        driver_strand_closed(c);
    } else {
        driver_end_strands(c);
    }
    bool joins = c->joins;

    driver_output_closed(c);
    ps_conn_free(conn);
    ps_free(c);
    ev.closed.rc = rc;
    if (!joins) {
        driver_feed(d, &ev);
    }
    driver_maybe_closed(d);
}

static void process_ended(void *ctx)
{
    struct link_conn *c = ctx;

    ps_conn_peer_ended(c->conn);
}

/* A training process may leave children that hold its socket: loaders of data,
 * above all. Where its end cannot be watched, that of the last one counts. */
static void watch_process(struct link_conn *c, int fd)
{
    int rc = ps_process_watch(c->driver->opt.loop, fd, process_ended, c,
                              &c->process);

    if (rc != 0) {
        ps_log(PS_LOG_DEBUG, "process not watched peer=%s reason=\"%s\"",
               ps_conn_peer(c->conn), ps_strerror(rc));
    }
}

static const struct ps_conn_ops conn_ops = {
    .header = on_header,
    .frame = on_frame,
    .sent = driver_sent,
    .closed = on_closed,
};

static void close_refused(struct ps_driver *d)
{
    for (uint32_t i = 0; i < d->refused_count; i++) {
        close(d->refused[i]);
    }
    d->refused_count = 0;
}

static void refused_due(struct ps_loop_timer *t)
{
    close_refused(PS_CONTAINER(t, struct ps_driver, refused_due));
}

/* Who is not let in may be about to greet: were its connection closed at once
 * it would see that alone, and not the words. */
static void close_later(struct ps_driver *d, int fd)
{
    if (d->refused_count == REFUSED_MAX) {
        close_refused(d);
    }
    d->refused[d->refused_count++] = fd;
    d->refused_due.due = refused_due;
    ps_loop_timer_set(d->opt.loop, &d->refused_due,
                      ps_loop_now(d->opt.loop) + REFUSED_TIME);
}

void driver_forget_refused(struct ps_driver *d)
{
    close_refused(d);
    ps_loop_timer_set(d->opt.loop, &d->refused_due, PS_TIME_NEVER);
}

void driver_refuse(struct ps_driver *d, int fd, const char *peer,
                   const char *why)
{
    const struct ps_msg reject = {.code = PS_MSG_REJECT,
                                  .reject = {.error = PS_E_FULL, .text = why}};
    uint8_t bytes[1024];
    size_t len;

    if (ps_codec_bound(&reject) <= sizeof(bytes) &&
        ps_codec_encode(&reject, PS_PROTOCOL_LEAST, 0, bytes, sizeof(bytes),
                        &len) == 0) {
        (void)send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    (void)shutdown(fd, SHUT_WR);
    close_later(d, fd);
    d->gone.refused++;
    ps_log_of(LOG_REFUSED, PS_LOG_WARNING,
              "connection refused peer=%s reason=\"%s\"", peer, why);
}

/* Who has not greeted for longest makes room. */
static void make_room(struct ps_driver *d)
{
    PS_LIST_EACH(n, &d->strangers)
    {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, stranger);

        if (d->stranger_count < d->opt.strangers_max) {
            return;
        }
        if (ps_conn_is_open(c->conn)) {
            /* It stays in the list until it is closed. */
            ps_conn_close(c->conn, PS_E_FULL,
                          "too many connections without a greeting");
            return;
        }
    }
}

void driver_open(struct ps_driver *d, const struct opening *o,
                 struct ps_event *ev)
{
    struct link_conn *c = ps_calloc(1, sizeof(*c));
    enum ps_conn_kind kind = ev->open.kind;
    struct ps_conn_options opt = {
        .loop = d->opt.loop,
        .fd = o->fd,
        .peer = o->peer,
        .self = d->opt.self,
        .peer_roles = o->peer_roles,
        .dialled = kind == PS_CONN_DIALLED,
        .local = kind == PS_CONN_LOCAL,
        .near = o->near,
        .arenas = d->opt.arenas,
        .movers = d->opt.movers,
        .tcp = d->opt.self == PS_ROLE_SCHED ||
                       (o->peer_roles & 1u << PS_ROLE_SCHED) != 0
                   ? PS_TCP_LEASES
                   : d->opt.bulk,
        .receive_buffer = d->opt.receive_buffer,
        .send_buffer = d->opt.send_buffer,
        .limits = d->opt.limits,
        .ops = &conn_ops,
        .ctx = c,
    };
    int rc = ps_conn_open(&opt, &c->conn);

    if (rc == 0 && o->near && d->opt.arenas != NULL) {
        ps_arenas_want(d->opt.arenas);
    }
    if (rc != 0) {
        ps_free(c);
        if (kind == PS_CONN_DIALLED) {
            close(o->fd);
        } else {
            driver_refuse(d, o->fd, o->peer, ps_strerror(rc));
        }
        if (o->first != NULL) {
            driver_join_later(o->first, true);
        } else if (kind == PS_CONN_DIALLED) {
            struct ps_event failed = {.type = PS_EV_DIAL_FAILED};

            failed.dial_failed.target = ev->open.target;
            failed.dial_failed.rc = rc;
            driver_feed(d, &failed);
        }
        return;
    }
    c->driver = d;
    c->kind = kind;
    c->near = o->near;
    c->join_wait = JOIN_FIRST;
    ps_bundle_init(&c->bundle);
    if (o->address != NULL) {
        c->address = ps_strdup(o->address);
        c->several = d->opt.link_connections > 1;
    }
    c->id = ++d->last_id;
    ps_map_put(d->conns, c->id, c);
    d->local_count += kind == PS_CONN_LOCAL;
    driver_output_open(c, ev);
    if (kind == PS_CONN_LOCAL) {
        watch_process(c, o->fd);
    }
    if (kind != PS_CONN_DIALLED) {
        make_room(d);
        ps_list_push_back(&d->strangers, &c->stranger);
        d->stranger_count++;
    }
    ps_log(PS_LOG_DEBUG, "connection open peer=%s", o->peer);
    if (o->first != NULL) {
        c->joins = true;
        c->first = o->first;
        ps_bundle_add(&c->first->bundle, &c->strand, c->conn);
        driver_say_join(c);
        return;
    }
    ev->type = PS_EV_OPEN;
    ev->conn = c->id;
    ev->open.peer = ps_conn_peer(c->conn);
    driver_feed(d, ev);
}
