/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over the ranks of this node. A round of a key is open from the first
 * contribution until all partitions have its version; it is complete, and its
 * partitions are summed and sent, when every local rank has contributed. Arrays
 * stay in worker memory and can be summed again until the round ends
 * (rule R12).
 *
 * A streaming worker contributes while it still copies its array: a partition
 * leaves when its bytes are ready on all local ranks. If such a worker died,
 * part of its gradient would be in the sums, so streaming is limited to jobs
 * that fail when they lose a worker (rule W15). */
#include "core/agent/round.h"

#include "base/str.h"
#include "core/agent/advance.h"
#include "core/agent/conflict.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/reattach.h"

uint64_t ps_agent_round_of_op(const struct ps_agent_op *op)
{
    return op->round;
}

void ps_agent_round_stamp(const struct ps_agent_key *k, struct ps_rec_part *rec)
{
    rec->attempt = k->round.starts;
}

/* Takes the request of the round from `op`: its first contribution, or the
 * first that is not a skip. */
static void adopt_request(struct ps_agent_key *k, const struct ps_agent_op *op)
{
    k->round.op = op->kind;
    k->round.reduce = op->reduce;
    k->round.root = op->root;
    k->round.priority = op->priority;
}

static void open_round(struct ps_agent_key *k, const struct ps_agent_op *op)
{
    if (k->round.conflict != NULL && op->round != k->round.number) {
        ps_agent_conflict_clear(k);
    }
    ps_agent_round_set_state(k, PS_AGENT_ROUND_OPEN);
    k->round.needs_value = false;
    k->round.number = op->round;
    k->round.starts++;
    k->round.contributed_count = 0;
    k->round.streaming_count = 0;
    adopt_request(k, op);
}

static bool op_matches_round(const struct ps_agent_key *k,
                             const struct ps_agent_op *op)
{
    bool broadcast = op->kind == PS_OP_BROADCAST;

    if (op->kind == PS_OP_SKIP || k->round.op == PS_OP_SKIP) {
        return true;
    }
    if (broadcast != (k->round.op == PS_OP_BROADCAST)) {
        return false;
    }
    return broadcast ? op->root == k->round.root
                     : op->reduce == k->round.reduce;
}

/* Rule R24: aborts a broadcast whose root skips, and returns true then. Only in
 * jobs without servers: servers detect a round without a value themselves. */
static bool fail_if_root_skips(struct ps_agent_step *st, struct ps_agent_key *k)
{
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (k->round.op != PS_OP_BROADCAST || k->part_count == 0 ||
        k->parts[0].owner_node != 0) {
        return false;
    }
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (k->job->local_ranks[i].rank == k->round.root &&
            k->round.contribution[i] != NULL &&
            k->round.contribution[i]->kind == PS_OP_SKIP) {
            ps_str_init(&t, text, sizeof(text));
            ps_str_addf(&t,
                        "broadcast of '%s' round %llu: rank %u has joined and "
                        "cannot be the root",
                        k->name, (unsigned long long)k->round.number,
                        k->round.root);
            ps_agent_conflict_on_refuse(st, k, k->round.number,
                                        ps_agent_round_retry(k) + 1, text);
            return true;
        }
    }
    return false;
}

void ps_agent_round_launch_ready(struct ps_agent_step *st,
                                 struct ps_agent_key *k)
{
    while (k->round.launched_parts < k->part_count &&
           ps_agent_contribution_is_ready(&k->parts[k->round.launched_parts])) {
        struct ps_agent_part *p = &k->parts[k->round.launched_parts++];

        if (p->state != PS_AGENT_PART_IDLE) {
            /* An init of the partition, or a sum for an earlier round, still
             * runs; its end launches the partition. */
            continue;
        }
        if (ps_agent_round_may_be_committed(k) &&
            p->committed_version >= (int64_t)k->round.number) {
            continue;
        }
        p->is_init = false;
        ps_agent_advance_launch(st, p);
    }
}

void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k)
{
    if (fail_if_root_skips(st, k)) {
        return;
    }
    ps_agent_round_set_state(k, PS_AGENT_ROUND_COMPLETE);
    k->round.pending_parts = k->part_count;
    k->round.deliveries = 0;
    k->round.completed_prefix = 0;
    k->round.launched_parts = 0;
    k->round.reported_bytes = 0;
    k->round.weight = ps_agent_contribution_weight(k);
    PS_LIST_EACH(n, &k->pulls)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    node);

        k->round.needs_value = k->round.needs_value ||
                               (k->kind->has_rounds &&
                                op->round >= k->round.number);
    }
    ps_agent_round_launch_ready(st, k);
    ps_agent_advance_committed(st, k);
}

static void append_request(struct ps_str *t, enum ps_op kind, uint8_t reduce,
                           uint32_t root)
{
    if (kind == PS_OP_BROADCAST) {
        ps_str_addf(t, "broadcast from rank %u", root);
    } else {
        ps_str_add(t, ps_reduce_name(reduce));
    }
}

/* Returns true when the operation is for the rank's next round. False: it has
 * been refused. Another operation of the rank may have taken the round of a
 * deferred one since its arrival. */
static bool check_op_round(struct ps_agent_step *st, struct ps_agent_op *op)
{
    const struct ps_agent_key *k = op->key;
    uint64_t next = k->round.pushed_round[op->local_rank] + 1;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (op->round == next && k->round.contribution[op->local_rank] == NULL) {
        return true;
    }
    ps_str_init(&t, text, sizeof(text));
    ps_str_addf(&t, "'%s': rank %u offers round %llu, but its next is %llu",
                k->name, k->job->local_ranks[op->local_rank].rank,
                (unsigned long long)op->round, (unsigned long long)next);
    ps_agent_op_end(st, op, 0, PS_E_INVAL, text);
    return false;
}

/* Adds the contribution to the round, which it opens if necessary. False: the
 * operation has ended or caused a conflict. */
static bool contribute_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    if (!check_op_round(st, op) || ps_agent_conflict_refuse_successor(st, op)) {
        return false;
    }
    if (k->round.conflict != NULL && ps_agent_conflict_notify_op(st, op)) {
        return false;
    }
    if (!ps_agent_round_is_open(k)) {
        open_round(k, op);
    }
    if (!op_matches_round(k, op)) {
        char text[PS_TEXT_MAX];
        struct ps_str t;

        ps_str_init(&t, text, sizeof(text));
        ps_str_addf(&t,
                    "'%s' round %llu: the requests of the ranks differ: "
                    "rank %u: ",
                    k->name, (unsigned long long)op->round,
                    k->job->local_ranks[op->local_rank].rank);
        append_request(&t, op->kind, op->reduce, op->root);
        ps_str_add(&t, "; others: ");
        append_request(&t, k->round.op, k->round.reduce, k->round.root);
        ps_agent_conflict_begin(st, op, text);
        return false;
    }
    if (k->round.op == PS_OP_SKIP) {
        adopt_request(k, op);
    }
    k->round.contribution[op->local_rank] = op;
    k->round.contributed_count++;
    k->round.streaming_count += ps_agent_op_is_streaming(op);
    k->round.pushed_round[op->local_rank] = op->round;
    k->round.needs_value = k->round.needs_value ||
                           (!op->send_only && op->kind != PS_OP_PUSH &&
                            op->kind != PS_OP_PUSH_ROWS &&
                            op->kind != PS_OP_SKIP);
    if (op->kind != PS_OP_SKIP && op->priority > k->round.priority) {
        k->round.priority = op->priority;
    }
    if (k->round.contributed_count == k->job->local_rank_count) {
        ps_agent_round_complete(st, k);
    }
    return true;
}

void ps_agent_round_accept_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    if (k->prior_state != NULL && ps_agent_reattach_accept_op(st, op)) {
        return;
    }
    if (ps_agent_round_is_open(k) && op->round > k->round.number) {
        /* A rank whose worker was replaced may contribute while its last
         * round is open. */
        ps_list_push_back(&k->round.deferred_pushes, &op->node);
    } else {
        contribute_op(st, op);
    }
}

/* ----------------------------------------------------------- end of a round */

static void contribute_deferred(struct ps_agent_step *st,
                                struct ps_agent_key *k)
{
    struct ps_list again;
    struct ps_list_node *n;

    ps_list_init(&again);
    while ((n = ps_list_pop(&k->round.deferred_pushes)) != NULL) {
        ps_list_push_back(&again, n);
    }
    while ((n = ps_list_pop(&again)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (ps_agent_round_is_open(k) && op->round > k->round.number) {
            ps_list_push_back(&k->round.deferred_pushes, n);
        } else {
            contribute_op(st, op);
        }
    }
}

void ps_agent_round_end(struct ps_agent_step *st, struct ps_agent_key *k)
{
    const uint64_t round = k->round.number;
    const bool skipped = ps_agent_contribution_all_skipped(k);

    ps_agent_round_set_state(k, PS_AGENT_ROUND_IDLE);
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = k->round.contribution[i];

        k->round.contribution[i] = NULL;
        k->job->local_ranks[i].is_resuming &= op == NULL ||
                                              k->kind->is_collective;
        if (op != NULL && skipped) {
            ps_agent_op_end_skipped(st, op, round);
        } else if (op != NULL) {
            ps_agent_op_end(st, op, round, 0, "");
        }
    }
    k->kind->advance(st, k);
    contribute_deferred(st, k);
}
