/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points of the scheduler machine: hands connections, messages and time
 * to the files below. */
#include "core/sched/sched.h"

#include "base/alloc.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/member/member.h"
#include "core/sched/place/copies.h"
#include "core/sched/place/place.h"
#include "core/sched/query/query.h"

#include <string.h>

/* Longest time from the connection to its hello. */
#define HELLO_TIMEOUT PS_SECONDS(5)

static ps_time value_or_default(ps_time given, ps_time otherwise)
{
    return given != 0 ? given : otherwise;
}

struct ps_sched *ps_sched_new(const struct ps_sched_options *opt, ps_time now)
{
    struct ps_sched *s = ps_calloc(1, sizeof(*s));
    struct ps_sched_options *o = &s->opt;

    *o = *opt;
    o->heartbeat = value_or_default(o->heartbeat, PS_MILLIS(100));
    o->suspect_after = value_or_default(o->suspect_after, 5 * o->heartbeat);
    o->dead_after = value_or_default(o->dead_after, PS_SECONDS(2));
    o->start_timeout = value_or_default(o->start_timeout, PS_SECONDS(120));
    o->rejoin_grace = value_or_default(o->rejoin_grace, PS_SECONDS(60));
    o->rejoin_timeout = value_or_default(o->rejoin_timeout, PS_SECONDS(3600));
    o->diverged_after = value_or_default(o->diverged_after, PS_SECONDS(30));
    o->server_return = value_or_default(o->server_return, PS_SECONDS(30));
    o->link_linger = value_or_default(o->link_linger, PS_SECONDS(10));
    if (o->placements_sent_max == 0) {
        o->placements_sent_max = PS_PLACEMENTS_SENT_MAX;
    }
    ps_rng_init(&s->rng, o->seed);
    s->started_at = now;
    s->last_recv_at = now;
    s->deadline = PS_TIME_NEVER;
    s->last_gen = o->generation_base;
    s->last_move_id = o->generation_base;
    ps_members_init(&s->members);
    ps_members_set_base(&s->members, opt->generation_base);
    s->conns = ps_map_new();
    s->jobs = ps_map_new();
    ps_sched_account_init(s);
    ps_list_init(&s->trace_reads);
    ps_list_init(&s->watches);
    ps_list_init(&s->stalls);
    ps_sched_tokens_init(s);
    ps_sched_store_init(s);
    ps_sched_event_own(&(struct ps_sched_step){.s = s, .now = now}, "started",
                       false, NULL);
    return s;
}

void ps_sched_free(struct ps_sched *s)
{
    if (s == NULL) {
        return;
    }
    ps_sched_diverged_free(s);
    ps_sched_stalls_free(s);
    PS_MAP_EACH(struct ps_sched_conn, conn, s->conns)
    {
        ps_sched_rebalance_drop_reply(conn);
        ps_sched_trace_drop(s, conn->id, 0);
        ps_free(conn);
    }
    PS_MAP_EACH(struct ps_sched_job, j, s->jobs)
    {
        ps_sched_norm_free(j);
        ps_sched_trace_drop(s, 0, j->gen);
        ps_sched_moves_free(j);
        ps_sched_account_close_job(j);
        ps_sched_job_free(j);
    }
    ps_map_free(s->conns);
    ps_map_free(s->jobs);
    ps_sched_tokens_fini(s);
    ps_sched_store_fini(s);
    ps_sched_events_fini(&s->events);
    ps_sched_history_fini(&s->history);
    /* Before the account, which their links use. */
    ps_members_fini(&s->members);
    ps_sched_account_fini(s);
    ps_free(s);
}

/* ------------------------------------------------------------ connections */

/* Drops what the connection has asked for and not got yet. */
static void drop_query(struct ps_sched *s, struct ps_sched_conn *c)
{
    if (c->kind == PS_SCHED_CONN_CTL) {
        ps_sched_stall_drop_ctl(s, c->id);
        c->lists_keys = false;
    }
    ps_sched_rebalance_drop_reply(c);
    ps_sched_trace_drop(s, c->id, 0);
    c->trace_read = 0;
}

static void cut_conn(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    drop_query(st->s, c);
    ps_sched_conn_close(st, c);
}

static void on_conn_open(struct ps_sched_step *st, const struct ps_event *ev)
{
    struct ps_sched_conn *c;

    c = ps_calloc(1, sizeof(*c));
    c->id = ev->conn;
    c->opened_at = st->now;
    c->is_local = ev->open.kind == PS_CONN_LOCAL;
    c->uid = ev->open.uid;
    ps_peer_identity_set(&c->identity, ev->open.identity);
    ps_str_copy(c->peer_text, sizeof(c->peer_text),
                ev->open.peer != NULL ? ev->open.peer : "?");
    ps_map_put(st->s->conns, c->id, c);
    if (st->s->ending) {
        cut_conn(st, c);
    }
}

static void on_conn_closed(struct ps_sched_step *st, const struct ps_event *ev)
{
    struct ps_sched_conn *c = ps_map_remove(st->s->conns, ev->conn);

    if (c == NULL) {
        return;
    }
    if (c->kind == PS_SCHED_CONN_MEMBER) {
        if (ev->closed.rc == PS_E_PERM && ev->closed.why != NULL) {
            ps_sched_member_on_refused(c->member, ev->closed.why);
        }
        ps_sched_member_on_closed(st, c->member);
    }
    drop_query(st->s, c);
    ps_free(c);
}

/* --------------------------------------------------------------- messages */

static void reject_message(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg *msg)
{
    struct ps_member *m = c->member;

    ps_effects_log(st->fx, PS_LOG_WARNING,
                   "connection from %s cut: unexpected %s", c->peer_text,
                   ps_msg_name(msg->code));
    cut_conn(st, c);
    if (m != NULL) {
        ps_sched_member_on_closed(st, m);
    }
}

/* ---------------------------------------------------------------- handlers */

static void on_ping(struct ps_sched_step *st, struct ps_member *m,
                    const struct ps_msg *msg)
{
    const struct ps_msg_ping *ping = &msg->ping;
    bool returned = m->last_ping.draining && !ping->draining;

    if (ping->draining && !m->last_ping.draining) {
        ps_effects_log(st->fx, PS_LOG_INFO, "%s %s is shutting down",
                       ps_role_name(m->role), m->name);
        ps_sched_event_member(st, m, "draining", false, NULL);
    }
    ps_member_record_ping(m, ping, st->now);
    ps_effects_send_msg(st->fx, ps_link_conn(m->link),
                        &(struct ps_msg){
                            .code = PS_MSG_PONG,
                            .ack = ps_link_received(m->link),
                            .pong = {.stamp = ping->stamp},
                        });
    if (returned) {
        ps_sched_jobs_try_start(st);
    }
}

static void on_costs(struct ps_sched_step *st, struct ps_member *m,
                     const struct ps_msg *msg)
{
    (void)st;
    ps_msg_free(m->last_costs);
    m->last_costs = ps_msg_dup(msg);
}

static void on_stall_report(struct ps_sched_step *st, struct ps_member *agent,
                            const struct ps_msg *msg)
{
    struct ps_sched_job *j;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    j = ps_sched_on_stall_report(st, agent, &msg->stall_report, &why);
    if (j != NULL) {
        ps_sched_job_fail(st, j, why.data);
    }
}

/* Of a report about a job, which its agents make when asked. */
static int check_report(const struct ps_sched *s, const struct ps_member *agent,
                        const struct ps_msg *msg)
{
    struct ps_msg_subject about;
    const struct ps_sched_job *j = ps_msg_subject(msg, &about)
                                       ? ps_sched_find_job(s, about.gen)
                                       : NULL;

    if (j == NULL || !ps_sched_job_has_started(j)) {
        return PS_E_NOENT;
    }
    return ps_sched_job_slot_of(j, agent->node) < j->slot_count ? 0 : PS_E_PERM;
}

/* Handler and check of a message of a member. */
struct handling {
    ps_sched_handler *handle;
    ps_sched_answer_check *check; /* An answer without one is refused. */
};

static struct handling handling_of(enum ps_msg_code code)
{
    static const struct handling rows[] = {
        [PS_MSG_PING] = {on_ping, NULL},
        [PS_MSG_PING_ACK] = {ps_sched_on_ping_ack,
                             ps_sched_witness_check_answer},
        [PS_MSG_COSTS] = {on_costs, NULL},
        [PS_MSG_JOB_OPEN] = {ps_sched_on_job_open, NULL},
        [PS_MSG_JOB_READY] = {ps_sched_on_job_ready, NULL},
        [PS_MSG_WORKER_GONE] = {ps_sched_on_worker_gone, NULL},
        [PS_MSG_VALUE_LOST] = {ps_sched_on_value_lost, NULL},
        [PS_MSG_KEY_OPEN] = {ps_sched_on_key_open, NULL},
        [PS_MSG_KEY_CLOSE] = {ps_sched_on_key_close, NULL},
        [PS_MSG_DISAGREEMENT] = {ps_sched_on_disagreement, NULL},
        [PS_MSG_OPTIMIZER_SET] = {ps_sched_on_optimizer_set, NULL},
        [PS_MSG_OPTIMIZER_CHANGE] = {ps_sched_on_optimizer_change, NULL},
        [PS_MSG_OPTIMIZER_TUNE] = {ps_sched_on_optimizer_tune, NULL},
        [PS_MSG_COMPRESSION_SET] = {ps_sched_on_compression_set, NULL},
        [PS_MSG_NORM_PART] = {ps_sched_on_norm_part, NULL},
        [PS_MSG_NORM_RESULT] = {ps_sched_on_norm_result, NULL},
        [PS_MSG_BARRIER_ENTER] = {ps_sched_on_barrier_enter, NULL},
        [PS_MSG_REPORT] = {ps_sched_on_report, NULL},
        [PS_MSG_PROFILE_SET] = {ps_sched_on_profile_set, NULL},
        [PS_MSG_TRACE_GET] = {ps_sched_on_recording_get, NULL},
        [PS_MSG_TRACE_ENTRIES] = {ps_sched_on_trace_entries,
                                  ps_sched_trace_check_answer},
        [PS_MSG_MOVED] = {ps_sched_on_moved, NULL},
        [PS_MSG_FILLED] = {ps_sched_on_filled, NULL},
        [PS_MSG_STALL_QUERY] = {ps_sched_on_stall_query, NULL},
        [PS_MSG_STALL_REPORT] = {on_stall_report, check_report},
        [PS_MSG_JOB_STILL] = {ps_sched_on_job_still, NULL},
        [PS_MSG_WAIT_REPORT] = {ps_sched_on_wait_report, check_report},
    };

    return code < sizeof(rows) / sizeof(rows[0]) ? rows[code]
                                                 : (struct handling){0};
}

/* --------------------------------------------------------------- authority */

/* True if the member is or was one of the job. */
static bool is_of_job(const struct ps_sched_job *j, const struct ps_member *m)
{
    if (m->role == PS_ROLE_AGENT) {
        return ps_sched_job_slot_of(j, m->node) < j->slot_count;
    }
    for (uint32_t i = 0; i < j->servers.removed_count; i++) {
        if (j->servers.removed[i].node == m->node) {
            return true;
        }
    }
    return ps_sched_job_server_of(j, m->node) != NULL;
}

/* True if the member owns the partition, or may have until it moved. */
static bool may_have_owned(const struct ps_sched_job *j,
                           const struct ps_member *m, uint32_t key,
                           uint32_t index)
{
    const struct ps_sched_key *k = ps_sched_job_key(j, key);

    return k == NULL || index >= k->part_count ||
           k->parts[index].node == m->node ||
           (k->is_reassigned && is_of_job(j, m));
}

/* Rule A6: 0 if the member may send this; PS_E_NOENT: what the message is about
 * has ended meanwhile; PS_E_PERM: it is another's, and no honest member sends
 * it. A job that is not known or has not begun is left to the handlers, which
 * answer. */
static int check_authority(const struct ps_sched *s, const struct ps_member *m,
                           const struct ps_msg *msg)
{
    const enum ps_authority needs = ps_msg_authority(msg->code, m->role);
    struct ps_msg_subject about;
    const struct ps_sched_job *j;

    if (needs == PS_AUTHORITY_ADDRESSEE) {
        return handling_of(msg->code).check != NULL
                   ? handling_of(msg->code).check(s, m, msg)
                   : PS_E_PERM;
    }
    if ((needs != PS_AUTHORITY_MEMBER && needs != PS_AUTHORITY_OWNER) ||
        !ps_msg_subject(msg, &about)) {
        return 0;
    }
    j = ps_sched_find_job(s, about.gen);
    if (j == NULL || !ps_sched_job_has_started(j)) {
        return 0;
    }
    if (needs == PS_AUTHORITY_MEMBER) {
        return is_of_job(j, m) ? 0 : PS_E_PERM;
    }
    for (uint32_t i = 0; i < about.part_count; i++) {
        if (!may_have_owned(j, m, ps_msg_subject_key(&about, i),
                            ps_msg_subject_index(&about, i))) {
            return PS_E_PERM;
        }
    }
    return 0;
}

/* Counts and logs a message about what is not the sender's. */
static void refuse_message(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg *msg)
{
    struct ps_member *m = c->member;
    const struct ps_sched_job *j = NULL;
    struct ps_msg_subject about;
    struct ps_str text = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_str who = PS_STR_ROOM(PS_NAME_MAX + 16);

    if (ps_msg_subject(msg, &about)) {
        j = ps_sched_find_job(st->s, about.gen);
    }
    st->s->refused_frames++;
    if (j != NULL) {
        ps_str_addf(&text,
                    "sent a message (%s) about job %s, which is not its own",
                    ps_msg_name(msg->code), j->name);
    } else {
        ps_str_addf(&text,
                    "sent a message (%s) that answers a request to another "
                    "member",
                    ps_msg_name(msg->code));
    }
    ps_str_addf(&who, "%s %s", ps_role_name(m->role), m->name);
    if (ps_misuse_add(&m->misuse, st->now, st->fx, who.data, text.data)) {
        cut_conn(st, c);
        ps_sched_member_on_closed(st, m);
    }
}

static bool has_authority(struct ps_sched_step *st, struct ps_sched_conn *c,
                          const struct ps_msg *msg)
{
    int rc = check_authority(st->s, c->member, msg);

    if (rc == PS_E_PERM) {
        refuse_message(st, c, msg);
    }
    return rc == 0;
}

/* --------------------------------------------------------------- dispatch */

static void on_member_msg(struct ps_sched_step *st, struct ps_sched_conn *c,
                          const struct ps_msg *msg)
{
    struct ps_member *m = c->member;

    if (!ps_msg_allowed(msg->code, m->role, PS_ROLE_SCHED) ||
        msg->code == PS_MSG_HELLO) {
        reject_message(st, c, msg);
        return;
    }
    ps_sched_member_on_message(st, m);
    if (!ps_link_receive(m->link, msg, st->now, st->fx)) {
        return;
    }
    if (!ps_sched_member_is_backlogged(st, m) && has_authority(st, c, msg) &&
        handling_of(msg->code).handle != NULL) {
        handling_of(msg->code).handle(st, m, msg);
    }
}

static void on_ctl_msg(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg *msg)
{
    if (msg->code == PS_MSG_QUERY && msg->query.what == PS_QUERY_TOKENS) {
        ps_sched_on_token_query(st, c);
    } else if (msg->code == PS_MSG_QUERY) {
        ps_sched_on_query(st, c, &msg->query);
    } else if (msg->code == PS_MSG_JOB_CANCEL) {
        ps_sched_on_job_cancel(st, c, &msg->job_cancel);
    } else if (msg->code == PS_MSG_JOB_SET) {
        ps_sched_on_job_set(st, c, &msg->job_set);
    } else if (msg->code == PS_MSG_TOKEN_ISSUE) {
        ps_sched_on_token_issue(st, c, &msg->token_issue);
    } else if (msg->code == PS_MSG_TOKEN_REVOKE) {
        ps_sched_on_token_revoke(st, c, &msg->token_revoke);
    } else if (msg->code == PS_MSG_LOG_LEVEL) {
        ps_sched_on_log_level(st, c, &msg->log_level);
    } else if (msg->code == PS_MSG_TRACE_GET) {
        ps_sched_on_trace_get(st, c, &msg->trace_get);
    } else {
        reject_message(st, c, msg);
    }
}

static void on_msg(struct ps_sched_step *st, const struct ps_event *ev)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, ev->conn);

    if (c == NULL) {
        return;
    }
    switch (c->kind) {
    case PS_SCHED_CONN_HANDSHAKE:
        if (ev->msg.msg->code == PS_MSG_HELLO) {
            ps_sched_on_hello(st, c, &ev->msg.msg->hello);
        } else {
            reject_message(st, c, ev->msg.msg);
        }
        break;
    case PS_SCHED_CONN_MEMBER:
        on_member_msg(st, c, ev->msg.msg);
        break;
    case PS_SCHED_CONN_CTL:
        on_ctl_msg(st, c, ev->msg.msg);
        break;
    case PS_SCHED_CONN_CLOSING:
        break;
    }
}

/* ------------------------------------------------------------------- time */

static void conns_tick(struct ps_sched_step *st)
{
    PS_MAP_EACH(struct ps_sched_conn, c, st->s->conns)
    {
        if (c->kind == PS_SCHED_CONN_HANDSHAKE &&
            ps_time_add(c->opened_at, HELLO_TIMEOUT) <= st->now) {
            ps_effects_log(st->fx, PS_LOG_WARNING,
                           "connection from %s cut: no hello", c->peer_text);
            cut_conn(st, c);
        }
    }
}

static ps_time conns_deadline(const struct ps_sched *s)
{
    ps_time due = PS_TIME_NEVER;

    PS_MAP_EACH(const struct ps_sched_conn, c, s->conns)
    {
        if (c->kind == PS_SCHED_CONN_HANDSHAKE) {
            due = ps_time_min(due, ps_time_add(c->opened_at, HELLO_TIMEOUT));
        }
    }
    return due;
}

/* Extends all leases if this process ran late: messages that members sent
 * meanwhile are still unread, so their silence proves nothing. */
static void extend_leases_if_late(struct ps_sched_step *st)
{
    ps_time deadline = st->s->deadline;

    if (st->now > deadline &&
        ps_sched_lease_extend_all(st, st->now - deadline)) {
        ps_sched_jobs_on_wakeup(st, st->now - deadline);
    }
}

static void stalls_tick(struct ps_sched_step *st)
{
    struct ps_sched_job *j;

    for (;;) {
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

        j = ps_sched_stalls_tick(st, &why);
        if (j == NULL) {
            j = ps_sched_diverged_tick(st, &why);
        }
        if (j == NULL) {
            return;
        }
        ps_sched_job_fail(st, j, why.data);
    }
}

static void sched_tick(struct ps_sched_step *st)
{
    conns_tick(st);
    ps_sched_trace_tick(st);
    ps_sched_members_tick(st);
    if (st->s->tokens.check_at <= st->now) {
        ps_sched_workers_drop_tokens(st);
    }
    ps_sched_jobs_tick(st);
    stalls_tick(st);
}

static ps_time compute_deadline(const struct ps_sched *s, ps_time now)
{
    ps_time due = conns_deadline(s);

    due = ps_time_min(due, ps_sched_members_deadline(s, now));
    due = ps_time_min(due, s->tokens.check_at);
    due = ps_time_min(due, ps_sched_timers_next(&s->trace_reads));
    due = ps_time_min(due, ps_sched_jobs_deadline(s));
    due = ps_time_min(due, ps_sched_timers_next(&s->watches));
    return ps_time_min(due, ps_sched_timers_next(&s->stalls));
}

/* The deadline is computed from all members. In a large cluster that takes
 * longer than a message, of which there are as many: so it is computed once in
 * this time for each group of that many members. */
#define DEADLINE_PAUSE PS_MICROS(300)
#define DEADLINE_GROUP 64u

/* Within the pause a tick is due at its end, for what this step may have made
 * due: the shortest of those times, of an acknowledgement, is longer in a
 * cluster of thousands. */
static void update_deadline(struct ps_sched *s, ps_time now, bool is_tick)
{
    const ps_time end = ps_time_add(
        s->deadline_at, s->members.count / DEADLINE_GROUP * DEADLINE_PAUSE);

    if (!is_tick && now < end) {
        s->deadline = ps_time_min(s->deadline, end);
    } else {
        s->deadline = compute_deadline(s, now);
        s->deadline_at = now;
    }
}

static void begin_shutdown(struct ps_sched_step *st)
{
    st->s->ending = true;
    PS_MAP_EACH(struct ps_sched_conn, c, st->s->conns)
    {
        struct ps_member *m = c->member;

        cut_conn(st, c);
        if (m != NULL) {
            ps_sched_member_on_closed(st, m);
        }
    }
}

/* ---------------------------------------------------------------- machine */

static int sched_step(void *self, const struct ps_event *ev,
                      struct ps_effects *fx)
{
    struct ps_sched *s = self;
    struct ps_sched_step st = {.s = s, .now = ev->now, .fx = fx};
    const uint32_t first = fx->count;
    struct ps_sched_conn *c;

    extend_leases_if_late(&st);
    switch (ev->type) {
    case PS_EV_TICK:
        sched_tick(&st);
        break;
    case PS_EV_OPEN:
        on_conn_open(&st, ev);
        break;
    case PS_EV_MSG:
        on_msg(&st, ev);
        break;
    case PS_EV_SENT:
        c = ps_map_get(s->conns, ev->conn);
        if (c != NULL && ev->sent.queued < PS_HEADER_MAX) {
            ps_sched_query_send_rows(&st, c);
        }
        break;
    case PS_EV_CLOSED:
        on_conn_closed(&st, ev);
        break;
    case PS_EV_DRAIN:
        s->draining = true;
        break;
    case PS_EV_SHUTDOWN:
        begin_shutdown(&st);
        break;
    case PS_EV_CERTIFICATE:
        s->certificate = ev->certificate;
        break;
    case PS_EV_PROBED:
        ps_sched_on_probed(&st, ev->dial_failed.target, ev->dial_failed.rc);
        break;
    case PS_EV_DIAL_FAILED: /* The scheduler does not dial. */
    case PS_EV_STALLED:
    case PS_EV_COMPUTED: /* The scheduler computes nothing. */
    case PS_EV_REGION:
    case PS_EV_RESIDUAL_SEGMENT:
    case PS_EV_OPS:
        break;
    }
    ps_sched_store_flush(&st, first);
    update_deadline(s, st.now, ev->type == PS_EV_TICK);
    return 0;
}

static ps_time sched_deadline(const void *self)
{
    const struct ps_sched *s = self;

    return s->deadline;
}

/* No message to the scheduler has a payload. */
static int sched_payload(void *self, ps_conn_id conn, const struct ps_msg *msg,
                         uint64_t len, struct ps_slice *ret_slice)
{
    (void)self;
    (void)conn;
    (void)msg;
    (void)len;
    (void)ret_slice;
    return PS_E_PROTO;
}

struct ps_machine ps_sched_machine(struct ps_sched *s)
{
    static const struct ps_machine_ops ops = {
        .step = sched_step,
        .deadline = sched_deadline,
        .payload = sched_payload,
    };

    return (struct ps_machine){.ops = &ops, .self = s, .account = &s->account};
}

uint32_t ps_sched_epoch(const struct ps_sched *s)
{
    return s->epoch;
}

uint64_t ps_sched_refused_frames(const struct ps_sched *s)
{
    return s->refused_frames;
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

void ps_sched_each_scalar(const struct ps_sched *s, ps_sched_scalar_cb each,
                          void *ctx)
{
    struct ps_rec_job_scalar rows[PS_SCALARS_MAX];
    struct ps_msg_job_row job;

    PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
    {
        uint32_t count = ps_sched_scalars_rows(j->observed.scalars,
                                               s->last_recv_at, rows);

        for (uint32_t i = 0; i < count; i++) {
            ps_sched_job_fill_row(j, s->last_recv_at, &job);
            each(ctx, &job, &rows[i]);
        }
    }
}

uint32_t ps_sched_diverged_count(const struct ps_sched *s)
{
    return ps_sched_diverged_jobs(s);
}

uint64_t ps_sched_residue(const struct ps_sched *s)
{
    uint64_t n = ps_map_count(s->jobs) + s->stall_count;

    PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
    {
        n += j->keys.open_count + j->waiters.count +
             (ps_sched_job_has_started(j) &&
              ps_barrier_is_waiting(&j->barrier));
    }
    for (uint32_t i = 0; i < s->members.count; i++) {
        n += s->members.sorted[i]->placed_bytes != 0;
    }
    return n;
}
