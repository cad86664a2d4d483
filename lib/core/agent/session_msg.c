/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of training processes, and the end of a process: what happens to its
 * operations and to the keys that it waits for. */
#include "core/agent/session_msg.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/accept.h"
#include "core/agent/diagnose.h"
#include "core/agent/inner.h"
#include "core/agent/job.h"
#include "core/agent/key.h"
#include "core/agent/op.h"
#include "core/agent/opt_state.h"
#include "core/agent/part.h"
#include "core/agent/report.h"
#include "core/agent/request.h"
#include "core/agent/session.h"
#include "core/agent/waits.h"

/* --------------------------------------------------------------------- end */

/* Frees the operations of a worker that is gone. Its contributions stay in
 * their rounds without a session. */
static void drop_session_ops(struct ps_agent_session *s)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&s->ops)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                              session_node);
        struct ps_agent_key *k = op->key;

        if (k != NULL &&
            (k->round.contribution[op->local_rank] == op ||
             (k->kind->is_push_kept != NULL && k->kind->is_push_kept(op)))) {
            ps_agent_op_detach(op);
            continue;
        }
        if (ps_list_linked(&op->node)) {
            ps_list_remove(&op->node);
        }
        ps_agent_op_free(op);
    }
}

/* Removes the session from the waiters of all opening keys. */
static void drop_key_waiters(struct ps_agent_session *s)
{
    if (s->job == NULL) {
        return;
    }
    PS_LIST_EACH(n, &s->job->openings.keys)
    {
        struct ps_agent_key *k = PS_CONTAINER(n, struct ps_agent_key,
                                              opening.node);
        struct ps_list_node *m = ps_list_first(&k->opening.waiters);

        while (m != NULL) {
            struct ps_list_node *next = ps_list_next(&k->opening.waiters, m);
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

void ps_agent_session_free(struct ps_agent *a, struct ps_agent_session *s)
{
    drop_session_ops(s);
    drop_key_waiters(s);
    ps_agent_diagnose_drop_session(a, s);
    a->deferred_session_count -= s->job_open == PS_AGENT_JOB_OPEN_DEFERRED;
    ps_agent_session_free_memory(a, s);
    ps_map_free(s->announced_arenas);
    ps_map_free(s->known_segments);
    ps_agent_budget_close_session(s);
    ps_list_remove(&s->node);
    ps_map_remove(a->sessions_by_conn, s->conn);
    ps_msg_free(s->hello);
    ps_free(s);
}

void ps_agent_session_on_closed(struct ps_agent_step *st,
                                struct ps_agent_session *s)
{
    struct ps_agent_job *j = s->job;

    if (s->hello != NULL && (j == NULL || j->phase != PS_JOB_PHASE_ENDED)) {
        ps_agent_departed_add(st, s);
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

/* ---------------------------------------------------------------- messages */

/* Returns the id of the operation that the message begins; NULL: none. */
static const uint64_t *msg_op_id(const struct ps_msg *m)
{
    switch (m->code) {
    case PS_MSG_L_OP:
        return m->l_op.op != PS_OP_PROGRESS && m->l_op.op != PS_OP_CANCEL
                   ? &m->l_op.op_id
                   : NULL;
    case PS_MSG_L_DEVICE_OP:
        return &m->l_device_op.op_id;
    case PS_MSG_L_BARRIER:
        return &m->l_barrier.op_id;
    case PS_MSG_L_OPTIMIZER:
        return &m->l_optimizer.op_id;
    case PS_MSG_L_OPTIMIZER_CHANGE:
        return &m->l_optimizer_change.op_id;
    case PS_MSG_L_OPTIMIZER_TUNE:
        return &m->l_optimizer_tune.op_id;
    case PS_MSG_L_PROFILE_SET:
        return &m->l_profile_set.op_id;
    case PS_MSG_L_PROFILE_GET:
        return &m->l_profile_get.op_id;
    case PS_MSG_L_OPTIMIZER_STATE:
        return &m->l_optimizer_state.op_id;
    case PS_MSG_L_COMPRESSION:
        return &m->l_compression.op_id;
    case PS_MSG_L_REPORT:
        return &m->l_report.op_id;
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
        ps_agent_accept_op(st, s, &m->l_op);
        break;
    case PS_MSG_L_DEVICE_OP:
        ps_agent_accept_device_op(st, s, &m->l_device_op);
        break;
    case PS_MSG_L_BARRIER:
        ps_agent_barrier_enter(st, s, &m->l_barrier);
        break;
    case PS_MSG_L_OPTIMIZER_STATE:
        ps_agent_opt_state_accept_op(st, s, &m->l_optimizer_state);
        break;
    case PS_MSG_L_OPTIMIZER_CHANGE:
        ps_agent_request_optimizer_change(st, s, &m->l_optimizer_change);
        break;
    case PS_MSG_L_OPTIMIZER_TUNE:
        ps_agent_request_optimizer_tune(st, s, &m->l_optimizer_tune);
        break;
    case PS_MSG_L_PROFILE_SET:
        ps_agent_request_profile_set(st, s, &m->l_profile_set);
        break;
    case PS_MSG_L_PROFILE_GET:
        ps_agent_request_profile_get(st, s, &m->l_profile_get);
        break;
    case PS_MSG_L_COMPRESSION:
        ps_agent_request_compression(st, s, &m->l_compression);
        break;
    case PS_MSG_L_OPTIMIZER:
        ps_agent_request_optimizer(st, s, &m->l_optimizer);
        break;
    case PS_MSG_L_REPORT:
        ps_agent_report_accept(st, s, &m->l_report);
        break;
    case PS_MSG_L_SPANS:
        ps_agent_span_accept(st, s, &m->l_spans);
        break;
    case PS_MSG_L_WAIT_STATE:
        ps_agent_waits_on_state(st, s, &m->l_wait_state);
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

        if (ps_agent_op_is_streaming(op)) {
            return true;
        }
    }
    return false;
}

void ps_agent_session_on_msg(struct ps_agent_step *st,
                             struct ps_agent_session *s, const struct ps_msg *m)
{
    if (s->is_closing) {
        return;
    }
    switch (m->code) {
    case PS_MSG_L_HELLO:
        ps_agent_session_on_hello(st, s, m);
        return;
    case PS_MSG_L_REGION:
    case PS_MSG_L_RESIDUAL_SEGMENT:
        return; /* PS_EV_REGION and PS_EV_RESIDUAL_SEGMENT carry the memory. */
    case PS_MSG_L_REGION_GONE:
        ps_agent_session_on_region_gone(s, m->l_region_gone.region);
        return;
    case PS_MSG_L_DETACH:
        s->clean_exit = !is_streaming(s);
        s->is_closing = true;
        ps_effects_close(st->fx, s->conn);
        return;
    default:
        break;
    }
    if (s->state == PS_AGENT_SESSION_OPENING &&
        m->code == PS_MSG_L_STALL_QUERY) {
        ps_agent_diagnose_start(st, s);
        return;
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
