/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a connection: open, deadlines, the two ways to end. One uv_poll
 * watches the socket; reading and writing are plain system calls, because only
 * these read past a payload into the next header in one go, take descriptors,
 * and write from many places at once. */
#include "net/conn_internal.h"

#include "base/alloc.h"
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

static ps_time or_default(ps_time value, ps_time otherwise)
{
    return value != 0 ? value : otherwise;
}

static void set_socket(const struct ps_conn_options *opt)
{
    /* Sizes are wishes: the kernel caps them, and refusing one breaks
     * nothing. */
    if (!opt->local && !opt->near) {
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

/* What a further loop has moved since puts deadlines off. */
static void heed_moves(struct ps_conn *c)
{
    if (conn_receives(c) && c->payload_at != PS_TIME_NEVER) {
        c->payload_at = ps_move_at(&c->moves->in) + c->limits.stall;
    }
    if (conn_sends(c) && c->stall_at != PS_TIME_NEVER) {
        c->stall_at = ps_move_at(&c->moves->out) + c->limits.stall;
    }
}

static void deadline_due(struct ps_loop_timer *t)
{
    struct ps_conn *c = PS_CONTAINER(t, struct ps_conn, timer);
    ps_time now = ps_loop_now(c->loop);

    heed_moves(c);
    if (now >= c->close_at && c->write_error != 0) {
        conn_fail(c, c->write_error);
    } else if (now >= c->close_at) {
        ps_conn_close(c, PS_E_CLOSED, "closed by us");
    } else if (now >= c->greet_at) {
        ps_conn_close(c, PS_E_TIMEOUT, "no greeting in time");
    } else if (now >= c->header_at) {
        ps_conn_close(c, PS_E_TIMEOUT, "header not complete in time");
    } else if (now >= c->stall_at) {
        ps_conn_close(c, PS_E_TIMEOUT, "peer does not read");
    } else if (now >= c->payload_at) {
        ps_conn_close(c, PS_E_TIMEOUT, "payload stopped coming");
    } else {
        conn_arm(c);
    }
}

/* Deadlines that are taken back leave the timer as it is: when it comes, it
 * finds nothing due. So a frame costs no work in the heap. */
void conn_arm(struct ps_conn *c)
{
    ps_time in = ps_time_min(ps_time_min(c->greet_at, c->header_at),
                             c->payload_at);
    ps_time at = ps_time_min(in, ps_time_min(c->stall_at, c->close_at));

    if (at < ps_loop_timer_at(&c->timer)) {
        ps_loop_timer_set(c->loop, &c->timer, at);
    }
}

static void poll_ready(uv_poll_t *handle, int status, int events)
{
    struct ps_conn *c = handle->data;

    if (status < 0) {
        /* The socket has an error. What arrived before it is still there to
         * be read, and the read after that tells the error. */
        c->polled = 0;
        if (conn_receives(c)) {
            return; /* The move comes to that, too. */
        }
        if (!c->paused) {
            conn_readable(c);
        }
        if (conn_alive(c)) {
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
    if ((events & UV_WRITABLE) != 0 && conn_alive(c)) {
        c->blocked = false;
        conn_write_turn(&c->turn);
    }
}

void conn_update_poll(struct ps_conn *c)
{
    int events = 0;

    if (!conn_alive(c)) {
        return;
    }
    if ((!c->paused || c->state == CONN_FINISHING) && !conn_receives(c)) {
        events |= UV_READABLE;
    }
    if (c->blocked && c->write_error == 0) {
        events |= UV_WRITABLE;
    }
    if (events == c->polled) {
        return;
    }
    c->polled = events;
    if (events == 0) {
        uv_poll_stop(&c->poll);
        return;
    }
    int rc = uv_poll_start(&c->poll, events, poll_ready);

    if (rc != 0) {
        conn_fail(c, -rc);
    }
}

static struct conn_moves *new_moves(struct ps_conn *c, struct ps_movers *all)
{
    struct conn_moves *m = ps_calloc(1, sizeof(*m));

    m->conn = c;
    m->all = all;
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
    set_socket(opt);
    c->loop = opt->loop;
    c->ops = opt->ops;
    c->ctx = opt->ctx;
    c->limits = (struct ps_conn_limits){
        .greet = or_default(opt->limits.greet, PS_SECONDS(5)),
        .header = or_default(opt->limits.header, PS_SECONDS(10)),
        .stall = or_default(opt->limits.stall, PS_SECONDS(60)),
        .linger = or_default(opt->limits.linger, PS_SECONDS(1)),
        .output_max = or_default(opt->limits.output_max, 1024u * 1024 * 1024),
    };
    c->self = opt->self;
    c->peer_roles = opt->peer_roles;
    c->protocol = PS_PROTOCOL;
    c->dialled = opt->dialled;
    c->local = opt->local;
    c->near = opt->near;
    c->process = opt->near ? ps_near_process(opt->fd) : 0;
    c->arenas = opt->near ? opt->arenas : NULL;
    c->adapts = !opt->local && !opt->near && opt->receive_buffer == 0;
    c->tcp = opt->tcp;
    c->in_turns = !opt->local && !opt->near;
    c->far_look = opt->local || opt->near ? UINT64_MAX : FAR_LOOK_FIRST;
    c->turn.go = conn_write_turn;
    c->fd = opt->fd;
    if (opt->movers != NULL && !opt->local && !opt->near) {
        c->moves = new_moves(c, opt->movers);
    }
    c->poll.data = c;
    c->timer.due = deadline_due;
    c->header_at = PS_TIME_NEVER;
    c->payload_at = PS_TIME_NEVER;
    c->stall_at = PS_TIME_NEVER;
    c->close_at = PS_TIME_NEVER;
    c->unacked_since = PS_TIME_NEVER;
    c->greet_at = ps_loop_now(c->loop) + c->limits.greet;
    ps_str_copy(c->peer, sizeof(c->peer), opt->peer);
    ps_list_init(&c->out);
    ps_list_init(&c->held);
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
    ps_free(c->moves);
    ps_free(c);
}

void conn_part_ended(struct ps_conn *c)
{
    if (conn_receives(c) || conn_sends(c)) {
        return;
    }
    if (c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
    if (!c->poll_closed) {
        return;
    }
    c->state = CONN_CLOSED;
    conn_read_fini(c);
    conn_write_fini(c);
    c->ops->closed(c->ctx, c, c->rc); /* Last: c may be gone after this. */
}

static void handle_closed(uv_handle_t *handle)
{
    struct ps_conn *c = handle->data;

    c->poll_closed = true;
    conn_part_ended(c);
}

void ps_conn_close(struct ps_conn *c, int rc, const char *reason)
{
    if (!conn_alive(c)) {
        return;
    }
    c->state = CONN_CLOSING;
    ps_outflow_leave(ps_loop_outflow(c->loop), &c->turn);
    c->rc = rc;
    ps_str_copy(c->reason, sizeof(c->reason), reason);
    ps_loop_timer_set(c->loop, &c->timer, PS_TIME_NEVER);
    uv_close((uv_handle_t *)&c->poll, handle_closed);
    if (conn_receives(c)) {
        ps_move_cancel(&c->moves->in);
    }
    if (conn_sends(c)) {
        ps_move_cancel(&c->moves->out);
    }
    /* After uv_close() nobody but a move looks at the descriptor any more. */
    conn_part_ended(c);
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
    c->state = CONN_FINISHING;
    c->greet_at = PS_TIME_NEVER;
    c->header_at = PS_TIME_NEVER;
    c->payload_at = PS_TIME_NEVER;
    if (conn_receives(c)) {
        ps_move_stop(&c->moves->in); /* The payload goes nowhere now. */
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

    if (c->local || c->near || c->state != CONN_OPEN ||
        (since == PS_TIME_NEVER && c->acked_out == c->stats.bytes_out &&
         !conn_sends(c))) {
        return 0;
    }
    c->unacked_since = ps_tcp_unacked_since(c->fd, since, now);
    if (c->unacked_since == PS_TIME_NEVER) {
        c->acked_out = c->stats.bytes_out;
        return 0;
    }
    return ps_time_add(now - c->unacked_since, 1);
}

bool ps_conn_losses(const struct ps_conn *c, struct ps_conn_losses *ret_losses)
{
    struct ps_conn_losses l = {0};

    if (c->local || c->near || c->in_turns || c->state != CONN_OPEN ||
        !ps_tcp_sent(c->fd, &l.sent, &l.again)) {
        return false;
    }
    l.heeded = ps_tcp_heeds_loss(c->fd);
    *ret_losses = l;
    return true;
}

bool ps_conn_is_open(const struct ps_conn *c)
{
    return c->state == CONN_OPEN;
}

bool ps_conn_is_greeted(const struct ps_conn *c)
{
    return c->greeted;
}

bool ps_conn_is_paused(const struct ps_conn *c)
{
    return c->paused;
}

bool ps_conn_points(const struct ps_conn *c)
{
    return c->near_reads || c->near_maps;
}

enum ps_role ps_conn_peer_role(const struct ps_conn *c)
{
    assert(c->greeted);
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
    return c->memory;
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
