/* SPDX-License-Identifier: Apache-2.0 */
/* Lifecycle of a connection: open, deadlines, finish and close. One uv_poll
 * watches the socket; reads and writes are plain system calls, because only
 * these read past a payload into the next header at once, take descriptors, and
 * write from many places. */
#include "net/conn_inner.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "base/str.h"
#include "net/uverr.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *const state_names[] = {
    [CONN_OPEN] = "OPEN",
    [CONN_FINISHING] = "FINISHING",
    [CONN_CLOSING] = "CLOSING",
    [CONN_CLOSED] = "CLOSED",
};

static const uint32_t successors[] = {
    [CONN_OPEN] = PS_STATE_BIT(CONN_FINISHING) | PS_STATE_BIT(CONN_CLOSING),
    /* Input is discarded until all output is written. */
    [CONN_FINISHING] = PS_STATE_BIT(CONN_CLOSING),
    /* Until the handle is closed and no I/O task uses the descriptor. */
    [CONN_CLOSING] = PS_STATE_BIT(CONN_CLOSED),
    [CONN_CLOSED] = 0,
};

/* A connection that carries frames. */
static const struct ps_state_table conn_states = {
    .name = "frame connection",
    .states = state_names,
    .count = sizeof(state_names) / sizeof(state_names[0]),
    .allowed = successors,
};

static void conn_set_state(struct ps_conn *c, enum conn_state to)
{
    ps_state_change(&conn_states, &c->state, (uint8_t)to);
}

static ps_time value_or_default(ps_time value, ps_time otherwise)
{
    return value != 0 ? value : otherwise;
}

static void set_socket_buffers(const struct ps_conn_options *opt)
{
    /* Buffer sizes are hints: the kernel caps them, and failure is harmless. */
    if (!opt->local && !opt->is_shm) {
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

/* Extends the deadlines by the progress of the I/O tasks. */
static void conn_heed_io_progress(struct ps_conn *c)
{
    if (conn_pool_receives(c) && c->payload_due != PS_TIME_NEVER) {
        c->payload_due = ps_io_task_progress_at(&c->io->in) +
                         c->limits.stall_timeout;
    }
    if (conn_pool_sends(c) && c->stall_due != PS_TIME_NEVER) {
        c->stall_due = ps_io_task_progress_at(&c->io->out) +
                       c->limits.stall_timeout;
    }
}

static void conn_deadline_due(struct ps_loop_timer *t)
{
    struct ps_conn *c = PS_CONTAINER(t, struct ps_conn, timer);
    ps_time now = ps_loop_now(c->loop);

    conn_heed_io_progress(c);
    if (now >= c->close_due && c->write_error != 0) {
        conn_fail(c, c->write_error);
    } else if (now >= c->close_due) {
        ps_conn_close(c, PS_E_CLOSED, "closed by us");
    } else if (now >= c->greeting_due) {
        ps_conn_close(c, PS_E_TIMEOUT, "no greeting in time");
    } else if (now >= c->header_due) {
        ps_conn_close(c, PS_E_TIMEOUT, "header not complete in time");
    } else if (now >= c->stall_due) {
        ps_conn_close(c, PS_E_TIMEOUT, "peer does not read");
    } else if (now >= c->payload_due) {
        ps_conn_close(c, PS_E_TIMEOUT, "payload stopped coming");
    } else {
        conn_arm(c);
    }
}

/* Arms the timer for the earliest deadline. A cancelled deadline leaves the
 * timer as it is, and the timer finds nothing due: no heap operation per
 * frame. */
void conn_arm(struct ps_conn *c)
{
    ps_time in = ps_time_min(ps_time_min(c->greeting_due, c->header_due),
                             c->payload_due);
    ps_time at = ps_time_min(in, ps_time_min(c->stall_due, c->close_due));

    if (at < ps_loop_timer_at(&c->timer)) {
        ps_loop_timer_set(c->loop, &c->timer, at);
    }
}

static void conn_poll_ready(uv_poll_t *handle, int status, int events)
{
    struct ps_conn *c = handle->data;

    if (status < 0) {
        /* The socket has an error. Data that arrived before it can still be
         * read, and the read after that returns the error. */
        c->polled_events = 0;
        if (conn_pool_receives(c)) {
            return; /* The receive task meets the same error. */
        }
        if (!c->is_paused) {
            conn_readable(c);
        }
        if (conn_is_alive(c)) {
            int error = 0;
            socklen_t len = sizeof(error);

            (void)getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len);
            conn_fail(c, error != 0 ? error : EPIPE);
        }
        return;
    }
    if ((events & UV_READABLE) != 0) {
        conn_readable(c);
    }
    if ((events & UV_WRITABLE) != 0 && conn_is_alive(c)) {
        c->is_blocked = false;
        conn_write_slot(&c->send_slot);
    }
}

void conn_update_poll(struct ps_conn *c)
{
    int events = 0;

    if (!conn_is_alive(c)) {
        return;
    }
    if ((!c->is_paused || c->state == CONN_FINISHING) &&
        !conn_pool_receives(c)) {
        events |= UV_READABLE;
    }
    if (c->is_blocked && c->write_error == 0) {
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

static struct conn_io *conn_io_new(struct ps_conn *c, struct ps_io_pool *all)
{
    struct conn_io *m = ps_calloc(1, sizeof(*m));

    m->conn = c;
    m->pool = all;
    m->socket.fd = c->fd;
    return m;
}

int ps_conn_open(const struct ps_conn_options *opt, struct ps_conn **ret_conn)
{
    struct ps_conn *c = ps_calloc(1, sizeof(*c));
    int rc = uv_poll_init(ps_loop_uv(opt->loop), &c->poll, opt->fd);

    if (rc != 0) {
        ps_free(c);
        return ps_err_from_uv(rc);
    }
    set_socket_buffers(opt);
    c->loop = opt->loop;
    c->ops = opt->ops;
    c->ctx = opt->ctx;
    c->limits = (struct ps_conn_limits){
        .greeting_timeout = value_or_default(opt->limits.greeting_timeout,
                                             PS_SECONDS(5)),
        .header_timeout = value_or_default(opt->limits.header_timeout,
                                           PS_SECONDS(10)),
        .stall_timeout = value_or_default(opt->limits.stall_timeout,
                                          PS_SECONDS(60)),
        .linger_timeout = value_or_default(opt->limits.linger_timeout,
                                           PS_SECONDS(1)),
        .output_max = value_or_default(opt->limits.output_max,
                                       1024u * 1024 * 1024),
    };
    c->self = opt->self;
    c->peer_roles = opt->peer_roles;
    c->protocol = PS_PROTOCOL;
    c->dialled = opt->dialled;
    c->local = opt->local;
    c->is_shm = opt->is_shm;
    c->peer_process = opt->is_shm ? ps_shm_peer_process(opt->fd) : 0;
    c->arenas = opt->is_shm ? opt->arenas : NULL;
    c->tunes_rcvbuf = !opt->local && !opt->is_shm && opt->receive_buffer == 0;
    c->tcp = opt->tcp;
    c->is_scheduled = !opt->local && !opt->is_shm;
    c->next_far_check = opt->local || opt->is_shm ? UINT64_MAX : FAR_LOOK_FIRST;
    c->send_slot.on_slot = conn_write_slot;
    c->fd = opt->fd;
    if (opt->io_pool != NULL && !opt->local && !opt->is_shm) {
        c->io = conn_io_new(c, opt->io_pool);
    }
    c->poll.data = c;
    c->timer.due = conn_deadline_due;
    c->header_due = PS_TIME_NEVER;
    c->payload_due = PS_TIME_NEVER;
    c->stall_due = PS_TIME_NEVER;
    c->close_due = PS_TIME_NEVER;
    c->unacked_since = PS_TIME_NEVER;
    c->greeting_due = ps_loop_now(c->loop) + c->limits.greeting_timeout;
    ps_str_copy(c->peer, sizeof(c->peer), opt->peer);
    ps_list_init(&c->out);
    ps_list_init(&c->unreleased);
    c->staging_cap = STAGING_FIRST;
    c->staging = ps_alloc(c->staging_cap);
    conn_arm(c);
    conn_update_poll(c);
    *ret_conn = c;
    return 0;
}

void ps_conn_free(struct ps_conn *c)
{
    if (c == NULL) {
        return;
    }
    assert(c->state == CONN_CLOSED);
    ps_free(c->io);
    ps_free(c);
}

void conn_maybe_closed(struct ps_conn *c)
{
    if (conn_pool_receives(c) || conn_pool_sends(c)) {
        return;
    }
    if (c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
    if (!c->poll_closed) {
        return;
    }
    conn_set_state(c, CONN_CLOSED);
    conn_read_fini(c);
    conn_write_fini(c);
    c->ops->closed(c->ctx, c, c->rc); /* Last: c may be freed in it. */
}

static void handle_closed(uv_handle_t *handle)
{
    struct ps_conn *c = handle->data;

    c->poll_closed = true;
    conn_maybe_closed(c);
}

void ps_conn_close(struct ps_conn *c, int rc, const char *reason)
{
    if (!conn_is_alive(c)) {
        return;
    }
    conn_set_state(c, CONN_CLOSING);
    ps_send_scheduler_leave(ps_loop_send_scheduler(c->loop), &c->send_slot);
    c->rc = rc;
    ps_str_copy(c->reason, sizeof(c->reason), reason);
    ps_loop_timer_set(c->loop, &c->timer, PS_TIME_NEVER);
    uv_close((uv_handle_t *)&c->poll, handle_closed);
    if (conn_pool_receives(c)) {
        ps_io_task_cancel(&c->io->in);
    }
    if (conn_pool_sends(c)) {
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
    c->greeting_due = PS_TIME_NEVER;
    c->header_due = PS_TIME_NEVER;
    c->payload_due = PS_TIME_NEVER;
    if (conn_pool_receives(c)) {
        /* From now on the payload's memory may be freed. */
        ps_io_task_stop(&c->io->in);
    }
    (void)ps_conn_flush(c);
    conn_update_poll(c);
}

void ps_conn_set_protocol(struct ps_conn *c, uint16_t protocol)
{
    c->protocol = protocol;
}

ps_time ps_conn_unacked(struct ps_conn *c)
{
    ps_time now = ps_loop_now(c->loop);
    ps_time since = c->unacked_since;

    if (c->local || c->is_shm || c->state != CONN_OPEN ||
        (since == PS_TIME_NEVER && c->acked_bytes_out == c->stats.bytes_out &&
         !conn_pool_sends(c))) {
        return 0;
    }
    c->unacked_since = ps_tcp_unacked_since(c->fd, since, now);
    if (c->unacked_since == PS_TIME_NEVER) {
        c->acked_bytes_out = c->stats.bytes_out;
        return 0;
    }
    return ps_time_add(now - c->unacked_since, 1);
}

bool ps_conn_losses(const struct ps_conn *c, struct ps_conn_losses *ret_losses)
{
    struct ps_conn_losses l = {0};

    if (c->local || c->is_shm || c->is_scheduled || c->state != CONN_OPEN ||
        !ps_tcp_sent(c->fd, &l.sent, &l.retransmitted)) {
        return false;
    }
    l.slows_on_loss = ps_tcp_slows_on_loss(c->fd);
    *ret_losses = l;
    return true;
}

bool ps_conn_is_open(const struct ps_conn *c)
{
    return c->state == CONN_OPEN;
}

bool ps_conn_is_greeted(const struct ps_conn *c)
{
    return c->is_greeted;
}

bool ps_conn_is_paused(const struct ps_conn *c)
{
    return c->is_paused;
}

bool ps_conn_refers_to_arenas(const struct ps_conn *c)
{
    return c->peer_reads_memory || c->peer_maps_arenas;
}

enum ps_role ps_conn_peer_role(const struct ps_conn *c)
{
    assert(c->is_greeted);
    return (enum ps_role)__builtin_ctz(c->peer_roles);
}

uint64_t ps_conn_frames(const struct ps_conn *c)
{
    return c->stats.frames_in;
}

uint64_t ps_conn_queued(const struct ps_conn *c)
{
    return c->queued;
}

uint64_t ps_conn_memory(const struct ps_conn *c)
{
    return c->queued_memory;
}

const char *ps_conn_peer(const struct ps_conn *c)
{
    return c->peer;
}

const char *ps_conn_reason(const struct ps_conn *c)
{
    return c->reason;
}

void ps_conn_stats(const struct ps_conn *c, struct ps_conn_stats *ret_stats)
{
    *ret_stats = c->stats;
}
