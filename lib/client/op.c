/* SPDX-License-Identifier: Apache-2.0 */
/* Life of an operation:
 *
 *     NEW -> QUEUED -> SENT [-> COPYING] [-> ENDING] -> DONE
 *
 * No function here runs a callback of the program. */
#include "client/op.h"
#include "client/arena.h"
#include "client/key.h"
#include "client/state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/state_table.h"

/* Freed operations kept for reuse. */
#define SPARE_OPS  4096u
/* Low bits of an operation's id: its slot in the table. Above: a counter. */
#define PLACE_BITS 20u
#define PLACES_MAX (1u << PLACE_BITS)

const struct op_kind_facts op_kinds[] = {
    [OP_INIT] = {"init", PS_OP_INIT},
    [OP_PUSH] = {"push", PS_OP_PUSH, .is_round = true},
    [OP_PULL] = {"pull", PS_OP_PULL, .is_pull = true, .has_result = true},
    [OP_PUSHPULL] = {"pushpull", PS_OP_PUSHPULL, .is_round = true,
                     .has_result = true},
    [OP_BROADCAST] = {"broadcast", PS_OP_BROADCAST, .is_round = true,
                      .has_result = true},
    [OP_PUSH_ROWS] = {"push of rows", PS_OP_PUSH_ROWS, .is_round = true},
    [OP_PULL_ROWS] = {"pull of rows", PS_OP_PULL_ROWS, .is_pull = true},
    [OP_BARRIER] = {"barrier", 0},
    [OP_OPTIMIZER] = {"optimizer", 0},
    [OP_STATE] = {"copy of the optimizer's state", 0},
    [OP_CHANGE] = {"change of the optimizer", 0},
    [OP_COMPRESSION] = {"compression", 0},
    [OP_PROFILE] = {"recording of the servers", 0},
    [OP_REPORT] = {"report of scalars", 0},
    [OP_KEY] = {"declaration", 0},
    [OP_COLL] = {"collective", 0},
    [OP_SKIP] = {"skip", PS_OP_SKIP, .is_round = true},
};

void op_name(const struct psc_op *op, char *text, size_t size)
{
    if (op->kind == OP_COLL) {
        op->hooks->name(op, text, size);
    } else if (op->key == NULL) {
        snprintf(text, size, "%s", op_kinds[op->kind].name);
    } else if (op_kinds[op->kind].is_round && op->state != OP_QUEUED) {
        snprintf(text, size, "%s of '%s', round %llu,", op_kinds[op->kind].name,
                 op->key->name, (unsigned long long)op->round);
    } else {
        snprintf(text, size, "%s of '%s'", op_kinds[op->kind].name,
                 op->key->name);
    }
}

/* psched and agents escape quotes, each again. */
static void drop_quotes(char *text)
{
    while ((text = strchr(text, '\'')) != NULL) {
        memmove(text, text + 1, strlen(text));
    }
}

void op_label(const struct psc_op *op, char *text, size_t size)
{
    unsigned long long round = op->round;

    if (op->kind == OP_COLL) {
        op->hooks->name(op, text, size);
        drop_quotes(text);
    } else if (op->kind == OP_BARRIER) {
        snprintf(text, size, "barrier %llu", round);
    } else if (op->key == NULL) {
        snprintf(text, size, "%s", op_kinds[op->kind].name);
    } else if (op_kinds[op->kind].is_round && op->state != OP_QUEUED) {
        snprintf(text, size, "%s of %s round %llu", op_kinds[op->kind].name,
                 op->key->name, round);
    } else {
        snprintf(text, size, "%s of %s", op_kinds[op->kind].name,
                 op->key->name);
    }
}

/* ------------------------------------------------------------------ states */

static const char *const state_names[] = {
    [OP_NEW] = "new",         [OP_QUEUED] = "queued",
    [OP_SENT] = "sent",       [OP_COLLECTING] = "collecting",
    [OP_COPYING] = "copying", [OP_ENDING] = "ending",
    [OP_DONE] = "done",
};

static const uint32_t successors[] = {
    /* Without a queue: collectives, and requests that leave at once. */
    [OP_NEW] = PS_STATE_BIT(OP_QUEUED) | PS_STATE_BIT(OP_SENT) |
               PS_STATE_BIT(OP_COLLECTING) | PS_STATE_BIT(OP_DONE),
    [OP_QUEUED] = PS_STATE_BIT(OP_SENT) | PS_STATE_BIT(OP_ENDING) |
                  PS_STATE_BIT(OP_DONE),
    /* Again QUEUED when the agent is lost. */
    [OP_SENT] = PS_STATE_BIT(OP_COPYING) | PS_STATE_BIT(OP_QUEUED) |
                PS_STATE_BIT(OP_ENDING) | PS_STATE_BIT(OP_DONE),
    [OP_COLLECTING] = PS_STATE_BIT(OP_DONE),
    /* Again SENT when a part of the result has been copied. */
    [OP_COPYING] = PS_STATE_BIT(OP_SENT) | PS_STATE_BIT(OP_DONE),
    [OP_ENDING] = PS_STATE_BIT(OP_DONE),
    /* The skip of a key is sent again for each round. */
    [OP_DONE] = PS_STATE_BIT(OP_QUEUED),
};

/* An operation, in the client. */
static const struct ps_state_table op_states = {
    .name = "operation",
    .states = state_names,
    .count = sizeof(state_names) / sizeof(state_names[0]),
    .allowed = successors,
};

/* Not part of op_set_state(), which is on the way of every operation. */
static __attribute__((noinline, cold)) void refuse_state(struct psc_op *op,
                                                         enum op_state to)
{
    client_fail(op->client, PSC_E_BUG, "an %s that is %s cannot become %s",
                op_states.name, ps_state_name(&op_states, op->state),
                ps_state_name(&op_states, to));
}

void op_set_state(struct psc_op *op, enum op_state to)
{
    const uint32_t at_agent = PS_STATE_BIT(OP_SENT) | PS_STATE_BIT(OP_COPYING);
    const enum op_state from = op->state;
    const bool was_there = (at_agent & PS_STATE_BIT(from)) != 0;
    const bool is_there = (at_agent & PS_STATE_BIT(to)) != 0;
    struct op_table *t = &op->client->ops;

    if (!ps_state_may_follow(&op_states, from, to)) {
        refuse_state(op, to);
        return;
    }
    op->state = to;
    if (from == OP_QUEUED) {
        t->queued--;
    } else if (to == OP_QUEUED) {
        t->queued++;
    }
    if (is_there && !was_there) {
        op->must_resend = false;
        t->sent++;
        t->streaming += op->result.copies_progress;
        if (op->key != NULL) {
            op->key->ops_open++;
        }
    } else if (was_there && !is_there) {
        t->sent--;
        t->streaming -= op->result.copies_progress;
        if (op->key != NULL) {
            op->key->ops_open--;
        }
        if (op->kind == OP_BARRIER) {
            op->client->queues.barrier_open = false;
        }
    }
}

/* ----------------------------------------------------------------- numbers */

static int add_slots(struct psc_client *c)
{
    uint32_t cap = c->ops.slot_cap == 0 ? 64 : c->ops.slot_cap * 2;
    struct psc_op **places;
    uint32_t *free_places;

    if (cap > PLACES_MAX) {
        return PSC_E_FULL;
    }
    places = realloc(c->ops.by_slot, cap * sizeof(struct psc_op *));
    if (places == NULL) {
        return PSC_E_NOMEM;
    }
    c->ops.by_slot = places;
    free_places = realloc(c->ops.free_slots, cap * sizeof(uint32_t));
    if (free_places == NULL) {
        return PSC_E_NOMEM;
    }
    c->ops.free_slots = free_places;
    c->ops.slot_cap = cap;
    return 0;
}

int op_number(struct psc_op *op)
{
    struct psc_client *c = op->client;
    uint32_t place;

    if (c->ops.free_slot_count == 0 && c->ops.slot_count == c->ops.slot_cap) {
        int rc = add_slots(c);

        if (rc != 0) {
            return rc;
        }
    }
    place = c->ops.free_slot_count > 0
                ? c->ops.free_slots[--c->ops.free_slot_count]
                : c->ops.slot_count++;
    c->ops.by_slot[place] = op;
    op->id = ++c->ops.next_id << PLACE_BITS | place;
    return 0;
}

void op_release_number(struct psc_op *op)
{
    struct psc_client *c = op->client;
    uint32_t place = (uint32_t)(op->id & (PLACES_MAX - 1));

    if (op->id == 0) {
        return;
    }
    assert(c->ops.by_slot[place] == op);
    c->ops.by_slot[place] = NULL;
    c->ops.free_slots[c->ops.free_slot_count++] = place;
    op->id = 0;
}

struct psc_op *op_find(struct psc_client *c, uint64_t id)
{
    uint64_t place = id & (PLACES_MAX - 1);
    struct psc_op *op;

    if (place >= c->ops.slot_count) {
        return NULL;
    }
    op = c->ops.by_slot[place];
    return op != NULL && op->id == id ? op : NULL;
}

/* -------------------------------------------------------------------- life */

struct psc_op *op_new(struct psc_client *c, enum op_kind kind)
{
    struct psc_op *op = PS_LIST_POP(struct psc_op, of_client, &c->ops.spare);

    if (op != NULL) {
        c->ops.spare_count--;
        memset(op, 0, sizeof(*op));
    } else {
        op = calloc(1, sizeof(*op));
    }
    if (op == NULL) {
        return NULL;
    }
    op->client = c;
    op->kind = kind;
    op->started = client_now();
    ps_list_push_back(&c->ops.all, &op->of_client);
    return op;
}

void op_release_staging(struct psc_client *c, struct key *k,
                        struct ps_shm_block *b)
{
    b->uses--;
    if (k->spare == NULL) {
        k->spare = b;
    } else {
        ps_shm_put(&c->shm, b);
    }
}

static void release_block(struct psc_op *op)
{
    struct ps_shm_block *b = op->src.block;

    if (b == NULL) {
        return;
    }
    op->src.block = NULL;
    if (!op->src.staged) {
        b->uses--;
    } else if (op->kind != OP_PUSH_ROWS && op->kind != OP_PULL_ROWS) {
        op_release_staging(op->client, op->key, b);
    } else {
        b->uses--;
        ps_shm_put(&op->client->shm, b);
    }
}

void op_free(struct psc_op *op)
{
    assert(op->state != OP_COPYING);
    if (op->state != OP_DONE) {
        op_set_state(op, OP_DONE);
    }
    ps_list_unlink(&op->of_callbacks);
    ps_list_unlink(&op->of_key);
    ps_list_remove(&op->of_client);
    if (op->hooks != NULL && op->hooks->fini != NULL) {
        op->hooks->fini(op);
    }
    if (op->device != NULL && op->device->ops->release != NULL) {
        op->device->ops->release(op);
    }
    release_block(op);
    op_release_number(op);
    if (op->result.arena != NULL) {
        arena_drop(op->client, op->result.arena);
    }
    free(op->job_request);
    free(op->profile);
    free(op->result.row_index);
    free(op->text);
    if (op->client->ops.spare_count == SPARE_OPS) {
        free(op);
        return;
    }
    op->client->ops.spare_count++;
    ps_list_push_front(&op->client->ops.spare, &op->of_client);
}

/* --------------------------------------------------------------------- end */

/* Stores the error of an operation without handle; the next call on the key
 * returns it. */
static void defer_error(struct psc_op *op)
{
    struct key *k = op->key;

    if (op->rc == 0 || k == NULL || op->kind == OP_KEY || k->rc != 0 ||
        op->client->rc != 0) {
        return;
    }
    k->rc = op->rc;
    free(k->text);
    k->text = op->text;
    op->text = NULL;
}

void op_free_later(struct psc_op *op)
{
    ps_list_push_back(&op->client->ops.deferred_free, &op->of_key);
}

void op_report(struct psc_op *op)
{
    struct psc_client *c = op->client;

    if (op->detached) {
        defer_error(op);
        op_free_later(op);
    } else {
        if (op->callback != NULL) {
            ps_list_push_back(&c->progress.callbacks, &op->of_callbacks);
        }
        client_signal_poll(c);
    }
}

void op_finish_ending(struct psc_op *op)
{
    release_block(op);
    op_set_state(op, OP_DONE);
    if (op->hooks != NULL && op->hooks->on_ended != NULL) {
        op->hooks->on_ended(op);
    } else {
        op_report(op);
    }
    client_changed(op->client);
}

void op_end(struct psc_op *op, int rc, const char *text)
{
    struct psc_stats *stats = &op->client->stats;

    ps_list_unlink(&op->of_key);
    op_release_number(op);
    op->rc = rc;
    if (rc == 0) {
        stats->ops++;
        stats->rounds += op_kinds[op->kind].is_round && op->kind != OP_SKIP;
        stats->bytes_got += op_kinds[op->kind].has_result ? op->key->bytes : 0;
    } else if (text != NULL && text[0] != '\0') {
        /* Without memory the text of the code remains. */
        op->text = strdup(text);
    }
    if (op->src.streaming) {
        op_set_state(op, OP_ENDING);
        return;
    }
    op_finish_ending(op);
}

void op_end_all(struct psc_client *c, int rc, const char *text)
{
    /* op_end() may append operations, and frees none. */
    PS_LIST_EACH_OF(struct psc_op, op, of_client, &c->ops.all)
    {
        if (op->state == OP_QUEUED || op->state == OP_SENT) {
            op_end(op, rc, text);
        }
    }
}

void op_keep_results(struct psc_client *c)
{
    PS_LIST_EACH_OF(struct psc_op, op, of_client, &c->ops.all)
    {
        if (op->result.data != NULL && op->result.arena == NULL) {
            op->result.arena = arena_around(c, op->result.data);
            op->result.arena->uses++;
        }
    }
}

void op_drop(struct psc_op *op)
{
    ps_list_unlink(&op->of_key);
    release_block(op);
    op_set_state(op, OP_DONE);
    op_free_later(op);
}

/* ------------------------------------------------------------ abandoned ones */

static bool wants_no_result(const struct psc_op *op)
{
    (void)op;
    return false;
}

static void abandoned_ended(struct psc_op *op)
{
    if (op->client->rc == 0) {
        op->rc = PSC_E_CANCELED;
        free(op->text);
        op->text = NULL;
    }
    op_report(op);
}

static const struct op_hooks abandoned_hooks = {
    .on_ended = abandoned_ended, .wants_result = wants_no_result};

void op_abandon(struct psc_op *op)
{
    op->hooks = &abandoned_hooks;
    op->result.out = NULL;
    op->result.row_index_count = 0;
}

bool op_is_abandoned(const struct psc_op *op)
{
    return op->hooks == &abandoned_hooks;
}
