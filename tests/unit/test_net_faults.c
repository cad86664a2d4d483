/* SPDX-License-Identifier: Apache-2.0 */
/* Listener, dialler and connections over each failure of libuv and of the
 * system (support/uv_fault.h): two connections in one loop shake hands and
 * pass a payload in each direction. */
#include "base/alloc.h"
#include "base/str.h"
#include "net/arena.h"
#include "net/conn.h"
#include "net/io_pool.h"
#include "net/local.h"
#include "net/loop.h"
#include "net/shm_peer.h"
#include "net/socket.h"
#include "net/worker.h"
#include "support/sanitized.h"
#include "support/uv_fault.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* Above the least payload by reference, and of an I/O task. */
#define PAYLOAD  (256u * 1024u)
/* Time after which a run without progress has failed. */
#define PATIENCE PS_MILLIS(ps_test_limit_ms(5000))

struct side {
    struct world *world;
    struct ps_conn *conn;
    uint8_t *place; /* Of the payload that arrives. */
    bool is_server;
    bool has_payload;
    bool is_released; /* The payload that it sent. */
    bool is_closed;
};

struct world {
    struct uv_fault_outcome *outcome;
    struct ps_loop *loop;
    struct ps_io_pool *pool;
    struct ps_arenas *arenas;
    struct ps_pool *memory; /* Of the arenas. */
    struct ps_buf *payload;
    struct ps_slice slice;
    struct ps_listener *listener;
    struct ps_dial *dial;
    struct ps_loop_timer patience;
    bool is_shm;
    bool is_over; /* No more progress is expected. */
    struct side server;
    struct side agent;
};

static void world_failed(struct world *w, int rc, const char *why)
{
    uv_fault_failed(w->outcome, rc, why);
    w->is_over = true;
}

/* A call whose error has no text but that of its code. */
static bool is_fine(struct world *w, int rc)
{
    if (rc != 0) {
        world_failed(w, rc, ps_strerror(rc));
    }
    return rc == 0;
}

static void payload_released(void *ctx)
{
    struct side *s = ctx;

    s->is_released = true;
}

static void send_message(struct side *s, const struct ps_msg *msg,
                         const struct ps_slice *slice)
{
    const struct ps_conn_frame f = {.msg = msg,
                                    .slices = slice,
                                    .slice_count = slice != NULL,
                                    .pass_fd = -1,
                                    .done = slice != NULL ? payload_released
                                                          : NULL,
                                    .ctx = s};

    if (s->conn != NULL && ps_conn_is_open(s->conn) &&
        is_fine(s->world, ps_conn_send(s->conn, &f))) {
        (void)ps_conn_flush(s->conn);
    }
}

static const struct ps_rec_part one_part = {
    .key = 1, .round = 1, .dtype = PS_DTYPE_FLOAT32, .count = PAYLOAD / 4};

static int header_came(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                       uint64_t len, void **ret_dst)
{
    struct side *s = ctx;

    (void)c;
    (void)msg;
    assert_int_equal(len, PAYLOAD);
    *ret_dst = s->place;
    return 0;
}

static void frame_came(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                       uint64_t len)
{
    struct side *s = ctx;
    const struct ps_msg welcome = {
        .code = PS_MSG_WELCOME, .welcome = {.protocol = 1, .name = "server"}};
    const struct ps_msg push = {
        .code = PS_MSG_PUSH,
        .push = {.gen = 1, .weight = 1, .parts = &one_part, .parts_count = 1}};
    const struct ps_msg value = {
        .code = PS_MSG_VALUE,
        .value = {.gen = 1, .parts = &one_part, .parts_count = 1}};

    (void)c;
    if (len > 0) {
        assert_memory_equal(s->place, s->world->payload->data, PAYLOAD);
        s->has_payload = true;
    }
    if (msg->code == PS_MSG_HELLO) {
        send_message(s, &welcome, NULL);
    } else if (msg->code == PS_MSG_WELCOME) {
        send_message(s, &push, &s->world->slice);
    } else if (msg->code == PS_MSG_PUSH) {
        send_message(s, &value, &s->world->slice);
    }
}

static void output_went(void *ctx, struct ps_conn *c, uint64_t queued)
{
    (void)ctx;
    (void)c;
    (void)queued;
}

static void conn_closed(void *ctx, struct ps_conn *c, int rc)
{
    struct side *s = ctx;

    world_failed(s->world, rc, ps_conn_reason(c));
    s->is_closed = true;
    s->conn = NULL;
    ps_conn_free(c);
}

static const struct ps_conn_ops ops = {
    .header = header_came,
    .frame = frame_came,
    .sent = output_went,
    .closed = conn_closed,
};

static void open_side(struct world *w, struct side *s, int fd)
{
    const struct ps_conn_options opt = {
        .loop = w->loop,
        .fd = fd,
        .peer = "peer",
        .self = s->is_server ? PS_ROLE_SERVER : PS_ROLE_AGENT,
        .peer_roles = 1u << (s->is_server ? PS_ROLE_AGENT : PS_ROLE_SERVER),
        .dialled = !s->is_server,
        .is_shm = w->is_shm,
        .arenas = w->arenas,
        .io_pool = w->pool,
        .limits = {.linger_timeout = PS_MILLIS(10)},
        .ops = &ops,
        .ctx = s,
    };

    if (!is_fine(w, ps_conn_open(&opt, &s->conn))) {
        close(fd);
    }
}

static void handshake(struct world *w)
{
    const struct ps_msg hello = {.code = PS_MSG_HELLO,
                                 .hello = {.protocol = 1,
                                           .protocol_least = 1,
                                           .role = PS_ROLE_AGENT,
                                           .name = "agent",
                                           .cluster = "c",
                                           .instance = 1}};

    send_message(&w->agent, &hello, NULL);
}

static void accepted(void *ctx, int fd)
{
    struct world *w = ctx;

    if (fd < 0) {
        return;
    }
    if (w->server.conn != NULL || w->is_over) {
        close(fd);
    } else {
        open_side(w, &w->server, fd);
    }
}

static void dialled(void *ctx, int fd, int rc, const char *detail)
{
    struct world *w = ctx;

    w->dial = NULL;
    if (rc != 0) {
        world_failed(w, rc, detail);
    } else {
        open_side(w, &w->agent, fd);
        handshake(w);
    }
}

static void out_of_patience(struct ps_loop_timer *t)
{
    (void)t;
    uv_fault_hangs();
}

static bool begin_world(struct world *w, struct uv_fault_outcome *outcome)
{
    memset(w, 0, sizeof(*w));
    w->outcome = outcome;
    w->server = (struct side){.world = w, .is_server = true};
    w->agent = (struct side){.world = w};
    w->patience.due = out_of_patience;
    if (!is_fine(w, ps_loop_new(&w->loop))) {
        return false;
    }
    ps_loop_timer_set(w->loop, &w->patience, ps_loop_now(w->loop) + PATIENCE);
    w->server.place = malloc(PAYLOAD);
    w->agent.place = malloc(PAYLOAD);
    return true;
}

static bool make_payload(struct world *w, bool in_arena)
{
    if (in_arena) {
        w->arenas = ps_arenas_new();
        w->memory = ps_pool_new(
            &(struct ps_pool_options){.source = ps_arenas_source(w->arenas)});
        if (!is_fine(w, ps_pool_get(w->memory, PAYLOAD, &w->payload))) {
            return false;
        }
    } else {
        w->payload = ps_buf_new(PAYLOAD);
    }
    for (size_t i = 0; i < PAYLOAD; i++) {
        w->payload->data[i] = (uint8_t)(i % 251);
    }
    w->slice = (struct ps_slice){.buf = w->payload, .len = PAYLOAD};
    return true;
}

/* Runs until all has been exchanged or something has failed. */
static void run_world(struct world *w)
{
    while (!w->is_over) {
        (void)ps_loop_step(w->loop);
        if (w->agent.has_payload && w->server.has_payload &&
            w->agent.is_released && w->server.is_released && !w->is_over) {
            w->outcome->is_done = true;
            w->is_over = true;
        }
    }
}

static void close_side(struct side *s)
{
    if (s->conn != NULL) {
        ps_conn_close(s->conn, PS_E_CANCELED, "end");
    }
}

static void end_world(struct world *w)
{
    w->is_over = true;
    if (w->loop != NULL) {
        ps_loop_timer_set(w->loop, &w->patience,
                          ps_loop_now(w->loop) + PATIENCE);
        ps_listener_close(w->listener);
        if (w->dial != NULL) {
            ps_dial_cancel(w->dial);
        }
        while (w->dial != NULL) {
            (void)ps_loop_step(w->loop);
        }
        close_side(&w->agent);
        close_side(&w->server);
        while (w->agent.conn != NULL || w->server.conn != NULL) {
            (void)ps_loop_step(w->loop);
        }
        ps_loop_timer_set(w->loop, &w->patience, PS_TIME_NEVER);
    }
    ps_io_pool_free(w->pool);
    ps_loop_free(w->loop);
    ps_buf_unref(w->payload);
    ps_pool_free(w->memory);
    ps_arenas_free(w->arenas);
    free(w->server.place);
    free(w->agent.place);
}

static void listen_and_dial(struct world *w)
{
    char address[64];
    uint16_t port;
    int fd;

    if (!is_fine(w, ps_listen_tcp("127.0.0.1", 0, 8, &fd, &port))) {
        return;
    }
    if (!is_fine(w, ps_listener_open(w->loop, fd, accepted, w, &w->listener))) {
        close(fd);
        return;
    }
    snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)port);
    if (is_fine(w, ps_dial_start(w->loop, address, PS_SECONDS(2), dialled, w,
                                 &w->dial))) {
        run_world(w);
    }
}

static void over_tcp(struct uv_fault_outcome *outcome)
{
    struct world w;

    if (begin_world(&w, outcome) && make_payload(&w, false)) {
        listen_and_dial(&w);
    }
    end_world(&w);
}

static void with_io_threads(struct uv_fault_outcome *outcome)
{
    struct world w;

    if (begin_world(&w, outcome) && make_payload(&w, false)) {
        const struct ps_io_pool_options opt = {.loop = w.loop,
                                               .threads = 2,
                                               .threads_max = 2,
                                               .task_bytes_min = 4096};

        if (is_fine(&w, ps_io_pool_new(&opt, &w.pool))) {
            listen_and_dial(&w);
        }
    }
    end_world(&w);
}

/* Payloads by reference, in an arena that the peer maps. */
static void on_the_same_host(struct uv_fault_outcome *outcome)
{
    static unsigned number;
    struct world w;
    char name[64];
    int fd;

    snprintf(name, sizeof(name), "faults-%d-%u:1", (int)getpid(), number++);
    if (begin_world(&w, outcome) && make_payload(&w, true)) {
        w.is_shm = true;
        if (!is_fine(&w, ps_shm_listen(name, 8, &fd))) {
            goto end;
        }
        if (!is_fine(&w,
                     ps_listener_open(w.loop, fd, accepted, &w, &w.listener))) {
            close(fd);
            goto end;
        }
        if (!is_fine(&w, ps_shm_dial(name, &fd))) {
            goto end;
        }
        open_side(&w, &w.agent, fd);
        handshake(&w);
        run_world(&w);
    }
end:
    end_world(&w);
}

struct sum {
    struct ps_worker_task task;
    struct world *world;
};

static void sum_done(struct ps_worker_task *t, int rc)
{
    struct world *w = PS_CONTAINER(t, struct sum, task)->world;

    w->is_over = true;
    w->outcome->is_done = is_fine(w, rc);
}

/* A job for the threads, one of which wakes the loop. */
static void run_sum(struct world *w, struct ps_worker *worker)
{
    static float numbers[2][128 * 1024];
    static float result[128 * 1024];
    const void *src[2] = {numbers[0], numbers[1]};
    const struct ps_job job = {.op = PS_JOB_SUM,
                               .dtype = PS_DTYPE_FLOAT32,
                               .count = 128 * 1024,
                               .src_count = 2,
                               .src = src,
                               .dst = result};
    struct sum sum = {.task = {.job = &job, .done = sum_done}, .world = w};

    ps_worker_submit(worker, &sum.task);
    while (!w->is_over) {
        (void)ps_loop_step(w->loop);
    }
}

static void process_ended(void *ctx)
{
    (void)ctx;
}

static void signal_came(void *ctx, int signum)
{
    (void)ctx;
    (void)signum;
}

/* Parts of a daemon beside its connections: signals, a Unix socket, notice of
 * the end of a process, and compute threads. */
static void beside_connections(struct uv_fault_outcome *outcome)
{
    struct ps_worker *worker = NULL;
    struct ps_process *process = NULL;
    const struct ps_local_options opt = {
        .mode = 0600, .gid = PS_LOCAL_OWN_GROUP, .backlog = 4};
    struct world w;
    char path[64];
    int fd = -1;
    int pair[2] = {-1, -1};

    snprintf(path, sizeof(path), "/tmp/pskv-faults-%d", (int)getpid());
    if (!begin_world(&w, outcome)) {
        end_world(&w);
        return;
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    if (is_fine(&w, ps_loop_signal(w.loop, SIGUSR1, signal_came, &w)) &&
        is_fine(&w, ps_worker_new(&(struct ps_worker_options){.loop = w.loop,
                                                              .threads = 2},
                                  &worker)) &&
        is_fine(&w, ps_local_listen(path, &opt, &fd)) &&
        is_fine(&w, ps_process_watch(w.loop, pair[0], process_ended, &w,
                                     &process))) {
        run_sum(&w, worker);
    }
    ps_process_close(process);
    if (fd >= 0) {
        close(fd);
    }
    ps_local_remove(path);
    (void)unlink(path);
    ps_worker_free(worker);
    close(pair[0]);
    close(pair[1]);
    end_world(&w);
}

static void deadline_came(struct ps_loop_timer *t)
{
    struct world *w = PS_CONTAINER(t, struct world, patience);

    w->is_over = true;
    w->outcome->is_done = true;
}

/* Only this ends the wait of the loop. */
static void with_a_deadline(struct uv_fault_outcome *outcome)
{
    struct world w;

    if (begin_world(&w, outcome)) {
        w.patience.due = deadline_came;
        ps_loop_timer_set(w.loop, &w.patience,
                          ps_loop_now(w.loop) + PS_MILLIS(2));
        while (!w.is_over) {
            (void)ps_loop_step(w.loop);
        }
    }
    end_world(&w);
}

static void deadline_handles_failed_calls(void **state)
{
    (void)state;
    uv_fault_run("deadline", with_a_deadline);
}

static void tcp_handles_failed_calls(void **state)
{
    (void)state;
    uv_fault_run("TCP", over_tcp);
}

static void io_threads_handle_failed_calls(void **state)
{
    (void)state;
    uv_fault_run("I/O threads", with_io_threads);
}

static void same_host_connection_handles_failed_calls(void **state)
{
    (void)state;
    uv_fault_run("same host", on_the_same_host);
}

static void other_objects_handle_failed_calls(void **state)
{
    (void)state;
    uv_fault_run("daemon", beside_connections);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deadline_handles_failed_calls),
        cmocka_unit_test(tcp_handles_failed_calls),
        cmocka_unit_test(io_threads_handle_failed_calls),
        cmocka_unit_test(same_host_connection_handles_failed_calls),
        cmocka_unit_test(other_objects_handle_failed_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
