/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives, built on rounds. Every worker takes part in the same collectives
 * in the same order; the n-th of each worker is one operation.
 *
 *     AGREE     a round of a small key tells all ranks whether their requests
 *               are equal, and how many rows each contributes
 *     ORDER     waits until earlier collectives have started their rounds
 *     SHADOW    some ranks have joined, see psc_join_start(): the others
 *               describe the collective, and the joined ones do the same
 *               without data
 *     MISMATCH  requests differ: a round with each rank's request, so that
 *               every rank's error lists all of them
 *     SPLITS    alltoall: number of rows from each rank to each other
 *     DATA      allreduce is one pushpull; an array from one rank to all is a
 *               broadcast in words of 8 bytes; allgather is one of these for
 *               each rank, alltoall for each pair of ranks, where only the
 *               receiver asks for the value; reduce-scatter is one round for
 *               each chunk, where only its owner asks for the value
 *
 * Keys of DATA are named by their contents, not by the collective: collectives
 * of the same shapes reuse them. When some rank has EXACT_MAX keys, which all
 * learn in AGREE, sizes are rounded up, so that the number of keys is bounded;
 * they are deleted with the job. ORDER makes the rounds of a key belong to the
 * same collectives on all ranks: without it a later collective could overtake
 * an alltoall in SPLITS on some ranks and not on others. */
#include "client/coll/coll.h"
#include "client/op.h"
#include "client/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/state_table.h"

#define EXACT_MAX 256u

/* ------------------------------------------------------- as one operation */

static void name_coll(const struct psc_op *op, char *text, size_t size)
{
    coll_name(op->coll, text, size);
}

static void free_coll(struct psc_op *op)
{
    struct coll *k = op->coll;

    for (uint32_t i = 0; i < k->subops.count; i++) {
        op_free(k->subops.list[i]);
    }
    for (uint32_t i = 0; i < k->join.skip_count; i++) {
        op_free(k->join.skips[i]);
    }
    ps_list_unlink(&k->of_order_queue);
    coll_device_drop_source(k);
    coll_release_source(k);
    coll_device_close(k);
    free(k->join.skips);
    free(k->subops.list);
    free(k->name);
    free(k->dst.pieces);
    free(k->rows_by_rank);
    free(k->splits);
    free(k->dst.result);
    free(k->text);
    free(k);
}

static bool is_coll_copying(const struct psc_op *op)
{
    const struct coll *k = op->coll;

    for (uint32_t i = 0; i < k->subops.count; i++) {
        if (k->subops.list[i]->state == OP_COPYING) {
            return true;
        }
    }
    return false;
}

static struct psc_op *first_open_subop(struct psc_op *op)
{
    const struct coll *k = op->coll;

    if (k->stage == COLL_ORDER) {
        k = PS_LIST_FIRST(struct coll, of_order_queue,
                          &op->client->colls.order_queue);
    }
    for (uint32_t i = 0; i < k->subops.count; i++) {
        if (k->subops.list[i]->state != OP_DONE) {
            return k->subops.list[i];
        }
    }
    for (uint32_t i = 0; i < k->join.skip_count; i++) {
        if (k->join.skips[i]->state != OP_DONE) {
            return k->join.skips[i];
        }
    }
    return op;
}

static int view_coll(const struct psc_op *op, const void **ret_data,
                     size_t *ret_bytes)
{
    const struct coll *k = op->coll;
    const struct psc_op *last;

    if (k->kind == COLL_JOIN) {
        return PSC_E_NOENT;
    }
    if (k->dst.result != NULL || k->dst.result_size == 0) {
        *ret_data = k->dst.result;
        *ret_bytes = k->dst.result_size;
        return 0;
    }
    if (k->dst.pieces != NULL || k->dst.postscale != 1) {
        return PSC_E_NOENT;
    }
    if (k->kind != COLL_ALLREDUCE && k->kind != COLL_BCAST) {
        *ret_data = k->dst.out;
        *ret_bytes = k->dst.result_size;
        return 0;
    }
    last = k->subops.list[k->subops.count - 1];
    *ret_data = last->result.data;
    *ret_bytes = k->dst.result_size;
    return 0;
}

static const struct op_hooks coll_hooks = {
    .name = name_coll,
    .fini = free_coll,
    .is_copying = is_coll_copying,
    .waits_for = first_open_subop,
    .view = view_coll,
};

/* ------------------------------------------------------------ AGREE, ORDER */

/* Where the entry of a rank lies in the round. */
static size_t agree_rank_offset(uint32_t rank)
{
    return PS_FIXED_COLL_AGREE_BYTES +
           (size_t)rank * PS_FIXED_COLL_AGREE_RANK_BYTES;
}

int coll_start(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    uint8_t *words;
    int rc = coll_small_round(k, "meet", agree_rank_offset(c->id.size), &words,
                              &part);

    if (rc != 0) {
        return rc;
    }
    ps_fixed_put_coll_agree(words,
                            &(struct ps_fixed_coll_agree){
                                .hash = (int64_t)k->hash,
                                .round_sizes = c->keys.count >= EXACT_MAX});
    ps_fixed_put_coll_agree_rank(
        words + agree_rank_offset(c->id.rank),
        &(struct ps_fixed_coll_agree_rank){
            .rows = k->is_join ? coll_join_entry(k) : (int64_t)k->array.rows});
    if (k->op->state == OP_NEW) {
        op_set_state(k->op, OP_COLLECTING);
    }
    ps_list_push_back(&c->colls.order_queue, &k->of_order_queue);
    coll_subop_start(part);
    return k->rc != 0 ? k->rc : c->rc;
}

static void end_agree(struct coll *k)
{
    uint32_t size = k->op->client->id.size;
    const uint8_t *words = coll_subop_result(k->subops.list[0]);
    struct ps_fixed_coll_agree sum = {0};

    /* Every sum is valid. */
    (void)!ps_fixed_get_coll_agree(words, &sum);
    k->is_size_rounded = sum.round_sizes > 0;
    k->all_agree = (uint64_t)sum.hash == k->hash * size;
    k->joined_count = 0;
    for (uint32_t r = 0; r < size; r++) {
        struct ps_fixed_coll_agree_rank rank = {0};

        (void)!ps_fixed_get_coll_agree_rank(words + agree_rank_offset(r),
                                            &rank);
        k->rows_by_rank[r] = (uint64_t)rank.rows;
        k->joined_count += rank.rows < 0;
    }
}

static enum coll_stage end_order(struct coll *k)
{
    if (k->joined_count == k->op->client->id.size && k->all_agree) {
        coll_end_join(k);
        return COLL_NO_DATA;
    }
    if (k->joined_count == k->op->client->id.size) {
        k->is_join = false; /* The ranks have joined with different keys. */
        return COLL_MISMATCH;
    }
    if (k->joined_count > 0) {
        return COLL_SHADOW;
    }
    return k->all_agree ? coll_first_stage(k) : COLL_MISMATCH;
}

/* ------------------------------------------------------------------ stages */

static void coll_end(struct coll *k)
{
    struct psc_op *op = k->op;

    ps_list_unlink(&k->of_order_queue);
    coll_skips_detach(k);
    coll_device_drop_source(k);
    coll_release_source(k);
    op_end(op, k->rc, k->text);
}

/* Returns the stage that follows. */
static enum coll_stage end_stage(struct coll *k)
{
    switch (k->stage) {
    case COLL_AGREE:
        end_agree(k);
        return COLL_ORDER;
    case COLL_ORDER:
        return end_order(k);
    case COLL_SHADOW:
        return coll_end_shadow(k);
    case COLL_MISMATCH:
        if (!k->is_join) {
            coll_end_mismatch(k);
        }
        return COLL_NO_DATA;
    case COLL_SPLITS:
        coll_end_splits(k);
        return COLL_DATA;
    case COLL_DATA:
    case COLL_NO_DATA:
        break;
    }
    return k->stage;
}

static const char *const stage_names[] = {
    [COLL_AGREE] = "AGREE",     [COLL_ORDER] = "ORDER",
    [COLL_SHADOW] = "SHADOW",   [COLL_MISMATCH] = "MISMATCH",
    [COLL_SPLITS] = "SPLITS",   [COLL_DATA] = "DATA",
    [COLL_NO_DATA] = "no data",
};

static const uint32_t successors[] = {
    [COLL_AGREE] = PS_STATE_BIT(COLL_ORDER),
    [COLL_ORDER] = PS_STATE_BIT(COLL_SHADOW) | PS_STATE_BIT(COLL_MISMATCH) |
                   PS_STATE_BIT(COLL_SPLITS) | PS_STATE_BIT(COLL_DATA) |
                   PS_STATE_BIT(COLL_NO_DATA),
    [COLL_SHADOW] = PS_STATE_BIT(COLL_MISMATCH) | PS_STATE_BIT(COLL_SPLITS) |
                    PS_STATE_BIT(COLL_DATA) | PS_STATE_BIT(COLL_NO_DATA),
    [COLL_MISMATCH] = PS_STATE_BIT(COLL_NO_DATA),
    [COLL_SPLITS] = PS_STATE_BIT(COLL_DATA),
    /* A join shadows the next collective. */
    [COLL_DATA] = PS_STATE_BIT(COLL_AGREE),
    [COLL_NO_DATA] = PS_STATE_BIT(COLL_AGREE),
};

/* The stages of a collective, in the client. */
static const struct ps_state_table coll_stages = {
    .name = "collective",
    .states = stage_names,
    .count = sizeof(stage_names) / sizeof(stage_names[0]),
    .allowed = successors,
};

static bool set_stage(struct coll *k, enum coll_stage to)
{
    if (!ps_state_may_follow(&coll_stages, k->stage, to)) {
        client_fail(k->op->client, PSC_E_BUG, "a %s cannot go from %s to %s",
                    coll_stages.name, ps_state_name(&coll_stages, k->stage),
                    ps_state_name(&coll_stages, to));
        coll_fail(k, PSC_E_BUG, NULL);
        return false;
    }
    k->stage = to;
    return true;
}

static void start_stage(struct coll *k, enum coll_stage stage)
{
    if (!set_stage(k, stage)) {
        return;
    }
    switch (stage) {
    case COLL_SHADOW:
        coll_start_shadow(k);
        break;
    case COLL_MISMATCH:
        coll_start_mismatch(k);
        break;
    case COLL_SPLITS:
        coll_start_splits(k);
        break;
    case COLL_DATA:
        coll_start_data(k);
        break;
    case COLL_AGREE:
    case COLL_ORDER:
    case COLL_NO_DATA:
        break;
    }
}

static bool is_in_last_stage(const struct coll *k)
{
    return k->stage == COLL_DATA || k->stage == COLL_NO_DATA;
}

static bool is_first_in_order(const struct coll *k)
{
    return ps_list_first(&k->op->client->colls.order_queue) ==
           &k->of_order_queue;
}

/* Starts AGREE of the next collective that a join shadows. */
static void shadow_next(struct coll *k)
{
    int rc;

    coll_release_source(k);
    while (k->subops.count > 0) {
        op_free_later(k->subops.list[--k->subops.count]);
    }
    k->kind = COLL_JOIN;
    rc = set_stage(k, COLL_AGREE) ? coll_start(k) : PSC_E_BUG;
    if (rc != 0) {
        coll_fail_client(k, rc);
    }
}

/* Starts the next stages; all sub-operations of this one have ended. */
static void run_stages(struct coll *k)
{
    /* Sub-operations that end during the loops do not recurse into them. */
    k->subops.open++;
    while (k->rc == 0 && k->subops.open == 1 && !is_in_last_stage(k) &&
           (k->stage != COLL_ORDER ||
            (is_first_in_order(k) && !k->src.is_pending))) {
        enum coll_stage next = end_stage(k);

        if (k->rc == 0) {
            start_stage(k, next);
        }
    }
    if (k->stage == COLL_MISMATCH || is_in_last_stage(k)) {
        ps_list_unlink(&k->of_order_queue);
    }
    while (k->rc == 0 && k->subops.open == 1 && k->is_join &&
           is_in_last_stage(k)) {
        shadow_next(k);
    }
    if (--k->subops.open == 0 &&
        (k->rc != 0 || (k->stage != COLL_ORDER && k->join.skips_open == 0))) {
        coll_end(k);
    }
}

/* Continues the collectives in ORDER after the first one has left it. A stage
 * may end others: they reach run_stages(), not this loop again. */
static void run_order_queue(struct psc_client *c)
{
    struct coll *k;

    if (c->colls.order_is_running) {
        return;
    }
    c->colls.order_is_running = true;
    while ((k = PS_LIST_FIRST(struct coll, of_order_queue,
                              &c->colls.order_queue)) != NULL &&
           k->stage == COLL_ORDER && !k->src.is_pending) {
        run_stages(k);
    }
    c->colls.order_is_running = false;
}

static void run_coll(struct coll *k)
{
    if (k->subops.open == 0 && k->op->state == OP_COLLECTING) {
        run_stages(k);
        run_order_queue(k->op->client);
    }
}

/* ---------------------------------------------------------------- starting */

struct coll *coll_new(struct psc_client *c)
{
    struct coll *k = calloc(1, sizeof(*k));
    struct psc_op *op = k != NULL ? op_new(c, OP_COLL) : NULL;

    if (op == NULL) {
        free(k);
        return NULL;
    }
    op->coll = k;
    op->hooks = &coll_hooks;
    k->op = op;
    k->on_idle = run_coll;
    return k;
}
