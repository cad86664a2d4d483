/* SPDX-License-Identifier: Apache-2.0 */
/* What workers share with their agent: regions, which the machine gets as
 * memory, and the rings that operations come through. */
#include "common/driver_inner.h"

#include "base/str.h"
#include "net/arena.h"
#include "net/local.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Operations that a machine is told of at once. */
#define TAKE_OPS 32

/* The machine tells the worker. */
static void no_memory(struct link_conn *c, enum ps_event_type type,
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

/* Memory of a worker, or what an agent before this one has left with it. The
 * machine never sees descriptors. */
static void take_memory(struct link_conn *c, enum ps_event_type type,
                        uint32_t number, uint64_t size)
{
    struct ps_event ev = {.type = type, .conn = c->id};
    int fd = ps_conn_take_fd(c->conn);
    struct ps_buf *buf;
    const char *why;
    int rc;

    if (fd < 0) {
        ps_conn_close(c->conn, PS_E_PROTO,
                      type == PS_EV_KEEP ? "l_keep without a descriptor"
                                         : "l_region without a descriptor");
        return;
    }
    rc = type == PS_EV_KEEP
             ? ps_arenas_adopt(c->driver->opt.arenas, fd, size, &buf, &why)
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

void driver_take_region(struct link_conn *c, const struct ps_msg *msg)
{
    take_memory(c, PS_EV_REGION, msg->l_region.region, msg->l_region.size);
}

void driver_take_keep(struct link_conn *c, const struct ps_msg *msg)
{
    take_memory(c, PS_EV_KEEP, msg->l_keep.keep, msg->l_keep.size);
}

void driver_take_ring(struct link_conn *c, const struct ps_msg *msg)
{
    int fd = ps_conn_take_fd(c->conn);
    const char *why;

    if (fd < 0) {
        ps_conn_close(c->conn, PS_E_PROTO, "l_ring without a descriptor");
        return;
    }
    if (c->ring_memory != NULL || msg->l_ring.size != ps_ring_bytes()) {
        close(fd);
        ps_conn_close(c->conn, PS_E_PROTO,
                      c->ring_memory != NULL ? "a second l_ring"
                                             : "l_ring of another size");
        return;
    }
    int rc = ps_local_map_shared(fd, msg->l_ring.size, &c->ring_memory, &why);

    if (rc != 0) {
        no_memory(c, PS_EV_KEEP, 0, msg->l_ring.size, rc, why);
        return;
    }
    ps_ring_agent_init(&c->ring, c->ring_memory->data);
    ps_list_push_back(&c->driver->ringed, &c->ringed);
}

void driver_forget_ring(struct link_conn *c)
{
    if (ps_list_linked(&c->told)) {
        ps_list_remove(&c->told);
    }
    if (ps_list_linked(&c->ringed)) {
        ps_list_remove(&c->ringed);
    }
    ps_buf_unref(c->ring_memory);
    c->ring_memory = NULL;
}

bool driver_take_ops(struct link_conn *c, uint64_t frames)
{
    struct ps_msg_l_op ops[TAKE_OPS];
    struct ps_event ev = {.type = PS_EV_OPS, .conn = c->id, .ops = {.op = ops}};
    /* Asking the clock for each would cost as much as taking it. */
    ps_time now = ps_loop_now(c->driver->opt.loop);
    uint32_t count = 0;
    int rc = 1;

    /* Who fills its ring all the time has others served in between. */
    while (count < PS_RING_OPS &&
           (rc = ps_ring_take_ops(&c->ring, frames, ops, TAKE_OPS)) > 0) {
        count += (uint32_t)rc;
        ev.ops.count = (uint32_t)rc;
        driver_feed_at(c->driver, &ev, now);
    }
    if (rc < 0) {
        ps_conn_close(c->conn, rc, "an operation in the ring makes no sense");
        driver_forget_ring(c);
    }
    return count > 0;
}

bool driver_take_rings(struct ps_driver *d)
{
    struct ps_list_node *n = ps_list_first(&d->ringed);
    bool any = false;

    while (n != NULL) {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, ringed);

        n = ps_list_next(&d->ringed, n);
        if (ps_conn_is_open(c->conn)) {
            any |= driver_take_ops(c, ps_conn_frames(c->conn));
        }
    }
    return any;
}

void driver_rings_awake(struct ps_driver *d)
{
    if (!d->asleep) {
        return;
    }
    d->asleep = false;
    PS_LIST_EACH(n, &d->ringed)
    {
        ps_ring_agent_awake(&PS_CONTAINER(n, struct link_conn, ringed)->ring);
    }
}

bool driver_rings_sleep(struct ps_driver *d)
{
    d->asleep = true;
    PS_LIST_EACH(n, &d->ringed)
    {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, ringed);

        if (ps_conn_is_open(c->conn) &&
            !ps_ring_agent_sleep(&c->ring, ps_conn_frames(c->conn))) {
            driver_rings_awake(d);
            return false;
        }
    }
    return true;
}

void driver_wake_told(struct ps_driver *d)
{
    static const struct ps_msg wake = {.code = PS_MSG_L_WAKE};
    const struct ps_conn_frame frame = {.msg = &wake, .pass_fd = -1};
    struct ps_list_node *n;

    while ((n = ps_list_pop(&d->told)) != NULL) {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, told);

        /* A connection that takes no frame is closing, which wakes, too. */
        if (ps_ring_wake_worker(&c->ring) &&
            ps_conn_send(c->conn, &frame) == 0) {
            driver_mark_dirty(c);
        }
    }
}
