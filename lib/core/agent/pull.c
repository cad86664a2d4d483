/* SPDX-License-Identifier: Apache-2.0 */
/* Pull and init. A pull ends at once if the results on this node are new
 * enough, waits if the version is expected, and requests it from the servers
 * otherwise (rules P1 and P2). An init ends when this node has version 0 or
 * newer: the root's array is sent to the servers, then every agent pulls it
 * (rule P5). */
#include "core/agent/pull.h"

#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/send.h"

/* Version that the key has of all partitions. Without results here a committed
 * one is enough. */
static int64_t min_local_version(const struct ps_agent_key *k)
{
    int64_t least = INT64_MAX;

    for (uint32_t i = 0; i < k->part_count; i++) {
        int64_t has = k->kind->has_results ? k->parts[i].local_version
                                           : k->parts[i].committed_version;

        if (has < least) {
            least = has;
        }
    }
    return least;
}

bool ps_agent_pull_is_expected(const struct ps_agent_part *p, int64_t least)
{
    const struct ps_agent_key *k = p->key;

    if (p->requested_version == least) {
        /* A request for a later version may wait for a rank that waits for this
         * one, so only an equal one counts. */
        return true;
    }
    if (p->is_init) {
        return true; /* Requested when the init is committed. */
    }
    return k->round.state == PS_AGENT_ROUND_COMPLETE && k->round.needs_value &&
           (int64_t)k->round.number >= least &&
           p->state != PS_AGENT_PART_IDLE &&
           p->committed_version < (int64_t)k->round.number;
}

/* Returns true when the verdict on a skip of a round that is over is known from
 * all partitions; *ret_all_skipped: all ranks skipped it. */
static bool is_skip_decided(const struct ps_agent_key *k,
                            const struct ps_agent_op *op, bool *ret_all_skipped)
{
    *ret_all_skipped = true;
    for (uint32_t i = 0; i < k->part_count; i++) {
        const struct ps_agent_part *p = &k->parts[i];
        const int64_t decided = k->kind->decided_version == NULL
                                    ? p->local_version
                                    : k->kind->decided_version(p);

        if (p->skipped_version != (int64_t)op->round) {
            *ret_all_skipped = false;
            if (decided < (int64_t)op->round) {
                return false;
            }
        }
    }
    return true;
}

static void end_satisfied_ops(struct ps_agent_step *st, struct ps_agent_key *k,
                              struct ps_list *list)
{
    int64_t least;

    if (ps_list_empty(list)) {
        return;
    }
    least = min_local_version(k);
    PS_LIST_EACH_SAFE(struct ps_agent_op, op, node, list)
    {
        bool all_skipped = false;

        if (op->kind == PS_OP_SKIP) {
            if (is_skip_decided(k, op, &all_skipped)) {
                ps_list_remove(&op->node);
                if (all_skipped) {
                    ps_agent_op_end_skipped(st, op, op->round);
                } else {
                    ps_agent_op_end(st, op, op->round, 0, "");
                }
            } else if (k->kind->request_verdict != NULL) {
                k->kind->request_verdict(st, k, op);
            }
        } else if (least >= (int64_t)op->round) {
            ps_list_remove(&op->node);
            ps_agent_op_end(st, op, (uint64_t)least, 0, "");
        }
    }
}

static void lower_needed_version(int64_t *least, int64_t version)
{
    if (*least == NO_VERSION || version < *least) {
        *least = version;
    }
}

/* Ends satisfied operations, then requests the lowest version needed: a later
 * one may wait for a rank that waits for this one. */
void ps_agent_pull_advance(struct ps_agent_step *st, struct ps_agent_key *k)
{
    int64_t least = NO_VERSION;

    end_satisfied_ops(st, k, &k->pulls);
    if (k->init.pending_parts == 0) {
        end_satisfied_ops(st, k, &k->init.ops);
        if (!ps_list_empty(&k->init.ops)) {
            lower_needed_version(&least, 0);
        }
    }
    PS_LIST_EACH_OF(const struct ps_agent_op, op, node, &k->pulls)
    {
        lower_needed_version(&least, (int64_t)op->round);
    }
    if (k->round.state == PS_AGENT_ROUND_COMPLETE && k->round.needs_value) {
        /* Committed partitions whose value has not arrived. */
        for (uint32_t i = 0; i < k->part_count; i++) {
            if (k->parts[i].committed_version >= (int64_t)k->round.number &&
                k->parts[i].local_version < (int64_t)k->round.number) {
                lower_needed_version(&least, (int64_t)k->round.number);
            }
        }
    }
    if (least != NO_VERSION) {
        k->kind->request_version(st, k, least);
    }
}

void ps_agent_pull_accept_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    ps_list_push_back(&k->pulls, &op->node);
    k->kind->advance(st, k);
}

/* Pull of that id in the list, which the worker has begun as such: a pushpull
 * of a key without rounds waits there, too. */
static struct ps_agent_op *find_pull(const struct ps_list *list,
                                     const struct ps_agent_session *s,
                                     uint64_t op_id)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, list)
    {
        if (op->session == s && op->id == op_id &&
            (op->kind == PS_OP_PULL || op->kind == PS_OP_PULL_ROWS)) {
            return op;
        }
    }
    return NULL;
}

void ps_agent_pull_cancel(struct ps_agent_step *st, struct ps_agent_session *s,
                          struct ps_agent_key *k, uint64_t op_id)
{
    struct ps_agent_op *op = find_pull(&k->pulls, s, op_id);

    if (op == NULL) {
        op = find_pull(&k->row_pulls, s, op_id);
    }
    if (op != NULL) {
        ps_list_remove(&op->node);
        ps_agent_op_end(st, op, 0, PS_E_CANCELED, "");
    }
}

/* --------------------------------------------------------------------- init */

static bool is_op_of_root(const struct ps_agent_op *op)
{
    return op->key->job->local_ranks[op->local_rank].rank == op->root;
}

static void start_init(struct ps_agent_step *st, struct ps_agent_key *k,
                       const struct ps_agent_op *op)
{
    ps_buf_unref(k->init.array.buf);
    k->init.array = op->array;
    ps_buf_ref(op->array.buf);
    k->init.retry++;
    k->init.pending_parts = 0;
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].committed_version < 0) {
            k->parts[i].is_init = true;
            k->init.pending_parts++;
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        /* A sum of a failed round may still run; the init follows when it ends:
         * discard_sum() in send.c. */
        if (p->is_init && p->state == PS_AGENT_PART_IDLE) {
            /* An init never has its version at once. */
            (void)ps_agent_send_launch(st, p);
        }
    }
    if (k->init.pending_parts == 0) {
        ps_buf_unref(k->init.array.buf);
        k->init.array = (struct ps_slice){0};
    }
}

void ps_agent_init_accept_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    op->round = 0;
    ps_list_push_back(&k->init.ops, &op->node);
    if (is_op_of_root(op) && k->init.pending_parts == 0 &&
        !ps_agent_round_is_open(k)) {
        start_init(st, k, op);
    }
    if (k->part_count == 0 || k->parts[0].owner_node != 0) {
        k->kind->advance(st, k);
    } else {
        end_satisfied_ops(st, k, &k->init.ops);
    }
}

void ps_agent_init_start_pending(struct ps_agent_step *st,
                                 struct ps_agent_key *k)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->init.ops)
    {
        if (is_op_of_root(op) && k->init.pending_parts == 0) {
            start_init(st, k, op);
            return;
        }
    }
}

bool ps_agent_init_reopen_part(struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->committed_version != 0 || p->local_version != NO_VERSION ||
        ps_agent_round_is_open(k) || p->is_init) {
        return false;
    }
    PS_LIST_EACH_OF(const struct ps_agent_op, op, node, &k->init.ops)
    {
        if (!is_op_of_root(op)) {
            continue;
        }
        if (k->init.pending_parts == 0) {
            ps_buf_unref(k->init.array.buf);
            k->init.array = op->array;
            ps_buf_ref(op->array.buf);
            k->init.retry++;
        }
        k->init.pending_parts++;
        p->is_init = true;
        p->committed_version = NO_VERSION;
        return true;
    }
    return false;
}
