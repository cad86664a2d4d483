/* SPDX-License-Identifier: Apache-2.0 */
/* Further connections of a link (common/bundle.h): who has one joins it, who
 * dialled the first one dials them, and each may be cut at any time. To the
 * machine there is only the first. */
#include "common/driver_inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/num.h"
#include "net/mover.h"

#include <unistd.h>

#define JOIN_MAX PS_SECONDS(5)

bool driver_may_join(const struct link_conn *c)
{
    return c->address != NULL && c->driver->opt.link_connections != 1;
}

/* The number of connections that the link should have. */
static uint32_t connections_wanted(const struct link_conn *first)
{
    const struct ps_driver *d = first->driver;
    struct ps_map_cursor at = {0};
    const struct link_conn *c;
    uint32_t links = 0;

    if (d->opt.link_connections != 0) {
        return d->opt.link_connections;
    }
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        links += c->address != NULL;
    }
    uint64_t loops = d->opt.movers != NULL ? ps_movers_count(d->opt.movers) : 0;

    uint64_t wanted = links == 0 ? 1 : (loops + links - 1) / links;

    return (uint32_t)ps_max_u64(ps_max_u64(1, wanted), first->losses.wanted);
}

/* The link that a hello wants to join; NULL: there is none, or it is full. */
static struct link_conn *find_first(struct ps_driver *d,
                                    const struct link_conn *joins,
                                    const struct ps_msg_hello *m)
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        uint32_t count = 1;

        if (c->joins || !c->welcomed || !ps_conn_is_open(c->conn) ||
            c->near != joins->near || c->who.session != m->session ||
            c->who.instance != m->instance || c->who.node != m->node) {
            continue;
        }
        PS_LIST_EACH(n, &c->bundle.strands)
        {
            count++;
        }
        return count < PS_LINK_CONNECTIONS_MAX ? c : NULL;
    }
    return NULL;
}

/* A server's side: one that dialled belongs to a link that is there. */
static void join(struct link_conn *c, const struct ps_msg_hello *m)
{
    const struct ps_msg welcome = {
        .code = PS_MSG_WELCOME,
        .welcome = {.protocol = m->protocol < PS_PROTOCOL
                                    ? m->protocol
                                    : (uint16_t)PS_PROTOCOL,
                    .name = "",
                    .resumed = true,
                    .features = PS_FEATURE_JOIN}};
    const struct ps_conn_frame frame = {.msg = &welcome, .pass_fd = -1};
    struct ps_driver *d = c->driver;
    struct ps_event ev = {.type = PS_EV_CLOSED, .conn = c->id};

    if (d->opt.self != PS_ROLE_SERVER || m->protocol < PS_PROTOCOL_LEAST ||
        m->session == 0 || (c->first = find_first(d, c, m)) == NULL) {
        ps_conn_close(c->conn, PS_E_STALE,
                      "wants to join a link that is not there");
        return;
    }
    c->joins = true;
    ps_bundle_add(&c->first->bundle, &c->strand, c->conn);
    /* To the machine it is as if it had gone. */
    ev.closed.rc = PS_E_CLOSED;
    driver_feed(d, &ev);
    if (ps_conn_send(c->conn, &frame) == 0) {
        ps_conn_set_protocol(c->conn, welcome.welcome.protocol);
        ps_bundle_ready(&c->first->bundle, &c->strand);
        driver_mark_dirty(c);
        ps_log(PS_LOG_DEBUG, "connection joins peer=%s link=%s",
               ps_conn_peer(c->conn), ps_conn_peer(c->first->conn));
    }
}

void driver_strand_frame(struct link_conn *c, const struct ps_msg *msg,
                         uint64_t len)
{
    if (!c->joins) {
        join(c, &msg->hello);
    } else if (c->first == NULL) {
        driver_forget_payload(c); /* The link is over. */
    } else if (msg->code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(c->conn, msg->welcome.protocol < PS_PROTOCOL
                                          ? msg->welcome.protocol
                                          : (uint16_t)PS_PROTOCOL);
        c->first->join_wait = JOIN_FIRST;
        ps_bundle_ready(&c->first->bundle, &c->strand);
    } else if (msg->seq == 0) {
        ps_conn_close(c->conn, PS_E_PROTO,
                      "what is not sequenced came on a joined connection");
        driver_forget_payload(c);
    } else {
        ps_bundle_acked(&c->first->bundle, msg->ack);
        driver_deliver(c, c->first->id, msg, len);
    }
}

void driver_say_join(struct link_conn *c)
{
    struct ps_msg msg = *c->first->hello->msg;
    const struct ps_conn_frame frame = {.msg = &msg, .pass_fd = -1};

    msg.hello.features |= PS_FEATURE_JOIN;
    if (ps_conn_send(c->conn, &frame) == 0) {
        driver_mark_dirty(c);
    }
}

void driver_strand_closed(struct link_conn *c)
{
    struct ps_driver *d = c->driver;
    struct link_conn *first = c->first;
    struct ps_carried lost;

    if (first != NULL && !d->closing && ps_conn_is_open(first->conn)) {
        while (ps_strand_next(&c->strand, &lost)) {
            struct ps_msg msg = *lost.parcel->msg;
            struct ps_conn_frame frame = {.msg = &msg, .pass_fd = -1};

            msg.seq = lost.seq;
            msg.ack = first->bundle.ack;
            if (driver_write(first, &frame, lost.parcel) != 0) {
                break;
            }
        }
        driver_mark_dirty(first);
        driver_join_later(first, true);
    }
    ps_strand_fini(&c->strand);
}

/* With the first connection the others end; the link lives on by itself. */
void driver_end_strands(struct link_conn *c)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&c->bundle.strands)) != NULL) {
        struct link_conn *s = PS_CONTAINER(n, struct link_conn, strand.node);

        s->first = NULL;
        ps_strand_fini(&s->strand);
        ps_conn_close(s->conn, PS_E_CLOSED, "its link has lost the first one");
    }
    ps_loop_timer_set(c->driver->opt.loop, &c->join, PS_TIME_NEVER);
    ps_parcel_unref(c->hello);
    ps_free(c->address);
}

/* A further connection for a link. */
void driver_join_dialled(struct ps_driver *d, ps_conn_id id, int fd, int rc,
                         const char *detail)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    struct link_conn *first = ps_map_get(d->conns, id);

    if (first != NULL) {
        first->joining--;
    }
    if (first == NULL || !ps_conn_is_open(first->conn)) {
        if (rc == 0) {
            close(fd);
        }
        return;
    }
    if (rc != 0) {
        driver_join_later(first, true);
        return;
    }
    driver_open(d,
                &(struct opening){.fd = fd,
                                  .peer_roles = 1u << PS_ROLE_SERVER,
                                  .peer = detail,
                                  .first = first},
                &ev);
}

static void join_due(struct ps_loop_timer *t)
{
    struct link_conn *c = PS_CONTAINER(t, struct link_conn, join);
    struct ps_driver *d = c->driver;
    uint32_t wanted = connections_wanted(c);
    uint32_t count = 1 + c->joining;

    PS_LIST_EACH(n, &c->bundle.strands)
    {
        count++;
    }
    if (d->closing || !ps_conn_is_open(c->conn)) {
        return;
    }
    c->several = c->several || count < wanted;
    if (count < wanted && c->lent) {
        driver_join_later(c, true); /* The last one that comes alone. */
        return;
    }
    for (; count < wanted; count++) {
        if (driver_dial_more(c) != 0) {
            driver_join_later(c, true);
            return;
        }
        c->joining++;
    }
}

void driver_join_later(struct link_conn *c, bool failed)
{
    ps_time at = ps_loop_now(c->driver->opt.loop);

    if (!driver_may_join(c)) {
        return;
    }
    if (failed) {
        at = ps_time_add(at, c->join_wait);
        c->join_wait = ps_time_min(c->join_wait * 2, JOIN_MAX);
    }
    c->join.due = join_due;
    ps_loop_timer_set(c->driver->opt.loop, &c->join, at);
}

void driver_look_at_losses(struct link_conn *first)
{
    struct ps_conn_losses sum = {0};
    struct ps_list_node *n = ps_list_first(&first->bundle.strands);
    struct link_conn *c = first;

    if (!driver_may_join(first) || !first->welcomed ||
        first->driver->opt.link_connections != 0) {
        return;
    }
    for (;;) {
        struct ps_conn_losses now;

        if (ps_conn_losses(c->conn, &now)) {
            sum.sent += now.sent - c->lost.sent;
            sum.again += now.again - c->lost.again;
            sum.heeded |= now.heeded;
            c->lost = now;
        }
        if (n == NULL) {
            break;
        }
        c = PS_CONTAINER(n, struct link_conn, strand.node);
        n = ps_list_next(&first->bundle.strands, n);
    }
    if (ps_losses_add(&first->losses, ps_loop_now(first->driver->opt.loop),
                      sum.sent, sum.again, sum.heeded)) {
        driver_join_later(first, false);
    }
}
