/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that have joined, and the rounds of keys: they pass in every round of
 * every key that they have declared, so that it is of the others. A round in
 * which everybody has passed says that all have joined; it is the last one that
 * anybody passes in, so all go on from the same round then.
 *
 * The pass of a key is one operation, offered again and again. What was given
 * to the key before the join goes first, as on any key. */
#include "client/coll_inner.h"

#include <stdlib.h>

/* Passes are with the agent all the time, and leave room for the rest. */
#define PASSES_MAX (SENT_MAX / 2)

/* The library's own keys are of collectives, see coll_join.c; without rounds
 * nobody waits. */
static bool has_rounds(const struct key *key)
{
    return key->ready && !key->async && !key_is_own(key);
}

int coll_pass_prepare(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->key_count; i++) {
        count += has_rounds(c->keys[i]);
    }
    if (count > PASSES_MAX) {
        return client_complain(c, PSC_E_FULL,
                               "join goes along with at most %u keys, and "
                               "this rank has declared %u",
                               PASSES_MAX, count);
    }
    k->passes = calloc(count > 0 ? count : 1, sizeof(struct psc_op *));
    for (uint32_t i = 0; k->passes != NULL && i < c->key_count; i++) {
        struct psc_op *pass;

        if (!has_rounds(c->keys[i])) {
            continue;
        }
        pass = op_new(c, OP_PASS);
        if (pass == NULL) {
            break;
        }
        pass->key = c->keys[i];
        pass->part_of = k;
        k->begun += key_begun(pass->key);
        k->passes[k->pass_count++] = pass;
    }
    return k->pass_count == count && k->passes != NULL
               ? 0
               : client_complain(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
}

static void offer(struct psc_op *pass)
{
    int rc = op_submit(pass, NULL);

    if (rc != 0) {
        op_end(pass, rc, NULL);
    }
}

void coll_pass_start(struct coll *k)
{
    k->passing = k->pass_count;
    k->op->client->join = k->op;
    for (uint32_t i = 0; i < k->pass_count; i++) {
        /* The client may fail meanwhile: they end all the same. */
        offer(k->passes[i]);
    }
}

/* Is there a next round to pass in? What others disagree about, or a broadcast
 * from a rank that has joined, is their mistake: the round comes again. */
static bool goes_on(const struct psc_op *pass)
{
    const struct coll *k = pass->part_of;

    if (k->rc != 0 || pass->client->rc != 0) {
        return false;
    }
    return pass->rc == 0 ? !pass->nobody : pass->rc == PSC_E_MISMATCH;
}

void coll_pass_ended(struct psc_op *pass)
{
    struct coll *k = pass->part_of;

    if (goes_on(pass)) {
        free(pass->text);
        pass->text = NULL;
        pass->rc = 0;
        pass->started = client_now();
        offer(pass);
        return;
    }
    k->passing--;
    /* A key that nobody has given a value has no rounds. */
    if (pass->rc != 0 && pass->rc != PSC_E_NOKEY) {
        /* The others wait for passes that do not come, so this rank must not
         * seem to be well. */
        coll_fail(k, pass->rc, pass->text);
        client_fail(pass->client, pass->rc, "join cannot go on: %s",
                    pass->text != NULL ? pass->text : ps_strerror(pass->rc));
    }
    coll_go_on(k);
}

void coll_pass_leave(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint32_t kept = 0;

    if (c->join == k->op) {
        c->join = NULL;
    }
    for (uint32_t i = 0; i < k->pass_count; i++) {
        struct psc_op *pass = k->passes[i];

        if (pass->state == OP_DONE) {
            k->passes[kept++] = pass;
        } else if (pass->state == OP_QUEUED && !pass->again && c->rc == 0) {
            op_free(pass);
        } else {
            pass->part_of = NULL; /* Nobody waits for it. */
            pass->freed = true;
            c->loose += pass->state == OP_SENT || pass->again;
        }
    }
    k->pass_count = kept;
    k->passing = 0;
}
