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
#include "net/checksum.h"
#include "proto/msg_codec.h"
#include "proto/ps_fixed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Version of the protocol since which frames may have checksums. */
#define CHECKSUMS_SINCE  2u
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
    uint8_t *more = ps_alloc(STAGING_MAX);

    memcpy(more, r->staging + r->staging_from, r->staged);
    ps_free(r->staging);
    r->staging = more;
    r->staging_cap = STAGING_MAX;
    r->staging_from = 0;
}

/* Bytes to read ahead into staging, which begins with those not parsed. */
static uint32_t read_ahead_bytes(const struct ps_frame_reader *r)
{
    uint32_t space = r->staging_cap - r->staged;

    if (r->phase == PS_FRAME_HEAD && r->staged >= PS_FRAME_PREFIX) {
        /* The prefix is parsed: read the rest of the header, and small payloads
         * with it. */
        uint32_t missing = PS_FRAME_PREFIX + r->head_len - r->staged;

        return (uint32_t)ps_min_u64(r->is_large ? missing : space, space);
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
        memmove(r->staging, r->staging + r->staging_from, r->staged);
        r->staging_from = 0;
    }
    if (r->phase == PS_FRAME_LONG_HEADER) {
        iov[n++] = (struct iovec){r->header + r->header_got,
                                  r->head_len - r->header_got};
    } else if (r->phase == PS_FRAME_PAYLOAD && r->dst != NULL) {
        ahead = r->payload_left <= most;
        iov[n++] = (struct iovec){r->dst, ps_min_u64(r->payload_left, most)};
    } else if (r->phase == PS_FRAME_PAYLOAD) {
        ahead = r->payload_left <= PS_LOOP_SCRATCH;
        iov[n++] = (struct iovec){scratch,
                                  ps_min_u64(r->payload_left, PS_LOOP_SCRATCH)};
    }
    if (ahead) {
        iov[n++] = (struct iovec){r->staging + r->staged, read_ahead_bytes(r)};
    }
    return n;
}

/* Counts `n` bytes that were read, of which up to `first` belong to the first
 * place. */
static void bytes_read(struct ps_conn *c, size_t first, size_t n)
{
    struct ps_frame_reader *r = &c->reader;

    first = r->phase != PS_FRAME_HEAD ? ps_min_u64(n, first) : 0;
    if (r->phase == PS_FRAME_LONG_HEADER) {
        r->header_got += (uint32_t)first;
    } else if (r->phase == PS_FRAME_PAYLOAD) {
        r->payload_left -= first;
        r->dst = r->dst != NULL ? r->dst + first : NULL;
    }
    r->staged += (uint32_t)(n - first);
    c->transport.bytes_read += n;
    c->stats.bytes_in += n;
    if (c->tcp.tunes_rcvbuf) {
        conn_tcp_received(&c->tcp, n);
    }
}

/* Takes `n` bytes out of staging. */
static void unstage(struct ps_frame_reader *r, uint32_t n)
{
    r->staging_from += n;
    r->staged -= n;
}

/* ------------------------------------------------------------------- checks */

static void close_malformed(struct ps_conn *c, int rc, const char *what)
{
    char text[128];

    snprintf(text, sizeof(text), "%s: %s", what, ps_strerror(rc));
    ps_conn_close(c, rc, text);
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
    /* Workers have a handshake of their own. */
    const unsigned hello = c->dialled ? PS_MSG_WELCOME
                           : c->peer_roles == 1u << PS_ROLE_WORKER
                               ? PS_MSG_L_HELLO
                               : PS_MSG_HELLO;
    const bool reject = prefix->code == PS_MSG_REJECT;
    int rc = PS_E_PERM;

    /* No frame before the handshake, and only one handshake. The dialling side
     * may be rejected, later too. */
    if (reject ? !c->dialled
               : c->is_handshake_done == (prefix->code == hello)) {
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
    if (c->dialled || msg->code != PS_MSG_HELLO) {
        return true;
    }
    uint32_t role = msg->hello.role < 32 ? 1u << msg->hello.role : 0;

    if ((c->peer_roles & role) == 0) {
        ps_conn_close(c, PS_E_PERM, "handshake from a role that may not dial");
        return false;
    }
    c->peer_roles = role;
    if (c->self == PS_ROLE_SERVER && role == 1u << PS_ROLE_SERVER) {
        conn_tcp_set_urgent(&c->tcp);
    }
    return true;
}

/* ----------------------------------------------------------------- delivery */

/* Closes if the bytes of the oldest descriptor that is left are all parsed: no
 * message has claimed it. */
static void check_stray_fds(struct ps_conn *c)
{
    const struct ps_transport *t = &c->transport;

    if (c->state == CONN_OPEN &&
        t->fds[0].end <= t->bytes_read - c->reader.staged) {
        ps_conn_close(c, PS_E_PROTO,
                      "file descriptor with a message that carries none");
    }
}

/* Closes a connection whose bytes were changed on the way. */
static void close_corrupt(struct ps_conn *c, const char *what)
{
    char text[128];

    c->stats.corrupt++;
    snprintf(text, sizeof(text),
             "checksum of the %s of %s is wrong: its bytes were changed on the "
             "way",
             what, ps_msg_name(c->reader.prefix.code));
    ps_conn_close(c, PS_E_IO, text);
}

/* Checksums as hello and welcome agree on them (rule F5). A tool, and a peer of
 * an older version, get none. */
static void agree_on_checksums(struct ps_conn *c, const struct ps_msg *msg)
{
    if (msg->code == PS_MSG_WELCOME) {
        c->checksums = msg->welcome.checksums ? CONN_CHECKSUMS_ON
                                              : CONN_CHECKSUMS_NONE;
    } else if (msg->code == PS_MSG_HELLO) {
        const bool can = msg->hello.protocol >= CHECKSUMS_SINCE &&
                         msg->hello.role != PS_ROLE_CTL && c->shm == NULL;

        if (!can) {
            c->checksums = CONN_CHECKSUMS_NONE;
        } else if (msg->hello.checksums) {
            c->checksums = CONN_CHECKSUMS_ASKED;
        }
    }
}

/* Passes a complete frame to the user. */
static void deliver_frame(struct ps_conn *c, const struct ps_msg *msg)
{
    struct ps_frame_reader *r = &c->reader;
    const bool first = !c->is_handshake_done;

    set_phase(r, PS_FRAME_DELIVERED);
    r->dst = NULL;
    if (r->is_large) {
        r->small_frames = 0;
    } else if (r->small_frames < SMALL_FRAMES_MAX) {
        r->small_frames++;
    }
    c->timers.due[CONN_DUE_PAYLOAD] = PS_TIME_NEVER;
    c->stats.frames_in++;
    if (first) {
        c->is_handshake_done = true;
        c->timers.due[CONN_DUE_HANDSHAKE] = PS_TIME_NEVER;
        reader_grow(r);
        agree_on_checksums(c, msg);
    }
    c->ops->frame(c->ctx, c, msg, r->prefix.payload_len);
    set_phase(r, PS_FRAME_HEAD);
    if (c->transport.fd_count > 0) {
        check_stray_fds(c);
    }
    if (first && c->shm != NULL && c->dialled && c->state == CONN_OPEN) {
        conn_shm_send_caps(c->shm);
        (void)ps_conn_flush(c);
    }
}

/* Consumes the part of the payload that is available: references or staged
 * bytes. */
static void consume_payload(struct ps_conn *c)
{
    struct ps_frame_reader *r = &c->reader;
    const uint64_t len = r->prefix.ref_count > 0
                             ? r->payload_left
                             : ps_min_u64(r->staged, r->payload_left);

    if (r->prefix.ref_count > 0) {
        int rc = conn_shm_read(c->shm, c->transport.fd, r->prefix.ref_count,
                               r->dst, len);

        if (rc != 0) {
            ps_conn_close(c, rc,
                          rc == PS_E_CLOSED ? "closed by peer within a frame"
                                            : "payload is not in the peer's "
                                              "memory");
            return;
        }
        c->stats.by_reference += r->dst != NULL ? len : 0;
    } else {
        if (r->dst != NULL && len > 0) {
            memcpy(r->dst, r->staging + r->staging_from, len);
            r->dst += len;
            c->stats.copied += len;
        }
        unstage(r, (uint32_t)len);
    }
    r->payload_left -= len;
}

/* All bytes of a payload have come to their place, if they have one. */
static void complete_payload(struct ps_conn *c, const struct ps_msg *msg)
{
    const struct ps_frame_reader *r = &c->reader;
    const size_t len = r->prefix.payload_len;
    const struct iovec payload = {r->dst != NULL ? r->dst - len : NULL, len};

    if (r->has_checksums && r->dst != NULL &&
        ps_checksum(&payload, 1, 0) != r->checksums.payload) {
        close_corrupt(c, "payload");
    } else {
        deliver_frame(c, msg);
    }
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
    struct ps_frame_reader *r = &c->reader;

    set_phase(r, PS_FRAME_PAYLOAD);
    r->payload_left = r->prefix.payload_len;
    if (!ask_payload_place(c, msg)) {
        c->timers.due[CONN_DUE_PAYLOAD] = PS_TIME_NEVER;
        set_phase(r, PS_FRAME_PAUSED);
        r->msg = ps_msg_dup(msg);
        conn_update_poll(c);
        return;
    }
    if (c->state == CONN_OPEN) {
        consume_payload(c);
    }
    if (c->state != CONN_OPEN) {
        return;
    }
    if (r->payload_left == 0) {
        complete_payload(c, msg);
    } else {
        r->msg = ps_msg_dup(msg);
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
    if (c->transport.fd_count > 0) {
        check_stray_fds(c);
    }
}

/* True if a header is that of its checksum, which is read. */
static bool header_is_intact(struct ps_conn *c, const uint8_t *checksums,
                             const uint8_t *header)
{
    struct ps_frame_reader *r = &c->reader;

    return ps_fixed_get_frame_checksums(checksums, &r->checksums) &&
           ps_frame_header_checksum(&r->prefix, header, r->prefix.header_len) ==
               r->checksums.header;
}

/* All bytes between prefix and payload have come. */
static void header_done(struct ps_conn *c, const uint8_t *header)
{
    const struct ps_frame_prefix *prefix = &c->reader.prefix;
    struct ps_msg msg;
    int rc;

    if (c->reader.has_checksums) {
        const uint8_t *checksums = header;

        header += PS_FIXED_FRAME_CHECKSUMS_BYTES;
        if (!header_is_intact(c, checksums, header)) {
            close_corrupt(c, "header");
            return;
        }
    }
    do {
        rc = ps_msg_decode(c->shared->decoder, prefix->code, header,
                           prefix->header_len, &msg);
    } while (rc == PS_E_NOMEM && ps_alloc_use_reserve());

    c->timers.due[CONN_DUE_HEADER] = PS_TIME_NEVER;
    if (rc != 0) {
        char what[64];

        snprintf(what, sizeof(what), "header of %s", ps_msg_name(prefix->code));
        close_malformed(c, rc, what);
        return;
    }
    if (!c->is_handshake_done && !fix_peer_role(c, &msg)) {
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

/* Parses and checks the prefix, which is staged. False: the connection is
 * closing. */
static bool parse_prefix(struct ps_conn *c)
{
    struct ps_frame_reader *r = &c->reader;
    const struct ps_frame_prefix *prefix = &r->prefix;
    int rc = ps_frame_parse(r->staging + r->staging_from, &r->prefix);

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
        return false;
    }
    r->has_checksums = c->checksums == CONN_CHECKSUMS_ON;
    r->head_len = (r->has_checksums ? PS_FIXED_FRAME_CHECKSUMS_BYTES : 0) +
                  prefix->header_len +
                  prefix->ref_count * PS_FIXED_SHM_REF_BYTES;
    r->is_large = prefix->payload_len >= PS_FRAME_LARGE &&
                  prefix->ref_count == 0;
    return true;
}

/* Continues a header too long for staging. False: more bytes are needed. */
static bool parse_long_header(struct ps_conn *c)
{
    struct ps_frame_reader *r = &c->reader;
    uint32_t n = (uint32_t)ps_min_u64(r->staged, r->head_len - r->header_got);

    memcpy(r->header + r->header_got, r->staging + r->staging_from, n);
    r->header_got += n;
    unstage(r, n);
    if (r->header_got < r->head_len) {
        return false;
    }
    set_phase(r, PS_FRAME_HEAD);
    header_done(c, r->header);
    ps_free(r->header);
    r->header = NULL;
    return true;
}

/* Parses one frame head, whose prefix is staged. False: more bytes are needed,
 * or the connection is closing. */
static bool parse_head(struct ps_conn *c)
{
    struct ps_frame_reader *r = &c->reader;

    if (!parse_prefix(c)) {
        return false;
    }
    const uint8_t *header = r->staging + r->staging_from + PS_FRAME_PREFIX;
    const uint32_t need = PS_FRAME_PREFIX + r->head_len;

    if (r->staged >= need) {
        unstage(r, need);
        header_done(c, header);
        return true;
    }
    if (need > r->staging_cap) {
        unstage(r, PS_FRAME_PREFIX);
        r->header = ps_alloc(r->head_len);
        r->header_got = 0;
        set_phase(r, PS_FRAME_LONG_HEADER);
        return parse_long_header(c);
    }
    return false;
}

/* Continues a payload. False: more bytes are needed. */
static bool parse_payload(struct ps_conn *c)
{
    struct ps_frame_reader *r = &c->reader;

    if (r->payload_left > 0) {
        consume_payload(c);
    }
    if (r->payload_left > 0) {
        return false;
    }
    struct ps_msg *msg = r->msg;

    r->msg = NULL;
    complete_payload(c, msg);
    ps_msg_free(msg);
    return true;
}

/* --------------------------------------------------------------- the socket */

static void peer_has_ended(struct ps_conn *c)
{
    ps_conn_close(c, PS_E_CLOSED,
                  c->reader.phase != PS_FRAME_HEAD || c->reader.staged > 0
                      ? "closed by peer within a frame"
                      : "closed by peer");
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
    c->pool.receives = true;
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
    if (!c->pool.receives && c->reader.dst != NULL &&
        ps_io_pool_wants(c->io->pool, c->reader.payload_left)) {
        submit_receive(c, c->reader.payload_left);
    }
}

/* Reports released payloads to a same-host peer, which can then free them. */
static void send_release(struct ps_conn *c)
{
    conn_shm_send_release(c->shm);
    (void)ps_conn_flush_and_report(c);
}

/* Parses all staged bytes and delivers complete frames. */
static void parse_staged(struct ps_conn *c)
{
    struct ps_frame_reader *r = &c->reader;
    const ps_time *due = c->timers.due;
    bool more = true;

    while (more && c->state == CONN_OPEN && r->phase != PS_FRAME_PAUSED) {
        if (c->shm != NULL &&
            c->shm->to_release_bytes >= CONN_SHM_RELEASE_BYTES) {
            send_release(c);
        } else if (r->phase == PS_FRAME_PAYLOAD) {
            more = parse_payload(c);
        } else if (r->phase == PS_FRAME_LONG_HEADER) {
            more = parse_long_header(c);
        } else {
            more = r->staged >= PS_FRAME_PREFIX && parse_head(c);
        }
    }
    if (c->state != CONN_OPEN) {
        return;
    }
    if (r->phase == PS_FRAME_PAYLOAD) {
        conn_set_due(c, CONN_DUE_PAYLOAD,
                     ps_loop_now(c->loop) + c->limits.stall_timeout);
        if (c->io != NULL) {
            submit_large_payload(c);
        }
    } else if (due[CONN_DUE_HEADER] == PS_TIME_NEVER &&
               (r->phase == PS_FRAME_LONG_HEADER ||
                (r->phase == PS_FRAME_HEAD && r->staged > 0))) {
        conn_set_due(c, CONN_DUE_HEADER,
                     ps_loop_now(c->loop) + c->limits.header_timeout);
    }
    if (c->shm != NULL && c->shm->to_release > 0) {
        send_release(c);
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

    c->pool.receives = false;
    c->stats.reads += m->syscalls;
    c->stats.moved_by_pool += m->bytes_done;
    bytes_read(c, io->in_first, m->bytes_done);
    if (c->state >= CONN_CLOSING) {
        conn_maybe_closed(c);
        return; /* c may be freed. */
    }
    if (c->state == CONN_FINISHING) {
        if (m->peer_ended || (m->error != 0 && m->error != ECANCELED)) {
            ps_conn_close(c, PS_E_CLOSED, "closed by us");
        }
    } else {
        if (m->peer_ended) {
            peer_has_ended(c);
        } else if (m->error != 0) {
            receive_failed(c, m->error);
        } else {
            parse_staged(c);
        }
    }
    if (!c->pool.receives && c->transport.has_unread) {
        conn_readable(c); /* The loop does not see these bytes. */
    }
    conn_update_poll(c);
}

/* Reads once, as recvmsg(); *ret_full: there was no place for more. */
static ssize_t receive_some(struct ps_conn *c, bool *ret_full)
{
    struct iovec iov[2] = {{0}};
    const int count = reader_places(&c->reader, c->transport.ops->read_turn,
                                    c->shared->scratch, iov);
    const size_t first = iov[0].iov_len;
    const size_t wanted = first + iov[1].iov_len;
    const ps_time begun = c->io != NULL ? ps_loop_now(c->loop) : 0;
    const ssize_t n = c->transport.ops->read(&c->transport, iov, count);

    c->stats.reads++;
    if (n <= 0) {
        return n;
    }
    if (c->io != NULL) {
        ps_io_pool_add_spent(c->io->pool, ps_loop_now(c->loop) - begun);
    }
    bytes_read(c, first, (size_t)n);
    *ret_full = (size_t)n == wanted;
    return n;
}

/* After ps_conn_finish(): discards input until its end. */
static void discard_payload(struct ps_conn *c)
{
    for (;;) {
        ssize_t n = recv(c->transport.fd, c->shared->scratch, PS_LOOP_SCRATCH,
                         0);

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
    const bool is_plain = c->transport.ops->is_plain;
    size_t budget = c->transport.ops->read_turn;

    while (c->state == CONN_OPEN && c->reader.phase != PS_FRAME_PAUSED &&
           !c->pool.receives) {
        if (c->pool.sends && c->transport.ops->is_exclusive) {
            submit_receive(c, 1);
            return;
        }
        uint64_t before = c->stats.frames_in;
        bool full;
        ssize_t n = receive_some(c, &full);

        if (n < 0) {
            receive_failed(c, errno);
            return;
        }
        if (n == 0) {
            peer_has_ended(c);
            return;
        }
        parse_staged(c);

        uint64_t spent = (size_t)n + (c->stats.frames_in - before) * FRAME_COST;

        const bool is_over = spent >= budget;
        const bool has_unread = !c->pool.receives && c->transport.has_unread;

        if (is_over && has_unread && c->state < CONN_CLOSING) {
            /* The others first: the loop does not see these bytes. */
            conn_set_due(c, CONN_DUE_READ, ps_loop_now(c->loop));
        }
        /* A short read mostly means that the socket is empty. A Unix socket
         * also stops at a descriptor. */
        if (is_over || (!full && is_plain && !has_unread)) {
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
    if (c->reader.phase != PS_FRAME_PAUSED || c->state != CONN_OPEN) {
        return;
    }
    if (!ask_payload_place(c, c->reader.msg) || c->state != CONN_OPEN) {
        return;
    }
    set_phase(&c->reader, PS_FRAME_PAYLOAD);
    consume_payload(c);
    parse_staged(c);
    if (!c->pool.receives && c->transport.has_unread) {
        conn_readable(c);
    }
    conn_update_poll(c);
}

void ps_conn_peer_ended(struct ps_conn *c)
{
    c->peer_ended = true;
    /* The ended process wrote no more than the socket holds; later bytes come
     * from another process. */
    for (int i = 0; i < PEER_ENDED_READS && c->state < CONN_CLOSING &&
                    c->reader.phase != PS_FRAME_PAUSED && !c->pool.receives;
         i++) {
        conn_readable(c);
    }
    ps_conn_close(c, PS_E_CLOSED, "its process ended");
}
