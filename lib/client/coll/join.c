/* SPDX-License-Identifier: Apache-2.0 */
/* Joined ranks, see psc_join_start(). They take part in all collectives of the
 * others, without data, and skip every round of every key that they have
 * declared, so that only the others contribute. A round that all ranks skip shows
 * that all have joined. It is the last one that is skipped, so all ranks continue
 * from the same round. */
#include "client/coll/coll.h"
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/num.h"

/* Bounds of the time of a join in coll_join_entry(). Ranks beyond them count as
 * joined at once. */
#define AGREEMENTS_BITS 23u
#define AGREEMENTS_MAX  (((uint64_t)1 << AGREEMENTS_BITS) - 1)
#define BEGUN_MAX       (((uint64_t)1 << 40) - 1)

/* Skips are always open at the agent; half of its operations remain for
 * others. */
#define SKIPS_MAX       (SENT_MAX / 2)

/* ----------------------------------------------------------- rounds of keys */

/* The skip of a key is one operation, sent again for each round. Earlier
 * contributions to the key go first, as on any key. */

/* Internal keys belong to collectives, see below; without rounds no rank
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

/* ------------------------------------------------ collectives of the others */

void coll_start_shadow(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    uint8_t *words;
    int rc = coll_small_round(k, "follow",
                              (uint64_t)c->id.size * PS_FIXED_COLL_SHADOW_BYTES,
                              &words, &part);

    if (rc != 0) {
        coll_fail_client(k, rc);
        return;
    }
    if (!k->is_join) {
        ps_fixed_put_coll_shadow(
            words + (size_t)c->id.rank * PS_FIXED_COLL_SHADOW_BYTES,
            &(struct ps_fixed_coll_shadow){
                .present = k->joined == PSC_JOINED_REFUSE ? 2 : 1,
                .hash = (int64_t)k->hash,
                .kind = (int64_t)k->kind,
                .dtype = k->array.dtype,
                .reduce = k->op->args.reduce,
                .root = k->op->args.root,
                .count = (int64_t)k->array.count,
                .rows = (int64_t)k->array.rows,
                .row_bytes = (int64_t)k->array.row_bytes});
    }
    coll_subop_start(part);
}

/* Bits of the neutral element of the reduction. */
static uint64_t neutral_bits(uint32_t dtype, uint8_t reduce)
{
    static const struct {
        uint64_t one, greatest, least;
    } of[] = {
        [PS_DTYPE_FLOAT32] = {0x3f800000u, 0x7f800000u, 0xff800000u},
        [PS_DTYPE_FLOAT64] = {0x3ff0000000000000u, 0x7ff0000000000000u,
                              0xfff0000000000000u},
        [PS_DTYPE_FLOAT16] = {0x3c00, 0x7c00, 0xfc00},
        [PS_DTYPE_BFLOAT16] = {0x3f80, 0x7f80, 0xff80},
        [PS_DTYPE_INT8] = {1, 0x7f, 0x80},
        [PS_DTYPE_INT32] = {1, INT32_MAX, (uint32_t)INT32_MIN},
        [PS_DTYPE_INT64] = {1, INT64_MAX, (uint64_t)INT64_MIN},
        [PS_DTYPE_UINT8] = {1, 0xff, 0},
        [PS_DTYPE_BOOL] = {1, 1, 0},
    };

    switch (reduce) {
    case PSC_MIN:
        return of[dtype].greatest;
    case PSC_MAX:
        return of[dtype].least;
    case PSC_PRODUCT:
        return of[dtype].one;
    default:
        return 0;
    }
}

static void fill_neutral(struct coll *k)
{
    const uint64_t bits = neutral_bits(k->array.dtype, k->op->args.reduce);
    const size_t size = ps_dtype_size(k->array.dtype);
    uint8_t *at = k->src.block->data;

    for (uint64_t i = 0; i < k->array.count; i++) {
        memcpy(at + i * size, &bits, size); /* Little-endian hosts only. */
    }
}

/* Makes this rank's collective equal to that of the others. */
static int adopt_collective(struct coll *k,
                            const struct ps_fixed_coll_shadow *of)
{
    struct psc_client *c = k->op->client;
    int rc;

    k->kind = (enum coll_kind)of->kind;
    k->array.dtype = (uint32_t)of->dtype;
    k->op->args.reduce = (uint8_t)of->reduce;
    k->op->args.root = (uint32_t)of->root;
    k->array.row_bytes = (size_t)of->row_bytes;
    k->array.count = (uint64_t)of->count;
    k->array.rows = (uint64_t)of->rows;
    k->array.bytes = (size_t)k->array.count * ps_dtype_size(k->array.dtype);
    if (k->kind == COLL_ALLTOALL) {
        free(k->splits);
        k->splits = calloc(c->id.size, WORD_BYTES);
        return k->splits != NULL ? 0 : PSC_E_NOMEM;
    }
    if (k->kind != COLL_ALLREDUCE && k->kind != COLL_REDUCESCATTER) {
        return 0;
    }
    rc = coll_get_block(c, k->array.bytes, &k->src.block);
    if (rc == 0) {
        k->src.block->uses++;
        k->src.staged = true;
        k->src.offset = 0;
        fill_neutral(k);
    }
    return rc;
}

/* Reads the collective that the ranks ask for which have not joined. 0; 1: they
 * ask for different ones; PSC_E_PROTO: what none of them asks for. */
static int read_shadow(const struct coll *k,
                       struct ps_fixed_coll_shadow *ret_first)
{
    const uint32_t size = k->op->client->id.size;
    const uint8_t *at = coll_subop_result(k->subops.list[k->subops.count - 1]);
    struct ps_fixed_coll_shadow first = {0};

    for (uint32_t r = 0; r < size; r++, at += PS_FIXED_COLL_SHADOW_BYTES) {
        struct ps_fixed_coll_shadow v;

        if (!ps_fixed_get_coll_shadow(at, &v) || v.root >= size) {
            return PSC_E_PROTO;
        }
        if (v.present != 0 && first.present != 0 && v.hash != first.hash) {
            return 1;
        }
        first = first.present != 0 ? first : v;
    }
    *ret_first = first;
    return first.present != 0 ? 0 : PSC_E_PROTO;
}

static uint32_t first_joined(const struct coll *k)
{
    uint32_t r = 0;

    while ((int64_t)k->rows_by_rank[r] >= 0) {
        r++;
    }
    return r;
}

/* True, with the reason, if the collective ends here on all ranks. */
static bool is_refused(const struct coll *k,
                       const struct ps_fixed_coll_shadow *of, char *text,
                       size_t size)
{
    if (of->present == 2) {
        snprintf(text, size,
                 "%s is not supported with join: rank %u has joined",
                 coll_kind_name((enum coll_kind)of->kind), first_joined(k));
        return true;
    }
    if (of->kind == COLL_BCAST && (int64_t)k->rows_by_rank[of->root] < 0) {
        snprintf(text, size, "broadcast from rank %u, which has joined",
                 (unsigned)of->root);
        return true;
    }
    return false;
}

enum coll_stage coll_end_shadow(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct ps_fixed_coll_shadow first;
    char text[PSC_TEXT_MAX];
    int rc = read_shadow(k, &first);

    if (rc > 0) {
        return COLL_MISMATCH;
    }
    if (rc < 0) {
        client_fail(c, PSC_E_PROTO, "malformed description of a collective");
        coll_fail(k, PSC_E_PROTO, NULL);
        return COLL_NO_DATA;
    }
    if (is_refused(k, &first, text, sizeof(text))) {
        if (!k->is_join) {
            coll_fail(k, PSC_E_INVAL, text);
        }
        return COLL_NO_DATA;
    }
    rc = k->is_join ? adopt_collective(k, &first) : 0;
    for (uint32_t r = 0; r < c->id.size; r++) {
        if ((int64_t)k->rows_by_rank[r] < 0) {
            k->rows_by_rank[r] = 0;
        }
    }
    if (rc != 0) {
        coll_fail_client(k, rc);
        return COLL_NO_DATA;
    }
    if (!k->is_join && k->op->args.reduce == PSC_MEAN &&
        k->joined == PSC_JOINED_LEAVE && ps_dtype_is_real(k->array.dtype)) {
        /* The mean is over the ranks that have not joined. */
        k->dst.postscale *= (double)c->id.size /
                            (double)(c->id.size - k->joined_count);
    }
    return coll_first_stage(k);
}

int64_t coll_join_entry(struct coll *k)
{
    const uint64_t begun = ps_min_u64(k->join.rounds_begun, BEGUN_MAX);
    const uint64_t agreements = ps_min_u64(++k->join.agreements,
                                           AGREEMENTS_MAX);

    return -(int64_t)((BEGUN_MAX - begun) << AGREEMENTS_BITS | agreements);
}

/* All ranks have joined: the version is the rank that joined last. */
void coll_end_join(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint32_t last = 0;

    for (uint32_t r = 1; r < c->id.size; r++) {
        if ((int64_t)k->rows_by_rank[r] >= (int64_t)k->rows_by_rank[last]) {
            last = r;
        }
    }
    k->op->version = last;
    k->is_join = false; /* The join ends. */
}
