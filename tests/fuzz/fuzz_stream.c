/* SPDX-License-Identifier: Apache-2.0 */
/* One connection, and a peer that sends frames of any messages, changed frames
 * and other bytes, in any pieces, before and behind its hello. The first byte
 * chooses the sides, the second one the transport: TCP, one that conceals the
 * bytes, a Unix socket, a same-host peer. The user of the connection welcomes,
 * refuses payloads, pauses, sends, finishes and closes. Frames have checksums
 * once both sides agree on them.
 *
 * A plain reader of all bytes at once finds the frames that the connection
 * delivered, with the same headers and payloads, and the same reason for its
 * end. Every frame that was sent is done once. */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "net/checksum.h"
#include "net/conn.h"
#include "net/loop.h"
#include "proto/msg_codec.h"
#include "proto/ps_samples.h"
#include "support/cipher_transport.h"

/* Bytes that the peer sends in one run, without the last frame. */
#define SENT_MAX    (256u * 1024u)
#define FRAMES_MAX  1024u
#define STEPS_MAX   300u
/* Longer payloads are refused. */
#define PLACE_MAX   (128u * 1024u)
#define HEADER_ROOM (512u * 1024u)
#define HOUR        PS_SECONDS(3600)

enum way { TCP, CIPHER, UNIX, SAME_HOST, WAYS };

/* The two sides of a connection. */
struct sides {
    enum ps_role self;
    uint32_t peer_roles; /* Bits 1 << role. */
    bool dialled;
};

#define ROLE(r) (1u << PS_ROLE_##r)

static const struct sides all_sides[] = {
    {PS_ROLE_AGENT, ROLE(WORKER), false},
    {PS_ROLE_SCHED, ROLE(SERVER) | ROLE(AGENT) | ROLE(CTL), false},
    {PS_ROLE_SERVER, ROLE(AGENT) | ROLE(SCHED), false},
    {PS_ROLE_AGENT, ROLE(SCHED), true},
    {PS_ROLE_AGENT, ROLE(SERVER), true},
    {PS_ROLE_SERVER, ROLE(SCHED), true},
    {PS_ROLE_SCHED, ROLE(CTL), false},
    {PS_ROLE_CTL, ROLE(SCHED), true},
};

/* A frame that was delivered. */
struct frame {
    uint8_t code;
    bool has_payload; /* Not refused. */
    uint64_t payload_len;
    uint64_t header; /* Hashes. */
    uint64_t payload;
};

struct run {
    struct fuzz_input in;
    const struct sides *sides;
    enum way way;
    struct ps_conn *conn;
    struct ps_loop *loop;
    int fd; /* Of the connection. */
    int peer;
    uint8_t *sent; /* All bytes of the peer. */
    size_t sent_len;
    struct frame frames[FRAMES_MAX];
    size_t frame_count;
    uint8_t *place; /* Of the payload that arrives. */
    uint8_t answer; /* To the next payloads. */
    bool has_paused;
    bool has_welcomed;
    bool has_checksums; /* Frames of the peer from now on. */
    bool interferes;    /* The user has ended the connection. */
    bool is_closed;
    int rc;
    unsigned pending; /* Frames of the user that are not done. */
};

static struct run run;

static uint64_t hash(const uint8_t *bytes, size_t len)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < len; i++) {
        h = (h ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return h;
}

/* Of the message as this side would send it. */
static uint64_t hash_msg(const struct ps_msg *msg)
{
    static uint8_t frame[HEADER_ROOM];
    size_t len;

    assert(ps_msg_encode(msg, PS_PROTOCOL, 0, frame, sizeof(frame), &len) == 0);
    return hash(frame, len);
}

/* The first sample of the message with this code; NULL: there is none. */
static const struct ps_msg *sample_of(unsigned code, size_t kind)
{
    for (size_t i = kind; i < ps_samples_count(); i += 3) {
        if ((unsigned)ps_sample(i)->code == code) {
            return ps_sample(i);
        }
    }
    return NULL;
}

/* True if frames behind this first one of the peer have checksums (rule F5). */
static bool agrees_on_checksums(const struct run *r, const struct ps_msg *msg)
{
    switch (msg->code) {
    case PS_MSG_WELCOME:
        return msg->welcome.checksums;
    case PS_MSG_HELLO:
        return r->has_welcomed && msg->hello.checksums &&
               msg->hello.protocol >= 2 && msg->hello.role != PS_ROLE_CTL &&
               r->way != SAME_HOST;
    default:
        return false;
    }
}

/* Of the header behind a prefix. */
static uint64_t header_checksum(const uint8_t *prefix, const uint8_t *header,
                                size_t len)
{
    const struct iovec first = {(void *)prefix, PS_FRAME_PREFIX};
    const struct iovec second = {(void *)header, len};

    return ps_checksum(&second, 1, ps_checksum(&first, 1, 0));
}

static uint64_t payload_checksum(const uint8_t *bytes, size_t len)
{
    const struct iovec piece = {(void *)bytes, len};

    return len > 0 ? ps_checksum(&piece, 1, 0) : 0;
}

/* ------------------------------------------------------------------ the user */

static void on_done(void *ctx);

static void welcome(struct run *r)
{
    const struct ps_msg *msg = sample_of(PS_MSG_WELCOME, PS_SAMPLE_TYPICAL);

    r->has_welcomed = true;
    if (ps_conn_send(r->conn, &(struct ps_conn_frame){.msg = msg,
                                                      .pass_fd = -1,
                                                      .done = on_done,
                                                      .ctx = r}) == 0) {
        r->pending++;
    }
}

static int on_header(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                     uint64_t len, void **ret_dst)
{
    struct run *r = ctx;

    assert(len > 0 && len <= PS_PAYLOAD_MAX && r->place == NULL);
    assert(ps_conn_is_open(c) && ps_msg_name(msg->code)[0] != '\0');
    if (r->answer % 4 >= 2 && !r->has_paused) {
        r->has_paused = true;
        return PS_E_AGAIN;
    }
    r->has_paused = false;
    if (r->answer % 2 == 1 || len > PLACE_MAX) {
        return PS_E_FULL;
    }
    r->place = malloc(len);
    assert(r->place != NULL);
    *ret_dst = r->place;
    return 0;
}

static void on_frame(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                     uint64_t len)
{
    struct run *r = ctx;
    struct frame *f = &r->frames[r->frame_count++];
    struct ps_conn_stats stats;
    int fd;

    assert(r->frame_count <= FRAMES_MAX && ps_conn_is_handshake_done(c));
    ps_conn_stats(c, &stats);
    assert(stats.frames_in == r->frame_count);
    *f = (struct frame){.code = (uint8_t)msg->code,
                        .has_payload = r->place != NULL,
                        .payload_len = len,
                        .header = hash_msg(msg)};
    if (r->place != NULL) {
        f->payload = hash(r->place, len);
        free(r->place);
        r->place = NULL;
    }
    fd = ps_conn_pop_fd(c);
    assert(fd < 0);
    if (r->frame_count == 1) {
        if (msg->code == PS_MSG_HELLO && r->answer % 8 >= 4) {
            welcome(r);
        }
        r->has_checksums = agrees_on_checksums(r, msg);
    }
}

static void on_sent(void *ctx, struct ps_conn *c, uint64_t queued)
{
    (void)ctx;
    assert(queued == ps_conn_output(c).queued);
}

static void on_closed(void *ctx, struct ps_conn *c, int rc)
{
    struct run *r = ctx;

    assert(rc != 0 && ps_conn_reason(c)[0] != '\0');
    assert(r->pending == 0 && !r->is_closed);
    r->rc = rc;
    r->is_closed = true;
    free(r->place);
    r->place = NULL;
    ps_conn_free(c);
}

static void on_done(void *ctx)
{
    struct run *r = ctx;

    assert(r->pending > 0);
    r->pending--;
}

static const struct ps_conn_ops ops = {.header = on_header,
                                       .frame = on_frame,
                                       .sent = on_sent,
                                       .closed = on_closed};

/* ------------------------------------------------------------------ the peer */

static void discard_output(struct run *r)
{
    static uint8_t bytes[16384];

    while (recv(r->peer, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
}

/* Lets the connection read all that has arrived, unless it pauses. */
static void run_conn(struct run *r)
{
    while (!r->is_closed) {
        int unread = 0;

        discard_output(r);
        if ((ps_conn_is_open(r->conn) && ps_conn_is_paused(r->conn)) ||
            ioctl(r->fd, FIONREAD, &unread) != 0 || unread == 0) {
            return;
        }
        (void)ps_loop_step(r->loop);
    }
}

/* Sends bytes through the socket. */
static void put_bytes(struct run *r, const uint8_t *bytes, size_t len)
{
    while (len > 0 && !r->is_closed) {
        ssize_t n = send(r->peer, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno != EAGAIN) {
            return;
        }
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        }
        ps_conn_resume(r->conn);
        run_conn(r);
    }
}

static void send_bytes(struct run *r, const uint8_t *bytes, size_t len)
{
    if (len == 0) {
        return;
    }
    r->sent = realloc(r->sent, r->sent_len + len);
    assert(r->sent != NULL);
    memcpy(r->sent + r->sent_len, bytes, len);
    r->sent_len += len;
    if (r->way != CIPHER) {
        put_bytes(r, bytes, len);
        return;
    }
    uint8_t *concealed = malloc(len);

    assert(concealed != NULL);
    memcpy(concealed, bytes, len);
    cipher_apply(concealed, len);
    put_bytes(r, concealed, len);
    free(concealed);
}

static enum ps_role lowest_role(uint32_t roles)
{
    return (enum ps_role)__builtin_ctz(roles);
}

/* A role that the peer may have. */
static enum ps_role choose_role(struct run *r)
{
    uint32_t roles = r->sides->peer_roles;

    for (unsigned skip = fuzz_byte(&r->in) % 3; skip > 0; skip--) {
        roles &= roles - 1;
    }
    return lowest_role(roles != 0 ? roles : r->sides->peer_roles);
}

/* A sample of some message, mostly one that may come from the peer. A byte names
 * its code, or one below: an input keeps its meaning when messages are added. */
static const struct ps_msg *choose_sample(struct run *r, enum ps_role from,
                                          enum ps_role to)
{
    const uint8_t b = fuzz_byte(&r->in);
    const size_t kind = b < 8     ? PS_SAMPLE_GREATEST
                        : b < 128 ? PS_SAMPLE_TYPICAL
                                  : PS_SAMPLE_LEAST;
    const bool is_any = b % 16 == 15;

    for (unsigned code = fuzz_byte(&r->in); code > 0; code--) {
        const struct ps_msg *msg = sample_of(code, kind);

        if (msg != NULL && (is_any || ps_msg_allowed(code, from, to))) {
            return msg;
        }
    }
    return ps_sample(kind);
}

static size_t choose_payload(struct run *r, unsigned code)
{
    static const size_t lens[] = {0,    1,     4,     100,   1000,  4080, 4096,
                                  5000, 16367, 16383, 16384, 16385, 40000};
    const uint8_t b = fuzz_byte(&r->in);

    switch (ps_msg_payload(code)) {
    case PS_PAYLOAD_TENSOR:
        return lens[b % (sizeof(lens) / sizeof(lens[0]))];
    case PS_PAYLOAD_PLACEMENT:
        return b % 64u * PS_FIXED_PLACEMENT_PART_BYTES;
    case PS_PAYLOAD_NONE:
        break;
    }
    return 0;
}

/* Inserts the checksums of a frame with this payload. Returns its length. */
static size_t add_checksums(uint8_t *frame, size_t len, size_t payload_len)
{
    uint8_t *header = frame + PS_FRAME_PREFIX;
    const size_t header_len = len - PS_FRAME_PREFIX - payload_len;
    const struct ps_fixed_frame_checksums sums = {
        .header = header_checksum(frame, header, header_len),
        .payload = payload_checksum(header + header_len, payload_len)};

    memmove(header + PS_FIXED_FRAME_CHECKSUMS_BYTES, header,
            header_len + payload_len);
    ps_fixed_put_frame_checksums(header, &sums);
    return len + PS_FIXED_FRAME_CHECKSUMS_BYTES;
}

/* Sends a frame, which is changed if the next byte says so. */
static void send_frame(struct run *r, const struct ps_msg *msg)
{
    static uint8_t frame[HEADER_ROOM];
    size_t payload_len = choose_payload(r, (unsigned)msg->code);
    const uint8_t way = fuzz_byte(&r->in);
    size_t len;
    size_t at;

    assert(ps_msg_encode(msg, PS_PROTOCOL, payload_len, frame,
                         sizeof(frame) - payload_len -
                             PS_FIXED_FRAME_CHECKSUMS_BYTES,
                         &len) == 0);
    for (size_t i = 0; i < payload_len; i++) {
        frame[len + i] = (uint8_t)(r->sent_len + i * 7);
    }
    len += payload_len;
    if (r->has_checksums) {
        len = add_checksums(frame, len, payload_len);
    }
    switch (way) {
    case 240: /* Its prefix is another one. */
    case 241:
        frame[fuzz_byte(&r->in) % PS_FRAME_PREFIX] ^=
            (uint8_t)(fuzz_byte(&r->in) | 1);
        break;
    case 242: /* A byte behind it is. */
    case 243:
        at = (size_t)fuzz_byte(&r->in) << (way == 242 ? 0 : 6);
        frame[at % len] = fuzz_byte(&r->in);
        break;
    case 244: /* It is cut. */
        len = fuzz_byte(&r->in) % len;
        break;
    case 245: /* It comes twice. */
        send_bytes(r, frame, len);
        break;
    case 246: /* In two pieces. */
        at = fuzz_byte(&r->in) % len;
        send_bytes(r, frame, at);
        send_bytes(r, frame + at, len - at);
        return;
    case 247: /* In small ones. */
        for (at = 0; at < len && at < 64; at++) {
            send_bytes(r, frame + at, 1);
        }
        send_bytes(r, frame + at, len - at);
        return;
    default:
        break;
    }
    send_bytes(r, frame, len);
}

/* Sends a frame whose payload is pointed at: it lies in the memory of the peer,
 * which is this process, or it does not. */
static void send_reference(struct run *r, const struct ps_msg *msg)
{
    static uint8_t memory[PS_FRAME_REFS_MAX * 4096u];
    static uint8_t frame[HEADER_ROOM];
    const uint8_t b = fuzz_byte(&r->in);
    const uint8_t count = (uint8_t)(1u + b % PS_FRAME_REFS_MAX);
    const uint8_t way = fuzz_byte(&r->in);
    size_t len;

    if (ps_msg_payload((unsigned)msg->code) != PS_PAYLOAD_TENSOR) {
        return;
    }
    assert(ps_msg_encode(msg, PS_PROTOCOL, count * 4096u, frame, sizeof(frame),
                         &len) == 0);
    ps_frame_set_ref_count(frame, count);
    for (uint8_t i = 0; i < count; i++) {
        struct ps_fixed_shm_ref ref = {.place = (uintptr_t)memory + 4096u * i,
                                       .len = 4096};

        if (way >= 250 && i == way % count) {
            ref.place = way < 252 ? fuzz_byte(&r->in) : ref.place;
            ref.len += way == 252;
            ref.arena = way == 253;
        }
        ps_fixed_put_shm_ref(frame + len, &ref);
        len += PS_FIXED_SHM_REF_BYTES;
    }
    send_bytes(r, frame, len);
}

static void send_hello(struct run *r)
{
    const enum ps_role role = choose_role(r);
    unsigned code = PS_MSG_HELLO;

    if (r->sides->dialled) {
        code = PS_MSG_WELCOME;
    } else if (r->sides->peer_roles == ROLE(WORKER)) {
        code = PS_MSG_L_HELLO;
    }
    for (size_t i = PS_SAMPLE_TYPICAL; i < ps_samples_count(); i += 3) {
        struct ps_msg msg = *ps_sample(i);

        if ((unsigned)msg.code == code) {
            if (code == PS_MSG_HELLO) {
                msg.hello.role = (uint8_t)role;
            }
            send_frame(r, &msg);
        }
    }
}

/* ----------------------------------------------------------------- the model */

/* A plain reader of all bytes. */
struct model {
    const struct run *run;
    uint32_t roles; /* That the peer may have. */
    size_t at;
    size_t count;       /* Frames so far. */
    bool has_checksums; /* The frames behind them. */
};

static bool is_first_code(const struct sides *s, unsigned code)
{
    if (s->dialled) {
        return code == PS_MSG_WELCOME || code == PS_MSG_REJECT;
    }
    return code ==
           (s->peer_roles == ROLE(WORKER) ? PS_MSG_L_HELLO : PS_MSG_HELLO);
}

static int check_prefix(const struct model *m, const struct ps_frame_prefix *p)
{
    const struct sides *s = m->run->sides;
    const bool is_first = is_first_code(s, p->code);
    const bool is_shm = p->code == PS_MSG_SHM_CAPS ||
                        p->code == PS_MSG_SHM_MAP ||
                        p->code == PS_MSG_SHM_UNMAP ||
                        p->code == PS_MSG_SHM_RELEASE;
    int rc = PS_E_PERM;

    if (p->ref_count > 0) {
        return PS_E_PROTO;
    }
    if (m->count == 0 ? !is_first : is_first && p->code != PS_MSG_REJECT) {
        return PS_E_PERM;
    }
    if (is_shm || (p->code == PS_MSG_REJECT && !s->dialled)) {
        return PS_E_PERM;
    }
    for (uint32_t roles = m->roles; roles != 0 && rc != 0; roles &= roles - 1) {
        rc = ps_frame_check(p, lowest_role(roles), s->self);
    }
    return rc;
}

static void check_frame(const struct model *m, const struct frame *f,
                        const struct ps_msg *msg, uint64_t payload_len)
{
    assert(f->code == (uint8_t)msg->code && f->payload_len == payload_len);
    assert(f->header == hash_msg(msg));
    assert(!f->has_payload ||
           f->payload == hash(m->run->sent + m->at, payload_len));
}

/* Reads one frame. 0; PS_E_CLOSED: the bytes end in it. */
static int read_frame(struct model *m)
{
    static struct ps_decoder *decoder;
    const struct run *r = m->run;
    const uint8_t *at = r->sent + m->at;
    size_t left = r->sent_len - m->at;
    size_t head_len = PS_FRAME_PREFIX;
    struct ps_fixed_frame_checksums sums = {0};
    struct ps_frame_prefix p;
    struct ps_msg msg;
    int rc;

    if (decoder == NULL) {
        decoder = ps_decoder_new();
        assert(decoder != NULL);
    }
    if (left < PS_FRAME_PREFIX) {
        return PS_E_CLOSED;
    }
    rc = ps_frame_parse(at, &p);
    if (rc == 0) {
        rc = check_prefix(m, &p);
    }
    if (rc != 0) {
        return rc;
    }
    if (m->has_checksums) {
        head_len += PS_FIXED_FRAME_CHECKSUMS_BYTES;
    }
    if (left < head_len + p.header_len) {
        return PS_E_CLOSED;
    }
    if (m->has_checksums &&
        (!ps_fixed_get_frame_checksums(at + PS_FRAME_PREFIX, &sums) ||
         sums.header != header_checksum(at, at + head_len, p.header_len))) {
        return PS_E_IO;
    }
    rc = ps_msg_decode(decoder, p.code, at + head_len, p.header_len, &msg);
    if (rc != 0) {
        return rc;
    }
    if (m->count == 0 && msg.code == PS_MSG_HELLO) {
        m->roles &= msg.hello.role < 32 ? 1u << msg.hello.role : 0;
        if (m->roles == 0) {
            return PS_E_PERM;
        }
    }
    m->at += head_len + p.header_len;
    if (r->sent_len - m->at < p.payload_len) {
        return PS_E_CLOSED;
    }
    at = r->sent + m->at;
    const bool is_wrong = m->has_checksums && p.payload_len > 0 &&
                          sums.payload != payload_checksum(at, p.payload_len);

    if (m->count == r->frame_count) {
        return r->interferes ? PS_E_CLOSED : is_wrong ? PS_E_IO : PS_E_BUG;
    }
    assert(!is_wrong || !r->frames[m->count].has_payload);
    check_frame(m, &r->frames[m->count++], &msg, p.payload_len);
    m->at += p.payload_len;
    if (m->count == 1) {
        m->has_checksums = agrees_on_checksums(r, &msg);
    }
    return 0;
}

static void check_run(const struct run *r)
{
    struct model m = {.run = r, .roles = r->sides->peer_roles};
    int rc = 0;

    while (rc == 0) {
        rc = read_frame(&m);
    }
    assert(m.count == r->frame_count);
    assert(rc == r->rc || r->interferes);
}

/* ---------------------------------------------------------------------- runs */

static void open_conn(struct run *r, struct ps_loop *loop)
{
    int fd[2];

    *r = (struct run){.in = r->in, .loop = loop};
    r->sides = &all_sides[fuzz_byte(&r->in) %
                          (sizeof(all_sides) / sizeof(all_sides[0]))];
    r->way = (enum way)(fuzz_byte(&r->in) % WAYS);
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                      fd) == 0);
    r->sent = malloc(1);
    assert(r->sent != NULL);
    r->fd = fd[0];
    r->peer = fd[1];
    struct ps_conn_options opt = {.loop = loop,
                                  .fd = fd[0],
                                  .peer = "fuzz",
                                  .self = r->sides->self,
                                  .peer_roles = r->sides->peer_roles,
                                  .dialled = r->sides->dialled,
                                  .local = r->way == UNIX,
                                  .is_shm = r->way == SAME_HOST,
                                  /* The time of a run decides nothing. */
                                  .limits = {.handshake_timeout = HOUR,
                                             .header_timeout = HOUR,
                                             .stall_timeout = HOUR,
                                             .linger_timeout = HOUR},
                                  .ops = &ops,
                                  .ctx = r};

    if (r->way == CIPHER) {
        opt.transport = &cipher_transport;
        opt.transport_ctx = cipher_new();
    }
    assert(ps_conn_open(&opt, &r->conn) == 0);
}

/* A frame of the user, without payload. */
static void send_answer(struct run *r)
{
    const enum ps_role to = choose_role(r);
    const struct ps_msg *msg = choose_sample(r, r->sides->self, to);
    int rc;

    /* A welcome answers a hello, at once. */
    if (r->is_closed || !ps_conn_is_open(r->conn) ||
        msg->code == PS_MSG_WELCOME) {
        return;
    }
    rc = ps_conn_send(
        r->conn, &(struct ps_conn_frame){
                     .msg = msg, .pass_fd = -1, .done = on_done, .ctx = r});
    if (rc == 0) {
        r->pending++;
        (void)ps_conn_flush(r->conn);
    } else {
        r->interferes |= rc == PS_E_FULL;
    }
}

static void take_user_step(struct run *r, uint8_t b)
{
    if (r->is_closed) {
        return;
    }
    switch (b) {
    case 0:
        ps_conn_finish(r->conn);
        r->interferes = true;
        break;
    case 1:
        ps_conn_close(r->conn, PS_E_CANCELED, "by its user");
        r->interferes = true;
        break;
    case 2:
        r->interferes = true;
        ps_conn_peer_ended(r->conn);
        break;
    default:
        ps_conn_resume(r->conn);
        break;
    }
}

static void take_step(struct run *r)
{
    const uint8_t b = fuzz_byte(&r->in);
    const uint8_t *bytes;
    size_t len;

    switch (b % 16) {
    case 0:
    case 1:
        send_hello(r);
        break;
    case 2:
        bytes = fuzz_bytes(&r->in, fuzz_byte(&r->in), &len);
        send_bytes(r, bytes, len);
        break;
    case 3:
        r->answer = fuzz_byte(&r->in);
        break;
    case 5:
        send_answer(r);
        break;
    case 6:
        take_user_step(r, fuzz_byte(&r->in) % 64);
        break;
    case 7:
    case 8:
        if (r->way == SAME_HOST) {
            send_reference(r, choose_sample(r, choose_role(r), r->sides->self));
            break;
        }
        __attribute__((fallthrough));
    default:
        send_frame(r, choose_sample(r, choose_role(r), r->sides->self));
        break;
    }
    run_conn(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ps_loop *loop;
    struct run *r = &run;
    unsigned steps = 0;

    if (loop == NULL) {
        assert(ps_loop_new(&loop) == 0);
    }
    r->in = (struct fuzz_input){data, size, 0};
    open_conn(r, loop);
    while (r->in.at < r->in.size && !r->is_closed && steps++ < STEPS_MAX &&
           r->sent_len < SENT_MAX && r->frame_count < FRAMES_MAX / 2) {
        take_step(r);
    }
    shutdown(r->peer, SHUT_WR);
    while (!r->is_closed) {
        ps_conn_resume(r->conn);
        discard_output(r);
        assert(r->is_closed || ps_loop_step(loop) || r->is_closed);
    }
    /* A same-host peer's references are not in the stream. */
    if (r->way != SAME_HOST) {
        check_run(r);
    }
    close(r->peer);
    free(r->sent);
    return 0;
}
