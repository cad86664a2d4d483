/* SPDX-License-Identifier: Apache-2.0 */
/* The machine is stepped from the callbacks of the net, never from within a
 * call to it, so effects can be carried out at once. What must not happen
 * inside a step is put off to settle(), which runs before the loop waits:
 * small jobs, deadlines that are due, writing (so that all that one turn
 * produced goes out together), and asking again where there was no memory. */
#include "common/driver_inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "net/arena.h"
#include "net/worker.h"

#include <assert.h>
#include <sched.h>

/* Turns of settle() before sockets are looked at again. */
#define ROUNDS_MAX  16
/* For the last words of connections when the daemon ends. */
#define CLOSE_GRACE PS_SECONDS(2)

void driver_feed_at(struct ps_driver *d, struct ps_event *ev, ps_time now)
{
    int rc;

    if (d->closing || d->failure != 0) {
        return;
    }
    assert(!d->stepping);
    d->stepping = true;
    ev->now = now;
    rc = d->opt.machine.ops->step(d->opt.machine.self, ev, &d->fx);
    driver_carry_out(d);
    d->stepping = false;
    d->stepped = true;
    d->fed = true;
    if (rc < 0) {
        d->failure = rc;
    }
}

void driver_feed(struct ps_driver *d, struct ps_event *ev)
{
    driver_feed_at(d, ev, ps_loop_now(d->opt.loop));
}

void driver_maybe_closed(struct ps_driver *d)
{
    if (d->closing && ps_map_count(d->conns) == 0 && ps_list_empty(&d->dials) &&
        d->closed != NULL) {
        void (*closed)(void *ctx) = d->closed;

        d->closed = NULL;
        ps_loop_timer_set(d->opt.loop, &d->grace, PS_TIME_NEVER);
        ps_loop_timer_set(d->opt.loop, &d->tick, PS_TIME_NEVER);
        ps_loop_timer_set(d->opt.loop, &d->watch, PS_TIME_NEVER);
        closed(d->opt.ctx);
    }
}

static bool tick_if_due(struct ps_driver *d)
{
    const struct ps_machine *m = &d->opt.machine;
    struct ps_event ev = {.type = PS_EV_TICK};

    if (m->ops->deadline(m->self) > ps_loop_now(d->opt.loop)) {
        return false;
    }
    driver_feed(d, &ev);
    return true;
}

static bool flush_dirty(struct ps_driver *d)
{
    struct ps_list_node *n;
    struct ps_list now;
    bool any = false;

    /* What steps below make dirty again waits for the next turn. */
    ps_list_init(&now);
    while ((n = ps_list_pop(&d->dirty)) != NULL) {
        ps_list_push_back(&now, n);
    }
    while ((n = ps_list_pop(&now)) != NULL) {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, dirty);

        if (ps_conn_flush(c->conn) && ps_conn_is_open(c->conn)) {
            driver_sent(c, c->conn, ps_conn_queued(c->conn));
            any = true;
        }
    }
    return any;
}

/* Peers that map arenas keep their memory until they hear. */
static void tell_freed(struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    if (d->opt.arenas == NULL ||
        d->arenas_freed == ps_arenas_freed(d->opt.arenas)) {
        return;
    }
    d->arenas_freed = ps_arenas_freed(d->opt.arenas);
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        if (ps_conn_tell_freed(c->conn)) {
            driver_mark_dirty(c);
        }
    }
}

/* Memory may have come free with any step. */
static bool ask_paused(struct ps_driver *d)
{
    uint32_t count = d->paused_count;

    if (!d->stepped || count == 0) {
        return false;
    }
    d->stepped = false;
    while (count-- > 0) {
        struct ps_list_node *n = ps_list_first(&d->paused);

        if (n == NULL) {
            break;
        }
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, paused);

        /* To the end of the line, so that each has its turn. */
        ps_list_remove(n);
        ps_list_push_back(&d->paused, n);
        ps_conn_resume(c->conn);
    }
    return d->stepped;
}

static bool settle_once(struct ps_driver *d)
{
    bool any = driver_tell_dials(d);

    driver_relieve(d);

    any |= driver_take_rings(d);
    if (d->opt.worker != NULL) {
        any |= ps_worker_run_small(d->opt.worker);
    }
    any |= tick_if_due(d);
    any |= ask_paused(d);
    driver_wake_told(d);
    tell_freed(d);
    any |= flush_dirty(d);
    return any;
}

/* True: look once more instead of sleeping. */
static bool spins(struct ps_driver *d)
{
    ps_time now = ps_loop_now(d->opt.loop);
    bool fed = d->fed;
    bool crowded = false;

    d->fed = false;
    if (fed) {
        ps_time budget;

        if (d->spin_until != 0) {
            ps_spin_ended(&d->spin, true, false);
        }
        budget = ps_spin_budget(&d->spin);
        d->spin_until = budget > 0 ? now + budget : 0;
        return budget > 0;
    }
    if (d->spin_until == 0) {
        return false;
    }
    if (now < d->spin_until) {
        (void)sched_yield();
        crowded = ps_spin_is_crowded(&d->spin, now, ps_loop_now(d->opt.loop));
    }
    if (now >= d->spin_until || crowded) {
        ps_spin_ended(&d->spin, false, crowded);
        d->spin_until = 0;
    }
    return d->spin_until != 0;
}

static bool settle(void *ctx)
{
    struct ps_driver *d = ctx;
    const struct ps_machine *m = &d->opt.machine;
    bool more = true;

    driver_rings_awake(d);
    for (int i = 0; i < ROUNDS_MAX && more; i++) {
        more = !d->closing && d->failure == 0 && settle_once(d);
    }
    if (d->closing) {
        (void)flush_dirty(d);
        return false;
    }
    if (d->failure != 0) {
        d->opt.failed(d->opt.ctx, d->failure);
        return false;
    }
    more = more || spins(d) || !driver_rings_sleep(d);
    if (!more) {
        ps_loop_timer_set(d->opt.loop, &d->tick, m->ops->deadline(m->self));
    }
    if (d->opt.settled != NULL) {
        d->opt.settled(d->opt.ctx);
    }
    return more;
}

static void tick_due(struct ps_loop_timer *t)
{
    (void)t;
}

static void cut_all(struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        ps_conn_close(c->conn, PS_E_CANCELED, "daemon ends");
    }
}

static void grace_over(struct ps_loop_timer *t)
{
    struct ps_driver *d = PS_CONTAINER(t, struct ps_driver, grace);

    cut_all(d);
    driver_maybe_closed(d);
}

struct ps_driver *ps_driver_new(const struct ps_driver_options *opt)
{
    struct ps_driver *d = ps_calloc(1, sizeof(*d));

    d->opt = *opt;
    d->opt.connections_max = opt->connections_max != 0 ? opt->connections_max
                                                       : 4096;
    d->opt.local_max = opt->local_max != 0 ? opt->local_max : PS_LOCAL_MAX;
    d->opt.strangers_max = opt->strangers_max != 0 ? opt->strangers_max : 64;
    d->opt.dial_timeout = opt->dial_timeout != 0 ? opt->dial_timeout
                                                 : PS_SECONDS(10);
    d->conns = ps_map_new();
    driver_output_init(d);
    ps_list_init(&d->strangers);
    ps_list_init(&d->dirty);
    ps_list_init(&d->paused);
    ps_list_init(&d->ringed);
    ps_list_init(&d->told);
    ps_spin_init(&d->spin, opt->spin);
    ps_list_init(&d->dials);
    ps_list_init(&d->ended_dials);
    ps_effects_init(&d->fx);
    d->tick.due = tick_due;
    d->grace.due = grace_over;
    ps_loop_set_hook(opt->loop, settle, d);
    return d;
}

void ps_driver_close(struct ps_driver *d, void (*closed)(void *ctx))
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    assert(!d->stepping);
    if (d->closing) {
        cut_all(d); /* The second time in earnest. */
        return;
    }
    d->closing = true;
    driver_pulse_close(d);
    d->closed = closed;
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        ps_conn_finish(c->conn);
    }
    driver_cancel_dials(d);
    driver_forget_refused(d);
    /* When nothing is open it comes at once, but not inside. */
    bool open = ps_map_count(d->conns) > 0 || !ps_list_empty(&d->dials);

    ps_loop_timer_set(d->opt.loop, &d->grace,
                      ps_loop_now(d->opt.loop) + (open ? CLOSE_GRACE : 0));
}

void ps_driver_free(struct ps_driver *d)
{
    if (d == NULL) {
        return;
    }
    assert(ps_map_count(d->conns) == 0 && d->computing == 0);
    ps_loop_set_hook(d->opt.loop, NULL, NULL);
    ps_effects_fini(&d->fx);
    ps_map_free(d->conns);
    driver_output_fini(d);
    ps_free(d);
}

void ps_driver_drain(struct ps_driver *d)
{
    struct ps_event ev = {.type = PS_EV_DRAIN};

    driver_feed(d, &ev);
}

void ps_driver_loops_grown(struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    while (d->opt.link_connections == 0 &&
           (c = ps_map_next(d->conns, &at)) != NULL) {
        if (c->welcomed && !c->joins) {
            driver_join_later(c, false);
        }
    }
}

void ps_driver_shutdown(struct ps_driver *d)
{
    struct ps_event ev = {.type = PS_EV_SHUTDOWN};

    driver_feed(d, &ev);
}
