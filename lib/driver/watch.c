/* SPDX-License-Identifier: Apache-2.0 */
/* Detects connections without progress: TCP retransmits ever more rarely and
 * reports nothing. While bytes sent to a server are unacknowledged, its
 * connection is checked a few times a second. */
#include "driver/inner.h"

#include "base/map.h"

#define WATCH_INTERVAL PS_MILLIS(200)

/* True if bytes are unacknowledged. */
static bool check_conn(struct daemon_conn *c)
{
    struct ps_driver *d = c->driver;
    struct ps_event ev = {.type = PS_EV_STALLED, .conn = c->id};
    ps_time unacked = ps_conn_unacked(c->conn);
    struct ps_conn_losses losses;

    if (ps_conn_losses(c->conn, &losses)) {
        ps_path_on_losses(
            &c->path,
            &(struct ps_path_losses){.sent = losses.sent,
                                     .retransmitted = losses.retransmitted,
                                     .slows_on_loss = losses.slows_on_loss},
            ps_loop_now(d->opt.loop));
    }
    const bool stalled = ps_path_on_unacked(&c->path, unacked, &d->fx);

    driver_apply_effects(d);
    if (stalled) {
        driver_feed(d, &ev);
    }
    return unacked > 0;
}

static void check_all(struct ps_loop_timer *t)
{
    struct ps_driver *d = PS_CONTAINER(t, struct ps_driver, watch.timer);
    struct ps_map_cursor at = {0};
    struct daemon_conn *c;
    bool any = false;

    while (!d->is_closing && (c = ps_map_next(d->conns, &at)) != NULL) {
        any |= c->is_watched && check_conn(c);
    }
    d->watch.is_set = any;
    if (any) {
        ps_loop_timer_set(d->opt.loop, t,
                          ps_loop_now(d->opt.loop) + WATCH_INTERVAL);
    }
}

void driver_watch(struct daemon_conn *c)
{
    struct ps_driver *d = c->driver;

    if (d->watch.is_set || d->is_closing) {
        return;
    }
    d->watch.is_set = true;
    d->watch.timer.due = check_all;
    ps_loop_timer_set(d->opt.loop, &d->watch.timer,
                      ps_loop_now(d->opt.loop) + WATCH_INTERVAL);
}
