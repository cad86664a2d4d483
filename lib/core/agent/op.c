/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of workers, from their acceptance to the message that ends them, and
 * the row numbers that one names. A contribution outlives its session: its memory
 * is referenced, because the round may need it. */
#include "core/agent/op.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/part/rows.h"

#include <string.h>

/* Ended operations kept for reuse. */
#define SPARE_OPS_MAX 16384u

/* ------------------------------------------------------------- row numbers */

/* Bytes from which row numbers lie in mapped memory; a failed mapping is an
 * error, not an abort. */
#define MAPPED_MIN    (64u * 1024u)

/* Row numbers copied before they are validated, so that a block with invalid
 * numbers is not copied in full. */
#define COPY_CHUNK    1024u

static void rows_free(struct ps_agent_rows *r)
{
    if (r->mapped_bytes > 0) {
        ps_pool_unmap(r->numbers, r->mapped_bytes);
    } else {
        ps_free(r->numbers);
    }
    ps_free(r->requests);
    ps_free(r);
}

uint64_t ps_agent_rows_memory(uint32_t count, uint32_t part_count)
{
    return sizeof(struct ps_agent_rows) + count * (uint64_t)sizeof(uint32_t) +
           ps_min_u64(count, part_count) * sizeof(struct ps_agent_row_request);
}

/* Copies and validates the row numbers. Only the copy is validated, because the
 * worker may still write to the block. */
static bool copy_row_numbers(struct ps_agent_rows *r, const uint8_t *from,
                             uint32_t limit)
{
    for (uint32_t at = 0; at < r->count; at += COPY_CHUNK) {
        uint32_t n = (uint32_t)ps_min_u64(r->count - at, COPY_CHUNK);
        uint32_t first = at == 0 ? 0 : at - 1; /* Order across chunks. */

        memcpy(r->numbers + at, from + at * sizeof(*r->numbers),
               n * sizeof(*r->numbers));
        if (!ps_rows_are_valid(r->numbers + first, n + (at - first), limit)) {
            return false;
        }
        if (at > UINT32_MAX - COPY_CHUNK) {
            break;
        }
    }
    return true;
}

int ps_agent_rows_new(const struct ps_slice *block, uint32_t count,
                      uint32_t limit, struct ps_agent_rows **ret_rows)
{
    const size_t bytes = (size_t)count * sizeof(uint32_t);
    struct ps_agent_rows *r = ps_calloc(1, sizeof(*r));

    r->count = count;
    if (bytes < MAPPED_MIN) {
        r->numbers = ps_alloc(bytes + sizeof(*r->numbers));
    } else {
        void *data;

        if (ps_pool_map(bytes, &data) != 0) {
            ps_free(r);
            return PS_E_NOMEM;
        }
        r->numbers = data;
        r->mapped_bytes = bytes;
    }
    if (count > 0 && !copy_row_numbers(r, ps_slice_data(block), limit)) {
        rows_free(r);
        return PS_E_INVAL;
    }
    *ret_rows = r;
    return 0;
}

/* -------------------------------------------------------------- operations */

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
    ps_agent_note_move(st, s->job);
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
        rows_free(op->rows);
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
    struct ps_list_node *n;

    while ((n = ps_list_pop(list)) != NULL) {
        ps_agent_op_free(PS_CONTAINER(n, struct ps_agent_op, node));
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
        ps_agent_note_move(st, op->session->job);
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
