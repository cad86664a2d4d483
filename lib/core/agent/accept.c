/* SPDX-License-Identifier: Apache-2.0 */
/* Acceptance of the operations of workers: the array of an operation, its
 * validity in the state of its key, and the progress of an array that its
 * worker still copies. */
#include "core/agent/accept.h"

#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/pull.h"
#include "core/agent/round.h"
#include "core/agent/session.h"

static bool is_push_op(enum ps_op kind)
{
    return kind == PS_OP_PUSH || kind == PS_OP_PUSHPULL ||
           kind == PS_OP_BROADCAST || kind == PS_OP_BROADCAST_SEND_ONLY ||
           kind == PS_OP_PUSH_ROWS || kind == PS_OP_SKIP;
}

/* Fills in the array that the operation names; buf NULL: it names none. False:
 * the operation has been rejected. */
static bool resolve_op_array(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_agent_key *k,
                             const struct ps_msg_l_op *m,
                             struct ps_agent_op_input *in)
{
    struct ps_buf *region;
    uint64_t bytes;

    if (!k->kind->measure_array(st, s, k, m, in)) {
        return false;
    }
    bytes = in->array.len;
    if (m->region == 0) {
        in->array.len = 0;
        return true;
    }
    region = ps_map_get(s->regions, m->region);
    if (region == NULL) {
        const char *why;
        int rc = ps_agent_session_on_missing_region(s, m->region, &why);

        ps_agent_op_reject(st, s, m, rc, "region %u: %s", m->region, why);
        return false;
    }
    if (m->offset > region->size || bytes > region->size - m->offset) {
        ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': %llu bytes at %llu do not lie in region %u of %zu bytes",
            k->name, (unsigned long long)bytes, (unsigned long long)m->offset,
            m->region, region->size);
        return false;
    }
    if (((uintptr_t)region->data + m->offset) % in->align != 0) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "'%s': the array is not aligned to %zu", k->name,
                           in->align);
        return false;
    }
    in->array.buf = region;
    in->array.offset = m->offset;
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
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "'%s': a pass gives nothing, and names no array",
                           k->name);
        return false;
    }
    if (m->streaming && !may_stream(s, k, m, array)) {
        ps_agent_op_reject(st, s, m, PS_E_UNSUPPORTED,
                           "'%s': an array grows in a push, pushpull or "
                           "broadcast of a sync job that fails when it "
                           "loses a worker; else it is all there",
                           k->name);
        return false;
    }
    if (m->root >= k->job->config.num_workers) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "root %u: the job has ranks 0 to %u", m->root,
                           k->job->config.num_workers - 1);
        return false;
    }
    has_array = m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
                ((m->op == PS_OP_BROADCAST ||
                  m->op == PS_OP_BROADCAST_SEND_ONLY || m->op == PS_OP_INIT) &&
                 k->job->local_ranks[s->local_rank].rank == m->root);
    if (has_array && array->buf == NULL) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "'%s': the operation gives no array", k->name);
        return false;
    }
    if (is_push_op((enum ps_op)m->op) &&
        m->round != k->round.pushed_round[s->local_rank] + 1) {
        ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': rank %u offers round %llu, but its next is %llu", k->name,
            k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)m->round,
            (unsigned long long)k->round.pushed_round[s->local_rank] + 1);
        return false;
    }
    if ((m->op == PS_OP_PULL || m->op == PS_OP_PULL_ROWS) &&
        m->round > k->round.pushed_round[s->local_rank]) {
        ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': rank %u asks for version %llu, but has pushed %llu "
            "rounds only",
            k->name, k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)m->round,
            (unsigned long long)k->round.pushed_round[s->local_rank]);
        return false;
    }
    return true;
}

/* Streaming operation of this id; NULL: it has ended. It may be deferred. */
static struct ps_agent_op *find_streaming_op(const struct ps_agent_session *s,
                                             const struct ps_agent_key *k,
                                             uint64_t id)
{
    struct ps_agent_op *op = k->round.contribution[s->local_rank];

    if (op != NULL && op->session == s && op->id == id) {
        return op;
    }
    PS_LIST_EACH(n, &k->round.deferred_pushes)
    {
        op = PS_CONTAINER(n, struct ps_agent_op, node);
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
            "'%s': rank %u says that %llu of %llu bytes are there, after %llu: "
            "they become more, up to the end of the array",
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

void ps_agent_accept_op(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m)
{
    struct ps_agent_key *k = ps_map_get(s->job->keys, m->key);
    struct ps_agent_op_input in = {0};
    struct ps_agent_op *op;

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
    if (k == NULL) {
        ps_agent_op_reject(st, s, m, PS_E_NOKEY,
                           "no key has the number %u: declare it", m->key);
        return;
    }
    if (!resolve_op_array(st, s, k, m, &in) ||
        !validate_op(st, s, k, m, &in.array) ||
        (k->kind->validate_op != NULL &&
         !k->kind->validate_op(st, s, k, m, &in.array)) ||
        (k->kind->copy_input != NULL &&
         !k->kind->copy_input(st, s, k, m, &in))) {
        return;
    }
    op = new_op(st, s, k, m, &in);
    if (op->kind == PS_OP_INIT) {
        ps_agent_init_accept_op(st, op);
    } else {
        k->kind->accept_op(st, op);
    }
}
