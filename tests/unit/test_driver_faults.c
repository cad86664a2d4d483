/* SPDX-License-Identifier: Apache-2.0 */
/* An agent's driver from start to end over each failure of libuv and of the
 * system (support/uv_fault.h). Its machine dials a server, which sends a value
 * that a thread sums up; a worker passes a region and a ring, and an operation
 * in it. Server and worker are plain descriptors of the test. */
#include "driver/driver.h"

#include "base/alloc.h"
#include "base/log.h"
#include "net/arena.h"
#include "net/io_pool.h"
#include "net/local.h"
#include "net/loop.h"
#include "net/socket.h"
#include "net/worker.h"
#include "proto/msg_codec.h"
#include "proto/ring.h"
#include "support/sanitized.h"
#include "support/uv_fault.h"

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

#define VALUE_BYTES (32u * 1024u)
#define REGION_SIZE 8192u
/* Time after which a run without progress has failed. */
#define PATIENCE    PS_MILLIS(ps_test_limit_ms(8000))

/* Steps of a run; it is complete when all are done. */
enum { HAS_REGION = 1, HAS_OPS = 2, HAS_SUM = 4, HAS_ALL = 7 };

struct agent {
    struct world *world;
    struct ps_pool *pool;
    struct ps_slice value;
    struct ps_buf *sum;
    ps_time deadline;
    char server[64]; /* Address to dial; "": dialled. */
    unsigned has;
};

struct world {
    struct uv_fault_outcome *outcome;
    struct ps_loop *loop;
    struct ps_worker *worker;
    struct ps_io_pool *pool;
    struct ps_arenas *arenas;
    struct ps_driver *driver;
    struct ps_listener *listener; /* Of the server. */
    struct ps_loop_timer patience;
    struct agent agent;
    int server; /* Descriptor of the server's end; -1: none. */
    int client; /* Of the worker's. */
    void *ring_memory;
    struct ps_ring_worker ring;
    bool is_over;
    bool is_closed;
};

static void world_failed(struct world *w, int rc, const char *why)
{
    uv_fault_failed(w->outcome, rc, why != NULL ? why : ps_strerror(rc));
    w->is_over = true;
}

static bool is_fine(struct world *w, int rc)
{
    if (rc != 0) {
        world_failed(w, rc, NULL);
    }
    return rc == 0;
}

static void submit_sum(struct agent *a, const struct ps_event *ev,
                       struct ps_effects *fx)
{
    if (!is_fine(a->world, ps_pool_get(a->pool, VALUE_BYTES, &a->sum))) {
        return;
    }
    struct ps_compute *c = ps_compute_new(77, 2, 1);

    ps_compute_add_src(c, ev->msg.payload, 0);
    ps_compute_add_src(c, ev->msg.payload, 0);
    ps_compute_pin(c, a->sum);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = PS_DTYPE_INT32;
    c->job.count = VALUE_BYTES / 4;
    c->job.dst = a->sum->data;
    ps_effects_compute(fx, c);
}

static const struct ps_msg hello = {.code = PS_MSG_HELLO,
                                    .hello = {.protocol = 1,
                                              .protocol_least = 1,
                                              .role = PS_ROLE_AGENT,
                                              .name = "a",
                                              .cluster = "c",
                                              .instance = 1,
                                              .session = 4}};

static int agent_step(void *self, const struct ps_event *ev,
                      struct ps_effects *fx)
{
    struct agent *a = self;

    switch (ev->type) {
    case PS_EV_TICK:
        a->deadline = PS_TIME_NEVER;
        ps_effects_dial(fx, 3, a->server, 0);
        break;
    case PS_EV_OPEN:
        if (ev->open.kind == PS_CONN_DIALLED) {
            ps_effects_send_msg(fx, ev->conn, &hello);
        }
        break;
    case PS_EV_MSG:
        if (ev->msg.msg->code == PS_MSG_VALUE) {
            submit_sum(a, ev, fx);
        }
        break;
    case PS_EV_COMPUTED:
        a->has |= ev->computed.rc == 0 ? HAS_SUM : 0;
        (void)is_fine(a->world, ev->computed.rc);
        break;
    case PS_EV_REGION:
        a->has |= ev->region.buf != NULL && ev->region.region != 0 ? HAS_REGION
                                                                   : 0;
        if (ev->region.buf == NULL) {
            world_failed(a->world, ev->region.rc, ev->region.why);
        }
        break;
    case PS_EV_OPS:
        a->has |= HAS_OPS;
        break;
    case PS_EV_DIAL_FAILED:
        world_failed(a->world, ev->dial_failed.rc, ev->dial_failed.why);
        break;
    case PS_EV_CLOSED:
        (void)is_fine(a->world, ev->closed.rc);
        break;
    default:
        break;
    }
    return 0;
}

static ps_time agent_deadline(const void *self)
{
    return ((const struct agent *)self)->deadline;
}

static int agent_payload(void *self, ps_conn_id conn, const struct ps_msg *msg,
                         uint64_t len, struct ps_slice *ret_slice)
{
    struct agent *a = self;
    struct ps_buf *buf;

    (void)conn;
    (void)msg;
    if (ps_pool_get(a->pool, len, &buf) != 0) {
        return PS_E_AGAIN;
    }
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}

static const struct ps_machine_ops agent_ops = {
    .step = agent_step, .deadline = agent_deadline, .payload = agent_payload};

static size_t append_frame(uint8_t *out, size_t cap, const struct ps_msg *msg,
                           uint64_t payload_len)
{
    size_t len;

    assert_int_equal(
        ps_msg_encode(msg, PS_PROTOCOL, payload_len, out, cap, &len), 0);
    return len;
}

/* Writes of the peers do not fail on purpose; a closed end of the driver is
 * expected. */
static void say(int fd, const struct ps_msg *msg, size_t payload_len,
                int pass_fd)
{
    static uint8_t bytes[1024 + VALUE_BYTES];
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {bytes, append_frame(bytes, 1024, msg, payload_len)};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    iov.iov_len += payload_len;
    if (pass_fd >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof(control);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);

        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &pass_fd, sizeof(pass_fd));
    }
    uv_fault_hold();
    (void)sendmsg(fd, &m, MSG_NOSIGNAL);
    uv_fault_release();
}

static void server_accepted(void *ctx, int fd)
{
    static const struct ps_rec_part part = {.dtype = PS_DTYPE_INT32,
                                            .count = VALUE_BYTES / 4};
    const struct ps_msg welcome = {
        .code = PS_MSG_WELCOME, .welcome = {.protocol = 1, .name = "server"}};
    const struct ps_msg value = {
        .code = PS_MSG_VALUE,
        .value = {.gen = 1, .parts = &part, .parts_count = 1}};
    struct world *w = ctx;

    if (fd < 0) {
        return; /* No descriptor was left for it. */
    }
    if (w->server >= 0) {
        close(fd);
        return;
    }
    w->server = fd;
    say(fd, &welcome, 0, -1);
    say(fd, &value, VALUE_BYTES, -1);
}

/* A sealed memfd, mapped at *ret_data unless that is NULL. */
static int make_memory(size_t size, void **ret_data)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    if (ret_data != NULL) {
        *ret_data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(*ret_data != MAP_FAILED);
    }
    return fd;
}

/* A training process: hello, a region, a ring and an operation in it. */
static void start_client(struct world *w)
{
    const struct ps_msg l_hello = {.code = PS_MSG_L_HELLO,
                                   .l_hello = {.protocol = 1, .job = "j"}};
    const struct ps_msg region = {
        .code = PS_MSG_L_REGION,
        .l_region = {.region = 9, .size = REGION_SIZE}};
    const struct ps_msg ring = {.code = PS_MSG_L_RING,
                                .l_ring = {.size = ps_ring_bytes()}};
    const struct ps_msg_l_op op = {.op_id = 1, .key = 1, .round = 1};
    int fd[2];

    uv_fault_hold();
    int memory = make_memory(REGION_SIZE, NULL);
    int ring_fd = make_memory(ps_ring_bytes(), &w->ring_memory);

    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd),
        0);
    uv_fault_release();
    ps_ring_worker_init(&w->ring, w->ring_memory);
    assert_true(ps_ring_push_op(&w->ring, &op, 3));
    w->client = fd[1];
    ps_driver_accept_local(w->driver, fd[0]);
    say(w->client, &l_hello, 0, -1);
    say(w->client, &region, 0, memory);
    say(w->client, &ring, 0, ring_fd);
    close(memory);
    close(ring_fd);
}

/* Reads what has arrived. True at its end. */
static bool has_ended(int fd)
{
    uint8_t bytes[512];
    ssize_t n;

    uv_fault_hold();
    do {
        n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    } while (n > 0);
    bool ended = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);

    uv_fault_release();
    return ended;
}

static void machine_failed(void *ctx, int rc)
{
    world_failed(ctx, rc, "machine");
}

static void driver_closed(void *ctx)
{
    struct world *w = ctx;

    w->is_closed = true;
}

static void out_of_patience(struct ps_loop_timer *t)
{
    (void)t;
    uv_fault_hangs();
}

static bool start_loop(struct world *w)
{
    if (!is_fine(w, ps_loop_new(&w->loop))) {
        return false;
    }
    w->patience.due = out_of_patience;
    ps_loop_timer_set(w->loop, &w->patience, ps_loop_now(w->loop) + PATIENCE);
    return true;
}

static bool start_server(struct world *w)
{
    uint16_t port;
    int fd;

    if (!is_fine(w, ps_listen_tcp("127.0.0.1", 0, 8, &fd, &port))) {
        return false;
    }
    if (!is_fine(w, ps_listener_open(w->loop, fd, server_accepted, w,
                                     &w->listener))) {
        close(fd);
        return false;
    }
    snprintf(w->agent.server, sizeof(w->agent.server), "127.0.0.1:%u",
             (unsigned)port);
    return true;
}

static bool start_driver(struct world *w)
{
    const struct ps_worker_options worker = {
        .loop = w->loop, .threads = 1, .inline_max = 1};
    const struct ps_io_pool_options pool = {.loop = w->loop,
                                            .threads = 1,
                                            .threads_max = 1,
                                            .task_bytes_min = 1024};

    if (!is_fine(w, ps_worker_new(&worker, &w->worker)) ||
        !is_fine(w, ps_io_pool_new(&pool, &w->pool))) {
        return false;
    }
    w->arenas = ps_arenas_new();
    w->driver = ps_driver_new(&(struct ps_driver_options){
        .loop = w->loop,
        .worker = w->worker,
        .io_pool = w->pool,
        .arenas = w->arenas,
        .machine = {.ops = &agent_ops, .self = &w->agent},
        .self = PS_ROLE_AGENT,
        .scheduler = "127.0.0.1:1",
        .same_host = true,
        .limits = {.linger_timeout = PS_MILLIS(10)},
        .dial_timeout = PS_SECONDS(2),
        .on_failed = machine_failed,
        .ctx = w});
    return true;
}

static void stop(struct world *w)
{
    if (w->driver != NULL) {
        ps_loop_timer_set(w->loop, &w->patience,
                          ps_loop_now(w->loop) + PATIENCE);
        ps_driver_close(w->driver, driver_closed);
        while (!w->is_closed) {
            (void)ps_loop_step(w->loop);
        }
    }
    if (w->loop != NULL) {
        ps_loop_timer_set(w->loop, &w->patience, PS_TIME_NEVER);
    }
    ps_listener_close(w->listener);
    ps_worker_free(w->worker);
    ps_driver_free(w->driver);
    ps_io_pool_free(w->pool);
    ps_arenas_free(w->arenas);
    ps_loop_free(w->loop);
    ps_buf_unref(w->agent.sum);
    ps_pool_free(w->agent.pool);
    if (w->ring_memory != NULL) {
        munmap(w->ring_memory, ps_ring_bytes());
    }
    for (int i = 0; i < 2; i++) {
        int fd = i == 0 ? w->server : w->client;

        if (fd >= 0) {
            close(fd);
        }
    }
}

static void start_and_stop(struct uv_fault_outcome *outcome)
{
    struct world w = {.outcome = outcome, .server = -1, .client = -1};

    w.agent.world = &w;
    uv_fault_hold();
    w.agent.pool = ps_pool_new(&(struct ps_pool_options){0});
    uv_fault_release();
    if (start_loop(&w) && start_server(&w) && start_driver(&w)) {
        start_client(&w);
        while (!w.is_over) {
            (void)ps_loop_step(w.loop);
            if (w.agent.has == HAS_ALL) {
                outcome->is_done = true;
                w.is_over = true;
            } else if (!w.is_over && has_ended(w.client)) {
                world_failed(&w, PS_E_CLOSED, "the driver closed its worker");
            }
        }
    }
    stop(&w);
}

static void driver_of_an_agent_handles_failed_calls(void **state)
{
    (void)state;
    uv_fault_run("driver", start_and_stop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(driver_of_an_agent_handles_failed_calls),
    };

    ps_log_level_set(PS_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
