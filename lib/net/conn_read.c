/* SPDX-License-Identifier: Apache-2.0 */
/* Input of a connection: reads bytes from the transport to the places that the
 * frame in progress has, checks what they complete in the order of
 * proto/msg_codec.h, and passes it to the user.
 *
 * Prefix and header go through a small staging buffer; the payload is read
 * straight to its place, and only payload bytes that arrived together with a
 * header are copied. Each read fills up to two places: the rest of the current
 * payload, and staging for the bytes that follow it. */
#include "net/conn_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/state_table.h"
#include "proto/msg_codec.h"
#include "proto/ps_fixed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* A frame counts as that many bytes at least of a turn to read: small frames
 * cost by number, and a peer that sends only these would delay all others for
 * many milliseconds. */
#define FRAME_COST       512u
/* Reads after the end of the peer's process. */
#define PEER_ENDED_READS 64

/* ------------------------------------------------------------------- frames */

/* Least payload of a large frame. */
#define PS_FRAME_LARGE   (16u * 1024u)
/* Bytes of staging before the handshake, and after. */
#define STAGING_FIRST    4096u
#define STAGING_MAX      (16u * 1024u)
/* Read-ahead behind a large frame: enough for the next header. */
#define STAGING_AHEAD    512u
/* After this many consecutive small frames, read-ahead grows again. Read-ahead
 * before a large frame costs a copy. */
#define SMALL_FRAMES_MAX 16u

static const uint32_t successors[] = {
    /* A message of the connection itself is not delivered. */
    [PS_FRAME_HEAD] = PS_STATE_BIT(PS_FRAME_LONG_HEADER) |
                      PS_STATE_BIT(PS_FRAME_PAYLOAD) |
                      PS_STATE_BIT(PS_FRAME_DELIVERED),
    /* The header is complete. */
    [PS_FRAME_LONG_HEADER] = PS_STATE_BIT(PS_FRAME_HEAD),
    [PS_FRAME_PAYLOAD] = PS_STATE_BIT(PS_FRAME_PAUSED) |
                         PS_STATE_BIT(PS_FRAME_DELIVERED),
    /* The user has memory again. */
    [PS_FRAME_PAUSED] = PS_STATE_BIT(PS_FRAME_PAYLOAD),
    [PS_FRAME_DELIVERED] = PS_STATE_BIT(PS_FRAME_HEAD),
};

/* A frame that arrives. */
static const struct ps_state_table phases = {
    .name = "frame being read",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

static void set_phase(struct ps_frame_reader *r, enum ps_frame_phase to)
{
    ps_state_change(&phases, &r->phase, (uint8_t)to);
}

static uint32_t reader_staged(const struct ps_frame_reader *r)
{
    return r->staging_to - r->staging_from;
}

/* True if part of a prefix or header is there. */
static bool reader_in_header(const struct ps_frame_reader *r)
{
    return r->phase == PS_FRAME_LONG_HEADER ||
           (r->phase == PS_FRAME_HEAD && reader_staged(r) > 0);
}

/* True if part of a frame is there. */
static bool reader_in_frame(const struct ps_frame_reader *r)
{
    return r->phase != PS_FRAME_HEAD || reader_staged(r) > 0;
}

void ps_frame_reader_init(struct ps_frame_reader *r)
{
    r->staging_cap = STAGING_FIRST;
    r->staging = ps_alloc(r->staging_cap);
}

void ps_frame_reader_fini(struct ps_frame_reader *r)
{
    ps_msg_free(r->msg);
    ps_free(r->header);
    ps_free(r->staging);
    r->msg = NULL;
    r->header = NULL;
    r->staging = NULL;
}

/* Enlarges staging, after the handshake. */
static void reader_grow(struct ps_frame_reader *r)
{
    uint32_t len = reader_staged(r);
    uint8_t *more = ps_alloc(STAGING_MAX);

    memcpy(more, r->staging + r->staging_from, len);
    ps_free(r->staging);
    r->staging = more;
    r->staging_cap = STAGING_MAX;
    r->staging_from = 0;
    r->staging_to = len;
}

/* Bytes between prefix and payload: header and references. */
static uint32_t head_len(const struct ps_frame_reader *r)
{
    return r->prefix.header_len + r->prefix.ref_count * PS_FIXED_SHM_REF_BYTES;
}

static bool is_large(const struct ps_frame_reader *r)
{
    return r->prefix.payload_len >= PS_FRAME_LARGE && r->prefix.ref_count == 0;
}

/* Bytes to read ahead into staging. */
static uint32_t read_ahead_bytes(const struct ps_frame_reader *r)
{
    uint32_t space = r->staging_cap - r->staging_to;
    uint32_t have = reader_staged(r);

    if (r->phase == PS_FRAME_HEAD && have >= PS_FRAME_PREFIX) {
        /* The prefix is parsed: read the rest of the header, and small payloads
         * with it. */
        uint32_t missing = PS_FRAME_PREFIX + head_len(r) - have;

        return (uint32_t)ps_min_u64(is_large(r) ? missing : space, space);
    }
    bool large = r->phase == PS_FRAME_HEAD
                     ? r->small_frames < SMALL_FRAMES_MAX
                     : r->prefix.payload_len >= PS_FRAME_LARGE;

    return (uint32_t)ps_min_u64(large ? STAGING_AHEAD : space, space);
}

/* Names the places of the next read, with at most `most` bytes of payload;
 * returns their number. Bytes that are discarded go to `scratch`, of
 * PS_LOOP_SCRATCH bytes. */
static int reader_places(struct ps_frame_reader *r, uint64_t most,
                         void *scratch, struct iovec iov[2])
{
    int n = 0;
    bool ahead = true;

    if (r->staging_from > 0) {
        memmove(r->staging, r->staging + r->staging_from, reader_staged(r));
        r->staging_to -= r->staging_from;
        r->staging_from = 0;
    }
    if (r->phase == PS_FRAME_LONG_HEADER) {
        iov[n++] = (struct iovec){r->header + r->header_got,
                                  head_len(r) - r->header_got};
    } else if (r->phase == PS_FRAME_PAYLOAD && r->dst != NULL) {
        ahead = r->payload_left <= most;
        iov[n++] = (struct iovec){r->dst, ps_min_u64(r->payload_left, most)};
    } else if (r->phase == PS_FRAME_PAYLOAD) {
        ahead = r->payload_left <= PS_LOOP_SCRATCH;
        iov[n++] = (struct iovec){scratch,
                                  ps_min_u64(r->payload_left, PS_LOOP_SCRATCH)};
    }
    if (ahead) {
        iov[n++] = (struct iovec){r->staging + r->staging_to,
                                  read_ahead_bytes(r)};
    }
    return n;
}

/* Counts `n` bytes that were read, of which up to `first` belong to the first
 * place. */
static void reader_advance(struct ps_frame_reader *r, size_t first, size_t n)
{
    first = r->phase != PS_FRAME_HEAD ? ps_min_u64(n, first) : 0;
    if (r->phase == PS_FRAME_LONG_HEADER) {
        r->header_got += (uint32_t)first;
    } else if (r->phase == PS_FRAME_PAYLOAD) {
        r->payload_left -= first;
        r->dst = r->dst != NULL ? r->dst + first : NULL;
    }
    r->staging_to += (uint32_t)(n - first);
}

/* Parses the next prefix; PS_E_AGAIN: more bytes are needed. */
static int reader_prefix(struct ps_frame_reader *r)
{
    if (r->phase == PS_FRAME_LONG_HEADER) {
        return 0;
    }
    if (reader_staged(r) < PS_FRAME_PREFIX) {
        return PS_E_AGAIN;
    }
    return ps_frame_parse(r->staging + r->staging_from, &r->prefix);
}

/* Adds staged bytes to a long header. True: it is complete. */
static bool continue_long_header(struct ps_frame_reader *r)
{
    uint32_t n = (uint32_t)ps_min_u64(reader_staged(r),
                                      head_len(r) - r->header_got);

    memcpy(r->header + r->header_got, r->staging + r->staging_from, n);
    r->header_got += n;
    r->staging_from += n;
    return r->header_got == head_len(r);
}

/* Header and references of the parsed prefix, valid until
 * reader_header_done(); NULL: more bytes are needed. */
static const uint8_t *reader_header(struct ps_frame_reader *r)
{
    const uint32_t need = PS_FRAME_PREFIX + head_len(r);

    if (r->phase == PS_FRAME_LONG_HEADER) {
        if (!continue_long_header(r)) {
            return NULL;
        }
        set_phase(r, PS_FRAME_HEAD);
        return r->header;
    }
    if (reader_staged(r) >= need) {
        const uint8_t *header = r->staging + r->staging_from + PS_FRAME_PREFIX;

        r->staging_from += need;
        return header;
    }
    if (need > r->staging_cap) {
        r->header = ps_alloc(head_len(r));
        r->header_got = 0;
        r->staging_from += PS_FRAME_PREFIX;
        set_phase(r, PS_FRAME_LONG_HEADER);
        (void)continue_long_header(r);
    }
    return NULL;
}

static void reader_header_done(struct ps_frame_reader *r)
{
    if (r->header != NULL) {
        ps_free(r->header);
        r->header = NULL;
    }
}

/* The payload follows. */
static void reader_begin_payload(struct ps_frame_reader *r)
{
    set_phase(r, PS_FRAME_PAYLOAD);
    r->payload_left = r->prefix.payload_len;
}

/* Waits for a place of the payload, with a copy of the header. */
static void reader_pause(struct ps_frame_reader *r, const struct ps_msg *msg)
{
    set_phase(r, PS_FRAME_PAUSED);
    r->msg = ps_msg_dup(msg);
}

static void reader_resume(struct ps_frame_reader *r)
{
    set_phase(r, PS_FRAME_PAYLOAD);
}

/* Takes staged bytes of the payload; returns how many it copied to `dst`. */
static uint32_t reader_consume(struct ps_frame_reader *r)
{
    uint32_t n = (uint32_t)ps_min_u64(reader_staged(r), r->payload_left);
    uint32_t copied = 0;

    if (r->dst != NULL && n > 0) {
        memcpy(r->dst, r->staging + r->staging_from, n);
        r->dst += n;
        copied = n;
    }
    r->staging_from += n;
    r->payload_left -= n;
    return copied;
}

/* The frame is complete, and with the user until reader_end_frame(). */
static void reader_begin_frame(struct ps_frame_reader *r)
{
    set_phase(r, PS_FRAME_DELIVERED);
    r->dst = NULL;
    if (is_large(r)) {
        r->small_frames = 0;
    } else if (r->small_frames < SMALL_FRAMES_MAX) {
        r->small_frames++;
    }
}

static void reader_end_frame(struct ps_frame_reader *r)
{
    set_phase(r, PS_FRAME_HEAD);
}

/* ------------------------------------------------------------------- checks */

static void close_malformed(struct ps_conn *c, int rc, const char *what)
{
    char text[128];

    snprintf(text, sizeof(text), "%s: %s", what, ps_strerror(rc));
    ps_conn_close(c, rc, text);
}

static bool is_handshake_code(const struct ps_conn *c, unsigned code)
{
    if (c->dialled) {
        return code == PS_MSG_WELCOME || code == PS_MSG_REJECT;
    }
    /* Workers have a handshake of their own. */
    return code == (c->peer_roles == 1u << PS_ROLE_WORKER ? PS_MSG_L_HELLO
                                                          : PS_MSG_HELLO);
}

/* True for messages between the connections themselves (rule S9). */
static bool is_shm_code(unsigned code)
{
    return code == PS_MSG_SHM_CAPS || code == PS_MSG_SHM_MAP ||
           code == PS_MSG_SHM_UNMAP || code == PS_MSG_SHM_RELEASE;
}

/* 0 if a frame with this code is allowed now from a role the peer can have. */
static int check_code(const struct ps_conn *c)
{
    const struct ps_frame_prefix *prefix = &c->reader.prefix;
    int rc = PS_E_PERM;
    bool is_handshake = is_handshake_code(c, prefix->code);
    bool reject = prefix->code == PS_MSG_REJECT;

    /* No frame before the handshake, and only one handshake. The dialling side
     * may be rejected later too. */
    if (!c->is_handshake_done ? !is_handshake : is_handshake && !reject) {
        return PS_E_PERM;
    }
    if (reject && !c->dialled) {
        return PS_E_PERM;
    }
    if (c->shm == NULL && is_shm_code(prefix->code)) {
        return PS_E_PERM;
    }
    for (uint32_t roles = c->peer_roles; roles != 0; roles &= roles - 1) {
        rc = ps_frame_check(prefix, (enum ps_role)__builtin_ctz(roles),
                            c->self);
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
    if (c->is_handshake_done || c->dialled || msg->code != PS_MSG_HELLO) {
        return true;
    }
    uint32_t role = msg->hello.role < 32 ? 1u << msg->hello.role : 0;

    if ((c->peer_roles & role) == 0) {
        ps_conn_close(c, PS_E_PERM, "handshake from a role that may not dial");
        return false;
    }
    c->peer_roles = role;
    return true;
}

/* ----------------------------------------------------------------- delivery */

/* Closes if a descriptor is left whose bytes are all parsed: no message has
 * claimed it. */
static void check_stray_fds(struct ps_conn *c)
{
    uint64_t parsed = c->transport.bytes_read - reader_staged(&c->reader);

    if (c->state == CONN_OPEN &&
        ps_transport_has_fd_before(&c->transport, parsed)) {
        ps_conn_close(c, PS_E_PROTO,
                      "file descriptor with a message that carries none");
    }
}

/* Passes a complete frame to the user. */
static void deliver_frame(struct ps_conn *c, const struct ps_msg *msg)
{
    bool first = !c->is_handshake_done;

    reader_begin_frame(&c->reader);
    c->timers.due[CONN_DUE_PAYLOAD] = PS_TIME_NEVER;
    c->stats.frames_in++;
    if (first) {
        c->is_handshake_done = true;
        c->timers.due[CONN_DUE_HANDSHAKE] = PS_TIME_NEVER;
        reader_grow(&c->reader);
    }
    c->ops->frame(c->ctx, c, msg, c->reader.prefix.payload_len);
    reader_end_frame(&c->reader);
    check_stray_fds(c);
    if (first && c->shm != NULL && c->dialled && c->state == CONN_OPEN) {
        conn_shm_send_caps(c->shm);
        (void)ps_conn_flush(c);
    }
}

static void payload_done(struct ps_conn *c)
{
    struct ps_msg *msg = c->reader.msg;

    c->reader.msg = NULL;
    deliver_frame(c, msg);
    ps_msg_free(msg);
}

/* Reports released payloads to a same-host peer, which can then free them. */
static void maybe_send_release(struct ps_conn *c)
{
    if (c->shm != NULL && c->state == CONN_OPEN &&
        conn_shm_send_release(c->shm) && ps_conn_flush(c) &&
        c->state == CONN_OPEN) {
        c->ops->sent(c->ctx, c, c->writer.queued);
    }
}

/* Consumes the part of the payload that is available: references or staged
 * bytes. */
static void consume_payload(struct ps_conn *c)
{
    struct ps_frame_reader *r = &c->reader;
    const uint64_t len = r->payload_left;

    if (r->prefix.ref_count == 0) {
        c->stats.copied += reader_consume(r);
        return;
    }
    int rc = conn_shm_read(c->shm, c->transport.fd, r->prefix.ref_count, r->dst,
                           len);

    if (rc != 0) {
        ps_conn_close(c, rc,
                      rc == PS_E_CLOSED ? "closed by peer within a frame"
                                        : "payload is not in the peer's "
                                          "memory");
        return;
    }
    c->stats.by_reference += r->dst != NULL ? len : 0;
    r->payload_left = 0;
}

/* Asks the user for the payload's place. False: reading has to pause. */
static bool ask_payload_place(struct ps_conn *c, const struct ps_msg *msg)
{
    void *dst = NULL;
    int rc = c->ops->header(c->ctx, c, msg, c->reader.prefix.payload_len, &dst);

    c->reader.dst = rc == 0 ? dst : NULL;
    return rc != PS_E_AGAIN;
}

static void begin_payload(struct ps_conn *c, const struct ps_msg *msg)
{
    reader_begin_payload(&c->reader);
    if (!ask_payload_place(c, msg)) {
        c->timers.due[CONN_DUE_PAYLOAD] = PS_TIME_NEVER;
        reader_pause(&c->reader, msg);
        conn_update_poll(c);
        return;
    }
    if (c->state == CONN_OPEN) {
        consume_payload(c);
    }
    if (c->state != CONN_OPEN) {
        return;
    }
    if (c->reader.payload_left == 0) {
        deliver_frame(c, msg);
    } else {
        c->reader.msg = ps_msg_dup(msg);
    }
}

/* Handles a message about shared memory. */
static void accept_shm_msg(struct ps_conn *c, const struct ps_msg *msg)
{
    const char *why = "";
    int rc = conn_shm_accept(c->shm, &c->transport, msg, &why);

    if (msg->code == PS_MSG_SHM_RELEASE) {
        /* Set again by the next flush. */
        c->timers.due[CONN_DUE_STALL] = PS_TIME_NEVER;
    }
    if (rc != 0) {
        ps_conn_close(c, rc, why);
    } else if (msg->code == PS_MSG_SHM_RELEASE) {
        (void)ps_conn_flush(c);
        if (c->state == CONN_OPEN) {
            c->ops->sent(c->ctx, c, c->writer.queued);
        }
    } else if (msg->code == PS_MSG_SHM_CAPS && !c->dialled) {
        conn_shm_send_caps(c->shm);
        (void)ps_conn_flush(c);
    }
    check_stray_fds(c);
}

static void header_done(struct ps_conn *c, const uint8_t *header)
{
    const struct ps_frame_prefix *prefix = &c->reader.prefix;
    struct ps_msg msg;
    int rc;

    do {
        rc = ps_msg_decode(ps_loop_decoder(c->loop), prefix->code, header,
                           prefix->header_len, &msg);
    } while (rc == PS_E_NOMEM && ps_alloc_use_reserve());

    c->timers.due[CONN_DUE_HEADER] = PS_TIME_NEVER;
    if (rc != 0) {
        char what[64];

        snprintf(what, sizeof(what), "header of %s", ps_msg_name(prefix->code));
        close_malformed(c, rc, what);
        return;
    }
    if (!fix_peer_role(c, &msg)) {
        return;
    }
    if (prefix->ref_count > 0 &&
        !conn_shm_parse_refs(c->shm, prefix, header + prefix->header_len)) {
        ps_conn_close(c, PS_E_PROTO,
                      "references do not add up to the payload of the message");
    } else if (c->shm != NULL && is_shm_code(msg.code)) {
        accept_shm_msg(c, &msg);
    } else if (prefix->payload_len > 0) {
        begin_payload(c, &msg);
    } else {
        deliver_frame(c, &msg);
    }
}

/* Parses and checks a prefix. False: more bytes are needed, or the connection
 * is closing. */
static bool parse_prefix(struct ps_conn *c)
{
    const struct ps_frame_prefix *prefix = &c->reader.prefix;
    int rc = reader_prefix(&c->reader);

    if (rc == PS_E_AGAIN) {
        return false;
    }
    if (rc == 0 && prefix->ref_count > 0 && c->shm == NULL) {
        rc = PS_E_PROTO;
    }
    if (rc == 0) {
        rc = check_code(c);
    }
    if (rc != 0) {
        char what[64];

        snprintf(what, sizeof(what), "frame with code %u (%s)",
                 (unsigned)prefix->code, ps_msg_name(prefix->code));
        close_malformed(c, rc, what);
    }
    return rc == 0;
}

/* Parses one frame head. False: more bytes are needed, or the connection is
 * closing. */
static bool parse_head(struct ps_conn *c)
{
    if (c->reader.phase == PS_FRAME_HEAD && !parse_prefix(c)) {
        return false;
    }
    const uint8_t *header = reader_header(&c->reader);

    if (header == NULL) {
        return false;
    }
    header_done(c, header);
    reader_header_done(&c->reader);
    return true;
}

/* Continues a payload. False: more bytes are needed. */
static bool parse_payload(struct ps_conn *c)
{
    if (c->reader.payload_left > 0) {
        c->stats.copied += reader_consume(&c->reader);
    }
    if (c->reader.payload_left > 0) {
        return false;
    }
    payload_done(c);
    return true;
}

/* --------------------------------------------------------------- the socket */

static void peer_has_ended(struct ps_conn *c)
{
    ps_conn_close(c, PS_E_CLOSED,
                  reader_in_frame(&c->reader) ? "closed by peer within a frame"
                                              : "closed by peer");
}

/* Counts `n` received bytes. */
static void count_received(struct ps_conn *c, uint64_t n)
{
    c->transport.bytes_read += n;
    c->stats.bytes_in += n;
    conn_tcp_received(&c->tcp, n);
}

static void receive_task_done(struct ps_io_task *m);

/* Passes the next places to an I/O thread, until `bytes_min` bytes are read. */
static void submit_receive(struct ps_conn *c, uint64_t bytes_min)
{
    struct conn_io *m = c->io;

    if (c->reader.phase == PS_FRAME_PAYLOAD && c->reader.dst == NULL &&
        m->discarded == NULL) {
        m->discarded = ps_alloc(PS_LOOP_SCRATCH); /* No other thread's. */
    }
    m->receives = true;
    m->in.iov = m->in_iov;
    m->in.count = (unsigned)reader_places(&c->reader, UINT64_MAX, m->discarded,
                                          m->in_iov);
    m->in_first = m->in_iov[0].iov_len;
    m->in.is_send = false;
    m->in.bytes_min = bytes_min;
    m->in.done = receive_task_done;
    ps_io_task_submit(m->pool, &m->socket, &m->in);
    conn_update_poll(c);
}

/* Passes the rest of a large payload to an I/O thread. */
static void submit_large_payload(struct ps_conn *c)
{
    if (!c->io->receives && c->reader.dst != NULL &&
        ps_io_pool_wants(c->io->pool, c->reader.payload_left)) {
        submit_receive(c, c->reader.payload_left);
    }
}

/* Parses all staged bytes and delivers complete frames. */
static void parse_staged(struct ps_conn *c)
{
    struct ps_frame_reader *r = &c->reader;
    bool more = true;

    while (more && c->state == CONN_OPEN && !conn_is_paused(c)) {
        if (c->shm != NULL && conn_shm_release_due(c->shm)) {
            maybe_send_release(c);
        } else if (r->phase == PS_FRAME_PAYLOAD) {
            more = parse_payload(c);
        } else {
            more = parse_head(c);
        }
    }
    if (c->state != CONN_OPEN) {
        return;
    }
    ps_time *due = c->timers.due;

    if (reader_in_header(r) && due[CONN_DUE_HEADER] == PS_TIME_NEVER) {
        due[CONN_DUE_HEADER] = ps_loop_now(c->loop) + c->limits.header_timeout;
        conn_arm(c);
    } else if (r->phase == PS_FRAME_PAYLOAD) {
        due[CONN_DUE_PAYLOAD] = ps_loop_now(c->loop) + c->limits.stall_timeout;
        conn_arm(c);
        if (c->io != NULL) {
            submit_large_payload(c);
        }
    }
}

/* Closes after a failed read, unless the transport has no more bytes now. */
static void receive_failed(struct ps_conn *c, int errnum)
{
    if (c->transport.failure_rc != 0) {
        ps_conn_close(c, c->transport.failure_rc, c->transport.failure);
    } else if (errnum != EAGAIN && errnum != EWOULDBLOCK) {
        conn_fail(c, errnum);
    } else if (c->peer_ended) {
        peer_has_ended(c);
    }
}

/* A receive task has ended: read all, or failed. */
static void receive_task_done(struct ps_io_task *m)
{
    struct conn_io *io = PS_CONTAINER(m, struct conn_io, in);
    struct ps_conn *c = io->conn;

    io->receives = false;
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
        reader_advance(&c->reader, io->in_first, m->bytes_done);
        if (m->peer_ended) {
            peer_has_ended(c);
        } else if (m->error != 0) {
            receive_failed(c, m->error);
        } else {
            parse_staged(c);
        }
    }
    if (!conn_pool_receives(c) && c->transport.has_unread) {
        conn_readable(c); /* The loop does not see these bytes. */
    }
    conn_update_poll(c);
}

static ssize_t receive_some(struct ps_conn *c, struct iovec *iov, int count)
{
    ps_time begun = c->io != NULL ? ps_loop_now(c->loop) : 0;
    ssize_t n = c->transport.ops->read(&c->transport, iov, count);

    c->stats.reads++;
    if (c->io != NULL && n > 0) {
        ps_io_pool_add_spent(c->io->pool, ps_loop_now(c->loop) - begun);
    }
    return n;
}

/* After ps_conn_finish(): discards input until its end. */
static void discard_payload(struct ps_conn *c)
{
    for (;;) {
        ssize_t n = recv(c->transport.fd, ps_loop_scratch(c->loop),
                         PS_LOOP_SCRATCH, 0);

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
    const bool is_plain = ps_transport_has(&c->transport,
                                           PS_TRANSPORT_IS_PLAIN);
    const size_t turn = c->transport.ops->read_turn;
    size_t budget = turn;

    while (c->state == CONN_OPEN && !conn_is_paused(c) &&
           !conn_pool_receives(c)) {
        if (conn_pool_has_transport(c)) {
            submit_receive(c, 1);
            return;
        }
        struct iovec iov[2];
        int count = reader_places(&c->reader, turn, ps_loop_scratch(c->loop),
                                  iov);
        size_t wanted = iov[0].iov_len + (count == 2 ? iov[1].iov_len : 0);
        size_t first = iov[0].iov_len;
        uint64_t before = c->stats.frames_in;
        ssize_t n = receive_some(c, iov, count);
        uint64_t spent;

        if (n < 0) {
            receive_failed(c, errno);
            return;
        }
        if (n == 0) {
            peer_has_ended(c);
            return;
        }
        reader_advance(&c->reader, first, (size_t)n);
        count_received(c, (uint64_t)n);
        parse_staged(c);
        maybe_send_release(c);
        spent = (size_t)n + (c->stats.frames_in - before) * FRAME_COST;
        if (!conn_pool_receives(c) && c->transport.has_unread) {
            /* The loop does not see these bytes, which are few. */
            budget -= ps_min_u64(spent, budget);
            continue;
        }
        /* A short read mostly means that the socket is empty. A Unix socket
         * also stops at a descriptor. */
        if (((size_t)n < wanted && is_plain) || spent >= budget) {
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
    if (!conn_is_paused(c) || c->state != CONN_OPEN) {
        return;
    }
    if (!ask_payload_place(c, c->reader.msg) || c->state != CONN_OPEN) {
        return;
    }
    reader_resume(&c->reader);
    consume_payload(c);
    parse_staged(c);
    maybe_send_release(c);
    if (!conn_pool_receives(c) && c->transport.has_unread) {
        conn_readable(c);
    }
    conn_update_poll(c);
}

void ps_conn_peer_ended(struct ps_conn *c)
{
    c->peer_ended = true;
    /* The ended process wrote no more than the socket holds; later bytes come
     * from another process. */
    for (int i = 0; i < PEER_ENDED_READS && conn_is_alive(c) &&
                    !conn_is_paused(c) && !conn_pool_receives(c);
         i++) {
        conn_readable(c);
    }
    ps_conn_close(c, PS_E_CLOSED, "its process ended");
}
