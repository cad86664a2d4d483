/* SPDX-License-Identifier: Apache-2.0 */
/* Training processes: one session each, from l_hello to l_bye or to the end of
 * its socket, which is the death of the process. What it has offered by then
 * stays: the memory is referenced, and the round may need it. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/str.h"

#include <assert.h>
#include <string.h>

/* Regions unmapped at a time, at 2 us each, and the time until the next ones. */
#define LEAVE_COUNT 32u
#define LEAVE_EVERY PS_MILLIS(1)

/* --------------------------------------------------------------- operations */

struct ps_agent_op *ps_agent_op_new(struct ps_agent_step *st,
                                    struct ps_agent_session *s, uint64_t id)
{
    struct ps_agent *a = st->a;
    struct ps_agent_op *op = a->spare_op_count > 0
                                 ? a->spare_ops[--a->spare_op_count]
                                 : ps_alloc(sizeof(*op));

    *op = (struct ps_agent_op){.agent = a};
    op->session = s;
    op->id = id;
    op->local = s->local;
    op->since = st->now;
    ps_list_push_back(&s->ops, &op->mine);
    s->op_count++;
    ps_account_add(&s->account, PS_COST_OPERATIONS, 1);
    a->op_count++;
    return op;
}

/* Its session has nothing to do with it any more. */
static void op_leave(struct ps_agent_op *op)
{
    ps_list_remove(&op->mine);
    op->session->op_count--;
    op->agent->op_count--;
    ps_account_refund(&op->session->account, PS_COST_OPERATIONS, 1);
    op->session = NULL;
}

void ps_agent_op_free(struct ps_agent_op *op)
{
    struct ps_agent *a = op->agent;

    if (op->session != NULL) {
        if (op->message != NULL) {
            ps_account_refund(&op->session->account, PS_COST_QUERIES, 1);
            ps_account_refund(&op->session->account, PS_COST_MEMORY,
                              ps_alloc_size(op->message));
        }
        op_leave(op);
    }
    if (op->charged > 0) {
        ps_account_refund(&op->key->job->account, PS_COST_MEMORY, op->charged);
    }
    ps_buf_unref(op->array.buf);
    ps_agent_rows_free(op->rows);
    ps_free(op->stating);
    ps_msg_free(op->message);
    if (a->spare_op_count == SPARE_OPS_MAX) {
        ps_free(op);
        return;
    }
    if (a->spare_op_count == a->spare_op_capacity) {
        a->spare_op_capacity = a->spare_op_capacity == 0
                                   ? 64
                                   : 2 * a->spare_op_capacity;
        a->spare_ops = ps_realloc(
            a->spare_ops, a->spare_op_capacity * sizeof(struct ps_agent_op *));
    }
    a->spare_ops[a->spare_op_count++] = op;
}

void ps_agent_op_done(struct ps_agent_step *st, struct ps_agent_op *op,
                      uint64_t version, int error, const char *text)
{
    if (op->session != NULL && !op->session->ended && error == 0) {
        ps_effects_done(st->fx, op->session->conn, op->id, version);
    } else if (op->session != NULL && !op->session->ended) {
        ps_effects_tell(st->fx, op->session->conn,
                        &(struct ps_msg){.code = PS_MSG_L_DONE,
                                         .l_done = {.op_id = op->id,
                                                    .error = error,
                                                    .version = version,
                                                    .text = text}});
    }
    ps_agent_op_free(op);
}

void ps_agent_op_nobody(struct ps_agent_step *st, struct ps_agent_op *op,
                        uint64_t version)
{
    if (op->session != NULL && !op->session->ended) {
        ps_effects_tell(st->fx, op->session->conn,
                        &(struct ps_msg){.code = PS_MSG_L_DONE,
                                         .l_done = {.op_id = op->id,
                                                    .version = version,
                                                    .text = "",
                                                    .nobody = true}});
    }
    ps_agent_op_free(op);
}

/* The worker is gone. What it contributed stays in its round, without an
 * owner; everything else it waited for is dropped. */
static void drop_ops(struct ps_agent_session *s)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&s->ops)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, mine);
        struct ps_agent_key *k = op->key;

        if (k != NULL &&
            (k->offer[op->local] == op || ps_agent_async_keeps(op))) {
            op_leave(op);
            continue;
        }
        if (ps_list_linked(&op->node)) {
            ps_list_remove(&op->node);
        }
        ps_agent_op_free(op);
    }
}

/* ----------------------------------------------------------------- begin, end */

static void turn_away(struct ps_agent_step *st, ps_conn_id conn,
                      const char *text)
{
    ps_effects_tell(
        st->fx, conn,
        &(struct ps_msg){.code = PS_MSG_REJECT,
                         .reject = {.error = PS_E_FULL, .text = text}});
    ps_effects_hangup(st->fx, conn);
}

void ps_agent_session_open(struct ps_agent_step *st, const struct ps_event *ev)
{
    struct ps_agent *a = st->a;
    struct ps_agent_session *s;
    struct ps_refusal why;

    if (a->ending) {
        turn_away(st, ev->conn, "this agent is ending");
        return;
    }
    s = ps_calloc(1, sizeof(*s));
    s->conn = ev->conn;
    s->uid = ev->open.uid;
    s->worker = ++a->next_worker;
    if (ps_agent_budget_open(a, s, ev->open.pid, &why) != 0) {
        char text[PS_TEXT_MAX + 1];
        struct ps_str t;

        ps_str_init(&t, text, sizeof(text));
        ps_refusal_text(&why, &t);
        turn_away(st, ev->conn, text);
        ps_free(s);
        return;
    }
    s->regions = ps_map_new();
    s->unmapped = ps_map_new();
    s->arenas = ps_map_new();
    s->pieces = ps_map_new();
    ps_list_init(&s->ops);
    ps_list_push_back(&a->sessions, &s->node);
    ps_map_put(a->by_conn, s->conn, s);
}

/* Keys that it was asking for: nobody is to be answered. */
static void drop_askers(struct ps_agent_session *s)
{
    if (s->job == NULL) {
        return;
    }
    PS_LIST_EACH(n, &s->job->opening)
    {
        struct ps_agent_key *k = PS_CONTAINER(n, struct ps_agent_key, node);
        struct ps_list_node *m = ps_list_first(&k->askers);

        while (m != NULL) {
            struct ps_list_node *next = ps_list_next(&k->askers, m);
            struct ps_agent_asker *asker = PS_CONTAINER(
                m, struct ps_agent_asker, node);

            if (asker->session == s) {
                ps_list_remove(m);
                ps_agent_asker_free(asker);
            }
            m = next;
        }
    }
}

void ps_agent_regions_leave(struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    struct ps_buf *b;
    uint32_t count = 0;

    while (count < LEAVE_COUNT && (b = ps_map_next(a->leaving, &c)) != NULL) {
        ps_map_take(a->leaving, c.key);
        ps_buf_unref(b);
        count++;
    }
    a->leave_at = ps_map_count(a->leaving) == 0
                      ? PS_TIME_NEVER
                      : ps_time_add(a->now, LEAVE_EVERY);
}

static void forget_unmapped(struct ps_agent_session *s, char *why)
{
    if (why != NULL) {
        ps_account_refund(&s->account, PS_COST_REGIONS, 1);
        ps_free(why);
    }
}

void ps_agent_session_free(struct ps_agent *a, struct ps_agent_session *s)
{
    struct ps_map_cursor c = {0};
    struct ps_map_cursor u = {0};
    struct ps_buf *b;
    char *why;

    drop_ops(s);
    drop_askers(s);
    ps_agent_why_forget(a, s);
    a->held_back -= s->held_back;
    while ((b = ps_map_next(s->regions, &c)) != NULL) {
        ps_map_put(a->leaving, ++a->last_leaving, b);
    }
    ps_agent_regions_leave(a);
    while ((why = ps_map_next(s->unmapped, &u)) != NULL) {
        forget_unmapped(s, why);
    }
    ps_map_free(s->regions);
    ps_map_free(s->unmapped);
    ps_map_free(s->arenas);
    ps_map_free(s->pieces);
    ps_agent_budget_close(s);
    ps_list_remove(&s->node);
    ps_map_take(a->by_conn, s->conn);
    ps_msg_free(s->hello);
    ps_free(s);
}

static void tell_departed(struct ps_agent_step *st,
                          const struct ps_agent_departed *d)
{
    ps_agent_up_tell(st, &(struct ps_msg){.code = PS_MSG_WORKER_GONE,
                                          .worker_gone = {.gen = d->gen,
                                                          .worker = d->worker,
                                                          .clean = d->clean,
                                                          .untold = d->untold,
                                                          .text = ""}});
}

static void departed(struct ps_agent_step *st, const struct ps_agent_session *s)
{
    struct ps_agent *a = st->a;
    struct ps_agent_departed d = {.gen = s->gen,
                                  .worker = s->worker,
                                  .clean = s->bye,
                                  .untold = !s->bye && s->keys_left > 0};

    if (a->departed == NULL) {
        a->departed = ps_calloc(DEPARTED_MAX, sizeof(*a->departed));
    }
    if (a->departed_count == DEPARTED_MAX) {
        memmove(a->departed, a->departed + 1,
                (DEPARTED_MAX - 1) * sizeof(*a->departed));
        a->departed_count--;
    }
    a->departed[a->departed_count++] = d;
    tell_departed(st, &d);
}

void ps_agent_departed_offer(struct ps_agent_step *st)
{
    for (uint32_t i = 0; i < st->a->departed_count; i++) {
        tell_departed(st, &st->a->departed[i]);
    }
}

void ps_agent_departed_sift(struct ps_agent *a)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < a->departed_count; i++) {
        if (ps_agent_job_find(a, a->departed[i].gen) != NULL) {
            a->departed[kept++] = a->departed[i];
        }
    }
    a->departed_count = kept;
}

void ps_agent_departed_forget(struct ps_agent *a, uint64_t gen)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < a->departed_count; i++) {
        if (a->departed[i].gen != gen) {
            a->departed[kept++] = a->departed[i];
        }
    }
    a->departed_count = kept;
}

void ps_agent_session_closed(struct ps_agent_step *st,
                             struct ps_agent_session *s)
{
    struct ps_agent_job *j = s->job;

    if (s->hello != NULL && (j == NULL || j->phase != PS_JOB_PHASE_ENDED)) {
        departed(st, s);
    }
    if (j != NULL) {
        if (!s->bye && j->phase == PS_JOB_PHASE_RUNNING) {
            ps_effects_note(st->fx, PS_LOG_NOTICE,
                            "job %s lost rank %u: its process ended", j->name,
                            j->local[s->local].rank);
        }
        if (j->local[s->local].session == s) {
            j->local[s->local].session = NULL;
        }
        j->sessions--;
    }
    ps_agent_session_free(st->a, s);
    if (j != NULL) {
        ps_agent_job_settle(st, j);
    }
}

/* Tell the worker why, and hang up. The session goes when the socket does. */
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_msg m = {.code = PS_MSG_L_ERROR,
                       .l_error = {.error = error, .text = text}};
    struct ps_str t;
    va_list ap;

    if (s->ended) {
        return;
    }
    ps_str_init(&t, text, sizeof(text));
    va_start(ap, fmt);
    ps_str_addv(&t, fmt, ap);
    va_end(ap);
    if (s->state != PS_AGENT_SESSION_ACTIVE) {
        m = (struct ps_msg){.code = PS_MSG_REJECT,
                            .reject = {.error = error, .text = text}};
    }
    ps_effects_tell(st->fx, s->conn, &m);
    ps_effects_hangup(st->fx, s->conn);
    s->ended = true;
}

void ps_agent_session_refuse(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_refusal *why)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str t;

    ps_str_init(&t, text, sizeof(text));
    ps_refusal_text(why, &t);
    ps_agent_session_end(st, s, PS_E_FULL, "%s", text);
}

/* -------------------------------------------------------------------- hello */

void ps_agent_session_offer(struct ps_agent_step *st,
                            struct ps_agent_session *s)
{
    const struct ps_msg_l_hello *h = &s->hello->l_hello;

    ps_agent_up_tell(
        st,
        &(struct ps_msg){.code = PS_MSG_JOB_OPEN,
                         .job_open = {.worker = s->worker,
                                      .name = h->job,
                                      .uid = s->uid,
                                      .num_workers = h->num_workers,
                                      .num_servers = h->num_servers,
                                      .rank = h->rank,
                                      .mode = h->mode,
                                      .rule = h->rule,
                                      .staleness = h->staleness,
                                      .on_loss = h->on_loss,
                                      .placement = h->placement,
                                      .big_array_bound = h->big_array_bound,
                                      .partition_bytes = h->partition_bytes,
                                      .start_timeout_ns = h->start_timeout_ns,
                                      .host = st->a->opt.host,
                                      .gen = s->gen,
                                      .resume = h->gen != 0,
                                      .reoffer = s->reoffer}});
}

static void took_hello(struct ps_agent_step *st, struct ps_agent_session *s,
                       const struct ps_msg *m)
{
    if (s->state != PS_AGENT_SESSION_NEW) {
        ps_agent_session_end(st, s, PS_E_PROTO, "a second l_hello");
        return;
    }
    if (m->l_hello.protocol < PS_PROTOCOL_LEAST ||
        m->l_hello.protocol > PS_PROTOCOL) {
        ps_agent_session_end(
            st, s, PS_E_VERSION,
            "the library speaks protocol %u, this agent %u to %u",
            m->l_hello.protocol, PS_PROTOCOL_LEAST, PS_PROTOCOL);
        return;
    }
    if (m->l_hello.num_workers == 0 || m->l_hello.num_workers > PS_RANKS_MAX ||
        m->l_hello.job[0] == '\0') {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "a job needs a name and 1 to %u workers",
                             PS_RANKS_MAX);
        return;
    }
    if ((m->l_hello.mode == PS_MODE_SYNC && m->l_hello.rule != PS_RULE_NONE) ||
        m->l_hello.rule == PS_RULE_STEP) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "a rule is stated for an async or ssp job alone, "
                             "and is accumulate or assign; an optimizer is a "
                             "rule of its own");
        return;
    }
    if (m->l_hello.start_timeout_ns > PS_START_TIMEOUT_MAX) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "a job may form for at most %llu days: choose a "
                             "shorter start_timeout",
                             PS_START_TIMEOUT_MAX / PS_SECONDS(86400));
        return;
    }
    if (m->l_hello.mode != PS_MODE_SSP && m->l_hello.staleness != 0) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "staleness is stated for an ssp job alone");
        return;
    }
    if (m->l_hello.mode != PS_MODE_SYNC && m->l_hello.num_servers == 0) {
        ps_agent_session_end(st, s, PS_E_UNSUPPORTED,
                             "pushes of an async or ssp job are applied by "
                             "servers: start it with at least one");
        return;
    }
    s->hello = ps_msg_dup(m);
    s->state = PS_AGENT_SESSION_OPENING;
    s->gen = m->l_hello.gen;
    s->keys_left = s->gen == 0 ? 0 : m->l_hello.keys;
    if (st->a->departed_count > 0 &&
        ps_link_in_flight(st->a->up.caller.link) > 0) {
        s->held_back = true;
        st->a->held_back++;
        return;
    }
    ps_agent_session_offer(st, s);
}

void ps_agent_session_turns(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;

    if (a->held_back == 0 || ps_link_in_flight(a->up.caller.link) > 0) {
        return;
    }
    PS_LIST_EACH(n, &a->sessions)
    {
        struct ps_agent_session *s = PS_CONTAINER(n, struct ps_agent_session,
                                                  node);

        if (s->held_back) {
            s->held_back = false;
            a->held_back--;
            ps_agent_session_offer(st, s);
        }
    }
}

void ps_agent_session_welcome(struct ps_agent_step *st,
                              struct ps_agent_session *s)
{
    const struct ps_agent_job *j = s->job;
    const struct ps_agent_rank *r = &j->local[s->local];
    uint64_t passed = r->barriers < j->barriers_open ? r->barriers
                                                     : j->barriers_open;

    s->state = PS_AGENT_SESSION_ACTIVE;
    ps_effects_tell(
        st->fx, s->conn,
        &(struct ps_msg){.code = PS_MSG_L_WELCOME,
                         .l_welcome = {.gen = j->gen,
                                       .rank = r->rank,
                                       .num_workers = j->num_workers,
                                       .local_rank = s->local,
                                       .local_size = j->local_count,
                                       .num_servers = j->num_servers,
                                       .barriers = passed,
                                       .ring = st->a->opt.ring}});
}

/* ------------------------------------------------------------------- memory */

/* May it register a region of this number? Else its session ends. */
static bool may_register(struct ps_agent_step *st, struct ps_agent_session *s,
                         uint32_t region)
{
    if (s->state != PS_AGENT_SESSION_ACTIVE) {
        ps_agent_session_end(st, s, PS_E_PROTO, "no region before l_welcome");
        return false;
    }
    if (region == 0 || ps_map_get(s->regions, region) != NULL ||
        ps_map_get(s->unmapped, region) != NULL) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "a region needs a number of its own, not 0");
        return false;
    }
    return true;
}

void ps_agent_session_region(struct ps_agent_step *st,
                             struct ps_agent_session *s, uint32_t region,
                             struct ps_buf *buf)
{
    struct ps_refusal why;
    struct ps_buf *held;

    if (!may_register(st, s, region)) {
        return;
    }
    if (ps_agent_budget_hold(s, buf, &held, &why) != 0) {
        ps_agent_session_refuse(st, s, &why);
        return;
    }
    ps_map_put(s->regions, region, held);
}

void ps_agent_session_unmapped(struct ps_agent_step *st,
                               struct ps_agent_session *s, uint32_t region,
                               int rc, const char *why)
{
    struct ps_refusal refusal;

    if (s->ended) {
        return;
    }
    ps_effects_note(st->fx, PS_LOG_WARNING, "memory of worker %llu: %s",
                    (unsigned long long)s->worker, why);
    if (rc != PS_E_NOMEM || region == 0) {
        ps_agent_session_end(st, s, rc, "%s", why);
        return;
    }
    if (!may_register(st, s, region)) {
        return;
    }
    if (ps_account_charge(&s->account, PS_COST_REGIONS, 1, &refusal) != 0) {
        ps_agent_session_refuse(st, s, &refusal);
        return;
    }
    ps_map_put(s->unmapped, region, ps_strdup(why));
}

int ps_agent_session_missing(const struct ps_agent_session *s, uint32_t region,
                             const char **ret_why)
{
    const char *why = ps_map_get(s->unmapped, region);

    *ret_why = why != NULL ? why : "it was never registered";
    return why != NULL ? PS_E_NOMEM : PS_E_INVAL;
}

/* ------------------------------------------ barrier, optimizer, compression */

static void took_barrier(struct ps_agent_step *st, struct ps_agent_session *s,
                         const struct ps_msg_l_barrier *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_rank *r = &j->local[s->local];
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);

    op->barrier = true;
    op->round = m->number;
    if (m->number <= j->barriers_open && m->number <= r->barriers + 1 &&
        m->number > 0) {
        if (m->number > r->barriers) {
            r->barriers = m->number;
        }
        ps_agent_op_done(st, op, m->number, 0, "");
        return;
    }
    if (m->number == 0 || m->number > r->barriers + 1 ||
        (m->number == r->barriers + 1 && r->barriers > j->barriers_open)) {
        ps_agent_op_done(st, op, 0, PS_E_INVAL,
                         "barriers are entered one after the other");
        return;
    }
    r->barriers = m->number;
    ps_list_push_back(&j->barriers, &op->node);
    ps_agent_job_enter(st, j);
}

/* What the scheduler is to hear, and what it says is the end of `op`. Kept
 * until then: a scheduler that is away hears it when it is back. */
static void declare(struct ps_agent_step *st, struct ps_agent_session *s,
                    struct ps_agent_op *op, const struct ps_msg *m)
{
    struct ps_msg *copy = ps_msg_dup(m);
    struct ps_refusal why;
    int rc = ps_account_charge(&s->account, PS_COST_QUERIES, 1, &why);

    if (rc == 0) {
        rc = ps_account_charge(&s->account, PS_COST_MEMORY, ps_alloc_size(copy),
                               &why);
        if (rc != 0) {
            ps_account_refund(&s->account, PS_COST_QUERIES, 1);
        }
    }
    if (rc != 0) {
        char text[PS_TEXT_MAX + 1];
        struct ps_str t;

        ps_msg_free(copy);
        ps_str_init(&t, text, sizeof(text));
        ps_refusal_text(&why, &t);
        ps_agent_op_done(st, op, 0, rc, text);
        return;
    }
    op->message = copy;
    ps_list_push_back(&s->job->optimizers, &op->node);
    ps_agent_up_tell(st, m);
}

static void took_optimizer(struct ps_agent_step *st, struct ps_agent_session *s,
                           const struct ps_msg_l_optimizer *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_OPTIMIZER_SET};

    if (j->num_servers == 0) {
        ps_agent_op_done(st, op, 0, PS_E_UNSUPPORTED,
                         "an optimizer runs on servers: start the job with "
                         "at least one");
        return;
    }
    if (j->rule != PS_RULE_NONE) {
        char text[PS_TEXT_MAX];
        struct ps_str t;

        ps_str_init(&t, text, sizeof(text));
        ps_str_addf(&t,
                    "the job states the rule '%s' for its pushes: open it "
                    "without a rule when an optimizer is to apply them",
                    ps_rule_name(j->rule));
        ps_agent_op_done(st, op, 0, PS_E_INVAL, text);
        return;
    }
    op->round = ++st->a->next_request;
    set.optimizer_set.gen = j->gen;
    set.optimizer_set.request = op->round;
    set.optimizer_set.name = m->name;
    set.optimizer_set.params = m->params;
    set.optimizer_set.params_count = m->params_count;
    set.optimizer_set.tunings = m->tunings;
    set.optimizer_set.tunings_count = m->tunings_count;
    declare(st, s, op, &set);
}

static void took_change(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_change *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_OPTIMIZER_CHANGE};

    if (j->num_servers == 0) {
        ps_agent_op_done(st, op, 0, PS_E_UNSUPPORTED,
                         "an optimizer runs on servers, and the job has none");
        return;
    }
    op->round = ++st->a->next_request;
    set.optimizer_change.gen = j->gen;
    set.optimizer_change.request = op->round;
    set.optimizer_change.name = m->name;
    set.optimizer_change.value = m->value;
    set.optimizer_change.round = m->round;
    declare(st, s, op, &set);
}

static void took_compression(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_compression *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_COMPRESSION_SET};

    if (j->mode != PS_MODE_SYNC) {
        ps_agent_op_done(st, op, 0, PS_E_UNSUPPORTED,
                         "gradients travel as codes in rounds alone, and an "
                         "async or ssp job has none");
        return;
    }
    if (j->num_servers == 0) {
        ps_agent_op_done(st, op, 0, PS_E_UNSUPPORTED,
                         "gradients are compressed on their way to servers: "
                         "start the job with at least one");
        return;
    }
    op->round = ++st->a->next_request;
    set.compression_set.gen = j->gen;
    set.compression_set.request = op->round;
    set.compression_set.name = m->name;
    set.compression_set.params = m->params;
    set.compression_set.params_count = m->params_count;
    declare(st, s, op, &set);
}

/* ----------------------------------------------------------------- messages */

/* Where the message begins an operation: its number. */
static const uint64_t *op_of(const struct ps_msg *m)
{
    switch (m->code) {
    case PS_MSG_L_OP:
        return m->l_op.op != PS_OP_MORE ? &m->l_op.op_id : NULL;
    case PS_MSG_L_BARRIER:
        return &m->l_barrier.op_id;
    case PS_MSG_L_OPTIMIZER:
        return &m->l_optimizer.op_id;
    case PS_MSG_L_CHANGE:
        return &m->l_change.op_id;
    case PS_MSG_L_STATE:
        return &m->l_state.op_id;
    case PS_MSG_L_COMPRESSION:
        return &m->l_compression.op_id;
    default:
        return NULL;
    }
}

/* One more operation of this session, and of its user? Else it is refused. */
static bool has_room(struct ps_agent_step *st, struct ps_agent_session *s,
                     uint64_t op_id)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_refusal why;
    struct ps_str t;

    if (s->op_count >= PS_OPS_MAX) {
        ps_agent_session_end(st, s, PS_E_FULL,
                             "too many operations that are not done");
        return false;
    }
    if (ps_account_room(&s->account, PS_COST_OPERATIONS) > 0 ||
        ps_account_charge(&s->account, PS_COST_OPERATIONS, 1, &why) == 0) {
        return true;
    }
    ps_str_init(&t, text, sizeof(text));
    ps_refusal_text(&why, &t);
    ps_effects_tell(
        st->fx, s->conn,
        &(struct ps_msg){
            .code = PS_MSG_L_DONE,
            .l_done = {.op_id = op_id, .error = PS_E_FULL, .text = text}});
    return false;
}

static void active_msg(struct ps_agent_step *st, struct ps_agent_session *s,
                       const struct ps_msg *m)
{
    const uint64_t *op_id = op_of(m);

    if (op_id != NULL && !has_room(st, s, *op_id)) {
        return;
    }
    switch (m->code) {
    case PS_MSG_L_KEY:
        ps_agent_key_ask(st, s, &m->l_key);
        break;
    case PS_MSG_L_OP:
        ps_agent_round_take(st, s, &m->l_op);
        break;
    case PS_MSG_L_BARRIER:
        took_barrier(st, s, &m->l_barrier);
        break;
    case PS_MSG_L_STATE:
        ps_agent_state_take(st, s, &m->l_state);
        break;
    case PS_MSG_L_CHANGE:
        took_change(st, s, &m->l_change);
        break;
    case PS_MSG_L_COMPRESSION:
        took_compression(st, s, &m->l_compression);
        break;
    case PS_MSG_L_OPTIMIZER:
        took_optimizer(st, s, &m->l_optimizer);
        break;
    case PS_MSG_L_WHY:
        ps_agent_why_ask(st, s, m->l_why.op_id);
        break;
    default:
        break;
    }
}

/* Who leaves amid an array that it gives leaves its job without that. */
static bool gives_half(const struct ps_agent_session *s)
{
    PS_LIST_EACH(n, &s->ops)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    mine);

        if (op->there < op->array.len) {
            return true;
        }
    }
    return false;
}

void ps_agent_session_msg(struct ps_agent_step *st, struct ps_agent_session *s,
                          const struct ps_msg *m)
{
    struct ps_buf *b;

    if (s->ended) {
        return;
    }
    switch (m->code) {
    case PS_MSG_L_HELLO:
        took_hello(st, s, m);
        return;
    case PS_MSG_L_REGION:
    case PS_MSG_L_KEEP:
        return; /* PS_EV_REGION, PS_EV_KEEP bring the memory. */
    case PS_MSG_L_REGION_GONE:
        b = ps_map_take(s->regions, m->l_region_gone.region);
        ps_buf_unref(b);
        forget_unmapped(s, ps_map_take(s->unmapped, m->l_region_gone.region));
        return;
    case PS_MSG_L_BYE:
        s->bye = !gives_half(s);
        s->ended = true;
        ps_effects_hangup(st->fx, s->conn);
        return;
    default:
        break;
    }
    if (s->state != PS_AGENT_SESSION_ACTIVE) {
        ps_agent_session_end(st, s, PS_E_PROTO,
                             "no operation before l_welcome");
        return;
    }
    active_msg(st, s, m);
}

void ps_agent_session_ops(struct ps_agent_step *st, struct ps_agent_session *s,
                          const struct ps_msg_l_op *op, uint32_t count)
{
    struct ps_msg m = {.code = PS_MSG_L_OP};

    if (s->state == PS_AGENT_SESSION_ACTIVE && !s->ended) {
        ps_agent_soon_ops(st->a, s, op, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        m.l_op = op[i];
        ps_agent_session_msg(st, s, &m);
    }
}
