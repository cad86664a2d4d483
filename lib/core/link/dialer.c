/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/dialer.h"

#include "base/str.h"

#include <string.h>

/* First wait for a welcome before another dial: time to repair one lost
 * packet. */
#define HELLO_WAIT_MIN PS_SECONDS(1)
/* Interval between log lines about the same failure. */
#define NOTE_INTERVAL  PS_SECONDS(30)

static void draw_session(struct ps_dialer *c)
{
    c->session = ps_rng_next(c->rng) ^ c->opt.instance;
    c->session += c->session == 0;
}

void ps_dialer_init(struct ps_dialer *c, const struct ps_dialer_options *opt,
                    struct ps_rng *rng, ps_time now)
{
    *c = (struct ps_dialer){
        .opt = *opt,
        .rng = rng,
        .link = ps_link_new(&opt->link, rng),
        .address_generation = opt->first_generation,
        .backoff = opt->backoff_min,
        .hello_wait = HELLO_WAIT_MIN,
        .next_dial_at = now,
    };
    draw_session(c);
}

void ps_dialer_fini(struct ps_dialer *c)
{
    ps_link_free(c->link);
    c->link = NULL;
}

static uint64_t current_target(const struct ps_dialer *c)
{
    return (uint64_t)c->address_generation << 32 | c->opt.target;
}

void ps_dialer_set_address(struct ps_dialer *c, const char *address,
                           ps_time now, struct ps_effects *fx)
{
    if (strcmp(c->address, address) == 0) {
        return;
    }
    if (c->address[0] != '\0') {
        ps_dialer_drop_all(c, now, fx);
        c->address_generation++;
        /* Results of dials to the old address are ignored. */
        c->dials_in_flight = 0;
    }
    ps_str_copy(c->address, sizeof(c->address), address);
    ps_dialer_dial_now(c, now);
}

bool ps_dialer_owns_conn(const struct ps_dialer *c, ps_conn_id conn)
{
    return conn != 0 && (conn == c->conn || conn == c->pending_conn);
}

static bool needs_dial(const struct ps_dialer *c)
{
    return c->enabled && c->address[0] != '\0' && (c->conn == 0 || c->suspect);
}

/* Once no dial and no hello is pending, sets the next dial after a back-off. */
static void schedule_backoff(struct ps_dialer *c, ps_time now)
{
    ps_time half = c->backoff / 2;

    if (c->dials_in_flight > 0 || c->pending_conn != 0) {
        return;
    }
    c->next_dial_at = ps_time_add(
        now, half + ps_rng_below(c->rng, c->backoff - half + 1));
    c->backoff = ps_time_min(c->backoff * 2, c->opt.backoff_max);
}

static void close_link(struct ps_dialer *c)
{
    c->conn = 0;
    c->suspect = false;
    ps_link_close(c->link);
}

void ps_dialer_reset(struct ps_dialer *c, ps_time now, struct ps_effects *fx)
{
    ps_dialer_drop_all(c, now, fx);
    ps_link_free(c->link);
    c->link = ps_link_new(&c->opt.link, c->rng);
    c->last_recv_at = 0;
    draw_session(c);
    ps_dialer_dial_now(c, now);
}

bool ps_dialer_on_open(struct ps_dialer *c, uint64_t target, ps_conn_id conn,
                       ps_time now, struct ps_effects *fx)
{
    if (target != current_target(c) || c->dials_in_flight == 0) {
        ps_effects_close(fx, conn); /* This target is not dialled any more. */
        return false;
    }
    c->dials_in_flight--;
    if (!needs_dial(c) ||
        (c->pending_conn != 0 &&
         now < ps_time_add(c->pending_since, c->hello_wait))) {
        ps_effects_close(fx, conn);
        return false;
    }
    if (c->pending_conn != 0) {
        ps_effects_close(fx, c->pending_conn);
        c->hello_wait = ps_time_min(c->hello_wait * 2,
                                    PS_DIALER_WELCOME_TIMEOUT);
    }
    c->pending_conn = conn;
    c->pending_since = now;
    c->noted_error = 0;
    return true;
}

void ps_dialer_send_hello(const struct ps_dialer *c, ps_conn_id conn,
                          const struct ps_msg_hello *member,
                          struct ps_effects *fx)
{
    struct ps_msg m = {.code = PS_MSG_HELLO, .hello = *member};

    m.hello.protocol = PS_PROTOCOL;
    m.hello.protocol_least = PS_PROTOCOL_LEAST;
    m.hello.instance = c->opt.instance;
    m.hello.session = c->session;
    m.hello.received = ps_link_received(c->link);
    ps_effects_send_msg(fx, conn, &m);
}

bool ps_dialer_speaks(const struct ps_msg_welcome *m)
{
    return m->protocol >= PS_PROTOCOL_LEAST && m->protocol <= PS_PROTOCOL;
}

bool ps_dialer_on_dial_failed(struct ps_dialer *c, uint64_t target, int rc,
                              ps_time now)
{
    if (target != current_target(c) || c->dials_in_flight == 0) {
        return false;
    }
    c->dials_in_flight--;
    schedule_backoff(c, now);
    if (rc == c->noted_error && now < ps_time_add(c->noted_at, NOTE_INTERVAL)) {
        return false;
    }
    c->noted_error = rc;
    c->noted_at = now;
    return true;
}

bool ps_dialer_on_welcome(struct ps_dialer *c, ps_conn_id conn, ps_time now,
                          struct ps_effects *fx)
{
    if (conn != c->pending_conn || conn == 0) {
        return false;
    }
    if (c->conn != 0) {
        ps_effects_close(fx, c->conn);
        close_link(c);
    }
    c->conn = conn;
    c->pending_conn = 0;
    c->last_recv_at = now;
    c->backoff = c->opt.backoff_min;
    c->hello_wait = HELLO_WAIT_MIN;
    return true;
}

bool ps_dialer_on_closed(struct ps_dialer *c, ps_conn_id conn, ps_time now)
{
    if (!ps_dialer_owns_conn(c, conn)) {
        return false;
    }
    if (conn == c->pending_conn) {
        c->pending_conn = 0;
        schedule_backoff(c, now);
        return false;
    }
    close_link(c);
    schedule_backoff(c, now);
    return true;
}

bool ps_dialer_drop_conn(struct ps_dialer *c, ps_conn_id conn, ps_time now,
                         struct ps_effects *fx)
{
    if (ps_dialer_owns_conn(c, conn)) {
        ps_effects_close(fx, conn);
    }
    return ps_dialer_on_closed(c, conn, now);
}

void ps_dialer_drop_all(struct ps_dialer *c, ps_time now, struct ps_effects *fx)
{
    (void)ps_dialer_drop_conn(c, c->pending_conn, now, fx);
    (void)ps_dialer_drop_conn(c, c->conn, now, fx);
}

void ps_dialer_max_backoff(struct ps_dialer *c, ps_time now)
{
    c->backoff = c->opt.backoff_max;
    schedule_backoff(c, now);
}

void ps_dialer_dial_now(struct ps_dialer *c, ps_time now)
{
    c->backoff = c->opt.backoff_min;
    c->next_dial_at = now;
}

void ps_dialer_on_recv(struct ps_dialer *c, ps_conn_id conn, ps_time now)
{
    if (conn == c->conn) {
        c->last_recv_at = now;
        c->suspect = false;
    }
}

void ps_dialer_on_stalled(struct ps_dialer *c, ps_time now)
{
    if (c->conn == 0 || c->suspect) {
        return;
    }
    c->suspect = true;
    if (c->dials_in_flight == 0 && c->pending_conn == 0) {
        ps_dialer_dial_now(c, now);
    }
}

/* Earliest time of the next dial, if one is needed. */
static ps_time next_dial_time(const struct ps_dialer *c)
{
    ps_time at = c->next_dial_at;

    if (c->dials_in_flight >= PS_DIALER_DIALS_MAX) {
        return PS_TIME_NEVER;
    }
    if (c->pending_conn != 0 &&
        ps_time_add(c->pending_since, c->hello_wait) > at) {
        at = ps_time_add(c->pending_since, c->hello_wait);
    }
    return at;
}

void ps_dialer_tick(struct ps_dialer *c, ps_time now, struct ps_effects *fx)
{
    if (c->pending_conn != 0 &&
        ps_time_add(c->pending_since, PS_DIALER_WELCOME_TIMEOUT) <= now) {
        (void)ps_dialer_drop_conn(c, c->pending_conn, now, fx);
    }
    if (needs_dial(c) && next_dial_time(c) <= now) {
        c->dials_in_flight++;
        c->last_dial_at = now;
        c->next_dial_at = ps_time_add(now, PS_DIALER_PARALLEL_DELAY);
        ps_effects_dial(fx, current_target(c), c->address,
                        PS_DIALER_DIAL_TIMEOUT);
    }
    ps_link_tick(c->link, now, fx);
}

ps_time ps_dialer_deadline(const struct ps_dialer *c)
{
    ps_time at = ps_link_deadline(c->link);

    if (c->pending_conn != 0) {
        at = ps_time_min(
            at, ps_time_add(c->pending_since, PS_DIALER_WELCOME_TIMEOUT));
    }
    return needs_dial(c) ? ps_time_min(at, next_dial_time(c)) : at;
}
