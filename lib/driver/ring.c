/* SPDX-License-Identifier: Apache-2.0 */
/* Memory shared with workers: regions and residual segments, which the machine
 * gets as buffers, and rings of operations. */
#include "driver/inner.h"

#include "base/str.h"
#include "net/arena.h"
#include "net/local.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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
