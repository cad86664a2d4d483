/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the scheduler machine: connections and who they belong to,
 * messages to their handlers, time. */
#include "core/sched_inner.h"

#include "base/alloc.h"

#include <string.h>

/* From the connection to the hello behind it. */
#define HELLO_WAIT PS_SECONDS(5)

static ps_time or_default(ps_time given, ps_time otherwise)
{
    return given != 0 ? given : otherwise;
}

struct ps_sched *ps_sched_new(const struct ps_sched_options *opt, ps_time now)
{
    struct ps_sched *s = ps_calloc(1, sizeof(*s));
    struct ps_sched_options *o = &s->opt;

    *o = *opt;
    o->heartbeat = or_default(o->heartbeat, PS_MILLIS(100));
    o->suspect_after = or_default(o->suspect_after, 5 * o->heartbeat);
    o->dead_after = or_default(o->dead_after, PS_SECONDS(2));
    o->start_timeout = or_default(o->start_timeout, PS_SECONDS(120));
    o->rejoin_grace = or_default(o->rejoin_grace, PS_SECONDS(60));
    o->rejoin_timeout = or_default(o->rejoin_timeout, PS_SECONDS(3600));
    o->link_linger = or_default(o->link_linger, PS_SECONDS(10));
    if (o->placements_told == 0) {
        o->placements_told = PS_PLACEMENTS_TOLD_MAX;
    }
    if (o->move_piece == 0 || o->move_piece > PS_MOVE_PIECE_MAX) {
        o->move_piece = PS_MOVE_PIECE_MAX;
    }
    ps_rng_init(&s->rng, o->seed);
    s->started = now;
    s->heard = now;
    s->deadline = PS_TIME_NEVER;
    s->gen = o->generation_base;
    ps_members_init(&s->members);
    ps_members_number(&s->members, opt->generation_base);
    s->conns = ps_map_new();
    s->jobs = ps_map_new();
    ps_sched_budget_init(s);
    ps_list_init(&s->stalls);
    return s;
}

void ps_sched_free(struct ps_sched *s)
{
    struct ps_map_cursor c = {0};
    struct ps_sched_conn *conn;
    struct ps_sched_job *j;
    struct ps_list_node *n;

    if (s == NULL) {
        return;
    }
    while ((n = ps_list_pop(&s->stalls)) != NULL) {
        struct ps_stall *stall = PS_CONTAINER(n, struct ps_stall, node);

        ps_bits_fini(&stall->waiting);
        ps_bits_fini(&stall->missing);
        ps_free(stall);
    }
    while ((conn = ps_map_next(s->conns, &c)) != NULL) {
        ps_sched_even_drop(conn);
        ps_free(conn);
    }
    c = (struct ps_map_cursor){0};
    while ((j = ps_map_next(s->jobs, &c)) != NULL) {
        ps_sched_norms_free(j);
        ps_sched_moves_free(j);
        ps_sched_budget_close(j);
        ps_job_free(j);
    }
    ps_map_free(s->conns);
    ps_map_free(s->jobs);
    ps_members_fini(&s->members); /* Their links count at the account. */
    ps_sched_budget_fini(s);
    ps_free(s);
}

bool ps_sched_name_ok(const char *name)
{
    size_t len = 0;

    if (name == NULL) {
        return false;
    }
    for (; name[len] != '\0'; len++) {
        if (name[len] <= ' ' || name[len] > '~') {
            return false;
        }
    }
    return len > 0 && len <= PS_NAME_MAX;
}

/* ------------------------------------------------------------ connections */

void ps_sched_hang_up(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    if (c->kind == PS_SCHED_CONN_DONE) {
        return;
    }
    if (c->kind == PS_SCHED_CONN_CTL) {
        ps_sched_stall_drop_ctl(st->s, c->id);
    }
    c->kind = PS_SCHED_CONN_DONE;
    c->member = NULL;
    c->keys = false;
    ps_sched_even_drop(c);
    ps_effects_hangup(st->fx, c->id);
}

static void opened(struct ps_sched_step *st, const struct ps_event *ev)
{
    struct ps_sched_conn *c;

    c = ps_calloc(1, sizeof(*c));
    c->id = ev->conn;
    c->opened = st->now;
    c->local = ev->open.kind == PS_CONN_LOCAL;
    c->uid = ev->open.uid;
    ps_str_copy(c->peer, sizeof(c->peer),
                ev->open.peer != NULL ? ev->open.peer : "?");
    ps_map_put(st->s->conns, c->id, c);
    if (st->s->ending) {
        ps_sched_hang_up(st, c);
    }
}

static void closed(struct ps_sched_step *st, ps_conn_id id)
{
    struct ps_sched_conn *c = ps_map_take(st->s->conns, id);

    if (c == NULL) {
        return;
    }
    if (c->kind == PS_SCHED_CONN_MEMBER) {
        ps_sched_member_lost(st, c->member);
    } else if (c->kind == PS_SCHED_CONN_CTL) {
        ps_sched_stall_drop_ctl(st->s, id);
    }
    ps_sched_even_drop(c);
    ps_free(c);
}

/* --------------------------------------------------------------- messages */

static void cut(struct ps_sched_step *st, struct ps_sched_conn *c,
                const struct ps_msg *msg)
{
    struct ps_member *m = c->member;

    ps_effects_note(st->fx, PS_LOG_WARNING,
                    "connection from %s cut: unexpected %s", c->peer,
                    ps_msg_name(msg->code));
    ps_sched_hang_up(st, c);
    if (m != NULL) {
        ps_sched_member_lost(st, m);
    }
}

static void pong(struct ps_sched_step *st, struct ps_member *m,
                 const struct ps_msg_ping *ping)
{
    bool returned = m->stats.draining && !ping->draining;

    if (ping->draining && !m->stats.draining) {
        ps_effects_note(st->fx, PS_LOG_INFO, "%s %s is shutting down",
                        ps_role_name(m->role), m->name);
    }
    ps_member_take_stats(m, ping, st->now);
    ps_effects_tell(st->fx, ps_link_conn(m->link),
                    &(struct ps_msg){
                        .code = PS_MSG_PONG,
                        .ack = ps_link_received(m->link),
                        .pong = {.stamp = ping->stamp},
                    });
    if (returned) {
        ps_sched_jobs_try_start(st);
    }
}

static void from_member(struct ps_sched_step *st, struct ps_sched_conn *c,
                        const struct ps_msg *msg,
                        const struct ps_slice *payload)
{
    struct ps_member *m = c->member;

    if (!ps_msg_allowed(msg->code, m->role, PS_ROLE_SCHED) ||
        msg->code == PS_MSG_HELLO) {
        cut(st, c, msg);
        return;
    }
    ps_sched_lease_heard(st, m);
    if (!ps_link_receive(m->link, msg, st->now, st->fx)) {
        return;
    }
    if (ps_sched_member_is_behind(st, m)) {
        return;
    }
    switch ((int)msg->code) {
    case PS_MSG_PING:
        pong(st, m, &msg->ping);
        break;
    case PS_MSG_PING_ACK:
        ps_sched_ping_ack(st, m, &msg->ping_ack);
        break;
    case PS_MSG_COSTS:
        ps_msg_free(m->costs);
        m->costs = ps_msg_dup(msg);
        break;
    case PS_MSG_JOB_OPEN:
        ps_sched_job_open(st, m, &msg->job_open);
        break;
    case PS_MSG_JOB_READY:
        ps_sched_job_ready(st, m, &msg->job_ready);
        break;
    case PS_MSG_SQUARES:
        ps_sched_squares(st, m, &msg->squares);
        break;
    case PS_MSG_VALUE_LOST:
        ps_sched_value_lost(st, m, &msg->value_lost);
        break;
    case PS_MSG_WORKER_GONE:
        ps_sched_worker_gone(st, m, msg->seq, &msg->worker_gone);
        break;
    case PS_MSG_KEY_OPEN:
        ps_sched_key_open(st, m, &msg->key_open);
        break;
    case PS_MSG_KEY_CLOSE:
        ps_sched_key_close(st, m, &msg->key_close);
        break;
    case PS_MSG_BARRIER_ENTER:
        ps_sched_barrier_enter(st, m, &msg->barrier_enter);
        break;
    case PS_MSG_OPTIMIZER_SET:
        ps_sched_optimizer_set(st, m, &msg->optimizer_set);
        break;
    case PS_MSG_OPTIMIZER_CHANGE:
        ps_sched_optimizer_change(st, m, &msg->optimizer_change);
        break;
    case PS_MSG_COMPRESSION_SET:
        ps_sched_compression_set(st, m, &msg->compression_set);
        break;
    case PS_MSG_STALL_QUERY:
        ps_sched_stall_query(st, m, &msg->stall_query);
        break;
    case PS_MSG_STALL_REPORT:
        ps_sched_stall_report(st, m, &msg->stall_report);
        break;
    case PS_MSG_PART_PIECE:
        ps_sched_part_piece(st, m, &msg->part_piece, payload);
        break;
    case PS_MSG_PART_DONE:
        ps_sched_part_done(st, m, &msg->part_done);
        break;
    default:
        break;
    }
}

static void from_ctl(struct ps_sched_step *st, struct ps_sched_conn *c,
                     const struct ps_msg *msg)
{
    if (msg->code == PS_MSG_QUERY) {
        ps_sched_query(st, c, &msg->query);
    } else if (msg->code == PS_MSG_JOB_CANCEL) {
        ps_sched_job_cancel(st, c, &msg->job_cancel);
    } else if (msg->code == PS_MSG_JOB_SET) {
        ps_sched_query_set(st, c, &msg->job_set);
    } else {
        cut(st, c, msg);
    }
}

static void message(struct ps_sched_step *st, const struct ps_event *ev)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, ev->conn);

    if (c == NULL) {
        return;
    }
    switch (c->kind) {
    case PS_SCHED_CONN_NEW:
        if (ev->msg.msg->code == PS_MSG_HELLO) {
            ps_sched_hello(st, c, &ev->msg.msg->hello);
        } else {
            cut(st, c, ev->msg.msg);
        }
        break;
    case PS_SCHED_CONN_MEMBER:
        from_member(st, c, ev->msg.msg, ev->msg.payload);
        break;
    case PS_SCHED_CONN_CTL:
        from_ctl(st, c, ev->msg.msg);
        break;
    case PS_SCHED_CONN_DONE:
        break;
    }
}

/* ------------------------------------------------------------------- time */

static void conns_tick(struct ps_sched_step *st)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_conn *c;

    while ((c = ps_map_next(st->s->conns, &cursor)) != NULL) {
        if (c->kind == PS_SCHED_CONN_NEW &&
            ps_time_add(c->opened, HELLO_WAIT) <= st->now) {
            ps_effects_note(st->fx, PS_LOG_WARNING,
                            "connection from %s cut: no hello", c->peer);
            ps_sched_hang_up(st, c);
        }
    }
}

static ps_time conns_deadline(const struct ps_sched *s)
{
    struct ps_map_cursor cursor = {0};
    const struct ps_sched_conn *c;
    ps_time due = PS_TIME_NEVER;

    while ((c = ps_map_next(s->conns, &cursor)) != NULL) {
        if (c->kind == PS_SCHED_CONN_NEW) {
            due = ps_time_min(due, ps_time_add(c->opened, HELLO_WAIT));
        }
    }
    return due;
}

/* Who slept himself must not take others for dead: they may have spoken all
 * the while, and what they said is still to be read. */
static void excuse_sleep(struct ps_sched_step *st)
{
    ps_time deadline = st->s->deadline;

    if (st->now > deadline) {
        ps_sched_lease_slept(st, st->now - deadline);
    }
}

static void tick(struct ps_sched_step *st)
{
    conns_tick(st);
    ps_sched_members_tick(st);
    ps_sched_jobs_tick(st);
    ps_sched_stalls_tick(st);
}

static ps_time next_deadline(const struct ps_sched *s, ps_time now)
{
    ps_time due = conns_deadline(s);

    due = ps_time_min(due, ps_sched_members_deadline(s, now));
    due = ps_time_min(due, ps_sched_jobs_deadline(s));
    return ps_time_min(due, ps_sched_stalls_deadline(s));
}

static void shut_down(struct ps_sched_step *st)
{
    struct ps_map_cursor cursor = {0};
    struct ps_sched_conn *c;

    st->s->ending = true;
    while ((c = ps_map_next(st->s->conns, &cursor)) != NULL) {
        struct ps_member *m = c->member;

        ps_sched_hang_up(st, c);
        if (m != NULL) {
            ps_sched_member_lost(st, m);
        }
    }
}

/* ---------------------------------------------------------------- machine */

static int step(void *self, const struct ps_event *ev, struct ps_effects *fx)
{
    struct ps_sched *s = self;
    struct ps_sched_step st = {.s = s, .now = ev->now, .fx = fx};
    struct ps_sched_conn *c;

    excuse_sleep(&st);
    switch (ev->type) {
    case PS_EV_TICK:
        tick(&st);
        break;
    case PS_EV_OPEN:
        opened(&st, ev);
        break;
    case PS_EV_MSG:
        message(&st, ev);
        break;
    case PS_EV_SENT:
        c = ps_map_get(s->conns, ev->conn);
        if (c != NULL && ev->sent.queued < PS_HEADER_MAX) {
            ps_sched_query_pump(&st, c);
        }
        break;
    case PS_EV_CLOSED:
        closed(&st, ev->conn);
        break;
    case PS_EV_DRAIN:
        s->draining = true;
        break;
    case PS_EV_SHUTDOWN:
        shut_down(&st);
        break;
    case PS_EV_PROBED:
        ps_sched_probed(&st, ev->dial_failed.target, ev->dial_failed.rc);
        break;
    case PS_EV_DIAL_FAILED: /* The scheduler dials nobody. */
    case PS_EV_STALLED:
    case PS_EV_COMPUTED: /* The scheduler computes nothing. */
    case PS_EV_REGION:
    case PS_EV_KEEP:
    case PS_EV_OPS:
        break;
    }
    s->deadline = next_deadline(s, st.now);
    return 0;
}

static ps_time deadline(const void *self)
{
    const struct ps_sched *s = self;

    return s->deadline;
}

static int payload(void *self, ps_conn_id conn, const struct ps_msg *msg,
                   uint64_t len, struct ps_slice *ret_slice)
{
    const struct ps_sched *s = self;
    const struct ps_sched_conn *c = ps_map_get(s->conns, conn);

    /* Pieces of partitions alone are for a scheduler. */
    if (msg->code != PS_MSG_PART_PIECE || c == NULL || c->member == NULL ||
        c->member->role != PS_ROLE_SERVER || len > s->opt.move_piece) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(c->member->link, msg->seq)) {
        return PS_E_EXIST;
    }
    *ret_slice = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    return 0;
}

struct ps_machine ps_sched_machine(struct ps_sched *s)
{
    static const struct ps_machine_ops ops = {
        .step = step,
        .deadline = deadline,
        .payload = payload,
    };

    return (struct ps_machine){.ops = &ops, .self = s, .ledger = &s->account};
}

uint32_t ps_sched_epoch(const struct ps_sched *s)
{
    return s->epoch;
}

uint32_t ps_sched_job_count(const struct ps_sched *s)
{
    return (uint32_t)ps_map_count(s->jobs);
}

uint32_t ps_sched_member_count(const struct ps_sched *s, enum ps_role role,
                               enum ps_node_state state)
{
    return ps_members_count(&s->members, role, state);
}

uint64_t ps_sched_residue(const struct ps_sched *s)
{
    struct ps_map_cursor cursor = {0};
    const struct ps_sched_job *j;
    uint64_t n = ps_map_count(s->jobs) + s->stall_count;

    while ((j = ps_map_next(s->jobs, &cursor)) != NULL) {
        n += j->keys_open + j->waiter_count +
             (ps_job_started(j) && ps_barrier_waits(&j->barrier));
    }
    for (uint32_t i = 0; i < s->members.count; i++) {
        n += s->members.sorted[i]->load != 0;
    }
    return n;
}
