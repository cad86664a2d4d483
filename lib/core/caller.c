/* SPDX-License-Identifier: Apache-2.0 */
#include "core/caller.h"

#include "base/str.h"

#include <string.h>

/* First wait from hello until another dial: the cost of one lost packet. */
#define PATIENCE_FIRST PS_SECONDS(1)
/* The same failure is worth a note again after this. */
#define TELL_AGAIN     PS_SECONDS(30)

static void draw_session(struct ps_caller *c)
{
    c->session = ps_rng_next(c->rng) ^ c->opt.instance;
    c->session += c->session == 0;
}

void ps_caller_init(struct ps_caller *c, const struct ps_caller_options *opt,
                    struct ps_rng *rng, ps_time now)
{
    *c = (struct ps_caller){
        .opt = *opt,
        .rng = rng,
        .link = ps_link_new(&opt->link, rng),
        .era = opt->era,
        .backoff = opt->dial_first,
        .patience = PATIENCE_FIRST,
        .dial_at = now,
    };
    draw_session(c);
}

void ps_caller_fini(struct ps_caller *c)
{
    ps_link_free(c->link);
    c->link = NULL;
}

static uint64_t target_now(const struct ps_caller *c)
{
    return (uint64_t)c->era << 32 | c->opt.target;
}

void ps_caller_address(struct ps_caller *c, const char *address, ps_time now,
                       struct ps_effects *fx)
{
    if (strcmp(c->address, address) == 0) {
        return;
    }
    if (c->address[0] != '\0') {
        ps_caller_cut(c, now, fx);
        c->era++;
        c->dials = 0; /* Their results are ignored. */
    }
    ps_str_copy(c->address, sizeof(c->address), address);
    ps_caller_hurry(c, now);
}

bool ps_caller_has(const struct ps_caller *c, ps_conn_id conn)
{
    return conn != 0 && (conn == c->conn || conn == c->next);
}

static bool is_needed(const struct ps_caller *c)
{
    return c->wanted && c->address[0] != '\0' && (c->conn == 0 || c->troubled);
}

/* When there is nothing left to wait for, the next dial backs off. */
static void back_off(struct ps_caller *c, ps_time now)
{
    ps_time half = c->backoff / 2;

    if (c->dials > 0 || c->next != 0) {
        return;
    }
    c->dial_at = ps_time_add(
        now, half + ps_rng_below(c->rng, c->backoff - half + 1));
    c->backoff = ps_time_min(c->backoff * 2, c->opt.dial_max);
}

static void lose_link(struct ps_caller *c, ps_time now)
{
    c->conn = 0;
    c->troubled = false;
    ps_link_close(c->link, now);
}

void ps_caller_reset(struct ps_caller *c, ps_time now, struct ps_effects *fx)
{
    ps_caller_cut(c, now, fx);
    ps_link_free(c->link);
    c->link = ps_link_new(&c->opt.link, c->rng);
    draw_session(c);
    ps_caller_hurry(c, now);
}

bool ps_caller_open(struct ps_caller *c, uint64_t target, ps_conn_id conn,
                    ps_time now, struct ps_effects *fx)
{
    if (target != target_now(c) || c->dials == 0) {
        ps_effects_hangup(fx, conn); /* Of somebody else by now. */
        return false;
    }
    c->dials--;
    if (!is_needed(c) ||
        (c->next != 0 && now < ps_time_add(c->next_at, c->patience))) {
        ps_effects_hangup(fx, conn);
        return false;
    }
    if (c->next != 0) {
        ps_effects_hangup(fx, c->next);
        c->patience = ps_time_min(c->patience * 2, PS_CALLER_WELCOME);
    }
    c->next = conn;
    c->next_at = now;
    c->told = 0;
    return true;
}

bool ps_caller_failed(struct ps_caller *c, uint64_t target, int rc, ps_time now)
{
    if (target != target_now(c) || c->dials == 0) {
        return false;
    }
    c->dials--;
    back_off(c, now);
    if (rc == c->told && now < ps_time_add(c->told_at, TELL_AGAIN)) {
        return false;
    }
    c->told = rc;
    c->told_at = now;
    return true;
}

bool ps_caller_welcomed(struct ps_caller *c, ps_conn_id conn, ps_time now,
                        struct ps_effects *fx)
{
    if (conn != c->next || conn == 0) {
        return false;
    }
    if (c->conn != 0) {
        ps_effects_hangup(fx, c->conn);
        lose_link(c, now);
    }
    c->conn = conn;
    c->next = 0;
    c->heard_at = now;
    c->backoff = c->opt.dial_first;
    c->patience = PATIENCE_FIRST;
    return true;
}

bool ps_caller_closed(struct ps_caller *c, ps_conn_id conn, ps_time now)
{
    if (!ps_caller_has(c, conn)) {
        return false;
    }
    if (conn == c->next) {
        c->next = 0;
        back_off(c, now);
        return false;
    }
    lose_link(c, now);
    back_off(c, now);
    return true;
}

bool ps_caller_drop(struct ps_caller *c, ps_conn_id conn, ps_time now,
                    struct ps_effects *fx)
{
    if (ps_caller_has(c, conn)) {
        ps_effects_hangup(fx, conn);
    }
    return ps_caller_closed(c, conn, now);
}

void ps_caller_cut(struct ps_caller *c, ps_time now, struct ps_effects *fx)
{
    (void)ps_caller_drop(c, c->next, now, fx);
    (void)ps_caller_drop(c, c->conn, now, fx);
}

void ps_caller_slow(struct ps_caller *c, ps_time now)
{
    c->backoff = c->opt.dial_max;
    back_off(c, now);
}

void ps_caller_hurry(struct ps_caller *c, ps_time now)
{
    c->backoff = c->opt.dial_first;
    c->dial_at = now;
}

void ps_caller_heard(struct ps_caller *c, ps_conn_id conn, ps_time now)
{
    if (conn == c->conn) {
        c->heard_at = now;
        c->troubled = false;
    }
}

void ps_caller_trouble(struct ps_caller *c, ps_time now)
{
    if (c->conn == 0 || c->troubled) {
        return;
    }
    c->troubled = true;
    if (c->dials == 0 && c->next == 0) {
        ps_caller_hurry(c, now);
    }
}

/* When it may dial, given that it needs to. */
static ps_time next_dial(const struct ps_caller *c)
{
    ps_time at = c->dial_at;

    if (c->dials >= PS_CALLER_DIALS_MAX) {
        return PS_TIME_NEVER;
    }
    if (c->next != 0 && ps_time_add(c->next_at, c->patience) > at) {
        at = ps_time_add(c->next_at, c->patience);
    }
    return at;
}

void ps_caller_tick(struct ps_caller *c, ps_time now, struct ps_effects *fx)
{
    if (c->next != 0 && ps_time_add(c->next_at, PS_CALLER_WELCOME) <= now) {
        (void)ps_caller_drop(c, c->next, now, fx);
    }
    if (is_needed(c) && next_dial(c) <= now) {
        c->dials++;
        c->tried_at = now;
        c->dial_at = ps_time_add(now, PS_CALLER_AGAIN);
        ps_effects_dial(fx, target_now(c), c->address, PS_CALLER_TIMEOUT);
    }
    ps_link_tick(c->link, now, fx);
}

ps_time ps_caller_deadline(const struct ps_caller *c)
{
    ps_time at = ps_link_deadline(c->link);

    if (c->next != 0) {
        at = ps_time_min(at, ps_time_add(c->next_at, PS_CALLER_WELCOME));
    }
    return is_needed(c) ? ps_time_min(at, next_dial(c)) : at;
}
