/* SPDX-License-Identifier: Apache-2.0 */
/* Detects connections without progress: TCP retransmits ever more rarely and
 * reports nothing. While bytes sent to a server are unacknowledged, its
 * connection is checked a few times a second. */
#include "driver/inner.h"

#include "base/map.h"

#define WATCH_INTERVAL PS_MILLIS(200)
/* Time without an acknowledgement after which the machine is notified. */
#define UNACKED_MAX    PS_MILLIS(500)

/* True if bytes are unacknowledged. */
static bool check_conn(struct daemon_conn *c)
{
    struct ps_event ev = {.type = PS_EV_STALLED, .conn = c->id};
    ps_time unacked = ps_conn_unacked(c->conn);

    if (!c->is_subflow) {
        driver_check_losses(c);
    }
    if (unacked < UNACKED_MAX) {
        return unacked > 0;
    }
    if (!c->is_subflow) {
        driver_feed(c->driver, &ev);
    } else if (c->first != NULL && ps_conn_unacked(c->first->conn) == 0) {
        /* The main connection works and takes over its frames. */
        ps_conn_close(c->conn, PS_E_TIMEOUT,
                      "its host acknowledges nothing of what is sent");
    }
    return true;
}

static void check_all(struct ps_loop_timer *t)
{
    struct ps_driver *d = PS_CONTAINER(t, struct ps_driver, watch_timer);
    struct ps_map_cursor at = {0};
    struct daemon_conn *c;
    bool any = false;

    while (!d->is_closing && (c = ps_map_next(d->conns, &at)) != NULL) {
        any |= driver_is_watched(c) && check_conn(c);
    }
    d->watch_is_set = any;
    if (any) {
        ps_loop_timer_set(d->opt.loop, t,
                          ps_loop_now(d->opt.loop) + WATCH_INTERVAL);
    }
}

void driver_watch(struct daemon_conn *c)
{
    struct ps_driver *d = c->driver;

    if (d->watch_is_set || d->is_closing || !driver_is_watched(c)) {
        return;
    }
    d->watch_is_set = true;
    d->watch_timer.due = check_all;
    ps_loop_timer_set(d->opt.loop, &d->watch_timer,
                      ps_loop_now(d->opt.loop) + WATCH_INTERVAL);
}
