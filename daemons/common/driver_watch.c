/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that do not get through: TCP goes on trying, ever more rarely,
 * and says nothing. While something that was sent to a server is not
 * acknowledged, the host of the server is looked at a few times a second. */
#include "common/driver_inner.h"

#include "base/map.h"

#define LOOK_EVERY  PS_MILLIS(200)
/* Without an acknowledgement for so long, the machine is told. */
#define UNACKED_MAX PS_MILLIS(500)

/* True: something of it is outstanding. */
static bool look(struct link_conn *c)
{
    struct ps_event ev = {.type = PS_EV_STALLED, .conn = c->id};
    ps_time unacked = ps_conn_unacked(c->conn);

    if (!c->joins) {
        driver_look_at_losses(c);
    }
    if (unacked < UNACKED_MAX) {
        return unacked > 0;
    }
    if (!c->joins) {
        driver_feed(c->driver, &ev);
    } else if (c->first != NULL && ps_conn_unacked(c->first->conn) == 0) {
        /* Its frames go over the first connection, which works. */
        ps_conn_close(c->conn, PS_E_TIMEOUT,
                      "its host acknowledges nothing of what is sent");
    }
    return true;
}

static void look_at_all(struct ps_loop_timer *t)
{
    struct ps_driver *d = PS_CONTAINER(t, struct ps_driver, watch);
    struct ps_map_cursor at = {0};
    struct link_conn *c;
    bool any = false;

    while (!d->closing && (c = ps_map_next(d->conns, &at)) != NULL) {
        any |= driver_is_watched(c) && look(c);
    }
    d->watching = any;
    if (any) {
        ps_loop_timer_set(d->opt.loop, t,
                          ps_loop_now(d->opt.loop) + LOOK_EVERY);
    }
}

void driver_watch(struct link_conn *c)
{
    struct ps_driver *d = c->driver;

    if (d->watching || d->closing || !driver_is_watched(c)) {
        return;
    }
    d->watching = true;
    d->watch.due = look_at_all;
    ps_loop_timer_set(d->opt.loop, &d->watch,
                      ps_loop_now(d->opt.loop) + LOOK_EVERY);
}
