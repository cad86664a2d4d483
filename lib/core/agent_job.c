/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on this node: from the first job_state to the last worker's leaving. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/str.h"

#include <assert.h>
#include <string.h>

struct ps_agent_job *ps_agent_job_find(const struct ps_agent *a, uint64_t gen)
{
    return ps_map_get(a->jobs, gen);
}

static struct ps_agent_job *job_new(struct ps_agent *a, uint64_t gen)
{
    struct ps_agent_job *j = ps_calloc(1, sizeof(*j));

    j->gen = gen;
    j->results = a->opt.results_new(a->opt.results_ctx);
    j->keys = ps_map_new();
    j->names = ps_map_new();
    j->early = ps_map_new();
    j->flows = ps_map_new();
    j->found = ps_map_new();
    j->label_seed = ps_rng_next(&a->rng);
    ps_list_init(&j->opening);
    ps_list_init(&j->barriers);
    ps_list_init(&j->optimizers);
    ps_map_put(a->jobs, gen, j);
    return j;
}

static void free_ops(struct ps_list *list)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(list)) != NULL) {
        ps_agent_op_free(PS_CONTAINER(n, struct ps_agent_op, node));
    }
}

/* `st` NULL: the agent itself ends, and nobody is told. */
static bool is_of_job(void *ctx, const struct ps_msg *m)
{
    const struct ps_agent_job *j = ctx;

    switch (m->code) {
    case PS_MSG_PUSH:
        return m->push.gen == j->gen;
    case PS_MSG_PUSH_ROWS:
        return m->push_rows.gen == j->gen;
    case PS_MSG_PULL_ROWS:
        return m->pull_rows.gen == j->gen;
    case PS_MSG_INIT:
        return m->init.gen == j->gen;
    case PS_MSG_RESUME:
        return m->resume.gen == j->gen;
    case PS_MSG_STATE_PUT:
        return m->state_put.gen == j->gen;
    default:
        return false; /* Carries nothing. */
    }
}

void ps_agent_job_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_job *j)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_key *k;
    struct ps_agent_flow *f;
    struct ps_list_node *n;

    while ((k = ps_map_next(j->keys, &c)) != NULL) {
        ps_agent_key_free(st, a, k);
    }
    while ((n = ps_list_first(&j->opening)) != NULL) {
        ps_agent_key_free(st, a, PS_CONTAINER(n, struct ps_agent_key, node));
    }
    free_ops(&j->barriers);
    free_ops(&j->optimizers);
    c = (struct ps_map_cursor){0};
    while ((f = ps_map_next(j->flows, &c)) != NULL) {
        struct ps_agent_server *s = f->server;

        ps_agent_send_forget(j, s);
        ps_link_drop(s->caller.link, is_of_job, j);
        ps_agent_flow_free(f);
        if (st != NULL) {
            ps_agent_server_release(st, s);
        }
    }
    ps_agent_key_forget_early(j);
    ps_map_free(j->early);
    ps_map_free(j->flows);
    ps_agent_keep_job_free(a, j);
    ps_map_free(j->keys);
    ps_map_free(j->names);
    a->dying = ps_realloc(a->dying, (a->dying_count + 1) * sizeof(*a->dying));
    ps_agent_budget_bury(j, &a->dying[a->dying_count++]);
    ps_agent_job_bury(a);
    a->trim_at = st == NULL ? PS_TIME_NEVER
                            : ps_time_add(st->now, PS_TRIM_WAIT);
    ps_map_take(a->jobs, j->gen);
    ps_agent_departed_forget(a, j->gen);
    ps_agent_budget_leave(j);
    ps_free(j->local);
    ps_free(j->slot_of);
    ps_free(j);
}

void ps_agent_job_bury(struct ps_agent *a)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < a->dying_count; i++) {
        if (ps_pool_used(a->dying[i].results) == 0) {
            ps_pool_free(a->dying[i].results);
            ps_agent_budget_buried(&a->dying[i]);
        } else {
            a->dying[kept++] = a->dying[i];
        }
    }
    a->dying_count = kept;
}

void ps_agent_job_settle(struct ps_agent_step *st, struct ps_agent_job *j)
{
    bool over = j->phase == PS_JOB_PHASE_ENDED ||
                j->phase == PS_JOB_PHASE_FAILED;

    if (over && j->sessions == 0) {
        st->a->over[st->a->over_next++ % PS_AGENT_OVER] = j->gen;
        ps_agent_job_free(st, st->a, j);
    }
}

/* -------------------------------------------------------------------- state */

static struct ps_agent_session *find_worker(const struct ps_agent *a,
                                            uint64_t worker)
{
    PS_LIST_EACH(n, &a->sessions)
    {
        struct ps_agent_session *s = PS_CONTAINER(n, struct ps_agent_session,
                                                  node);

        if (s->worker == worker) {
            return s;
        }
    }
    return NULL;
}

/* Our slot and the ranks on it, in rank order. False: we have none. */
static bool find_slot(const struct ps_agent *a,
                      const struct ps_msg_job_state *m, uint32_t *ret_slot)
{
    for (uint32_t i = 0; i < m->slots_count; i++) {
        if (m->slots[i].node == a->node) {
            *ret_slot = i;
            return true;
        }
    }
    return false;
}

static void take_seats(struct ps_agent_step *st, struct ps_agent_job *j,
                       const struct ps_msg_job_state *m)
{
    uint32_t count = 0;
    uint32_t slot;

    if (j->seated || !find_slot(st->a, m, &slot)) {
        return;
    }
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        count += m->ranks[i].slot == slot;
    }
    if (count == 0) {
        return;
    }
    j->slot = slot;
    j->local = ps_calloc(count, sizeof(*j->local));
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        uint32_t at = j->local_count;

        if (m->ranks[i].slot != slot) {
            continue;
        }
        while (at > 0 && j->local[at - 1].rank > m->ranks[i].rank) {
            j->local[at] = j->local[at - 1];
            at--;
        }
        memset(&j->local[at], 0, sizeof(j->local[at]));
        j->local[at].rank = m->ranks[i].rank;
        j->local_count++;
    }
    j->slot_of_count = m->ranks_count;
    j->slot_of = ps_calloc(m->ranks_count, sizeof(*j->slot_of));
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        if (m->ranks[i].rank < m->ranks_count) {
            j->slot_of[m->ranks[i].rank] = m->ranks[i].slot;
        }
    }
    j->seated = true;
}

/* Which worker has which of our ranks now. */
static void seat_workers(struct ps_agent_step *st, struct ps_agent_job *j,
                         const struct ps_msg_job_state *m)
{
    for (uint32_t i = 0; j->seated && i < m->ranks_count; i++) {
        const struct ps_rec_rank *r = &m->ranks[i];
        struct ps_agent_session *s;
        uint32_t at = 0;

        if (r->slot != j->slot) {
            continue;
        }
        while (at < j->local_count && j->local[at].rank != r->rank) {
            at++;
        }
        if (at == j->local_count) {
            continue;
        }
        j->local[at].worker = r->worker;
        j->local[at].state = r->state;
        if (r->state != PS_RANK_STATE_LIVE) {
            continue;
        }
        s = find_worker(st->a, r->worker);
        if (s == NULL || s->state != PS_AGENT_SESSION_OPENING || s->ended ||
            j->phase != PS_JOB_PHASE_RUNNING) {
            continue;
        }
        s->gen = j->gen;
        s->job = j;
        s->local = at;
        j->sessions++;
        j->local[at].session = s;
        ps_agent_budget_seat(s, j);
        ps_agent_resume_seat(s);
        ps_agent_session_welcome(st, s);
    }
}

/* Everybody on this node hears why. */
static void fail_sessions(struct ps_agent_step *st, struct ps_agent_job *j,
                          int error, const char *text)
{
    struct ps_list_node *n = ps_list_first(&st->a->sessions);

    while (n != NULL) {
        struct ps_list_node *next = ps_list_next(&st->a->sessions, n);
        struct ps_agent_session *s = PS_CONTAINER(n, struct ps_agent_session,
                                                  node);

        if (!s->ended &&
            (s->job == j || (s->job == NULL && s->gen == j->gen))) {
            ps_agent_session_end(st, s, error, "%s", text);
        }
        n = next;
    }
}

/* A scheduler that does not know the job will never say anything of it: it is
 * over for all of this node, whatever they wait for. */
static void job_over(struct ps_agent_step *st, struct ps_agent_job *j,
                     int error, const char *text)
{
    j->phase = PS_JOB_PHASE_FAILED;
    ps_str_copy(j->reason, sizeof(j->reason), text);
    ps_effects_note(st->fx, PS_LOG_INFO, "job %s is over: %s", j->name,
                    j->reason);
    fail_sessions(st, j, error, j->reason);
    ps_agent_job_settle(st, j);
}

void ps_agent_job_opened(struct ps_agent_step *st,
                         const struct ps_msg_job_opened *m)
{
    struct ps_agent_session *s = find_worker(st->a, m->worker);
    struct ps_agent_job *j;

    if (s == NULL) {
        return;
    }
    if (m->error == 0) {
        if (s->state == PS_AGENT_SESSION_OPENING && s->gen == 0) {
            s->gen = m->gen;
        }
        return;
    }
    /* Of a session that takes part long since, too: it was offered again on a
     * fresh link. An answer to an offer of no generation is the worker's. */
    j = m->gen != 0 && m->gen == s->gen ? ps_agent_job_find(st->a, m->gen)
                                        : NULL;
    if (j != NULL && (m->error == PS_E_NOJOB || m->error == PS_E_JOBFAILED)) {
        job_over(st, j, m->error, m->text);
        return;
    }
    ps_agent_session_end(st, s, m->error, "%s", m->text);
}

/* Of a job that has failed: where it does not wait for lost ranks, one that is
 * lost is why. */
static int failure_of(const struct ps_msg_job_state *m)
{
    for (uint32_t i = 0;
         m->on_loss == PS_LOSS_POLICY_FAIL && i < m->ranks_count; i++) {
        if (m->ranks[i].state == PS_RANK_STATE_LOST) {
            return PS_E_PEERLOST;
        }
    }
    return PS_E_JOBFAILED;
}

/* Such a state may say nothing of the job but that it is no more, and why. */
static void take_end(struct ps_agent_step *st, struct ps_agent_job *j,
                     const struct ps_msg_job_state *m)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    if (j->name[0] == '\0') {
        ps_str_copy(j->name, sizeof(j->name), m->name);
    }
    ps_str_init(&why, text, sizeof(text));
    if (m->reason[0] != '\0') {
        ps_str_addf(&why, "job '%s' is over: %s", j->name, m->reason);
    } else {
        ps_str_addf(&why, "job '%s' has ended", j->name);
    }
    j->phase = PS_JOB_PHASE_ENDED;
    ps_str_copy(j->reason, sizeof(j->reason), text);
    fail_sessions(st, j, PS_E_NOJOB, text);
    ps_agent_job_settle(st, j);
}

static bool is_over(const struct ps_agent *a, uint64_t gen)
{
    for (uint32_t i = 0; i < PS_AGENT_OVER; i++) {
        if (a->over[i] == gen) {
            return true;
        }
    }
    return false;
}

void ps_agent_job_state(struct ps_agent_step *st,
                        const struct ps_msg_job_state *m)
{
    struct ps_agent *a = st->a;
    struct ps_agent_job *j = ps_agent_job_find(a, m->gen);
    uint32_t slot;

    if (j == NULL) {
        bool awaited = false;

        PS_LIST_EACH(n, &a->sessions)
        {
            const struct ps_agent_session *s = PS_CONTAINER(
                n, struct ps_agent_session, node);

            awaited = awaited || s->gen == m->gen ||
                      (s->gen == 0 && s->state == PS_AGENT_SESSION_OPENING &&
                       !is_over(a, m->gen));
        }
        if (!awaited ||
            (!find_slot(a, m, &slot) && m->phase != PS_JOB_PHASE_FAILED)) {
            return; /* Nobody here has to do with it (any more). */
        }
        j = job_new(a, m->gen);
    }
    if (m->version <= j->version) {
        return;
    }
    j->version = m->version;
    if (m->phase == PS_JOB_PHASE_ENDED) {
        take_end(st, j, m);
        return;
    }
    j->phase = m->phase;
    j->num_workers = m->num_workers;
    j->num_servers = m->num_servers;
    j->mode = m->mode;
    j->rule = m->rule;
    j->staleness = m->staleness;
    j->optimizes |= m->optimizer[0] != '\0';
    ps_str_copy(j->name, sizeof(j->name), m->name);
    ps_str_copy(j->reason, sizeof(j->reason), m->reason);
    take_seats(st, j, m);
    seat_workers(st, j, m);
    if (j->phase == PS_JOB_PHASE_FAILED) {
        ps_effects_note(st->fx, PS_LOG_INFO, "job %s failed: %s", j->name,
                        j->reason);
        fail_sessions(st, j, failure_of(m), j->reason);
    }
    ps_agent_job_settle(st, j);
}

/* ----------------------------------------------------------------- barriers */

/* Tell the scheduler who of us waits where. */
void ps_agent_job_enter(struct ps_agent_step *st, struct ps_agent_job *j)
{
    uint32_t *ranks = ps_calloc(j->local_count + 1, sizeof(*ranks));
    uint64_t number = j->barriers_open;

    for (;;) {
        uint64_t next = UINT64_MAX;
        uint32_t count = 0;

        for (uint32_t i = 0; i < j->local_count; i++) {
            if (j->local[i].barriers > number && j->local[i].barriers < next) {
                next = j->local[i].barriers;
            }
        }
        if (next == UINT64_MAX) {
            break;
        }
        for (uint32_t i = 0; i < j->local_count; i++) {
            if (j->local[i].barriers == next) {
                ranks[count++] = j->local[i].rank;
            }
        }
        ps_agent_up_tell(
            st, &(struct ps_msg){.code = PS_MSG_BARRIER_ENTER,
                                 .barrier_enter = {.gen = j->gen,
                                                   .number = next,
                                                   .ranks = ranks,
                                                   .ranks_count = count}});
        number = next;
    }
    ps_free(ranks);
}

void ps_agent_job_barrier(struct ps_agent_step *st,
                          const struct ps_msg_barrier_done *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_list_node *n;

    if (j == NULL || m->number <= j->barriers_open) {
        return;
    }
    j->barriers_open = m->number;
    n = ps_list_first(&j->barriers);
    while (n != NULL) {
        struct ps_list_node *next = ps_list_next(&j->barriers, n);
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (op->round <= j->barriers_open) {
            ps_list_remove(n);
            ps_agent_op_done(st, op, op->round, 0, "");
        }
        n = next;
    }
}

void ps_agent_job_optimizer(struct ps_agent_step *st,
                            const struct ps_msg_optimizer_done *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);

    if (j == NULL) {
        return;
    }
    PS_LIST_EACH(n, &j->optimizers)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (op->round == m->request) {
            /* The job's state that says so may have been overtaken. */
            j->optimizes |= m->error == 0 &&
                            op->message->code == PS_MSG_OPTIMIZER_SET;
            ps_list_remove(n);
            ps_agent_op_done(st, op, 0, m->error, m->text);
            return;
        }
    }
}

/* ------------------------------------------------------------------ stalls */

static const struct ps_agent_op *oldest_wait(const struct ps_agent_job *j,
                                             uint32_t *ret_waits)
{
    const struct ps_agent_op *oldest = NULL;

    *ret_waits = 0;
    for (uint32_t i = 0; i < j->local_count; i++) {
        const struct ps_agent_session *s = j->local[i].session;

        if (s == NULL) {
            continue;
        }
        *ret_waits += s->op_count;
        PS_LIST_EACH(n, &s->ops)
        {
            const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                        mine);

            if (oldest == NULL || op->since < oldest->since) {
                oldest = op;
            }
        }
    }
    return oldest;
}

void ps_agent_job_stall(struct ps_agent_step *st,
                        const struct ps_msg_stall_ask *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_msg r = {
        .code = PS_MSG_STALL_REPORT,
        .stall_report = {.gen = m->gen, .request = m->request, .key = ""}};
    uint32_t *ranks = NULL;
    char unheard[256];
    struct ps_str links;

    ps_str_init(&links, unheard, sizeof(unheard));
    r.stall_report.unheard = unheard;
    if (j != NULL) {
        const struct ps_agent_op *op = oldest_wait(j, &r.stall_report.waits);
        const struct ps_agent_key *k = m->any ? (op == NULL ? NULL : op->key)
                                              : ps_map_get(j->keys, m->key);
        uint64_t round = m->any ? (op == NULL ? 0 : op->round) : m->round;

        ranks = ps_calloc(j->local_count + 1, sizeof(*ranks));
        for (uint32_t i = 0; i < j->local_count; i++) {
            /* A key that nobody here has opened has no rounds here. */
            bool behind = k == NULL ? !m->any
                                    : ps_agent_round_lacks(k, i, round);

            if (behind) {
                ranks[r.stall_report.ranks_count++] = j->local[i].rank;
            }
        }
        r.stall_report.ranks = ranks;
        if (k != NULL) {
            ps_agent_why_unheard(st, k, &links);
        }
        if (m->any && op != NULL) {
            r.stall_report.key = k == NULL ? "" : k->name;
            r.stall_report.round = round;
            r.stall_report.waited_ns = st->now - op->since;
        }
    }
    ps_agent_up_tell(st, &r);
    ps_free(ranks);
}

/* -------------------------------------------------------------- fresh link */

void ps_agent_job_reopen(struct ps_agent_step *st)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_job *j;

    PS_LIST_EACH(n, &st->a->sessions)
    {
        struct ps_agent_session *s = PS_CONTAINER(n, struct ps_agent_session,
                                                  node);

        if (s->hello == NULL || s->hello->l_hello.gen != 0 ||
            s->state != PS_AGENT_SESSION_OPENING || s->held_back) {
            continue;
        }
        j = ps_agent_job_find(st->a, s->gen);
        if (j == NULL || j->phase < PS_JOB_PHASE_RUNNING) {
            s->gen = 0;
            s->reoffer = true;
        }
    }
    while ((j = ps_map_next(st->a->jobs, &c)) != NULL) {
        if (j->phase < PS_JOB_PHASE_RUNNING && j->sessions == 0) {
            ps_agent_job_free(st, st->a, j);
        }
    }
}

void ps_agent_job_offer_again(struct ps_agent_step *st)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_job *j;

    PS_LIST_EACH(n, &st->a->sessions)
    {
        struct ps_agent_session *s = PS_CONTAINER(n, struct ps_agent_session,
                                                  node);

        if (s->hello != NULL && !s->ended && !s->held_back) {
            ps_agent_session_offer(st, s);
        }
    }
    while ((j = ps_map_next(st->a->jobs, &c)) != NULL) {
        PS_LIST_EACH(n, &j->opening)
        {
            struct ps_agent_key *k = PS_CONTAINER(n, struct ps_agent_key, node);

            if (k->asked) {
                ps_agent_key_offer(st, k);
            }
        }
        PS_LIST_EACH(n, &j->optimizers)
        {
            struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

            ps_agent_up_tell(st, op->message);
        }
        ps_agent_job_enter(st, j);
    }
    ps_agent_departed_offer(st);
    ps_agent_why_offer(st);
}
