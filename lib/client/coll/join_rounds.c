/* SPDX-License-Identifier: Apache-2.0 */
/* Joined ranks and the rounds of keys: a joined rank skips every round of every
 * key that it has declared, so that only the others contribute. A round that
 * all ranks skip shows that all have joined. It is the last one that is
 * skipped, so all ranks continue from the same round.
 *
 * The skip of a key is one operation, sent again for each round. Earlier
 * contributions to the key go first, as on any key. */
#include "client/coll/join_rounds.h"
#include "client/coll/subop.h"
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"

#include <stdlib.h>

/* Skips are always open at the agent; half of its operations remain for
 * others. */
#define SKIPS_MAX (SENT_MAX / 2)

/* Internal keys belong to collectives, see join.c; without rounds no rank
 * waits. */
static bool has_rounds(const struct key *key)
{
    return key->is_ready && !key->is_async && !key_is_internal(key);
}

static void start_skip(struct psc_op *skip)
{
    int rc = op_submit(skip, NULL);

    if (rc != 0) {
        op_end(skip, rc, NULL);
    }
}

/* True if another round must be skipped. After a conflict among the others, or
 * a broadcast from a joined rank, the round is repeated. */
static bool has_next_round(const struct psc_op *skip)
{
    const struct coll *k = skip->coll;

    if (k->rc != 0 || skip->client->rc != 0) {
        return false;
    }
    return skip->rc == 0 ? !skip->result.all_skipped
                         : skip->rc == PSC_E_MISMATCH;
}

static void skip_ended(struct psc_op *skip)
{
    struct coll *k = skip->coll;

    if (has_next_round(skip)) {
        free(skip->text);
        skip->text = NULL;
        skip->rc = 0;
        skip->started = client_now();
        start_skip(skip);
        return;
    }
    k->join.skips_open--;
    /* A key without a first value has no rounds. */
    if (skip->rc != 0 && skip->rc != PSC_E_NOKEY) {
        /* The other ranks wait for skips of this rank, so the client must fail
         * visibly. */
        coll_fail(k, skip->rc, skip->text);
        client_fail(skip->client, skip->rc, "join cannot go on: %s",
                    skip->text != NULL ? skip->text : ps_strerror(skip->rc));
    }
    k->on_idle(k);
}

static const struct op_hooks skip_hooks = {.on_ended = skip_ended};

static void detached_skip_ended(struct psc_op *skip)
{
    skip->client->colls.skips_detached--;
    op_report(skip);
}

static const struct op_hooks detached_skip_hooks = {
    .on_ended = detached_skip_ended};

int coll_skips_prepare(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->keys.count; i++) {
        count += has_rounds(c->keys.by_number[i]);
    }
    if (count > SKIPS_MAX) {
        return client_error(
            c, PSC_E_FULL,
            "join covers at most %u keys, but this rank has declared %u",
            SKIPS_MAX, count);
    }
    k->join.skips = calloc(count > 0 ? count : 1, sizeof(struct psc_op *));
    for (uint32_t i = 0; k->join.skips != NULL && i < c->keys.count; i++) {
        struct psc_op *skip;

        if (!has_rounds(c->keys.by_number[i])) {
            continue;
        }
        skip = op_new(c, OP_SKIP);
        if (skip == NULL) {
            break;
        }
        skip->key = c->keys.by_number[i];
        skip->coll = k;
        skip->hooks = &skip_hooks;
        k->join.rounds_begun += key_rounds_begun(skip->key);
        k->join.skips[k->join.skip_count++] = skip;
    }
    return k->join.skip_count == count && k->join.skips != NULL
               ? 0
               : client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
}

void coll_skips_start(struct coll *k)
{
    k->join.skips_open = k->join.skip_count;
    k->op->client->colls.join = k->op;
    for (uint32_t i = 0; i < k->join.skip_count; i++) {
        /* Skips end even if the client fails in between. */
        start_skip(k->join.skips[i]);
    }
}

void coll_skips_detach(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint32_t kept = 0;

    if (c->colls.join == k->op) {
        c->colls.join = NULL;
    }
    for (uint32_t i = 0; i < k->join.skip_count; i++) {
        struct psc_op *skip = k->join.skips[i];

        if (skip->state == OP_DONE) {
            k->join.skips[kept++] = skip;
        } else if (skip->state == OP_QUEUED && !skip->must_resend) {
            op_drop(skip);
        } else {
            skip->coll = NULL; /* No join waits for it. */
            skip->hooks = &detached_skip_hooks;
            skip->detached = true;
            c->colls.skips_detached++;
        }
    }
    k->join.skip_count = kept;
    k->join.skips_open = 0;
}
