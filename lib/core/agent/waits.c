/* SPDX-License-Identifier: Apache-2.0 */
/* Standstills. The scheduler gets a message when operations of a job are open and
 * none has begun or ended for a second; it then asks all agents of the job. The
 * agent asks each process on all its connections, of which any may answer, and
 * reports: whether the process can go on by itself, its open operations, and
 * which ranks have not reached the rounds in question. */
#include "core/agent/waits.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"

#include <string.h>

/* A wait_collect whose report waits for answers of processes. */
struct ps_agent_wait_collect {
    struct ps_list_node node;
    uint64_t query;
    ps_time deadline;
    struct ps_msg *message;
};

/* Time of a process to answer; the scheduler waits for a second. */
#define ANSWER_TIMEOUT PS_MILLIS(500)
/* Questions of the scheduler that are open; the oldest one is dropped. */
#define COLLECTS_MAX   256u
#define RANKS_MAX      512u
#define WAITS_MAX      4096u
#define JOBS_MAX       64u
#define NO_RANK        UINT32_MAX

static uint64_t process_of(const struct ps_agent_session *s)
{
    return s->hello != NULL ? s->hello->l_hello.process : 0;
}

/* True: a connection of the process that `s` is one of. */
static bool is_of_process(const struct ps_agent_session *other,
                          const struct ps_agent_session *s)
{
    return other->state == PS_AGENT_SESSION_ACTIVE && !other->is_closing &&
           other->uid == s->uid && process_of(other) == process_of(s);
}

static uint32_t count_ops(const struct ps_agent *a,
                          const struct ps_agent_session *of)
{
    uint32_t ops = 0;

    PS_LIST_EACH_OF(const struct ps_agent_session, s, node, &a->sessions)
    {
        ops += is_of_process(s, of) ? s->op_count : 0;
    }
    return ops;
}

/* -------------------------------------------------------------- description */

static void describe_op(const struct ps_agent_op *op, struct ps_str *t)
{
    if (op->is_barrier) {
        ps_str_addf(t, "in barrier %llu", (unsigned long long)op->round);
    } else if (op->key == NULL) {
        ps_str_add(t, "in a request to the scheduler");
    } else {
        ps_str_addf(t, "in %s of ", ps_op_name(op->kind));
        ps_str_add_escaped(t, op->key->name, strlen(op->key->name), 100);
        if (op->kind != PS_OP_INIT) {
            ps_str_addf(t, " round %llu", (unsigned long long)op->round);
        }
    }
}

void ps_agent_waits_describe(const struct ps_agent *a,
                             const struct ps_agent_session *s,
                             struct ps_rec_rank_wait *ret, char *text)
{
    const struct ps_agent_wait_state *w = &s->wait;
    struct ps_str t;

    ps_str_init(&t, text, PS_DOES_MAX + 1);
    *ret = (struct ps_rec_rank_wait){
        .rank = s->job->local_ranks[s->local_rank].rank,
        .pid = s->pid,
        .process = process_of(s),
        .moves = w->moves,
        .ops = process_of(s) != 0 ? count_ops(a, s) : s->op_count,
        .does = text};
    if (w->query != 0 && w->ops == ret->ops &&
        s->job->standstill.moved_at <= w->at) {
        ret->still = w->still;
        ps_str_add(&t, w->does);
    }
    if (t.len == 0 && s->op_count == 0) {
        ps_str_add(&t, PS_AGENT_IN_NO_CALL);
    } else if (t.len == 0) {
        describe_op(PS_LIST_FIRST(struct ps_agent_op, session_node, &s->ops),
                    &t);
    }
}

/* ------------------------------------------------------------------- report */

/* True: it sets the first value of the key. */
static bool is_init(const struct ps_agent_op *op)
{
    return op->kind == PS_OP_INIT &&
           op->key->job->local_ranks[op->local_rank].rank == 0;
}

/* Round that an operation waits for, as in open_wait. */
static uint64_t awaited_by(const struct ps_agent_op *op)
{
    if (op->is_barrier) {
        return op->round;
    }
    if (op->key == NULL || !op->key->kind->has_rounds) {
        return 0;
    }
    return op->round == 0 && !is_init(op) ? PS_WAITS_FOR_INIT : op->round;
}

/* Lists the open operations of the session. False: not all fit. */
static bool list_waits(const struct ps_agent_session *s, uint32_t rank,
                       struct ps_rec_open_wait *list, uint32_t *count)
{
    PS_LIST_EACH_OF(const struct ps_agent_op, op, session_node, &s->ops)
    {
        const struct ps_agent_key *k = op->key;

        if (*count == WAITS_MAX) {
            return false;
        }
        list[(*count)++] = (struct ps_rec_open_wait){
            .rank = rank,
            .key = k == NULL ? UINT32_MAX : k->number,
            .round = awaited_by(op)};
    }
    return true;
}

/* True: a rank here has made, or makes, an init of the key; or may have made
 * one, at another agent. */
static bool may_have_init(const struct ps_agent_job *j,
                          const struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < j->local_rank_count; i++) {
        const struct ps_agent_session *s = j->local_ranks[i].session;

        if (s == NULL || s->hello->l_hello.gen != 0) {
            return true;
        }
        PS_LIST_EACH_OF(const struct ps_agent_op, op, session_node, &s->ops)
        {
            if (k != NULL && op->key == k && is_init(op)) {
                return true;
            }
        }
    }
    for (uint32_t i = 0; k != NULL && i < k->part_count; i++) {
        if (k->parts[i].committed_version != NO_VERSION) {
            return true;
        }
    }
    return false;
}

/* A rank with a process here that has not reached the round; or NO_RANK. */
static uint32_t find_behind(const struct ps_agent_job *j, uint32_t key,
                            uint64_t round)
{
    const struct ps_agent_key *k = ps_map_get(j->keys, key);

    if (round == PS_WAITS_FOR_INIT) {
        return j->local_rank_count == 0 || may_have_init(j, k)
                   ? NO_RANK
                   : j->local_ranks[0].rank;
    }
    for (uint32_t i = 0; i < j->local_rank_count; i++) {
        /* A key that is not open here has no rounds here. */
        if (j->local_ranks[i].session != NULL &&
            (k == NULL || ps_agent_contribution_awaits_rank(k, i, round))) {
            return j->local_ranks[i].rank;
        }
    }
    return NO_RANK;
}

static void add_other_jobs(const struct ps_agent *a,
                           const struct ps_agent_session *s, uint64_t *list,
                           uint32_t *count)
{
    PS_LIST_EACH_OF(const struct ps_agent_session, other, node, &a->sessions)
    {
        bool is_new = is_of_process(other, s) && other->gen != s->gen;

        for (uint32_t i = 0; i < *count && is_new; i++) {
            is_new = list[i] != other->gen;
        }
        if (is_new && *count < JOBS_MAX) {
            list[(*count)++] = other->gen;
        }
    }
}

struct report {
    struct ps_rec_rank_wait ranks[RANKS_MAX];
    char texts[RANKS_MAX][PS_DOES_MAX + 1];
    struct ps_rec_open_wait waits[WAITS_MAX];
    uint32_t behind[WAITS_MAX];
    uint64_t jobs[JOBS_MAX];
};

static void fill_report(const struct ps_agent *a, const struct ps_agent_job *j,
                        const struct ps_agent_wait_collect *c, struct report *r,
                        struct ps_msg_wait_report *m)
{
    const struct ps_msg_wait_collect *question = &c->message->wait_collect;

    for (uint32_t i = 0; i < j->local_rank_count && m->ranks_count < RANKS_MAX;
         i++) {
        const struct ps_agent_session *s = j->local_ranks[i].session;
        struct ps_rec_rank_wait *w = &r->ranks[m->ranks_count];

        if (s == NULL) {
            continue;
        }
        ps_agent_waits_describe(a, s, w, r->texts[m->ranks_count++]);
        if (s->wait.query < c->query || process_of(s) == 0) {
            w->still = PS_STILLNESS_MOVING; /* It has not answered. */
        }
        if (!list_waits(s, w->rank, r->waits, &m->waits_count)) {
            w->still = PS_STILLNESS_MOVING;
        }
        if (process_of(s) != 0) {
            add_other_jobs(a, s, r->jobs, &m->jobs_count);
        }
    }
    for (uint32_t i = 0; i < question->keys_count &&
                         i < question->rounds_count && i < WAITS_MAX;
         i++) {
        r->behind[m->behind_count++] = find_behind(j, question->keys[i],
                                                   question->rounds[i]);
    }
}

static void collect_free(struct ps_agent *a, struct ps_agent_wait_collect *c)
{
    a->waits.collect_count--;
    ps_list_remove(&c->node);
    ps_msg_free(c->message);
    ps_free(c);
}

/* Sends the report and frees the collection. */
static void collect_finish(struct ps_agent_step *st,
                           struct ps_agent_wait_collect *c)
{
    const struct ps_msg_wait_collect *question = &c->message->wait_collect;
    const struct ps_agent_job *j = ps_agent_job_find(st->a, question->gen);
    struct report *r = ps_calloc(1, sizeof(*r));
    struct ps_msg m = {.code = PS_MSG_WAIT_REPORT,
                       .wait_report = {.gen = question->gen,
                                       .request = question->request,
                                       .ranks = r->ranks,
                                       .waits = r->waits,
                                       .behind = r->behind,
                                       .jobs = r->jobs}};

    if (j != NULL && j->ranks_assigned) {
        fill_report(st->a, j, c, r, &m.wait_report);
    }
    ps_agent_uplink_send_msg(st, &m);
    ps_free(r);
    collect_free(st->a, c);
}

static bool is_answered(const struct ps_agent *a,
                        const struct ps_agent_wait_collect *c)
{
    const struct ps_agent_job *j = ps_agent_job_find(
        a, c->message->wait_collect.gen);

    for (uint32_t i = 0; j != NULL && i < j->local_rank_count; i++) {
        const struct ps_agent_session *s = j->local_ranks[i].session;

        if (s != NULL && process_of(s) != 0 && s->wait.query < c->query) {
            return false;
        }
    }
    return true;
}

/* Asks the process on all its connections: which of them has a thread that reads
 * is not known here. */
static void ask_process(struct ps_agent_step *st,
                        const struct ps_agent_session *of, uint64_t query)
{
    PS_LIST_EACH_OF(struct ps_agent_session, s, node, &st->a->sessions)
    {
        if (is_of_process(s, of) && s->wait.sent < query) {
            s->wait.sent = query;
            ps_effects_send_msg(
                st->fx, s->conn,
                &(struct ps_msg){.code = PS_MSG_L_WAIT_QUERY,
                                 .l_wait_query = {.request = query}});
        }
    }
}

void ps_agent_waits_on_collect(struct ps_agent_step *st,
                               const struct ps_msg_wait_collect *m)
{
    struct ps_agent *a = st->a;
    const struct ps_agent_job *j = ps_agent_job_find(a, m->gen);
    struct ps_agent_wait_collect *c = ps_calloc(1, sizeof(*c));

    if (a->waits.collect_count == COLLECTS_MAX) {
        collect_free(a, PS_LIST_FIRST(struct ps_agent_wait_collect, node,
                                      &a->waits.collects));
    }
    c->query = ++a->last.request;
    c->deadline = ps_time_add(st->now, ANSWER_TIMEOUT);
    c->message = ps_msg_dup(
        &(struct ps_msg){.code = PS_MSG_WAIT_COLLECT, .wait_collect = *m});
    ps_list_push_back(&a->waits.collects, &c->node);
    a->waits.collect_count++;
    a->waits.check_at = ps_time_min(a->waits.check_at, c->deadline);
    for (uint32_t i = 0; j != NULL && i < j->local_rank_count; i++) {
        const struct ps_agent_session *s = j->local_ranks[i].session;

        if (s != NULL && process_of(s) != 0) {
            ask_process(st, s, c->query);
        }
    }
    if (is_answered(a, c)) {
        collect_finish(st, c);
    }
}

/* Sends the reports that are complete, or whose time is up. */
static void finish_collects(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;

    PS_LIST_EACH_SAFE(struct ps_agent_wait_collect, c, node, &a->waits.collects)
    {
        if (c->deadline <= st->now || is_answered(a, c)) {
            collect_finish(st, c);
        }
    }
}

void ps_agent_waits_on_state(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_wait_state *m)
{
    if (process_of(s) == 0 || m->request > s->wait.sent ||
        m->request <= s->wait.query) {
        return; /* Not asked for, or another connection has answered. */
    }
    PS_LIST_EACH_OF(struct ps_agent_session, of, node, &st->a->sessions)
    {
        if (is_of_process(of, s)) {
            of->wait.query = m->request;
            of->wait.at = st->now;
            of->wait.still = m->still;
            of->wait.moves = m->moves;
            of->wait.ops = m->ops;
            (void)ps_str_copy(of->wait.does, sizeof(of->wait.does),
                              m->does != NULL ? m->does : "");
        }
    }
    finish_collects(st);
}

/* --------------------------------------------------------------- standstill */

static bool has_open_ops(const struct ps_agent_job *j)
{
    for (uint32_t i = 0; i < j->local_rank_count; i++) {
        const struct ps_agent_session *s = j->local_ranks[i].session;

        if (s != NULL && s->op_count > 0) {
            return true;
        }
    }
    return false;
}

static void check_job(struct ps_agent_step *st, struct ps_agent_job *j)
{
    ps_time still_at = ps_time_add(j->standstill.moved_at, PS_AGENT_STILL);

    if (still_at > st->now) {
        j->standstill.check_at = still_at;
        return;
    }
    j->standstill.check_at = PS_TIME_NEVER;
    if (j->phase == PS_JOB_PHASE_RUNNING && has_open_ops(j)) {
        ps_agent_uplink_send_msg(
            st, &(struct ps_msg){.code = PS_MSG_JOB_STILL,
                                 .job_still = {.gen = j->gen}});
    }
}

void ps_agent_waits_tick(struct ps_agent_step *st)
{
    struct ps_agent *a = st->a;
    const struct ps_agent_wait_collect *first;

    finish_collects(st);
    if (a->waits.check_at > st->now) {
        return;
    }
    first = PS_LIST_FIRST(struct ps_agent_wait_collect, node,
                          &a->waits.collects);
    a->waits.check_at = first == NULL ? PS_TIME_NEVER : first->deadline;
    PS_MAP_EACH(struct ps_agent_job, j, a->jobs)
    {
        if (j->standstill.check_at <= st->now) {
            check_job(st, j);
        }
        a->waits.check_at = ps_time_min(a->waits.check_at,
                                        j->standstill.check_at);
    }
}

void ps_agent_waits_resend(struct ps_agent_step *st)
{
    PS_MAP_EACH(struct ps_agent_job, j, st->a->jobs)
    {
        ps_agent_op_note_move(st, j);
    }
}

void ps_agent_waits_fini(struct ps_agent *a)
{
    struct ps_agent_wait_collect *c;

    while ((c = PS_LIST_FIRST(struct ps_agent_wait_collect, node,
                              &a->waits.collects)) != NULL) {
        collect_free(a, c);
    }
}
