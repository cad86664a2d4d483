/* SPDX-License-Identifier: Apache-2.0 */
/* The driver with a small machine that records its events: a push is summed
 * with itself off the loop, and the sum returns as a value. The other ends are
 * plain descriptors. */
#include "driver/driver.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "core/link/path.h"
#include "net/arena.h"
#include "net/io_pool.h"
#include "net/local.h"
#include "net/loop.h"
#include "net/socket.h"
#include "net/worker.h"
#include "proto/frame.h"
#include "proto/msg_codec.h"
#include "proto/ring.h"
#include "support/run_until.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define STORY_MAX 4096

struct echo {
    char story[STORY_MAX];
    struct ps_pool *pool;
    struct ps_slice pushed; /* Message of the push that is being summed. */
    struct ps_slice sum;
    struct ps_packet *value; /* The last one. */
    ps_conn_id to;
    ps_time deadline;
    unsigned again; /* Number of allocations still to be refused. */
    unsigned sent;
    bool dial_bad;
    const char *dial;
    bool sends_hello; /* On connections that it dialled. */
    bool keep_region;
    bool floods;   /* As many answers as a barrier's number. */
    bool ends_ops; /* The operation succeeds with this text. */
    struct ps_buf *region;
    int fail;
};

struct world {
    struct ps_loop *loop;
    struct ps_worker *worker;
    struct ps_driver *driver;
    struct ps_arenas *arenas;
    struct ps_io_pool *movers;
    struct echo machine;
    struct ps_loop_timer nudge;
    bool failed;
    bool closed;
};

static void note(struct echo *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void note(struct echo *e, const char *fmt, ...)
{
    size_t len = strlen(e->story);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(e->story + len, sizeof(e->story) - len, fmt, ap);
    va_end(ap);
}

static void on_push(struct echo *e, const struct ps_event *ev,
                    struct ps_effects *fx)
{
    struct ps_compute *c;
    struct ps_buf *dst;

    if (ev->msg.payload == NULL || ev->msg.payload->buf == NULL) {
        note(e, "push %llu without payload\n", (unsigned long long)ev->conn);
        return;
    }
    note(e, "push %llu of %zu\n", (unsigned long long)ev->conn,
         ev->msg.payload->len);
    assert_int_equal(ps_pool_get(e->pool, ev->msg.payload->len, &dst), 0);
    e->sum = (struct ps_slice){.buf = dst, .len = ev->msg.payload->len};
    e->to = ev->conn;
    c = ps_compute_new(77, 2, 1);
    ps_compute_add_src(c, ev->msg.payload, 0);
    ps_compute_add_src(c, ev->msg.payload, 0);
    ps_compute_pin(c, dst);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = PS_DTYPE_INT32;
    c->job.count = e->sum.len / 4;
    c->job.dst = dst->data;
    ps_effects_compute(fx, c);
    e->deadline = ev->now; /* As a machine that wants to batch does. */
}

static void on_computed(struct echo *e, const struct ps_event *ev,
                        struct ps_effects *fx)
{
    static const struct ps_rec_part part = {.dtype = PS_DTYPE_INT32};
    struct ps_msg m = {.code = PS_MSG_VALUE};

    assert_int_equal(ev->computed.token, 77);
    note(e, "computed %d\n", ev->computed.rc);
    m.value.parts = &part;
    m.value.parts_count = 1;
    ps_packet_unref(e->value);
    e->value = ps_packet_new(&m, &e->sum, 1);
    ps_effects_send(fx, e->to, 5 + e->sent, 6 + e->sent,
                    ps_packet_ref(e->value));
    e->sent++;
    ps_buf_unref(e->sum.buf);
    e->sum.buf = NULL;
}

/* So long that a frame with it takes about 500 bytes. */
static char words[PS_TEXT_MAX + 1];

/* A value that no frame can carry, numbered or not, followed by one that can be
 * sent. */
static void too_large(ps_conn_id conn, uint64_t seq, struct ps_effects *fx)
{
    static const struct ps_rec_part part = {.dtype = PS_DTYPE_INT32};
    const struct ps_msg m = {.code = PS_MSG_VALUE,
                             .value = {.parts = &part, .parts_count = 1}};
    const struct ps_msg next = {.code = PS_MSG_CREDIT};
    struct ps_slice slice = {.buf = ps_buf_new(4), .len = PS_PAYLOAD_MAX + 1};

    seq = seq == 1 ? 0 : seq;
    ps_effects_send(fx, conn, seq, 3, ps_packet_new(&m, &slice, 1));
    ps_effects_send(fx, conn, seq + 1, 3, ps_packet_new(&next, NULL, 0));
    ps_buf_unref(slice.buf);
}

static void on_msg(struct echo *e, const struct ps_event *ev,
                   struct ps_effects *fx)
{
    struct ps_msg m = {.code = PS_MSG_WELCOME};

    switch (ev->msg.msg->code) {
    case PS_MSG_HELLO:
        m.welcome.protocol = 1;
        m.welcome.name = "echo";
        ps_effects_send_msg(fx, ev->conn, &m);
        break;
    case PS_MSG_PUSH:
        on_push(e, ev, fx);
        break;
    case PS_MSG_PULL:
        if (ev->msg.msg->pull.epoch != 0) {
            too_large(ev->conn, ev->msg.msg->pull.epoch, fx);
            break;
        }
        ps_effects_close(fx, ev->conn);
        break;
    case PS_MSG_L_OP:
        note(e, "op %llu\n", (unsigned long long)ev->msg.msg->l_op.op_id);
        if (ev->msg.msg->l_op.key != 0) {
            ps_effects_op_done(fx, ev->conn, ev->msg.msg->l_op.op_id,
                               ev->msg.msg->l_op.round);
            break;
        }
        m = (struct ps_msg){.code = PS_MSG_L_DONE};
        m.l_done.op_id = ev->msg.msg->l_op.op_id;
        m.l_done.error = PS_E_NOKEY;
        m.l_done.text = "no";
        ps_effects_send_msg(fx, ev->conn, &m);
        break;
    case PS_MSG_L_BARRIER:
        for (uint64_t i = 0; e->floods && i < ev->msg.msg->l_barrier.number;
             i++) {
            m = (struct ps_msg){.code = PS_MSG_L_ERROR};
            m.l_error.error = PS_E_NOKEY;
            m.l_error.text = words;
            if (e->ends_ops) {
                m = (struct ps_msg){.code = PS_MSG_L_DONE};
                m.l_done.op_id = UINT64_MAX - i;
                m.l_done.error = PS_E_NOKEY;
                m.l_done.text = words;
            }
            ps_effects_send_msg(fx, ev->conn, &m);
        }
        note(e, "barrier %llu\n",
             (unsigned long long)ev->msg.msg->l_barrier.number);
        break;
    default:
        break;
    }
}

static struct ps_msg hello_of(uint64_t session, uint64_t features)
{
    return (struct ps_msg){.code = PS_MSG_HELLO,
                           .hello = {.protocol = 1,
                                     .protocol_least = 1,
                                     .role = PS_ROLE_AGENT,
                                     .name = "a",
                                     .cluster = "c",
                                     .instance = 1,
                                     .session = session,
                                     .features = features}};
}

static void tell_unmapped(struct echo *e, const struct ps_event *ev)
{
    note(e, "unmapped %u %s %s\n", ev->region.region,
         ps_err_name(ev->region.rc), ev->region.why);
}

static int step_echo(void *self, const struct ps_event *ev,
                     struct ps_effects *fx)
{
    static const char *const kinds[] = {"dialled", "accepted", "local"};
    struct echo *e = self;

    switch (ev->type) {
    case PS_EV_TICK:
        note(e, "tick\n");
        e->deadline = PS_TIME_NEVER;
        if (e->dial != NULL) {
            ps_effects_dial(fx, 3, e->dial, 0);
            e->dial = NULL;
        }
        break;
    case PS_EV_OPEN:
        note(e, "open %llu %s\n", (unsigned long long)ev->conn,
             kinds[ev->open.kind]);
        if (e->sends_hello && ev->open.kind == PS_CONN_DIALLED) {
            const struct ps_msg hello = hello_of(4, 0);

            ps_effects_send_msg(fx, ev->conn, &hello);
        }
        break;
    case PS_EV_DIAL_FAILED:
        note(e, "dial %llu failed %s\n",
             (unsigned long long)ev->dial_failed.target,
             ps_err_name(ev->dial_failed.rc));
        break;
    case PS_EV_MSG:
        on_msg(e, ev, fx);
        break;
    case PS_EV_OPS:
        assert_in_range(ev->ops.count, 1, PS_RING_OP_SLOTS);
        for (uint32_t i = 0; i < ev->ops.count; i++) {
            struct ps_msg m = {.code = PS_MSG_L_OP, .l_op = ev->ops.op[i]};
            struct ps_event one = {.type = PS_EV_MSG, .conn = ev->conn};

            one.msg.msg = &m;
            on_msg(e, &one, fx);
        }
        break;
    case PS_EV_SENT:
        break;
    case PS_EV_STALLED:
    case PS_EV_PROBED:
    case PS_EV_CERTIFICATE:
        break;
    case PS_EV_CLOSED:
        note(e, "closed %llu %s\n", (unsigned long long)ev->conn,
             ps_err_name(ev->closed.rc));
        break;
    case PS_EV_COMPUTED:
        on_computed(e, ev, fx);
        break;
    case PS_EV_REGION:
        if (ev->region.buf == NULL) {
            tell_unmapped(e, ev);
            break;
        }
        note(e, "region %u of %zu\n", ev->region.region, ev->region.buf->size);
        e->region = e->keep_region ? ps_buf_ref(ev->region.buf) : NULL;
        break;
    case PS_EV_RESIDUAL_SEGMENT:
        if (ev->region.buf == NULL) {
            tell_unmapped(e, ev);
            break;
        }
        note(e, "keep %u of %zu\n", ev->region.region, ev->region.buf->size);
        e->region = ps_buf_ref(ev->region.buf);
        ps_effects_send_msg(
            fx, ev->conn,
            &(struct ps_msg){.code = PS_MSG_L_RESIDUAL_SEGMENT,
                             .l_residual_segment = {.segment = e->region->tag,
                                                    .size = e->region->size}});
        break;
    case PS_EV_DRAIN:
        note(e, "drain\n");
        return e->fail;
    case PS_EV_SHUTDOWN:
        note(e, "shutdown\n");
        return e->fail;
    }
    return 0;
}

static ps_time deadline(const void *self)
{
    const struct echo *e = self;

    return e->deadline;
}

static int payload(void *self, ps_conn_id conn, const struct ps_msg *msg,
                   uint64_t len, struct ps_slice *ret_slice)
{
    struct echo *e = self;
    struct ps_buf *buf;

    (void)conn;
    if (msg->code == PS_MSG_PUSH && msg->push.gen == 0) {
        return PS_E_NOJOB;
    }
    if (e->again > 0) {
        e->again--;
        return PS_E_AGAIN;
    }
    assert_int_equal(ps_pool_get(e->pool, len, &buf), 0);
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}

static const struct ps_machine_ops echo_ops = {
    .step = step_echo, .deadline = deadline, .payload = payload};

static void failed(void *ctx, int rc)
{
    struct world *w = ctx;

    assert_int_equal(rc, w->machine.fail);
    w->failed = true;
}

static void closed(void *ctx)
{
    struct world *w = ctx;

    assert_false(w->closed);
    w->closed = true;
}

static void one_more_loop(void *ctx, unsigned count)
{
    struct world *w = ctx;

    note(&w->machine, "%u further loops\n", count);
    ps_driver_io_grown(w->driver);
}

/* Options of begin_with(); 0: the default. */
static struct ps_driver_options wanted;

static void begin_with(struct world *w, enum ps_role self, unsigned loops_max)
{
    struct ps_worker_options worker = {.threads = 2};
    struct ps_driver_options opt = {
        .pre_handshake_max = 4,
        .local_max = 2,
        .self = self,
        .ctx = w,
        .send_buffer = wanted.send_buffer,
        .output = wanted.output,
        .output_total = wanted.output_total,
        .limits = {.linger_timeout = PS_MILLIS(10)}};

    memset(w, 0, sizeof(*w));
    assert_int_equal(ps_loop_new(&w->loop), 0);
    worker.loop = w->loop;
    assert_int_equal(ps_worker_new(&worker, &w->worker), 0);
    w->machine.deadline = PS_TIME_NEVER;
    w->machine.pool = ps_pool_new(&(struct ps_pool_options){0});
    w->arenas = ps_arenas_new();
    opt.loop = w->loop;
    if (loops_max > 0) {
        const struct ps_io_pool_options movers = {
            .loop = w->loop,
            .threads = 1,
            .threads_max = loops_max,
            .autoscale = {.period = 1, .periods = 1},
            .on_grown = one_more_loop,
            .ctx = w};

        assert_int_equal(ps_io_pool_new(&movers, &w->movers), 0);
    }
    opt.io_pool = w->movers;
    opt.worker = w->worker;
    opt.arenas = w->arenas;
    opt.machine = (struct ps_machine){.ops = &echo_ops, .self = &w->machine};
    opt.on_failed = failed;
    opt.scheduler = "127.0.0.1:1";
    w->driver = ps_driver_new(&opt);
}

static void begin_world(struct world *w, enum ps_role self)
{
    begin_with(w, self, 0);
}

static void end(struct world *w)
{
    ps_driver_close(w->driver, closed);
    assert_false(w->closed);
    RUN_UNTIL(w, w->closed);
    ps_worker_free(w->worker);
    ps_driver_free(w->driver);
    ps_io_pool_free(w->movers);
    ps_buf_unref(w->machine.sum.buf);
    ps_packet_unref(w->machine.value);
    ps_buf_unref(w->machine.region);
    ps_pool_free(w->machine.pool);
    ps_arenas_free(w->arenas);
    ps_loop_free(w->loop);
    assert_int_equal(ps_alloc_live(), 0);
}

static bool in_story(const struct world *w, const char *text)
{
    return strstr(w->machine.story, text) != NULL;
}

static size_t append_frame(uint8_t *out, size_t at, const struct ps_msg *msg,
                           uint64_t payload_len)
{
    size_t len;

    assert_int_equal(
        ps_msg_encode(msg, PS_PROTOCOL, payload_len, out + at, 1024, &len), 0);
    return at + len;
}

static int caller(struct world *w)
{
    int fd[2];

    /* An unnamed socket stands for TCP: the driver only asks for its name. */
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    ps_driver_accept(w->driver, fd[0]);
    return fd[1];
}

static void say(int fd, const void *bytes, size_t len)
{
    assert_int_equal(write(fd, bytes, len), len);
}

static void handshake_as(int fd, uint64_t session, uint64_t features)
{
    const struct ps_msg hello = hello_of(session, features);
    uint8_t bytes[1024];

    say(fd, bytes, append_frame(bytes, 0, &hello, 0));
}

static void handshake(int fd)
{
    handshake_as(fd, 0, 0);
}

static const struct ps_rec_part one = {.dtype = PS_DTYPE_INT32, .count = 4};

static void push_as(int fd, uint64_t gen, size_t len, uint64_t seq)
{
    /* Values have numbers from 5 on, one for each push. */
    struct ps_msg m = {
        .code = PS_MSG_PUSH, .seq = seq, .ack = seq > 0 ? seq + 3 : 0};
    uint8_t *bytes = malloc(1024 + len);
    size_t n;

    m.push.gen = gen;
    m.push.parts = &one;
    m.push.parts_count = 1;
    n = append_frame(bytes, 0, &m, len);
    for (size_t i = 0; i < len / 4; i++) {
        int32_t v = (int32_t)i;

        memcpy(bytes + n + 4 * i, &v, 4);
    }
    say(fd, bytes, n + len);
    free(bytes);
}

static void push(int fd, uint64_t gen, size_t len)
{
    push_as(fd, gen, len, 0);
}

/* Reads whole frames until `code`; returns its payload, to be freed. */
static uint8_t *await(struct world *w, int fd, unsigned code, uint64_t *ret_seq,
                      uint64_t *ret_ack)
{
    struct ps_decoder *d = ps_decoder_new();

    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    for (;;) {
        uint8_t head[PS_FRAME_PREFIX];
        struct ps_frame_prefix p;
        struct ps_msg m;
        size_t got = 0;

        while (got < sizeof(head)) {
            ssize_t n = read(fd, head + got, sizeof(head) - got);

            if (n > 0) {
                got += (size_t)n;
            } else {
                assert_int_not_equal(n, 0);
                ps_loop_step(w->loop);
            }
        }
        assert_int_equal(ps_frame_parse(head, &p), 0);
        uint64_t len = p.header_len + p.payload_len;
        uint8_t *bytes = malloc(len);

        for (got = 0; got < len;) {
            ssize_t n = read(fd, bytes + got, len - got);

            if (n > 0) {
                got += (size_t)n;
            } else {
                ps_loop_step(w->loop);
            }
        }
        assert_int_equal(ps_msg_decode(d, p.code, bytes, p.header_len, &m), 0);
        if (p.code == code) {
            *ret_seq = m.seq;
            *ret_ack = m.ack;
            memmove(bytes, bytes + p.header_len, p.payload_len);
            ps_decoder_free(d);
            return bytes;
        }
        free(bytes);
    }
}

static void sums_and_answers(struct world *w, size_t len)
{
    uint64_t seq;
    uint64_t ack;
    int fd = caller(w);

    handshake(fd);
    RUN_UNTIL(w, in_story(w, "open 1 accepted\n"));
    free(await(w, fd, PS_MSG_WELCOME, &seq, &ack));
    push(fd, 1, len);

    int32_t *v = (int32_t *)(void *)await(w, fd, PS_MSG_VALUE, &seq, &ack);

    assert_int_equal(seq, 5);
    assert_int_equal(ack, 6);
    for (size_t i = 0; i < len / 4; i++) {
        assert_int_equal(v[i], 2 * i);
    }
    free(v);
    close(fd);
    RUN_UNTIL(w, in_story(w, "closed 1 PS_E_CLOSED\n"));
}

/* A deadline that is due waits until the ends of small jobs are fed. */
static void small_push_is_read_and_computed(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    sums_and_answers(&w, 1024);
    assert_true(in_story(&w, "push 1 of 1024\ncomputed 0\ntick\n"));
    end(&w);
}

static void large_push_is_read_and_computed(void **state)
{
    struct ps_driver_stats s;
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    sums_and_answers(&w, 64 * 1024); /* A socket takes it at once. */
    assert_true(in_story(&w, "computed 0\n"));
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.connections, 0);
    assert_true(s.bytes_in > 64 * 1024);
    assert_true(s.bytes_out > 64 * 1024);
    end(&w);
}

/* A peer that reads slowly gets acknowledgements early, and the machine knows
 * the bytes that are not sent yet. */
static void acknowledgements_are_sent_before_queued_replies(void **state)
{
    const unsigned count = 32;
    struct world w;
    uint64_t seq;
    uint64_t ack;
    int fd;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    fd = caller(&w);
    handshake(fd);
    free(await(&w, fd, PS_MSG_WELCOME, &seq, &ack));
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    for (unsigned i = 1; i <= count; i++) {
        push(fd, 1, 64 * 1024);
        RUN_UNTIL(&w, w.machine.sent == i);
    }
    assert_int_equal(w.machine.value->writers, 1);
    /* The acknowledgement before all values that the kernel has not taken. */
    free(await(&w, fd, PS_MSG_ACK, &seq, &ack));
    assert_int_equal(seq, 0);
    assert_int_equal(ack, 6 + count - 1);
    free(await(&w, fd, PS_MSG_VALUE, &seq, &ack));
    assert_in_range(seq, 6, 5 + count - 2);
    while (seq < 5 + count - 1) {
        free(await(&w, fd, PS_MSG_VALUE, &seq, &ack));
    }
    assert_int_equal(w.machine.value->writers, 0);
    close(fd);
    end(&w);
}

/* An empty message takes the number of one that cannot be sent, so that later
 * ones are accepted; without a link the connection is closed. */
static void a_message_that_no_frame_carries_delays_nothing(void **state)
{
    struct ps_msg pull = {.code = PS_MSG_PULL,
                          .pull = {.parts = &one, .parts_count = 1}};
    uint8_t bytes[1024];
    struct world w;
    uint64_t seq;
    uint64_t ack;
    int fd;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    fd = caller(&w);
    handshake(fd);
    free(await(&w, fd, PS_MSG_WELCOME, &seq, &ack));
    pull.pull.epoch = 41;
    say(fd, bytes, append_frame(bytes, 0, &pull, 0));
    do {
        free(await(&w, fd, PS_MSG_ACK, &seq, &ack));
    } while (seq == 0);
    assert_int_equal(seq, 41);
    assert_int_equal(ack, 3);
    free(await(&w, fd, PS_MSG_CREDIT, &seq, &ack));
    assert_int_equal(seq, 42);
    pull.pull.epoch = 1;
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    say(fd, bytes, append_frame(bytes, 0, &pull, 0));
    RUN_UNTIL(&w, in_story(&w, "closed 1 PS_E_TOOBIG\n"));
    close(fd);
    end(&w);
}

static void unwanted_payload_is_skipped(void **state)
{
    struct world w;
    int fd;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    fd = caller(&w);
    handshake(fd);
    push(fd, 0, 4096);
    RUN_UNTIL(&w, in_story(&w, "push 1 without payload\n"));
    close(fd);
    end(&w);
}

/* Without memory the connection waits, other events continue, and after each of
 * them the machine is asked again. */
static void payload_is_read_once_memory_is_free(void **state)
{
    struct ps_driver_stats s;
    struct world w;
    int fd;
    int other;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    fd = caller(&w);
    handshake(fd);
    w.machine.again = 3;
    push(fd, 1, 4096);
    RUN_UNTIL(&w, (ps_driver_stats(w.driver, &s), s.paused == 1));
    assert_false(in_story(&w, "push"));
    other = caller(&w);
    handshake(other);
    RUN_UNTIL(&w, in_story(&w, "push 1 of 4096\n"));
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.paused, 0);
    RUN_UNTIL(&w, in_story(&w, "computed"));
    close(fd);
    close(other);
    end(&w);
}

static void hangup_is_followed_by_closed(void **state)
{
    struct ps_msg pull = {.code = PS_MSG_PULL};
    uint8_t bytes[1024];
    struct world w;
    int fd;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    fd = caller(&w);
    handshake(fd);
    pull.pull.parts = &one;
    pull.pull.parts_count = 1;
    say(fd, bytes, append_frame(bytes, 0, &pull, 0));
    RUN_UNTIL(&w, recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) == 0);
    close(fd);
    RUN_UNTIL(&w, in_story(&w, "closed 1 PS_E_CLOSED\n"));
    end(&w);
}

static void peers_before_their_handshake_make_room(void **state)
{
    struct ps_driver_stats s;
    struct world w;
    int fd[6];

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    fd[0] = caller(&w);
    handshake(fd[0]);
    uint64_t n;

    free(await(&w, fd[0], PS_MSG_WELCOME, &n, &n));
    for (int i = 1; i < 6; i++) {
        fd[i] = caller(&w);
    }
    RUN_UNTIL(&w, in_story(&w, "closed 2 PS_E_FULL\n"));
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.pre_handshake, 4);
    assert_int_equal(s.connections, 5);
    for (int i = 0; i < 6; i++) {
        close(fd[i]);
    }
    end(&w);
}

static void nudged(struct ps_loop_timer *t)
{
    (void)t;
}

/* The next turn of the loop comes at once. */
static void nudge(struct world *w)
{
    w->nudge.due = nudged;
    ps_loop_timer_set(w->loop, &w->nudge, ps_loop_now(w->loop));
}

static void want_dial(struct world *w, const char *address)
{
    w->machine.dial = address;
    w->machine.deadline = 0;
    nudge(w);
}

static void driver_dials_an_address(void **state)
{
    char address[64];
    struct world w;
    uint16_t port;
    int fd;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    assert_int_equal(ps_listen_tcp("127.0.0.1", 0, 4, &fd, &port), 0);
    snprintf(address, sizeof(address), "localhost:%u", (unsigned)port);
    want_dial(&w, address);
    RUN_UNTIL(&w, in_story(&w, "open 1 dialled\n"));
    close(fd);
    want_dial(&w, address);
    RUN_UNTIL(&w, in_story(&w, "dial 3 failed PS_E_REFUSED\n") ||
                      in_story(&w, "dial 3 failed PS_E_UNREACH\n"));
    want_dial(&w, "nonsense");
    RUN_UNTIL(&w, in_story(&w, "dial 3 failed PS_E_INVAL\n"));
    end(&w);
}

/* Ending with a dial under way. */
static void close_ends_a_dial(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    want_dial(&w, "127.0.0.1:9");
    while (!in_story(&w, "tick\n")) {
        ps_loop_step(w.loop);
    }
    end(&w);
    assert_false(in_story(&w, "dial 3"));
}

/* Of the driver's end. */
static int accepted_flags;

static int local_caller(struct world *w)
{
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(fcntl(fd[0], F_SETFL, accepted_flags), 0);
    ps_driver_accept_local(w->driver, fd[0]);
    return fd[1];
}

static void send_region(int to, const void *bytes, size_t len, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof(control)};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);

    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &fd, sizeof(fd));
    assert_int_equal(sendmsg(to, &m, 0), len);
}

static void region_reaches_the_machine(void **state)
{
    struct ps_msg hello = {.code = PS_MSG_L_HELLO,
                           .l_hello = {.protocol = 1, .job = "j"}};
    struct ps_msg region = {.code = PS_MSG_L_REGION,
                            .l_region = {.region = 9, .size = 8192}};
    uint8_t bytes[1024];
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    w.machine.keep_region = true;
    int fd = local_caller(&w);
    int mem = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(mem, 8192), 0);
    assert_int_equal(
        fcntl(mem, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    say(fd, bytes, append_frame(bytes, 0, &hello, 0));
    send_region(fd, bytes, append_frame(bytes, 0, &region, 0), mem);
    RUN_UNTIL(&w, in_story(&w, "region 9 of 8192\n"));
    assert_int_equal(pwrite(mem, "x", 1, 100), 1);
    assert_int_equal(w.machine.region->data[100], 'x');

    /* The stated size, not that of the file. */
    region.l_region.size = 4096;
    send_region(fd, bytes, append_frame(bytes, 0, &region, 0), mem);
    RUN_UNTIL(
        &w, in_story(&w, "unmapped 9 PS_E_INVAL memfd is not of the announced "
                         "size\n"));
    close(mem);
    close(fd);
    end(&w);
}

/* The region does not fit into the address space: the machine is notified, and
 * the connection stays. */
static void region_that_cannot_be_mapped_is_reported(void **state)
{
    const uint64_t size = UINT64_C(1) << 50;
    struct ps_msg hello = {.code = PS_MSG_L_HELLO,
                           .l_hello = {.protocol = 1, .job = "j"}};
    struct ps_msg region = {.code = PS_MSG_L_REGION,
                            .l_region = {.region = 9, .size = size}};
    uint8_t bytes[1024];
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    int fd = local_caller(&w);
    int mem = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(mem, (off_t)size), 0);
    assert_int_equal(
        fcntl(mem, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    say(fd, bytes, append_frame(bytes, 0, &hello, 0));
    send_region(fd, bytes, append_frame(bytes, 0, &region, 0), mem);
    RUN_UNTIL(&w,
              in_story(&w, "unmapped 9 PS_E_NOMEM memfd cannot be mapped: "
                           "1024.0 TiB: Cannot allocate memory (errno 12); "));
    assert_false(in_story(&w, "closed"));
    close(mem);
    close(fd);
    end(&w);
}

static int take_fd(int from)
{
    char control[CMSG_SPACE(sizeof(int))];
    uint8_t bytes[1024];
    struct iovec iov = {bytes, sizeof(bytes)};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof(control)};
    int fd;

    assert_true(recvmsg(from, &m, MSG_CMSG_CLOEXEC) > 0);
    assert_non_null(CMSG_FIRSTHDR(&m));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
    return fd;
}

/* Segments that one agent left with a worker reach other workers through the
 * next agent. */
static void residual_segments_are_passed_both_ways(void **state)
{
    struct ps_msg hello = {.code = PS_MSG_L_HELLO,
                           .l_hello = {.protocol = 1, .job = "j"}};
    struct ps_msg keep = {.code = PS_MSG_L_RESIDUAL_SEGMENT,
                          .l_residual_segment = {.segment = 9, .size = 8192}};
    struct ps_arenas *before = ps_arenas_new();
    struct ps_buf *buf;
    uint8_t bytes[1024];
    struct world w;
    int mine;

    (void)state;
    assert_int_equal(ps_arenas_create_segment(before, 8192, &buf), 0);
    assert_int_equal(ps_arenas_segment_fd(before, buf->tag, &mine), 0);
    buf->data[100] = 'x';
    begin_world(&w, PS_ROLE_AGENT);
    int fd = local_caller(&w);

    say(fd, bytes, append_frame(bytes, 0, &hello, 0));
    send_region(fd, bytes, append_frame(bytes, 0, &keep, 0), mine);
    RUN_UNTIL(&w, in_story(&w, "keep 9 of 8192\n"));
    ps_buf_unref(buf);
    ps_arenas_free(before); /* Its process is dead. */
    assert_int_equal(w.machine.region->data[100], 'x');
    w.machine.region->data[101] = 'y';
    (void)ps_loop_step(w.loop);

    int other = take_fd(fd);
    char seen[2];

    assert_int_equal(pread(other, seen, 2, 100), 2);
    assert_memory_equal(seen, "xy", 2);
    assert_int_equal(pwrite(other, "z", 1, 100), 1);
    assert_int_equal(w.machine.region->data[100], 'z');
    assert_int_equal(ftruncate(other, 0), -1);
    close(other);

    /* Memory that may shrink is refused. */
    int loose = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(loose, 8192), 0);
    send_region(fd, bytes, append_frame(bytes, 0, &keep, 0), loose);
    RUN_UNTIL(&w, in_story(&w, "unmapped 9 PS_E_INVAL memfd is not sealed"));
    close(loose);
    close(fd);
    end(&w);
}

static int make_memory(size_t size, void **ret_data)
{
    int mem = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(mem, (off_t)size), 0);
    assert_int_equal(
        fcntl(mem, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    *ret_data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, mem, 0);
    assert_true(*ret_data != MAP_FAILED);
    return mem;
}

/* A worker that has sent two frames: hello and its ring. */
struct ringed {
    int fd;
    void *memory;
    struct ps_ring_worker ring;
};

static void begin_ring(struct world *w, struct ringed *r)
{
    struct ps_msg hello = {.code = PS_MSG_L_HELLO,
                           .l_hello = {.protocol = 1, .job = "j"}};
    struct ps_msg m = {.code = PS_MSG_L_RING,
                       .l_ring = {.size = ps_ring_bytes()}};
    uint8_t bytes[1024];
    int mem = make_memory(ps_ring_bytes(), &r->memory);

    r->fd = local_caller(w);
    say(r->fd, bytes, append_frame(bytes, 0, &hello, 0));
    send_region(r->fd, bytes, append_frame(bytes, 0, &m, 0), mem);
    close(mem);
    ps_ring_worker_init(&r->ring, r->memory);
}

/* The machine ends the session while the worker writes operations. */
static void a_ring_that_cannot_be_mapped_is_named(void **state)
{
    struct ps_msg hello = {.code = PS_MSG_L_HELLO,
                           .l_hello = {.protocol = 1, .job = "j"}};
    struct ps_msg ring = {.code = PS_MSG_L_RING,
                          .l_ring = {.size = ps_ring_bytes()}};
    int loose = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint8_t bytes[1024];
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    int fd = local_caller(&w);

    assert_int_equal(ftruncate(loose, (off_t)ps_ring_bytes()), 0);
    say(fd, bytes, append_frame(bytes, 0, &hello, 0));
    send_region(fd, bytes, append_frame(bytes, 0, &ring, 0), loose);
    RUN_UNTIL(&w,
              in_story(&w, "unmapped 0 PS_E_INVAL ring of operations: memfd is "
                           "not sealed"));
    close(loose);
    close(fd);
    end(&w);
}

static void end_ring(struct world *w, struct ringed *r)
{
    munmap(r->memory, ps_ring_bytes());
    close(r->fd);
    end(w);
}

static void ring_op(struct ringed *r, uint64_t id, uint32_t key, uint64_t after)
{
    const struct ps_msg_l_op op = {.op_id = id, .key = key, .round = id + 1};

    assert_true(ps_ring_push_op(&r->ring, &op, after));
}

static void say_wake(struct ringed *r)
{
    static const struct ps_msg wake = {.code = PS_MSG_L_WAKE};
    uint8_t bytes[64];

    if (ps_ring_wake_agent(&r->ring)) {
        say(r->fd, bytes, append_frame(bytes, 0, &wake, 0));
    }
}

static void operations_of_the_ring_reach_the_machine(void **state)
{
    struct ps_msg barrier = {.code = PS_MSG_L_BARRIER,
                             .l_barrier = {.op_id = 9, .number = 1}};
    struct ps_msg_l_done done;
    struct ringed r;
    struct world w;
    uint8_t bytes[64];
    uint64_t seq;
    uint64_t ack;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    begin_ring(&w, &r);
    /* In order with the frames between which they were pushed, however late
     * they are read. */
    ring_op(&r, 1, 1, 2);
    say(r.fd, bytes, append_frame(bytes, 0, &barrier, 0));
    ring_op(&r, 2, 1, 3);
    barrier.l_barrier.number = 2;
    say(r.fd, bytes, append_frame(bytes, 0, &barrier, 0));
    ring_op(&r, 3, 1, 4);
    RUN_UNTIL(&w, in_story(&w, "op 3\n"));
    assert_true(in_story(&w, "op 1\nbarrier 1\nop 2\nbarrier 2\nop 3\n"));
    for (uint64_t id = 1; id <= 3; id++) {
        assert_int_equal(ps_ring_pop_dones(&r.ring, &done, 1), 1);
        assert_int_equal(done.op_id, id);
        assert_int_equal(done.version, id + 1);
    }

    /* Woken, and waking. */
    assert_true(ps_ring_worker_sleep(&r.ring, 2, false));
    ring_op(&r, 4, 1, 4);
    say_wake(&r);
    RUN_UNTIL(&w, in_story(&w, "op 4\n"));
    ring_op(&r, 5, 1, 4);
    say_wake(&r);
    free(await(&w, r.fd, PS_MSG_L_WAKE, &seq, &ack));
    assert_int_equal(ps_ring_pop_dones(&r.ring, &done, 1), 1);
    assert_int_equal(ps_ring_pop_dones(&r.ring, &done, 1), 1);
    assert_int_equal(done.op_id, 5);

    /* Errors have a text, which a ring does not carry. */
    ring_op(&r, 6, 0, 4);
    say_wake(&r);
    free(await(&w, r.fd, PS_MSG_L_DONE, &seq, &ack));
    assert_int_equal(ps_ring_pop_dones(&r.ring, &done, 1), 0);
    end_ring(&w, &r);
}

static void operations_of_a_worker_count_before_its_death(void **state)
{
    struct ringed r;
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    begin_ring(&w, &r);
    for (uint64_t id = 1; id <= 3; id++) {
        ring_op(&r, id, 1, 2);
    }
    close(r.fd);
    r.fd = -1;
    RUN_UNTIL(&w, in_story(&w, "closed 1 PS_E_CLOSED\n"));
    assert_true(in_story(&w, "op 1\nop 2\nop 3\nclosed 1"));
    end_ring(&w, &r);
}

static void operations_beyond_the_ring_use_the_socket(void **state)
{
    struct ps_msg op = {.code = PS_MSG_L_OP,
                        .l_op = {.op_id = PS_RING_OP_SLOTS + 1, .key = 1}};
    struct ps_msg_l_done done;
    struct ringed r;
    struct world w;
    uint8_t bytes[64];
    uint64_t id = 0;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    begin_ring(&w, &r);
    while (id < PS_RING_OP_SLOTS) {
        ring_op(&r, ++id, 1, 2);
    }
    assert_false(ps_ring_push_op(&r.ring, &op.l_op, 2));
    say(r.fd, bytes,
        append_frame(bytes, 0, &op, 0)); /* Over the socket, then. */
    RUN_UNTIL(&w, ps_ring_has_done(&r.ring));
    for (uint64_t n = 1; n <= PS_RING_OP_SLOTS + 1; n++) {
        RUN_UNTIL(&w, ps_ring_has_done(&r.ring));
        assert_int_equal(ps_ring_pop_dones(&r.ring, &done, 1), 1);
        assert_int_equal(done.op_id, n);
    }
    end_ring(&w, &r);
}

static void ring_with_impossible_counters_ends_its_connection(void **state)
{
    struct ringed r;
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    begin_ring(&w, &r);
    memset(r.memory, 0x7f, 256); /* More than fit. */
    RUN_UNTIL(&w, in_story(&w, "closed 1 PS_E_PROTO\n"));
    assert_false(in_story(&w, "op 1"));
    end_ring(&w, &r);
}

static void second_ring_or_wrong_size_ends_the_connection(void **state)
{
    struct ps_msg m = {.code = PS_MSG_L_RING,
                       .l_ring = {.size = ps_ring_bytes()}};
    uint8_t bytes[64];
    struct ringed r;
    struct world w;
    void *data;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    begin_ring(&w, &r);
    int mem = make_memory(ps_ring_bytes(), &data);

    munmap(data, ps_ring_bytes());
    send_region(r.fd, bytes, append_frame(bytes, 0, &m, 0), mem);
    RUN_UNTIL(&w, in_story(&w, "closed 1 PS_E_PROTO\n"));
    close(mem);
    end_ring(&w, &r);
}

static void local_connections_are_limited(void **state)
{
    struct ps_driver_stats s;
    struct world w;
    int fd[3];
    char byte;

    (void)state;
    begin_world(&w, PS_ROLE_AGENT);
    for (int i = 0; i < 3; i++) {
        fd[i] = local_caller(&w);
    }
    /* The reason is sent, and the connection closed at once. */
    uint64_t n;

    free(await(&w, fd[2], PS_MSG_REJECT, &n, &n));
    assert_int_equal(read(fd[2], &byte, 1), 0);
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.refused, 1);
    assert_int_equal(s.connections, 2);
    for (int i = 0; i < 3; i++) {
        close(fd[i]);
    }
    end(&w);
}

/* Two workers of this user, which do not read their answers. */
static void begin_flood(struct world *w, uint64_t output, uint64_t total,
                        int fd[2])
{
    struct ps_msg hello = {.code = PS_MSG_L_HELLO,
                           .l_hello = {.protocol = 1, .job = "j"}};
    uint8_t bytes[1024];

    memset(words, 0, sizeof(words));
    memset(words, 'x', 400);
    wanted = (struct ps_driver_options){
        .send_buffer = 4096, .output = output, .output_total = total};
    begin_world(w, PS_ROLE_AGENT);
    wanted = (struct ps_driver_options){0};
    w->machine.floods = true;
    accepted_flags = O_NONBLOCK;
    for (int i = 0; i < 2; i++) {
        fd[i] = local_caller(w);
        say(fd[i], bytes, append_frame(bytes, 0, &hello, 0));
    }
    accepted_flags = 0;
}

static void flood(struct world *w, int fd, uint64_t count)
{
    struct ps_msg m = {.code = PS_MSG_L_BARRIER,
                       .l_barrier = {.number = count}};
    char line[64];
    uint8_t bytes[64];

    snprintf(line, sizeof(line), "barrier %llu\n", (unsigned long long)count);
    say(fd, bytes, append_frame(bytes, 0, &m, 0));
    RUN_UNTIL(w, in_story(w, line));
}

/* Memory counts, which is more than the bytes that are written. */
static void connection_beyond_its_output_limit_is_closed(void **state)
{
    struct ps_driver_stats s;
    struct world w;
    int fd[2];

    (void)state;
    begin_flood(&w, 100000, 1 << 20, fd);
    flood(&w, fd[0], 150);
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.connections, 2);
    assert_in_range(s.output, 60000, 100000);
    flood(&w, fd[0], 100);
    RUN_UNTIL(&w, in_story(&w, "closed 1 PS_E_FULL\n"));
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.connections, 1);
    assert_int_equal(s.output, 0);
    close(fd[0]);
    close(fd[1]);
    end(&w);
}

/* Reads all messages that wait; counts those with that text. */
static uint32_t count_texts(struct world *w, int fd, const char *text,
                            uint32_t of)
{
    const size_t len = strlen(text);
    uint32_t total = 0;
    uint32_t n = 0;
    size_t have = 0;
    uint8_t bytes[8192];

    while (total < of) {
        ssize_t got = recv(fd, bytes + have, sizeof(bytes) - have,
                           MSG_DONTWAIT);
        struct ps_frame_prefix prefix;
        size_t at = 0;

        if (got <= 0) {
            assert_int_equal(errno, EAGAIN);
            (void)ps_loop_step(w->loop);
            continue;
        }
        have += (size_t)got;
        while (have - at >= PS_FRAME_PREFIX &&
               ps_frame_parse(bytes + at, &prefix) == 0 &&
               have - at >= PS_FRAME_PREFIX + prefix.header_len) {
            at += PS_FRAME_PREFIX;
            n += memmem(bytes + at, prefix.header_len, text, len) != NULL;
            total++;
            at += prefix.header_len;
        }
        memmove(bytes, bytes + at, have - at);
        have -= at;
    }
    return n;
}

/* PS_OPS_MAX failures of a training process that reads none of them. */
static void failures_of_all_operations_fit_the_output_limit(void **state)
{
    struct ps_driver_stats s;
    struct world w;
    uint32_t worded;
    int fd[2];

    (void)state;
    begin_flood(&w, 0, 0, fd); /* As by default. */
    w.machine.ends_ops = true;
    memset(words, 'x', PS_TEXT_MAX);
    flood(&w, fd[0], PS_OPS_MAX);
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.connections, 2);
    assert_in_range(s.output, PS_OUTPUT_DEFAULT / 4, PS_OUTPUT_DEFAULT);
    worded = count_texts(&w, fd[0], words, PS_OPS_MAX);
    assert_in_range(worded, 1000, 20000);
    /* It reads: later failures have their text again. */
    flood(&w, fd[0], 1);
    assert_int_equal(count_texts(&w, fd[0], words, 1), 1);
    close(fd[0]);
    close(fd[1]);
    end(&w);
}

/* Where the user's or the total limit is reached, the connection that needs the
 * last bytes may not be the cause. */
static void heaviest_connection_is_closed_at_the_limit_of_a_user(void **state)
{
    struct ps_driver_stats s;
    struct world w;
    int fd[2];

    (void)state;
    begin_flood(&w, 1 << 20, 400000, fd);
    flood(&w, fd[0], 150);
    flood(&w, fd[1], 60);
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.connections, 2);
    flood(&w, fd[1], 40);
    RUN_UNTIL(&w, in_story(&w, "closed 1 PS_E_FULL\n"));
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.connections, 1);
    assert_in_range(s.output, 1, 60000);
    close(fd[0]);
    close(fd[1]);
    end(&w);
}

/* An allocation fails: the connection that holds most gets the reason and is
 * closed. */
static void heaviest_connection_is_closed_when_memory_is_used_up(void **state)
{
    struct ps_driver_stats s;
    struct world w;
    int fd[2];

    (void)state;
    assert_true(ps_alloc_reserve(PS_RESERVE_BYTES));
    begin_flood(&w, 0, 0, fd);
    flood(&w, fd[0], 5000);
    flood(&w, fd[1], 10);
    /* A short shortage closes no connection. */
    ps_alloc_fail_at(5, 0);
    flood(&w, fd[1], 20);
    assert_false(ps_alloc_is_starved());
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.connections, 2);
    /* A shortage that lasts until a connection is closed. */
    ps_alloc_fail_at(5, 1);
    flood(&w, fd[1], 30);
    RUN_UNTIL(&w, in_story(&w, "closed 1 PS_E_NOMEM\n"));
    RUN_UNTIL(&w, !ps_alloc_is_starved());
    /* A connection that holds little is not closed, however long it lasts. */
    ps_alloc_fail_at(5, 3);
    flood(&w, fd[1], 40);
    assert_false(ps_alloc_is_starved());
    ps_driver_stats(w.driver, &s);
    assert_int_equal(s.connections, 1);
    assert_true(ps_alloc_reserve(0));
    close(fd[0]);
    close(fd[1]);
    end(&w);
}

static void failed_step_of_the_machine_ends_the_driver(void **state)
{
    struct world w;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    int fd = caller(&w);

    ps_driver_drain(w.driver);
    assert_non_null(strstr(w.machine.story, "drain\n"));
    w.machine.fail = PS_E_BUG;
    ps_driver_shutdown(w.driver);
    nudge(&w);
    RUN_UNTIL(&w, w.failed);
    close(fd);
    end(&w);
}

/* Unread output delays the end only briefly. */
static void close_with_jobs_and_output_ends_soon(void **state)
{
    struct world w;
    uint64_t n;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    int fd = caller(&w);

    handshake(fd);
    free(await(&w, fd, PS_MSG_WELCOME, &n, &n));
    push(fd, 1, 64 * 1024);
    RUN_UNTIL(&w, in_story(&w, "push 1 of 65536\n"));
    end(&w); /* Before or after the end of the job. */
    close(fd);
}

/* ------------------------------------------- several connections of a link */

#define LARGE (64u * 1024u)

/* Opens one more connection of the link of `session`. */
static int joiner(struct world *w, uint64_t session)
{
    int fd = caller(w);
    uint64_t n;

    handshake_as(fd, session, 1);
    free(await(w, fd, PS_MSG_WELCOME, &n, &n));
    return fd;
}

/* Pushes on `from`, and takes the sum from `to`. */
static void sum_through(struct world *w, int from, int to, uint64_t number)
{
    uint64_t seq;
    uint64_t ack;

    assert_int_equal(fcntl(from, F_SETFL, 0), 0);
    push_as(from, 1, LARGE, number);
    int32_t *v = (int32_t *)(void *)await(w, to, PS_MSG_VALUE, &seq, &ack);

    assert_int_equal(seq, 4 + number);
    for (int32_t i = 0; i < (int32_t)LARGE / 4; i++) {
        assert_int_equal(v[i], 2 * i);
    }
    free(v);
}

static void await_end(struct world *w, int fd)
{
    char byte;

    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    while (read(fd, &byte, 1) < 0 && errno == EAGAIN) {
        ps_loop_step(w->loop);
    }
    close(fd);
}

static void connections_of_one_link_share_its_input(void **state)
{
    struct world w;
    uint64_t seq;
    uint64_t ack;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    int fd = caller(&w);

    handshake_as(fd, 9, 0);
    free(await(&w, fd, PS_MSG_WELCOME, &seq, &ack));
    int more = joiner(&w, 9);

    assert_true(in_story(&w, "closed 2 "));
    /* Input on either belongs to the first one, output is shared. */
    sum_through(&w, more, fd, 1);
    sum_through(&w, fd, more, 2);
    sum_through(&w, more, fd, 3);
    assert_false(in_story(&w, "push 2 "));

    /* Its unsent output leaves on the first one after a cut. */
    assert_int_equal(fcntl(more, F_SETFL, 0), 0);
    push_as(more, 1, LARGE, 4);
    RUN_UNTIL(&w, w.machine.sent == 4);
    assert_int_equal(shutdown(more, SHUT_RD), 0);
    close(more);
    free(await(&w, fd, PS_MSG_VALUE, &seq, &ack));
    assert_int_equal(seq, 8);
    close(fd);
    RUN_UNTIL(&w, in_story(&w, "closed 1 "));
    end(&w);
}

static int accepted(struct world *w, int listener)
{
    int fd;

    while ((fd = accept(listener, NULL, NULL)) < 0) {
        assert_int_equal(errno, EAGAIN);
        (void)ps_loop_step(w->loop);
    }
    return fd;
}

/* One connection for each I/O thread, after one was added. */
static void links_have_connections_for_all_loops(void **state)
{
    const size_t payload_len = 160 * 1024;
    const int room = 1024 * 1024;
    static uint8_t bytes[1024 + 160 * 1024];
    const struct ps_msg welcome = {.code = PS_MSG_WELCOME,
                                   .welcome = {.protocol = 1,
                                               .name = "s",
                                               .features = PS_FEATURE_SUBFLOW}};
    struct ps_msg value = {.code = PS_MSG_VALUE};
    char address[32];
    struct world w;
    uint16_t port;
    int listener;
    uint64_t n;

    (void)state;
    begin_with(&w, PS_ROLE_AGENT, 2);
    assert_int_equal(ps_listen_tcp("127.0.0.1", 0, 8, &listener, &port), 0);
    snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)port);
    w.machine.sends_hello = true;
    want_dial(&w, address);
    int fd = accepted(&w, listener);

    free(await(&w, fd, PS_MSG_HELLO, &n, &n));
    say(fd, bytes, append_frame(bytes, 0, &welcome, 0));
    value.value.parts = &one;
    value.value.parts_count = 1;
    /* For a whole frame, so that writing does not wait for us. */
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)),
                     0);
    for (unsigned i = 0; i < 4 && !in_story(&w, "2 further loops\n"); i++) {
        struct ps_driver_stats s;

        say(fd, bytes,
            append_frame(bytes, 0, &value, payload_len) + payload_len);
        RUN_UNTIL(&w, (ps_driver_stats(w.driver, &s),
                       s.moved_by_pool >= (i + 1) * (payload_len - 1024)));
    }
    assert_true(in_story(&w, "2 further loops\n"));
    int more = accepted(&w, listener);

    free(await(&w, more, PS_MSG_HELLO, &n, &n));
    assert_false(in_story(&w, "open 2 "));
    close(more);
    close(fd);
    close(listener);
    RUN_UNTIL(&w, in_story(&w, "closed 1 "));
    end(&w);
}

static void a_subflow_must_name_its_link(void **state)
{
    struct world w;
    uint64_t n;

    (void)state;
    begin_world(&w, PS_ROLE_SERVER);
    int fd = caller(&w);

    handshake_as(fd, 9, 0);
    free(await(&w, fd, PS_MSG_WELCOME, &n, &n));
    int one_more = caller(&w);

    handshake_as(one_more, 10, 1);
    await_end(&w, one_more);
    assert_true(in_story(&w, "closed 2 "));

    /* Only numbered frames: the others depend on order. */
    int more = joiner(&w, 9);

    assert_int_equal(fcntl(more, F_SETFL, 0), 0);
    push_as(more, 1, LARGE, 0);
    await_end(&w, more);
    assert_false(in_story(&w, "push "));

    /* The maximum of subflows, and no more. */
    int others[PS_LINK_CONNECTIONS_MAX - 1];

    for (unsigned i = 0; i < PS_LINK_CONNECTIONS_MAX - 1; i++) {
        others[i] = joiner(&w, 9);
    }
    one_more = caller(&w);
    handshake_as(one_more, 9, 1);
    await_end(&w, one_more);

    /* Subflows end with the main connection. */
    close(fd);
    for (unsigned i = 0; i < PS_LINK_CONNECTIONS_MAX - 1; i++) {
        await_end(&w, others[i]);
    }
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_push_is_read_and_computed),
        cmocka_unit_test(large_push_is_read_and_computed),
        cmocka_unit_test(acknowledgements_are_sent_before_queued_replies),
        cmocka_unit_test(a_message_that_no_frame_carries_delays_nothing),
        cmocka_unit_test(unwanted_payload_is_skipped),
        cmocka_unit_test(payload_is_read_once_memory_is_free),
        cmocka_unit_test(hangup_is_followed_by_closed),
        cmocka_unit_test(peers_before_their_handshake_make_room),
        cmocka_unit_test(driver_dials_an_address),
        cmocka_unit_test(close_ends_a_dial),
        cmocka_unit_test(region_reaches_the_machine),
        cmocka_unit_test(region_that_cannot_be_mapped_is_reported),
        cmocka_unit_test(residual_segments_are_passed_both_ways),
        cmocka_unit_test(operations_of_the_ring_reach_the_machine),
        cmocka_unit_test(operations_of_a_worker_count_before_its_death),
        cmocka_unit_test(operations_beyond_the_ring_use_the_socket),
        cmocka_unit_test(ring_with_impossible_counters_ends_its_connection),
        cmocka_unit_test(second_ring_or_wrong_size_ends_the_connection),
        cmocka_unit_test(local_connections_are_limited),
        cmocka_unit_test(connection_beyond_its_output_limit_is_closed),
        cmocka_unit_test(failures_of_all_operations_fit_the_output_limit),
        cmocka_unit_test(heaviest_connection_is_closed_at_the_limit_of_a_user),
        cmocka_unit_test(heaviest_connection_is_closed_when_memory_is_used_up),
        cmocka_unit_test(failed_step_of_the_machine_ends_the_driver),
        cmocka_unit_test(a_ring_that_cannot_be_mapped_is_named),
        cmocka_unit_test(close_with_jobs_and_output_ends_soon),
        cmocka_unit_test(connections_of_one_link_share_its_input),
        cmocka_unit_test(links_have_connections_for_all_loops),
        cmocka_unit_test(a_subflow_must_name_its_link),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
