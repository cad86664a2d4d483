/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives out of rounds. Every worker takes part in the same collectives
 * in the same order; the n-th of each worker is one.
 *
 *     MEET    a round of a small key: all learn whether they ask for the same,
 *             and how many rows each brings
 *     TURN    those that met before have their rounds under way
 *     FOLLOW  some have joined, see psc_join_start(): those who have not say
 *             what they do, and the others do the same with nothing to give
 *     DIFFER  they do not: a round in which each says what it asks for, so
 *             that everybody's error names everybody
 *     SPLITS  alltoall: who sends how much to whom
 *     DATA    allreduce is one pushpull; an array that one rank gives to all is
 *             a broadcast in words of 8 bytes; allgather is one of these for
 *             each rank, alltoall for each pair of ranks, of which only the
 *             receiver wants the value; reduce-scatter is one round for each
 *             chunk, whose value only its owner wants
 *
 * The keys of DATA are named by what they hold, not by the collective: the
 * same shapes use the same keys again. When some rank has seen EXACT_MAX keys,
 * which all learn in MEET, sizes are rounded up, so there is a bounded number
 * of keys; they are gone with the job. The rounds of a key belong to the same
 * collectives on all ranks because of TURN: without it, one that has met could
 * overtake an alltoall that waits for SPLITS, on some ranks and not on others. */
#include "client/coll_inner.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_MAX 256u

static const char *const kind_names[] = {
    [ALLREDUCE] = "allreduce", [BCAST] = "broadcast",
    [ALLGATHER] = "allgather", [REDUCESCATTER] = "reduce-scatter",
    [ALLTOALL] = "alltoall",   [JOIN] = "join",
};

const char *coll_kind_name(enum coll_kind kind)
{
    return kind_names[kind];
}

void coll_name(const struct psc_op *op, char *text, size_t size)
{
    const struct coll *k = op->coll;

    if (k->joined) {
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

static void leave_turn(struct coll *k)
{
    if (ps_list_linked(&k->of_turn)) {
        ps_list_remove(&k->of_turn);
    }
}

void coll_free(struct psc_op *op)
{
    struct coll *k = op->coll;

    if (k == NULL) {
        return;
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        op_free(k->parts[i]);
    }
    for (uint32_t i = 0; i < k->pass_count; i++) {
        op_free(k->passes[i]);
    }
    leave_turn(k);
    coll_release(k);
    free(k->passes);
    free(k->parts);
    free(k->name);
    free(k->pieces);
    free(k->row_of);
    free(k->splits);
    free(k->result);
    free(k->text);
    free(k);
    op->coll = NULL;
}

void coll_bury(struct psc_client *c)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&c->graves)) != NULL) {
        op_free(PS_CONTAINER(n, struct psc_op, of_key));
    }
}

struct psc_op *coll_open_part(struct psc_op *op)
{
    const struct coll *k = op->coll;

    if (k != NULL && k->stage == TURN) {
        k = PS_CONTAINER(ps_list_first(&op->client->turns), struct coll,
                         of_turn);
    }
    for (uint32_t i = 0; k != NULL && i < k->part_count; i++) {
        if (k->parts[i]->state != OP_DONE) {
            return k->parts[i];
        }
    }
    for (uint32_t i = 0; k != NULL && i < k->pass_count; i++) {
        if (k->passes[i]->state != OP_DONE) {
            return k->passes[i];
        }
    }
    return op;
}

/* --------------------------------------------------------------- MEET, TURN */

int coll_start_meet(struct coll *k)
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
    words[2 + c->rank] = k->joined ? coll_join_word(k) : (int64_t)k->rows;
    k->stage = MEET;
    k->op->state = OP_COLLECTING;
    ps_list_push_back(&c->turns, &k->of_turn);
    coll_part_start(part);
    return k->rc;
}

static void end_meet(struct coll *k)
{
    uint32_t size = k->op->client->size;
    const int64_t *words = coll_part_words(k->parts[0]);

    k->rounded = words[1] > 0;
    k->agree = (uint64_t)words[0] == k->hash * size;
    memcpy(k->row_of, words + 2, size * WORD);
    k->gone = 0;
    for (uint32_t r = 0; r < size; r++) {
        k->gone += words[2 + r] < 0;
    }
    k->stage = TURN;
}

static void end_turn(struct coll *k)
{
    if (k->gone == k->op->client->size && k->agree) {
        coll_end_join(k);
    } else if (k->gone == k->op->client->size) {
        k->joined = false; /* They have joined with different keys. */
        coll_start_differ(k);
    } else if (k->gone > 0) {
        coll_start_follow(k);
    } else if (!k->agree) {
        coll_start_differ(k);
    } else {
        coll_start_work(k);
    }
}

/* -------------------------------------------------------------------- steps */

static void finish(struct coll *k)
{
    struct psc_op *op = k->op;

    leave_turn(k);
    coll_pass_leave(k);
    coll_release(k);
    op_end(op, k->rc, k->text);
}

static void next_stage(struct coll *k)
{
    switch (k->stage) {
    case MEET:
        end_meet(k);
        break;
    case TURN:
        end_turn(k);
        break;
    case FOLLOW:
        coll_end_follow(k);
        break;
    case DIFFER:
        if (!k->joined) {
            coll_end_differ(k);
        }
        k->stage = DATA;
        break;
    case SPLITS:
        coll_end_splits(k);
        break;
    case DATA:
        break;
    }
}

static bool has_turn(const struct coll *k)
{
    return ps_list_first(&k->op->client->turns) == &k->of_turn;
}

/* All parts that were started have ended. */
static void step(struct coll *k)
{
    k->open++; /* Parts that end while others are started do not come here. */
    while (k->rc == 0 && k->open == 1 && k->stage != DATA &&
           (k->stage != TURN || has_turn(k))) {
        next_stage(k);
    }
    if (k->stage == DIFFER || k->stage == DATA) {
        leave_turn(k);
    }
    while (k->rc == 0 && k->open == 1 && k->joined && k->stage == DATA) {
        coll_meet_again(k);
    }
    if (--k->open == 0 &&
        (k->rc != 0 || (k->stage != TURN && k->passing == 0))) {
        finish(k);
    }
}

/* Those that have met and waited for the one that has now gone on. A step may
 * end others: they come to step() below, not here once more. */
static void step_turns(struct psc_client *c)
{
    struct ps_list_node *n;

    if (c->turning) {
        return;
    }
    c->turning = true;
    while ((n = ps_list_first(&c->turns)) != NULL) {
        struct coll *k = PS_CONTAINER(n, struct coll, of_turn);

        if (k->stage != TURN) {
            break;
        }
        step(k);
    }
    c->turning = false;
}

void coll_go_on(struct coll *k)
{
    struct psc_client *c = k->op->client;

    if (k->open == 0 && k->op->state == OP_COLLECTING) {
        step(k);
        step_turns(c);
    }
}

void coll_part_ended(struct psc_op *part)
{
    struct coll *k = part->part_of;

    if (part->rc != 0) {
        coll_fail(k, part->rc, part->text);
    }
    assert(k->open > 0);
    k->open--;
    coll_go_on(k);
}
