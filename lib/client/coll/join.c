/* SPDX-License-Identifier: Apache-2.0 */
/* Joined ranks, see psc_join_start(), take part in all collectives of the
 * others, without data. */
#include "client/coll/join.h"
#include "client/coll/data.h"
#include "client/coll/describe.h"
#include "client/coll/subop.h"
#include "client/error.h"
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

/* Words of each rank in SHADOW; zeros from joined ranks. */
enum {
    SHADOW_PRESENT,
    SHADOW_HASH,
    SHADOW_KIND,
    SHADOW_DTYPE,
    SHADOW_REDUCE,
    SHADOW_ROOT,
    SHADOW_COUNT,
    SHADOW_ROWS,
    SHADOW_ROW_BYTES,
    SHADOW_WORDS
};

void coll_start_shadow(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    int64_t *words;
    int rc = coll_small_round(
        k, "c:follow", (uint64_t)c->id.size * SHADOW_WORDS, &words, &part);

    if (rc != 0) {
        client_fail(c, rc, "%s cannot go on: %s", coll_kind_name(k->kind),
                    ps_strerror(rc));
        coll_fail(k, rc, NULL);
        return;
    }
    if (!k->is_join) {
        words += (size_t)c->id.rank * SHADOW_WORDS;
        words[SHADOW_PRESENT] = 1;
        words[SHADOW_HASH] = (int64_t)k->hash;
        words[SHADOW_KIND] = (int64_t)k->kind;
        words[SHADOW_DTYPE] = k->array.dtype;
        words[SHADOW_REDUCE] = k->op->args.reduce;
        words[SHADOW_ROOT] = k->op->args.root;
        words[SHADOW_COUNT] = (int64_t)k->array.count;
        words[SHADOW_ROWS] = (int64_t)k->array.rows;
        words[SHADOW_ROW_BYTES] = (int64_t)k->array.row_bytes;
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
        [PS_DTYPE_INT32] = {1, INT32_MAX, 0x80000000u},
        [PS_DTYPE_INT64] = {1, INT64_MAX, 0x8000000000000000u},
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
    uint8_t *at = ps_shm_data(k->src.block);

    for (uint64_t i = 0; i < k->array.count; i++) {
        memcpy(at + i * size, &bits, size); /* Little-endian hosts only. */
    }
}

/* Makes this rank's collective equal to that of the others. */
static int adopt_collective(struct coll *k, const int64_t *words)
{
    struct psc_client *c = k->op->client;
    int rc;

    k->kind = (enum coll_kind)words[SHADOW_KIND];
    k->array.dtype = (uint32_t)words[SHADOW_DTYPE];
    k->op->args.reduce = (uint8_t)words[SHADOW_REDUCE];
    k->op->args.root = (uint32_t)words[SHADOW_ROOT];
    k->array.row_bytes = (size_t)words[SHADOW_ROW_BYTES];
    k->array.count = (uint64_t)words[SHADOW_COUNT];
    k->array.rows = (uint64_t)words[SHADOW_ROWS];
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

enum coll_stage coll_end_shadow(struct coll *k)
{
    struct psc_client *c = k->op->client;
    const int64_t *words = coll_subop_result(
        k->subops.list[k->subops.count - 1]);
    const int64_t *first = NULL;
    char text[PSC_TEXT_MAX];
    int rc;

    for (uint32_t r = 0; r < c->id.size; r++) {
        const int64_t *at = words + (size_t)r * SHADOW_WORDS;

        if (at[SHADOW_PRESENT] == 0) {
            continue;
        }
        first = first == NULL ? at : first;
        if (at[SHADOW_HASH] != first[SHADOW_HASH]) {
            return COLL_MISMATCH;
        }
    }
    if (first == NULL || first[SHADOW_KIND] < 0 ||
        first[SHADOW_KIND] >= COLL_JOIN ||
        ps_dtype_size((unsigned)first[SHADOW_DTYPE]) == 0 ||
        first[SHADOW_REDUCE] < 0 || first[SHADOW_REDUCE] > PSC_PRODUCT ||
        first[SHADOW_ROOT] >= c->id.size) {
        client_fail(c, PSC_E_PROTO, "malformed description of a collective");
        coll_fail(k, PSC_E_PROTO, NULL);
        return COLL_NO_DATA;
    }
    if (first[SHADOW_KIND] == COLL_BCAST &&
        (int64_t)k->rows_by_rank[first[SHADOW_ROOT]] < 0) {
        if (!k->is_join) {
            snprintf(text, sizeof(text),
                     "broadcast from rank %u, which has joined",
                     (unsigned)first[SHADOW_ROOT]);
            coll_fail(k, PSC_E_INVAL, text);
        }
        return COLL_NO_DATA;
    }
    rc = k->is_join ? adopt_collective(k, first) : 0;
    for (uint32_t r = 0; r < c->id.size; r++) {
        if ((int64_t)k->rows_by_rank[r] < 0) {
            k->rows_by_rank[r] = 0;
        }
    }
    if (rc != 0) {
        client_fail(c, rc, "join cannot go on: %s", ps_strerror(rc));
        coll_fail(k, rc, NULL);
        return COLL_NO_DATA;
    }
    if (!k->is_join && k->op->args.reduce == PSC_MEAN &&
        ps_dtype_is_real(k->array.dtype)) {
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
