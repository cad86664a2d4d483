/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a driver, and before_poll(), which runs before the loop waits. It does
 * what must not happen inside a step: ended dials, small jobs, due deadlines,
 * writes (so that all output of one iteration leaves together), and retries of
 * paused reads. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "crypto/tls.h"
#include "net/arena.h"
#include "net/io_pool.h"
#include "net/worker.h"

#include <assert.h>
#include <sched.h>

/* Passes of before_poll() before sockets are polled again. */
#define ROUNDS_MAX     16
/* Time for the last output of connections when the daemon ends. */
#define CLOSE_GRACE    PS_SECONDS(2)

/* ------------------------------------------------------------------- watch */

/* Detects connections without progress: TCP retransmits ever more rarely and
 * reports nothing. While bytes sent to a server are unacknowledged, its
 * connection is checked a few times a second. */

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

static void watch_conn(struct daemon_conn *c)
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

/* --------------------------------------------------- work before each wait */

/* When the machine or its links have something to do. */
static ps_time driver_deadline(const struct ps_driver *d)
{
    const struct ps_machine *m = &d->opt.machine;

    return ps_time_min(m->ops->deadline(m->self), d->multipath.deadline);
}

static void tick(struct ps_driver *d, ps_time now)
{
    struct ps_event ev = {.type = PS_EV_TICK, .now = now};

    if (d->multipath.deadline <= now) {
        ps_multipath_tick(&d->multipath, now, &d->fx);
    }
    driver_feed(d, &ev);
}

static bool flush_queued(struct ps_driver *d)
{
    struct daemon_conn *c;
    struct ps_list now;
    bool any = false;

    /* Output that the steps below queue waits for the next pass. */
    ps_list_init(&now);
    ps_list_move_all(&d->to_flush, &now);
    while ((c = PS_LIST_POP(struct daemon_conn, to_flush, &now)) != NULL) {
        if (c->is_watched) {
            watch_conn(c);
        }
        any |= ps_conn_flush_and_report(c->conn);
    }
    return any;
}

/* Tells peers about freed arenas, whose memory they keep mapped until then. */
static void report_freed_arenas(struct ps_driver *d)
{
    const uint64_t freed = ps_arenas_freed_count(d->opt.arenas);

    if (d->arenas_freed == freed) {
        return;
    }
    d->arenas_freed = freed;
    PS_LIST_EACH_OF(struct daemon_conn, c, shm, &d->shm_conns)
    {
        if (ps_conn_send_freed_arenas(c->conn)) {
            driver_mark_flush(c);
        }
    }
}

/* Retries paused reads; any step may have freed memory. True: there was a
 * step. */
static bool resume_paused(struct ps_driver *d)
{
    uint32_t count = d->paused.count;

    d->paused.has_stepped = false;
    while (count-- > 0) {
        struct ps_list_node *n = ps_list_first(&d->paused.conns);

        if (n == NULL) {
            break;
        }
        struct daemon_conn *c = PS_CONTAINER(n, struct daemon_conn, paused);

        /* Moves to the tail, so that all get served. */
        ps_list_remove(n);
        ps_list_push_back(&d->paused.conns, n);
        ps_conn_resume(c->conn);
    }
    return d->paused.has_stepped;
}

/* Does what there is to do, once. False: there was nothing, at *ret_now. */
static bool before_poll_once(struct ps_driver *d, ps_time *ret_now)
{
    bool any = !ps_list_empty(&d->dials.ended) || d->awaits_commit;
    ps_time now;

    driver_commit(d); /* Of all steps of this turn. */
    if (!ps_list_empty(&d->dials.ended)) {
        driver_report_dials(d);
    }
    if (ps_alloc_is_starved()) {
        driver_relieve(d);
    }
    if (!ps_list_empty(&d->rings.all)) {
        any |= driver_rings_poll(d);
    }
    if (d->computing > 0) {
        any |= ps_worker_run_small(d->opt.worker);
    }
    now = ps_loop_now(d->opt.loop);
    if (driver_deadline(d) <= now) {
        tick(d, now);
        any = true;
    }
    if (d->paused.count > 0 && d->paused.has_stepped) {
        any |= resume_paused(d);
    }
    if (!ps_list_empty(&d->rings.wakes)) {
        driver_rings_wake(d);
    }
    if (d->opt.arenas != NULL && !ps_list_empty(&d->shm_conns)) {
        report_freed_arenas(d);
    }
    if (!ps_list_empty(&d->to_flush)) {
        any |= flush_queued(d);
    }
    *ret_now = now;
    return any;
}

/* True: poll again instead of sleeping. */
static bool busy_poll(struct ps_driver *d, ps_time now)
{
    bool fed = d->polling.was_fed;
    bool crowded = false;

    d->polling.was_fed = false;
    if (fed) {
        ps_time budget;

        if (d->polling.until != 0) {
            ps_spin_record(&d->polling.spin, true, false);
        }
        budget = ps_spin_budget(&d->polling.spin);
        d->polling.until = budget > 0 ? now + budget : 0;
        return budget > 0;
    }
    if (d->polling.until == 0) {
        return false;
    }
    if (now < d->polling.until) {
        /* The time of this pass is no time of others. */
        const ps_time before = ps_loop_now(d->opt.loop);

        (void)sched_yield();
        crowded = ps_spin_is_crowded(&d->polling.spin, before,
                                     ps_loop_now(d->opt.loop));
    }
    if (now >= d->polling.until || crowded) {
        ps_spin_record(&d->polling.spin, false, crowded);
        d->polling.until = 0;
    }
    return d->polling.until != 0;
}

static bool before_poll(void *ctx)
{
    struct ps_driver *d = ctx;
    ps_time now = 0;
    bool more = true;

    if (d->rings.are_asleep) {
        driver_rings_awake(d);
    }
    for (int i = 0; i < ROUNDS_MAX && more; i++) {
        more = !d->is_closing && d->failure == 0 && before_poll_once(d, &now);
    }
    if (d->is_closing) {
        driver_commit(d);
        driver_report_dials(d);
        (void)flush_queued(d);
        return false;
    }
    if (d->failure != 0) {
        d->opt.on_failed(d->opt.ctx, d->failure);
        return false;
    }
    more = more || busy_poll(d, now) ||
           (!ps_list_empty(&d->rings.all) && !driver_rings_sleep(d));
    if (!more) {
        ps_loop_timer_set(d->opt.loop, &d->tick_timer, driver_deadline(d));
    }
    if (d->opt.on_idle != NULL) {
        d->opt.on_idle(d->opt.ctx);
    }
    return more;
}

/* -------------------------------------------------------------------- life */

static void tick_timer_due(struct ps_loop_timer *t)
{
    (void)t;
}

static void close_all_conns(struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    struct daemon_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        ps_conn_close(c->conn, PS_E_CANCELED, "daemon ends");
    }
}

/* The time for last output has passed, or nothing is open any more. */
static void grace_expired(struct ps_loop_timer *t)
{
    struct ps_driver *d = PS_CONTAINER(t, struct ps_driver, grace_timer);
    void (*closed)(void *ctx) = d->closed;

    if (driver_is_open(d)) {
        close_all_conns(d);
        return;
    }
    d->closed = NULL;
    ps_loop_timer_set(d->opt.loop, &d->tick_timer, PS_TIME_NEVER);
    ps_loop_timer_set(d->opt.loop, &d->watch.timer, PS_TIME_NEVER);
    ps_loop_timer_set(d->opt.loop, &d->tls.check_timer, PS_TIME_NEVER);
    ps_loop_timer_set(d->opt.loop, &d->tls.expiry_timer, PS_TIME_NEVER);
    closed(d->opt.ctx);
}

static uint32_t count_io_threads(const struct ps_driver *d)
{
    return d->opt.io_pool != NULL ? ps_io_pool_threads(d->opt.io_pool) : 0;
}

struct ps_driver *ps_driver_new(const struct ps_driver_options *opt)
{
    struct ps_driver *d = ps_calloc(1, sizeof(*d));

    d->opt = *opt;
    d->opt.connections_max = opt->connections_max != 0 ? opt->connections_max
                                                       : 4096;
    d->opt.local_max = opt->local_max != 0 ? opt->local_max : PS_LOCAL_MAX;
    d->opt.dial_timeout = opt->dial_timeout != 0 ? opt->dial_timeout
                                                 : PS_SECONDS(10);
    ps_multipath_init(&d->multipath, &(struct ps_multipath_options){
                                         .self = opt->self,
                                         .connections = opt->link_connections});
    d->multipath.io_threads = count_io_threads(d);
    d->conns = ps_map_new();
    driver_output_init(d);
    driver_tls_init(d);
    ps_pre_handshake_init(&d->pre_handshake, opt->pre_handshake_max != 0
                                                 ? opt->pre_handshake_max
                                                 : 64);
    ps_list_init(&d->to_flush);
    ps_list_init(&d->paused.conns);
    ps_list_init(&d->shm_conns);
    ps_list_init(&d->rings.all);
    ps_list_init(&d->rings.wakes);
    ps_spin_init(&d->polling.spin, opt->busy_poll);
    ps_list_init(&d->dials.running);
    ps_list_init(&d->dials.ended);
    ps_effects_init(&d->fx);
    d->tick_timer.due = tick_timer_due;
    d->grace_timer.due = grace_expired;
    ps_loop_set_hook(opt->loop, before_poll, d);
    return d;
}

void ps_driver_close(struct ps_driver *d, void (*closed)(void *ctx))
{
    struct ps_map_cursor at = {0};
    struct daemon_conn *c;

    assert(!d->is_stepping);
    if (d->is_closing) {
        close_all_conns(d); /* The second call closes without grace. */
        return;
    }
    d->is_closing = true;
    driver_liveness_close(d);
    d->closed = closed;
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        ps_conn_finish(c->conn);
    }
    driver_cancel_dials(d);
    driver_cancel_accepting(d);
    driver_close_refused(d);
    ps_loop_timer_set(d->opt.loop, &d->grace_timer,
                      ps_time_add(ps_loop_now(d->opt.loop), CLOSE_GRACE));
    driver_maybe_closed(d);
}

void ps_driver_free(struct ps_driver *d)
{
    if (d == NULL) {
        return;
    }
    assert(ps_map_count(d->conns) == 0 && d->computing == 0);
    ps_loop_set_hook(d->opt.loop, NULL, NULL);
    driver_device_fini(d);
    ps_effects_fini(&d->fx);
    ps_map_free(d->conns);
    ps_output_fini(&d->output);
    driver_tls_fini(d);
    ps_free(d);
}

void ps_driver_drain(struct ps_driver *d)
{
    struct ps_event ev = {.type = PS_EV_DRAIN};

    driver_feed(d, &ev);
}

void ps_driver_io_grown(struct ps_driver *d)
{
    ps_multipath_set_threads(&d->multipath, count_io_threads(d),
                             ps_loop_now(d->opt.loop));
}

void ps_driver_shutdown(struct ps_driver *d)
{
    struct ps_event ev = {.type = PS_EV_SHUTDOWN};

    driver_feed(d, &ev);
}

/* -------------------------------------------------------------- statistics */

static uint64_t add_queued(const struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    const struct daemon_conn *c;
    uint64_t sum = 0;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        sum += ps_conn_output(c->conn).queued;
    }
    return sum;
}

bool ps_driver_is_quiet(const struct ps_driver *d)
{
    return d->computing == 0 && add_queued(d) == 0;
}

void ps_driver_stats(const struct ps_driver *d, struct ps_driver_stats *ret)
{
    struct ps_map_cursor at = {0};
    const struct daemon_conn *c;
    struct ps_driver_stats s = d->closed_stats;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        driver_add_stats(&s, c->conn);
    }
    s.connections = (uint32_t)ps_map_count(d->conns);
    s.pre_handshake = d->pre_handshake.count;
    s.paused = d->paused.count;
    s.computing = d->computing;
    s.queued = add_queued(d);
    s.output = d->output.total.cost[PS_COST_OUTPUT].used;
    *ret = s;
}

void ps_driver_dump(const struct ps_driver *d)
{
    static const char *const kinds[] = {
        [PS_CONN_DIALLED] = "dialled",
        [PS_CONN_ACCEPTED] = "accepted",
        [PS_CONN_LOCAL] = "local",
    };
    struct ps_map_cursor at = {0};
    const struct daemon_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        const struct ps_tls_session *session = ps_conn_session(c->conn);
        struct ps_conn_stats s;

        ps_conn_stats(c->conn, &s);
        ps_log(PS_LOG_NOTICE,
               "state connection peer=%s kind=%s handshake_done=%d paused=%d "
               "queued=%llu in=%llu out=%llu cipher=%s",
               ps_conn_peer(c->conn), kinds[c->kind],
               ps_conn_is_handshake_done(c->conn), ps_conn_is_paused(c->conn),
               (unsigned long long)ps_conn_output(c->conn).queued,
               (unsigned long long)s.bytes_in, (unsigned long long)s.bytes_out,
               session != NULL ? ps_tls_session_cipher(session) : "none");
    }
}
