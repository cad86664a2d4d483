/* SPDX-License-Identifier: Apache-2.0 */
/* Memory shared with workers: regions and residual segments, which the machine
 * gets as buffers, rings of operations, and memory of GPUs. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/str.h"
#include "kernel/share.h"
#include "net/arena.h"
#include "net/local.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

/* ----------------------------------------------------------------- regions */

/* Reports to the machine that memory cannot be mapped; it notifies the
 * worker. */
static void no_memory(struct daemon_conn *c, enum ps_event_type type,
                      uint32_t number, uint64_t size, int rc, const char *why)
{
    struct ps_event ev = {.type = type, .conn = c->id};
    const int errnum = errno;
    struct rlimit limit;
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX + 1);
    ps_str_add(&t, why);
    if (rc == PS_E_NOMEM) {
        ps_str_add(&t, ": ");
        ps_str_add_size(&t, size);
        ps_str_addf(&t, ": %s (errno %d)", strerrordesc_np(errnum), errnum);
        if (getrlimit(RLIMIT_AS, &limit) == 0 &&
            limit.rlim_cur != RLIM_INFINITY) {
            ps_str_add(&t, "; the agent may have ");
            ps_str_add_size(&t, limit.rlim_cur);
            ps_str_add(&t, " of address space (LimitAS)");
        } else {
            ps_str_add(&t, "; vm.max_map_count and the address space limit "
                           "how much an agent maps");
        }
    }
    ev.region.region = number;
    ev.region.rc = rc;
    ev.region.why = t.data;
    driver_feed(c->driver, &ev);
}

/* Maps a region, or a residual segment of an earlier agent, from the descriptor
 * that came along. The machine never sees descriptors. */
static void map_worker_memory(struct daemon_conn *c, enum ps_event_type type,
                              uint32_t number, uint64_t size)
{
    struct ps_event ev = {.type = type, .conn = c->id};
    int fd = ps_conn_pop_fd(c->conn);
    struct ps_buf *buf;
    const char *why;
    int rc;

    if (fd < 0) {
        ps_conn_close(c->conn, PS_E_PROTO,
                      type == PS_EV_RESIDUAL_SEGMENT
                          ? "l_residual_segment without a descriptor"
                          : "l_region without a descriptor");
        return;
    }
    rc = type == PS_EV_RESIDUAL_SEGMENT
             ? ps_arenas_adopt_segment(c->driver->opt.arenas, fd, size, &buf,
                                       &why)
             : ps_local_map(fd, size, PROT_READ | PROT_WRITE, &buf, &why);
    if (rc != 0) {
        no_memory(c, type, number, size, rc, why);
        return;
    }
    ev.region.region = number;
    ev.region.buf = buf;
    driver_feed(c->driver, &ev);
    ps_buf_unref(buf);
}

/* ------------------------------------------------------------------- rings */

/* A ring of operations (proto/ring.h) is a faster way for some messages of a
 * worker's connection: it keeps their order to the frames, and its sleeping side
 * is woken by a frame. All rings are polled before each wait, and asleep while the
 * loop waits. */

/* Operations fed to the machine in one event. */
#define RING_BATCH_MAX 32

static void accept_ring(struct daemon_conn *c, const struct ps_msg *msg)
{
    struct worker_ring *r = &c->worker.ring;
    const uint64_t size = msg->l_ring.size;
    int fd = ps_conn_pop_fd(c->conn);
    char text[PS_TEXT_MAX];
    const char *why;
    int rc;

    if (fd < 0) {
        ps_conn_close(c->conn, PS_E_PROTO, "l_ring without a descriptor");
        return;
    }
    if (r->memory != NULL || size != ps_ring_bytes()) {
        close(fd);
        ps_conn_close(c->conn, PS_E_PROTO,
                      r->memory != NULL ? "a second l_ring"
                                        : "l_ring of another size");
        return;
    }
    rc = ps_local_map(fd, size, PROT_READ | PROT_WRITE, &r->memory, &why);
    if (rc != 0) {
        /* Region 0 is none, so the machine ends the session. */
        snprintf(text, sizeof(text), "ring of operations: %s", why);
        no_memory(c, PS_EV_REGION, 0, size, rc, text);
        return;
    }
    ps_ring_agent_init(&r->ring, r->memory->data);
    ps_list_push_back(&c->driver->rings.all, &r->node);
}

static void drop_ring(struct worker_ring *r)
{
    if (ps_list_linked(&r->wake)) {
        ps_list_remove(&r->wake);
    }
    if (ps_list_linked(&r->node)) {
        ps_list_remove(&r->node);
    }
    ps_buf_unref(r->memory);
    r->memory = NULL;
}

bool driver_ring_poll(struct daemon_conn *c, uint64_t frames)
{
    struct ps_msg_l_op ops[RING_BATCH_MAX];
    /* One event, whose time is that of the first batch: reading the clock costs
     * as much as an operation. */
    struct ps_event ev = {.type = PS_EV_OPS, .conn = c->id, .ops = {.op = ops}};
    uint32_t count = 0;
    int n = 0;

    /* Bounded, so that a worker that keeps its ring full does not starve
     * others. */
    while (c->worker.ring.memory != NULL && count < PS_RING_OP_SLOTS &&
           (n = ps_ring_pop_ops(&c->worker.ring.ring, frames, ops,
                                RING_BATCH_MAX)) > 0) {
        count += (uint32_t)n;
        ev.ops.count = (uint32_t)n;
        driver_feed(c->driver, &ev);
    }
    if (n < 0) {
        if (ps_conn_is_open(c->conn)) {
            ps_conn_close(c->conn, n, "an operation in the ring is malformed");
        }
        drop_ring(&c->worker.ring);
    }
    return count > 0;
}

bool driver_rings_poll(struct ps_driver *d)
{
    bool any = false;

    PS_LIST_EACH_SAFE(struct daemon_conn, c, worker.ring.node, &d->rings.all)
    {
        any |= driver_ring_poll(c, c->worker.frames);
    }
    return any;
}

void driver_rings_wake(struct ps_driver *d)
{
    static const struct ps_msg wake = {.code = PS_MSG_L_WAKE};
    const struct ps_conn_frame frame = {.msg = &wake, .pass_fd = -1};
    struct daemon_conn *c;

    while ((c = PS_LIST_POP(struct daemon_conn, worker.ring.wake,
                            &d->rings.wakes)) != NULL) {
        /* On failure the connection is closing, which wakes the worker too. */
        if (ps_ring_wake_worker(&c->worker.ring.ring) &&
            ps_conn_send(c->conn, &frame) == 0) {
            driver_mark_flush(c);
        }
    }
}

bool driver_rings_sleep(struct ps_driver *d)
{
    d->rings.are_asleep = true;
    PS_LIST_EACH_OF(struct daemon_conn, c, worker.ring.node, &d->rings.all)
    {
        if (!ps_ring_agent_sleep(&c->worker.ring.ring, c->worker.frames)) {
            driver_rings_awake(d);
            return false;
        }
    }
    return true;
}

void driver_rings_awake(struct ps_driver *d)
{
    d->rings.are_asleep = false;
    PS_LIST_EACH_OF(struct worker_ring, r, node, &d->rings.all)
    {
        ps_ring_agent_awake(&r->ring);
    }
}

/* -------------------------------------------------------------------- GPUs */

/* Memory of GPUs that workers share with this daemon. The machine gets it as a
 * region whose buffer has a `device`, and an operation only when the event that
 * it names is over; so it knows neither GPUs nor events. */

/* Event of a worker. */
struct device_event {
    uint32_t refs; /* Its number, and operations that wait for it. */
    struct ps_share *share;
    void *event;
};

/* Operation that waits for its event. */
struct device_op {
    struct ps_list_node node; /* In a list of struct driver_device_watch. */
    ps_conn_id conn;
    struct device_event *event;
    struct ps_msg *msg;
};

static void event_unref(struct device_event *e)
{
    if (--e->refs == 0) {
        ps_share_event_release(e->share, e->event);
        ps_free(e);
    }
}

static void send_info(struct daemon_conn *c, uint32_t region, int error,
                      const char *text)
{
    const struct ps_msg m = {
        .code = PS_MSG_L_DEVICE_INFO,
        .l_device_info = {.region = region, .error = error, .text = text}};
    const struct ps_conn_frame frame = {.msg = &m, .pass_fd = -1};

    /* On failure the connection is closing. */
    if (ps_conn_send(c->conn, &frame) == 0) {
        driver_mark_flush(c);
    }
}

/* The log tells it, unless the agent has no GPU and nobody has asked for one:
 * libraries offer memory of other allocators by themselves. */
static void refuse_memory(struct daemon_conn *c,
                          const struct ps_msg_l_device *m, int error,
                          const char *why)
{
    const bool is_logged = m->handle.len == 0 || c->driver->opt.share != NULL;
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);
    ps_str_add(&t, "the agent cannot use memory of this GPU: ");
    ps_str_add_visible(&t, why);
    if (is_logged) {
        ps_account_count_line(&c->output.account, PS_LOG_WARNING);
        ps_log_of(LOG_DEVICE, PS_LOG_WARNING, "memory of a worker refused %s",
                  t.data);
    }
    send_info(c, m->region, error, t.data);
}

/* Closes a connection whose message is malformed. */
static bool check_identity(struct daemon_conn *c, const struct ps_bytes *uuid,
                           const struct ps_bytes *handle, bool needs_handle)
{
    if (uuid->len != PS_SHARE_UUID ||
        (handle->len != PS_SHARE_HANDLE && (needs_handle || handle->len > 0))) {
        ps_conn_close(c->conn, PS_E_PROTO,
                      "the identity or the handle of a GPU has a wrong length");
        return false;
    }
    return true;
}

static void accept_device(struct daemon_conn *c, const struct ps_msg *msg)
{
    const struct ps_msg_l_device *m = &msg->l_device;
    struct ps_share *share = c->driver->opt.share;
    struct ps_event ev = {.type = PS_EV_REGION, .conn = c->id};
    const bool is_mapped = m->handle.len == 0;
    const int fd = is_mapped ? ps_conn_pop_fd(c->conn) : -1;
    char why[PS_SHARE_WHY_MAX] =
        "compute.device of the agent is cpu, or it has "
        "found no GPU";
    int rc = PS_E_UNSUPPORTED;

    if (is_mapped && fd < 0) {
        ps_conn_close(c->conn, PS_E_PROTO, "l_device without a descriptor");
        return;
    }
    if (check_identity(c, &m->uuid, &m->handle, false) && share != NULL) {
        rc = ps_share_import(share,
                             &(struct ps_share_source){
                                 .uuid = m->uuid.data,
                                 .handle = is_mapped ? NULL : m->handle.data,
                                 .fd = fd,
                                 .bytes = m->size},
                             &ev.region.buf, why);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (!ps_conn_is_open(c->conn)) {
        return;
    }
    if (rc != 0) {
        refuse_memory(c, m, rc, why);
        return;
    }
    ev.region.region = m->region;
    driver_feed(c->driver, &ev);
    ps_buf_unref(ev.region.buf);
    if (ps_conn_is_open(c->conn)) {
        send_info(c, m->region, 0, "");
    }
}

static void accept_device_event(struct daemon_conn *c, const struct ps_msg *msg)
{
    const struct ps_msg_l_device_event *m = &msg->l_device_event;
    struct ps_share *share = c->driver->opt.share;
    char why[PS_SHARE_WHY_MAX] = "";
    struct device_event *e;
    void *event;

    if (!check_identity(c, &m->uuid, &m->handle, true)) {
        return;
    }
    if (share == NULL || m->event == 0 || m->event > PS_OPS_MAX) {
        ps_conn_close(c->conn, PS_E_PROTO, "l_device_event of an unknown use");
        return;
    }
    if (c->worker.events == NULL) {
        c->worker.events = ps_map_new();
    }
    if (ps_map_get(c->worker.events, m->event) != NULL) {
        ps_conn_close(c->conn, PS_E_PROTO, "an event number is used twice");
        return;
    }
    if (ps_share_event_import(share, m->uuid.data, m->handle.data, &event,
                              why) != 0) {
        ps_account_count_line(&c->output.account, PS_LOG_WARNING);
        ps_log_of(LOG_DEVICE, PS_LOG_WARNING, "event of a worker refused %s",
                  why);
        return; /* Operations that name it are refused. */
    }
    e = ps_calloc(1, sizeof(*e));
    *e = (struct device_event){.refs = 1, .share = share, .event = event};
    ps_map_put(c->worker.events, m->event, e);
}

static void feed_op(struct ps_driver *d, ps_conn_id conn,
                    const struct ps_msg *msg)
{
    struct ps_event ev = {.type = PS_EV_MSG, .conn = conn};

    ev.msg.msg = msg;
    driver_feed(d, &ev);
}

static void event_is_over(struct ps_driver *d, struct device_op *op)
{
    struct daemon_conn *c = ps_map_get(d->conns, op->conn);

    /* The operations of a worker that is gone do not count. */
    if (c != NULL && ps_conn_is_open(c->conn)) {
        c->worker.waiting_ops--;
        feed_op(d, op->conn, op->msg);
    }
    event_unref(op->event);
    ps_msg_free(op->msg);
    ps_free(op);
}

/* Waits in a thread for work that workers have given to GPUs. It asks their events,
 * again and again while there are any: a stream that waits for an event of a
 * process that has died may never go on. */

/* Between two questions, in ns: at first less than a copy of a megabyte takes,
 * and twice as long each time, because a backward pass takes milliseconds. */
#define PAUSE_MIN_NS 20000
#define PAUSE_MAX_NS 160000

struct driver_device_watch {
    struct ps_driver *driver;
    uv_async_t async;
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    bool is_stopping;     /* Guarded by the lock, as are all below. */
    struct ps_list added; /* Operations that the thread has not seen. */
    struct ps_list over;  /* Their events are over. */
};

/* Moves the operations whose events are over. True if there were any. */
static bool ask_all(struct ps_list *waits, struct ps_list *over)
{
    PS_LIST_EACH_SAFE(struct device_op, op, node, waits)
    {
        if (ps_share_event_is_over(op->event->share, op->event->event)) {
            ps_list_remove(&op->node);
            ps_list_push_back(over, &op->node);
        }
    }
    return !ps_list_empty(over);
}

static void watch_main(void *arg)
{
    struct timespec pause = {.tv_nsec = PAUSE_MIN_NS};
    struct driver_device_watch *w = arg;
    struct ps_list waits;
    struct ps_list over;

    ps_list_init(&waits);
    ps_list_init(&over);
    uv_mutex_lock(&w->lock);
    while (!w->is_stopping) {
        ps_list_move_all(&w->added, &waits);
        if (ps_list_empty(&waits)) {
            uv_cond_wait(&w->wake, &w->lock);
            continue;
        }
        uv_mutex_unlock(&w->lock);

        const bool any = ask_all(&waits, &over);

        if (any) {
            pause.tv_nsec = PAUSE_MIN_NS;
        } else {
            (void)nanosleep(&pause, NULL);
            pause.tv_nsec = pause.tv_nsec < PAUSE_MAX_NS ? 2 * pause.tv_nsec
                                                         : PAUSE_MAX_NS;
        }
        uv_mutex_lock(&w->lock);
        if (any) {
            ps_list_move_all(&over, &w->over);
            ps_uv_wake(&w->async);
        }
    }
    ps_list_move_all(&waits, &w->over);
    uv_mutex_unlock(&w->lock);
}

static void report_over(struct driver_device_watch *w)
{
    struct ps_list over;
    struct device_op *op;

    ps_list_init(&over);
    uv_mutex_lock(&w->lock);
    ps_list_move_all(&w->over, &over);
    uv_mutex_unlock(&w->lock);
    while ((op = PS_LIST_POP(struct device_op, node, &over)) != NULL) {
        event_is_over(w->driver, op);
    }
}

static void on_wake(uv_async_t *handle)
{
    report_over(handle->data);
}

static void handle_closed(uv_handle_t *handle)
{
    ps_free(handle->data);
}

static void close_watch(struct driver_device_watch *w)
{
    uv_cond_destroy(&w->wake);
    uv_mutex_destroy(&w->lock);
    uv_close((uv_handle_t *)&w->async, handle_closed);
}

/* Starts the thread, unless it runs. False: it cannot be started. */
static bool open_watch(struct ps_driver *d)
{
    struct driver_device_watch *w = d->device_watch;

    if (w != NULL) {
        return true;
    }
    w = ps_calloc(1, sizeof(*w));
    if (uv_async_init(ps_loop_uv(d->opt.loop), &w->async, on_wake) != 0) {
        ps_free(w);
        return false;
    }
    w->async.data = w;
    uv_unref((uv_handle_t *)&w->async);
    w->driver = d;
    ps_list_init(&w->added);
    ps_list_init(&w->over);
    uv_mutex_init(&w->lock);
    uv_cond_init(&w->wake);
    if (uv_thread_create(&w->thread, watch_main, w) != 0) {
        close_watch(w);
        return false;
    }
    d->device_watch = w;
    return true;
}

void driver_device_fini(struct ps_driver *d)
{
    struct driver_device_watch *w = d->device_watch;

    if (w == NULL) {
        return;
    }
    uv_mutex_lock(&w->lock);
    w->is_stopping = true;
    uv_cond_signal(&w->wake);
    uv_mutex_unlock(&w->lock);
    uv_thread_join(&w->thread);
    ps_list_move_all(&w->added,
                     &w->over); /* Operations that are left are dropped. */
    report_over(w);
    close_watch(w);
}

static void refuse_op(struct daemon_conn *c, uint64_t op_id)
{
    const struct ps_msg m = {
        .code = PS_MSG_L_DONE,
        .l_done = {.op_id = op_id,
                   .error = PS_E_UNSUPPORTED,
                   .text = "the agent cannot use the event of this operation, "
                           "see its log: use memory of the host"}};
    const struct ps_conn_frame frame = {.msg = &m, .pass_fd = -1};

    if (ps_conn_send(c->conn, &frame) == 0) {
        driver_mark_flush(c);
    }
}

static void accept_device_op(struct daemon_conn *c, const struct ps_msg *msg)
{
    const struct ps_msg_l_device_op *m = &msg->l_device_op;
    struct driver_device_watch *w;
    struct device_event *e = c->worker.events == NULL
                                 ? NULL
                                 : ps_map_get(c->worker.events, m->event);
    struct device_op *op;

    if (m->event == 0) {
        feed_op(c->driver, c->id, msg);
        return;
    }
    if (e == NULL || !open_watch(c->driver)) {
        refuse_op(c, m->op_id);
        return;
    }
    if (c->worker.waiting_ops >= PS_OPS_MAX) {
        ps_conn_close(c->conn, PS_E_PROTO, "too many operations");
        return;
    }
    c->worker.waiting_ops++;
    op = ps_calloc(1, sizeof(*op));
    *op = (struct device_op){.conn = c->id, .event = e, .msg = ps_msg_dup(msg)};
    e->refs++;
    w = c->driver->device_watch;
    uv_mutex_lock(&w->lock);
    ps_list_push_back(&w->added, &op->node);
    uv_cond_signal(&w->wake);
    uv_mutex_unlock(&w->lock);
}

static void drop_device_events(struct daemon_conn *c)
{
    struct ps_map_cursor at = {0};
    struct device_event *e;

    if (c->worker.events == NULL) {
        return;
    }
    while ((e = ps_map_next(c->worker.events, &at)) != NULL) {
        event_unref(e);
    }
    ps_map_free(c->worker.events);
    c->worker.events = NULL;
}

/* ------------------------------------------------------------------- frames */

bool driver_accept_memory(struct daemon_conn *c, const struct ps_msg *msg)
{
    switch (msg->code) {
    case PS_MSG_L_REGION:
        map_worker_memory(c, PS_EV_REGION, msg->l_region.region,
                          msg->l_region.size);
        return true;
    case PS_MSG_L_RESIDUAL_SEGMENT:
        map_worker_memory(c, PS_EV_RESIDUAL_SEGMENT,
                          msg->l_residual_segment.segment,
                          msg->l_residual_segment.size);
        return true;
    case PS_MSG_L_RING:
        accept_ring(c, msg);
        return true;
    case PS_MSG_L_DEVICE:
        accept_device(c, msg);
        return true;
    case PS_MSG_L_DEVICE_EVENT:
        accept_device_event(c, msg);
        return true;
    case PS_MSG_L_DEVICE_OP:
        accept_device_op(c, msg);
        return true;
    case PS_MSG_L_WAKE:
        return true; /* The loop is awake; before_poll() polls the rings. */
    default:
        return false;
    }
}

void driver_drop_memory(struct daemon_conn *c)
{
    drop_device_events(c);
    /* Operations that the worker pushed before it ended. */
    (void)driver_ring_poll(c, c->worker.frames);
    drop_ring(&c->worker.ring);
}
