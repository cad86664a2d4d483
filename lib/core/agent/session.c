/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: one per training process, from l_hello to l_detach or to the end of
 * its socket, which counts as the death of the process. A contribution outlives
 * its session: its memory is referenced, because the round may need it. Also
 * forwards barriers and optimizer and compression requests to the scheduler. */
#include "core/agent/inner.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "base/str.h"

#include <assert.h>
#include <string.h>

/* Regions unmapped at a time (2 us each), and the interval between batches. */
#define UNMAP_COUNT    32u
#define UNMAP_INTERVAL PS_MILLIS(1)

/* ------------------------------------------------------------------ states */

static const char *const state_names[] = {
    [PS_AGENT_SESSION_NEW] = "NEW",
    [PS_AGENT_SESSION_OPENING] = "OPENING",
    [PS_AGENT_SESSION_ACTIVE] = "ACTIVE",
};

static const uint32_t successors[] = {
    [PS_AGENT_SESSION_NEW] = PS_STATE_BIT(PS_AGENT_SESSION_OPENING),
    /* The job runs. */
    [PS_AGENT_SESSION_OPENING] = PS_STATE_BIT(PS_AGENT_SESSION_ACTIVE),
    [PS_AGENT_SESSION_ACTIVE] = 0,
};

/* A training process, at its agent. */
static const struct ps_state_table session_states = {
    .name = "session",
    .states = state_names,
    .count = sizeof(state_names) / sizeof(state_names[0]),
    .allowed = successors,
};

static void session_set_state(struct ps_agent_session *s,
                              enum ps_agent_session_state to)
{
    ps_state_change(&session_states, &s->state, (uint8_t)to);
}

/* Frees the operations of a worker that is gone. Its contributions stay in
 * their rounds without a session. */
static void drop_session_ops(struct ps_agent_session *s)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&s->ops)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                              session_node);
        struct ps_agent_key *k = op->key;

        if (k != NULL && (k->contribution[op->local_rank] == op ||
                          ps_agent_async_push_survives(op))) {
            ps_agent_op_detach(op);
            continue;
        }
        if (ps_list_linked(&op->node)) {
            ps_list_remove(&op->node);
        }
        ps_agent_op_free(op);
    }
}

/* -------------------------------------------------------------- open, close */

static void reject_conn(struct ps_agent_step *st, ps_conn_id conn,
                        const char *text)
{
    ps_effects_send_msg(
        st->fx, conn,
        &(struct ps_msg){.code = PS_MSG_REJECT,
                         .reject = {.error = PS_E_FULL, .text = text}});
    ps_effects_close(st->fx, conn);
}

void ps_agent_session_on_open(struct ps_agent_step *st,
                              const struct ps_event *ev)
{
    struct ps_agent *a = st->a;
    struct ps_agent_session *s;
    struct ps_refusal why;

    if (a->draining) {
        reject_conn(st, ev->conn, "this agent is ending");
        return;
    }
    s = ps_calloc(1, sizeof(*s));
    s->conn = ev->conn;
    s->uid = ev->open.uid;
    s->worker = ++a->last_worker;
    if (ps_agent_budget_open_session(a, s, ev->open.pid, &why) != 0) {
        char text[PS_TEXT_MAX + 1];
        struct ps_str t;

        ps_str_init(&t, text, sizeof(text));
        ps_refusal_text(&why, &t);
        reject_conn(st, ev->conn, text);
        ps_free(s);
        return;
    }
    s->regions = ps_map_new();
    s->unmapped = ps_map_new();
    s->announced_arenas = ps_map_new();
    s->known_segments = ps_map_new();
    ps_list_init(&s->ops);
    ps_list_push_back(&a->sessions, &s->node);
    ps_map_put(a->sessions_by_conn, s->conn, s);
}

/* Removes the session from the waiters of all opening keys. */
static void drop_key_waiters(struct ps_agent_session *s)
{
    if (s->job == NULL) {
        return;
    }
    PS_LIST_EACH(n, &s->job->opening_keys)
    {
        struct ps_agent_key *k = PS_CONTAINER(n, struct ps_agent_key,
                                              opening_node);
        struct ps_list_node *m = ps_list_first(&k->waiters);

        while (m != NULL) {
            struct ps_list_node *next = ps_list_next(&k->waiters, m);
            struct ps_agent_key_waiter *asker = PS_CONTAINER(
                m, struct ps_agent_key_waiter, node);

            if (asker->session == s) {
                ps_list_remove(m);
                ps_agent_key_waiter_free(asker);
            }
            m = next;
        }
    }
}

void ps_agent_unmap_regions(struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    struct ps_buf *b;
    uint32_t count = 0;

    while (count < UNMAP_COUNT &&
           (b = ps_map_next(a->unmapping_regions, &c)) != NULL) {
        ps_map_remove(a->unmapping_regions, c.key);
        ps_buf_unref(b);
        count++;
    }
    a->next_unmap_at = ps_map_count(a->unmapping_regions) == 0
                           ? PS_TIME_NEVER
                           : ps_time_add(a->now, UNMAP_INTERVAL);
}

static void drop_unmapped(struct ps_agent_session *s, char *why)
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

    drop_session_ops(s);
    drop_key_waiters(s);
    ps_agent_diagnose_drop_session(a, s);
    a->deferred_session_count -= s->is_deferred;
    while ((b = ps_map_next(s->regions, &c)) != NULL) {
        ps_map_put(a->unmapping_regions, ++a->last_unmapping, b);
    }
    ps_agent_unmap_regions(a);
    while ((why = ps_map_next(s->unmapped, &u)) != NULL) {
        drop_unmapped(s, why);
    }
    ps_map_free(s->regions);
    ps_map_free(s->unmapped);
    ps_map_free(s->announced_arenas);
    ps_map_free(s->known_segments);
    ps_agent_budget_close_session(s);
    ps_list_remove(&s->node);
    ps_map_remove(a->sessions_by_conn, s->conn);
    ps_msg_free(s->hello);
    ps_free(s);
}

static void send_worker_gone(struct ps_agent_step *st,
                             const struct ps_agent_departed_worker *d)
{
    ps_agent_uplink_send_msg(
        st,
        &(struct ps_msg){.code = PS_MSG_WORKER_GONE,
                         .worker_gone = {.gen = d->gen,
                                         .worker = d->worker,
                                         .clean = d->clean_exit,
                                         .rounds_unknown = d->rounds_unknown,
                                         .text = ""}});
}

static void record_departure(struct ps_agent_step *st,
                             const struct ps_agent_session *s)
{
    struct ps_agent *a = st->a;
    struct ps_agent_departed_worker d = {
        .gen = s->gen,
        .worker = s->worker,
        .clean_exit = s->clean_exit,
        .rounds_unknown = !s->clean_exit && s->unreported_keys > 0};

    if (a->departed_workers == NULL) {
        a->departed_workers = ps_calloc(DEPARTED_WORKERS_MAX,
                                        sizeof(*a->departed_workers));
    }
    if (a->departed_worker_count == DEPARTED_WORKERS_MAX) {
        memmove(a->departed_workers, a->departed_workers + 1,
                (DEPARTED_WORKERS_MAX - 1) * sizeof(*a->departed_workers));
        a->departed_worker_count--;
    }
    a->departed_workers[a->departed_worker_count++] = d;
    send_worker_gone(st, &d);
}

void ps_agent_departed_resend(struct ps_agent_step *st)
{
    for (uint32_t i = 0; i < st->a->departed_worker_count; i++) {
        send_worker_gone(st, &st->a->departed_workers[i]);
    }
}

void ps_agent_departed_drop_unknown(struct ps_agent *a)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < a->departed_worker_count; i++) {
        if (ps_agent_job_find(a, a->departed_workers[i].gen) != NULL) {
            a->departed_workers[kept++] = a->departed_workers[i];
        }
    }
    a->departed_worker_count = kept;
}

void ps_agent_departed_drop_job(struct ps_agent *a, uint64_t gen)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < a->departed_worker_count; i++) {
        if (a->departed_workers[i].gen != gen) {
            a->departed_workers[kept++] = a->departed_workers[i];
        }
    }
    a->departed_worker_count = kept;
}

void ps_agent_session_on_closed(struct ps_agent_step *st,
                                struct ps_agent_session *s)
{
    struct ps_agent_job *j = s->job;

    if (s->hello != NULL && (j == NULL || j->phase != PS_JOB_PHASE_ENDED)) {
        record_departure(st, s);
    }
    if (j != NULL) {
        if (!s->clean_exit && j->phase == PS_JOB_PHASE_RUNNING) {
            ps_effects_log_for(st->fx, &j->account, PS_LOG_NOTICE,
                               "job %s lost rank %u: its process ended",
                               j->name, j->local_ranks[s->local_rank].rank);
        }
        if (j->local_ranks[s->local_rank].session == s) {
            j->local_ranks[s->local_rank].session = NULL;
        }
        j->session_count--;
    }
    ps_agent_session_free(st->a, s);
    if (j != NULL) {
        ps_agent_job_free_if_unused(st, j);
    }
}

/* Sends the error to the worker and closes the connection. The session is freed
 * when the socket is closed. */
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_msg m = {.code = PS_MSG_L_ERROR,
                       .l_error = {.error = error, .text = text}};
    struct ps_str t;
    va_list ap;

    if (s->is_closing) {
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
    ps_effects_send_msg(st->fx, s->conn, &m);
    ps_effects_close(st->fx, s->conn);
    s->is_closing = true;
}

void ps_agent_session_end_quota(struct ps_agent_step *st,
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

void ps_agent_session_send_open(struct ps_agent_step *st,
                                struct ps_agent_session *s)
{
    const struct ps_msg_l_hello *h = &s->hello->l_hello;

    ps_agent_uplink_send_msg(
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
                                      .reattach = h->gen != 0,
                                      .reoffer = s->reoffer}});
}

static void on_hello(struct ps_agent_step *st, struct ps_agent_session *s,
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
    session_set_state(s, PS_AGENT_SESSION_OPENING);
    s->gen = m->l_hello.gen;
    s->unreported_keys = s->gen == 0 ? 0 : m->l_hello.reattach_keys;
    if (st->a->departed_worker_count > 0 &&
        ps_link_unacked(st->a->uplink.dialer.link) > 0) {
        s->is_deferred = true;
        st->a->deferred_session_count++;
        return;
    }
    ps_agent_session_send_open(st, s);
}

void ps_agent_session_send_deferred(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;

    if (a->deferred_session_count == 0 ||
        ps_link_unacked(a->uplink.dialer.link) > 0) {
        return;
    }
    PS_LIST_EACH(n, &a->sessions)
    {
        struct ps_agent_session *s = PS_CONTAINER(n, struct ps_agent_session,
                                                  node);

        if (s->is_deferred) {
            s->is_deferred = false;
            a->deferred_session_count--;
            ps_agent_session_send_open(st, s);
        }
    }
}

void ps_agent_session_send_welcome(struct ps_agent_step *st,
                                   struct ps_agent_session *s)
{
    const struct ps_agent_job *j = s->job;
    const struct ps_agent_rank *r = &j->local_ranks[s->local_rank];
    uint64_t passed = r->entered_barriers < j->completed_barriers
                          ? r->entered_barriers
                          : j->completed_barriers;

    session_set_state(s, PS_AGENT_SESSION_ACTIVE);
    ps_effects_send_msg(
        st->fx, s->conn,
        &(struct ps_msg){.code = PS_MSG_L_WELCOME,
                         .l_welcome = {.gen = j->gen,
                                       .rank = r->rank,
                                       .num_workers = j->num_workers,
                                       .local_rank = s->local_rank,
                                       .local_size = j->local_rank_count,
                                       .num_servers = j->num_servers,
                                       .completed_barriers = passed,
                                       .ring_layout = st->a->opt.ring_layout}});
}

/* ------------------------------------------------------------------- memory */

/* Returns true if the session may register a region of this number; otherwise
 * ends the session. */
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

void ps_agent_session_on_region(struct ps_agent_step *st,
                                struct ps_agent_session *s, uint32_t region,
                                struct ps_buf *buf)
{
    struct ps_refusal why;
    struct ps_buf *held;

    if (!may_register(st, s, region)) {
        return;
    }
    if (ps_agent_budget_charge_mapping(s, buf, &held, &why) != 0) {
        ps_agent_session_end_quota(st, s, &why);
        return;
    }
    ps_map_put(s->regions, region, held);
}

void ps_agent_session_on_unmapped(struct ps_agent_step *st,
                                  struct ps_agent_session *s, uint32_t region,
                                  int rc, const char *why)
{
    struct ps_refusal refusal;

    if (s->is_closing) {
        return;
    }
    ps_effects_log_for(st->fx, &s->account, PS_LOG_WARNING,
                       "memory of worker %llu: %s",
                       (unsigned long long)s->worker, why);
    if (rc != PS_E_NOMEM || region == 0) {
        ps_agent_session_end(st, s, rc, "%s", why);
        return;
    }
    if (!may_register(st, s, region)) {
        return;
    }
    if (ps_account_charge(&s->account, PS_COST_REGIONS, 1, &refusal) != 0) {
        ps_agent_session_end_quota(st, s, &refusal);
        return;
    }
    ps_map_put(s->unmapped, region, ps_strdup(why));
}

int ps_agent_session_on_missing_region(const struct ps_agent_session *s,
                                       uint32_t region, const char **ret_why)
{
    const char *why = ps_map_get(s->unmapped, region);

    *ret_why = why != NULL ? why : "it was never registered";
    return why != NULL ? PS_E_NOMEM : PS_E_INVAL;
}

/* ------------------------------------------ barrier, optimizer, compression */

static void on_barrier(struct ps_agent_step *st, struct ps_agent_session *s,
                       const struct ps_msg_l_barrier *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_rank *r = &j->local_ranks[s->local_rank];
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);

    op->is_barrier = true;
    op->round = m->number;
    if (m->number <= j->completed_barriers &&
        m->number <= r->entered_barriers + 1 && m->number > 0) {
        if (m->number > r->entered_barriers) {
            r->entered_barriers = m->number;
        }
        ps_agent_op_end(st, op, m->number, 0, "");
        return;
    }
    if (m->number == 0 || m->number > r->entered_barriers + 1 ||
        (m->number == r->entered_barriers + 1 &&
         r->entered_barriers > j->completed_barriers)) {
        ps_agent_op_end(st, op, 0, PS_E_INVAL,
                        "barriers are entered one after the other");
        return;
    }
    r->entered_barriers = m->number;
    ps_list_push_back(&j->barrier_ops, &op->node);
    ps_agent_job_send_barriers(st, j);
}

/* Sends a request to the scheduler, whose reply ends `op`. A copy is kept until
 * then and resent to a scheduler that comes back. */
static void send_sched_request(struct ps_agent_step *st,
                               struct ps_agent_session *s,
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
        ps_agent_op_end(st, op, 0, rc, text);
        return;
    }
    op->sched_request = copy;
    ps_list_push_back(&s->job->sched_ops, &op->node);
    ps_agent_uplink_send_msg(st, m);
}

static void on_optimizer(struct ps_agent_step *st, struct ps_agent_session *s,
                         const struct ps_msg_l_optimizer *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_OPTIMIZER_SET};

    if (j->num_servers == 0) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
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
        ps_agent_op_end(st, op, 0, PS_E_INVAL, text);
        return;
    }
    op->round = ++st->a->last_request;
    set.optimizer_set.gen = j->gen;
    set.optimizer_set.request = op->round;
    set.optimizer_set.name = m->name;
    set.optimizer_set.params = m->params;
    set.optimizer_set.params_count = m->params_count;
    set.optimizer_set.tunings = m->tunings;
    set.optimizer_set.tunings_count = m->tunings_count;
    send_sched_request(st, s, op, &set);
}

static void on_optimizer_change(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_msg_l_optimizer_change *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_OPTIMIZER_CHANGE};

    if (j->num_servers == 0) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
                        "an optimizer runs on servers, and the job has none");
        return;
    }
    op->round = ++st->a->last_request;
    set.optimizer_change.gen = j->gen;
    set.optimizer_change.request = op->round;
    set.optimizer_change.name = m->name;
    set.optimizer_change.value = m->value;
    set.optimizer_change.round = m->round;
    send_sched_request(st, s, op, &set);
}

static void on_compression(struct ps_agent_step *st, struct ps_agent_session *s,
                           const struct ps_msg_l_compression *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_msg set = {.code = PS_MSG_COMPRESSION_SET};

    if (j->mode != PS_MODE_SYNC) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
                        "gradients travel as codes in rounds alone, and an "
                        "async or ssp job has none");
        return;
    }
    if (j->num_servers == 0) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
                        "gradients are compressed on their way to servers: "
                        "start the job with at least one");
        return;
    }
    op->round = ++st->a->last_request;
    set.compression_set.gen = j->gen;
    set.compression_set.request = op->round;
    set.compression_set.name = m->name;
    set.compression_set.params = m->params;
    set.compression_set.params_count = m->params_count;
    send_sched_request(st, s, op, &set);
}

/* ----------------------------------------------------------------- messages */

/* Returns the id of the operation that the message begins; NULL: none. */
static const uint64_t *msg_op_id(const struct ps_msg *m)
{
    switch (m->code) {
    case PS_MSG_L_OP:
        return m->l_op.op != PS_OP_PROGRESS ? &m->l_op.op_id : NULL;
    case PS_MSG_L_BARRIER:
        return &m->l_barrier.op_id;
    case PS_MSG_L_OPTIMIZER:
        return &m->l_optimizer.op_id;
    case PS_MSG_L_OPTIMIZER_CHANGE:
        return &m->l_optimizer_change.op_id;
    case PS_MSG_L_OPTIMIZER_STATE:
        return &m->l_optimizer_state.op_id;
    case PS_MSG_L_COMPRESSION:
        return &m->l_compression.op_id;
    default:
        return NULL;
    }
}

/* Returns true if the limits of the session, its job and its user allow one
 * more operation; otherwise refuses the operation or ends the session. */
static bool check_op_quota(struct ps_agent_step *st, struct ps_agent_session *s,
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
    if (ps_account_check(&s->account, PS_COST_OPERATIONS, 1, &why) == 0) {
        return true;
    }
    ps_str_init(&t, text, sizeof(text));
    ps_refusal_text(&why, &t);
    ps_effects_send_msg(
        st->fx, s->conn,
        &(struct ps_msg){
            .code = PS_MSG_L_DONE,
            .l_done = {.op_id = op_id, .error = PS_E_FULL, .text = text}});
    return false;
}

static void on_active_msg(struct ps_agent_step *st, struct ps_agent_session *s,
                          const struct ps_msg *m)
{
    const uint64_t *op_id = msg_op_id(m);

    if (op_id != NULL && !check_op_quota(st, s, *op_id)) {
        return;
    }
    switch (m->code) {
    case PS_MSG_L_KEY:
        ps_agent_key_on_declare(st, s, &m->l_key);
        break;
    case PS_MSG_L_OP:
        ps_agent_op_accept(st, s, &m->l_op);
        break;
    case PS_MSG_L_BARRIER:
        on_barrier(st, s, &m->l_barrier);
        break;
    case PS_MSG_L_OPTIMIZER_STATE:
        ps_agent_opt_state_accept_op(st, s, &m->l_optimizer_state);
        break;
    case PS_MSG_L_OPTIMIZER_CHANGE:
        on_optimizer_change(st, s, &m->l_optimizer_change);
        break;
    case PS_MSG_L_COMPRESSION:
        on_compression(st, s, &m->l_compression);
        break;
    case PS_MSG_L_OPTIMIZER:
        on_optimizer(st, s, &m->l_optimizer);
        break;
    case PS_MSG_L_STALL_QUERY:
        ps_agent_diagnose_op(st, s, m->l_stall_query.op_id);
        break;
    default:
        break;
    }
}

/* Returns true while the worker is copying an array that it contributes. A
 * worker that detaches then counts as crashed, not as left. */
static bool is_streaming(const struct ps_agent_session *s)
{
    PS_LIST_EACH(n, &s->ops)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    session_node);

        if (op->bytes_ready < op->array.len) {
            return true;
        }
    }
    return false;
}

void ps_agent_session_on_msg(struct ps_agent_step *st,
                             struct ps_agent_session *s, const struct ps_msg *m)
{
    struct ps_buf *b;

    if (s->is_closing) {
        return;
    }
    switch (m->code) {
    case PS_MSG_L_HELLO:
        on_hello(st, s, m);
        return;
    case PS_MSG_L_REGION:
    case PS_MSG_L_RESIDUAL_SEGMENT:
        return; /* PS_EV_REGION and PS_EV_RESIDUAL_SEGMENT carry the memory. */
    case PS_MSG_L_REGION_GONE:
        b = ps_map_remove(s->regions, m->l_region_gone.region);
        ps_buf_unref(b);
        drop_unmapped(s, ps_map_remove(s->unmapped, m->l_region_gone.region));
        return;
    case PS_MSG_L_DETACH:
        s->clean_exit = !is_streaming(s);
        s->is_closing = true;
        ps_effects_close(st->fx, s->conn);
        return;
    default:
        break;
    }
    if (s->state != PS_AGENT_SESSION_ACTIVE) {
        ps_agent_session_end(st, s, PS_E_PROTO,
                             "no operation before l_welcome");
        return;
    }
    on_active_msg(st, s, m);
}

void ps_agent_session_on_ops(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_op *op, uint32_t count)
{
    struct ps_msg m = {.code = PS_MSG_L_OP};

    if (s->state == PS_AGENT_SESSION_ACTIVE && !s->is_closing) {
        ps_agent_prefetch_ops(st->a, s, op, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        m.l_op = op[i];
        ps_agent_session_on_msg(st, s, &m);
    }
}
