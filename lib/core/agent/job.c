/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on this node, from the first job_state to the end of the last session:
 * ranks and their sessions, end and failure, and resending on a new link to the
 * scheduler. */
#include "core/agent/job.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "base/str.h"
#include "core/agent/conflict.h"
#include "core/agent/diagnose.h"
#include "core/agent/inner.h"
#include "core/agent/key.h"
#include "core/agent/op.h"
#include "core/agent/place.h"
#include "core/agent/report.h"
#include "core/agent/request.h"
#include "core/agent/residual_log.h"
#include "core/agent/send.h"
#include "core/agent/server.h"
#include "core/agent/session.h"
#include "core/agent/waits.h"

#include <string.h>

/* Memory of ended jobs that is freed at a time: to unmap a large result takes
 * milliseconds, and other jobs wait. */
#define REAP_BYTES    (64u * 1024u * 1024u)
#define REAP_INTERVAL PS_MILLIS(1)

/* ------------------------------------------------------------------- phases */

static const uint32_t successors[] = {
    /* The agent may miss states. FORMING again: the scheduler was restarted. */
    [PS_JOB_PHASE_FORMING] = PS_STATE_BIT(PS_JOB_PHASE_FORMING) |
                             PS_STATE_BIT(PS_JOB_PHASE_STARTING) |
                             PS_STATE_BIT(PS_JOB_PHASE_RUNNING) |
                             PS_STATE_BIT(PS_JOB_PHASE_FAILED) |
                             PS_STATE_BIT(PS_JOB_PHASE_ENDED),
    [PS_JOB_PHASE_STARTING] = PS_STATE_BIT(PS_JOB_PHASE_FORMING) |
                              PS_STATE_BIT(PS_JOB_PHASE_STARTING) |
                              PS_STATE_BIT(PS_JOB_PHASE_RUNNING) |
                              PS_STATE_BIT(PS_JOB_PHASE_FAILED) |
                              PS_STATE_BIT(PS_JOB_PHASE_ENDED),
    [PS_JOB_PHASE_RUNNING] = PS_STATE_BIT(PS_JOB_PHASE_FORMING) |
                             PS_STATE_BIT(PS_JOB_PHASE_STARTING) |
                             PS_STATE_BIT(PS_JOB_PHASE_RUNNING) |
                             PS_STATE_BIT(PS_JOB_PHASE_FAILED) |
                             PS_STATE_BIT(PS_JOB_PHASE_ENDED),
    [PS_JOB_PHASE_FAILED] = PS_STATE_BIT(PS_JOB_PHASE_FAILED) |
                            PS_STATE_BIT(PS_JOB_PHASE_ENDED),
    /* FAILED: a scheduler does not know the job, whose sessions still close. */
    [PS_JOB_PHASE_ENDED] = PS_STATE_BIT(PS_JOB_PHASE_FAILED) |
                           PS_STATE_BIT(PS_JOB_PHASE_ENDED),
};

/* A job, at an agent. A job_state with a phase that may not follow is old. */
static const struct ps_state_table job_phases = {
    .name = "job at an agent",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

static void job_set_phase(struct ps_agent_job *j, uint8_t to)
{
    ps_state_change(&job_phases, &j->phase, to);
}

/* ------------------------------------------------------------- life, memory */

static struct ps_agent_job *job_new(struct ps_agent *a, uint64_t gen)
{
    struct ps_agent_job *j = ps_calloc(1, sizeof(*j));

    j->gen = gen;
    j->standstill.check_at = PS_TIME_NEVER;
    j->result_pool = a->opt.result_pool_new(a->opt.alloc_ctx);
    j->keys = ps_map_new();
    j->keys_by_name = ps_map_new();
    j->pending_placements = ps_map_new();
    j->send_queues = ps_map_new();
    j->residual_log.recovered = ps_map_new();
    j->name_hash_seed = ps_rng_next(&a->rng);
    ps_list_init(&j->openings.keys);
    ps_list_init(&j->barriers.ops);
    ps_list_init(&j->sched_ops);
    ps_map_put(a->jobs, gen, j);
    return j;
}

/* `st` NULL: the agent itself ends, and servers need no release. */
void ps_agent_job_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_job *j)
{
    struct ps_agent_key *opening;

    PS_MAP_EACH(struct ps_agent_key, k, j->keys)
    {
        ps_agent_key_free(a, k);
    }
    while ((opening = PS_LIST_FIRST(struct ps_agent_key, opening.node,
                                    &j->openings.keys)) != NULL) {
        ps_agent_key_free(a, opening);
    }
    ps_agent_op_free_list(&j->barriers.ops);
    ps_agent_op_free_list(&j->sched_ops);
    ps_agent_disagreement_free(j->disagreement);
    ps_agent_report_free(j);
    ps_agent_span_free(j);
    PS_MAP_EACH(struct ps_agent_send_queue, f, j->send_queues)
    {
        struct ps_agent_server *s = f->server;

        ps_agent_send_drop_batch(s, j);
        ps_link_drop_payloads(s->dialer.link, j->gen);
        ps_agent_send_queue_free(a, f);
        if (st != NULL) {
            ps_agent_server_release(st, s);
        }
    }
    ps_agent_place_drop_deferred(j);
    ps_map_free(j->pending_placements);
    ps_map_free(j->send_queues);
    ps_agent_residual_job_free(a, j);
    ps_map_free(j->keys);
    ps_map_free(j->keys_by_name);
    a->draining_pools.pools = ps_realloc(a->draining_pools.pools,
                                         (a->draining_pools.count + 1) *
                                             sizeof(*a->draining_pools.pools));
    ps_agent_budget_charge_pool(
        j, &a->draining_pools.pools[a->draining_pools.count++]);
    ps_agent_job_reap_pools(a);
    a->due.scratch_trim_at = st == NULL ? PS_TIME_NEVER
                                        : ps_time_add(st->now, PS_TRIM_WAIT);
    ps_map_remove(a->jobs, j->gen);
    ps_agent_departed_drop(a, &j->gen);
    ps_agent_budget_close_job(j);
    ps_free(j->local_ranks);
    ps_free(j->slot_by_rank);
    ps_free(j);
}

void ps_agent_job_reap_pools(struct ps_agent *a)
{
    uint32_t kept = 0;

    a->draining_pools.next_reap_at = PS_TIME_NEVER;
    for (uint32_t i = 0; i < a->draining_pools.count; i++) {
        struct ps_agent_draining_pool *g = &a->draining_pools.pools[i];

        if (ps_pool_used(g->pool) == 0 &&
            a->draining_pools.next_reap_at == PS_TIME_NEVER &&
            ps_pool_trim_some(g->pool, REAP_BYTES)) {
            ps_pool_free(g->pool);
            ps_agent_budget_refund_pool(g);
            continue;
        }
        if (ps_pool_used(g->pool) == 0) {
            a->draining_pools.next_reap_at = ps_time_add(a->now, REAP_INTERVAL);
        }
        a->draining_pools.pools[kept++] = *g;
    }
    a->draining_pools.count = kept;
}

void ps_agent_job_free_if_unused(struct ps_agent_step *st,
                                 struct ps_agent_job *j)
{
    bool over = j->phase == PS_JOB_PHASE_ENDED ||
                j->phase == PS_JOB_PHASE_FAILED;

    if (over && j->session_count == 0) {
        st->a->ended_jobs.gens[st->a->ended_jobs.next++ % PS_AGENT_ENDED_JOBS] =
            j->gen;
        ps_agent_job_free(st, st->a, j);
    }
}

/* -------------------------------------------------------------------- state */

static struct ps_agent_session *find_session_by_worker(const struct ps_agent *a,
                                                       uint64_t worker)
{
    PS_LIST_EACH_OF(struct ps_agent_session, s, node, &a->sessions)
    {
        if (s->worker == worker) {
            return s;
        }
    }
    return NULL;
}

/* Sets *ret_slot to this node's slot. False: the job has no slot here. */
static bool find_own_slot(const struct ps_agent *a,
                          const struct ps_msg_job_state *m, uint32_t *ret_slot)
{
    for (uint32_t i = 0; i < m->slots_count; i++) {
        if (m->slots[i].node == a->uplink.node) {
            *ret_slot = i;
            return true;
        }
    }
    return false;
}

static void assign_ranks(struct ps_agent_step *st, struct ps_agent_job *j,
                         const struct ps_msg_job_state *m)
{
    uint32_t count = 0;
    uint32_t slot;

    if (j->ranks_assigned || !find_own_slot(st->a, m, &slot)) {
        return;
    }
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        count += m->ranks[i].slot == slot;
    }
    if (count == 0) {
        return;
    }
    j->slot = slot;
    j->local_ranks = ps_calloc(count, sizeof(*j->local_ranks));
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        uint32_t at = j->local_rank_count;

        if (m->ranks[i].slot != slot) {
            continue;
        }
        while (at > 0 && j->local_ranks[at - 1].rank > m->ranks[i].rank) {
            j->local_ranks[at] = j->local_ranks[at - 1];
            at--;
        }
        memset(&j->local_ranks[at], 0, sizeof(j->local_ranks[at]));
        j->local_ranks[at].rank = m->ranks[i].rank;
        j->local_rank_count++;
    }
    j->rank_count = m->ranks_count;
    j->slot_by_rank = ps_calloc(m->ranks_count, sizeof(*j->slot_by_rank));
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        if (m->ranks[i].rank < m->ranks_count) {
            j->slot_by_rank[m->ranks[i].rank] = m->ranks[i].slot;
        }
    }
    j->ranks_assigned = true;
}

/* When the job runs, gives opening sessions their rank and a welcome. */
static void assign_sessions(struct ps_agent_step *st, struct ps_agent_job *j,
                            const struct ps_msg_job_state *m)
{
    for (uint32_t i = 0; j->ranks_assigned && i < m->ranks_count; i++) {
        const struct ps_rec_rank *r = &m->ranks[i];
        struct ps_agent_session *s;
        uint32_t at = 0;

        if (r->slot != j->slot) {
            continue;
        }
        while (at < j->local_rank_count && j->local_ranks[at].rank != r->rank) {
            at++;
        }
        if (at == j->local_rank_count) {
            continue;
        }
        j->local_ranks[at].has_left = r->state == PS_RANK_STATE_LEFT;
        if (r->state != PS_RANK_STATE_LIVE) {
            continue;
        }
        s = find_session_by_worker(st->a, r->worker);
        if (s == NULL || s->state != PS_AGENT_SESSION_OPENING ||
            s->is_closing || j->phase != PS_JOB_PHASE_RUNNING) {
            continue;
        }
        if (s->hello->l_hello.replicas > 1 && m->replicas <= 1) {
            ps_agent_session_end(st, s, PS_E_UNSUPPORTED,
                                 "replicas: 2 needs a psched of version 0.2.0 "
                                 "or later, and the one of this cluster is "
                                 "older: upgrade it, or open the job without "
                                 "replicas");
            continue;
        }
        s->gen = j->gen;
        s->job = j;
        s->local_rank = at;
        j->session_count++;
        j->local_ranks[at].session = s;
        j->local_ranks[at].is_resuming = j->local_ranks[at].had_process &&
                                         s->hello->l_hello.gen == 0;
        j->local_ranks[at].had_process = true;
        ps_agent_budget_assign_job(s, j);
        ps_agent_barrier_reattach(st, s);
        ps_agent_session_send_welcome(st, s);
    }
}

/* Ends all sessions of the job on this node with the error. */
static void fail_sessions(struct ps_agent_step *st, struct ps_agent_job *j,
                          int error, const char *text)
{
    PS_LIST_EACH_SAFE(struct ps_agent_session, s, node, &st->a->sessions)
    {
        if (!s->is_closing &&
            (s->job == j || (s->job == NULL && s->gen == j->gen))) {
            ps_agent_session_end(st, s, error, "%s", text);
        }
    }
}

/* Fails the job here: the scheduler does not know it and will send no further
 * state, so no operation of it could end. */
static void fail_unknown_job(struct ps_agent_step *st, struct ps_agent_job *j,
                             int error, const char *text)
{
    job_set_phase(j, PS_JOB_PHASE_FAILED);
    ps_str_copy(j->end_reason, sizeof(j->end_reason), text);
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO, "job %s is over: %s",
                       j->name, j->end_reason);
    fail_sessions(st, j, error, j->end_reason);
    ps_agent_job_free_if_unused(st, j);
}

void ps_agent_job_on_opened(struct ps_agent_step *st,
                            const struct ps_msg_job_opened *m)
{
    struct ps_agent_session *s = find_session_by_worker(st->a, m->worker);
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
    /* With a generation, the session may have been active for long, and its
     * job_open was sent again on a new link: the error ends the job. Without
     * one it concerns only this worker. */
    j = m->gen != 0 && m->gen == s->gen ? ps_agent_job_find(st->a, m->gen)
                                        : NULL;
    if (j != NULL && (m->error == PS_E_NOJOB || m->error == PS_E_JOBFAILED)) {
        fail_unknown_job(st, j, m->error, m->text);
        return;
    }
    ps_agent_session_end(st, s, m->error, "%s", m->text);
}

/* Error of a failed job: PS_E_PEERLOST when the loss of a rank fails the job
 * and one is lost. */
static int job_failure_error(const struct ps_msg_job_state *m)
{
    for (uint32_t i = 0;
         m->on_loss == PS_LOSS_POLICY_FAIL && i < m->ranks_count; i++) {
        if (m->ranks[i].state == PS_RANK_STATE_LOST) {
            return PS_E_PEERLOST;
        }
    }
    return PS_E_JOBFAILED;
}

/* Ends the job here. Its final state may have only gen, name and reason. */
static void accept_job_end(struct ps_agent_step *st, struct ps_agent_job *j,
                           const struct ps_msg_job_state *m)
{
    if (*j->name == '\0') {
        ps_str_copy(j->name, sizeof(j->name), m->name);
    }
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (m->reason[0] != '\0') {
        ps_str_addf(&why, "job '%s' is over: %s", j->name, m->reason);
    } else {
        ps_str_addf(&why, "job '%s' has ended", j->name);
    }
    job_set_phase(j, PS_JOB_PHASE_ENDED);
    ps_str_copy(j->end_reason, sizeof(j->end_reason), why.data);
    fail_sessions(st, j, PS_E_NOJOB, why.data);
    ps_agent_job_free_if_unused(st, j);
}

static bool has_job_ended(const struct ps_agent *a, uint64_t gen)
{
    for (uint32_t i = 0; i < PS_AGENT_ENDED_JOBS; i++) {
        if (a->ended_jobs.gens[i] == gen) {
            return true;
        }
    }
    return false;
}

void ps_agent_job_on_state(struct ps_agent_step *st,
                           const struct ps_msg_job_state *m)
{
    struct ps_agent *a = st->a;
    struct ps_agent_job *j = ps_agent_job_find(a, m->gen);
    uint32_t slot;

    if (j == NULL) {
        bool awaited = false;

        PS_LIST_EACH_OF(const struct ps_agent_session, s, node, &a->sessions)
        {
            awaited = awaited || s->gen == m->gen ||
                      (s->gen == 0 && s->state == PS_AGENT_SESSION_OPENING &&
                       !has_job_ended(a, m->gen));
        }
        if (!awaited ||
            (!find_own_slot(a, m, &slot) && m->phase != PS_JOB_PHASE_FAILED)) {
            return; /* No session here belongs to the job. */
        }
        j = job_new(a, m->gen);
    }
    if (m->version <= j->state_version) {
        return;
    }
    j->state_version = m->version;
    if (!ps_state_may_follow(&job_phases, j->phase, m->phase)) {
        return; /* Sent before the job failed. */
    }
    if (m->phase == PS_JOB_PHASE_ENDED) {
        accept_job_end(st, j, m);
        return;
    }
    job_set_phase(j, m->phase);
    j->config.num_workers = m->num_workers;
    j->config.num_servers = m->num_servers;
    j->config.mode = m->mode;
    j->config.rule = m->rule;
    j->config.staleness = m->staleness;
    j->config.weight = m->weight;
    j->config.has_optimizer |= m->optimizer[0] != '\0';
    j->config.has_copies = m->replicas > 1;
    ps_str_copy(j->name, sizeof(j->name), m->name);
    ps_str_copy(j->end_reason, sizeof(j->end_reason), m->reason);
    assign_ranks(st, j, m);
    assign_sessions(st, j, m);
    if (j->phase == PS_JOB_PHASE_FAILED) {
        ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                           "job %s failed: %s", j->name, j->end_reason);
        fail_sessions(st, j, job_failure_error(m), j->end_reason);
    }
    ps_agent_job_free_if_unused(st, j);
}

/* ----------------------------------------------------------------- new link */

void ps_agent_job_reoffer(struct ps_agent_step *st)
{
    PS_LIST_EACH_OF(struct ps_agent_session, s, node, &st->a->sessions)
    {
        const struct ps_agent_job *j = ps_agent_job_find(st->a, s->gen);

        if (s->hello == NULL || s->hello->l_hello.gen != 0 ||
            s->state != PS_AGENT_SESSION_OPENING ||
            s->job_open == PS_AGENT_JOB_OPEN_DEFERRED) {
            continue;
        }
        if (j == NULL || j->phase < PS_JOB_PHASE_RUNNING) {
            s->gen = 0;
            s->job_open = PS_AGENT_JOB_OPEN_AGAIN;
        }
    }
    PS_MAP_EACH(struct ps_agent_job, j, st->a->jobs)
    {
        if (j->phase < PS_JOB_PHASE_RUNNING && j->session_count == 0) {
            ps_agent_job_free(st, st->a, j);
        }
    }
}

void ps_agent_job_resend_all(struct ps_agent_step *st)
{
    PS_LIST_EACH_OF(struct ps_agent_session, s, node, &st->a->sessions)
    {
        if (s->hello != NULL && !s->is_closing &&
            s->job_open != PS_AGENT_JOB_OPEN_DEFERRED) {
            ps_agent_session_send_open(st, s);
        }
    }
    PS_MAP_EACH(struct ps_agent_job, j, st->a->jobs)
    {
        PS_LIST_EACH_OF(struct ps_agent_key, k, opening.node, &j->openings.keys)
        {
            if (k->opening.state == PS_AGENT_KEY_REQUESTED) {
                ps_agent_key_send_open(st, k);
            }
        }
        ps_agent_request_resend(st, j);
        ps_agent_report_resend(st, j);
        ps_agent_barrier_resend(st, j);
    }
    ps_agent_departed_resend(st);
    ps_agent_diagnose_resend(st);
    ps_agent_waits_resend(st);
}
