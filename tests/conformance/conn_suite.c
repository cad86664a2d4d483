/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of a connection over each kind of socket: `conn_suite tcp` and
 * `conn_suite unix`, `conn_suite shm` with payloads by reference,
 * `conn_suite threads` with I/O threads that move large payloads over TCP,
 * `conn_suite checksums` and `conn_suite checksums_threads` with checksums in the
 * frames, `conn_suite cipher` with a transport that conceals the bytes, and
 * `conn_suite tls` and `conn_suite tls_threads` with TLS. The other end is a plain
 * descriptor in the hands of the test, or a second connection. */
#include "base/alloc.h"
#include "base/pool.h"
#include "crypto/tls.h"
#include "net/arena.h"
#include "net/conn.h"
#include "net/io_pool.h"
#include "net/loop.h"
#include "net/shm_peer.h"
#include "net/socket.h"
#include "net/tls.h"
#include "proto/frame.h"
#include "proto/msg_codec.h"
#include "support/certs.h"
#include "support/cipher_transport.h"
#include "support/run_until.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1024u * 1024u)
static bool over_tcp;
static bool by_shm;
static bool ciphered;
static bool by_threads;
static bool by_checksums;
static bool by_tls;
static bool by_ktls; /* Beside by_tls. */
static char certs_dir[] = "/tmp/pskv-conn-XXXXXX";
/* Options for the next world's I/O threads; .count_max 0: two threads. */
static struct ps_io_pool_options wanted;

static void tcp_pair(int fd[2])
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    uint16_t port;
    int listener;

    assert_int_equal(ps_listen_tcp("127.0.0.1", 0, 1, &listener, &port), 0);
    sa.sin_port = htons(port);
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd[1], (struct sockaddr *)&sa, sizeof(sa)), 0);
    /* The peer's acknowledgement may arrive on another processor. */
    assert_int_equal(
        poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 5000), 1);
    fd[0] = accept(listener, NULL, NULL);
    assert_true(fd[0] >= 0);
    close(listener);
}

static void make_pair(int fd[2])
{
    if (over_tcp) {
        tcp_pair(fd);
    } else {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    }
}

/* One end, with a record of its callbacks. */
struct end {
    struct ps_conn *conn;
    uint8_t *payload; /* Place of payloads; NULL: they are discarded. */
    size_t payload_cap;
    int header_rc;
    unsigned asked;
    unsigned frames;
    uint64_t acks;       /* Sum of the acknowledgements of all frames. */
    unsigned before_ack; /* Frames that came before the last ACK. */
    unsigned last_code;
    uint64_t last_len;
    unsigned done;
    bool closed;
    int rc;
    uint64_t corrupt; /* Of the closed connection. */
    char reason[160];
    bool close_in_frame;
};

struct world {
    struct ps_loop *loop;
    struct end a;
    struct end b;
    int fd; /* The raw peer's end; -1: b is a connection too. */
    struct ps_tls_session *sessions[2]; /* TLS, after the handshake. */
    struct ps_tls_session *raw; /* That of the raw peer, which owns it. */
    struct ps_arenas *arenas;
    struct ps_io_pool *io_pool;
};

static void make_io_pool(struct world *w)
{
    struct ps_io_pool_options opt = wanted;

    if (!by_threads) {
        return;
    }
    if (opt.threads_max == 0) {
        opt.threads = opt.threads_max = 2;
    }
    opt.loop = w->loop;
    opt.task_bytes_min = 512;
    assert_int_equal(ps_io_pool_new(&opt, &w->io_pool), 0);
}

static int on_header(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                     uint64_t len, void **ret_dst)
{
    struct end *e = ctx;

    (void)c;
    (void)msg;
    e->asked++;
    if (e->header_rc != 0) {
        return e->header_rc;
    }
    if (e->payload == NULL) {
        return PS_E_NOKEY;
    }
    assert_true(len <= e->payload_cap);
    *ret_dst = e->payload;
    return 0;
}

static void on_frame(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                     uint64_t len)
{
    struct end *e = ctx;

    e->before_ack = msg->code == PS_MSG_ACK ? e->frames : e->before_ack;
    e->frames++;
    e->acks += msg->ack;
    e->last_code = msg->code;
    e->last_len = len;
    if (e->close_in_frame) {
        ps_conn_close(c, PS_E_CANCELED, "the test said so");
    }
}

static void on_sent(void *ctx, struct ps_conn *c, uint64_t queued)
{
    (void)ctx;
    assert_int_equal(queued, ps_conn_output(c).queued);
}

static void on_closed(void *ctx, struct ps_conn *c, int rc)
{
    struct end *e = ctx;

    struct ps_conn_stats s;

    assert_false(e->closed);
    e->closed = true;
    e->rc = rc;
    ps_conn_stats(c, &s);
    e->corrupt = s.corrupt;
    snprintf(e->reason, sizeof(e->reason), "%s", ps_conn_reason(c));
    ps_conn_free(c);
    e->conn = NULL;
}

static const struct ps_conn_ops ops = {
    .header = on_header,
    .frame = on_frame,
    .sent = on_sent,
    .closed = on_closed,
};

static void on_done(void *ctx)
{
    struct end *e = ctx;

    e->done++;
}

/* A daemon's side of TLS. */
static struct ps_tls_session *new_session(int fd, bool dialled)
{
    const char *name = dialled ? "agent" : "server";
    char paths[3][64];
    char text[256];
    struct ps_tls_context *c = NULL;
    struct ps_str why;

    snprintf(paths[0], sizeof(paths[0]), "%s/ca.crt", certs_dir);
    snprintf(paths[1], sizeof(paths[1]), "%s/%s.crt", certs_dir, name);
    snprintf(paths[2], sizeof(paths[2]), "%s/%s.key", certs_dir, name);
    ps_str_init(&why, text, sizeof(text));
    assert_int_equal(
        ps_tls_context_new(&(struct ps_tls_source){.ca = paths[0],
                                                   .certificate = paths[1],
                                                   .key = paths[2],
                                                   .by_kernel = by_ktls},
                           &c, &why),
        0);
    struct ps_tls_session *s = ps_tls_session_new(c, fd, dialled);

    ps_tls_context_unref(c);
    return s;
}

/* Makes two sessions, and their handshake. */
static void make_sessions(struct world *w, const int fd[2])
{
    int rc[2] = {PS_E_AGAIN, PS_E_AGAIN};
    char text[256];
    struct ps_str why;

    if (!by_tls) {
        return;
    }
    ps_str_init(&why, text, sizeof(text));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(fcntl(fd[i], F_SETFL, O_NONBLOCK), 0);
        w->sessions[i] = new_session(fd[i], i == 1);
    }
    while (rc[0] != 0 || rc[1] != 0) {
        for (unsigned i = 0; i < 2; i++) {
            rc[i] = ps_tls_session_handshake(w->sessions[i], &why);
            assert_true(rc[i] == 0 || rc[i] == PS_E_AGAIN);
        }
    }
    assert_int_equal(by_ktls && ps_transport_kernel_has_tls(),
                     ps_tls_session_is_sealed_by_kernel(w->sessions[0]));
}

/* Bit of all that the server's end reads which the network changes. */
#define NO_BIT UINT64_MAX
static uint64_t changed_bit = NO_BIT;

static ssize_t read_changed(struct ps_transport *t, struct iovec *iov,
                            int count)
{
    const ssize_t n = ps_transport_tcp.read(t, iov, count);
    uint64_t at = changed_bit / 8 - t->bytes_read;

    if (n <= 0 || changed_bit / 8 < t->bytes_read || at >= (uint64_t)n) {
        return n;
    }
    while (at >= iov->iov_len) {
        at -= iov->iov_len;
        iov++;
    }
    ((uint8_t *)iov->iov_base)[at] ^= (uint8_t)(1u << changed_bit % 8);
    return n;
}

static struct ps_transport_ops changing_transport;

static uint32_t receive_buffer; /* Of the connections that begin; 0: any. */

static void open_end(struct world *w, struct end *e, int fd, bool server,
                     struct ps_conn_limits limits)
{
    struct ps_conn_options opt = {
        .loop = w->loop,
        .fd = fd,
        .peer = "the other",
        .self = server ? PS_ROLE_SERVER : PS_ROLE_AGENT,
        .peer_roles = 1u << (server ? PS_ROLE_AGENT : PS_ROLE_SERVER),
        .dialled = !server,
        .is_shm = by_shm,
        .transport = by_tls                   ? &ps_transport_tls
                     : ciphered               ? &cipher_transport
                     : by_checksums && server ? &changing_transport
                                              : NULL,
        .transport_ctx = by_tls     ? (void *)w->sessions[!server]
                         : ciphered ? cipher_new()
                                    : NULL,
        .arenas = w->arenas,
        .io_pool = w->io_pool,
        .checksums = by_checksums ? PS_CONN_CHECKSUMS_WANTED
                                  : PS_CONN_CHECKSUMS_AUTO,
        .receive_buffer = receive_buffer,
        .limits = limits,
        .ops = &ops,
        .ctx = e,
    };

    assert_int_equal(ps_conn_open(&opt, &e->conn), 0);
}

/* A server's connection whose peer is a plain descriptor. */
static void begin_world(struct world *w, struct ps_conn_limits limits)
{
    int fd[2];

    memset(w, 0, sizeof(*w));
    assert_int_equal(ps_loop_new(&w->loop), 0);
    w->arenas = ps_arenas_new();
    make_io_pool(w);
    make_pair(fd);
    make_sessions(w, fd);
    open_end(w, &w->a, fd[0], true, limits);
    w->raw = w->sessions[1];
    w->fd = fd[1];
    assert_int_equal(fcntl(w->fd, F_SETFL, O_NONBLOCK), 0);
}

/* A server's and an agent's connection to each other. */
static void begin_both(struct world *w, struct ps_conn_limits limits)
{
    int fd[2];

    memset(w, 0, sizeof(*w));
    assert_int_equal(ps_loop_new(&w->loop), 0);
    w->arenas = ps_arenas_new();
    make_io_pool(w);
    make_pair(fd);
    make_sessions(w, fd);
    open_end(w, &w->a, fd[0], true, limits);
    open_end(w, &w->b, fd[1], false, limits);
    w->fd = -1;
}

static void end(struct world *w)
{
    struct end *ends[] = {&w->a, &w->b};

    for (int i = 0; i < 2; i++) {
        while (ends[i]->conn != NULL) {
            ps_conn_close(ends[i]->conn, PS_E_CANCELED, "end of test");
            ps_loop_step(w->loop);
        }
        free(ends[i]->payload);
    }
    if (w->fd >= 0) {
        close(w->fd);
    }
    ps_tls_session_free(w->raw);
    ps_io_pool_free(w->io_pool);
    ps_loop_free(w->loop);
    ps_arenas_free(w->arenas);
    assert_int_equal(ps_alloc_live(), 0);
}

static const struct ps_msg hello = {.code = PS_MSG_HELLO,
                                    .hello = {.protocol = PS_PROTOCOL,
                                              .protocol_least = 1,
                                              .role = PS_ROLE_AGENT,
                                              .name = "agent",
                                              .cluster = "test",
                                              .instance = 7}};

static const struct ps_msg welcome = {
    .code = PS_MSG_WELCOME,
    .welcome = {.protocol = 1, .name = "server", .instance = 8}};

static const struct ps_rec_part one_part = {
    .key = 1, .index = 0, .round = 1, .dtype = PS_DTYPE_FLOAT32, .count = 1};

static struct ps_msg push_msg(void)
{
    struct ps_msg m = {.code = PS_MSG_PUSH};

    m.push.gen = 1;
    m.push.parts = &one_part;
    m.push.parts_count = 1;
    m.push.weight = 1;
    return m;
}

static struct ps_msg value_msg(void)
{
    struct ps_msg m = {.code = PS_MSG_VALUE};

    m.value.parts = &one_part;
    m.value.parts_count = 1;
    return m;
}

static void keep_payload(struct end *e, size_t len)
{
    e->payload_cap = len;
    e->payload = calloc(1, len);
}

/* Appends a frame; returns the new length. */
static size_t append_frame(uint8_t *out, size_t at, size_t cap,
                           const struct ps_msg *msg, uint64_t payload_len)
{
    size_t len;

    assert_int_equal(
        ps_msg_encode(msg, PS_PROTOCOL, payload_len, out + at, cap - at, &len),
        0);
    assert_true(at + len + payload_len <= cap);
    for (uint64_t i = 0; i < payload_len; i++) {
        out[at + len + i] = (uint8_t)(i * 7 + 3);
    }
    return at + len + payload_len;
}

/* Changes bytes to those that the transport of the other end expects. */
static void conceal(uint8_t *bytes, size_t len)
{
    if (ciphered) {
        cipher_apply(bytes, len);
    }
}

/* Writes sealed bytes; false: some are left. */
static bool put_sealed(struct world *w)
{
    return ps_tls_session_write(w->raw, NULL, 0) == 0;
}

/* Writes some bytes of the raw peer; -1: none. */
static ssize_t put_some(struct world *w, const void *bytes, size_t len)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, len};

    if (by_tls) {
        return ps_tls_session_write(w->raw, &iov, 1);
    }
    uint8_t *copy = malloc(len);

    memcpy(copy, bytes, len);
    conceal(copy, len);
    ssize_t n = write(w->fd, copy, len);

    free(copy);
    return n;
}

static void send_bytes(struct world *w, const void *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = put_some(w, bytes, len);

        assert_true(n > 0);
        bytes = (const uint8_t *)bytes + n;
        len -= (size_t)n;
    }
}

static void handshake(struct world *w)
{
    uint8_t bytes[512];

    send_bytes(w, bytes, append_frame(bytes, 0, sizeof(bytes), &hello, 0));
    RUN_UNTIL(w, w->a.frames == 1 || w->a.closed);
    assert_int_equal(w->a.frames, 1);
    w->a.frames = 0;
}

static int send_slices(struct end *e, const struct ps_msg *msg,
                       const struct ps_slice *slices, uint32_t count)
{
    struct ps_conn_frame f = {.msg = msg,
                              .slices = slices,
                              .slice_count = count,
                              .pass_fd = -1,
                              .done = on_done,
                              .ctx = e};

    return ps_conn_send(e->conn, &f);
}

static int send_msg(struct end *e, const struct ps_msg *msg,
                    const struct ps_slice *slice)
{
    return send_slices(e, msg, slice, slice != NULL);
}

/* Three frames arrive the same for every cut in two. */
static void frames_arrive_for_every_cut(void **state)
{
    struct ps_msg push = push_msg();
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 5};
    uint8_t bytes[2048];
    size_t len = append_frame(bytes, 0, sizeof(bytes), &hello, 0);

    (void)state;
    len = append_frame(bytes, len, sizeof(bytes), &push, 64);
    len = append_frame(bytes, len, sizeof(bytes), &ack, 0);
    for (size_t cut = 1; cut < len; cut++) {
        struct world w;

        begin_world(&w, (struct ps_conn_limits){0});
        w.a.payload_cap = 64;
        w.a.payload = calloc(1, 64);
        send_bytes(&w, bytes, cut);
        struct ps_conn_stats s = {0};

        RUN_UNTIL(&w, (ps_conn_stats(w.a.conn, &s), s.bytes_in == cut));
        send_bytes(&w, bytes + cut, len - cut);
        RUN_UNTIL(&w, w.a.frames == 3 || w.a.closed);
        assert_false(w.a.closed);
        assert_int_equal(w.a.last_code, PS_MSG_ACK);
        assert_int_equal(w.a.acks, 5);
        for (unsigned i = 0; i < 64; i++) {
            assert_int_equal(w.a.payload[i], (uint8_t)(i * 7 + 3));
        }
        end(&w);
    }
}

static void frames_arrive_byte_by_byte(void **state)
{
    struct ps_msg push = push_msg();
    uint8_t bytes[2048];
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    w.a.payload_cap = 256;
    w.a.payload = calloc(1, 256);
    handshake(&w);
    size_t len = append_frame(bytes, 0, sizeof(bytes), &push, 256);

    for (size_t i = 0; i < len; i++) {
        struct ps_conn_stats before;
        struct ps_conn_stats s;

        ps_conn_stats(w.a.conn, &before);
        send_bytes(&w, bytes + i, 1);
        RUN_UNTIL(&w, (ps_conn_stats(w.a.conn, &s),
                       s.bytes_in == before.bytes_in + 1));
    }
    assert_int_equal(w.a.frames, 1);
    assert_memory_equal(w.a.payload, bytes + len - 256, 256);
    end(&w);
}

static void both_handshake(struct world *w)
{
    assert_int_equal(send_msg(&w->b, &hello, NULL), 0);
    ps_conn_flush(w->b.conn);
    RUN_UNTIL(w, w->a.frames == 1);
    assert_int_equal(ps_conn_peer_role(w->a.conn), PS_ROLE_AGENT);
    assert_int_equal(send_msg(&w->a, &welcome, NULL), 0);
    ps_conn_flush(w->a.conn);
    RUN_UNTIL(w, w->b.frames == 1);
    assert_int_equal(ps_conn_peer_role(w->b.conn), PS_ROLE_SERVER);
    RUN_UNTIL(w, ps_conn_output(w->a.conn).is_by_reference == by_shm &&
                     ps_conn_output(w->b.conn).is_by_reference == by_shm);
    w->a.frames = w->b.frames = 0;
    w->a.done = w->b.done = 0;
}

/* Large payloads go from the sender's memory to the receiver's; almost nothing
 * is read ahead. */
static void large_payloads_are_not_copied(void **state)
{
    const unsigned count = 24;
    struct ps_msg push = push_msg();
    struct ps_buf *buf = ps_buf_new(4 * MIB);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = 4 * MIB};
    struct ps_conn_stats s;
    struct world w;

    (void)state;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    w.a.payload_cap = 4 * MIB;
    w.a.payload = malloc(4 * MIB);
    for (size_t i = 0; i < buf->size; i++) {
        buf->data[i] = (uint8_t)(i % 251);
    }
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    }
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, w.a.frames == count);
    RUN_UNTIL(&w, w.b.done == count);
    assert_int_equal(ps_conn_output(w.b.conn).queued, 0);
    assert_memory_equal(w.a.payload, buf->data, buf->size);
    ps_conn_stats(w.a.conn, &s);
    assert_true(s.copied * 1000 < count * buf->size);
    assert_true(!by_threads || s.moved_by_pool > count * buf->size / 2);
    if (by_shm) {
        assert_int_equal(s.by_reference, count * buf->size);
        assert_true(s.bytes_in < count * 1024);
    }
    ps_buf_unref(buf);
    end(&w);
}

/* Both ends send more at once than either may have unreleased: the release of
 * what one has read passes its own payloads, which wait for the other's. */
static void both_ends_send_more_than_is_released(void **state)
{
    const unsigned count = 32;
    struct ps_msg push = push_msg();
    struct ps_msg value = value_msg();
    struct ps_buf *buf = ps_buf_new(MIB);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = MIB};
    struct world w;

    (void)state;
    memset(buf->data, 3, buf->size);
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    keep_payload(&w.a, MIB);
    keep_payload(&w.b, MIB);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(send_msg(&w.a, &value, &slice), 0);
        assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    }
    ps_conn_flush(w.a.conn);
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, w.a.frames == count && w.b.frames == count);
    RUN_UNTIL(&w, w.a.done == count && w.b.done == count);
    assert_int_equal(ps_conn_output(w.a.conn).queued, 0);
    assert_int_equal(ps_conn_output(w.b.conn).queued, 0);
    assert_memory_equal(w.a.payload, buf->data, MIB);
    assert_memory_equal(w.b.payload, buf->data, MIB);
    ps_buf_unref(buf);
    end(&w);
}

/* Keys of TLS change after a number of records. A kernel that has them, and
 * cannot change them, ends the connection: with whole frames until then. */
static void payloads_arrive_whole_under_changing_keys(void **state)
{
    const unsigned count = 16;
    struct ps_msg push = push_msg();
    struct ps_buf *buf = ps_buf_new(256 * 1024);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = buf->size};
    struct world w;

    (void)state;
    for (size_t i = 0; i < buf->size; i++) {
        buf->data[i] = (uint8_t)(i % 251);
    }
    begin_both(&w, (struct ps_conn_limits){0});
    for (unsigned i = 0; by_tls && i < 2; i++) {
        ps_tls_session_set_records_max(w.sessions[i], 24);
    }
    both_handshake(&w);
    w.a.payload_cap = buf->size;
    w.a.payload = malloc(buf->size);
    for (unsigned i = 0; i < count; i++) {
        memset(w.a.payload, 0, buf->size);
        assert_int_equal(send_msg(&w.b, &push, &slice), 0);
        ps_conn_flush(w.b.conn);
        RUN_UNTIL(&w, w.a.frames == i + 1 || w.a.closed);
        if (w.a.closed) {
            break;
        }
        assert_memory_equal(w.a.payload, buf->data, buf->size);
    }
    if (w.a.closed) {
        assert_true(by_ktls);
        assert_int_equal(w.a.rc, PS_E_CLOSED);
        RUN_UNTIL(&w, w.b.closed);
        assert_int_equal(w.b.rc, PS_E_CLOSED);
        assert_non_null(strstr(w.b.reason, "cannot change the keys"));
    } else {
        RUN_UNTIL(&w, w.b.done == count); /* No thread reads it any more. */
    }
    ps_buf_unref(buf);
    end(&w);
}

static void small_frames_travel_together(void **state)
{
    struct ps_msg ack = {.code = PS_MSG_ACK};
    struct ps_conn_stats s;
    struct world w;

    (void)state;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    ps_conn_stats(w.b.conn, &s);
    uint64_t before = s.writes;

    for (unsigned i = 1; i <= 1000; i++) {
        ack.ack = i;
        assert_int_equal(send_msg(&w.b, &ack, NULL), 0);
    }
    assert_int_equal(ps_conn_flush(w.b.conn), !by_threads);
    RUN_UNTIL(&w, w.a.frames == 1000 && w.b.done == 1000);
    assert_int_equal(w.a.acks, 500500);
    ps_conn_stats(w.b.conn, &s);
    assert_true(ciphered || s.writes - before <= 1 + 1000 / 128 + 1);
    ps_conn_stats(w.a.conn, &s);
    assert_true(ciphered || by_tls || s.reads <= 16);
    end(&w);
}

/* A peer that sends only small frames, as fast as it can, yields the loop to
 * others after a few thousand of them. With TLS, each 68 KiB that are read end
 * within the header of a record. */
static void small_frames_yield_the_loop_to_others(void **state)
{
    enum { FRAMES = 254 }; /* In one write. */
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 1000};
    uint8_t frames[64 * FRAMES];
    const int room = 4 * MIB;
    size_t written = 0;
    size_t len = 0;
    ssize_t n;
    struct world w;

    (void)state;
    for (int i = 0; i < FRAMES; i++) {
        len = append_frame(frames, len, sizeof(frames), &ack, 0);
    }
    receive_buffer = 4 * MIB;
    begin_world(&w, (struct ps_conn_limits){0});
    receive_buffer = 0;
    (void)setsockopt(w.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    handshake(&w);
    do {
        n = put_some(&w, frames, len);
        written += n > 0 ? (size_t)n / (len / FRAMES) : 0;
    } while (written < 200000 && n == (ssize_t)len);
    while (w.a.frames == 0) {
        (void)ps_loop_step(w.loop);
    }
    assert_in_range(w.a.frames, 1, 8192);
    /* The last frame may have been sealed, but not sent whole. */
    RUN_UNTIL(&w, (!by_tls || put_sealed(&w)) && w.a.frames == written);
    end(&w);
}

/* A header longer than staging: a value of 256 parts. */
static void send_ahead(struct end *e, uint64_t ack)
{
    const struct ps_msg msg = {.code = PS_MSG_ACK, .ack = ack};
    const struct ps_conn_frame f = {.msg = &msg,
                                    .pass_fd = -1,
                                    .is_urgent = true,
                                    .done = on_done,
                                    .ctx = e};

    assert_int_equal(ps_conn_send(e->conn, &f), 0);
}

/* The handshake stays first. Of several urgent frames the last one replaces the
 * others, and a frame that has begun is not interrupted. */
static void urgent_frames_are_sent_first(void **state)
{
    struct ps_msg push = push_msg();
    struct ps_buf *buf = ps_buf_new(8 * MIB);
    const struct ps_slice slice = {.buf = buf, .len = 8 * MIB};
    struct world w;

    (void)state;
    for (size_t i = 0; i < buf->size; i++) {
        buf->data[i] = (uint8_t)(i % 251);
    }
    begin_both(&w, (struct ps_conn_limits){0});
    assert_int_equal(send_msg(&w.b, &hello, NULL), 0);
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, w.a.frames == 1);
    assert_int_equal(send_msg(&w.a, &welcome, NULL), 0);
    send_ahead(&w.a, 1);
    ps_conn_flush(w.a.conn);
    RUN_UNTIL(&w, w.b.frames == 2);
    assert_int_equal(w.b.before_ack, 1);
    RUN_UNTIL(&w, ps_conn_output(w.b.conn).is_by_reference == by_shm);

    w.a.payload_cap = 8 * MIB;
    w.a.payload = calloc(1, 8 * MIB);
    w.a.frames = w.b.done = 0;
    assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    send_ahead(&w.b, 1);
    send_ahead(&w.b, 2);
    assert_int_equal(w.b.done, 1); /* The first one has been replaced. */
    ps_conn_flush(w.b.conn);
    send_ahead(&w.b, 4);
    send_ahead(&w.b, 8);
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, w.a.frames == 4 && w.b.done == 6);
    assert_int_equal(w.a.acks, 2 + 8);
    assert_int_equal(w.a.before_ack, 2);
    assert_int_equal(ps_conn_output(w.b.conn).queued, 0);
    assert_memory_equal(w.a.payload, buf->data, buf->size);
    ps_buf_unref(buf);
    end(&w);
}

static void long_headers_arrive(void **state)
{
    static struct ps_rec_part parts[PS_PARTS_MAX];
    struct ps_msg commit = {.code = PS_MSG_COMMIT};
    struct world w;

    (void)state;
    for (unsigned i = 0; i < PS_PARTS_MAX; i++) {
        parts[i] = (struct ps_rec_part){.key = UINT32_MAX,
                                        .index = UINT32_MAX,
                                        .round = UINT64_MAX,
                                        .count = UINT32_MAX};
    }
    commit.ack = 1;
    commit.commit.parts = parts;
    commit.commit.parts_count = PS_PARTS_MAX;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    for (unsigned i = 0; i < 64; i++) {
        assert_int_equal(send_msg(&w.a, &commit, NULL), 0);
    }
    ps_conn_flush(w.a.conn);
    RUN_UNTIL(&w, w.b.frames == 64);
    assert_int_equal(w.b.acks, 64);
    end(&w);
}

static void unwanted_payload_is_skipped(void **state)
{
    struct ps_msg push = push_msg();
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 9};
    struct ps_buf *buf = ps_buf_new(MIB);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = MIB};
    struct world w;

    (void)state;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    assert_int_equal(send_msg(&w.b, &ack, NULL), 0);
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, w.a.frames == 2 && w.b.done == 2);
    assert_int_equal(w.a.acks, 9);
    assert_int_equal(w.a.asked, 1);
    ps_buf_unref(buf);
    end(&w);
}

/* Without memory reading pauses, and later continues at the same byte. */
static void reading_pauses_without_memory(void **state)
{
    struct ps_msg push = push_msg();
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 9};
    struct ps_buf *buf = ps_buf_new(MIB);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = MIB};
    struct ps_conn_stats s;
    struct world w;

    (void)state;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    memset(buf->data, 42, MIB);
    w.a.header_rc = PS_E_AGAIN;
    assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    assert_int_equal(send_msg(&w.b, &ack, NULL), 0);
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, w.a.asked == 1);
    assert_true(ps_conn_is_paused(w.a.conn));
    ps_conn_resume(w.a.conn);
    assert_int_equal(w.a.asked, 2);
    assert_true(ps_conn_is_paused(w.a.conn));
    ps_conn_stats(w.a.conn, &s);
    assert_true(s.bytes_in < 32 * 1024);

    w.a.header_rc = 0;
    w.a.payload_cap = MIB;
    w.a.payload = malloc(MIB);
    ps_conn_resume(w.a.conn);
    assert_false(ps_conn_is_paused(w.a.conn));
    RUN_UNTIL(&w, w.a.frames == 2 && w.b.done == 2);
    assert_memory_equal(w.a.payload, buf->data, MIB);
    ps_buf_unref(buf);
    end(&w);
}

/* A small payload in staging, with frames after it. */
static void resume_continues_with_staged_bytes(void **state)
{
    struct ps_msg push = push_msg();
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 9};
    uint8_t bytes[1024];
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    handshake(&w);
    size_t len = append_frame(bytes, 0, sizeof(bytes), &push, 64);

    len = append_frame(bytes, len, sizeof(bytes), &ack, 0);
    w.a.header_rc = PS_E_AGAIN;
    send_bytes(&w, bytes, len);
    RUN_UNTIL(&w, w.a.asked == 1);
    assert_int_equal(w.a.frames, 0);
    w.a.header_rc = 0;
    w.a.payload_cap = 64;
    w.a.payload = calloc(1, 64);
    ps_conn_resume(w.a.conn);
    assert_int_equal(w.a.frames, 2);
    assert_int_equal(w.a.acks, 9);
    assert_int_equal(w.a.payload[63], (uint8_t)(63 * 7 + 3));
    end(&w);
}

static void expect_cut(struct world *w, int rc)
{
    RUN_UNTIL(w, w->a.closed);
    assert_int_equal(w->a.rc, rc);
    assert_true(w->a.reason[0] != '\0');
    /* The peer sees the end of its stream. */
    char byte;
    ssize_t n = read(w->fd, &byte, 1);

    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
}

static void prefix(uint8_t out[PS_FRAME_PREFIX], unsigned code,
                   uint32_t header_len, uint32_t payload_len)
{
    struct ps_frame_prefix p = {.version = PS_FRAME_VERSION,
                                .code = (uint8_t)code,
                                .header_len = header_len,
                                .payload_len = payload_len};

    ps_frame_build(out, &p);
}

static void bytes_of_another_protocol_close_the_connection(void **state)
{
    static const char words[][32] = {
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03nothing of ours",
        "PT\x01\x01\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct world w;

        begin_world(&w, (struct ps_conn_limits){0});
        send_bytes(&w, words[i], 24);
        expect_cut(&w, PS_E_PROTO);
        assert_int_equal(w.a.frames, 0);
        end(&w);
    }
}

static void later_prefix_is_refused(void **state)
{
    uint8_t bytes[PS_FRAME_PREFIX];
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    prefix(bytes, PS_MSG_HELLO, 20, 0);
    bytes[2] = PS_FRAME_VERSION + 1;
    send_bytes(&w, bytes, sizeof(bytes));
    expect_cut(&w, PS_E_VERSION);
    end(&w);
}

/* Lengths are checked when the prefix has arrived, before all later bytes. */
static void lengths_are_checked_with_the_prefix(void **state)
{
    struct {
        unsigned code;
        uint32_t header_len;
        uint32_t payload_len;
        int rc;
    } cases[] = {
        {PS_MSG_ACK, UINT32_MAX, 0, PS_E_TOOBIG},
        {PS_MSG_ACK, ps_msg_header_max(PS_MSG_ACK) + 1, 0, PS_E_TOOBIG},
        {PS_MSG_ACK, 0, 0, PS_E_PROTO},
        {PS_MSG_ACK, 4, 4, PS_E_PROTO},
        {PS_MSG_PUSH, 40, UINT32_MAX, PS_E_TOOBIG},
        {PS_MSG_PUSH, 40, PS_PAYLOAD_MAX + 4, PS_E_TOOBIG},
        {PS_MSG_VALUE, 40, 4, PS_E_PERM},
        {PS_MSG_L_OP, 40, 0, PS_E_PERM},
        {250, 40, 0, PS_E_PROTO},
        {PS_MSG_HELLO, 40, 0, PS_E_PERM},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[PS_FRAME_PREFIX];
        struct world w;

        begin_world(&w, (struct ps_conn_limits){0});
        handshake(&w);
        prefix(bytes, cases[i].code, cases[i].header_len, cases[i].payload_len);
        send_bytes(&w, bytes, sizeof(bytes));
        expect_cut(&w, cases[i].rc);
        assert_int_equal(w.a.frames, 0);
        end(&w);
    }
}

static void impossible_lengths_close_the_connection(void **state)
{
    static const struct {
        size_t len;
        const char *bytes;
    } bombs[] = {
        {5, "\xdd\x10\x00\x00\x00"},
        {9, "\x8a\xff\xff\xff\xdf\xff\xff\xff\xff"},
        {5, "\xdf\xff\xff\xff\xff"},
        {8, "\x91\x91\x91\x91\x91\x91\x91\xc0"},
        {1, "\xc0"},
        {3, "\x81\x08\xc1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++) {
        uint8_t bytes[64];
        struct world w;

        begin_world(&w, (struct ps_conn_limits){0});
        handshake(&w);
        prefix(bytes, PS_MSG_PULL, (uint32_t)bombs[i].len, 0);
        memcpy(bytes + PS_FRAME_PREFIX, bombs[i].bytes, bombs[i].len);
        send_bytes(&w, bytes, PS_FRAME_PREFIX + bombs[i].len);
        RUN_UNTIL(&w, w.a.closed);
        assert_true(w.a.rc == PS_E_PROTO || w.a.rc == PS_E_TOOBIG);
        end(&w);
    }
}

static void frame_before_hello_closes_the_connection(void **state)
{
    struct ps_msg push = push_msg();
    uint8_t bytes[1024];
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    send_bytes(&w, bytes, append_frame(bytes, 0, sizeof(bytes), &push, 64));
    expect_cut(&w, PS_E_PERM);
    assert_int_equal(w.a.asked, 0);
    end(&w);
}

static void second_hello_closes_the_connection(void **state)
{
    uint8_t bytes[1024];
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    handshake(&w);
    send_bytes(&w, bytes, append_frame(bytes, 0, sizeof(bytes), &hello, 0));
    expect_cut(&w, PS_E_PERM);
    end(&w);
}

static void role_that_does_not_dial_is_refused(void **state)
{
    struct ps_msg bad = hello;
    uint8_t bytes[1024];
    struct world w;

    (void)state;
    bad.hello.role = PS_ROLE_CTL;
    begin_world(&w, (struct ps_conn_limits){0});
    send_bytes(&w, bytes, append_frame(bytes, 0, sizeof(bytes), &bad, 0));
    expect_cut(&w, PS_E_PERM);
    end(&w);
}

static void silence_before_the_handshake_closes_the_connection(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w,
                (struct ps_conn_limits){.handshake_timeout = PS_MILLIS(20)});
    expect_cut(&w, PS_E_TIMEOUT);
    assert_string_equal(w.a.reason, "no handshake in time");
    end(&w);
}

/* Half a handshake does not extend the time limit. */
static void slow_handshake_closes_the_connection(void **state)
{
    uint8_t bytes[512];
    struct world w;

    (void)state;
    begin_world(&w,
                (struct ps_conn_limits){.handshake_timeout = PS_MILLIS(20)});
    send_bytes(&w, bytes, append_frame(bytes, 0, sizeof(bytes), &hello, 0) - 1);
    expect_cut(&w, PS_E_TIMEOUT);
    end(&w);
}

static void slow_header_closes_the_connection(void **state)
{
    uint8_t bytes[1024];
    struct ps_msg push = push_msg();
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){.header_timeout = PS_MILLIS(20)});
    handshake(&w);
    append_frame(bytes, 0, sizeof(bytes), &push, 64);
    send_bytes(&w, bytes, PS_FRAME_PREFIX + 3);
    expect_cut(&w, PS_E_TIMEOUT);
    assert_string_equal(w.a.reason, "header not complete in time");
    end(&w);
}

static void stalled_payload_closes_the_connection(void **state)
{
    uint8_t bytes[1024];
    struct ps_msg push = push_msg();
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){.stall_timeout = PS_MILLIS(20)});
    handshake(&w);
    send_bytes(&w, bytes, append_frame(bytes, 0, sizeof(bytes), &push, 64) - 1);
    expect_cut(&w, PS_E_TIMEOUT);
    assert_string_equal(w.a.reason, "no further bytes of a payload in time");
    end(&w);
}

struct wake {
    struct ps_loop_timer timer;
    bool came;
};

static void wake_up(struct ps_loop_timer *t)
{
    ((struct wake *)(void *)t)->came = true;
}

/* A connection may be silent after its handshake. */
static void idle_connection_stays_open(void **state)
{
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 1};
    uint8_t bytes[256];
    struct world w;

    (void)state;
    /* A busy machine must have time for the handshake. */
    begin_world(&w, (struct ps_conn_limits){.handshake_timeout = PS_MILLIS(500),
                                            .header_timeout = PS_MILLIS(10),
                                            .stall_timeout = PS_MILLIS(10)});
    handshake(&w);
    /* Longer than all the limits. */
    struct wake wake = {.timer.due = wake_up};

    ps_loop_timer_set(w.loop, &wake.timer,
                      ps_loop_now(w.loop) + PS_MILLIS(510));
    RUN_UNTIL(&w, wake.came || w.a.closed);
    send_bytes(&w, bytes, append_frame(bytes, 0, sizeof(bytes), &ack, 0));
    RUN_UNTIL(&w, w.a.frames == 1 || w.a.closed);
    assert_false(w.a.closed);
    end(&w);
}

static void end_within_a_frame_is_reported(void **state)
{
    uint8_t bytes[1024];
    struct ps_msg push = push_msg();
    size_t len = append_frame(bytes, 0, sizeof(bytes), &push, 64);
    size_t cuts[] = {1, 15, 16, 17, len - 64, len - 63, len - 1};

    (void)state;
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        struct world w;

        begin_world(&w, (struct ps_conn_limits){0});
        handshake(&w);
        send_bytes(&w, bytes, cuts[i]);
        assert_int_equal(shutdown(w.fd, SHUT_WR), 0);
        RUN_UNTIL(&w, w.a.closed);
        assert_int_equal(w.a.rc, PS_E_CLOSED);
        assert_string_equal(w.a.reason, "closed by peer within a frame");
        end(&w);
    }
}

/* Frames that were complete before the end still arrive. */
static void frames_before_the_end_arrive(void **state)
{
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 1};
    uint8_t bytes[1024];
    size_t len = 0;
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    handshake(&w);
    for (int i = 0; i < 10; i++) {
        len = append_frame(bytes, len, sizeof(bytes), &ack, 0);
    }
    send_bytes(&w, bytes, len);
    close(w.fd);
    w.fd = -1;
    RUN_UNTIL(&w, w.a.closed);
    assert_int_equal(w.a.frames, 10);
    assert_string_equal(w.a.reason, "closed by peer");
    end(&w);
}

static void connection_of_a_peer_that_never_reads_is_closed(void **state)
{
    struct ps_buf *buf = ps_buf_new(MIB);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = MIB};
    struct ps_msg value = {.code = PS_MSG_VALUE};
    unsigned taken = 0;
    struct world w;
    int rc;

    (void)state;
    value.value.parts = &one_part;
    value.value.parts_count = 1;
    begin_world(&w, (struct ps_conn_limits){.output_max = 8 * MIB});
    handshake(&w);
    while ((rc = send_msg(&w.a, &value, &slice)) == 0) {
        taken++;
        ps_conn_flush(w.a.conn);
        assert_true(taken < 1000);
    }
    assert_int_equal(rc, PS_E_FULL);
    RUN_UNTIL(&w, w.a.closed);
    assert_int_equal(w.a.rc, PS_E_FULL);
    assert_int_equal(w.a.done, taken); /* All are released, once. */
    assert_int_equal(buf->refs, 1);
    ps_buf_unref(buf);
    end(&w);
}

static void connection_of_a_peer_that_stops_reading_is_closed(void **state)
{
    struct ps_buf *buf = ps_buf_new(16 * MIB);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = 16 * MIB};
    struct ps_msg value = {.code = PS_MSG_VALUE};
    struct world w;

    (void)state;
    value.value.parts = &one_part;
    value.value.parts_count = 1;
    begin_world(&w, (struct ps_conn_limits){.stall_timeout = PS_MILLIS(20)});
    handshake(&w);
    assert_int_equal(send_msg(&w.a, &value, &slice), 0);
    ps_conn_flush(w.a.conn);
    RUN_UNTIL(&w, w.a.closed);
    assert_int_equal(w.a.rc, PS_E_TIMEOUT);
    assert_string_equal(w.a.reason, "peer does not read");
    assert_int_equal(w.a.done, 1);
    ps_buf_unref(buf);
    end(&w);
}

/* A peer cannot make this side queue replies before its handshake. */
static void output_before_the_handshake_is_limited(void **state)
{
    struct ps_msg reject = {.code = PS_MSG_REJECT,
                            .reject = {.error = 9, .text = "no"}};
    unsigned taken = 0;
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    while (send_msg(&w.a, &reject, NULL) == 0) {
        taken++;
    }
    assert_true(taken > 0 && taken < 20000);
    RUN_UNTIL(&w, w.a.closed);
    assert_int_equal(w.a.done, taken);
    end(&w);
}

/* A reason written just before the close arrives, although the peer had sent
 * more than was read. */
static void finish_writes_queued_output(void **state)
{
    struct ps_msg reject = {.code = PS_MSG_REJECT,
                            .reject = {.error = 9, .text = "no"}};
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 1};
    struct world w;

    (void)state;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(send_msg(&w.b, &ack, NULL), 0);
    }
    ps_conn_flush(w.b.conn);
    assert_int_equal(send_msg(&w.a, &reject, NULL), 0);
    ps_conn_finish(w.a.conn);
    assert_int_equal(send_msg(&w.a, &reject, NULL), PS_E_CLOSED);
    RUN_UNTIL(&w, w.a.closed && w.b.closed);
    assert_int_equal(w.b.frames, 1);
    assert_int_equal(w.b.last_code, PS_MSG_REJECT);
    assert_int_equal(w.b.rc, PS_E_CLOSED);
    assert_int_equal(w.a.frames, 0);
    assert_int_equal(w.a.done, 1);
    end(&w);
}

/* A peer that never closes its side is dropped after a time limit. */
static void finish_closes_after_a_time_limit(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){.linger_timeout = PS_MILLIS(20)});
    handshake(&w);
    ps_conn_finish(w.a.conn);
    RUN_UNTIL(&w, w.a.closed);
    end(&w);
}

static void connection_may_be_closed_in_a_callback(void **state)
{
    struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 1};
    uint8_t bytes[1024];
    size_t len = 0;
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    handshake(&w);
    for (int i = 0; i < 10; i++) {
        len = append_frame(bytes, len, sizeof(bytes), &ack, 0);
    }
    w.a.close_in_frame = true;
    send_bytes(&w, bytes, len);
    RUN_UNTIL(&w, w.a.closed);
    assert_int_equal(w.a.frames, 1);
    assert_int_equal(w.a.rc, PS_E_CANCELED);
    end(&w);
}

static void close_frees_all_memory(void **state)
{
    struct ps_buf *buf = ps_buf_new(16 * MIB);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = 16 * MIB};
    struct ps_msg push = push_msg();
    struct world w;

    (void)state;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    w.a.payload_cap = 16 * MIB;
    w.a.payload = malloc(16 * MIB);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    }
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, w.a.asked == 1); /* In the middle of the first. */
    unsigned done = w.b.done;

    ps_conn_close(w.b.conn, PS_E_CANCELED, "enough");
    ps_conn_close(w.b.conn, PS_E_IO, "ignored");
    assert_int_equal(w.b.done, done); /* Not inside the call. */
    RUN_UNTIL(&w, w.a.closed && w.b.closed);
    assert_int_equal(w.b.done, 4);
    assert_int_equal(w.b.rc, PS_E_CANCELED);
    assert_string_equal(w.b.reason, "enough");
    ps_buf_unref(buf);
    end(&w);
}

/* A push of `len` bytes that points at `piece`. */
static size_t put_pointer(uint8_t *out, size_t cap, uint32_t len,
                          const struct ps_fixed_shm_ref *piece)
{
    struct ps_msg push = push_msg();
    size_t n;

    assert_int_equal(ps_msg_encode(&push, PS_PROTOCOL, len, out, cap, &n), 0);
    ps_frame_set_ref_count(out, 1);
    ps_fixed_put_shm_ref(out + n, piece);
    return n + PS_FIXED_SHM_REF_BYTES;
}

static void point_at(uint64_t address, uint32_t piece_len, uint32_t len, int rc)
{
    uint8_t bytes[512];
    struct world w;

    begin_world(&w, (struct ps_conn_limits){0});
    w.a.payload_cap = 64 * 1024;
    w.a.payload = calloc(1, w.a.payload_cap);
    handshake(&w);
    send_bytes(&w, bytes,
               put_pointer(bytes, sizeof(bytes), len,
                           &(struct ps_fixed_shm_ref){.place = address,
                                                      .len = piece_len}));
    RUN_UNTIL(&w, w.a.frames == 1 || w.a.closed);
    assert_int_equal(w.a.closed, rc != 0);
    if (rc != 0) {
        assert_int_equal(w.a.rc, rc);
        assert_int_equal(w.a.frames, 0);
    } else {
        assert_int_equal(w.a.last_len, len);
        assert_memory_equal(w.a.payload, (void *)(uintptr_t)address, len);
    }
    end(&w);
}

/* The peer is this process: references that it may send name our memory. */
static void reference_to_any_address_is_read_or_refused(void **state)
{
    const uint32_t len = 64 * 1024;
    uint8_t *good = malloc(len);

    (void)state;
    for (size_t i = 0; i < len; i++) {
        good[i] = (uint8_t)(i * 13 + 1);
    }
    point_at((uintptr_t)good, len, len, 0);
    point_at(0, len, len, PS_E_PROTO);
    point_at(UINT64_MAX - 4, len, len, PS_E_PROTO);
    point_at(UINT64_C(1) << 63, len, len, PS_E_PROTO);
    point_at((uintptr_t)good, len - 4, len, PS_E_PROTO);
    point_at((uintptr_t)good, len + 4, len, PS_E_PROTO);
    point_at((uintptr_t)good, 0, len, PS_E_PROTO);
    point_at((uintptr_t)good, UINT32_MAX, len, PS_E_PROTO);
    point_at((uintptr_t)good, 0, 0, PS_E_PROTO);
    free(good);
}

static void references_need_a_same_host_connection(void **state)
{
    uint8_t byte[64] = {0};

    (void)state;
    point_at((uintptr_t)byte, sizeof(byte), sizeof(byte),
             by_shm ? 0 : PS_E_PROTO);
}

/* A message about shared memory, and perhaps a descriptor beside it. */
static void tell_shm(struct world *w, const struct ps_msg *msg, int fd)
{
    uint8_t bytes[64];
    struct iovec iov = {.iov_base = bytes};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    assert_int_equal(
        ps_msg_encode(msg, PS_PROTOCOL, 0, bytes, sizeof(bytes), &iov.iov_len),
        0);
    if (fd < 0) {
        send_bytes(w, bytes, iov.iov_len);
        return;
    }
    conceal(bytes, iov.iov_len);
    m.msg_control = control.bytes;
    m.msg_controllen = sizeof(control.bytes);
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);

    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &fd, sizeof(int));
    assert_int_equal(sendmsg(w->fd, &m, 0), iov.iov_len);
}

static void tell_caps(struct world *w, int fd)
{
    tell_shm(w, &(struct ps_msg){.code = PS_MSG_SHM_CAPS}, fd);
}

static void tell_map(struct world *w, uint32_t arena, int fd)
{
    tell_shm(
        w,
        &(struct ps_msg){.code = PS_MSG_SHM_MAP, .shm_map = {.arena = arena}},
        fd);
}

static void tell_unmap(struct world *w, uint32_t arena)
{
    tell_shm(w,
             &(struct ps_msg){.code = PS_MSG_SHM_UNMAP,
                              .shm_unmap = {.arena = arena}},
             -1);
}

static void tell_release(struct world *w, uint32_t payloads)
{
    tell_shm(w,
             &(struct ps_msg){.code = PS_MSG_SHM_RELEASE,
                              .shm_release = {.payloads = payloads}},
             -1);
}

/* A peer that releases payloads that were never sent by reference. */
static void release_of_payloads_never_sent_is_refused(void **state)
{
    struct world w;

    (void)state;
    for (uint32_t payloads = 0; payloads < 2; payloads++) {
        begin_world(&w, (struct ps_conn_limits){0});
        handshake(&w);
        tell_caps(&w, -1);
        tell_release(&w, payloads);
        RUN_UNTIL(&w, w.a.closed);
        assert_int_equal(w.a.rc, PS_E_PROTO);
        assert_string_equal(w.a.reason,
                            "receipt for a payload that was not sent");
        end(&w);
    }
}

/* Only on a same-host connection, and only after the handshake. */
static void shared_memory_needs_a_same_host_connection(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    tell_caps(&w, -1);
    expect_cut(&w, PS_E_PERM);
    end(&w);
    begin_world(&w, (struct ps_conn_limits){0});
    handshake(&w);
    tell_caps(&w, -1);
    if (by_shm) {
        tell_caps(&w, -1);
    }
    RUN_UNTIL(&w, w.a.closed);
    assert_int_equal(w.a.rc, by_shm ? PS_E_PROTO : PS_E_PERM);
    end(&w);
}

/* Memory that was sent by reference belongs to the peer until it releases
 * it. */
static void referenced_memory_is_held_until_released(void **state)
{
    struct ps_msg push = push_msg();
    struct ps_buf *buf = ps_buf_new(MIB);
    struct ps_slice slice = {.buf = buf, .offset = 0, .len = MIB};
    struct world w;

    (void)state;
    memset(buf->data, 1, buf->size);
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    w.a.payload_cap = MIB;
    w.a.payload = malloc(MIB);
    w.a.header_rc = PS_E_AGAIN;
    assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, ps_conn_is_paused(w.a.conn));
    assert_int_equal(w.b.done, 0);
    assert_int_equal(ps_conn_output(w.b.conn).queued, MIB);
    memset(buf->data, 2, buf->size);
    w.a.header_rc = 0;
    ps_conn_resume(w.a.conn);
    assert_int_equal(w.a.frames, 1);
    assert_memory_equal(w.a.payload, buf->data, MIB);
    RUN_UNTIL(&w, w.b.done == 1);
    assert_int_equal(ps_conn_output(w.b.conn).queued, 0);
    /* After the end of the connection no peer can read it. */
    w.a.header_rc = PS_E_AGAIN;
    assert_int_equal(send_msg(&w.b, &push, &slice), 0);
    ps_conn_flush(w.b.conn);
    RUN_UNTIL(&w, ps_conn_is_paused(w.a.conn));
    ps_conn_close(w.b.conn, PS_E_CANCELED, "enough");
    w.a.header_rc = 0;
    ps_conn_resume(w.a.conn);
    RUN_UNTIL(&w, w.a.closed && w.b.closed);
    assert_int_equal(w.a.frames, 1);
    assert_int_equal(w.b.done, 2);
    ps_buf_unref(buf);
    end(&w);
}

/* Memory of an arena is read through a mapping, also by a peer that may not
 * read the process; it is freed when the arena ends. */
static void arenas_are_mapped_by_the_peer(void **state)
{
    struct ps_msg push = push_msg();
    struct ps_conn_stats s;
    struct world w;

    (void)state;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    w.a.payload_cap = MIB;
    w.a.payload = malloc(MIB);
    for (unsigned i = 1; i <= 3; i++) {
        struct ps_pool *pool = ps_pool_new(&(struct ps_pool_options){
            .source = ps_arenas_lazy_source(w.arenas)});
        struct ps_buf *before;
        struct ps_buf *buf;

        /* Before any peer, memory is not in an arena. */
        assert_int_equal(ps_pool_get(pool, 2 * MIB, &before), 0);
        assert_int_equal(before->tag == 0, i == 1);
        ps_arenas_enable_sharing(w.arenas);
        assert_int_equal(ps_pool_get(pool, MIB, &buf), 0);
        assert_int_not_equal(buf->tag, 0);
        for (size_t at = 0; at < buf->size; at++) {
            buf->data[at] = (uint8_t)(at % 249 + i);
        }
        for (unsigned j = 0; j < 2; j++) {
            struct ps_slice slices[2] = {
                {.buf = buf, .offset = 4096, .len = buf->size - 4096},
                {.buf = before, .offset = 64, .len = 4096}};

            memset(before->data + 64, (int)i, 4096);
            assert_int_equal(send_slices(&w.b, &push, slices, 2), 0);
            ps_conn_flush(w.b.conn);
            RUN_UNTIL(&w, w.a.frames == 2 * i + j - 1);
            assert_memory_equal(w.a.payload, buf->data + 4096,
                                buf->size - 4096);
            assert_memory_equal(w.a.payload + buf->size - 4096,
                                before->data + 64, 4096);
            RUN_UNTIL(&w, w.b.done == 2 * i + j - 1);
        }
        assert_false(ps_conn_send_freed_arenas(w.b.conn));
        ps_buf_unref(buf);
        ps_buf_unref(before);
        ps_pool_free(pool);
        assert_true(ps_conn_send_freed_arenas(w.b.conn));
        assert_false(ps_conn_send_freed_arenas(w.b.conn));
        ps_conn_flush(w.b.conn);
    }
    ps_conn_stats(w.a.conn, &s);
    assert_int_equal(s.by_reference, 6 * MIB);
    end(&w);
}

/* `size` bytes that only the descriptor leads to. */
static int sealed(size_t size, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint8_t *data;

    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(data, MAP_FAILED);
    for (size_t i = 0; i < size; i++) {
        data[i] = (uint8_t)(i * 13 + 1);
    }
    munmap(data, size);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static void begin_shown(struct world *w, int seals)
{
    int fd = sealed(65536, seals);

    begin_world(w, (struct ps_conn_limits){0});
    w->a.payload_cap = 65536;
    w->a.payload = calloc(1, w->a.payload_cap);
    handshake(w);
    tell_map(w, 7, fd);
    close(fd);
}

static void point_into(uint32_t arena, uint64_t offset, int rc)
{
    const uint32_t len = 32768;
    uint8_t bytes[512];
    struct world w;

    begin_shown(&w, SEALS);
    send_bytes(&w, bytes,
               put_pointer(bytes, sizeof(bytes), len,
                           &(struct ps_fixed_shm_ref){
                               .place = offset, .len = len, .arena = arena}));
    RUN_UNTIL(&w, w.a.frames == 1 || w.a.closed);
    assert_int_equal(w.a.closed, rc != 0);
    if (rc != 0) {
        assert_int_equal(w.a.rc, rc);
        assert_int_equal(w.a.frames, 0);
    }
    for (size_t i = 0; rc == 0 && i < len; i++) {
        assert_int_equal(w.a.payload[i], (uint8_t)((i + offset) * 13 + 1));
    }
    end(&w);
}

static void references_outside_an_arena_are_refused(void **state)
{
    (void)state;
    point_into(7, 0, 0);
    point_into(7, 32768, 0);
    point_into(7, 32769, PS_E_PROTO);
    point_into(7, 65537, PS_E_PROTO);
    point_into(7, (UINT64_C(1) << 40) - 1, PS_E_PROTO);
    point_into(8, 0, PS_E_PROTO);
    point_into(7, UINT64_MAX, PS_E_PROTO);
    point_into(UINT32_MAX, 0, PS_E_PROTO);
}

static void expect_reason(struct world *w, const char *reason)
{
    RUN_UNTIL(w, w->a.closed);
    assert_string_equal(w->a.reason, reason);
    end(w);
}

static void malformed_arenas_are_refused(void **state)
{
    struct world w;
    int fd;

    (void)state;
    begin_shown(&w, SEALS & ~F_SEAL_SHRINK);
    expect_reason(&w, "memfd is not sealed against shrinking, growing and "
                      "sealing");
    begin_shown(&w, SEALS);
    tell_map(&w, 8, -1);
    expect_reason(&w, "arena without a descriptor");
    begin_shown(&w, SEALS);
    fd = sealed(4096, SEALS);
    tell_map(&w, 7, fd);
    expect_reason(&w, "arena announced twice, or too many arenas");
    begin_shown(&w, SEALS);
    tell_unmap(&w, 7);
    tell_unmap(&w, 7);
    expect_reason(&w, "end of an arena that was not announced");
    begin_shown(&w, SEALS);
    tell_caps(&w, fd);
    expect_reason(&w, "file descriptor with a message that carries none");
    begin_shown(&w, SEALS);
    tell_caps(&w, -1);
    tell_caps(&w, -1);
    expect_reason(&w, "shm_caps sent twice");
    begin_shown(&w, SEALS);
    tell_map(&w, 0, fd);
    expect_reason(&w, "arena announced twice, or too many arenas");
    begin_shown(&w, SEALS);
    close(fd);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    tell_map(&w, 9, fd);
    expect_reason(&w, "an arena without a size");
    close(fd);
}

/* ----------------------------------------------------------- only checksums */

/* Sends a push of two pieces, and ends the sender's side; returns the bytes of the
 * frame. A bit of the frame is changed on the way, or NO_BIT. */
static uint64_t push_changed(struct world *w, uint64_t bit, size_t len)
{
    struct ps_msg push = push_msg();
    struct ps_buf *buf = ps_buf_new(len);
    const struct ps_slice slices[] = {
        {.buf = buf, .len = len / 3},
        {.buf = buf, .offset = len / 3, .len = len - len / 3}};
    struct ps_conn_stats before;
    struct ps_conn_stats after;

    memset(buf->data, 5, len);
    begin_both(w, (struct ps_conn_limits){0});
    both_handshake(w);
    keep_payload(&w->a, len);
    ps_conn_stats(w->a.conn, &before);
    changed_bit = bit == NO_BIT ? NO_BIT : before.bytes_in * 8 + bit;
    assert_int_equal(send_slices(&w->b, &push, slices, 2), 0);
    ps_conn_stats(w->b.conn, &before);
    ps_conn_finish(w->b.conn); /* A frame that has become longer ends, too. */
    RUN_UNTIL(w, w->b.done == 1);
    ps_conn_stats(w->b.conn, &after);
    RUN_UNTIL(w, w->a.closed);
    changed_bit = NO_BIT;
    ps_buf_unref(buf);
    return after.bytes_out - before.bytes_out;
}

/* Each bit of a frame, prefix and checksums included: it never arrives. */
static void frame_with_any_changed_bit_is_refused(void **state)
{
    enum { CHECKED = PS_FRAME_PREFIX * 8, LEN = 100 };
    struct world w;
    const uint64_t bits = 8 * push_changed(&w, NO_BIT, LEN);
    const uint64_t payload = bits - 8ull * LEN;

    (void)state;
    assert_int_equal(w.a.frames, 1);
    assert_int_equal(w.a.corrupt, 0);
    end(&w);
    for (uint64_t bit = 0; bit < bits; bit++) {
        const bool of_payload = (bit >= CHECKED + 64 && bit < CHECKED + 128) ||
                                bit >= payload;

        push_changed(&w, bit, LEN);
        assert_int_equal(w.a.frames, 0);
        if (bit >= CHECKED) {
            assert_int_equal(w.a.rc, PS_E_IO);
            assert_int_equal(w.a.corrupt, 1);
            assert_string_equal(
                w.a.reason, of_payload ? "checksum of the payload of push is "
                                         "wrong: its bytes were changed on the "
                                         "way"
                                       : "checksum of the header of push is "
                                         "wrong: its bytes were changed on the "
                                         "way");
        }
        end(&w);
    }
}

static void changed_bit_of_a_large_payload_is_found(void **state)
{
    struct world w;

    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        push_changed(&w, (uint64_t)MIB * (4 * i + 1) + i, 8 * MIB);
        assert_int_equal(w.a.frames, 0);
        assert_int_equal(w.a.corrupt, 1);
        end(&w);
    }
}

/* A peer of the version before neither sends nor expects them. */
static void older_peer_gets_no_checksums(void **state)
{
    const struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 7};
    struct ps_msg old = hello;
    uint8_t bytes[512];
    uint8_t expected[512];
    uint8_t got[512];
    size_t len;
    struct world w;

    (void)state;
    old.hello.protocol = 1;
    begin_world(&w, (struct ps_conn_limits){0});
    send_bytes(&w, bytes, append_frame(bytes, 0, sizeof(bytes), &old, 0));
    RUN_UNTIL(&w, w.a.frames == 1);
    assert_int_equal(send_msg(&w.a, &welcome, NULL), 0);
    assert_int_equal(send_msg(&w.a, &ack, NULL), 0);
    ps_conn_flush(w.a.conn);
    len = append_frame(expected, 0, sizeof(expected), &welcome, 0);
    len = append_frame(expected, len, sizeof(expected), &ack, 0);
    assert_int_equal(recv(w.fd, got, sizeof(got), MSG_WAITALL), len);
    assert_memory_equal(got, expected, len);
    send_bytes(&w, bytes, append_frame(bytes, 0, sizeof(bytes), &ack, 0));
    RUN_UNTIL(&w, w.a.frames == 2);
    assert_int_equal(w.a.acks, 7);
    end(&w);
}

/* A message for several peers, whose body they share. */
static void shared_bodies_arrive(void **state)
{
    const struct ps_msg msg = value_msg();
    struct ps_msg_body *body = NULL;
    struct world w;

    (void)state;
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    for (unsigned i = 1; i <= 3; i++) {
        const struct ps_conn_frame f = {.msg = &msg,
                                        .body = &body,
                                        .pass_fd = -1,
                                        .done = on_done,
                                        .ctx = &w.a};

        assert_int_equal(ps_conn_send(w.a.conn, &f), 0);
        ps_conn_flush(w.a.conn);
        RUN_UNTIL(&w, w.b.frames == i);
        assert_int_equal(w.b.last_code, PS_MSG_VALUE);
    }
    RUN_UNTIL(&w, w.a.done == 3);
    ps_free(body);
    end(&w);
}

/* ------------------------------------------------------- only I/O threads */

/* Both ways at once, with small frames in between. */
static void io_threads_read_and_write_at_once(void **state)
{
    const unsigned count = 20;
    const struct ps_msg ack = {.code = PS_MSG_ACK, .ack = 1};
    struct ps_msg push = push_msg();
    struct ps_msg value = value_msg();
    struct ps_buf *up = ps_buf_new(MIB);
    struct ps_buf *down = ps_buf_new(3 * MIB);
    /* The payloads are read until the frames are sent. */
    const struct ps_slice of_push = {.buf = up, .len = MIB};
    const struct ps_slice of_value = {.buf = down, .len = 3 * MIB};
    struct ps_conn_stats s;
    struct world w;

    (void)state;
    for (size_t i = 0; i < down->size; i++) {
        down->data[i] = (uint8_t)(i % 253);
        up->data[i % MIB] = (uint8_t)(i % 241);
    }
    begin_both(&w, (struct ps_conn_limits){0});
    both_handshake(&w);
    keep_payload(&w.a, MIB);
    keep_payload(&w.b, 3 * MIB);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(send_msg(&w.b, &push, &of_push), 0);
        assert_int_equal(send_msg(&w.b, &ack, NULL), 0);
        assert_int_equal(send_msg(&w.a, &value, &of_value), 0);
        ps_conn_flush(w.a.conn);
        ps_conn_flush(w.b.conn);
    }
    RUN_UNTIL(&w, w.a.frames == 2 * count && w.b.frames == count);
    RUN_UNTIL(&w, w.a.done == count && w.b.done == 2 * count);
    assert_int_equal(w.a.acks, count);
    assert_memory_equal(w.a.payload, up->data, MIB);
    assert_memory_equal(w.b.payload, down->data, 3 * MIB);
    assert_int_equal(
        ps_conn_output(w.a.conn).queued + ps_conn_output(w.b.conn).queued, 0);
    ps_conn_stats(w.b.conn, &s);
    assert_in_range(s.moved_by_pool, s.bytes_in, s.bytes_in + s.bytes_out);
    ps_buf_unref(up);
    ps_buf_unref(down);
    end(&w);
}

/* A push whose rest never arrives. */
static void tell_half(struct world *w)
{
    struct ps_msg push = push_msg();
    uint8_t *bytes = malloc(MIB);

    keep_payload(&w->a, MIB / 2);
    assert_true(append_frame(bytes, 0, MIB, &push, MIB / 2) > MIB / 2);
    send_bytes(w, bytes, MIB / 4);
    free(bytes);
    RUN_UNTIL(w, w->a.asked == 1);
}

static void stalled_transfer_closes_the_connection(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){.stall_timeout = PS_MILLIS(20)});
    handshake(&w);
    tell_half(&w);
    expect_cut(&w, PS_E_TIMEOUT);
    assert_string_equal(w.a.reason, "no further bytes of a payload in time");
    end(&w);
}

static void end_within_a_transfer_is_reported(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){0});
    handshake(&w);
    tell_half(&w);
    assert_int_equal(shutdown(w.fd, SHUT_WR), 0);
    RUN_UNTIL(&w, w.a.closed);
    assert_int_equal(w.a.rc, PS_E_CLOSED);
    assert_string_equal(w.a.reason, "closed by peer within a frame");
    assert_int_equal(w.a.frames, 0);
    end(&w);
}

/* Queued output leaves first, though an incoming payload never completes; then
 * the peer has a moment to close. */
static void finish_during_a_transfer_writes_queued_output(void **state)
{
    const size_t len = 8 * MIB;
    struct ps_msg value = value_msg();
    struct ps_buf *buf = ps_buf_new(len);
    uint8_t *sink = malloc(MIB);
    struct world w;
    size_t got = 0;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){.linger_timeout = PS_MILLIS(20)});
    handshake(&w);
    tell_half(&w);
    assert_int_equal(
        send_msg(&w.a, &value, &(struct ps_slice){.buf = buf, .len = len}), 0);
    ps_conn_flush(w.a.conn);
    ps_conn_finish(w.a.conn);
    while (got < len) {
        ssize_t n = read(w.fd, sink, MIB);

        got += n > 0 ? (size_t)n : 0;
        if (n <= 0) {
            assert_true(n < 0 && errno == EAGAIN);
            (void)ps_loop_step(w.loop);
        }
    }
    RUN_UNTIL(&w, w.a.closed);
    assert_int_equal(w.a.done, 1);
    assert_int_equal(w.a.frames, 0);
    assert_string_equal(w.a.reason, "closed by us");
    free(sink);
    ps_buf_unref(buf);
    end(&w);
}

/* After the close of a connection its owner may reuse the memory of a payload:
 * the rest of the peer's bytes is discarded, whichever thread would have read
 * it. */
static void no_payload_is_written_after_finish(void **state)
{
    const size_t len = MIB / 2;
    struct ps_msg push = push_msg();
    uint8_t *bytes = malloc(MIB);
    uint8_t *before = malloc(len);
    size_t total;
    size_t written;
    struct world w;

    (void)state;
    begin_world(&w, (struct ps_conn_limits){.linger_timeout = PS_SECONDS(5)});
    handshake(&w);
    keep_payload(&w.a, len);
    total = append_frame(bytes, 0, MIB, &push, len);
    written = MIB / 8;
    send_bytes(&w, bytes, written);
    RUN_UNTIL(&w, w.a.asked == 1);
    ps_conn_finish(w.a.conn);
    memset(w.a.payload, 0x55, len);
    memset(before, 0x55, len);
    while (written < total) {
        ssize_t n = put_some(&w, bytes + written, total - written);

        written += n > 0 ? (size_t)n : 0;
        if (n <= 0) {
            assert_true(n < 0 && errno == EAGAIN);
            (void)ps_loop_step(w.loop);
        }
    }
    assert_int_equal(shutdown(w.fd, SHUT_WR), 0);
    RUN_UNTIL(&w, w.a.closed);
    assert_string_equal(w.a.reason, "closed by us");
    assert_int_equal(w.a.frames, 0);
    assert_memory_equal(w.a.payload, before, len);
    free(before);
    free(bytes);
    end(&w);
}

static void grown(void *ctx, unsigned count)
{
    unsigned *seen = ctx;

    assert_int_equal(count, *seen + 1);
    *seen = count;
}

/* Threads are added up to the limit; open connections use them. */
static void io_threads_are_added_under_load(void **state)
{
    struct ps_msg push = push_msg();
    struct ps_buf *buf = ps_buf_new(MIB);
    struct ps_slice slice = {.buf = buf, .len = MIB};
    struct ps_conn_stats s = {0};
    unsigned seen = 0;
    unsigned sent = 0;
    struct world w;

    (void)state;
    memset(buf->data, 7, MIB);
    wanted = (struct ps_io_pool_options){
        .threads_max = 3,
        .autoscale = {.period = 1, .periods = 1},
        .on_grown = grown,
        .ctx = &seen,
    };
    begin_both(&w, (struct ps_conn_limits){0});
    memset(&wanted, 0, sizeof(wanted));
    both_handshake(&w);
    keep_payload(&w.a, MIB);
    while (seen < 3 || s.moved_by_pool < 8 * MIB) {
        assert_true(++sent < 100);
        assert_int_equal(send_msg(&w.b, &push, &slice), 0);
        ps_conn_flush(w.b.conn);
        RUN_UNTIL(&w, w.a.frames == sent && w.b.done == sent);
        assert_memory_equal(w.a.payload, buf->data, MIB);
        memset(w.a.payload, 0, MIB);
        ps_conn_stats(w.a.conn, &s);
    }
    assert_int_equal(ps_io_pool_threads(w.io_pool), 3);
    ps_buf_unref(buf);
    end(&w);
}

static int make_certificates(void **state)
{
    struct certs_authority *a;

    (void)state;
    if (by_tls) {
        assert_non_null(mkdtemp(certs_dir));
        a = certs_new("test authority");
        certs_write(a, certs_dir);
        certs_issue(a, &(struct certs_wish){.uri = "ps://c/server/s"},
                    certs_dir, "server");
        certs_issue(a, &(struct certs_wish){.uri = "ps://c/agent/a"}, certs_dir,
                    "agent");
        certs_free(a);
    }
    return 0;
}

static int remove_certificates(void **state)
{
    static const char *const files[] = {"ca", "server", "agent"};
    char path[64];

    (void)state;
    for (size_t i = 0; by_tls && i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s.crt", certs_dir, files[i]);
        (void)remove(path);
        snprintf(path, sizeof(path), "%s/%s.key", certs_dir, files[i]);
        (void)remove(path);
    }
    return by_tls ? rmdir(certs_dir) : 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_arrive_for_every_cut),
        cmocka_unit_test(frames_arrive_byte_by_byte),
        cmocka_unit_test(large_payloads_are_not_copied),
        cmocka_unit_test(both_ends_send_more_than_is_released),
        cmocka_unit_test(payloads_arrive_whole_under_changing_keys),
        cmocka_unit_test(small_frames_travel_together),
        cmocka_unit_test(small_frames_yield_the_loop_to_others),
        cmocka_unit_test(urgent_frames_are_sent_first),
        cmocka_unit_test(long_headers_arrive),
        cmocka_unit_test(unwanted_payload_is_skipped),
        cmocka_unit_test(reading_pauses_without_memory),
        cmocka_unit_test(resume_continues_with_staged_bytes),
        cmocka_unit_test(bytes_of_another_protocol_close_the_connection),
        cmocka_unit_test(later_prefix_is_refused),
        cmocka_unit_test(lengths_are_checked_with_the_prefix),
        cmocka_unit_test(impossible_lengths_close_the_connection),
        cmocka_unit_test(frame_before_hello_closes_the_connection),
        cmocka_unit_test(second_hello_closes_the_connection),
        cmocka_unit_test(role_that_does_not_dial_is_refused),
        cmocka_unit_test(silence_before_the_handshake_closes_the_connection),
        cmocka_unit_test(slow_handshake_closes_the_connection),
        cmocka_unit_test(slow_header_closes_the_connection),
        cmocka_unit_test(stalled_payload_closes_the_connection),
        cmocka_unit_test(idle_connection_stays_open),
        cmocka_unit_test(end_within_a_frame_is_reported),
        cmocka_unit_test(frames_before_the_end_arrive),
        cmocka_unit_test(connection_of_a_peer_that_never_reads_is_closed),
        cmocka_unit_test(connection_of_a_peer_that_stops_reading_is_closed),
        cmocka_unit_test(output_before_the_handshake_is_limited),
        cmocka_unit_test(finish_writes_queued_output),
        cmocka_unit_test(finish_closes_after_a_time_limit),
        cmocka_unit_test(connection_may_be_closed_in_a_callback),
        cmocka_unit_test(close_frees_all_memory),
        cmocka_unit_test(shared_bodies_arrive),
        cmocka_unit_test(references_need_a_same_host_connection),
        cmocka_unit_test(shared_memory_needs_a_same_host_connection),
    };
    const struct CMUnitTest near_tests[] = {
        cmocka_unit_test(reference_to_any_address_is_read_or_refused),
        cmocka_unit_test(release_of_payloads_never_sent_is_refused),
        cmocka_unit_test(referenced_memory_is_held_until_released),
        cmocka_unit_test(arenas_are_mapped_by_the_peer),
        cmocka_unit_test(references_outside_an_arena_are_refused),
        cmocka_unit_test(malformed_arenas_are_refused),
    };
    const struct CMUnitTest loops_tests[] = {
        cmocka_unit_test(io_threads_read_and_write_at_once),
        cmocka_unit_test(stalled_transfer_closes_the_connection),
        cmocka_unit_test(end_within_a_transfer_is_reported),
        cmocka_unit_test(finish_during_a_transfer_writes_queued_output),
        cmocka_unit_test(no_payload_is_written_after_finish),
        cmocka_unit_test(io_threads_are_added_under_load),
    };
    const struct CMUnitTest checksums_tests[] = {
        cmocka_unit_test(frame_with_any_changed_bit_is_refused),
        cmocka_unit_test(changed_bit_of_a_large_payload_is_found),
        cmocka_unit_test(older_peer_gets_no_checksums),
    };
    struct CMUnitTest chosen[64];
    size_t count = sizeof(tests) / sizeof(tests[0]);

    if (argc != 2) {
        fprintf(stderr, "usage: conn_suite tcp|cipher|unix|shm|threads|"
                        "checksums|checksums_threads|tls|tls_threads|ktls|"
                        "ktls_threads\n");
        return 2;
    }
    by_threads = strstr(argv[1], "threads") != NULL;
    by_ktls = strncmp(argv[1], "ktls", 4) == 0;
    by_tls = by_ktls || strncmp(argv[1], "tls", 3) == 0;
    ciphered = strcmp(argv[1], "cipher") == 0;
    by_checksums = strncmp(argv[1], "checksums", 9) == 0;
    changing_transport = ps_transport_tcp;
    changing_transport.read = read_changed;
    over_tcp = by_threads || by_checksums || by_tls || ciphered ||
               strcmp(argv[1], "tcp") == 0;
    by_shm = strcmp(argv[1], "shm") == 0;
    (void)signal(SIGPIPE, SIG_IGN); /* As the daemons. */
    memcpy(chosen, tests, sizeof(tests));
    if (by_shm) {
        memcpy(chosen + count, near_tests, sizeof(near_tests));
        count += sizeof(near_tests) / sizeof(near_tests[0]);
    }
    if (by_checksums && !by_threads) {
        memcpy(chosen + count, checksums_tests, sizeof(checksums_tests));
        count += sizeof(checksums_tests) / sizeof(checksums_tests[0]);
    }
    if (by_threads) {
        memcpy(chosen + count, loops_tests, sizeof(loops_tests));
        count += sizeof(loops_tests) / sizeof(loops_tests[0]);
    }
    return _cmocka_run_group_tests("conn", chosen, count, make_certificates,
                                   remove_certificates);
}
