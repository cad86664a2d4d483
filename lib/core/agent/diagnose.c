/* SPDX-License-Identifier: Apache-2.0 */
/* Stall queries: tell a worker why an operation waits. The scheduler collects
 * missing ranks and unheard servers from all agents of the job; where it is not
 * connected, the agent answers from its own state. */
#include "core/agent/diagnose.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/agent/session.h"
#include "core/agent/waits.h"

#include <string.h>

/* A stall query: sent to the scheduler and not answered, or waiting because
 * the user has PS_QUERIES_SENT_MAX in flight. */
struct ps_agent_stall_query {
    struct ps_list_node node; /* In session->stall_queries. */
    uint64_t request;
    uint64_t gen;
    struct ps_agent_session *session; /* NULL: gone; the reply is dropped. */
    struct ps_agent_user *user;       /* A reference. */
    bool is_sent;
    uint64_t op_id;
    ps_time asked_at;
    uint32_t key;
    uint64_t round;
    bool is_barrier;
    char local_text[256]; /* The operation, and how long it has waited. */
    char awaited[256];    /* Servers whose reply it waits for. */
};

/* Time of the scheduler to answer. It asks other members for up to a second,
 * and the worker waits for five. */
#define ANSWER_TIMEOUT PS_MILLIS(2500)

static void send_stall_reply(struct ps_agent_step *st, ps_conn_id conn,
                             uint64_t op_id, const char *text)
{
    ps_effects_send_msg(
        st->fx, conn,
        &(struct ps_msg){.code = PS_MSG_L_STALL_REPLY,
                         .l_stall_reply = {.op_id = op_id, .text = text}});
}

static void describe_op(struct ps_str *t, const struct ps_agent_op *op,
                        ps_time now)
{
    double waited = (double)(now - op->started_at) / 1e9;

    if (op->is_barrier) {
        ps_str_addf(t, "barrier %llu", (unsigned long long)op->round);
    } else if (op->key == NULL) {
        ps_str_add(t, "the optimizer's declaration");
    } else if (op->kind == PS_OP_INIT) {
        ps_str_addf(t, "init of '%s'", op->key->name);
    } else {
        ps_str_addf(t, "%s of '%s' round %llu", ps_op_name(op->kind),
                    op->key->name, (unsigned long long)op->round);
    }
    ps_str_addf(t, " has waited %.1f s", waited);
}

/* Silence after which a server is reported as unheard. Agent and server ping
 * each other after half a second while either waits for the other. */
#define UNHEARD       PS_SECONDS(1)
/* Server names in one text; further servers are only counted. */
#define SERVERS_NAMED 4u

/* Returns true when a partition of the key is queued for the server, in flight
 * to it, or requested from it. */
static bool is_awaited(const struct ps_agent_key *k,
                       const struct ps_agent_server *s)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        const struct ps_agent_part *p = &k->parts[i];

        if (p->owner_node == s->node && (p->state != PS_AGENT_PART_IDLE ||
                                         p->requested_version != NO_VERSION)) {
            return true;
        }
    }
    return false;
}

static const char *server_name_of(const struct ps_agent_server *s)
{
    return *s->name == '\0' ? "(unknown)" : s->name;
}

/* Appends the awaited servers: "server ps0, ps1 and 3 more". */
static void add_awaited(struct ps_str *t, const struct ps_agent_key *k)
{
    uint32_t count = 0;

    PS_MAP_EACH(const struct ps_agent_send_queue, f, k->job->send_queues)
    {
        if (is_awaited(k, f->server) && ++count <= SERVERS_NAMED) {
            ps_str_addf(t, "%s%s", count == 1 ? "server " : ", ",
                        server_name_of(f->server));
        }
    }
    if (count > SERVERS_NAMED) {
        ps_str_addf(t, " and %u more", count - SERVERS_NAMED);
    }
}

/* Appends the servers that the key waits for and that are silent. */
static void report_unheard(const struct ps_agent_step *st,
                           const struct ps_agent_key *k, struct ps_str *t)
{
    const char *agent = st->a->opt.name;

    PS_MAP_EACH(const struct ps_agent_send_queue, f, k->job->send_queues)
    {
        const struct ps_agent_server *s = f->server;
        const struct ps_dialer *caller = &s->dialer;

        if (!is_awaited(k, s) ||
            (ps_dialer_is_connected(caller) &&
             st->now < ps_time_add(caller->last_recv_at, UNHEARD))) {
            continue;
        }
        if (t->len > 0) {
            ps_str_add(t, "; ");
        }
        if (s->removed) {
            ps_str_addf(t, "server %s, which is gone, or another in its place",
                        server_name_of(s));
        } else if (ps_dialer_is_connected(caller)) {
            ps_str_addf(t,
                        "a message from server %s, which agent %s last heard "
                        "%.1f s ago",
                        server_name_of(s), agent,
                        (double)(st->now - caller->last_recv_at) / 1e9);
        } else {
            ps_str_addf(t, "a connection of agent %s to server %s at %s", agent,
                        server_name_of(s), caller->address);
            if (caller->last_dial_at != 0) {
                ps_str_addf(t, " (last tried %.1f s ago)",
                            (double)(st->now - caller->last_dial_at) / 1e9);
            }
        }
    }
}

/* Operations searched that count as one more query at the rate limit, because
 * such a search costs as much as an answer. */
#define SEARCH_STEP 256u

static const struct ps_agent_op *find_session_op(struct ps_agent_session *s,
                                                 uint64_t op_id)
{
    uint32_t passed = 0;

    PS_LIST_EACH_OF(const struct ps_agent_op, op, session_node, &s->ops)
    {
        if (op->id == op_id) {
            return op;
        }
        s->query_rate_count += ++passed % SEARCH_STEP == 0;
    }
    return NULL;
}

static void send_stall_query(struct ps_agent_step *st,
                             struct ps_agent_stall_query *q)
{
    if (!q->is_sent) {
        q->is_sent = true;
        q->user->stall_queries_sent++;
    }
    ps_agent_uplink_send_msg(
        st, &(struct ps_msg){.code = PS_MSG_STALL_QUERY,
                             .stall_query = {.gen = q->gen,
                                             .request = q->request,
                                             .key = q->key,
                                             .round = q->round,
                                             .barrier = q->is_barrier}});
}

/* Sends the oldest unsent queries, up to PS_QUERIES_SENT_MAX of each user. */
static void send_next_queries(struct ps_agent_step *st)
{
    PS_MAP_EACH(struct ps_agent_stall_query, q, st->a->stall_queries)
    {
        if (!q->is_sent && q->user->stall_queries_sent < PS_QUERIES_SENT_MAX) {
            send_stall_query(st, q);
        }
    }
}

/* Detaches the query from its session, which has an answer or has ended. */
static void detach_query(struct ps_agent_stall_query *q)
{
    ps_list_remove(&q->node);
    ps_account_refund(&q->session->account, PS_COST_QUERIES, 1);
    q->session = NULL;
}

static void query_free(struct ps_agent *a, struct ps_agent_stall_query *q)
{
    if (q->session != NULL) {
        detach_query(q);
    }
    q->user->stall_queries_sent -= q->is_sent;
    ps_agent_user_put(q->user);
    ps_map_remove(a->stall_queries, q->request);
    ps_free(q);
}

static bool has_query_of_op(const struct ps_agent_session *s, uint64_t op_id)
{
    PS_LIST_EACH_OF(const struct ps_agent_stall_query, q, node,
                    &s->stall_queries)
    {
        if (q->op_id == op_id) {
            return true;
        }
    }
    return false;
}

/* Counts a query at the session's rate limit. False: the limit is exceeded and
 * the session has been ended. */
static bool check_query_rate(struct ps_agent_step *st,
                             struct ps_agent_session *s)
{
    if (ps_time_add(s->query_rate_since, PS_SECONDS(1)) <= st->now) {
        s->query_rate_since = st->now;
        s->query_rate_count = 0;
    }
    if (++s->query_rate_count <= PS_QUERIES_RATE_MAX) {
        return true;
    }
    ps_agent_session_end(st, s, PS_E_FULL,
                         "more than %u stall queries in a second",
                         PS_QUERIES_RATE_MAX);
    return false;
}

/* Round, or barrier, that all ranks must reach before the operation can end. */
static uint64_t awaited_round(const struct ps_agent_op *op)
{
    return op->key == NULL || op->key->kind->awaited_round == NULL
               ? op->round
               : op->key->kind->awaited_round(op);
}

/* Returns true when the agent answers itself: the scheduler is not connected,
 * or the operation does not wait for ranks of other nodes. */
static bool is_answered_here(const struct ps_agent_step *st,
                             const struct ps_agent_op *op)
{
    return (op->key == NULL && !op->is_barrier) ||
           (op->key != NULL && !op->key->kind->has_rounds &&
            awaited_round(op) == 0) ||
           !ps_uplink_is_connected(&st->a->uplink);
}

static void add_uplink_failure(const struct ps_uplink *up, struct ps_str *text)
{
    if (up->failure[0] != '\0') {
        ps_str_addf(text, ": %s", up->failure);
    }
}

/* Answers from this agent's own state. `asked_at`: when the scheduler was asked,
 * which has not answered; PS_TIME_NEVER: it was not asked. */
static void answer_here(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_agent_op *op, ps_time asked_at)
{
    struct ps_str t = PS_STR_ROOM(640);
    struct ps_str links = PS_STR_ROOM(256);

    describe_op(&t, op, st->now);
    if (op->key != NULL) {
        report_unheard(st, op->key, &links);
    }
    if (links.data[0] != '\0') {
        ps_str_addf(&t, "; missing: %s", links.data);
    }
    if (!ps_uplink_is_connected(&st->a->uplink)) {
        ps_str_addf(&t,
                    "; the scheduler at %s is not connected and knows what "
                    "else is missing",
                    st->a->opt.sched_address);
        add_uplink_failure(&st->a->uplink, &t);
    } else if (asked_at != PS_TIME_NEVER) {
        ps_str_addf(&t,
                    "; the scheduler at %s has not answered for %.1f s and "
                    "knows what else is missing",
                    st->a->opt.sched_address,
                    (double)(st->now - asked_at) / 1e9);
    }
    send_stall_reply(st, s->conn, op->id, t.data);
}

/* A query to the scheduler; `text` describes what is awaited. NULL: there is
 * none, and the worker has its reply. */
static struct ps_agent_stall_query *query_new(struct ps_agent_step *st,
                                              struct ps_agent_session *s,
                                              uint64_t op_id,
                                              struct ps_str *text)
{
    struct ps_agent_stall_query *q;
    struct ps_refusal refusal;

    if (ps_account_charge(&s->account, PS_COST_QUERIES, 1, &refusal) != 0) {
        ps_str_add(text, "; the scheduler is not asked who is missing: ");
        ps_refusal_text(&refusal, text);
        send_stall_reply(st, s->conn, op_id, text->data);
        return NULL;
    }
    q = ps_calloc(1, sizeof(*q));
    q->request = ++st->a->last.request;
    q->gen = s->gen;
    q->session = s;
    q->user = ps_agent_user_get(st->a, s->uid);
    q->op_id = op_id;
    q->asked_at = st->now;
    st->a->due.stall_answer_at = ps_time_min(
        st->a->due.stall_answer_at, ps_time_add(st->now, ANSWER_TIMEOUT));
    ps_str_copy(q->local_text, sizeof(q->local_text), text->data);
    ps_list_push_back(&s->stall_queries, &q->node);
    ps_map_put(st->a->stall_queries, q->request, q);
    return q;
}

void ps_agent_diagnose_start(struct ps_agent_step *st,
                             struct ps_agent_session *s)
{
    if (!check_query_rate(st, s) || has_query_of_op(s, 0)) {
        return;
    }
    struct ps_str t = PS_STR_ROOM(256);

    ps_str_add(&t, "the job has not begun");
    if (s->gen == 0 || !ps_uplink_is_connected(&st->a->uplink)) {
        ps_str_addf(&t, "; the scheduler at %s does not answer",
                    st->a->opt.sched_address);
        add_uplink_failure(&st->a->uplink, &t);
        send_stall_reply(st, s->conn, 0, t.data);
    } else if (query_new(st, s, 0, &t) != NULL) {
        send_next_queries(st);
    }
}

void ps_agent_diagnose_op(struct ps_agent_step *st, struct ps_agent_session *s,
                          uint64_t op_id)
{
    const struct ps_agent_op *op;
    struct ps_agent_stall_query *q;
    struct ps_str links;

    if (!check_query_rate(st, s) || has_query_of_op(s, op_id)) {
        return; /* The open query's answer serves this one, too. */
    }
    op = find_session_op(s, op_id);
    if (op == NULL) {
        send_stall_reply(st, s->conn, op_id, "it is done, or was never begun");
        return;
    }
    if (is_answered_here(st, op)) {
        answer_here(st, s, op, PS_TIME_NEVER);
        return;
    }
    struct ps_str t = PS_STR_ROOM(640);

    describe_op(&t, op, st->now);
    q = query_new(st, s, op_id, &t);
    if (q == NULL) {
        return;
    }
    q->key = op->key == NULL ? 0 : op->key->number;
    q->round = awaited_round(op);
    q->is_barrier = op->is_barrier;
    if (op->key != NULL) {
        ps_str_init(&links, q->awaited, sizeof(q->awaited));
        add_awaited(&links, op->key);
    }
    send_next_queries(st);
}

void ps_agent_diagnose_resend(struct ps_agent_step *st)
{
    PS_MAP_EACH(struct ps_agent_stall_query, q, st->a->stall_queries)
    {
        if (q->is_sent && q->session == NULL) {
            query_free(st->a, q); /* Its session has ended. */
        } else if (q->is_sent) {
            send_stall_query(st, q);
        }
    }
    send_next_queries(st);
}

void ps_agent_diagnose_drop_session(struct ps_agent *a,
                                    struct ps_agent_session *s)
{
    PS_LIST_EACH_SAFE(struct ps_agent_stall_query, q, node, &s->stall_queries)
    {
        if (q->is_sent) {
            detach_query(q); /* Counts as sent until its reply arrives. */
        } else {
            query_free(a, q);
        }
    }
}

/* "rank 3 on n2 (lost)", "rank 3 on n2 (pid 4711, in barrier 2)". */
static void add_missing_rank(const struct ps_rec_missing_rank *w,
                             struct ps_str *t)
{
    ps_str_addf(t, "rank %u on ", w->rank);
    ps_str_add_escaped(t, *w->node != '\0' ? w->node : w->host,
                       strlen(*w->node != '\0' ? w->node : w->host),
                       PS_NAME_MAX);
    if (w->state != PS_RANK_STATE_LIVE) {
        ps_str_addf(t, " (%s)", ps_rank_state_name(w->state));
    } else if (w->pid != 0) {
        ps_str_addf(t, " (pid %u, ", w->pid);
        ps_str_add_escaped(t, w->does, strlen(w->does), PS_DOES_MAX);
        ps_str_add(t, ")");
    }
}

/* Appends how to see where the first missing rank is that is in no call. */
static void add_remedy(const struct ps_msg_stall_reply *m, struct ps_str *t)
{
    for (uint32_t i = 0; i < m->missing_count; i++) {
        const struct ps_rec_missing_rank *w = &m->missing[i];

        if (w->pid != 0 && strcmp(w->does, PS_AGENT_IN_NO_CALL) == 0) {
            ps_str_addf(t, "; 'py-spy dump --pid %u' or 'gdb -p %u' on ",
                        w->pid, w->pid);
            ps_str_add_escaped(t, w->node, strlen(w->node), PS_NAME_MAX);
            ps_str_add(t, " shows where it is");
            return;
        }
    }
}

void ps_agent_diagnose_on_reply(struct ps_agent_step *st,
                                const struct ps_msg_stall_reply *m)
{
    struct ps_agent_stall_query *q = ps_map_get(st->a->stall_queries,
                                                m->request);

    if (q == NULL || !q->is_sent) {
        return;
    }
    if (q->session == NULL) {
        query_free(st->a, q);
        send_next_queries(st);
        return;
    }
    struct ps_str t = PS_STR_ROOM(1024);

    ps_str_add(&t, q->local_text);
    for (uint32_t i = 0; i < m->missing_count && !t.truncated; i++) {
        const struct ps_rec_missing_rank *w = &m->missing[i];

        ps_str_add(&t, i == 0 ? "; missing: " : ", ");
        add_missing_rank(w, &t);
    }
    if (m->other_causes != NULL && m->other_causes[0] != '\0') {
        ps_str_add(&t, m->missing_count == 0 ? "; missing: " : "; and ");
        ps_str_add_escaped(&t, m->other_causes, strlen(m->other_causes), 512);
    } else if (m->missing_count == 0) {
        ps_str_addf(&t, "; no rank is missing%s%s",
                    q->awaited[0] == '\0' ? "" : ", awaited: ", q->awaited);
    }
    add_remedy(m, &t);
    send_stall_reply(st, q->session->conn, q->op_id, t.data);
    query_free(st->a, q);
    send_next_queries(st);
}

void ps_agent_diagnose_tick(struct ps_agent_step *st)
{
    ps_time next = PS_TIME_NEVER;

    PS_MAP_EACH(struct ps_agent_stall_query, q, st->a->stall_queries)
    {
        const ps_time due = ps_time_add(q->asked_at, ANSWER_TIMEOUT);
        const struct ps_agent_op *op;

        if (q->session == NULL) {
            continue;
        }
        if (due > st->now) {
            next = ps_time_min(next, due);
            continue;
        }
        op = find_session_op(q->session, q->op_id);
        if (op != NULL) {
            answer_here(st, q->session, op, q->asked_at);
        }
        if (q->is_sent) {
            detach_query(q); /* Counts as sent until its reply arrives. */
        } else {
            query_free(st->a, q);
        }
    }
    st->a->due.stall_answer_at = next;
}

void ps_agent_diagnose_fini(struct ps_agent *a)
{
    PS_MAP_EACH(struct ps_agent_stall_query, q, a->stall_queries)
    {
        query_free(a, q);
    }
    ps_map_free(a->stall_queries);
}

/* ----------------------------------------------------------------- reports */

/* Ranks whose state one report has. */
#define STATES_MAX 512u

/* Returns the oldest operation of a key, and the number of all operations. */
static const struct ps_agent_op *oldest_key_op(const struct ps_agent_job *j,
                                               uint32_t *ret_waits)
{
    const struct ps_agent_op *oldest = NULL;

    *ret_waits = 0;
    for (uint32_t i = 0; i < j->local_rank_count; i++) {
        const struct ps_agent_session *s = j->local_ranks[i].session;

        if (s == NULL) {
            continue;
        }
        *ret_waits += s->op_count;
        PS_LIST_EACH_OF(const struct ps_agent_op, op, session_node, &s->ops)
        {
            if (op->key != NULL &&
                (oldest == NULL || op->started_at < oldest->started_at)) {
                oldest = op;
            }
        }
    }
    return oldest;
}

/* Processes of the first of the ranks that are behind. */
struct states {
    struct ps_rec_rank_wait list[STATES_MAX];
    char texts[STATES_MAX][PS_DOES_MAX + 1];
};

static void add_state(const struct ps_agent *a, const struct ps_agent_rank *r,
                      struct states *states, struct ps_msg_stall_report *m)
{
    if (r->session != NULL && m->states_count < STATES_MAX) {
        ps_agent_waits_describe(a, r->session, &states->list[m->states_count],
                                states->texts[m->states_count]);
        m->states_count++;
    }
}

/* True: the local rank has not done its part of the round or barrier. */
static bool is_behind(const struct ps_agent_job *j, uint32_t local,
                      const struct ps_agent_key *k, uint64_t round,
                      const struct ps_msg_stall_collect *m)
{
    if (m->barrier) {
        return j->local_ranks[local].entered_barriers < round;
    }
    /* A key that is not open here has no rounds here. */
    return k == NULL ? !m->oldest
                     : ps_agent_contribution_awaits_rank(k, local, round);
}

/* The key that the collection is about; NULL: a barrier, or none is open. */
static const struct ps_agent_key *
key_of_collect(const struct ps_agent_job *j, const struct ps_agent_op *oldest,
               const struct ps_msg_stall_collect *m)
{
    if (m->barrier) {
        return NULL;
    }
    return !m->oldest       ? ps_map_get(j->keys, m->key)
           : oldest == NULL ? NULL
                            : oldest->key;
}

void ps_agent_diagnose_on_collect(struct ps_agent_step *st,
                                  const struct ps_msg_stall_collect *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_msg r = {
        .code = PS_MSG_STALL_REPORT,
        .stall_report = {.gen = m->gen, .request = m->request, .key = ""}};
    struct states *states = ps_calloc(1, sizeof(*states));
    uint32_t *ranks = NULL;
    struct ps_str links = PS_STR_ROOM(256);

    r.stall_report.unheard = links.data;
    r.stall_report.states = states->list;
    if (j != NULL) {
        const struct ps_agent_op *op = oldest_key_op(
            j, &r.stall_report.waiting_ops);
        const struct ps_agent_key *k = key_of_collect(j, op, m);
        uint64_t round = m->oldest ? (op == NULL ? 0 : op->round) : m->round;

        ranks = ps_calloc(j->local_rank_count + 1, sizeof(*ranks));
        for (uint32_t i = 0; i < j->local_rank_count; i++) {
            if (is_behind(j, i, k, round, m)) {
                ranks[r.stall_report.ranks_count++] = j->local_ranks[i].rank;
                add_state(st->a, &j->local_ranks[i], states, &r.stall_report);
            }
        }
        r.stall_report.ranks = ranks;
        if (k != NULL) {
            report_unheard(st, k, &links);
        }
        if (m->oldest && op != NULL) {
            r.stall_report.key = k->name;
            r.stall_report.key_kind = k->key_kind;
            r.stall_report.round = round;
            r.stall_report.waited_ns = st->now - op->started_at;
        }
    }
    ps_agent_uplink_send_msg(st, &r);
    ps_free(ranks);
    ps_free(states);
}
