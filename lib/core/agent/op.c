/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of workers, from their acceptance to the message that ends them. A
 * contribution outlives its session: its memory is referenced, because the round
 * may need it. */
#include "core/agent/op.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"

/* Ended operations kept for reuse. */
#define SPARE_OPS_MAX 16384u

void ps_agent_op_note_move(struct ps_agent_step *st, struct ps_agent_job *j)
{
    j->standstill.moved_at = st->now;
    if (j->standstill.check_at == PS_TIME_NEVER) {
        j->standstill.check_at = ps_time_add(st->now, PS_AGENT_STILL);
        st->a->waits.check_at = ps_time_min(st->a->waits.check_at,
                                            j->standstill.check_at);
    }
}

struct ps_agent_op *ps_agent_op_new(struct ps_agent_step *st,
                                    struct ps_agent_session *s, uint64_t id)
{
    struct ps_agent *a = st->a;
    struct ps_agent_op *op = a->spare_ops.count > 0
                                 ? a->spare_ops.ops[--a->spare_ops.count]
                                 : ps_alloc(sizeof(*op));

    *op = (struct ps_agent_op){.agent = a};
    op->session = s;
    op->id = id;
    op->local_rank = s->local_rank;
    op->started_at = st->now;
    ps_list_push_back(&s->ops, &op->session_node);
    s->op_count++;
    ps_agent_op_note_move(st, s->job);
    ps_account_charge_unchecked(&s->account, PS_COST_OPERATIONS, 1);
    a->spare_ops.in_use++;
    return op;
}

void ps_agent_op_detach(struct ps_agent_op *op)
{
    ps_list_remove(&op->session_node);
    op->session->op_count--;
    op->agent->spare_ops.in_use--;
    ps_account_refund(&op->session->account, PS_COST_OPERATIONS, 1);
    op->session = NULL;
}

void ps_agent_op_free(struct ps_agent_op *op)
{
    struct ps_agent *a = op->agent;

    if (op->session != NULL) {
        if (op->sched_request != NULL) {
            ps_account_refund(&op->session->account, PS_COST_QUERIES, 1);
            ps_account_refund(&op->session->account, PS_COST_MEMORY,
                              ps_alloc_size(op->sched_request));
        }
        ps_agent_op_detach(op);
    }
    if (op->charged_bytes > 0) {
        ps_account_refund(&op->key->job->account, PS_COST_MEMORY,
                          op->charged_bytes);
    }
    ps_buf_unref(op->array.buf);
    ps_buf_unref(op->out.buf);
    if (op->rows != NULL) {
        op->key->kind->free_rows(op->rows);
    }
    ps_free(op->state_transfer);
    ps_msg_free(op->sched_request);
    if (a->spare_ops.count == SPARE_OPS_MAX) {
        ps_free(op);
        return;
    }
    if (a->spare_ops.count == a->spare_ops.capacity) {
        a->spare_ops.capacity = a->spare_ops.capacity == 0
                                    ? 64
                                    : 2 * a->spare_ops.capacity;
        a->spare_ops.ops = ps_realloc(a->spare_ops.ops,
                                      a->spare_ops.capacity *
                                          sizeof(struct ps_agent_op *));
    }
    a->spare_ops.ops[a->spare_ops.count++] = op;
}

void ps_agent_op_free_list(struct ps_list *list)
{
    struct ps_agent_op *op;

    while ((op = PS_LIST_POP(struct ps_agent_op, node, list)) != NULL) {
        ps_agent_op_free(op);
    }
}

/* Records an operation on a key, or a barrier, that has succeeded. */
static void trace_op(const struct ps_agent_step *st,
                     const struct ps_agent_op *op)
{
    const struct ps_agent_key *k = op->key;
    const struct ps_agent_job *j = k != NULL             ? k->job
                                   : op->session != NULL ? op->session->job
                                                         : NULL;

    if (j == NULL || op->local_rank >= j->local_rank_count ||
        (k == NULL && !op->is_barrier)) {
        return;
    }
    ps_trace_add(
        st->a->opt.trace,
        &(struct ps_trace_entry){.begun_at = op->started_at,
                                 .ended_at = st->now,
                                 .gen = j->gen,
                                 .round = op->round,
                                 .bytes = op->array.len,
                                 .key = k != NULL ? k->number : UINT32_MAX,
                                 .peer = j->local_ranks[op->local_rank].rank,
                                 .kind = PS_TRACE_KIND_OP,
                                 .op = (uint8_t)op->kind});
}

void ps_agent_op_end(struct ps_agent_step *st, struct ps_agent_op *op,
                     uint64_t version, int error, const char *text)
{
    if (op->session != NULL) {
        ps_agent_op_note_move(st, op->session->job);
    }
    if (error == 0) {
        trace_op(st, op);
    }
    if (error == 0 && op->is_undelivered) {
        text = "the copy to the GPU failed, see the agent's log";
    }
    if (op->session != NULL && !op->session->is_closing && error == 0 &&
        !op->is_undelivered) {
        ps_effects_op_done(st->fx, op->session->conn, op->id, version);
    } else if (op->session != NULL && !op->session->is_closing) {
        ps_effects_send_msg(
            st->fx, op->session->conn,
            &(struct ps_msg){.code = PS_MSG_L_DONE,
                             .l_done = {.op_id = op->id,
                                        .error = error,
                                        .version = version,
                                        .text = text,
                                        .is_undelivered = op->is_undelivered}});
    }
    ps_agent_op_free(op);
}

void ps_agent_op_end_skipped(struct ps_agent_step *st, struct ps_agent_op *op,
                             uint64_t version)
{
    if (op->session != NULL && !op->session->is_closing) {
        ps_effects_send_msg(st->fx, op->session->conn,
                            &(struct ps_msg){.code = PS_MSG_L_DONE,
                                             .l_done = {.op_id = op->id,
                                                        .version = version,
                                                        .text = "",
                                                        .all_skipped = true}});
    }
    ps_agent_op_free(op);
}

bool ps_agent_op_reject(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m, int error, const char *fmt,
                        ...)
{
    va_list ap;
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

    va_start(ap, fmt);
    ps_str_addv(&t, fmt, ap);
    va_end(ap);
    ps_effects_send_msg(
        st->fx, s->conn,
        &(struct ps_msg){
            .code = PS_MSG_L_DONE,
            .l_done = {.op_id = m->op_id, .error = error, .text = t.data}});
    return false;
}

bool ps_agent_op_measure_dense(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_agent_key *k,
                               const struct ps_msg_l_op *m,
                               struct ps_agent_op_input *in)
{
    if (ps_agent_op_names_rows(m)) {
        return ps_agent_op_reject(st, s, m, PS_E_UNSUPPORTED,
                                  "'%s' is not a key of rows", k->name);
    }
    in->array.len = ps_agent_key_bytes(k);
    in->align = ps_dtype_size(k->dtype);
    return true;
}
