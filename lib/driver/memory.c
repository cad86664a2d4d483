/* SPDX-License-Identifier: Apache-2.0 */
/* Memory shared with workers: regions and residual segments, which the machine
 * gets as buffers, rings of operations, and memory of GPUs. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/str.h"
#include "kernel/share.h"
#include "net/arena.h"
#include "net/event_watch.h"
#include "net/local.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ------------------------------------------------------- regions and rings */

/* Memory shared with workers: regions and residual segments, which the machine
 * gets as buffers, and rings of operations. */

/* Operations fed to the machine in one event. */
#define RING_BATCH_MAX 32

/* Reports to the machine that memory cannot be mapped; it notifies the
 * worker. */
static void no_memory(struct daemon_conn *c, enum ps_event_type type,
                      uint32_t number, uint64_t size, int rc, const char *why)
{
    struct ps_event ev = {.type = type, .conn = c->id};
    const int errnum = errno;
    char text[PS_TEXT_MAX + 1];
    struct rlimit limit;
    struct ps_str t;

    ps_str_init(&t, text, sizeof(text));
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
    ev.region.why = text;
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
             : ps_local_map_shared(fd, size, &buf, &why);
    if (rc != 0) {
        no_memory(c, type, number, size, rc, why);
        return;
    }
    ev.region.region = number;
    ev.region.buf = buf;
    driver_feed(c->driver, &ev);
    ps_buf_unref(buf);
}

void driver_accept_region(struct daemon_conn *c, const struct ps_msg *msg)
{
    map_worker_memory(c, PS_EV_REGION, msg->l_region.region,
                      msg->l_region.size);
}

void driver_accept_residuals(struct daemon_conn *c, const struct ps_msg *msg)
{
    map_worker_memory(c, PS_EV_RESIDUAL_SEGMENT,
                      msg->l_residual_segment.segment,
                      msg->l_residual_segment.size);
}

bool driver_ring_poll(struct daemon_conn *c, uint64_t frames)
{
    struct ps_msg_l_op ops[RING_BATCH_MAX];
    struct ps_event ev = {.type = PS_EV_OPS, .conn = c->id, .ops = {.op = ops}};
    /* One time stamp for all: reading the clock costs as much as an
     * operation. */
    ps_time now = ps_loop_now(c->driver->opt.loop);
    uint32_t count = 0;
    int n;

    /* Bounded, so that a worker that keeps its ring full does not starve
     * others. */
    while (count < PS_RING_OP_SLOTS &&
           (n = ps_ring_conn_take(&c->worker.ring, frames, ops,
                                  RING_BATCH_MAX)) > 0) {
        count += (uint32_t)n;
        ev.ops.count = (uint32_t)n;
        driver_feed_at(c->driver, &ev, now);
    }
    return count > 0;
}

static bool poll_rings(struct ps_driver *d)
{
    struct ps_list_node *n = ps_list_first(&d->rings.conns);
    bool any = false;

    while (n != NULL) {
        struct daemon_conn *c = PS_CONTAINER(n, struct daemon_conn,
                                             worker.ring.node);

        n = ps_list_next(&d->rings.conns, n);
        if (ps_conn_is_open(c->conn)) {
            any |= driver_ring_poll(c, ps_conn_frames(c->conn));
        }
    }
    return any;
}

static void wake_workers(struct ps_driver *d)
{
    struct ps_ring_conn *r;

    while ((r = ps_ring_set_wake_next(&d->rings)) != NULL) {
        driver_mark_flush(PS_CONTAINER(r, struct daemon_conn, worker.ring));
    }
}

static void set_awake(struct ps_driver *d)
{
    ps_ring_set_awake(&d->rings);
}

static bool set_sleep(struct ps_driver *d)
{
    return ps_ring_set_sleep(&d->rings);
}

static const struct driver_source ring_source = {
    .awake = set_awake,
    .poll = poll_rings,
    .wake_peers = wake_workers,
    .sleep = set_sleep,
};

void driver_accept_ring(struct daemon_conn *c, const struct ps_msg *msg)
{
    const char *why;
    int rc = ps_ring_set_accept(&c->driver->rings, &c->worker.ring, c->conn,
                                msg->l_ring.size, &why);

    if (rc == PS_E_PROTO) {
        ps_conn_close(c->conn, rc, why);
    } else if (rc != 0) {
        char text[PS_TEXT_MAX];

        /* Region 0 is none, so the machine ends the session. */
        snprintf(text, sizeof(text), "ring of operations: %s", why);
        no_memory(c, PS_EV_REGION, 0, msg->l_ring.size, rc, text);
    } else {
        c->driver->source = &ring_source;
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
    struct ps_event_wait wait;
    struct ps_driver *driver;
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
    char text[PS_TEXT_MAX];
    struct ps_str t;

    ps_str_init(&t, text, sizeof(text));
    ps_str_add(&t, "the agent cannot use memory of this GPU: ");
    ps_str_add_visible(&t, why);
    if (is_logged) {
        ps_account_count_line(&c->output.account, PS_LOG_WARNING);
        ps_log_of(LOG_DEVICE, PS_LOG_WARNING, "memory of a worker refused %s",
                  text);
    }
    send_info(c, m->region, error, text);
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

void driver_accept_device(struct daemon_conn *c, const struct ps_msg *msg)
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

static struct ps_event_watch *open_watch(struct ps_driver *d)
{
    if (d->device.watch == NULL &&
        ps_event_watch_new(d->opt.loop, d->opt.share, &d->device.watch) != 0) {
        return NULL;
    }
    return d->device.watch;
}

void driver_accept_device_event(struct daemon_conn *c, const struct ps_msg *msg)
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

static void event_is_over(struct ps_event_wait *w)
{
    struct device_op *op = PS_CONTAINER(w, struct device_op, wait);
    struct ps_driver *d = op->driver;
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

void driver_accept_device_op(struct daemon_conn *c, const struct ps_msg *msg)
{
    const struct ps_msg_l_device_op *m = &msg->l_device_op;
    struct device_event *e = c->worker.events == NULL
                                 ? NULL
                                 : ps_map_get(c->worker.events, m->event);
    struct device_op *op;

    if (m->event == 0) {
        feed_op(c->driver, c->id, msg);
        return;
    }
    if (e == NULL || open_watch(c->driver) == NULL) {
        refuse_op(c, m->op_id);
        return;
    }
    if (c->worker.waiting_ops >= PS_OPS_MAX) {
        ps_conn_close(c->conn, PS_E_PROTO, "too many operations");
        return;
    }
    c->worker.waiting_ops++;
    op = ps_calloc(1, sizeof(*op));
    *op = (struct device_op){
        .wait = {.event = e->event, .over = event_is_over},
        .driver = c->driver,
        .conn = c->id,
        .event = e,
        .msg = ps_msg_dup(msg),
    };
    e->refs++;
    ps_event_watch_add(c->driver->device.watch, &op->wait);
}

void driver_drop_device_events(struct daemon_conn *c)
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

void driver_device_fini(struct ps_driver *d)
{
    ps_event_watch_free(d->device.watch);
}
