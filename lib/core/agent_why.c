/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation waits for, in a sentence: which ranks have not done their
 * part and which servers are not heard, at any agent of the job. The scheduler
 * asks all of them; without it, this agent says what it knows itself. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/str.h"

#include <string.h>

static void because(struct ps_agent_step *st, ps_conn_id conn, uint64_t op_id,
                    const char *text)
{
    ps_effects_tell(
        st->fx, conn,
        &(struct ps_msg){.code = PS_MSG_L_BECAUSE,
                         .l_because = {.op_id = op_id, .text = text}});
}

static void describe(struct ps_str *t, const struct ps_agent_op *op,
                     ps_time now)
{
    double waited = (double)(now - op->since) / 1e9;

    if (op->barrier) {
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

/* A server that waits for this agent, or this agent for it, says something
 * within half a second, because it is pinged. */
#define UNHEARD       PS_SECONDS(1)
/* Servers that a sentence names. */
#define SERVERS_NAMED 4u

/* True: something of the key is on its way to the server, or back. */
static bool is_awaited(const struct ps_agent_key *k,
                       const struct ps_agent_server *s)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        const struct ps_agent_part *p = &k->parts[i];

        if (p->node == s->node &&
            (p->state != PS_AGENT_PART_IDLE || p->asked != NONE)) {
            return true;
        }
    }
    return false;
}

static const char *name_of(const struct ps_agent_server *s)
{
    return s->name[0] == '\0' ? "(unknown)" : s->name;
}

/* "server ps0, ps1 and 3 more". */
static void add_awaited(struct ps_str *t, const struct ps_agent_key *k)
{
    struct ps_map_cursor c = {0};
    const struct ps_agent_flow *f;
    uint32_t count = 0;

    while ((f = ps_map_next(k->job->flows, &c)) != NULL) {
        if (is_awaited(k, f->server) && ++count <= SERVERS_NAMED) {
            ps_str_addf(t, "%s%s", count == 1 ? "server " : ", ",
                        name_of(f->server));
        }
    }
    if (count > SERVERS_NAMED) {
        ps_str_addf(t, " and %u more", count - SERVERS_NAMED);
    }
}

void ps_agent_why_unheard(const struct ps_agent_step *st,
                          const struct ps_agent_key *k, struct ps_str *t)
{
    const char *agent = st->a->opt.name;
    struct ps_map_cursor c = {0};
    const struct ps_agent_flow *f;

    while ((f = ps_map_next(k->job->flows, &c)) != NULL) {
        const struct ps_agent_server *s = f->server;
        const struct ps_caller *caller = &s->caller;

        if (!is_awaited(k, s) ||
            (ps_caller_is_known(caller) &&
             st->now < ps_time_add(caller->heard_at, UNHEARD))) {
            continue;
        }
        if (t->len > 0) {
            ps_str_add(t, "; ");
        }
        if (s->gone) {
            ps_str_addf(t, "a server in place of %s, which is gone",
                        name_of(s));
        } else if (ps_caller_is_known(caller)) {
            ps_str_addf(t,
                        "word of server %s, which agent %s has not heard for "
                        "%.1f s",
                        name_of(s), agent,
                        (double)(st->now - caller->heard_at) / 1e9);
        } else {
            ps_str_addf(t, "a connection of agent %s to server %s at %s", agent,
                        name_of(s), caller->address);
            if (caller->tried_at != 0) {
                ps_str_addf(t, " (last tried %.1f s ago)",
                            (double)(st->now - caller->tried_at) / 1e9);
            }
        }
    }
}

/* A search past this many operations counts as one more question: it takes as
 * long as an answer. */
#define SEARCH_STEP 256u

static const struct ps_agent_op *find_op(struct ps_agent_session *s,
                                         uint64_t op_id)
{
    uint32_t passed = 0;

    PS_LIST_EACH(n, &s->ops)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    mine);

        if (op->id == op_id) {
            return op;
        }
        s->queries += ++passed % SEARCH_STEP == 0;
    }
    return NULL;
}

static void query(struct ps_agent_step *st, struct ps_agent_question *q)
{
    if (!q->sent) {
        q->sent = true;
        q->user->questions_sent++;
    }
    ps_agent_up_tell(st,
                     &(struct ps_msg){.code = PS_MSG_STALL_QUERY,
                                      .stall_query = {.gen = q->gen,
                                                      .request = q->request,
                                                      .key = q->key,
                                                      .round = q->round,
                                                      .barrier = q->barrier}});
}

/* The oldest questions go, as many of each user as may be under way. */
static void query_next(struct ps_agent_step *st)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_question *q;

    while ((q = ps_map_next(st->a->questions, &c)) != NULL) {
        if (!q->sent && q->user->questions_sent < PS_QUERIES_SENT_MAX) {
            query(st, q);
        }
    }
}

/* Its session has an answer, or needs none. */
static void question_leave(struct ps_agent_question *q)
{
    ps_list_remove(&q->node);
    ps_account_refund(&q->session->account, PS_COST_QUERIES, 1);
    q->session = NULL;
}

static void question_free(struct ps_agent *a, struct ps_agent_question *q)
{
    if (q->session != NULL) {
        question_leave(q);
    }
    q->user->questions_sent -= q->sent;
    ps_agent_user_put(q->user);
    ps_map_take(a->questions, q->request);
    ps_free(q);
}

static bool is_asked(const struct ps_agent_session *s, uint64_t op_id)
{
    PS_LIST_EACH(n, &s->questions)
    {
        if (PS_CONTAINER(n, struct ps_agent_question, node)->op_id == op_id) {
            return true;
        }
    }
    return false;
}

/* False: the session asks more often than any library, and is ended. */
static bool is_patient(struct ps_agent_step *st, struct ps_agent_session *s)
{
    if (ps_time_add(s->queries_since, PS_SECONDS(1)) <= st->now) {
        s->queries_since = st->now;
        s->queries = 0;
    }
    if (++s->queries <= PS_QUERIES_RATE_MAX) {
        return true;
    }
    ps_agent_session_end(st, s, PS_E_FULL,
                         "more than %u questions in a second what operations "
                         "wait for",
                         PS_QUERIES_RATE_MAX);
    return false;
}

/* The round that others must have offered. Without rounds nobody is waited
 * for, or in an ssp job those who are too far behind. */
static uint64_t round_of(const struct ps_agent_op *op)
{
    const struct ps_agent_key *k = op->key;

    if (k == NULL || !k->async) {
        return op->round;
    }
    return k->job->mode == PS_MODE_SSP && op->round > k->job->staleness &&
                   (op->kind == PS_OP_PULL || op->kind == PS_OP_PUSHPULL)
               ? op->round - k->job->staleness
               : 0;
}

/* True: the scheduler knows more of it. */
static bool is_known_here(const struct ps_agent_step *st,
                          const struct ps_agent_op *op)
{
    return (op->key == NULL && !op->barrier) ||
           (op->key != NULL && op->key->async && round_of(op) == 0) ||
           !ps_caller_is_known(&st->a->up.caller);
}

void ps_agent_why_ask(struct ps_agent_step *st, struct ps_agent_session *s,
                      uint64_t op_id)
{
    const struct ps_agent_op *op;
    struct ps_agent_question *q;
    struct ps_refusal refusal;
    char text[640];
    char unheard[256];
    struct ps_str t;
    struct ps_str links;

    if (!is_patient(st, s) || is_asked(s, op_id)) {
        return; /* One answer is for all who ask. */
    }
    op = find_op(s, op_id);
    if (op == NULL) {
        because(st, s->conn, op_id, "it is done, or was never begun");
        return;
    }
    ps_str_init(&t, text, sizeof(text));
    describe(&t, op, st->now);
    if (is_known_here(st, op)) {
        ps_str_init(&links, unheard, sizeof(unheard));
        if (op->key != NULL) {
            ps_agent_why_unheard(st, op->key, &links);
        }
        if (unheard[0] != '\0') {
            ps_str_addf(&t, "; missing: %s", unheard);
        }
        if (!ps_caller_is_known(&st->a->up.caller)) {
            ps_str_addf(&t,
                        "; the scheduler at %s is not connected and knows "
                        "what else is missing",
                        st->a->opt.sched);
        }
        because(st, s->conn, op_id, text);
        return;
    }
    if (ps_account_charge(&s->account, PS_COST_QUERIES, 1, &refusal) != 0) {
        ps_str_add(&t, "; the scheduler is not asked who is missing: ");
        ps_refusal_text(&refusal, &t);
        because(st, s->conn, op_id, text);
        return;
    }
    q = ps_calloc(1, sizeof(*q));
    q->request = ++st->a->next_request;
    q->gen = s->gen;
    q->session = s;
    q->user = ps_agent_user_get(st->a, s->uid);
    q->op_id = op_id;
    q->key = op->key == NULL ? 0 : op->key->number;
    q->round = round_of(op);
    q->barrier = op->barrier;
    ps_str_copy(q->text, sizeof(q->text), text);
    if (op->key != NULL) {
        ps_str_init(&links, q->awaited, sizeof(q->awaited));
        add_awaited(&links, op->key);
    }
    ps_list_push_back(&s->questions, &q->node);
    ps_map_put(st->a->questions, q->request, q);
    query_next(st);
}

void ps_agent_why_offer(struct ps_agent_step *st)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_question *q;

    while ((q = ps_map_next(st->a->questions, &c)) != NULL) {
        if (q->sent && q->session == NULL) {
            question_free(st->a, q); /* Nobody hears the answer. */
        } else if (q->sent) {
            query(st, q);
        }
    }
    query_next(st);
}

void ps_agent_why_forget(struct ps_agent *a, struct ps_agent_session *s)
{
    struct ps_list_node *n = ps_list_first(&s->questions);

    while (n != NULL) {
        struct ps_agent_question *q = PS_CONTAINER(n, struct ps_agent_question,
                                                   node);

        n = ps_list_next(&s->questions, n);
        if (q->sent) {
            question_leave(q); /* Its place is free when it is answered. */
        } else {
            question_free(a, q);
        }
    }
}

void ps_agent_why_answer(struct ps_agent_step *st,
                         const struct ps_msg_stall_answer *m)
{
    struct ps_agent_question *q = ps_map_get(st->a->questions, m->request);
    char text[1024];
    struct ps_str t;

    if (q == NULL || !q->sent) {
        return;
    }
    if (q->session == NULL) {
        question_free(st->a, q);
        query_next(st);
        return;
    }
    ps_str_init(&t, text, sizeof(text));
    ps_str_add(&t, q->text);
    for (uint32_t i = 0; i < m->missing_count && !t.cut; i++) {
        const struct ps_rec_waiting *w = &m->missing[i];

        ps_str_add(&t, i == 0 ? "; missing: " : ", ");
        ps_str_addf(&t, "rank %u (", w->rank);
        ps_str_add_escaped(&t, w->host, strlen(w->host), PS_NAME_MAX);
        ps_str_addf(
            &t, "%s%s)", w->state == PS_RANK_STATE_LIVE ? "" : ", ",
            w->state == PS_RANK_STATE_LIVE ? "" : ps_rank_state_name(w->state));
    }
    if (m->also != NULL && m->also[0] != '\0') {
        ps_str_add(&t, m->missing_count == 0 ? "; missing: " : "; and ");
        ps_str_add_escaped(&t, m->also, strlen(m->also), 512);
    } else if (m->missing_count == 0) {
        ps_str_addf(&t, "; no rank is missing%s%s",
                    q->awaited[0] == '\0' ? "" : ", awaited: ", q->awaited);
    }
    because(st, q->session->conn, q->op_id, text);
    question_free(st->a, q);
    query_next(st);
}

void ps_agent_why_fini(struct ps_agent *a)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_question *q;

    while ((q = ps_map_next(a->questions, &c)) != NULL) {
        question_free(a, q);
    }
    ps_map_free(a->questions);
}
