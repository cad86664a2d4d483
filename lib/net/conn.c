/* SPDX-License-Identifier: Apache-2.0 */
/* Lifecycle of a connection: open, deadlines, finish and close. One uv_poll
 * watches the socket; reads and writes are plain system calls, because only
 * these read past a payload into the next header at once, take descriptors, and
 * write from many places. */
#include "net/conn_inner.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "base/str.h"
#include "net/tls.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint32_t successors[] = {
    [CONN_OPEN] = PS_STATE_BIT(CONN_FINISHING) | PS_STATE_BIT(CONN_CLOSING),
    /* Input is discarded until all output is written. */
    [CONN_FINISHING] = PS_STATE_BIT(CONN_CLOSING),
    [CONN_CLOSING] = PS_STATE_BIT(CONN_DETACHED),
    /* Until no I/O task uses the descriptor. */
    [CONN_DETACHED] = PS_STATE_BIT(CONN_CLOSED),
    [CONN_CLOSED] = 0,
};

/* A connection that carries frames. */
static const struct ps_state_table conn_states = {
    .name = "frame connection",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

static void conn_set_state(struct ps_conn *c, enum conn_state to)
{
    ps_state_change(&conn_states, &c->state, (uint8_t)to);
}

static bool conn_is_tcp(const struct ps_conn *c)
{
    return c->transport.ops->is_tcp;
}

/* ---------------------------------------------------------------- deadlines */

/* No deadline is set; `due` runs for the timer. */
static void conn_timers_init(struct conn_timers *t,
                             void (*due)(struct ps_loop_timer *timer))
{
    t->timer.due = due;
    t->armed = PS_TIME_NEVER;
    for (int i = 0; i < CONN_DEADLINES; i++) {
        t->due[i] = PS_TIME_NEVER;
    }
}

void conn_set_due(struct ps_conn *c, enum conn_deadline which, ps_time at)
{
    c->timers.due[which] = at;
    if (at < c->timers.armed) {
        c->timers.armed = at;
        ps_loop_timer_set(c->loop, &c->timers.timer, at);
    }
}

/* Arms the timer, which has run, for the earliest deadline. */
static void conn_arm(struct ps_conn *c)
{
    struct conn_timers *t = &c->timers;

    t->armed = PS_TIME_NEVER;
    for (int i = 0; i < CONN_DEADLINES; i++) {
        t->armed = ps_time_min(t->armed, t->due[i]);
    }
    ps_loop_timer_set(c->loop, &t->timer, t->armed);
}

/* The first deadline that is over; CONN_DEADLINES: none is. */
static enum conn_deadline conn_timers_over(const struct conn_timers *t,
                                           ps_time now)
{
    int i = 0;

    while (i < CONN_DEADLINES && now < t->due[i]) {
        i++;
    }
    return (enum conn_deadline)i;
}

/* Extends the deadlines by the progress of the I/O tasks. */
static void conn_extend_deadlines(struct ps_conn *c)
{
    ps_time *due = c->timers.due;

    if (c->pool.receives && due[CONN_DUE_PAYLOAD] != PS_TIME_NEVER) {
        due[CONN_DUE_PAYLOAD] = ps_io_task_progress_at(&c->io->in) +
                                c->limits.stall_timeout;
    }
    if (c->pool.sends && due[CONN_DUE_STALL] != PS_TIME_NEVER) {
        due[CONN_DUE_STALL] = ps_io_task_progress_at(&c->io->out) +
                              c->limits.stall_timeout;
    }
}

static void conn_deadline_due(struct ps_loop_timer *t)
{
    struct ps_conn *c = PS_CONTAINER(t, struct ps_conn, timers.timer);

    conn_extend_deadlines(c);
    switch (conn_timers_over(&c->timers, ps_loop_now(c->loop))) {
    case CONN_DUE_CLOSE:
        if (c->write_error != 0 && c->transport.failure_rc != 0) {
            ps_conn_close(c, c->transport.failure_rc, c->transport.failure);
        } else if (c->write_error != 0) {
            conn_fail(c, c->write_error);
        } else {
            ps_conn_close(c, PS_E_CLOSED, "closed by us");
        }
        break;
    case CONN_DUE_HANDSHAKE:
        ps_conn_close(c, PS_E_TIMEOUT, "no handshake in time");
        break;
    case CONN_DUE_HEADER:
        ps_conn_close(c, PS_E_TIMEOUT, "header not complete in time");
        break;
    case CONN_DUE_STALL:
        ps_conn_close(c, PS_E_TIMEOUT, "peer does not read");
        break;
    case CONN_DUE_PAYLOAD:
        ps_conn_close(c, PS_E_TIMEOUT, "no further bytes of a payload in time");
        break;
    case CONN_DUE_READ:
        c->timers.due[CONN_DUE_READ] = PS_TIME_NEVER;
        conn_arm(c);
        conn_readable(c);
        conn_update_poll(c);
        break;
    default:
        conn_arm(c);
        break;
    }
}

/* ----------------------------------------------------------------- the loop */

static void conn_poll_ready(uv_poll_t *handle, int status, int events)
{
    struct ps_conn *c = handle->data;

    if (status < 0) {
        /* The socket has an error. Data that arrived before it can still be
         * read, and the read after that returns the error. */
        c->polled_events = 0;
        if (c->pool.receives) {
            return; /* The receive task meets the same error. */
        }
        if (c->reader.phase != PS_FRAME_PAUSED) {
            conn_readable(c);
        }
        if (c->state < CONN_CLOSING) {
            int error = 0;
            socklen_t len = sizeof(error);

            (void)getsockopt(c->transport.fd, SOL_SOCKET, SO_ERROR, &error,
                             &len);
            conn_fail(c, error != 0 ? error : EPIPE);
        }
        return;
    }
    if ((events & UV_READABLE) != 0) {
        conn_readable(c);
    }
    if ((events & UV_WRITABLE) != 0 && c->state < CONN_CLOSING) {
        conn_writable(c);
    }
}

void conn_update_poll(struct ps_conn *c)
{
    int events = 0;

    if (c->state >= CONN_CLOSING) {
        return;
    }
    if ((c->reader.phase != PS_FRAME_PAUSED || c->state == CONN_FINISHING) &&
        !c->pool.receives) {
        events |= UV_READABLE;
    }
    if (c->output == CONN_BLOCKED) {
        events |= UV_WRITABLE;
    }
    if (events == c->polled_events) {
        return;
    }
    c->polled_events = events;
    if (events == 0) {
        uv_poll_stop(&c->poll);
        return;
    }
    int rc = uv_poll_start(&c->poll, events, conn_poll_ready);

    if (rc != 0) {
        conn_fail(c, -rc);
    }
}

/* --------------------------------------------------------------------- open */

static ps_time value_or_default(ps_time value, ps_time otherwise)
{
    return value != 0 ? value : otherwise;
}

static void set_socket_buffers(const struct ps_conn *c,
                               const struct ps_conn_options *opt)
{
    /* Buffer sizes are hints: the kernel caps them, and failure is harmless. */
    if (conn_is_tcp(c)) {
        ps_tcp_prepare(opt->fd, opt->tcp);
    }
    if (opt->receive_buffer != 0) {
        (void)setsockopt(opt->fd, SOL_SOCKET, SO_RCVBUF, &opt->receive_buffer,
                         sizeof(opt->receive_buffer));
    }
    if (opt->send_buffer != 0) {
        (void)setsockopt(opt->fd, SOL_SOCKET, SO_SNDBUF, &opt->send_buffer,
                         sizeof(opt->send_buffer));
    }
}

static struct conn_io *conn_io_new(struct ps_conn *c, struct ps_io_pool *all)
{
    struct conn_io *m = ps_calloc(1, sizeof(*m));

    m->conn = c;
    m->pool = all;
    m->socket.fd = c->transport.fd;
    if (!c->transport.ops->is_plain) {
        m->in.transport = &c->transport;
        m->out.transport = &c->transport;
    }
    return m;
}

static struct ps_conn_limits limits_or_defaults(const struct ps_conn_limits *l)
{
    return (struct ps_conn_limits){
        .handshake_timeout = value_or_default(l->handshake_timeout,
                                              PS_SECONDS(5)),
        .header_timeout = value_or_default(l->header_timeout, PS_SECONDS(10)),
        .stall_timeout = value_or_default(l->stall_timeout, PS_SECONDS(60)),
        .linger_timeout = value_or_default(l->linger_timeout, PS_SECONDS(1)),
        .output_max = value_or_default(l->output_max, 1024u * 1024 * 1024),
    };
}

static void conn_init_transport(struct ps_conn *c,
                                const struct ps_conn_options *opt)
{
    c->transport.fd = opt->fd;
    c->transport.ctx = opt->transport_ctx;
    if (opt->transport != NULL) {
        c->transport.ops = opt->transport;
    } else if (opt->local || opt->is_shm) {
        c->transport.ops = &ps_transport_unix;
    } else {
        c->transport.ops = &ps_transport_tcp;
    }
    assert(c->transport.ops->read_turn > 0 && c->transport.ops->write_turn > 0);
    c->tcp.loop = opt->loop;
    c->tcp.shared = c->shared;
    c->tcp.fd = opt->fd;
    c->tcp.kind = opt->tcp;
    c->tcp.send_slot.on_slot = conn_write_slot;
    if (conn_is_tcp(c)) {
        conn_tcp_init(&c->tcp, opt->receive_buffer == 0);
    } else {
        conn_tcp_init_unused(&c->tcp);
    }
    if (opt->is_shm) {
        c->shm = conn_shm_new(opt->fd, opt->arenas, &c->writer);
    }
    if (opt->io_pool != NULL && conn_is_tcp(c)) {
        c->io = conn_io_new(c, opt->io_pool);
    }
}

int ps_conn_open(const struct ps_conn_options *opt, struct ps_conn **ret_conn)
{
    struct ps_conn *c = ps_calloc(1, sizeof(*c));
    int rc = uv_poll_init(ps_loop_uv(opt->loop), &c->poll, opt->fd);

    if (rc != 0) {
        ps_free(c);
        return ps_err_from_uv(rc);
    }
    c->loop = opt->loop;
    c->shared = ps_loop_shared(opt->loop);
    c->ops = opt->ops;
    c->ctx = opt->ctx;
    c->limits = limits_or_defaults(&opt->limits);
    c->self = opt->self;
    c->peer_roles = opt->peer_roles;
    c->dialled = opt->dialled;
    c->poll.data = c;
    ps_str_copy(c->peer, sizeof(c->peer), opt->peer);
    conn_init_transport(c, opt);
    if (c->self == PS_ROLE_SERVER && c->peer_roles == 1u << PS_ROLE_SERVER) {
        conn_tcp_set_urgent(&c->tcp);
    }
    if (c->transport.ops->is_tcp && c->transport.ops->is_plain &&
        (opt->checksums == PS_CONN_CHECKSUMS_WANTED ||
         (opt->checksums == PS_CONN_CHECKSUMS_AUTO &&
          ps_tcp_is_foreign(opt->fd)))) {
        c->checksums = CONN_CHECKSUMS_ASKED;
    }
    set_socket_buffers(c, opt);
    ps_frame_reader_init(&c->reader);
    ps_frame_writer_init(&c->writer, PS_PROTOCOL);
    conn_timers_init(&c->timers, conn_deadline_due);
    conn_set_due(c, CONN_DUE_HANDSHAKE,
                 ps_loop_now(c->loop) + c->limits.handshake_timeout);
    conn_update_poll(c);
    *ret_conn = c;
    return 0;
}

/* -------------------------------------------------------------------- close */

void ps_conn_free(struct ps_conn *c)
{
    if (c == NULL) {
        return;
    }
    assert(c->state == CONN_CLOSED);
    if (c->io != NULL) {
        ps_free(c->io->discarded);
        ps_free(c->io);
    }
    ps_free(c);
}

void conn_maybe_closed(struct ps_conn *c)
{
    if (c->pool.receives || c->pool.sends) {
        return;
    }
    if (c->transport.fd >= 0) {
        close(c->transport.fd);
        c->transport.fd = -1;
    }
    if (c->state != CONN_DETACHED) {
        return;
    }
    conn_set_state(c, CONN_CLOSED);
    ps_transport_fini(&c->transport);
    ps_frame_reader_fini(&c->reader);
    ps_frame_writer_fini(&c->writer);
    conn_shm_free(c->shm);
    c->shm = NULL;
    c->ops->closed(c->ctx, c, c->rc); /* Last: c may be freed in it. */
}

static void handle_closed(uv_handle_t *handle)
{
    struct ps_conn *c = handle->data;

    conn_set_state(c, CONN_DETACHED);
    conn_maybe_closed(c);
}

void ps_conn_close(struct ps_conn *c, int rc, const char *reason)
{
    if (c->state >= CONN_CLOSING) {
        return;
    }
    conn_set_state(c, CONN_CLOSING);
    conn_tcp_leave(&c->tcp);
    c->rc = rc;
    ps_str_copy(c->reason, sizeof(c->reason), reason);
    ps_loop_timer_set(c->loop, &c->timers.timer, PS_TIME_NEVER);
    uv_close((uv_handle_t *)&c->poll, handle_closed);
    if (c->pool.receives) {
        ps_io_task_cancel(&c->io->in);
    }
    if (c->pool.sends) {
        ps_io_task_cancel(&c->io->out);
    }
    /* After uv_close() only an I/O task still uses the descriptor. */
    conn_maybe_closed(c);
}

void conn_fail(struct ps_conn *c, int errnum)
{
    char text[128];
    int rc = ps_err_from_errno(errnum);

    if (errnum == ECONNRESET || errnum == EPIPE) {
        rc = PS_E_CLOSED;
    }
    snprintf(text, sizeof(text), "%s", uv_strerror(-errnum));
    ps_conn_close(c, rc, text);
}

void ps_conn_finish(struct ps_conn *c)
{
    if (c->state != CONN_OPEN) {
        return;
    }
    conn_set_state(c, CONN_FINISHING);
    c->timers.due[CONN_DUE_HANDSHAKE] = PS_TIME_NEVER;
    c->timers.due[CONN_DUE_HEADER] = PS_TIME_NEVER;
    c->timers.due[CONN_DUE_PAYLOAD] = PS_TIME_NEVER;
    if (c->pool.receives) {
        /* From now on the payload's memory may be freed. */
        ps_io_task_stop(&c->io->in);
    }
    (void)ps_conn_flush(c);
    conn_update_poll(c);
}

/* -------------------------------------------------------------------- state */

void ps_conn_set_protocol(struct ps_conn *c, uint16_t protocol)
{
    c->writer.protocol = protocol;
}

ps_time ps_conn_unacked(struct ps_conn *c)
{
    if (!conn_is_tcp(c) || c->state != CONN_OPEN ||
        (conn_tcp_is_acked(&c->tcp, c->stats.bytes_out) && !c->pool.sends)) {
        return 0;
    }
    return conn_tcp_unacked(&c->tcp, c->stats.bytes_out);
}

bool ps_conn_losses(const struct ps_conn *c, struct ps_conn_losses *ret_losses)
{
    struct ps_conn_losses l = {0};

    if (!conn_is_tcp(c) || !c->tcp.is_far || c->state != CONN_OPEN ||
        !ps_tcp_sent(c->tcp.fd, &l.sent, &l.retransmitted)) {
        return false;
    }
    l.slows_on_loss = ps_tcp_slows_on_loss(c->tcp.fd);
    *ret_losses = l;
    return true;
}

bool ps_conn_send_freed_arenas(struct ps_conn *c)
{
    return c->state == CONN_OPEN && c->shm != NULL &&
           conn_shm_send_freed_arenas(c->shm);
}

int ps_conn_pop_fd(struct ps_conn *c)
{
    return c->reader.phase == PS_FRAME_DELIVERED
               ? ps_transport_pop_fd(&c->transport)
               : -1;
}

bool ps_conn_is_open(const struct ps_conn *c)
{
    return c->state == CONN_OPEN;
}

bool ps_conn_is_handshake_done(const struct ps_conn *c)
{
    return c->is_handshake_done;
}

bool ps_conn_is_paused(const struct ps_conn *c)
{
    return c->reader.phase == PS_FRAME_PAUSED;
}

enum ps_role ps_conn_peer_role(const struct ps_conn *c)
{
    assert(c->is_handshake_done);
    return (enum ps_role)__builtin_ctz(c->peer_roles);
}

struct ps_conn_output ps_conn_output(const struct ps_conn *c)
{
    return (struct ps_conn_output){
        .is_open = c->state == CONN_OPEN,
        .queued = c->writer.queued,
        .memory = c->writer.queued_memory,
        .is_by_reference = c->shm != NULL && c->shm->may_refer,
    };
}

const char *ps_conn_peer(const struct ps_conn *c)
{
    return c->peer;
}

const struct ps_tls_session *ps_conn_session(const struct ps_conn *c)
{
    return ps_transport_session(&c->transport);
}

const char *ps_conn_reason(const struct ps_conn *c)
{
    return c->reason;
}

void ps_conn_stats(const struct ps_conn *c, struct ps_conn_stats *ret_stats)
{
    *ret_stats = c->stats;
}
