/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that workers share with this daemon. The machine gets it as a
 * region whose buffer has a `device`, and an operation only when the event that
 * it names is over; so it knows neither GPUs nor events. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/str.h"
#include "kernel/share.h"
#include "net/event_watch.h"

#include <unistd.h>

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
                      "identity or handle of a GPU of another length");
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
        ps_conn_close(c->conn, PS_E_PROTO, "l_device_event without a use");
        return;
    }
    if (c->worker.events == NULL) {
        c->worker.events = ps_map_new();
    }
    if (ps_map_get(c->worker.events, m->event) != NULL) {
        ps_conn_close(c->conn, PS_E_PROTO, "an event is named twice");
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
