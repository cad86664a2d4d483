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
#include "client/coll_inner.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_MAX 256u

static const char *const kind_names[] = {
    [COLL_ALLREDUCE] = "allreduce", [COLL_BCAST] = "broadcast",
    [COLL_ALLGATHER] = "allgather", [COLL_REDUCESCATTER] = "reduce-scatter",
    [COLL_ALLTOALL] = "alltoall",   [COLL_JOIN] = "join",
};

const char *coll_kind_name(enum coll_kind kind)
{
    return kind_names[kind];
}

void coll_name(const struct psc_op *op, char *text, size_t size)
{
    const struct coll *k = op->coll;

    if (k->is_join) {
        snprintf(text, size, "join");
    } else if (k->name[0] == '\0') {
        snprintf(text, size, "%s", coll_kind_name(k->kind));
    } else {
        snprintf(text, size, "%s of '%s'", coll_kind_name(k->kind), k->name);
    }
}

void coll_fail(struct coll *k, int rc, const char *text)
{
    if (k->rc == 0) {
        k->rc = rc;
        k->text = text != NULL ? strdup(text) : NULL;
    }
}

static void order_leave(struct coll *k)
{
    if (ps_list_linked(&k->of_order_queue)) {
        ps_list_remove(&k->of_order_queue);
    }
}

void coll_free(struct psc_op *op)
{
    struct coll *k = op->coll;

    if (k == NULL) {
        return;
    }
    for (uint32_t i = 0; i < k->subop_count; i++) {
        op_free(k->subops[i]);
    }
    for (uint32_t i = 0; i < k->skip_count; i++) {
        op_free(k->skips[i]);
    }
    order_leave(k);
    coll_release_source(k);
    free(k->skips);
    free(k->subops);
    free(k->name);
    free(k->pieces);
    free(k->rows_by_rank);
    free(k->splits);
    free(k->result);
    free(k->text);
    free(k);
    op->coll = NULL;
}

struct psc_op *coll_open_subop(struct psc_op *op)
{
    const struct coll *k = op->coll;

    if (k != NULL && k->stage == COLL_ORDER) {
        k = PS_CONTAINER(ps_list_first(&op->client->order_queue), struct coll,
                         of_order_queue);
    }
    for (uint32_t i = 0; k != NULL && i < k->subop_count; i++) {
        if (k->subops[i]->state != OP_DONE) {
            return k->subops[i];
        }
    }
    for (uint32_t i = 0; k != NULL && i < k->skip_count; i++) {
        if (k->skips[i]->state != OP_DONE) {
            return k->skips[i];
        }
    }
    return op;
}

/* ------------------------------------------------------------ AGREE, ORDER */

int coll_start_agree(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    int64_t *words;
    int rc = coll_small_round(k, "c:meet", 2 + (uint64_t)c->size, &words,
                              &part);

    if (rc != 0) {
        return rc;
    }
    words[0] = (int64_t)k->hash;
    words[1] = c->key_count >= EXACT_MAX;
    words[2 + c->rank] = k->is_join ? coll_join_entry(k) : (int64_t)k->rows;
    k->stage = COLL_AGREE;
    k->op->state = OP_COLLECTING;
    ps_list_push_back(&c->order_queue, &k->of_order_queue);
    coll_subop_start(part);
    return k->rc != 0 ? k->rc : c->rc;
}

static void coll_end_agree(struct coll *k)
{
    uint32_t size = k->op->client->size;
    const int64_t *words = coll_subop_result(k->subops[0]);

    k->is_size_rounded = words[1] > 0;
    k->all_agree = (uint64_t)words[0] == k->hash * size;
    memcpy(k->rows_by_rank, words + 2, size * WORD_BYTES);
    k->joined_count = 0;
    for (uint32_t r = 0; r < size; r++) {
        k->joined_count += words[2 + r] < 0;
    }
    k->stage = COLL_ORDER;
}

static void order_end(struct coll *k)
{
    if (k->joined_count == k->op->client->size && k->all_agree) {
        coll_end_join(k);
    } else if (k->joined_count == k->op->client->size) {
        k->is_join = false; /* The ranks have joined with different keys. */
        coll_start_mismatch(k);
    } else if (k->joined_count > 0) {
        coll_start_shadow(k);
    } else if (!k->all_agree) {
        coll_start_mismatch(k);
    } else {
        coll_start_work(k);
    }
}

/* --------------------------------------------------------------------
 * stages */

static void coll_end(struct coll *k)
{
    struct psc_op *op = k->op;

    order_leave(k);
    coll_skips_detach(k);
    coll_release_source(k);
    op_end(op, k->rc, k->text);
}

static void start_next_stage(struct coll *k)
{
    switch (k->stage) {
    case COLL_AGREE:
        coll_end_agree(k);
        break;
    case COLL_ORDER:
        order_end(k);
        break;
    case COLL_SHADOW:
        coll_end_shadow(k);
        break;
    case COLL_MISMATCH:
        if (!k->is_join) {
            coll_end_mismatch(k);
        }
        k->stage = COLL_DATA;
        break;
    case COLL_SPLITS:
        coll_end_splits(k);
        break;
    case COLL_DATA:
        break;
    }
}

static bool is_first_in_order(const struct coll *k)
{
    return ps_list_first(&k->op->client->order_queue) == &k->of_order_queue;
}

/* Starts the next stages; all sub-operations of this one have ended. */
static void coll_stage_ended(struct coll *k)
{
    /* Sub-operations that end during the loop do not recurse into it. */
    k->subops_open++;
    while (k->rc == 0 && k->subops_open == 1 && k->stage != COLL_DATA &&
           (k->stage != COLL_ORDER || is_first_in_order(k))) {
        start_next_stage(k);
    }
    if (k->stage == COLL_MISMATCH || k->stage == COLL_DATA) {
        order_leave(k);
    }
    while (k->rc == 0 && k->subops_open == 1 && k->is_join &&
           k->stage == COLL_DATA) {
        coll_join_next_agree(k);
    }
    if (--k->subops_open == 0 &&
        (k->rc != 0 || (k->stage != COLL_ORDER && k->skips_open == 0))) {
        coll_end(k);
    }
}

/* Continues the collectives in ORDER after the first one has left it. A stage
 * may end others: they reach coll_stage_ended(), not this loop again. */
static void run_order_queue(struct psc_client *c)
{
    struct ps_list_node *n;

    if (c->order_is_running) {
        return;
    }
    c->order_is_running = true;
    while ((n = ps_list_first(&c->order_queue)) != NULL) {
        struct coll *k = PS_CONTAINER(n, struct coll, of_order_queue);

        if (k->stage != COLL_ORDER) {
            break;
        }
        coll_stage_ended(k);
    }
    c->order_is_running = false;
}

void coll_next_stage(struct coll *k)
{
    struct psc_client *c = k->op->client;

    if (k->subops_open == 0 && k->op->state == OP_COLLECTING) {
        coll_stage_ended(k);
        run_order_queue(c);
    }
}

void coll_subop_ended(struct psc_op *part)
{
    struct coll *k = part->subop_of;

    if (part->rc != 0) {
        coll_fail(k, part->rc, part->text);
    }
    assert(k->subops_open > 0);
    k->subops_open--;
    coll_next_stage(k);
}
