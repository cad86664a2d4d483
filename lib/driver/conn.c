/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: open, handshake, frames, close; each becomes an event. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/str.h"
#include "crypto/tls.h"
#include "net/arena.h"
#include "net/local.h"
#include "net/tls.h"

#include "proto/msg_codec.h"

#include <assert.h>
#include <sys/socket.h>
#include <unistd.h>

/* Room for a frame that refuses a connection. */
#define REJECT_BYTES 1024u

void driver_drop_payload(struct daemon_conn *c)
{
    ps_buf_unref(c->payload.buf);
    c->payload = (struct ps_slice){0};
}

static void on_first_frame(struct daemon_conn *c)
{
    c->is_handshake_done = true;
    ps_pre_handshake_remove(&c->driver->pre_handshake, &c->pre_handshake);
    ps_output_on_hello(&c->output, ps_conn_peer_role(c->conn));
}

/* The connection, which was paused, is so no longer. */
static void conn_resumed(struct daemon_conn *c)
{
    ps_list_remove(&c->paused);
    c->driver->paused.count--;
}

static int on_header(void *ctx, struct ps_conn *conn, const struct ps_msg *msg,
                     uint64_t len, void **ret_dst)
{
    struct daemon_conn *c = ctx;
    struct ps_driver *d = c->driver;
    const struct ps_machine *m = &d->opt.machine;
    int rc;

    (void)conn;
    if (d->is_closing || m->ops->payload == NULL) {
        return PS_E_CANCELED;
    }
    assert(c->payload.buf == NULL);
    rc = c->kind == PS_CONN_LOCAL
             ? m->ops->payload(m->self, c->id, msg, len, &c->payload)
             : ps_path_payload(&c->path, m, msg, len, &c->payload);
    c->discard_reason = rc;
    if (rc == 0) {
        assert(c->payload.len == len);
        *ret_dst = ps_slice_data(&c->payload);
    }
    const bool was_paused = ps_list_linked(&c->paused);

    if (rc == PS_E_AGAIN && !was_paused) {
        ps_list_push_back(&d->paused.conns, &c->paused);
        d->paused.count++;
    } else if (rc != PS_E_AGAIN && was_paused) {
        conn_resumed(c);
    }
    return rc;
}

/* Feeds a frame to the machine; `ev` has its connection and time. */
static void deliver_frame(struct daemon_conn *c, struct ps_event *ev,
                          const struct ps_msg *msg, uint64_t len)
{
    ev->type = PS_EV_MSG;
    ev->msg.msg = msg;
    ev->msg.payload = len > 0 ? &c->payload : NULL;
    ev->msg.discard_reason = len > 0 ? c->discard_reason : 0;
    c->discard_reason = 0;
    driver_feed(c->driver, ev);
    if (len > 0) {
        driver_drop_payload(c);
    }
}

static void on_worker_frame(struct daemon_conn *c, const struct ps_msg *msg,
                            uint64_t len)
{
    struct ps_event ev = {.conn = c->id};

    /* Operations that the worker pushed before it sent this. */
    (void)driver_ring_poll(c, c->worker.frames++);
    if (ps_conn_is_open(c->conn) && !driver_accept_memory(c, msg)) {
        deliver_frame(c, &ev, msg, len);
    }
}

static void on_peer_frame(struct daemon_conn *c, const struct ps_msg *msg,
                          uint64_t len)
{
    struct ps_driver *d = c->driver;
    struct ps_event ev = {.now = ps_loop_now(d->opt.loop), .conn = c->id};

    if (msg->code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(c->conn, msg->welcome.protocol < PS_PROTOCOL
                                          ? msg->welcome.protocol
                                          : (uint16_t)PS_PROTOCOL);
    }
    switch (ps_path_receive(&c->path, msg, ev.now, &d->fx)) {
    case PS_PATH_DELIVER:
        ev.conn = ps_path_machine_conn(&c->path);
        deliver_frame(c, &ev, msg, len);
        return;
    case PS_PATH_JOINED:
        ps_log(PS_LOG_DEBUG, "connection joins peer=%s", ps_conn_peer(c->conn));
        ev.type = PS_EV_CLOSED;
        ev.closed.rc = PS_E_CLOSED;
        driver_feed(d, &ev);
        return;
    case PS_PATH_DROP:
        driver_drop_payload(c);
        driver_apply_effects(d);
        return;
    }
}

static void on_frame(void *ctx, struct ps_conn *conn, const struct ps_msg *msg,
                     uint64_t len)
{
    struct daemon_conn *c = ctx;

    (void)conn;
    if (!c->is_handshake_done) {
        on_first_frame(c);
    }
    if (c->kind == PS_CONN_LOCAL) {
        on_worker_frame(c, msg, len);
    } else {
        on_peer_frame(c, msg, len);
    }
}

static void on_sent(void *ctx, struct ps_conn *conn, uint64_t queued)
{
    struct daemon_conn *c = ctx;
    struct ps_event ev = {.type = PS_EV_SENT, .conn = c->id};

    (void)conn;
    driver_output_update(c);
    ev.sent.queued = queued;
    if (c->kind == PS_CONN_LOCAL || ps_path_sent(&c->path, queued, &ev)) {
        driver_feed(c->driver, &ev);
    }
}

/* Adds what the connection has moved. */
void driver_add_stats(struct ps_driver_stats *sum, const struct ps_conn *conn)
{
    struct ps_conn_stats s;

    ps_conn_stats(conn, &s);
    sum->bytes_in += s.bytes_in;
    sum->bytes_out += s.bytes_out;
    sum->copied += s.copied;
    sum->by_reference += s.by_reference;
    sum->moved_by_pool += s.moved_by_pool;
    sum->reads += s.reads;
    sum->writes += s.writes;
    sum->corrupt += s.corrupt;
}

static void on_closed(void *ctx, struct ps_conn *conn, int rc)
{
    struct daemon_conn *c = ctx;
    struct ps_driver *d = c->driver;
    struct ps_event ev = {.type = PS_EV_CLOSED, .conn = c->id};

    const enum ps_log_level level = rc == PS_E_CLOSED || d->is_closing
                                        ? PS_LOG_DEBUG
                                        : PS_LOG_WARNING;
    char why[PS_CONN_REASON_MAX];

    ps_account_count_line(&c->output.account, level);
    ps_log_of(driver_log_kind(LOG_CLOSED + (uint64_t)-rc * 8 + c->kind * 2 +
                                  ps_list_linked(&c->shm),
                              c->log_source),
              level, "connection closed peer=%s reason=\"%s\"",
              ps_conn_peer(conn), ps_conn_reason(conn));
    if (c->kind == PS_CONN_LOCAL) {
        ps_process_close(c->worker.process);
        driver_drop_memory(c);
    }
    driver_add_stats(&d->closed_stats, conn);
    (void)ps_map_remove(d->conns, c->id);
    d->local_count -= c->kind == PS_CONN_LOCAL;
    ps_pre_handshake_remove(&d->pre_handshake, &c->pre_handshake);
    if (ps_list_linked(&c->paused)) {
        conn_resumed(c);
    }
    if (ps_list_linked(&c->to_flush)) {
        ps_list_remove(&c->to_flush);
    }
    if (ps_list_linked(&c->shm)) {
        ps_list_remove(&c->shm);
    }
    driver_drop_payload(c);
    bool is_known = c->kind == PS_CONN_LOCAL ||
                    ps_path_closed(&c->path, ps_loop_now(d->opt.loop), &d->fx);

    ps_output_remove(&c->output);
    (void)ps_str_copy(why, sizeof(why), ps_conn_reason(conn));
    ps_conn_free(conn);
    d->fx.closed_source = c->log_source;
    ps_free(c);
    ev.closed.rc = rc;
    ev.closed.why = why;
    if (is_known) {
        driver_feed(d, &ev);
    } else {
        driver_apply_effects(d);
        d->fx.closed_source = 0;
    }
    driver_maybe_closed(d);
}

bool driver_is_open(const struct ps_driver *d)
{
    return ps_map_count(d->conns) > 0 || !ps_list_empty(&d->dials.running) ||
           !ps_list_empty(&d->dials.ended) || !ps_list_empty(&d->tls.accepting);
}

void driver_maybe_closed(struct ps_driver *d)
{
    if (d->closed != NULL && !driver_is_open(d)) {
        ps_loop_timer_set(d->opt.loop, &d->grace_timer,
                          ps_loop_now(d->opt.loop));
    }
}

static void process_ended(void *ctx)
{
    struct daemon_conn *c = ctx;

    ps_conn_peer_ended(c->conn);
}

/* Watches the worker's process, whose children (data loaders) may hold the
 * socket open. Without a watch, the end of the last holder counts. */
static void watch_process(struct daemon_conn *c, int fd)
{
    int rc = ps_process_watch(c->driver->opt.loop, fd, process_ended, c,
                              &c->worker.process);

    if (rc != 0) {
        ps_log(PS_LOG_DEBUG, "process not watched peer=%s reason=\"%s\"",
               ps_conn_peer(c->conn), ps_strerror(rc));
    }
}

static const struct ps_conn_ops conn_ops = {
    .header = on_header,
    .frame = on_frame,
    .sent = on_sent,
    .closed = on_closed,
};

void driver_close_refused(struct ps_driver *d)
{
    for (uint32_t i = 0; i < d->refused.count; i++) {
        close(d->refused.fds[i]);
    }
    d->refused.count = 0;
    ps_loop_timer_set(d->opt.loop, &d->refused.timer, PS_TIME_NEVER);
}

static void refused_due(struct ps_loop_timer *t)
{
    driver_close_refused(PS_CONTAINER(t, struct ps_driver, refused.timer));
}

/* Closes a refused connection later: the peer may be about to send its hello,
 * and an immediate close would hide the reason from it. */
static void close_later(struct ps_driver *d, int fd)
{
    if (d->refused.count == REFUSED_MAX) {
        driver_close_refused(d);
    }
    d->refused.fds[d->refused.count++] = fd;
    d->refused.timer.due = refused_due;
    ps_loop_timer_set(d->opt.loop, &d->refused.timer,
                      ps_loop_now(d->opt.loop) + REFUSED_TIME);
}

/* Frame with the reason; returns its length, 0: it does not fit. */
static size_t encode_reject(int rc, const char *why, uint8_t *out, size_t cap)
{
    const struct ps_msg reject = {.code = PS_MSG_REJECT,
                                  .reject = {.error = rc, .text = why}};
    size_t len;

    return ps_msg_encoded_bound(&reject) <= cap &&
                   ps_msg_encode(&reject, PS_PROTOCOL_LEAST, 0, out, cap,
                                 &len) == 0
               ? len
               : 0;
}

/* Closes, counts and logs what was refused. */
static void refused(struct ps_driver *d, int fd, const char *peer,
                    const char *why)
{
    (void)shutdown(fd, SHUT_WR);
    close_later(d, fd);
    d->closed_stats.refused++;
    ps_account_count_line(&d->output.total, PS_LOG_WARNING);
    ps_log_of(LOG_REFUSED, PS_LOG_WARNING,
              "connection refused peer=%s reason=\"%s\"", peer, why);
}

/* Sends the reason as it is. */
static void send_reject(int fd, int rc, const char *why)
{
    uint8_t bytes[REJECT_BYTES];
    size_t len = encode_reject(rc, why, bytes, sizeof(bytes));

    if (len > 0) {
        (void)send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

void driver_refuse(struct ps_driver *d, int fd, const char *peer,
                   const char *why)
{
    /* A peer that expects TLS could not read it. */
    if (!driver_encrypts(d, fd)) {
        send_reject(fd, PS_E_FULL, why);
    }
    refused(d, fd, peer, why);
}

void driver_refuse_plain(struct ps_driver *d, int fd, const char *peer,
                         const char *why)
{
    send_reject(fd, PS_E_PERM,
                "connections here are encrypted: psctl needs --tls FOLDER, a "
                "daemon a certificate (security.tls.directory)");
    refused(d, fd, peer, why);
}

void driver_refuse_encrypted(struct ps_driver *d, int fd,
                             struct ps_tls_session *session, const char *peer,
                             const char *why)
{
    uint8_t bytes[REJECT_BYTES];
    size_t len = session == NULL
                     ? 0
                     : encode_reject(PS_E_PERM, why, bytes, sizeof(bytes));

    if (len > 0) {
        driver_tls_send(session, bytes, len);
    }
    ps_tls_session_free(session);
    refused(d, fd, peer, why);
}

/* Reports that no connection was made of `fd`. */
static void open_failed(struct ps_driver *d, const struct conn_opening *o,
                        struct ps_event *ev, int rc)
{
    struct ps_event failed = {.type = PS_EV_DIAL_FAILED};

    if (o->session != NULL && ev->open.kind != PS_CONN_DIALLED) {
        driver_refuse_encrypted(d, o->fd, o->session, o->peer, ps_strerror(rc));
        return;
    }
    if (ev->open.kind != PS_CONN_DIALLED) {
        driver_refuse(d, o->fd, o->peer, ps_strerror(rc));
        return;
    }
    ps_tls_session_free(o->session);
    close(o->fd);
    if (o->main != NULL) {
        ps_path_dial_failed(o->main, ps_loop_now(d->opt.loop));
        return;
    }
    failed.dial_failed.target = ev->open.target;
    failed.dial_failed.rc = rc;
    driver_feed(d, &failed);
}

static int conn_open(struct daemon_conn *c, const struct conn_opening *o)
{
    const struct ps_driver *d = c->driver;
    struct ps_conn_options opt = {
        .loop = d->opt.loop,
        .fd = o->fd,
        .peer = o->peer,
        .self = d->opt.self,
        .peer_roles = o->peer_roles,
        .dialled = c->kind == PS_CONN_DIALLED,
        .local = c->kind == PS_CONN_LOCAL,
        .is_shm = o->is_shm,
        .arenas = d->opt.arenas,
        .io_pool = d->opt.io_pool,
        .checksums = d->opt.checksums,
        .tcp = d->opt.self == PS_ROLE_SCHED ||
                       (o->peer_roles & 1u << PS_ROLE_SCHED) != 0
                   ? PS_TCP_LEASES
                   : d->opt.bulk,
        .receive_buffer = d->opt.receive_buffer,
        .send_buffer = d->opt.send_buffer,
        .limits = d->opt.limits,
        .transport = o->session != NULL ? &ps_transport_tls : NULL,
        .transport_ctx = o->session,
        .ops = &conn_ops,
        .ctx = c,
    };
    int rc = ps_conn_open(&opt, &c->conn);

    if (rc == 0 && o->is_shm && d->opt.arenas != NULL) {
        ps_arenas_enable_sharing(d->opt.arenas);
    }
    return rc;
}

void driver_open(struct ps_driver *d, const struct conn_opening *o,
                 struct ps_event *ev)
{
    struct daemon_conn *c = ps_calloc(1, sizeof(*c));
    int rc;

    c->driver = d;
    c->kind = ev->open.kind;
    c->is_watched = c->kind == PS_CONN_DIALLED && !o->is_shm &&
                    o->peer_roles == 1u << PS_ROLE_SERVER;
    ps_peer_identity_set(&c->identity, o->identity);
    c->tls_generation = d->tls.generation;
    rc = conn_open(c, o);
    if (rc != 0) {
        ps_free(c);
        open_failed(d, o, ev, rc);
        return;
    }
    c->id = ++d->last_id;
    ps_map_put(d->conns, c->id, c);
    if (o->session != NULL) {
        driver_tls_watch(c);
    }
    if (o->is_shm) {
        ps_list_push_back(&d->shm_conns, &c->shm);
    }
    ev->type = PS_EV_OPEN;
    ev->conn = c->id;
    ev->open.peer = ps_conn_peer(c->conn);
    ev->open.identity = o->identity;
    ev->open.is_by_reference = o->is_shm;
    ps_output_add(&d->output, &c->output, ev);
    if (c->kind == PS_CONN_LOCAL) {
        d->local_count++;
        watch_process(c, o->fd);
    }
    c->log_source = o->source;
    if (c->kind != PS_CONN_DIALLED) {
        c->pre_handshake = (struct ps_pre_handshake_conn){.id = c->id,
                                                          .source = o->source};
        ps_pre_handshake_add(&d->pre_handshake, &c->pre_handshake, &d->fx);
    }
    ps_log(PS_LOG_DEBUG, "connection open peer=%s cipher=%s", o->peer,
           o->session != NULL ? ps_tls_session_cipher(o->session) : "none");
    if (o->main != NULL) {
        if (!ps_path_join(&c->path, c->id, o->main, &d->fx)) {
            ps_conn_close(c->conn, PS_E_CANCELED, "its link has ended");
        }
        driver_apply_effects(d);
        return;
    }
    if (c->kind != PS_CONN_LOCAL) {
        ps_path_open(&c->path, &d->multipath, c->id,
                     c->is_watched ? o->address : NULL);
        c->path.peer = &c->identity;
    }
    driver_feed(d, ev);
}
