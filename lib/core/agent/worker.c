/* SPDX-License-Identifier: Apache-2.0 */
/* Training processes as workers of a job: their messages; the acceptance of an
 * operation, with its array and its validity in the state of its key; the
 * progress of an array that its worker still copies; and the end of a process,
 * with what happens to its operations and to the keys that it waits for. */
#include "core/agent/worker.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/agent/conflict.h"
#include "core/agent/diagnose.h"
#include "core/agent/inner.h"
#include "core/agent/job.h"
#include "core/agent/key.h"
#include "core/agent/op.h"
#include "core/agent/opt_state.h"
#include "core/agent/part.h"
#include "core/agent/pull.h"
#include "core/agent/report.h"
#include "core/agent/request.h"
#include "core/agent/round.h"
#include "core/agent/session.h"
#include "core/agent/waits.h"

/* -------------------------------------------------------------- acceptance */

/* Finds the memory that the operation names, of `bytes` bytes. False: the
 * operation has been rejected. */
static bool resolve_memory(struct ps_agent_step *st, struct ps_agent_session *s,
                           const struct ps_agent_key *k,
                           const struct ps_msg_l_op *m, size_t align,
                           struct ps_slice *memory)
{
    struct ps_buf *region = ps_map_get(s->regions, m->region);
    const uint64_t bytes = memory->len;

    if (region == NULL) {
        const char *why;
        int rc = ps_agent_session_on_missing_region(s, m->region, &why);

        return ps_agent_op_reject(st, s, m, rc, "region %u: %s", m->region,
                                  why);
    }
    if (m->offset > region->size || bytes > region->size - m->offset) {
        return ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': %llu bytes at %llu do not lie in region %u of %zu bytes",
            k->name, (unsigned long long)bytes, (unsigned long long)m->offset,
            m->region, region->size);
    }
    if (((uintptr_t)region->data + m->offset) % align != 0) {
        return ps_agent_op_reject(st, s, m, PS_E_INVAL,
                                  "'%s': the array is not aligned to %zu",
                                  k->name, align);
    }
    memory->buf = region;
    memory->offset = m->offset;
    return true;
}

static bool is_push_op(enum ps_op kind)
{
    return kind == PS_OP_PUSH || kind == PS_OP_PUSHPULL ||
           kind == PS_OP_BROADCAST || kind == PS_OP_BROADCAST_SEND_ONLY ||
           kind == PS_OP_PUSH_ROWS || kind == PS_OP_SKIP;
}

/* Returns true if operations of this kind on the key use memory of a GPU. */
static bool may_use_device(const struct ps_agent_key *k,
                           const struct ps_msg_l_op *m)
{
    return k->kind->has_results && k->kind->has_rounds &&
           (m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
            m->op == PS_OP_BROADCAST || m->op == PS_OP_BROADCAST_SEND_ONLY) &&
           !m->streaming;
}

static void reject_device(struct ps_agent_step *st, struct ps_agent_session *s,
                          const struct ps_agent_key *k,
                          const struct ps_msg_l_op *m)
{
    ps_agent_op_reject(st, s, m, PS_E_UNSUPPORTED,
                       "'%s': memory of a GPU is for push, pushpull and "
                       "broadcast of dense keys with rounds; copy it to memory "
                       "of the host",
                       k->name);
}

/* Fills in the array that the operation names; buf NULL: it names none. False:
 * the operation has been rejected. */
static bool resolve_op_array(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_agent_key *k,
                             const struct ps_msg_l_op *m,
                             struct ps_agent_op_input *in)
{
    if (!k->kind->measure_array(st, s, k, m, in)) {
        return false;
    }
    if (m->region == 0) {
        in->array.len = 0;
        return true;
    }
    if (!resolve_memory(st, s, k, m, in->align, &in->array)) {
        return false;
    }
    if (in->array.buf->device != NULL && !may_use_device(k, m)) {
        reject_device(st, s, k, m);
        return false;
    }
    return true;
}

static bool may_stream(const struct ps_agent_session *s,
                       const struct ps_agent_key *k,
                       const struct ps_msg_l_op *m,
                       const struct ps_slice *array)
{
    return array->len > 0 && k->kind->has_rounds &&
           s->hello->l_hello.on_loss == PS_LOSS_POLICY_FAIL &&
           (m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
            m->op == PS_OP_BROADCAST);
}

/* Returns true when the operation is valid in the key's state. False: it has
 * been rejected. */
static bool validate_op(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_agent_key *k,
                        const struct ps_msg_l_op *m,
                        const struct ps_slice *array)
{
    bool has_array;

    if (m->op == PS_OP_SKIP && (m->region != 0 || m->row_count != 0)) {
        return ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': a skip contributes nothing and has no array", k->name);
    }
    if (m->streaming && !may_stream(s, k, m, array)) {
        return ps_agent_op_reject(
            st, s, m, PS_E_UNSUPPORTED,
            "'%s': an array may be sent while it is copied in a push, pushpull "
            "or broadcast of a sync job with on_loss fail alone; all others "
            "begin with the whole array",
            k->name);
    }
    if (m->root >= k->job->config.num_workers) {
        return ps_agent_op_reject(st, s, m, PS_E_INVAL,
                                  "root %u: the job has ranks 0 to %u", m->root,
                                  k->job->config.num_workers - 1);
    }
    has_array = m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
                ((m->op == PS_OP_BROADCAST ||
                  m->op == PS_OP_BROADCAST_SEND_ONLY || m->op == PS_OP_INIT) &&
                 k->job->local_ranks[s->local_rank].rank == m->root);
    if (has_array && array->buf == NULL) {
        return ps_agent_op_reject(st, s, m, PS_E_INVAL,
                                  "'%s': the operation has no array", k->name);
    }
    if (is_push_op((enum ps_op)m->op) &&
        m->round != k->round.pushed_round[s->local_rank] + 1) {
        return ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': rank %u contributes to round %llu, but its next round is "
            "%llu",
            k->name, k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)m->round,
            (unsigned long long)k->round.pushed_round[s->local_rank] + 1);
    }
    if ((m->op == PS_OP_PULL || m->op == PS_OP_PULL_ROWS) &&
        m->round > k->round.pushed_round[s->local_rank]) {
        return ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': rank %u asks for version %llu, but has pushed %llu "
            "rounds only",
            k->name, k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)m->round,
            (unsigned long long)k->round.pushed_round[s->local_rank]);
    }
    return true;
}

/* Streaming operation of this id; NULL: it has ended. It may be deferred. */
static struct ps_agent_op *find_streaming_op(const struct ps_agent_session *s,
                                             const struct ps_agent_key *k,
                                             uint64_t id)
{
    struct ps_agent_op *one = k->round.contribution[s->local_rank];

    if (one != NULL && one->session == s && one->id == id) {
        return one;
    }
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->round.deferred_pushes)
    {
        if (op->session == s && op->id == id) {
            return op;
        }
    }
    return NULL;
}

static void accept_progress(struct ps_agent_step *st,
                            struct ps_agent_session *s, struct ps_agent_key *k,
                            const struct ps_msg_l_op *m)
{
    struct ps_agent_op *op = k == NULL ? NULL
                                       : find_streaming_op(s, k, m->op_id);

    if (op == NULL) {
        return;
    }
    if (m->offset <= op->bytes_ready || m->offset > op->array.len) {
        ps_agent_session_end(
            st, s, PS_E_INVAL,
            "'%s': rank %u reports %llu of %llu bytes as copied, after %llu: "
            "the number must rise, to at most the size of the array",
            k->name, k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)m->offset, (unsigned long long)op->array.len,
            (unsigned long long)op->bytes_ready);
        return;
    }
    op->bytes_ready = m->offset;
    if (k->round.contribution[s->local_rank] != op) {
        return;
    }
    k->round.streaming_count -= !ps_agent_op_is_streaming(op);
    if (k->round.state == PS_AGENT_ROUND_COMPLETE) {
        ps_agent_round_launch_ready(st, k);
    }
}

static struct ps_agent_op *new_op(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  struct ps_agent_key *k,
                                  const struct ps_msg_l_op *m,
                                  const struct ps_agent_op_input *in)
{
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);

    op->charged_bytes = in->charged_bytes;
    op->send_only = m->op == PS_OP_BROADCAST_SEND_ONLY;
    op->kind = op->send_only ? PS_OP_BROADCAST : (enum ps_op)m->op;
    op->key = k;
    op->round = m->round;
    op->priority = m->priority;
    op->reduce = m->reduce;
    op->root = m->root;
    op->samples = m->samples == 0 ? 1 : m->samples;
    op->array = in->array;
    op->bytes_ready = m->streaming ? 0 : in->array.len;
    if (in->array.buf != NULL) {
        ps_buf_ref(in->array.buf);
    }
    op->rows = in->rows;
    return op;
}

/* `out` has the memory of a GPU for the value; buf NULL: there is none. */
static void accept_on_key(struct ps_agent_step *st, struct ps_agent_session *s,
                          struct ps_agent_key *k, const struct ps_msg_l_op *m,
                          const struct ps_slice *out)
{
    struct ps_agent_op_input in = {0};
    struct ps_agent_op *op;

    if (ps_agent_disagreement_reject_op(st, s, k, m) ||
        !resolve_op_array(st, s, k, m, &in) ||
        !validate_op(st, s, k, m, &in.array) ||
        (k->kind->validate_op != NULL &&
         !k->kind->validate_op(st, s, k, m, &in.array)) ||
        (k->kind->copy_input != NULL &&
         !k->kind->copy_input(st, s, k, m, &in))) {
        return;
    }
    op = new_op(st, s, k, m, &in);
    op->out = *out;
    if (out->buf != NULL) {
        ps_buf_ref(out->buf);
    }
    if (op->kind == PS_OP_INIT) {
        ps_agent_init_accept_op(st, op);
    } else {
        k->kind->accept_op(st, op);
    }
}

/* Returns true if the limits of the session, its job and its user allow one
 * more operation; otherwise refuses the operation or ends the session. */
static bool check_op_quota(struct ps_agent_step *st, struct ps_agent_session *s,
                           uint64_t op_id)
{
    struct ps_refusal why;

    if (s->op_count >= PS_OPS_MAX) {
        ps_agent_session_end(st, s, PS_E_FULL,
                             "too many unfinished operations");
        return false;
    }
    if (ps_account_check(&s->account, PS_COST_OPERATIONS, 1, &why) == 0) {
        return true;
    }
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_refusal_text(&why, &t);
    ps_effects_send_msg(
        st->fx, s->conn,
        &(struct ps_msg){
            .code = PS_MSG_L_DONE,
            .l_done = {.op_id = op_id, .error = PS_E_FULL, .text = t.data}});
    return false;
}

static void reject_unknown_key(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_msg_l_op *m)
{
    ps_agent_op_reject(st, s, m, PS_E_NOKEY,
                       "no key has the number %u: declare it", m->key);
}

static void handle_op(struct ps_agent_step *st, struct ps_agent_session *s,
                      const struct ps_msg_l_op *m)
{
    static const struct ps_slice none;
    struct ps_agent_key *k = ps_map_get(s->job->keys, m->key);

    if (m->op == PS_OP_PROGRESS) {
        accept_progress(st, s, k, m);
        return;
    }
    if (m->op == PS_OP_CANCEL) {
        if (k != NULL) {
            ps_agent_pull_cancel(st, s, k, m->op_id);
        }
        return;
    }
    if (!check_op_quota(st, s, m->op_id)) {
        return;
    }
    if (k == NULL) {
        reject_unknown_key(st, s, m);
        return;
    }
    accept_on_key(st, s, k, m, &none);
}

/* The same with memory of a GPU, of which the worker's event is over. */
static void handle_device_op(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_device_op *d)
{
    struct ps_msg_l_op m = {.op_id = d->op_id,
                            .op = d->op,
                            .key = d->key,
                            .region = d->out_region,
                            .offset = d->out_offset,
                            .round = d->round,
                            .priority = d->priority,
                            .reduce = d->reduce,
                            .root = d->root,
                            .samples = d->samples};
    struct ps_agent_key *k = ps_map_get(s->job->keys, d->key);
    struct ps_slice out = {0};

    if (k == NULL) {
        reject_unknown_key(st, s, &m);
        return;
    }
    if (!may_use_device(k, &m)) {
        reject_device(st, s, k, &m);
        return;
    }
    out.len = ps_agent_key_bytes(k);
    if (d->out_region == 0) {
        out.len = 0;
    } else if (!resolve_memory(st, s, k, &m, ps_dtype_size(k->dtype), &out)) {
        return;
    } else if (out.buf->device == NULL) {
        ps_agent_op_reject(st, s, &m, PS_E_INVAL,
                           "'%s': the result goes to memory of the host",
                           k->name);
        return;
    }
    m.region = d->region;
    m.offset = d->offset;
    accept_on_key(st, s, k, &m, &out);
}

/* --------------------------------------------------------------------- end */

/* Frees the operations of a worker that is gone. Its contributions stay in
 * their rounds without a session. */
static void drop_session_ops(struct ps_agent_session *s)
{
    struct ps_agent_op *op;

    while ((op = PS_LIST_FIRST(struct ps_agent_op, session_node, &s->ops)) !=
           NULL) {
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
    PS_LIST_EACH_OF(struct ps_agent_key, k, opening.node,
                    &s->job->openings.keys)
    {
        PS_LIST_EACH_SAFE(struct ps_agent_key_waiter, asker, node,
                          &k->opening.waiters)
        {
            if (asker->session == s) {
                ps_list_remove(&asker->node);
                ps_agent_key_waiter_free(asker);
            }
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

/* Returns the id of the operation that a message other than l_op begins; NULL:
 * none. */
static const uint64_t *msg_op_id(const struct ps_msg *m)
{
    switch (m->code) {
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
        handle_op(st, s, &m->l_op);
        break;
    case PS_MSG_L_DEVICE_OP:
        handle_device_op(st, s, &m->l_device_op);
        break;
    case PS_MSG_L_BARRIER:
        ps_agent_barrier_enter(st, s, &m->l_barrier);
        break;
    case PS_MSG_L_OPTIMIZER_STATE:
        ps_agent_opt_state_accept_op(st, s, &m->l_optimizer_state);
        break;
    case PS_MSG_L_OPTIMIZER:
    case PS_MSG_L_OPTIMIZER_CHANGE:
    case PS_MSG_L_OPTIMIZER_TUNE:
    case PS_MSG_L_COMPRESSION:
    case PS_MSG_L_PROFILE_SET:
    case PS_MSG_L_PROFILE_GET:
        ps_agent_request_accept(st, s, m, *op_id);
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
    PS_LIST_EACH_OF(const struct ps_agent_op, op, session_node, &s->ops)
    {
        if (ps_agent_op_is_streaming(op)) {
            return true;
        }
    }
    return false;
}

/* Ends a session that sends an operation before it is part of its job. */
static void end_early_session(struct ps_agent_step *st,
                              struct ps_agent_session *s)
{
    ps_agent_session_end(st, s, PS_E_PROTO, "no operation before l_welcome");
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
        end_early_session(st, s);
        return;
    }
    on_active_msg(st, s, m);
}

void ps_agent_session_on_ops(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_op *op, uint32_t count)
{
    if (s->state != PS_AGENT_SESSION_ACTIVE && !s->is_closing) {
        end_early_session(st, s);
        return;
    }
    for (uint32_t i = 0; i < count && !s->is_closing; i++) {
        if (count > 1 && i % PREFETCH_OPS == 0) {
            ps_agent_prefetch_ops(
                st->a, s, op + i,
                (uint32_t)ps_min_u64(count - i, PREFETCH_OPS));
        }
        handle_op(st, s, &op[i]);
    }
}
