/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over the ranks of this node. A round of a key is open from the first
 * contribution until all partitions have its version; it is complete, and its
 * partitions are summed and sent, when every local rank has contributed. Arrays
 * stay in worker memory and can be summed again until the round ends
 * (rule R12). New versions, from a server or from a sum of this node, end a
 * round, an init, or pulls.
 *
 * A streaming worker contributes while it still copies its array: a partition
 * leaves when its bytes are ready on all local ranks. If such a worker died,
 * part of its gradient would be in the sums, so streaming is limited to jobs
 * that fail when they lose a worker (rule W15). */
#include "core/agent/round.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/conflict.h"
#include "core/agent/encode.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/place.h"
#include "core/agent/send.h"
#include "core/agent/server.h"

#include <assert.h>

/* Progress of a partial result is reported each time this many bytes are
 * added: small against a cache, large against the cost of a wake-up. */
#define PROGRESS_BYTES (2u * 1024u * 1024u)

/* --------------------------------------------------------- values for GPUs */

/* Copies of values into memory of GPUs are part of the round: it ends when they
 * are made, so the results are not overwritten meanwhile. A copy that fails costs
 * its workers time, not the round: the value lies in the results. */

/* Memory of a GPU for the value of a local rank; NULL: none, or its worker is
 * gone. */
static struct ps_agent_op *delivered_op(const struct ps_agent_key *k,
                                        uint32_t local)
{
    struct ps_agent_op *op = k->round.contribution[local];

    return op != NULL && op->session != NULL && op->out.buf != NULL ? op : NULL;
}

static uint32_t count_outs(const struct ps_agent_key *k)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        count += delivered_op(k, i) != NULL;
    }
    return count;
}

/* Starts the copy of a partition, which has the value of its round, to the
 * workers that want it in memory of a GPU. */
static void deliver_part(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;
    const struct ps_slice value = ps_agent_part_result(p, k->round.number);
    const uint32_t count = count_outs(k);
    struct ps_agent_computation *run;
    struct ps_compute *c;

    if (count == 0) {
        return; /* Their workers are gone. */
    }
    run = ps_agent_computation_new(st->a, p, NULL);
    run->is_delivery = true;
    c = ps_compute_new(run->token, 1, count);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)k->dtype;
    c->job.count = p->count;
    ps_compute_add_src(c, &value, 0);
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = delivered_op(k, i);

        if (op != NULL) {
            const struct ps_slice out = ps_agent_part_slice(p, &op->out);

            ps_compute_add_out(c, &out, count);
        }
    }
    k->round.deliveries++;
    ps_agent_computation_start(st, run, c);
}

/* Ends it, and frees `run`. Returns the key if the round is still the one that it
 * was; else NULL. */
static struct ps_agent_key *deliver_end(struct ps_agent_computation *run,
                                        int error)
{
    struct ps_agent_key *k = run->part == NULL ? NULL : run->part->key;

    if (k != NULL && (k->round.state != PS_AGENT_ROUND_COMPLETE ||
                      k->round.starts != run->round_starts)) {
        k = NULL;
    }
    ps_free(run);
    if (k == NULL) {
        return NULL;
    }
    assert(k->round.deliveries > 0);
    k->round.deliveries--;
    for (uint32_t i = 0; error != 0 && i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = delivered_op(k, i);

        if (op != NULL) {
            op->is_undelivered = true;
        }
    }
    return k;
}

/* ------------------------------------------------------------ new versions */

/* Launches the partition, and advances it if it has the version at once. */
static void advance_launch(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (ps_agent_send_launch(st, p)) {
        ps_agent_round_advance(st, p);
    }
}

/* Reports the readable prefix of the result every PROGRESS_BYTES, so that
 * workers copy it while it is cached and the rest arrives. Only values of this
 * very version count: others lie at another offset. */
static void report_progress(struct ps_agent_step *st, struct ps_agent_key *k)
{
    uint64_t bytes;

    while (k->round.completed_prefix < k->part_count &&
           k->parts[k->round.completed_prefix].completed_round >=
               k->round.number &&
           k->parts[k->round.completed_prefix].local_version ==
               (int64_t)k->round.number) {
        k->round.completed_prefix++;
    }
    if (k->round.completed_prefix == k->part_count) {
        return; /* The end of the round follows. */
    }
    bytes = k->parts[k->round.completed_prefix].first_elem *
            ps_dtype_size(k->dtype);
    if (bytes < k->round.reported_bytes + PROGRESS_BYTES) {
        return;
    }
    k->round.reported_bytes = bytes;
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = k->round.contribution[i];

        if (op != NULL && op->session != NULL && !op->session->is_closing &&
            (op->kind == PS_OP_PUSHPULL || op->kind == PS_OP_BROADCAST) &&
            !op->send_only && op->out.buf == NULL) {
            ps_effects_op_progress(st->fx, op->session->conn, op->id, bytes);
        }
    }
}

/* True if servers may have committed a round before it is complete here: the
 * prior process of the agent had pushed it, or an attempt was aborted here of
 * which servers had all contributions. */
static bool may_be_committed(const struct ps_agent_key *k)
{
    return k->prior_state != NULL || k->round.conflict != NULL;
}

/* Advances partitions of a complete round that may be committed already: servers
 * may have merged pushes of the previous agent and reported that to this
 * one. */
static void advance_committed(struct ps_agent_step *st, struct ps_agent_key *k)
{
    uint64_t round = k->round.number;

    for (uint32_t i = 0;
         i < k->part_count && k->round.state == PS_AGENT_ROUND_COMPLETE &&
         k->round.number == round;
         i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->completed_round < round &&
            p->committed_version >= (int64_t)round && !p->is_init) {
            ps_agent_round_advance(st, p);
        }
    }
}

void ps_agent_round_after_init(struct ps_agent_step *st, struct ps_agent_key *k)
{
    k->kind->advance(st, k);
    if (k->round.state == PS_AGENT_ROUND_COMPLETE) {
        /* The round became complete during the init. */
        for (uint32_t i = 0; i < k->part_count; i++) {
            struct ps_agent_part *q = &k->parts[i];

            if (q->state == PS_AGENT_PART_IDLE &&
                q->committed_version < (int64_t)k->round.number &&
                ps_agent_contribution_is_ready(q)) {
                advance_launch(st, q);
            }
        }
        if (may_be_committed(k)) {
            advance_committed(st, k);
        }
    }
}

/* Ends the init when it is committed in all partitions. */
static void end_init_part(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->state != PS_AGENT_PART_COMPUTING) {
        ps_agent_server_dequeue(st, p);
    }
    p->is_init = false;
    assert(k->init.pending_parts > 0);
    if (--k->init.pending_parts > 0) {
        return;
    }
    ps_buf_unref(k->init.array.buf);
    k->init.array = (struct ps_slice){0};
    ps_agent_round_after_init(st, k);
}

/* Ends the round if all of its value is in place. */
static bool end_if_over(struct ps_agent_step *st, struct ps_agent_key *k)
{
    if (k->round.pending_parts > 0 || k->round.deliveries > 0) {
        return false;
    }
    st->a->stats.rounds++;
    k->kind->end_round(st, k);
    return true;
}

void ps_agent_round_on_delivered(struct ps_agent_step *st,
                                 struct ps_agent_computation *run, int error)
{
    struct ps_agent_key *k = deliver_end(run, error);

    if (k != NULL) {
        (void)end_if_over(st, k);
    }
}

void ps_agent_round_advance(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->is_init) {
        if (p->committed_version >= 0) {
            end_init_part(st, p);
        }
        return;
    }
    if (k->round.state == PS_AGENT_ROUND_COMPLETE &&
        p->completed_round < k->round.number &&
        p->committed_version >= (int64_t)k->round.number) {
        if (p->state != PS_AGENT_PART_COMPUTING) {
            ps_agent_server_dequeue(st, p);
        }
        if (k->round.needs_value &&
            p->local_version < (int64_t)k->round.number) {
            k->kind->advance(st, k); /* Committed without the value. */
            return;
        }
        p->completed_round = k->round.number;
        if (k->compression.codec.kind != PS_CODEC_NONE) {
            ps_agent_encode_discard(p);
        }
        assert(k->round.pending_parts > 0);
        k->round.pending_parts--;
        if (k->round.has_outs) {
            deliver_part(st, p);
        }
        if (end_if_over(st, k)) {
            return;
        }
        if (k->round.needs_value) {
            report_progress(st, k);
        }
    }
    k->kind->advance(st, k);
}

void ps_agent_round_on_commit(struct ps_agent_step *st, struct ps_agent_part *p,
                              uint64_t version, bool all_skipped)
{
    if ((int64_t)version > p->committed_version) {
        p->committed_version = (int64_t)version;
    }
    if (all_skipped) {
        ps_agent_part_skip(p, version);
    }
    ps_agent_round_advance(st, p);
}

/* Returns true if the init or the round has not failed since: after a failure
 * workers may change their arrays. */
static bool is_result_current(const struct ps_agent_computation *run)
{
    const struct ps_agent_key *k = run->part->key;

    return run->version == 0 ? run->part->is_init
                             : k->round.state == PS_AGENT_ROUND_COMPLETE &&
                                   run->round_starts == k->round.starts;
}

void ps_agent_round_on_computed(struct ps_agent_step *st,
                                struct ps_agent_computation *run, int error)
{
    struct ps_agent_part *p = run->part;
    struct ps_agent_key *k = p == NULL ? NULL : p->key;

    if (p != NULL && p->state == PS_AGENT_PART_COMPUTING) {
        ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
        if (!is_result_current(run)) {
            if (p->is_init || ps_agent_contribution_is_needed(p)) {
                advance_launch(st, p);
            }
        } else if (error != 0) {
            struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

            ps_str_addf(&t,
                        "the sum of '%s' could not be computed on this node: "
                        "%s",
                        k->name, ps_strerror(error));
            ps_agent_fail_key(st, k, error, t.data);
        } else {
            p->committed_version = run->version;
            p->local_version = run->version;
            ps_agent_round_advance(st, p);
        }
    }
    ps_free(run);
}

/* ----------------------------------------------------------- contributions */

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
    k->round.has_outs = false;
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
    if (k->part_count == 0 || k->parts[0].owner_node != 0) {
        return false;
    }
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (k->job->local_ranks[i].rank == k->round.root &&
            k->round.contribution[i] != NULL &&
            k->round.contribution[i]->kind == PS_OP_SKIP) {
            struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

            ps_str_addf(&t,
                        "broadcast of '%s' round %llu: rank %u has joined and "
                        "cannot be the root",
                        k->name, (unsigned long long)k->round.number,
                        k->round.root);
            ps_agent_conflict_on_refuse(st, k, k->round.number,
                                        ps_agent_round_retry(k) + 1, t.data);
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
        if (p->committed_version >= (int64_t)k->round.number &&
            may_be_committed(k)) {
            continue;
        }
        p->is_init = false;
        advance_launch(st, p);
    }
}

void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k)
{
    if (k->round.op == PS_OP_BROADCAST && fail_if_root_skips(st, k)) {
        return;
    }
    ps_agent_round_set_state(k, PS_AGENT_ROUND_COMPLETE);
    k->round.pending_parts = k->part_count;
    k->round.deliveries = 0;
    k->round.completed_prefix = 0;
    k->round.launched_parts = 0;
    k->round.reported_bytes = 0;
    k->round.weight = ps_agent_contribution_weight(k);
    PS_LIST_EACH_OF(const struct ps_agent_op, op, node, &k->pulls)
    {
        k->round.needs_value = k->round.needs_value ||
                               (k->kind->has_rounds &&
                                op->round >= k->round.number);
    }
    ps_agent_round_launch_ready(st, k);
    if (may_be_committed(k)) {
        advance_committed(st, k);
    }
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

    if (op->round == next && k->round.contribution[op->local_rank] == NULL) {
        return true;
    }
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

    ps_str_addf(
        &t,
        "'%s': rank %u contributes to round %llu, but its next round is %llu",
        k->name, k->job->local_ranks[op->local_rank].rank,
        (unsigned long long)op->round, (unsigned long long)next);
    ps_agent_op_end(st, op, 0, PS_E_INVAL, t.data);
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
        struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

        ps_str_addf(&t,
                    "'%s' round %llu: the requests of the ranks differ: "
                    "rank %u: ",
                    k->name, (unsigned long long)op->round,
                    k->job->local_ranks[op->local_rank].rank);
        append_request(&t, op->kind, op->reduce, op->root);
        ps_str_add(&t, "; others: ");
        append_request(&t, k->round.op, k->round.reduce, k->round.root);
        ps_agent_conflict_begin(st, op, t.data);
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
    k->round.has_outs = k->round.has_outs || op->out.buf != NULL;
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
    struct ps_agent_op *op;

    ps_list_init(&again);
    ps_list_move_all(&k->round.deferred_pushes, &again);
    while ((op = PS_LIST_POP(struct ps_agent_op, node, &again)) != NULL) {
        if (ps_agent_round_is_open(k) && op->round > k->round.number) {
            ps_list_push_back(&k->round.deferred_pushes, &op->node);
        } else {
            contribute_op(st, op);
        }
    }
}

/* Returns true when all ranks of the job skipped the round, which those of this
 * node did: a server's report is ignored if a local rank contributed (rule
 * R23). */
static bool have_all_skipped(const struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].skipped_version != (int64_t)k->round.number) {
            return false;
        }
    }
    return true;
}

void ps_agent_round_end(struct ps_agent_step *st, struct ps_agent_key *k)
{
    const uint64_t round = k->round.number;
    const bool skipped = k->round.op == PS_OP_SKIP && have_all_skipped(k);

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
    if (!ps_list_empty(&k->round.deferred_pushes)) {
        contribute_deferred(st, k);
    }
}
