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

/* Makes the frame of a message; `extra` as of ps_out_frame_new(). The handshake
 * says whether the connection has checksums (rule F5). */
static int new_frame(struct ps_conn *c, const struct ps_conn_frame *frame,
                     uint64_t payload_len, size_t extra,
                     struct ps_out_frame **ret_frame)
{
    const bool asked = c->checksums != CONN_CHECKSUMS_NONE;
    struct ps_msg msg;

    if (frame->body != NULL) {
        return ps_out_frame_new_shared(&c->writer, frame->msg, extra,
                                       frame->body, ret_frame);
    }
    if (asked && frame->msg->code == PS_MSG_HELLO) {
        msg = *frame->msg;
        msg.hello.checksums = true;
    } else if (asked && frame->msg->code == PS_MSG_WELCOME) {
        msg = *frame->msg;
        msg.welcome.checksums = true;
    } else {
        return ps_out_frame_new(&c->writer, frame->msg, payload_len, extra,
                                c->shared->scratch, ret_frame);
    }
    return ps_out_frame_new(&c->writer, &msg, payload_len, extra,
                            c->shared->scratch, ret_frame);
}

int ps_conn_send(struct ps_conn *c, const struct ps_conn_frame *frame)
{
    const bool has_checksums = c->checksums == CONN_CHECKSUMS_ON;
    const bool may_refer = frame->slice_count > 0 && c->shm != NULL &&
                           c->shm->may_refer;
    /* The dialling side sends first: output before the answer comes from this
     * side only. */
    const uint64_t queued_max = c->is_handshake_done
                                    ? c->limits.output_max
                                    : ps_min_u64(c->limits.output_max,
                                                 PRE_HANDSHAKE_MAX);
    const unsigned code = frame->msg->code;
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
    rc = new_frame(c, frame, payload_len,
                   may_refer       ? CONN_SHM_REFS_BYTES
                   : has_checksums ? PS_FIXED_FRAME_CHECKSUMS_BYTES
                                   : 0,
                   &f);
    if (rc != 0) {
        return rc;
    }
    f->slices = frame->slices;
    f->slice_count = frame->slice_count;
    f->memory += frame->memory;
    f->order = code == PS_MSG_HELLO || code == PS_MSG_WELCOME
                   ? PS_FRAME_HANDSHAKE
               : frame->is_urgent ? PS_FRAME_URGENT
                                  : PS_FRAME_IN_ORDER;
    f->done = frame->done;
    f->ctx = frame->ctx;
    if (may_refer) {
        conn_shm_refer(c->shm, f, payload_len);
    } else if (has_checksums) {
        ps_out_frame_add_checksums(f);
    }

    uint64_t queued = c->writer.queued + f->len +
                      (f->by_reference ? payload_len : 0);

    if (queued > queued_max) {
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
                         c->pool.sends ? c->io->out.bytes_min : 0);
    if (code == PS_MSG_WELCOME && c->checksums == CONN_CHECKSUMS_ASKED) {
        c->checksums = CONN_CHECKSUMS_ON;
    }
    return 0;

free_frame:
    ps_free(f);
    return rc;
}

static ssize_t send_some(struct ps_conn *c, struct ps_frame_batch *b)
{
    ps_time begun = c->io != NULL ? ps_loop_now(c->loop) : 0;
    ssize_t n = c->transport.ops->write(&c->transport, b->iov, b->count,
                                        b->pass_fd);

    c->stats.writes++;
    if (c->io != NULL && n > 0) {
        ps_io_pool_add_spent(c->io->pool, ps_loop_now(c->loop) - begun);
    }
    return n;
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
    conn_set_due(c, CONN_DUE_CLOSE, ps_loop_now(c->loop) + WRITE_ERROR_GRACE);
}

/* A write has accepted nothing: the socket is full, or it failed. */
static void write_stopped(struct ps_conn *c, int errnum)
{
    if (errnum == EAGAIN || errnum == EWOULDBLOCK) {
        set_output(c, CONN_BLOCKED);
    } else {
        write_failed(c, errnum);
    }
}

/* Cuts the gathered memory to `most` bytes. */
static void cut_batch(struct ps_frame_batch *b, uint64_t most)
{
    uint64_t sum = 0;

    if (b->bytes <= most) {
        return;
    }
    b->bytes = most;
    b->count = 0;
    while (sum < most) {
        struct iovec *piece = &b->iov[b->count++];

        piece->iov_len = ps_min_u64(piece->iov_len, most - sum);
        sum += piece->iov_len;
    }
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

    c->pool.sends = false;
    c->stats.writes += m->syscalls;
    c->stats.moved_by_pool += m->bytes_done;
    c->stats.bytes_out += m->bytes_done;
    if (c->state >= CONN_CLOSING) {
        conn_maybe_closed(c);
        return; /* c may be freed. */
    }
    ps_frame_writer_advance(&c->writer, m->bytes_done);
    if (c->state >= CONN_CLOSING) {
        return; /* A frame's `done` has closed it. */
    }
    if (conn_tcp_is_scheduled(&c->tcp)) {
        (void)has_more_to_write(c, m->bytes_done, UINT64_MAX);
    }
    c->timers.due[CONN_DUE_STALL] = PS_TIME_NEVER;
    if (m->error != 0) {
        write_failed(c, m->error);
        return;
    }
    (void)ps_conn_flush(c);
    if (c->state == CONN_OPEN) {
        c->ops->sent(c->ctx, c, c->writer.queued);
    }
}

/* Passes output to an I/O thread; NULL: what the transport holds. */
static void submit_send(struct ps_conn *c, const struct ps_frame_batch *b)
{
    struct conn_io *m = c->io;

    m->out.count = 0;
    m->out.bytes_min = 0;
    if (b != NULL) {
        memcpy(m->out_iov, b->iov, (size_t)b->count * sizeof(b->iov[0]));
        m->out.count = (unsigned)b->count;
        m->out.bytes_min = b->bytes;
    }
    c->pool.sends = true;
    m->out.iov = m->out_iov;
    m->out.is_send = true;
    m->out.done = send_task_done;
    ps_io_task_submit(m->pool, &m->socket, &m->out);
}

/* True while an I/O thread reads from a transport that one thread may use;
 * ps_conn_finish() stops it. */
static bool reader_has_transport(const struct ps_conn *c)
{
    return c->transport.ops->is_exclusive && c->pool.receives &&
           c->state == CONN_OPEN;
}

/* Writes what the transport holds; false: some of it is left. */
static bool write_held(struct ps_conn *c)
{
    if (reader_has_transport(c)) {
        submit_send(c, NULL);
        return false;
    }
    c->stats.writes++;
    if (c->transport.ops->write(&c->transport, NULL, 0, -1) == 0 &&
        c->transport.unsent == 0) {
        return true;
    }
    write_stopped(c, errno);
    return false;
}

/* Writes until the socket is full or others are next. The `done` of a frame may
 * close the connection or flush it in turn. While an I/O thread writes, it alone
 * uses the transport. */
static uint64_t write_out(struct ps_conn *c)
{
    const bool is_plain = c->transport.ops->is_plain;
    const size_t turn = c->transport.ops->write_turn;
    struct ps_frame_batch b;
    uint64_t done = 0;

    while (c->output == CONN_WRITABLE && !c->pool.sends) {
        if ((c->transport.unsent > 0 && !write_held(c)) ||
            ps_list_empty(&c->writer.out)) {
            break;
        }
        const bool scheduled = conn_tcp_is_scheduled(&c->tcp);
        uint64_t slot = scheduled ? conn_tcp_request_slot(&c->tcp) : UINT64_MAX;
        uint64_t most = ps_min_u64(slot, c->io != NULL ? IO_TASK_MAX : turn);

        ps_frame_writer_gather(&c->writer, most, &b);
        if (b.count == 0) {
            break; /* Waits for releases or for its send slot. */
        }
        if (scheduled) {
            cut_batch(&b, most);
        }
        if (c->io != NULL && (reader_has_transport(c) ||
                              ps_io_pool_wants(c->io->pool, b.bytes))) {
            submit_send(c, &b);
            break;
        }
        ssize_t n = send_some(c, &b);

        if (n < 0) {
            write_stopped(c, errno);
            break;
        }
        ps_frame_writer_advance(&c->writer, (uint64_t)n);
        done += (uint64_t)n;
        if (c->state >= CONN_CLOSING) {
            break;
        }
        if (scheduled && !has_more_to_write(c, (uint64_t)n, most)) {
            break;
        }
        /* Socket full, or budget spent: the loop continues it. */
        if (c->output == CONN_WRITABLE &&
            (((size_t)n < b.bytes && is_plain) ||
             (done >= turn && !ps_list_empty(&c->writer.out)))) {
            set_output(c, CONN_BLOCKED);
        }
    }
    if (c->output == CONN_WRITABLE && !c->pool.sends &&
        c->transport.unsent > 0) {
        set_output(c, CONN_BLOCKED); /* Though no frame may be left. */
    }
    c->stats.bytes_out += done;
    return done;
}

/* Bytes that the transport holds; 0 while an I/O thread writes, which alone may
 * read the number then. */
static size_t held_bytes(const struct ps_conn *c)
{
    return c->pool.sends ? 0 : c->transport.unsent;
}

bool ps_conn_flush(struct ps_conn *c)
{
    if (c->state >= CONN_CLOSING || c->output == CONN_FAILED) {
        return false;
    }
    if (c->stats.bytes_out >= c->tcp.next_far_check) {
        conn_tcp_check_distance(&c->tcp, c->stats.bytes_out);
    }
    const size_t unsent = held_bytes(c);
    const uint64_t done = write_out(c);

    if (c->state >= CONN_CLOSING) {
        return done > 0;
    }
    const bool waits = c->output == CONN_BLOCKED || c->pool.sends ||
                       !ps_list_empty(&c->writer.unreleased);
    const ps_time *due = c->timers.due;

    if (!waits || c->output == CONN_FAILED) {
        c->timers.due[CONN_DUE_STALL] = PS_TIME_NEVER;
    } else if (done > 0 || held_bytes(c) < unsent ||
               due[CONN_DUE_STALL] == PS_TIME_NEVER) {
        conn_set_due(c, CONN_DUE_STALL,
                     ps_loop_now(c->loop) + c->limits.stall_timeout);
    }
    if (c->state == CONN_FINISHING && ps_list_empty(&c->writer.out) &&
        c->output == CONN_WRITABLE && !c->pool.sends) {
        /* Closing at once could make the kernel reset the connection and
         * discard bytes that the peer has not read. */
        set_output(c, CONN_SHUT);
        ps_transport_end(&c->transport);
        conn_set_due(c, CONN_DUE_CLOSE,
                     ps_loop_now(c->loop) + c->limits.linger_timeout);
    }
    conn_update_poll(c);
    return done > 0;
}

bool ps_conn_flush_and_report(struct ps_conn *c)
{
    const bool reports = ps_conn_flush(c) && c->state == CONN_OPEN;

    if (reports) {
        c->ops->sent(c->ctx, c, c->writer.queued);
    }
    return reports;
}

void conn_writable(struct ps_conn *c)
{
    if (c->output == CONN_BLOCKED) {
        set_output(c, CONN_WRITABLE);
    }
    (void)ps_conn_flush_and_report(c);
}

void conn_write_slot(struct ps_send_slot *slot)
{
    (void)ps_conn_flush_and_report(
        PS_CONTAINER(slot, struct ps_conn, tcp.send_slot));
}
