/* SPDX-License-Identifier: Apache-2.0 */
/* Input of a connection: bytes to frames. Each read fills up to two places: the
 * destination of the current payload, and the staging buffer for the bytes that
 * follow it. */
#include "net/conn_inner.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/map.h"
#include "base/num.h"
#include "proto/msg_codec.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bytes read from one connection before others are served. A frame counts as
 * FRAME_COST at least: small frames cost by number, and a peer that sends only
 * these would delay all others for many milliseconds. */
#define READ_BUDGET      (1024u * 1024u)
#define FRAME_COST       512u
/* Reads after the end of the peer's process. */
#define PEER_ENDED_READS 64

static void close_malformed(struct ps_conn *c, int rc, const char *what)
{
    char text[128];

    snprintf(text, sizeof(text), "%s: %s", what, ps_strerror(rc));
    ps_conn_close(c, rc, text);
}

static void close_fds(struct ps_conn *c)
{
    for (uint32_t i = 0; i < c->fd_count; i++) {
        close(c->fds[i].fd);
    }
    c->fd_count = 0;
}

static int pop_fd(struct ps_conn *c)
{
    int fd = c->fds[0].fd;

    c->fd_count--;
    memmove(c->fds, c->fds + 1, c->fd_count * sizeof(c->fds[0]));
    return fd;
}

static void unmap_arenas(struct ps_conn *c)
{
    struct ps_map_cursor at = {0};
    struct ps_buf *b;

    while (c->peer_arenas != NULL &&
           (b = ps_map_next(c->peer_arenas, &at)) != NULL) {
        ps_buf_unref(b);
    }
    ps_map_free(c->peer_arenas);
    c->peer_arenas = NULL;
}

void conn_read_fini(struct ps_conn *c)
{
    close_fds(c);
    unmap_arenas(c);
    ps_msg_free(c->msg);
    ps_free(c->header);
    ps_free(c->staging);
    c->msg = NULL;
    c->header = NULL;
    c->staging = NULL;
}

static bool is_greeting_code(const struct ps_conn *c, unsigned code)
{
    if (c->dialled) {
        return code == PS_MSG_WELCOME || code == PS_MSG_REJECT;
    }
    /* Workers have a handshake of their own. */
    return code == (c->peer_roles == 1u << PS_ROLE_WORKER ? PS_MSG_L_HELLO
                                                          : PS_MSG_HELLO);
}

static bool is_shm_code(unsigned code)
{
    return code == PS_MSG_SHM_CAPS || code == PS_MSG_SHM_MAP ||
           code == PS_MSG_SHM_UNMAP || code == PS_MSG_SHM_RELEASE;
}

/* 0 if a frame with this code is allowed now from a role the peer can have. */
static int is_code_admitted(const struct ps_conn *c)
{
    int rc = PS_E_PERM;
    bool greeting = is_greeting_code(c, c->prefix.code);
    bool reject = c->prefix.code == PS_MSG_REJECT;

    /* No frame before the handshake, and only one handshake. The dialling side
     * may be rejected later too. */
    if (!c->is_greeted ? !greeting : greeting && !reject) {
        return PS_E_PERM;
    }
    if (reject && !c->dialled) {
        return PS_E_PERM;
    }
    if (is_shm_code(c->prefix.code) && !c->is_shm) {
        return PS_E_PERM;
    }
    for (unsigned role = 0; role < 32; role++) {
        if ((c->peer_roles & 1u << role) == 0) {
            continue;
        }
        rc = ps_frame_check(&c->prefix, (enum ps_role)role, c->self);
        if (rc == 0) {
            return 0;
        }
    }
    return rc;
}

/* Fixes the peer's role as its hello states it; later frames are checked
 * against that role. False: the role is not allowed, and the connection is
 * closing. */
static bool fix_peer_role(struct ps_conn *c, const struct ps_msg *msg)
{
    if (c->is_greeted || c->dialled || msg->code != PS_MSG_HELLO) {
        return true;
    }
    uint32_t role = msg->hello.role < 32 ? 1u << msg->hello.role : 0;

    if ((c->peer_roles & role) == 0) {
        ps_conn_close(c, PS_E_PERM, "greeting from a role that may not dial");
        return false;
    }
    c->peer_roles = role;
    return true;
}

/* Closes if a descriptor is left whose bytes are all parsed: no message has
 * claimed it. True: the connection stays open. */
static bool check_stray_fds(struct ps_conn *c)
{
    uint64_t seen = c->bytes_read - (c->staging_to - c->staging_from);

    if (c->fd_count > 0 && c->fds[0].end <= seen) {
        ps_conn_close(c, PS_E_PROTO,
                      "descriptor beside a message that takes none");
        return false;
    }
    return true;
}

static void greeting_done(struct ps_conn *c)
{
    uint8_t *more;
    uint32_t len = c->staging_to - c->staging_from;

    c->is_greeted = true;
    c->greeting_due = PS_TIME_NEVER;
    more = ps_alloc(STAGING_MAX);
    memcpy(more, c->staging + c->staging_from, len);
    ps_free(c->staging);
    c->staging = more;
    c->staging_cap = STAGING_MAX;
    c->staging_from = 0;
    c->staging_to = len;
}

/* Passes a complete frame to the user. */
static void deliver_frame(struct ps_conn *c, const struct ps_msg *msg)
{
    c->phase = PHASE_HEAD;
    c->dst = NULL;
    c->payload_due = PS_TIME_NEVER;
    if (c->prefix.payload_len >= FRAME_LARGE && c->prefix.ref_count == 0) {
        c->small_frames = 0;
    } else if (c->small_frames < SMALL_FRAMES_MAX) {
        c->small_frames++;
    }
    c->stats.frames_in++;
    bool first = !c->is_greeted;

    if (first) {
        greeting_done(c);
    }
    c->in_frame = true;
    c->ops->frame(c->ctx, c, msg, c->prefix.payload_len);
    c->in_frame = false;
    if (c->state == CONN_OPEN) {
        (void)check_stray_fds(c);
    }
    if (first && c->is_shm && c->dialled && c->state == CONN_OPEN) {
        conn_send_shm_caps(c);
        (void)ps_conn_flush(c);
    }
}

static void payload_done(struct ps_conn *c)
{
    struct ps_msg *msg = c->msg;

    c->msg = NULL;
    deliver_frame(c, msg);
    ps_msg_free(msg);
}

/* Reports released payloads to the peer, which can then free them. */
static void maybe_send_release(struct ps_conn *c)
{
    if (c->to_release == 0 || c->state != CONN_OPEN) {
        return;
    }
    conn_send_release(c, c->to_release);
    c->to_release = 0;
    c->to_release_bytes = 0;
    if (ps_conn_flush(c) && c->state == CONN_OPEN) {
        c->ops->sent(c->ctx, c, c->queued);
    }
}

/* Copies a payload that was sent by reference. */
static void read_references(struct ps_conn *c)
{
    uint64_t len = c->payload_left;

    if (c->dst != NULL) {
        const struct ps_shm_peer peer = {
            .fd = c->fd, .process = c->peer_process, .arenas = c->peer_arenas};
        int rc = ps_shm_read(&peer, c->refs, c->prefix.ref_count, c->dst);

        if (rc != 0) {
            ps_conn_close(c, rc,
                          rc == PS_E_CLOSED
                              ? "closed by peer within a frame"
                              : "payload is not in the peer's memory");
            return;
        }
        c->stats.by_reference += len;
    }
    c->payload_left = 0;
    c->to_release++;
    c->to_release_bytes += len;
}

/* Consumes the part of the payload that is available: references or staged
 * bytes. */
static void consume_staged(struct ps_conn *c)
{
    if (c->prefix.ref_count > 0) {
        read_references(c);
        return;
    }

    uint32_t n = (uint32_t)ps_min_u64(c->staging_to - c->staging_from,
                                      c->payload_left);

    if (c->dst != NULL && n > 0) {
        memcpy(c->dst, c->staging + c->staging_from, n);
        c->dst += n;
        c->stats.copied += n;
    }
    c->staging_from += n;
    c->payload_left -= n;
}

/* Asks the user for the payload's place. False: reading has to pause. */
static bool ask_payload_place(struct ps_conn *c, const struct ps_msg *msg)
{
    void *dst = NULL;
    int rc = c->ops->header(c->ctx, c, msg, c->prefix.payload_len, &dst);

    c->dst = rc == 0 ? dst : NULL;
    return rc != PS_E_AGAIN;
}

static void begin_payload(struct ps_conn *c, const struct ps_msg *msg)
{
    c->phase = PHASE_PAYLOAD;
    c->payload_left = c->prefix.payload_len;
    if (!ask_payload_place(c, msg)) {
        c->is_paused = true;
        c->payload_due = PS_TIME_NEVER;
        c->msg = ps_msg_dup(msg);
        conn_update_poll(c);
        return;
    }
    if (c->state != CONN_OPEN) {
        return;
    }
    consume_staged(c);
    if (c->state != CONN_OPEN) {
        return;
    }
    if (c->payload_left == 0) {
        deliver_frame(c, msg);
    } else {
        c->msg = ps_msg_dup(msg);
    }
}

/* Parses the references after the header. False: one is malformed or their
 * lengths do not match the payload's, and the connection is closing. */
static bool parse_references(struct ps_conn *c, const uint8_t *at)
{
    uint64_t left = c->prefix.payload_len;
    bool ok = true;

    for (unsigned i = 0; ok && i < c->prefix.ref_count; i++) {
        ok = ps_fixed_get_shm_ref(at, &c->refs[i]) && c->refs[i].len <= left;
        left -= ok ? c->refs[i].len : 0;
        at += PS_FIXED_SHM_REF_BYTES;
    }
    if (c->prefix.ref_count > 0 && (!ok || left != 0)) {
        ps_conn_close(c, PS_E_PROTO,
                      "payload is pointed at with another length");
        return false;
    }
    return true;
}

/* Maps an arena whose descriptor came with the control prefix. */
static void map_peer_arena(struct ps_conn *c, uint32_t number)
{
    const char *why = "arena without a descriptor";
    struct ps_buf *buf;
    int fd;

    if (c->peer_arenas == NULL) {
        c->peer_arenas = ps_map_new();
    }
    if (number == 0 || c->fd_count == 0 ||
        ps_map_get(c->peer_arenas, number) != NULL ||
        ps_map_count(c->peer_arenas) == PS_SHM_ARENAS_MAX) {
        ps_conn_close(c, PS_E_PROTO,
                      c->fd_count == 0 ? why
                                       : "arena shown twice, or too many");
        return;
    }
    fd = pop_fd(c);

    int rc = ps_shm_map_arena(fd, &buf, &why);

    if (rc != 0) {
        ps_conn_close(c, rc, why);
        return;
    }
    ps_map_put(c->peer_arenas, number, buf);
}

static void unmap_peer_arena(struct ps_conn *c, uint32_t number)
{
    struct ps_buf *b = c->peer_arenas == NULL
                           ? NULL
                           : ps_map_remove(c->peer_arenas, number);

    if (b == NULL) {
        ps_conn_close(c, PS_E_PROTO, "an end of an arena that was not shown");
        return;
    }
    ps_buf_unref(b);
}

static void accept_caps(struct ps_conn *c, const struct ps_msg_shm_caps *m)
{
    if (c->peer_caps_known) {
        ps_conn_close(c, PS_E_PROTO, "shm_caps sent twice");
        return;
    }
    c->peer_caps_known = true;
    c->peer_reads_memory = m->reads_memory;
    c->peer_maps_arenas = m->maps_arenas;
    if (!c->dialled) {
        conn_send_shm_caps(c);
        (void)ps_conn_flush(c);
    }
}

static void accept_release(struct ps_conn *c, uint32_t payloads)
{
    if (payloads == 0 || !conn_release_refs(c, payloads)) {
        ps_conn_close(c, PS_E_PROTO, "receipt for what was not sent");
        return;
    }
    (void)ps_conn_flush(c);
    if (c->state == CONN_OPEN) {
        c->ops->sent(c->ctx, c, c->queued);
    }
}

/* Messages of the connection itself, which its user does not see (rule S9). */
static void accept_shm_msg(struct ps_conn *c, const struct ps_msg *msg)
{
    c->phase = PHASE_HEAD;
    if (msg->code == PS_MSG_SHM_CAPS) {
        accept_caps(c, &msg->shm_caps);
    } else if (msg->code == PS_MSG_SHM_MAP) {
        map_peer_arena(c, msg->shm_map.arena);
    } else if (msg->code == PS_MSG_SHM_UNMAP) {
        unmap_peer_arena(c, msg->shm_unmap.arena);
    } else {
        accept_release(c, msg->shm_release.payloads);
    }
    if (c->state == CONN_OPEN) {
        (void)check_stray_fds(c);
    }
}

static void header_done(struct ps_conn *c, const uint8_t *header)
{
    struct ps_msg msg;
    int rc;

    do {
        rc = ps_msg_decode(ps_loop_decoder(c->loop), c->prefix.code, header,
                           c->prefix.header_len, &msg);
    } while (rc == PS_E_NOMEM && ps_alloc_use_reserve());

    c->header_due = PS_TIME_NEVER;
    if (rc != 0) {
        char what[64];

        snprintf(what, sizeof(what), "header of %s",
                 ps_msg_name(c->prefix.code));
        close_malformed(c, rc, what);
        return;
    }
    if (!fix_peer_role(c, &msg) ||
        !parse_references(c, header + c->prefix.header_len)) {
        return;
    }
    if (is_shm_code(msg.code)) {
        accept_shm_msg(c, &msg);
    } else if (c->prefix.payload_len > 0) {
        begin_payload(c, &msg);
    } else {
        deliver_frame(c, &msg);
    }
}

/* Bytes between prefix and payload: header and references. */
static uint32_t head_len(const struct ps_conn *c)
{
    return c->prefix.header_len + c->prefix.ref_count * PS_FIXED_SHM_REF_BYTES;
}

static bool parse_prefix(struct ps_conn *c)
{
    int rc = ps_frame_parse(c->staging + c->staging_from, &c->prefix);

    if (rc == 0 && c->prefix.ref_count > 0 && !c->is_shm) {
        rc = PS_E_PROTO;
    }
    if (rc == 0) {
        rc = is_code_admitted(c);
    }
    if (rc != 0) {
        char what[64];

        snprintf(what, sizeof(what), "frame with code %u (%s)",
                 (unsigned)c->prefix.code, ps_msg_name(c->prefix.code));
        close_malformed(c, rc, what);
    }
    return rc == 0;
}

/* Parses one frame head. False: more bytes are needed, or the connection is
 * closing. */
static bool parse_head(struct ps_conn *c)
{
    uint32_t have = c->staging_to - c->staging_from;

    if (have < PS_FRAME_PREFIX) {
        return false;
    }
    if (!parse_prefix(c)) {
        return false;
    }
    uint32_t need = PS_FRAME_PREFIX + head_len(c);

    if (have >= need) {
        const uint8_t *header = c->staging + c->staging_from + PS_FRAME_PREFIX;

        c->staging_from += need;
        header_done(c, header);
        return true;
    }
    if (need > c->staging_cap) {
        c->header = ps_alloc(head_len(c));
        c->header_got = have - PS_FRAME_PREFIX;
        memcpy(c->header, c->staging + c->staging_from + PS_FRAME_PREFIX,
               c->header_got);
        c->staging_from = c->staging_to;
        c->phase = PHASE_HEADER;
    }
    return false;
}

/* Bytes to read ahead into staging. */
static uint32_t read_ahead_bytes(const struct ps_conn *c)
{
    uint32_t room = c->staging_cap - c->staging_to;
    uint32_t have = c->staging_to - c->staging_from;

    if (c->phase == PHASE_HEAD && have >= PS_FRAME_PREFIX) {
        /* The prefix is parsed: read the rest of the header, and small payloads
         * with it. */
        uint32_t missing = PS_FRAME_PREFIX + head_len(c) - have;
        bool large = c->prefix.payload_len >= FRAME_LARGE &&
                     c->prefix.ref_count == 0;

        return (uint32_t)ps_min_u64(large ? missing : room, room);
    }
    bool large = c->phase == PHASE_HEAD ? c->small_frames < SMALL_FRAMES_MAX
                                        : c->prefix.payload_len >= FRAME_LARGE;

    return (uint32_t)ps_min_u64(large ? STAGING_AHEAD : room, room);
}

/* Sets up the places of the next read, with at most `most` bytes of payload;
 * returns their number. */
static int is_payload_placed(struct ps_conn *c, uint64_t most,
                             struct iovec iov[2])
{
    int n = 0;
    bool ahead = true;

    if (c->staging_from > 0) {
        memmove(c->staging, c->staging + c->staging_from,
                c->staging_to - c->staging_from);
        c->staging_to -= c->staging_from;
        c->staging_from = 0;
    }
    if (c->phase == PHASE_HEADER) {
        iov[n++] = (struct iovec){c->header + c->header_got,
                                  head_len(c) - c->header_got};
    } else if (c->phase == PHASE_PAYLOAD && c->dst != NULL) {
        ahead = c->payload_left <= most;
        iov[n++] = (struct iovec){c->dst, ps_min_u64(c->payload_left, most)};
    } else if (c->phase == PHASE_PAYLOAD) {
        ahead = c->payload_left <= PS_LOOP_SCRATCH;
        iov[n++] = (struct iovec){ps_loop_scratch(c->loop),
                                  ps_min_u64(c->payload_left, PS_LOOP_SCRATCH)};
    }
    if (ahead) {
        iov[n++] = (struct iovec){c->staging + c->staging_to,
                                  read_ahead_bytes(c)};
    }
    return n;
}

/* Advances the places by `n` bytes read. */
static void count_to_release(struct ps_conn *c, const struct iovec *iov,
                             size_t n)
{
    size_t first = 0;

    if (c->phase != PHASE_HEAD) {
        first = ps_min_u64(n, iov[0].iov_len);
    }
    if (c->phase == PHASE_HEADER) {
        c->header_got += (uint32_t)first;
    } else if (c->phase == PHASE_PAYLOAD) {
        c->payload_left -= first;
        c->dst = c->dst != NULL ? c->dst + first : NULL;
    }
    c->staging_to += (uint32_t)(n - first);
}

/* Counts `n` received bytes. */
static void count_received(struct ps_conn *c, uint64_t n)
{
    c->bytes_read += n;
    c->stats.bytes_in += n;
    if (c->tunes_rcvbuf && n > 0) {
        ps_rcvbuf_tuner_add(ps_loop_rcvbuf_tuner(c->loop), &c->rcvbuf, c->fd,
                            ps_loop_now(c->loop), n);
    }
}

static void peer_has_ended(struct ps_conn *c)
{
    bool inside = c->phase != PHASE_HEAD || c->staging_to > c->staging_from;

    ps_conn_close(c, PS_E_CLOSED,
                  inside ? "closed by peer within a frame" : "closed by peer");
}

static void parse_staged(struct ps_conn *c);

/* A receive task has ended: read all, or failed. */
static void receive_task_done(struct ps_io_task *m)
{
    struct conn_io *moves = PS_CONTAINER(m, struct conn_io, in);
    struct ps_conn *c = moves->conn;

    moves->receives = false;
    c->stats.reads += m->syscalls;
    c->stats.moved_by_pool += m->bytes_done;
    count_received(c, m->bytes_done);
    if (!conn_is_alive(c)) {
        conn_maybe_closed(c);
        return; /* c may be freed. */
    }
    if (c->state == CONN_FINISHING) {
        if (m->peer_ended || (m->error != 0 && m->error != ECANCELED)) {
            ps_conn_close(c, PS_E_CLOSED, "closed by us");
        }
    } else {
        const struct iovec first = {c->dst, c->payload_left};

        count_to_release(c, &first, m->bytes_done);
        if (m->peer_ended) {
            peer_has_ended(c);
        } else if (m->error != 0) {
            conn_fail(c, m->error);
        } else {
            parse_staged(c);
        }
    }
    conn_update_poll(c);
}

/* Passes the rest of a large payload to an I/O thread. */
static void submit_receive(struct ps_conn *c)
{
    struct conn_io *m = c->io;

    if (m->receives || c->dst == NULL ||
        !ps_io_pool_wants(m->pool, c->payload_left)) {
        return;
    }
    m->receives = true;
    m->in.iov = m->in_iov;
    m->in.count = (unsigned)is_payload_placed(c, UINT64_MAX, m->in_iov);
    m->in.is_send = false;
    m->in.bytes_min = c->payload_left;
    m->in.done = receive_task_done;
    ps_io_task_submit(m->pool, &m->socket, &m->in);
    conn_update_poll(c);
}

/* Parses all staged bytes and delivers complete frames. */
static void parse_staged(struct ps_conn *c)
{
    bool more = true;

    while (more && c->state == CONN_OPEN && !c->is_paused) {
        if (c->to_release_bytes >= SHM_RELEASE_BYTES) {
            maybe_send_release(c);
            continue;
        }
        switch (c->phase) {
        case PHASE_HEAD:
            more = parse_head(c);
            break;
        case PHASE_HEADER:
            more = c->header_got == head_len(c);
            if (more) {
                uint8_t *header = c->header;

                c->header = NULL;
                c->phase = PHASE_HEAD;
                header_done(c, header);
                ps_free(header);
            }
            break;
        case PHASE_PAYLOAD:
            more = c->payload_left == 0;
            if (more) {
                payload_done(c);
            }
            break;
        }
    }
    if (c->state != CONN_OPEN) {
        return;
    }
    bool begun = c->phase == PHASE_HEADER ||
                 (c->phase == PHASE_HEAD && c->staging_to > c->staging_from);

    if (begun && c->header_due == PS_TIME_NEVER) {
        c->header_due = ps_loop_now(c->loop) + c->limits.header_timeout;
        conn_arm(c);
    } else if (c->phase == PHASE_PAYLOAD && !c->is_paused) {
        c->payload_due = ps_loop_now(c->loop) + c->limits.stall_timeout;
        conn_arm(c);
        if (c->io != NULL) {
            submit_receive(c);
        }
    }
}

/* True if a descriptor is available. MSG_CTRUNC does not tell whether the
 * process ran out of them. */
static bool has_free_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

/* Queues the descriptors of one read. False: the connection is closing. */
static bool queue_fds(struct ps_conn *c, struct msghdr *m, size_t n)
{
    bool many = (m->msg_flags & MSG_CTRUNC) != 0;

    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h != NULL;
         h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(fd));
            if (c->fd_count == PS_CONN_FDS_MAX) {
                many = true;
                close(fd);
                continue;
            }
            c->fds[c->fd_count++] = (struct arrived_fd){
                .fd = fd, .end = c->bytes_read + n};
        }
    }
    if (many && !has_free_fd()) {
        ps_conn_close(c, PS_E_FULL,
                      "this daemon has no descriptor left for one that came "
                      "with a message (LimitNOFILE)");
    } else if (many) {
        ps_conn_close(c, PS_E_PROTO, "too many descriptors");
    }
    return !many;
}

static ssize_t receive_some(struct ps_conn *c, struct iovec *iov, int count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PS_CONN_FDS_MAX * sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    ps_time begun = c->io != NULL ? ps_loop_now(c->loop) : 0;
    ssize_t n;

    if (c->local || c->is_shm) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
    }
    do {
        n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    c->stats.reads++;
    if (c->io != NULL && n > 0) {
        ps_io_pool_add_spent(c->io->pool, ps_loop_now(c->loop) - begun);
    }
    if (n > 0 && (c->local || c->is_shm) && !queue_fds(c, &m, (size_t)n)) {
        errno = ECANCELED;
        return -1;
    }
    return n;
}

/* After ps_conn_finish(): discards input until its end. */
static void discard_payload(struct ps_conn *c)
{
    for (;;) {
        ssize_t n = recv(c->fd, ps_loop_scratch(c->loop), PS_LOOP_SCRATCH, 0);

        if (n > 0 || (n < 0 && errno == EINTR)) {
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
            ps_conn_close(c, PS_E_CLOSED, "closed by us");
        }
        return;
    }
}

void conn_readable(struct ps_conn *c)
{
    size_t budget = READ_BUDGET;

    while (c->state == CONN_OPEN && !c->is_paused && !conn_pool_receives(c)) {
        struct iovec iov[2];
        int count = is_payload_placed(c, READ_BUDGET, iov);
        size_t asked = iov[0].iov_len + (count == 2 ? iov[1].iov_len : 0);
        uint64_t before = c->stats.frames_in;
        ssize_t n = receive_some(c, iov, count);
        uint64_t spent;

        if (n < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                conn_fail(c,
                          errno); /* queue_fds() may have closed it already. */
            } else if (c->peer_ended) {
                peer_has_ended(c);
            }
            return;
        }
        if (n == 0) {
            peer_has_ended(c);
            return;
        }
        count_to_release(c, iov, (size_t)n);
        count_received(c, (uint64_t)n);
        parse_staged(c);
        maybe_send_release(c);
        /* A short read mostly means that the socket is empty. A Unix socket
         * also stops at a descriptor. */
        spent = (size_t)n + (c->stats.frames_in - before) * FRAME_COST;
        if ((size_t)n < asked || spent >= budget) {
            return;
        }
        budget -= spent;
    }
    if (c->state == CONN_FINISHING) {
        discard_payload(c);
    }
}

void ps_conn_resume(struct ps_conn *c)
{
    if (!c->is_paused || c->state != CONN_OPEN) {
        return;
    }
    if (!ask_payload_place(c, c->msg) || c->state != CONN_OPEN) {
        return;
    }
    c->is_paused = false;
    consume_staged(c);
    parse_staged(c);
    maybe_send_release(c);
    conn_update_poll(c);
}

void ps_conn_peer_ended(struct ps_conn *c)
{
    c->peer_ended = true;
    /* The ended process wrote no more than the socket holds; later bytes come
     * from another process. */
    for (int i = 0; i < PEER_ENDED_READS && conn_is_alive(c) && !c->is_paused &&
                    !conn_pool_receives(c);
         i++) {
        conn_readable(c);
    }
    ps_conn_close(c, PS_E_CLOSED, "its process ended");
}

int ps_conn_pop_fd(struct ps_conn *c)
{
    return c->in_frame && c->fd_count > 0 ? pop_fd(c) : -1;
}
