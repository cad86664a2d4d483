/* SPDX-License-Identifier: Apache-2.0 */
/* Subflows, the further connections of a link (common/multipath.h). The side
 * that dialled the main connection dials them, the other side joins them to the
 * link, and each may close at any time. The machine sees only the main one. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/num.h"
#include "net/io_pool.h"

#include <unistd.h>

#define SUBFLOW_DIAL_WAIT_MAX PS_SECONDS(5)

bool driver_may_have_subflows(const struct daemon_conn *c)
{
    return c->address != NULL && c->driver->opt.link_connections != 1;
}

/* Number of connections that the link should have. */
static uint32_t subflows_wanted(const struct daemon_conn *first)
{
    const struct ps_driver *d = first->driver;
    struct ps_map_cursor at = {0};
    const struct daemon_conn *c;
    uint32_t links = 0;

    if (d->opt.link_connections != 0) {
        return d->opt.link_connections;
    }
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        links += c->address != NULL;
    }
    uint64_t loops = d->opt.io_pool != NULL ? ps_io_pool_threads(d->opt.io_pool)
                                            : 0;

    uint64_t wanted = links == 0 ? 1 : (loops + links - 1) / links;

    return (uint32_t)ps_max_u64(ps_max_u64(1, wanted), first->losses.subflows);
}

/* Main connection of the link that a hello names; NULL: there is none, or it
 * has the maximum of connections. */
static struct daemon_conn *find_link_conn(struct ps_driver *d,
                                          const struct daemon_conn *joins,
                                          const struct ps_msg_hello *m)
{
    struct ps_map_cursor at = {0};
    struct daemon_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        uint32_t count = 1;

        if (c->is_subflow || !c->is_welcomed || !ps_conn_is_open(c->conn) ||
            c->is_shm != joins->is_shm || c->identity.session != m->session ||
            c->identity.instance != m->instance ||
            c->identity.node != m->node) {
            continue;
        }
        PS_LIST_EACH(n, &c->multipath.subflows)
        {
            count++;
        }
        return count < PS_LINK_CONNECTIONS_MAX ? c : NULL;
    }
    return NULL;
}

/* Server side: joins an accepted connection to its link. */
static void subflow_join(struct daemon_conn *c, const struct ps_msg_hello *m)
{
    const struct ps_msg welcome = {
        .code = PS_MSG_WELCOME,
        .welcome = {.protocol = m->protocol < PS_PROTOCOL
                                    ? m->protocol
                                    : (uint16_t)PS_PROTOCOL,
                    .name = "",
                    .resumed = true,
                    .features = PS_FEATURE_SUBFLOW}};
    const struct ps_conn_frame frame = {.msg = &welcome, .pass_fd = -1};
    struct ps_driver *d = c->driver;
    struct ps_event ev = {.type = PS_EV_CLOSED, .conn = c->id};

    if (d->opt.self != PS_ROLE_SERVER || m->protocol < PS_PROTOCOL_LEAST ||
        m->session == 0 || (c->first = find_link_conn(d, c, m)) == NULL) {
        ps_conn_close(c->conn, PS_E_STALE,
                      "wants to join a link that is not there");
        return;
    }
    c->is_subflow = true;
    ps_multipath_add(&c->first->multipath, &c->subflow, c->conn);
    /* The machine sees a closed connection. */
    ev.closed.rc = PS_E_CLOSED;
    driver_feed(d, &ev);
    if (ps_conn_send(c->conn, &frame) == 0) {
        ps_conn_set_protocol(c->conn, welcome.welcome.protocol);
        ps_multipath_ready(&c->first->multipath, &c->subflow);
        driver_mark_flush(c);
        ps_log(PS_LOG_DEBUG, "connection joins peer=%s link=%s",
               ps_conn_peer(c->conn), ps_conn_peer(c->first->conn));
    }
}

void driver_subflow_frame(struct daemon_conn *c, const struct ps_msg *msg,
                          uint64_t len)
{
    if (!c->is_subflow) {
        subflow_join(c, &msg->hello);
    } else if (c->first == NULL) {
        driver_drop_payload(c); /* The link has ended. */
    } else if (msg->code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(c->conn, msg->welcome.protocol < PS_PROTOCOL
                                          ? msg->welcome.protocol
                                          : (uint16_t)PS_PROTOCOL);
        c->first->subflow_wait = SUBFLOW_DIAL_WAIT;
        ps_multipath_ready(&c->first->multipath, &c->subflow);
    } else if (msg->seq == 0) {
        ps_conn_close(c->conn, PS_E_PROTO,
                      "what is not sequenced came on a joined connection");
        driver_drop_payload(c);
    } else {
        ps_multipath_acked(&c->first->multipath, msg->ack);
        driver_deliver(c, c->first->id, msg, len);
    }
}

void driver_subflow_hello(struct daemon_conn *c)
{
    struct ps_msg msg = *c->first->hello->msg;
    const struct ps_conn_frame frame = {.msg = &msg, .pass_fd = -1};

    msg.hello.features |= PS_FEATURE_SUBFLOW;
    if (ps_conn_send(c->conn, &frame) == 0) {
        driver_mark_flush(c);
    }
}

void driver_subflow_closed(struct daemon_conn *c)
{
    struct ps_driver *d = c->driver;
    struct daemon_conn *first = c->first;
    struct ps_unacked lost;

    if (first != NULL && !d->is_closing && ps_conn_is_open(first->conn)) {
        while (ps_subflow_pop_unacked(&c->subflow, &lost)) {
            struct ps_msg msg = *lost.parcel->msg;
            struct ps_conn_frame frame = {.msg = &msg, .pass_fd = -1};

            msg.seq = lost.seq;
            msg.ack = first->multipath.ack;
            if (driver_write(first, &frame, lost.parcel) != 0) {
                break;
            }
        }
        driver_mark_flush(first);
        driver_subflow_later(first, true);
    }
    ps_subflow_fini(&c->subflow);
}

/* Closes the subflows with the main connection; the link itself survives. */
void driver_end_subflows(struct daemon_conn *c)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&c->multipath.subflows)) != NULL) {
        struct daemon_conn *s = PS_CONTAINER(n, struct daemon_conn,
                                             subflow.node);

        s->first = NULL;
        ps_subflow_fini(&s->subflow);
        ps_conn_close(s->conn, PS_E_CLOSED, "its link has lost the first one");
    }
    ps_loop_timer_set(c->driver->opt.loop, &c->subflow_timer, PS_TIME_NEVER);
    ps_packet_unref(c->hello);
    ps_free(c->address);
}

/* Opens the subflow that was dialled. */
void driver_subflow_dialled(struct ps_driver *d, ps_conn_id id, int fd, int rc,
                            const char *detail)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    struct daemon_conn *first = ps_map_get(d->conns, id);

    if (first != NULL) {
        first->subflow_dials--;
    }
    if (first == NULL || !ps_conn_is_open(first->conn)) {
        if (rc == 0) {
            close(fd);
        }
        return;
    }
    if (rc != 0) {
        driver_subflow_later(first, true);
        return;
    }
    driver_open(d,
                &(struct conn_opening){.fd = fd,
                                       .peer_roles = 1u << PS_ROLE_SERVER,
                                       .peer = detail,
                                       .first = first},
                &ev);
}

static void subflow_due(struct ps_loop_timer *t)
{
    struct daemon_conn *c = PS_CONTAINER(t, struct daemon_conn, subflow_timer);
    struct ps_driver *d = c->driver;
    uint32_t wanted = subflows_wanted(c);
    uint32_t count = 1 + c->subflow_dials;

    PS_LIST_EACH(n, &c->multipath.subflows)
    {
        count++;
    }
    if (d->is_closing || !ps_conn_is_open(c->conn)) {
        return;
    }
    c->has_subflows = c->has_subflows || count < wanted;
    if (count < wanted && c->payload_is_borrowed) {
        /* Waits until no payload is received into memory of the machine. */
        driver_subflow_later(c, true);
        return;
    }
    for (; count < wanted; count++) {
        if (driver_dial_subflow(c) != 0) {
            driver_subflow_later(c, true);
            return;
        }
        c->subflow_dials++;
    }
}

void driver_subflow_later(struct daemon_conn *c, bool failed)
{
    ps_time at = ps_loop_now(c->driver->opt.loop);

    if (!driver_may_have_subflows(c)) {
        return;
    }
    if (failed) {
        at = ps_time_add(at, c->subflow_wait);
        c->subflow_wait = ps_time_min(c->subflow_wait * 2,
                                      SUBFLOW_DIAL_WAIT_MAX);
    }
    c->subflow_timer.due = subflow_due;
    ps_loop_timer_set(c->driver->opt.loop, &c->subflow_timer, at);
}

void driver_check_losses(struct daemon_conn *first)
{
    struct ps_conn_losses sum = {0};
    struct ps_list_node *n = ps_list_first(&first->multipath.subflows);
    struct daemon_conn *c = first;

    if (!driver_may_have_subflows(first) || !first->is_welcomed ||
        first->driver->opt.link_connections != 0) {
        return;
    }
    for (;;) {
        struct ps_conn_losses now;

        if (ps_conn_losses(c->conn, &now)) {
            sum.sent += now.sent - c->loss_seen.sent;
            sum.retransmitted += now.retransmitted - c->loss_seen.retransmitted;
            sum.slows_on_loss |= now.slows_on_loss;
            c->loss_seen = now;
        }
        if (n == NULL) {
            break;
        }
        c = PS_CONTAINER(n, struct daemon_conn, subflow.node);
        n = ps_list_next(&first->multipath.subflows, n);
    }
    if (ps_losses_add(&first->losses, ps_loop_now(first->driver->opt.loop),
                      sum.sent, sum.retransmitted, sum.slows_on_loss)) {
        driver_subflow_later(first, false);
    }
}
