/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine: which part an event goes to, and time. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"

#include <assert.h>
#include <string.h>

static struct ps_agent_server *server_by_conn(const struct ps_agent *a,
                                              ps_conn_id conn)
{
    struct ps_agent_server *s = ps_map_get(a->server_conns, conn);

    return s != NULL && ps_caller_has(&s->caller, conn) ? s : NULL;
}

/* --------------------------------------------------------------- connections */

static void on_open(struct ps_agent_step *st, const struct ps_event *ev)
{
    switch (ev->open.kind) {
    case PS_CONN_LOCAL:
        ps_agent_session_open(st, ev);
        return;
    case PS_CONN_ACCEPTED:
        ps_effects_hangup(st->fx, ev->conn); /* Nobody dials an agent. */
        return;
    case PS_CONN_DIALLED:
        break;
    }
    if (ev->open.target == 0) {
        ps_agent_up_open(st, ev->conn, ev->open.pulse);
        return;
    }
    ps_agent_server_open(st, ev->open.target, ev->conn);
}

static void on_dial_failed(struct ps_agent_step *st, const struct ps_event *ev)
{
    if (ev->dial_failed.target == 0) {
        ps_agent_up_dial_failed(st, 0, ev->dial_failed.rc, ev->dial_failed.why);
    } else {
        ps_agent_server_dial_failed(st, ev->dial_failed.target,
                                    ev->dial_failed.rc, ev->dial_failed.why);
    }
}

static void on_stalled(struct ps_agent_step *st, ps_conn_id conn)
{
    struct ps_agent_server *s = server_by_conn(st->a, conn);

    if (s != NULL) {
        ps_agent_server_stalled(st, s, conn);
    } else if (conn == st->a->up.caller.conn) {
        ps_caller_trouble(&st->a->up.caller, st->now);
    }
}

static void on_closed(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_session *session = ps_map_get(st->a->by_conn, ev->conn);
    struct ps_agent_server *s;

    if (session != NULL) {
        ps_agent_session_closed(st, session);
        return;
    }
    if (ps_caller_has(&st->a->up.caller, ev->conn)) {
        ps_agent_up_closed(st, ev->conn);
        return;
    }
    s = server_by_conn(st->a, ev->conn);
    (void)ps_map_take(st->a->server_conns, ev->conn);
    if (s != NULL) {
        ps_agent_server_closed(st, s, ev->conn);
    }
}

static void on_msg(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_session *session = ps_map_get(st->a->by_conn, ev->conn);
    struct ps_agent_server *s;

    if (session != NULL) {
        ps_agent_session_msg(st, session, ev->msg.msg);
        return;
    }
    if (ps_caller_has(&st->a->up.caller, ev->conn)) {
        ps_agent_up_msg(st, ev->conn, ev->msg.msg, ev->msg.payload);
        return;
    }
    s = server_by_conn(st->a, ev->conn);
    if (s != NULL) {
        ps_agent_server_msg(st, s, ev->conn, ev->msg.msg, ev->msg.payload);
    }
}

static void on_sent(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_server *s = server_by_conn(st->a, ev->conn);

    if (s != NULL && ev->conn == s->caller.conn) {
        s->queued = ev->sent.queued;
        s->dirty = true;
    }
}

static void on_computed(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_run *run = ps_map_take(st->a->runs, ev->computed.token);

    if (run == NULL) {
        return;
    }
    if (run->flow != NULL || run->part == NULL) {
        ps_agent_send_summed(st, run, ev->computed.rc);
    } else {
        ps_agent_round_computed(st, run, ev->computed.rc);
    }
}

static void on_region(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_session *s = ps_map_get(st->a->by_conn, ev->conn);

    if (s != NULL && ev->region.buf != NULL) {
        ps_agent_session_region(st, s, ev->region.region, ev->region.buf);
    } else if (s != NULL) {
        ps_agent_session_unmapped(st, s, ev->region.region, ev->region.rc,
                                  ev->region.why);
    }
}

static void on_keep(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_session *s = ps_map_get(st->a->by_conn, ev->conn);

    if (s != NULL && ev->region.buf != NULL) {
        ps_agent_keep_take(st, s, ev->region.buf);
    } else if (s != NULL) {
        ps_agent_session_unmapped(st, s, 0, ev->region.rc, ev->region.why);
    }
}

static void on_ops(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent_session *s = ps_map_get(st->a->by_conn, ev->conn);

    for (uint32_t i = 0; s != NULL && i < ev->ops.count; i += OPS_AHEAD) {
        uint64_t count = ps_min_u64(ev->ops.count - i, OPS_AHEAD);

        ps_agent_session_ops(st, s, ev->ops.op + i, (uint32_t)count);
    }
}

/* --------------------------------------------------------------------- time */

/* What was refused for a passing reason is offered again. */
static void retry(struct ps_agent_step *st)
{
    struct ps_map_cursor jc = {0};
    struct ps_agent_job *j;

    st->a->retry_at = PS_TIME_NEVER;
    while ((j = ps_map_next(st->a->jobs, &jc)) != NULL) {
        struct ps_map_cursor kc = {0};
        struct ps_agent_key *k;

        while ((k = ps_map_next(j->keys, &kc)) != NULL) {
            for (uint32_t i = 0; i < k->part_count; i++) {
                if (k->parts[i].restate) {
                    ps_agent_key_resume(st, &k->parts[i]);
                }
                if (k->parts[i].state == PS_AGENT_PART_HELD_BACK &&
                    !ps_agent_send_waits(st, &k->parts[i])) {
                    ps_agent_send_queue(st, &k->parts[i]);
                }
            }
            ps_agent_pull_check(st, k);
            ps_agent_state_check(st, k);
            ps_agent_quarrel_again(st, k, 0);
        }
    }
}

static void on_tick(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;
    struct ps_map_cursor c = {0};
    struct ps_agent_server *s;

    if (a->flush) {
        a->flush = false;
        while ((s = ps_map_next(a->servers, &c)) != NULL) {
            ps_agent_send_flush(st, s);
        }
        ps_agent_send_leave_room(a);
    }
    ps_agent_up_tick(st);
    c = (struct ps_map_cursor){0};
    while ((s = ps_map_next(a->servers, &c)) != NULL) {
        ps_agent_server_tick(st, s);
        if (a->starved_at <= st->now) {
            s->dirty = true;
        }
    }
    if (a->starved_at <= st->now) {
        a->starved_at = PS_TIME_NEVER;
    }
    if (a->retry_at <= st->now) {
        retry(st);
    }
    if (a->leave_at <= st->now) {
        ps_agent_regions_leave(a);
    }
    if (a->trim_at <= st->now) {
        a->trim_at = PS_TIME_NEVER;
        ps_pool_trim(a->opt.sums);
    }
}

static ps_time deadline(const void *self)
{
    const struct ps_agent *a = self;
    struct ps_map_cursor c = {0};
    const struct ps_agent_server *s;
    ps_time at = ps_agent_up_deadline(a);

    if (a->flush) {
        return a->now;
    }
    while ((s = ps_map_next(a->servers, &c)) != NULL) {
        at = ps_time_min(at, ps_agent_server_deadline(a, s));
    }
    at = ps_time_min(ps_time_min(at, a->starved_at), a->leave_at);
    return ps_time_min(ps_time_min(at, a->retry_at), a->trim_at);
}

/* ------------------------------------------------------------------ the calls */

static int step(void *self, const struct ps_event *ev, struct ps_effects *fx)
{
    struct ps_agent *a = self;
    struct ps_agent_step st = {.a = a, .now = ev->now, .fx = fx};

    assert(ev->now >= a->now);
    a->now = ev->now;
    switch (ev->type) {
    case PS_EV_TICK:
        on_tick(&st);
        break;
    case PS_EV_OPEN:
        on_open(&st, ev);
        break;
    case PS_EV_DIAL_FAILED:
        on_dial_failed(&st, ev);
        break;
    case PS_EV_PROBED:
        break;
    case PS_EV_MSG:
        on_msg(&st, ev);
        break;
    case PS_EV_SENT:
        on_sent(&st, ev);
        break;
    case PS_EV_STALLED:
        on_stalled(&st, ev->conn);
        break;
    case PS_EV_CLOSED:
        on_closed(&st, ev);
        break;
    case PS_EV_COMPUTED:
        on_computed(&st, ev);
        break;
    case PS_EV_REGION:
        on_region(&st, ev);
        break;
    case PS_EV_KEEP:
        on_keep(&st, ev);
        break;
    case PS_EV_OPS:
        on_ops(&st, ev);
        break;
    case PS_EV_DRAIN:
    case PS_EV_SHUTDOWN:
        a->ending = true;
        break;
    }
    ps_agent_session_turns(&st);
    if (a->dying_count > 0) {
        ps_agent_job_bury(a);
    }
    ps_agent_send_pump_all(&st);
    return a->name_lost ? PS_E_CONFIG : 0;
}

/* A table of places has 8 bytes for each partition. */
static int placement_room(const struct ps_agent *a, ps_conn_id conn,
                          const struct ps_msg *m, uint64_t len,
                          struct ps_slice *ret_slice)
{
    struct ps_agent_job *j = ps_agent_job_find(a, m->key_opened.gen);

    if (conn != a->up.caller.conn || j == NULL ||
        !ps_link_is_new(a->up.caller.link, m->seq) ||
        len != 8 * (uint64_t)m->key_opened.parts ||
        m->key_opened.parts > PS_KEY_PARTS_MAX) {
        return PS_E_INVAL;
    }
    *ret_slice = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    return 0;
}

static int payload(void *self, ps_conn_id conn, const struct ps_msg *m,
                   uint64_t len, struct ps_slice *ret_slice)
{
    struct ps_agent *a = self;
    struct ps_agent_server *s;

    if (m->code == PS_MSG_KEY_OPENED) {
        return placement_room(a, conn, m, len, ret_slice);
    }
    s = server_by_conn(a, conn);
    return s == NULL ? PS_E_INVAL
                     : ps_agent_server_payload(a, s, m, len, ret_slice);
}

static uint64_t held(const void *self, ps_conn_id conn)
{
    const struct ps_agent *a = self;
    const struct ps_agent_session *s = ps_map_get(a->by_conn, conn);

    return s == NULL ? 0
                     : s->account.cost[PS_COST_MEMORY].used +
                           s->account.cost[PS_COST_MAPPED].used;
}

static const struct ps_machine_ops ops = {
    .step = step,
    .deadline = deadline,
    .payload = payload,
    .held = held,
};

struct ps_machine ps_agent_machine(struct ps_agent *a)
{
    return (struct ps_machine){.ops = &ops, .self = a, .ledger = &a->account};
}

struct ps_agent *ps_agent_new(const struct ps_agent_options *opt, ps_time now)
{
    struct ps_agent *a = ps_calloc(1, sizeof(*a));

    a->opt = *opt;
    a->now = now;
    ps_rng_init(&a->rng, opt->seed);
    a->servers = ps_map_new();
    a->by_conn = ps_map_new();
    a->server_conns = ps_map_new();
    a->jobs = ps_map_new();
    a->runs = ps_map_new();
    a->questions = ps_map_new();
    a->leaving = ps_map_new();
    a->leave_at = PS_TIME_NEVER;
    ps_agent_budget_init(a);
    ps_list_init(&a->sessions);
    a->starved_at = PS_TIME_NEVER;
    a->retry_at = PS_TIME_NEVER;
    a->trim_at = PS_TIME_NEVER;
    ps_agent_up_init(a, now);
    return a;
}

static void free_runs(struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_run *run;

    while ((run = ps_map_next(a->runs, &c)) != NULL) {
        ps_buf_unref(run->dst.buf);
        ps_free(run);
    }
    ps_map_free(a->runs);
}

void ps_agent_free(struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_server *s;
    struct ps_agent_job *j;
    struct ps_list_node *n;

    if (a == NULL) {
        return;
    }
    while ((n = ps_list_first(&a->sessions)) != NULL) {
        ps_agent_session_free(a,
                              PS_CONTAINER(n, struct ps_agent_session, node));
    }
    while ((j = ps_map_next(a->jobs, &c)) != NULL) {
        ps_agent_job_free(NULL, a, j);
    }
    free_runs(a);
    ps_agent_send_leave_room(a);
    c = (struct ps_map_cursor){0};
    while ((s = ps_map_next(a->servers, &c)) != NULL) {
        ps_agent_server_free(s);
    }
    while (ps_map_count(a->leaving) > 0) {
        ps_agent_regions_leave(a);
    }
    ps_map_free(a->leaving);
    ps_agent_why_fini(a);
    while (a->spare_op_count > 0) {
        ps_free(a->spare_ops[--a->spare_op_count]);
    }
    ps_free(a->spare_ops);
    ps_map_free(a->servers);
    ps_map_free(a->by_conn);
    ps_map_free(a->server_conns);
    ps_map_free(a->jobs);
    ps_caller_fini(&a->up.caller);
    ps_agent_job_bury(a);
    assert(a->dying_count == 0); /* The driver has let go of all frames. */
    ps_agent_budget_fini(a);
    ps_free(a->dying);
    ps_free(a->departed);
    ps_free(a);
}

/* --------------------------------------------------------------- looking in */

bool ps_agent_ready(const struct ps_agent *a)
{
    return ps_caller_is_known(&a->up.caller);
}

uint64_t ps_agent_residue(const struct ps_agent *a)
{
    return ps_map_count(a->jobs) + ps_map_count(a->by_conn) +
           ps_map_count(a->questions) + a->dying_count;
}

void ps_agent_stats(const struct ps_agent *a, struct ps_agent_stats *ret)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_server *s;

    *ret = a->stats;
    ret->sessions = (uint32_t)ps_map_count(a->by_conn);
    ret->resent = ps_link_resent(a->up.caller.link);
    ret->waiting = 0;
    PS_LIST_EACH(n, &a->sessions)
    {
        ret->waiting +=
            PS_CONTAINER(n, struct ps_agent_session, node)->op_count;
    }
    while ((s = ps_map_next(a->servers, &c)) != NULL) {
        ret->resent += ps_link_resent(s->caller.link);
    }
}

bool ps_agent_peek(const struct ps_agent *a, uint64_t gen, uint32_t key,
                   uint32_t index, uint64_t *ret_committed)
{
    const struct ps_agent_job *j = ps_agent_job_find(a, gen);
    const struct ps_agent_key *k = j == NULL ? NULL : ps_map_get(j->keys, key);

    if (k == NULL || index >= k->part_count ||
        k->parts[index].committed == NONE) {
        return false;
    }
    *ret_committed = (uint64_t)k->parts[index].committed;
    return true;
}
