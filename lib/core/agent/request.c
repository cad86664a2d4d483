/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of ranks to the scheduler: the optimizer of a job, a change of it, its
 * compression, and recordings of its servers; and barriers. Each is an operation.
 * A request keeps a copy of its message until the answer, and sends it again on a
 * new link; the scheduler gets one barrier_enter for each barrier at which ranks
 * of this node wait. */
#include "core/agent/request.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/conflict.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"

/* ---------------------------------------------------------------- requests */

static const char *without_servers(unsigned code)
{
    switch (code) {
    case PS_MSG_L_OPTIMIZER:
        return "an optimizer runs on servers: start the job with at least one";
    case PS_MSG_L_COMPRESSION:
        return "gradients are compressed on their way to servers: start the "
               "job with at least one";
    case PS_MSG_L_PROFILE_SET:
    case PS_MSG_L_PROFILE_GET:
        return "a recording shows what servers do, and the job has no servers";
    default:
        return "an optimizer runs on servers, and the job has none";
    }
}

/* Returns 0 when the session's job may make the request, else a PS_E_* and the
 * reason. */
static int check_request(const struct ps_agent_job *j, unsigned code,
                         struct ps_str *why)
{
    if (code == PS_MSG_L_COMPRESSION && j->config.mode != PS_MODE_SYNC) {
        ps_str_add(why, "only gradients of rounds are compressed, and an async "
                        "or ssp job has no rounds");
        return PS_E_UNSUPPORTED;
    }
    if (j->config.num_servers == 0) {
        ps_str_add(why, without_servers(code));
        return PS_E_UNSUPPORTED;
    }
    if (code == PS_MSG_L_OPTIMIZER && j->config.rule != PS_RULE_NONE) {
        ps_str_addf(why,
                    "the job states the rule '%s' for its pushes: open it "
                    "without a rule when an optimizer is to apply them",
                    ps_rule_name(j->config.rule));
        return PS_E_INVAL;
    }
    return 0;
}

/* The message to the scheduler for a worker's request, under that number. */
static struct ps_msg request_msg(const struct ps_agent_session *s,
                                 const struct ps_msg *m, uint64_t request)
{
    const uint64_t gen = s->job->gen;
    const uint32_t rank = s->job->local_ranks[s->local_rank].rank;

    switch (m->code) {
    case PS_MSG_L_OPTIMIZER:
        return (struct ps_msg){
            .code = PS_MSG_OPTIMIZER_SET,
            .optimizer_set = {.gen = gen,
                              .rank = rank,
                              .request = request,
                              .name = m->l_optimizer.name,
                              .params = m->l_optimizer.params,
                              .params_count = m->l_optimizer.params_count,
                              .tunings = m->l_optimizer.tunings,
                              .tunings_count = m->l_optimizer.tunings_count}};
    case PS_MSG_L_OPTIMIZER_CHANGE:
        return (struct ps_msg){
            .code = PS_MSG_OPTIMIZER_CHANGE,
            .optimizer_change = {.gen = gen,
                                 .request = request,
                                 .name = m->l_optimizer_change.name,
                                 .value = m->l_optimizer_change.value,
                                 .round = m->l_optimizer_change.round}};
    case PS_MSG_L_OPTIMIZER_TUNE:
        return (struct ps_msg){
            .code = PS_MSG_OPTIMIZER_TUNE,
            .optimizer_tune = {
                .gen = gen,
                .request = request,
                .tunings = m->l_optimizer_tune.tunings,
                .tunings_count = m->l_optimizer_tune.tunings_count}};
    case PS_MSG_L_COMPRESSION:
        return (struct ps_msg){
            .code = PS_MSG_COMPRESSION_SET,
            .compression_set = {.gen = gen,
                                .rank = rank,
                                .request = request,
                                .name = m->l_compression.name,
                                .params = m->l_compression.params,
                                .params_count = m->l_compression.params_count}};
    case PS_MSG_L_PROFILE_SET:
        return (struct ps_msg){.code = PS_MSG_PROFILE_SET,
                               .profile_set = {.gen = gen,
                                               .request = request,
                                               .mode = m->l_profile_set.mode}};
    default: /* PS_MSG_L_PROFILE_GET */
        return (struct ps_msg){
            .code = PS_MSG_TRACE_GET,
            .trace_get = {.gen = gen,
                          .request = request,
                          .member = m->l_profile_get.server + 1,
                          .first = m->l_profile_get.first}};
    }
}

/* Keeps a copy of the request, which is sent again to a scheduler that comes
 * back. PS_E_FULL: a limit refuses it, and why. */
static int keep_request(struct ps_agent_session *s, struct ps_agent_op *op,
                        const struct ps_msg *m, struct ps_str *why)
{
    struct ps_msg *copy = ps_msg_dup(m);
    struct ps_refusal refusal;
    const struct ps_charge charges[] = {{PS_COST_QUERIES, 1},
                                        {PS_COST_MEMORY, ps_alloc_size(copy)}};
    int rc = ps_account_charge_all(&s->account, charges, 2, &refusal);

    if (rc != 0) {
        ps_msg_free(copy);
        ps_refusal_text(&refusal, why);
        return rc;
    }
    op->sched_request = copy;
    return 0;
}

void ps_agent_request_accept(struct ps_agent_step *st,
                             struct ps_agent_session *s, const struct ps_msg *m,
                             uint64_t op_id)
{
    struct ps_agent_op *op = ps_agent_op_new(st, s, op_id);
    struct ps_msg request;
    int rc;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    rc = check_request(s->job, m->code, &why);
    if (rc == 0) {
        op->round = ++st->a->last.request;
        request = request_msg(s, m, op->round);
        rc = keep_request(s, op, &request, &why);
    }
    if (rc != 0) {
        ps_agent_op_end(st, op, 0, rc, why.data);
        return;
    }
    ps_list_push_back(&s->job->sched_ops, &op->node);
    ps_agent_uplink_send_msg(st, op->sched_request);
}

/* Operation of that request; NULL: it has ended. */
static struct ps_agent_op *find_request(const struct ps_agent_job *j,
                                        uint64_t request)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &j->sched_ops)
    {
        if (op->round == request) {
            return op;
        }
    }
    return NULL;
}

void ps_agent_request_on_done(struct ps_agent_step *st,
                              const struct ps_msg_optimizer_done *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_agent_op *op = j != NULL ? find_request(j, m->request) : NULL;

    if (op == NULL) {
        return;
    }
    /* The job_state with the optimizer may arrive later. */
    j->config.has_optimizer |= m->error == 0 &&
                               op->sched_request->code == PS_MSG_OPTIMIZER_SET;
    if (op->sched_request->code == PS_MSG_OPTIMIZER_SET ||
        op->sched_request->code == PS_MSG_COMPRESSION_SET) {
        ps_agent_disagreement_answer(j, op->local_rank, m->error != 0);
    }
    ps_list_remove(&op->node);
    ps_agent_op_end(st, op, 0, m->error, m->text);
}

void ps_agent_request_on_entries(struct ps_agent_step *st,
                                 const struct ps_msg_trace_entries *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_agent_op *op = j != NULL ? find_request(j, m->request) : NULL;

    if (op == NULL || op->sched_request->code != PS_MSG_TRACE_GET) {
        return;
    }
    ps_list_remove(&op->node);
    if (op->session != NULL && !op->session->is_closing) {
        ps_effects_send_msg(
            st->fx, op->session->conn,
            &(struct ps_msg){
                .code = PS_MSG_L_PROFILE_EVENTS,
                .l_profile_events = {.op_id = op->id,
                                     .server = m->name,
                                     .first = m->first,
                                     .count = m->count,
                                     .next = m->next,
                                     .entries = m->entries,
                                     .entries_count = m->entries_count}});
    }
    ps_agent_op_free(op);
}

void ps_agent_request_resend(struct ps_agent_step *st, struct ps_agent_job *j)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &j->sched_ops)
    {
        ps_agent_uplink_send_msg(st, op->sched_request);
    }
}

/* ---------------------------------------------------------------- barriers */

void ps_agent_barrier_send(struct ps_agent_step *st, struct ps_agent_job *j)
{
    uint32_t *ranks = ps_calloc(j->local_rank_count + 1, sizeof(*ranks));
    uint64_t number = j->barriers.completed;

    for (;;) {
        uint64_t next = UINT64_MAX;
        uint32_t count = 0;

        for (uint32_t i = 0; i < j->local_rank_count; i++) {
            if (j->local_ranks[i].entered_barriers > number &&
                j->local_ranks[i].entered_barriers < next) {
                next = j->local_ranks[i].entered_barriers;
            }
        }
        if (next == UINT64_MAX) {
            break;
        }
        for (uint32_t i = 0; i < j->local_rank_count; i++) {
            if (j->local_ranks[i].entered_barriers == next) {
                ranks[count++] = j->local_ranks[i].rank;
            }
        }
        ps_agent_uplink_send_msg(
            st, &(struct ps_msg){.code = PS_MSG_BARRIER_ENTER,
                                 .barrier_enter = {.gen = j->gen,
                                                   .number = next,
                                                   .ranks = ranks,
                                                   .ranks_count = count}});
        number = next;
    }
    ps_free(ranks);
}

/* The scheduler may not know it: it goes on from its file. */
static void report_open(struct ps_agent_step *st, const struct ps_agent_job *j)
{
    if (j->barriers.completed > 0) {
        ps_agent_uplink_send_msg(
            st,
            &(struct ps_msg){.code = PS_MSG_BARRIER_ENTER,
                             .barrier_enter = {.gen = j->gen,
                                               .number = j->barriers.completed,
                                               .is_open = true}});
    }
}

void ps_agent_barrier_resend(struct ps_agent_step *st, struct ps_agent_job *j)
{
    report_open(st, j);
    ps_agent_barrier_send(st, j);
}

/* Records that all barriers up to `number` are open, and ends the operations of
 * ranks that wait at them. */
static void complete_barriers(struct ps_agent_step *st, struct ps_agent_job *j,
                              uint64_t number)
{
    if (number <= j->barriers.completed) {
        return;
    }
    j->barriers.completed = number;
    PS_LIST_EACH_SAFE(struct ps_agent_op, op, node, &j->barriers.ops)
    {
        if (op->round <= j->barriers.completed) {
            ps_list_remove(&op->node);
            ps_agent_op_end(st, op, op->round, 0, "");
        }
    }
}

void ps_agent_barrier_reattach(struct ps_agent_step *st,
                               struct ps_agent_session *s)
{
    struct ps_agent_job *j = s->job;
    const uint64_t passed = s->hello->l_hello.completed_barriers;

    if (s->hello->l_hello.gen == 0) {
        return;
    }
    j->local_ranks[s->local_rank].entered_barriers = passed;
    if (passed > j->barriers.completed) {
        complete_barriers(st, j, passed);
        report_open(st, j);
    }
}

void ps_agent_barrier_on_done(struct ps_agent_step *st,
                              const struct ps_msg_barrier_done *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);

    if (j != NULL) {
        complete_barriers(st, j, m->number);
    }
}

void ps_agent_barrier_enter(struct ps_agent_step *st,
                            struct ps_agent_session *s,
                            const struct ps_msg_l_barrier *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_rank *r = &j->local_ranks[s->local_rank];
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);

    op->is_barrier = true;
    op->round = m->number;
    if (m->number <= j->barriers.completed &&
        m->number <= r->entered_barriers + 1 && m->number > 0) {
        if (m->number > r->entered_barriers) {
            r->entered_barriers = m->number;
        }
        ps_agent_op_end(st, op, m->number, 0, "");
        return;
    }
    if (m->number == 0 || m->number > r->entered_barriers + 1 ||
        (m->number == r->entered_barriers + 1 &&
         r->entered_barriers > j->barriers.completed)) {
        ps_agent_op_end(st, op, 0, PS_E_INVAL,
                        "barriers are entered one after the other");
        return;
    }
    r->entered_barriers = m->number;
    ps_list_push_back(&j->barriers.ops, &op->node);
    ps_agent_barrier_send(st, j);
}
