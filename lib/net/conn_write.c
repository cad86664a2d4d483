/* SPDX-License-Identifier: Apache-2.0 */
/* Output of a connection: frames to bytes. A queued frame is a small block with
 * its encoded header and the place of its payload; many are written per call. A
 * frame with a descriptor begins a call of its own, so that the descriptor
 * arrives with its first byte. */
#include "net/conn_inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/num.h"
#include "net/arena.h"
#include "proto/msg_codec.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bytes written before other connections are served. */
#define WRITE_BUDGET      (4u * 1024u * 1024u)
#define UNGREETED_MAX     (256u * 1024u)
#define WRITE_ERROR_GRACE PS_MILLIS(50)
/* Bytes out between two checks of the round trip. */
#define FAR_LOOK_EVERY    (4u * 1024u * 1024u)

struct out_frame {
    struct ps_list_node node;
    const struct ps_slice *slices;
    uint32_t slice_count;
    uint32_t header_len;
    uint64_t len;    /* Bytes to write: header, and payload or references. */
    uint64_t memory; /* Bytes released with the frame. */
    int pass_fd;     /* -1: none, or sent already. */
    /* Payload is sent by reference. Placed without padding: thousands of frames
     * may wait. */
    bool by_reference;
    bool is_greeting; /* Handshake: no frame overtakes it. */
    bool is_urgent;
    void (*done)(void *ctx);
    void *ctx;
    uint8_t header[];
};

static uint64_t unreleased_len(const struct out_frame *f)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; f->by_reference && i < f->slice_count; i++) {
        sum += f->slices[i].len;
    }
    return sum;
}

static void frame_done(struct ps_conn *c, struct out_frame *f)
{
    ps_list_remove(&f->node);
    c->queued_memory -= f->memory;
    if (f->pass_fd >= 0) {
        close(f->pass_fd);
    }
    if (f->done != NULL) {
        f->done(f->ctx);
    }
    ps_free(f);
}

void conn_write_fini(struct ps_conn *c)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&c->unreleased)) != NULL) {
        frame_done(c, PS_CONTAINER(n, struct out_frame, node));
    }
    while ((n = ps_list_first(&c->out)) != NULL) {
        frame_done(c, PS_CONTAINER(n, struct out_frame, node));
    }
    c->queued = 0;
    c->out_written = 0;
    ps_map_free(c->arenas_sent);
    c->arenas_sent = NULL;
}

static uint64_t output_max(const struct ps_conn *c)
{
    /* The dialling side sends first: output before the answer comes from this
     * side only. */
    return c->is_greeted ? c->limits.output_max
                         : ps_min_u64(c->limits.output_max, UNGREETED_MAX);
}

/* Replaces the payload by references to its place. */
static void send_references(const struct ps_conn *c, struct out_frame *f)
{
    uint8_t *at = f->header + f->header_len;

    ps_frame_set_ref_count(f->header, (uint8_t)f->slice_count);
    for (uint32_t i = 0; i < f->slice_count; i++) {
        const struct ps_slice *s = &f->slices[i];
        const uint32_t arena = c->peer_maps_arenas ? s->buf->tag : 0;

        ps_fixed_put_shm_ref(at, &(struct ps_fixed_shm_ref){
                                     .place = arena != 0
                                                  ? s->buf->offset + s->offset
                                                  : (uintptr_t)ps_slice_data(s),
                                     .len = (uint32_t)s->len,
                                     .arena = arena});
        at += PS_FIXED_SHM_REF_BYTES;
    }
    f->header_len += f->slice_count * PS_FIXED_SHM_REF_BYTES;
    f->len = f->header_len;
    f->by_reference = true;
}

/* Queues a message of the connection itself. Takes over the descriptor. */
static void send_shm_msg(struct ps_conn *c, const struct ps_msg *msg, int fd)
{
    const size_t cap = ps_msg_encoded_bound(msg);
    struct out_frame *f = ps_calloc(1, sizeof(*f) + cap);
    size_t len = 0;
    int rc = ps_msg_encode(msg, c->protocol, 0, f->header, cap, &len);

    assert(rc == 0); /* Only integers, within their bound. */
    f->header_len = (uint32_t)len;
    f->len = len;
    f->pass_fd = fd;
    ps_list_push_back(&c->out, &f->node);
    f->memory = ps_alloc_size(f);
    c->queued_memory += f->memory;
    c->queued += f->len;
}

void conn_send_release(struct ps_conn *c, uint32_t payloads)
{
    send_shm_msg(c,
                 &(struct ps_msg){.code = PS_MSG_SHM_RELEASE,
                                  .shm_release = {.payloads = payloads}},
                 -1);
}

void conn_send_shm_caps(struct ps_conn *c)
{
    send_shm_msg(
        c,
        &(struct ps_msg){.code = PS_MSG_SHM_CAPS,
                         .shm_caps = {.reads_memory = c->peer_process != 0,
                                      .maps_arenas = true}},
        -1);
}

bool ps_conn_send_freed_arenas(struct ps_conn *c)
{
    struct ps_map_cursor at = {0};
    bool any = false;
    void *number;

    if (c->arenas_sent == NULL || c->state != CONN_OPEN ||
        c->arenas_freed_seen == ps_arenas_freed_count(c->arenas)) {
        return false;
    }
    c->arenas_freed_seen = ps_arenas_freed_count(c->arenas);
    while ((number = ps_map_next(c->arenas_sent, &at)) != NULL) {
        uint64_t size;
        int fd;

        if (ps_arenas_fd(c->arenas, (uint32_t)(uintptr_t)number, &fd, &size) !=
            0) {
            (void)ps_map_remove(c->arenas_sent, (uintptr_t)number);
            send_shm_msg(
                c,
                &(struct ps_msg){
                    .code = PS_MSG_SHM_UNMAP,
                    .shm_unmap = {.arena = (uint32_t)(uintptr_t)number}},
                -1);
            any = true;
        }
    }
    return any;
}

/* Announces an arena to the peer. False: impossible now. */
static bool send_arena(struct ps_conn *c, uint32_t arena)
{
    uint64_t size;
    int fd;

    if (c->arenas_sent != NULL && ps_map_get(c->arenas_sent, arena) != NULL) {
        return true;
    }
    if (c->arenas_sent == NULL) {
        c->arenas_sent = ps_map_new();
        c->arenas_freed_seen = ps_arenas_freed_count(c->arenas);
    }
    if (ps_map_count(c->arenas_sent) == PS_SHM_ARENAS_MAX) {
        (void)ps_conn_send_freed_arenas(c);
    }
    if (ps_map_count(c->arenas_sent) == PS_SHM_ARENAS_MAX ||
        ps_arenas_fd(c->arenas, arena, &fd, &size) != 0) {
        return false;
    }
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return false; /* Out of descriptors: the payload is sent otherwise. */
    }
    send_shm_msg(
        c,
        &(struct ps_msg){.code = PS_MSG_SHM_MAP, .shm_map = {.arena = arena}},
        fd);
    ps_map_put(c->arenas_sent, arena, (void *)(uintptr_t)arena);
    return true;
}

static bool can_send_references(struct ps_conn *c, const struct out_frame *f,
                                uint64_t payload_len)
{
    if (!ps_conn_refers_to_arenas(c) || payload_len < SHM_REF_MIN ||
        f->slice_count > PS_FRAME_REFS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < f->slice_count; i++) {
        const struct ps_slice *s = &f->slices[i];

        if (s->len == 0) {
            return false;
        }
        if (c->peer_maps_arenas && c->arenas != NULL && s->buf->tag != 0) {
            if (!send_arena(c, s->buf->tag)) {
                return false;
            }
        } else if (!c->peer_reads_memory) {
            return false;
        }
    }
    return true;
}

bool conn_release_refs(struct ps_conn *c, uint64_t count)
{
    while (count > 0 && !ps_list_empty(&c->unreleased)) {
        struct out_frame *f = PS_CONTAINER(ps_list_first(&c->unreleased),
                                           struct out_frame, node);

        c->queued -= unreleased_len(f);
        c->unreleased_bytes -= unreleased_len(f);
        frame_done(c, f);
        count--;
    }
    c->stall_due = PS_TIME_NEVER; /* Set again by the next flush. */
    return count == 0;
}

/* Inserts an urgent frame before the first frame that has not begun; an urgent
 * frame that waits there is dropped. */
static void push_urgent(struct ps_conn *c, struct out_frame *f)
{
    uint64_t begun = c->out_written +
                     (conn_pool_sends(c) ? c->io->out.bytes_min : 0);
    struct ps_list_node *n = ps_list_first(&c->out);

    while (n != NULL) {
        struct out_frame *other = PS_CONTAINER(n, struct out_frame, node);

        if (begun == 0 && other->is_urgent) {
            n = ps_list_next(&c->out, n);
            c->queued -= other->len;
            frame_done(c, other);
            continue;
        }
        if (begun == 0 && !other->is_greeting) {
            ps_list_insert(n, &f->node);
            return;
        }
        begun -= ps_min_u64(begun, other->len);
        n = ps_list_next(&c->out, n);
    }
    ps_list_push_back(&c->out, &f->node);
}

/* Allocates a frame with its encoded header. Most headers are far shorter than
 * their bound and are encoded in scratch first: many frames may wait for a
 * peer, and each should take only the memory it needs. */
static int encode_frame(struct ps_conn *c, const struct ps_msg *msg,
                        uint64_t payload_len, size_t pieces,
                        struct out_frame **ret_frame, size_t *ret_len)
{
    size_t cap = ps_msg_encoded_bound(msg);
    bool beside = cap <= PS_LOOP_SCRATCH;
    struct out_frame *f = beside ? NULL : ps_alloc(sizeof(*f) + cap + pieces);
    uint8_t *header = beside ? ps_loop_scratch(c->loop) : f->header;
    int rc = ps_msg_encode(msg, c->protocol, payload_len, header, cap, ret_len);

    if (rc != 0) {
        ps_free(f);
        return rc;
    }
    if (beside) {
        f = ps_alloc(sizeof(*f) + *ret_len + pieces);
        memcpy(f->header, header, *ret_len);
    }
    *ret_frame = f;
    return 0;
}

int ps_conn_send(struct ps_conn *c, const struct ps_conn_frame *frame)
{
    size_t pieces = ps_conn_refers_to_arenas(c) && frame->slice_count > 0
                        ? PS_FRAME_REFS_MAX * PS_FIXED_SHM_REF_BYTES
                        : 0;
    size_t header_len;
    uint64_t payload_len = 0;
    struct out_frame *f;
    int rc;

    if (c->state != CONN_OPEN) {
        return PS_E_CLOSED;
    }
    for (uint32_t i = 0; i < frame->slice_count; i++) {
        payload_len += frame->slices[i].len;
    }
    rc = encode_frame(c, frame->msg, payload_len, pieces, &f, &header_len);
    if (rc != 0) {
        return rc;
    }
    *f = (struct out_frame){
        .slices = frame->slices,
        .slice_count = frame->slice_count,
        .header_len = (uint32_t)header_len,
        .len = header_len + payload_len,
        .memory = ps_alloc_size(f) + frame->memory,
        .pass_fd = -1,
        .is_greeting = frame->msg->code == PS_MSG_HELLO ||
                       frame->msg->code == PS_MSG_WELCOME,
        .is_urgent = frame->is_urgent,
        .done = frame->done,
        .ctx = frame->ctx,
    };
    if (can_send_references(c, f, payload_len)) {
        send_references(c, f);
    }
    uint64_t queued = c->queued + f->len + unreleased_len(f);

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
    c->queued = queued;
    c->queued_memory += f->memory;
    if (f->is_urgent) {
        push_urgent(c, f);
    } else {
        ps_list_push_back(&c->out, &f->node);
    }
    c->stats.frames_out++;
    return 0;

free_frame:
    ps_free(f);
    return rc;
}

/* Appends the frame from byte `skip` on, as far as `iov` has space; returns the
 * new count. */
static int add_frame(const struct out_frame *f, uint64_t skip,
                     struct iovec *iov, int n)
{
    if (skip < f->header_len) {
        iov[n++] = (struct iovec){(uint8_t *)(uintptr_t)f->header + skip,
                                  f->header_len - skip};
        skip = 0;
    } else {
        skip -= f->header_len;
    }
    if (f->by_reference) {
        return n;
    }
    for (uint32_t i = 0; i < f->slice_count && n < CONN_IOV; i++) {
        const struct ps_slice *s = &f->slices[i];

        if (skip >= s->len) {
            skip -= s->len;
            continue;
        }
        iov[n++] = (struct iovec){ps_slice_data(s) + skip, s->len - skip};
        skip = 0;
    }
    return n;
}

/* Gathers queued frames up to `most` bytes, and the rest of the last one. */
static int gather_iov(const struct ps_conn *c, uint64_t most, struct iovec *iov)
{
    uint64_t skip = c->out_written;
    uint64_t bytes = 0;
    uint64_t held = c->unreleased_bytes;
    int n = 0;

    PS_LIST_EACH(node, &c->out)
    {
        const struct out_frame *f = PS_CONTAINER(node, const struct out_frame,
                                                 node);

        if (n == CONN_IOV || bytes >= most || (n > 0 && f->pass_fd >= 0)) {
            break;
        }
        if (f->by_reference && skip == 0 && held >= SHM_UNRELEASED_MAX) {
            break;
        }
        held += unreleased_len(f);
        n = add_frame(f, skip, iov, n);
        skip = 0;
        bytes += f->len;
        if (f->pass_fd >= 0) {
            break;
        }
    }
    return n;
}

static void advance_queue(struct ps_conn *c, uint64_t n)
{
    c->queued -= n;
    while (n > 0) {
        struct out_frame *f = PS_CONTAINER(ps_list_first(&c->out),
                                           struct out_frame, node);
        uint64_t left = f->len - c->out_written;

        if (f->pass_fd >= 0) {
            close(f->pass_fd); /* Sent with the first byte. */
            f->pass_fd = -1;
        }
        if (n < left) {
            c->out_written += n;
            return;
        }
        n -= left;
        c->out_written = 0;
        if (f->by_reference) {
            ps_list_remove(&f->node);
            ps_list_push_back(&c->unreleased, &f->node);
            c->unreleased_bytes += unreleased_len(f);
        } else {
            frame_done(c, f);
        }
    }
}

static ssize_t send_some(struct ps_conn *c, struct iovec *iov, int count)
{
    struct out_frame *f = PS_CONTAINER(ps_list_first(&c->out), struct out_frame,
                                       node);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    ps_time begun = c->io != NULL ? ps_loop_now(c->loop) : 0;
    ssize_t n;

    if (f->pass_fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);

        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &f->pass_fd, sizeof(int));
    }
    do {
        n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
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
    c->write_error = errnum;
    c->stall_due = PS_TIME_NEVER;
    c->close_due = ps_loop_now(c->loop) + WRITE_ERROR_GRACE;
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

/* Bytes that may be written now; 0: waits for its send slot. */
static uint64_t request_send_slot(struct ps_conn *c)
{
    return ps_send_scheduler_request(ps_loop_send_scheduler(c->loop),
                                     &c->send_slot, ps_loop_now(c->loop));
}

/* Counts `done` bytes; false when other connections are next. */
static bool has_more_to_write(struct ps_conn *c, uint64_t done, uint64_t most)
{
    struct ps_send_scheduler *f = ps_loop_send_scheduler(c->loop);
    uint64_t unsent = ps_send_scheduler_unsent_max(f);
    bool turn = !ps_send_scheduler_wrote(f, &c->send_slot, ps_loop_now(c->loop),
                                         done, most);

    if (c->unsent_max != unsent && f->count > 1 &&
        (unsent == 0 || unsent < c->unsent_max - c->unsent_max / 4 ||
         unsent > c->unsent_max + c->unsent_max / 4)) {
        int bytes = (int)unsent;

        /* A hint; failure is harmless. */
        (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes,
                         sizeof(bytes));
        c->unsent_max = unsent;
    }
    if (ps_list_empty(&c->out)) {
        ps_send_scheduler_leave(f, &c->send_slot);
    }
    return turn;
}

/* Takes a far connection out of the send scheduler: losses set its rate, and
 * scheduled connections have the rate of the slowest. */
static void check_distance(struct ps_conn *c)
{
    bool far = ps_tcp_is_far(c->fd);

    c->next_far_check = c->stats.bytes_out + FAR_LOOK_EVERY;
    if (far && c->is_scheduled) {
        ps_tcp_go_far(c->fd, c->tcp);
        ps_send_scheduler_leave(ps_loop_send_scheduler(c->loop), &c->send_slot);
        c->unsent_max = 0;
    }
    c->is_scheduled = !far;
}

/* A send task has ended: wrote all, or failed. */
static void send_task_done(struct ps_io_task *m)
{
    struct conn_io *moves = PS_CONTAINER(m, struct conn_io, out);
    struct ps_conn *c = moves->conn;

    moves->sends = false;
    c->stats.writes += m->syscalls;
    c->stats.moved_by_pool += m->bytes_done;
    c->stats.bytes_out += m->bytes_done;
    if (!conn_is_alive(c)) {
        conn_maybe_closed(c);
        return; /* c may be freed. */
    }
    advance_queue(c, m->bytes_done);
    if (c->is_scheduled) {
        (void)has_more_to_write(c, m->bytes_done, UINT64_MAX);
    }
    c->stall_due = PS_TIME_NEVER;
    if (m->error != 0) {
        write_failed(c, m->error);
        conn_arm(c);
        return;
    }
    (void)ps_conn_flush(c);
    if (c->state == CONN_OPEN) {
        c->ops->sent(c->ctx, c, c->queued);
    }
}

/* Passes large output to an I/O thread. */
static void submit_send(struct ps_conn *c, const struct iovec *iov, int count,
                        size_t bytes)
{
    struct conn_io *m = c->io;

    memcpy(m->out_iov, iov, (size_t)count * sizeof(*iov));
    m->sends = true;
    m->out.iov = m->out_iov;
    m->out.count = (unsigned)count;
    m->out.is_send = true;
    m->out.bytes_min = bytes;
    m->out.done = send_task_done;
    ps_io_task_submit(m->pool, &m->socket, &m->out);
}

static uint64_t write_out(struct ps_conn *c)
{
    uint64_t done = 0;

    while (!c->is_blocked && !ps_list_empty(&c->out) && !conn_pool_sends(c)) {
        struct iovec iov[CONN_IOV];
        uint64_t turn = c->is_scheduled ? request_send_slot(c) : UINT64_MAX;
        uint64_t most = ps_min_u64(turn,
                                   c->io != NULL ? IO_TASK_MAX : WRITE_BUDGET);
        int count = most > 0 ? gather_iov(c, most, iov) : 0;

        if (count == 0) {
            break; /* Waits for releases or for its send slot. */
        }
        size_t asked = c->is_scheduled ? cut_iov(iov, &count, most)
                                       : iov_bytes(iov, count);

        if (c->io != NULL && ps_io_pool_wants(c->io->pool, asked)) {
            submit_send(c, iov, count, asked);
            break;
        }
        ssize_t n = send_some(c, iov, count);

        if (n < 0) {
            c->is_blocked = true;
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                write_failed(c, errno);
            }
            break;
        }
        advance_queue(c, (uint64_t)n);
        done += (uint64_t)n;
        if (c->is_scheduled && !has_more_to_write(c, (uint64_t)n, most)) {
            break;
        }
        /* Socket full, or budget spent: the loop continues it. */
        c->is_blocked = (size_t)n < asked ||
                        (done >= WRITE_BUDGET && !ps_list_empty(&c->out));
    }
    c->stats.bytes_out += done;
    return done;
}

bool ps_conn_flush(struct ps_conn *c)
{
    if (!conn_is_alive(c) || c->write_error != 0) {
        return false;
    }
    if (c->stats.bytes_out >= c->next_far_check) {
        check_distance(c);
    }
    uint64_t done = write_out(c);
    ps_time now = ps_loop_now(c->loop);

    bool waits = c->is_blocked || conn_pool_sends(c) ||
                 !ps_list_empty(&c->unreleased);

    if (!waits || c->write_error != 0) {
        c->stall_due = PS_TIME_NEVER;
    } else if (done > 0 || c->stall_due == PS_TIME_NEVER) {
        c->stall_due = now + c->limits.stall_timeout;
    }
    if (c->state == CONN_FINISHING && ps_list_empty(&c->out) &&
        !c->is_write_shut) {
        /* Closing at once could make the kernel reset the connection and
         * discard bytes that the peer has not read. */
        c->is_write_shut = true;
        (void)shutdown(c->fd, SHUT_WR);
        c->close_due = now + c->limits.linger_timeout;
    }
    conn_arm(c);
    conn_update_poll(c);
    return done > 0;
}

void conn_write_slot(struct ps_send_slot *turn)
{
    struct ps_conn *c = PS_CONTAINER(turn, struct ps_conn, send_slot);

    if (ps_conn_flush(c) && c->state == CONN_OPEN) {
        c->ops->sent(c->ctx, c, c->queued);
    }
}
