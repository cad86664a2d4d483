/* SPDX-License-Identifier: Apache-2.0 */
/* Output of a connection: writes what the frame writer gathers, in the turns
 * that a TCP connection has, and passes large output to the I/O threads. */
#include "net/conn_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/state_table.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define PRE_HANDSHAKE_MAX (256u * 1024u)
#define WRITE_ERROR_GRACE PS_MILLIS(50)
/* Bytes of one send task, so that other sockets get served and sent frames are
 * released. */
#define IO_TASK_MAX       (1024u * 1024u)

static const uint32_t successors[] = {
    [CONN_WRITABLE] = PS_STATE_BIT(CONN_BLOCKED) | PS_STATE_BIT(CONN_FAILED) |
                      PS_STATE_BIT(CONN_SHUT),
    /* Until the socket accepts bytes again. */
    [CONN_BLOCKED] = PS_STATE_BIT(CONN_WRITABLE) | PS_STATE_BIT(CONN_FAILED),
    /* Until the reading side closes the connection, or the deadline. */
    [CONN_FAILED] = 0,
    /* Until the peer closes, too. */
    [CONN_SHUT] = 0,
};

/* Output of a connection. */
static const struct ps_state_table outputs = {
    .name = "output of a connection",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

static void set_output(struct ps_conn *c, enum conn_output to)
{
    ps_state_change(&outputs, &c->output, (uint8_t)to);
}

static uint64_t output_max(const struct ps_conn *c)
{
    /* The dialling side sends first: output before the answer comes from this
     * side only. */
    return c->is_handshake_done
               ? c->limits.output_max
               : ps_min_u64(c->limits.output_max, PRE_HANDSHAKE_MAX);
}

static enum ps_frame_order order_of(const struct ps_conn_frame *frame)
{
    if (frame->msg->code == PS_MSG_HELLO ||
        frame->msg->code == PS_MSG_WELCOME) {
        return PS_FRAME_HANDSHAKE;
    }
    return frame->is_urgent ? PS_FRAME_URGENT : PS_FRAME_IN_ORDER;
}

int ps_conn_send(struct ps_conn *c, const struct ps_conn_frame *frame)
{
    size_t refs = frame->slice_count > 0 && ps_conn_refers_to_arenas(c)
                      ? PS_FRAME_REFS_MAX * PS_FIXED_SHM_REF_BYTES
                      : 0;
    uint64_t payload_len = 0;
    struct ps_out_frame *f;
    int rc;

    if (c->state != CONN_OPEN) {
        return PS_E_CLOSED;
    }
    for (uint32_t i = 0; i < frame->slice_count; i++) {
        payload_len += frame->slices[i].len;
    }
    assert(frame->body == NULL || payload_len == 0);
    rc = frame->body != NULL
             ? ps_out_frame_new_shared(&c->writer, frame->msg, frame->body, &f)
             : ps_out_frame_new(&c->writer, frame->msg, payload_len, refs,
                                ps_loop_scratch(c->loop), &f);
    if (rc != 0) {
        return rc;
    }
    f->slices = frame->slices;
    f->slice_count = frame->slice_count;
    f->memory += frame->memory;
    f->order = (uint8_t)order_of(frame);
    f->done = frame->done;
    f->ctx = frame->ctx;
    if (refs > 0) {
        conn_shm_refer(c->shm, f, payload_len);
    }

    uint64_t queued = c->writer.queued + f->len + ps_out_frame_referenced(f);

    if (queued > output_max(c)) {
        char text[96];

        snprintf(text, sizeof(text),
                 "peer does not read: %" PRIu64 " bytes wait", queued);
        ps_conn_close(c, PS_E_FULL, text);
        rc = PS_E_FULL;
        goto free_frame;
    }
    if (frame->pass_fd >= 0) {
        f->pass_fd = fcntl(frame->pass_fd, F_DUPFD_CLOEXEC, 0);
        if (f->pass_fd < 0) {
            rc = ps_err_from_errno(errno);
            goto free_frame;
        }
    }
    ps_frame_writer_push(&c->writer, f,
                         conn_pool_sends(c) ? c->io->out.bytes_min : 0);
    return 0;

free_frame:
    ps_free(f);
    return rc;
}

static ssize_t send_some(struct ps_conn *c, struct iovec *iov, int count)
{
    ps_time begun = c->io != NULL ? ps_loop_now(c->loop) : 0;
    ssize_t n = c->transport.ops->write(&c->transport, iov, count,
                                        ps_frame_writer_fd(&c->writer));

    c->stats.writes++;
    if (c->io != NULL && n > 0) {
        ps_io_pool_add_spent(c->io->pool, ps_loop_now(c->loop) - begun);
    }
    return n;
}

static size_t iov_bytes(const struct iovec *iov, int count)
{
    size_t sum = 0;

    for (int i = 0; i < count; i++) {
        sum += iov[i].iov_len;
    }
    return sum;
}

/* Input of the peer from before it closed, perhaps with a reason, may still be
 * unread: the reading side closes the connection, or else the deadline. */
static void write_failed(struct ps_conn *c, int errnum)
{
    if (c->output != CONN_FAILED) {
        set_output(c, CONN_FAILED);
    }
    c->write_error = errnum;
    c->timers.due[CONN_DUE_STALL] = PS_TIME_NEVER;
    c->timers.due[CONN_DUE_CLOSE] = ps_loop_now(c->loop) + WRITE_ERROR_GRACE;
}

/* Cuts the gathered memory to `most` bytes; returns its length. */
static uint64_t cut_iov(struct iovec *iov, int *count, uint64_t most)
{
    uint64_t sum = 0;

    for (int i = 0; i < *count; i++) {
        if (iov[i].iov_len >= most - sum) {
            iov[i].iov_len = most - sum;
            *count = i + 1;
            return most;
        }
        sum += iov[i].iov_len;
    }
    return sum;
}

/* Counts `done` bytes; false when other connections are next. */
static bool has_more_to_write(struct ps_conn *c, uint64_t done, uint64_t most)
{
    return conn_tcp_wrote(&c->tcp, done, most, ps_list_empty(&c->writer.out));
}

/* A send task has ended: wrote all, or failed. */
static void send_task_done(struct ps_io_task *m)
{
    struct conn_io *io = PS_CONTAINER(m, struct conn_io, out);
    struct ps_conn *c = io->conn;

    io->sends = false;
    c->stats.writes += m->syscalls;
    c->stats.moved_by_pool += m->bytes_done;
    c->stats.bytes_out += m->bytes_done;
    if (!conn_is_alive(c)) {
        conn_maybe_closed(c);
        return; /* c may be freed. */
    }
    ps_frame_writer_advance(&c->writer, m->bytes_done);
    if (!conn_is_alive(c)) {
        return; /* A frame's `done` has closed it. */
    }
    if (c->tcp.is_scheduled) {
        (void)has_more_to_write(c, m->bytes_done, UINT64_MAX);
    }
    c->timers.due[CONN_DUE_STALL] = PS_TIME_NEVER;
    if (m->error != 0) {
        write_failed(c, m->error);
        conn_arm(c);
        return;
    }
    (void)ps_conn_flush(c);
    if (c->state == CONN_OPEN) {
        c->ops->sent(c->ctx, c, c->writer.queued);
    }
}

/* Passes output to an I/O thread; without places, what the transport holds. */
static void submit_send(struct ps_conn *c, const struct iovec *iov, int count,
                        size_t bytes)
{
    struct conn_io *m = c->io;

    if (count > 0) {
        memcpy(m->out_iov, iov, (size_t)count * sizeof(*iov));
    }
    m->sends = true;
    m->out.iov = m->out_iov;
    m->out.count = (unsigned)count;
    m->out.is_send = true;
    m->out.bytes_min = bytes;
    m->out.done = send_task_done;
    ps_io_task_submit(m->pool, &m->socket, &m->out);
}

/* True if there is output that this thread may write now. */
static bool can_write(const struct ps_conn *c)
{
    return c->output == CONN_WRITABLE && !ps_list_empty(&c->writer.out) &&
           !conn_pool_sends(c);
}

/* Bytes that the transport holds; 0 while an I/O thread writes, which alone may
 * read the number then. */
static size_t held_bytes(const struct ps_conn *c)
{
    return conn_pool_sends(c) ? 0 : c->transport.unsent;
}

/* Writes what the transport holds; false: some of it is left. */
static bool write_held(struct ps_conn *c)
{
    if (held_bytes(c) == 0) {
        return true;
    }
    if (c->output != CONN_WRITABLE) {
        return false;
    }
    if (conn_pool_has_transport(c)) {
        submit_send(c, NULL, 0, 0);
        return false;
    }
    c->stats.writes++;
    if (c->transport.ops->write(&c->transport, NULL, 0, -1) == 0 &&
        c->transport.unsent == 0) {
        return true;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        set_output(c, CONN_BLOCKED);
    } else {
        write_failed(c, errno);
    }
    return false;
}

/* The `done` of a frame may close the connection or flush it in turn. */
static uint64_t write_out(struct ps_conn *c)
{
    const bool is_plain = ps_transport_has(&c->transport,
                                           PS_TRANSPORT_IS_PLAIN);
    const size_t turn = c->transport.ops->write_turn;
    uint64_t done = 0;

    while (write_held(c) && can_write(c)) {
        const bool scheduled = c->tcp.is_scheduled;
        struct iovec iov[PS_FRAME_IOV_MAX];
        uint64_t slot = scheduled ? conn_tcp_request_slot(&c->tcp) : UINT64_MAX;
        uint64_t most = ps_min_u64(slot, c->io != NULL ? IO_TASK_MAX : turn);
        int count = most > 0 ? ps_frame_writer_gather(&c->writer, most, iov)
                             : 0;

        if (count == 0) {
            break; /* Waits for releases or for its send slot. */
        }
        size_t wanted = scheduled ? cut_iov(iov, &count, most)
                                  : iov_bytes(iov, count);

        if (conn_pool_has_transport(c) ||
            (c->io != NULL && ps_io_pool_wants(c->io->pool, wanted))) {
            submit_send(c, iov, count, wanted);
            break;
        }
        ssize_t n = send_some(c, iov, count);

        if (n < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) {
                set_output(c, CONN_BLOCKED);
            } else {
                write_failed(c, errno);
            }
            break;
        }
        ps_frame_writer_advance(&c->writer, (uint64_t)n);
        done += (uint64_t)n;
        if (!conn_is_alive(c)) {
            break;
        }
        if (scheduled && !has_more_to_write(c, (uint64_t)n, most)) {
            break;
        }
        /* Socket full, or budget spent: the loop continues it. */
        if (c->output == CONN_WRITABLE &&
            (((size_t)n < wanted && is_plain) ||
             (done >= turn && !ps_list_empty(&c->writer.out)))) {
            set_output(c, CONN_BLOCKED);
        }
    }
    if (held_bytes(c) > 0 && c->output == CONN_WRITABLE) {
        set_output(c, CONN_BLOCKED); /* Though no frame may be left. */
    }
    c->stats.bytes_out += done;
    return done;
}

bool ps_conn_flush(struct ps_conn *c)
{
    if (!conn_is_alive(c) || c->output == CONN_FAILED) {
        return false;
    }
    conn_tcp_check_distance(&c->tcp, c->stats.bytes_out);

    const size_t unsent = held_bytes(c);
    uint64_t done = write_out(c);

    if (!conn_is_alive(c)) {
        return done > 0;
    }
    ps_time now = ps_loop_now(c->loop);
    ps_time *due = c->timers.due;
    bool waits = c->output == CONN_BLOCKED || conn_pool_sends(c) ||
                 !ps_list_empty(&c->writer.unreleased);

    if (!waits || c->output == CONN_FAILED) {
        due[CONN_DUE_STALL] = PS_TIME_NEVER;
    } else if (done > 0 || held_bytes(c) < unsent ||
               due[CONN_DUE_STALL] == PS_TIME_NEVER) {
        due[CONN_DUE_STALL] = now + c->limits.stall_timeout;
    }
    if (c->state == CONN_FINISHING && ps_list_empty(&c->writer.out) &&
        c->output == CONN_WRITABLE && !conn_pool_sends(c)) {
        /* Closing at once could make the kernel reset the connection and
         * discard bytes that the peer has not read. */
        set_output(c, CONN_SHUT);
        ps_transport_end(&c->transport);
        due[CONN_DUE_CLOSE] = now + c->limits.linger_timeout;
    }
    conn_arm(c);
    conn_update_poll(c);
    return done > 0;
}

void conn_writable(struct ps_conn *c)
{
    if (c->output == CONN_BLOCKED) {
        set_output(c, CONN_WRITABLE);
    }
    conn_write_slot(&c->tcp.send_slot);
}

void conn_write_slot(struct ps_send_slot *slot)
{
    struct ps_conn *c = PS_CONTAINER(slot, struct ps_conn, tcp.send_slot);

    if (ps_conn_flush(c) && c->state == CONN_OPEN) {
        c->ops->sent(c->ctx, c, c->writer.queued);
    }
}
