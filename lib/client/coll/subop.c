/* SPDX-License-Identifier: Apache-2.0 */
/* Sub-operations of a collective: operations on internal keys, the memory of
 * sources, and the copies of results. */
#include "client/coll/coll.h"
#include "client/grow.h"
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "kernel/half.h"
#include "kernel/kernel.h"

/* ------------------------------------------------------------------- memory */

static struct ps_shm_block *pop_spare_block(struct psc_client *c, size_t size)
{
    size_t best = COLLS_SPARES;

    for (size_t i = 0; i < COLLS_SPARES; i++) {
        const struct ps_shm_block *b = c->colls.spare_blocks[i];

        if (b != NULL && b->size >= size && b->size / 2 <= size + 4096 &&
            (best == COLLS_SPARES ||
             b->size < c->colls.spare_blocks[best]->size)) {
            best = i;
        }
    }
    if (best == COLLS_SPARES) {
        return NULL;
    }
    struct ps_shm_block *b = c->colls.spare_blocks[best];

    c->colls.spare_blocks[best] = NULL;
    return b;
}

/* Keeps a block for reuse: the kernel would fill a new one with zeros. */
static void push_spare_block(struct psc_client *c, struct ps_shm_block *b)
{
    struct ps_shm_block **at = &c->colls.spare_blocks[c->colls.next_spare];

    for (size_t i = 0; i < COLLS_SPARES; i++) {
        if (c->colls.spare_blocks[i] == NULL) {
            c->colls.spare_blocks[i] = b;
            return;
        }
    }
    c->colls.next_spare = (c->colls.next_spare + 1) % COLLS_SPARES;
    ps_shm_put(&c->shm, *at);
    *at = b;
}

void coll_release_source(struct coll *k)
{
    if (k->src.block == NULL) {
        return;
    }
    k->src.block->uses--;
    if (k->src.staged) {
        push_spare_block(k->op->client, k->src.block);
    }
    k->src.block = NULL;
}

/* Bytes behind a source that keys of rounded sizes read. */
size_t coll_slack(size_t bytes)
{
    return bytes / 8 + 512 * WORD_BYTES + PS_SHM_ALIGN;
}

int coll_get_block(struct psc_client *c, size_t bytes,
                   struct ps_shm_block **ret_block)
{
    *ret_block = pop_spare_block(c, bytes + coll_slack(bytes));
    return *ret_block != NULL
               ? 0
               : ps_shm_get(&c->shm, bytes + coll_slack(bytes), ret_block);
}

int coll_alloc_source(struct coll *k)
{
    struct psc_client *c = k->op->client;
    int rc = coll_get_block(c, k->array.bytes, &k->src.block);

    if (rc != 0) {
        return client_error(c, rc, "no shared memory of %zu bytes: %s",
                            k->array.bytes, ps_strerror(rc));
    }
    k->src.block->uses++;
    k->src.staged = true;
    return 0;
}

/* ------------------------------------------------------------------- copies */

static void scale_array(uint32_t dtype, void *dst, const void *src,
                        uint64_t count, double by)
{
    if (dtype == PS_DTYPE_FLOAT32) {
        const float *s = src;
        float *d = dst;

        for (uint64_t i = 0; i < count; i++) {
            d[i] = s[i] * (float)by;
        }
    } else if (dtype == PS_DTYPE_FLOAT16) {
        const uint16_t *s = src;
        uint16_t *d = dst;

        for (uint64_t i = 0; i < count; i++) {
            d[i] = ps_fp16_of_float(ps_float_of_fp16(s[i]) * (float)by);
        }
    } else if (dtype == PS_DTYPE_BFLOAT16) {
        const uint16_t *s = src;
        uint16_t *d = dst;

        for (uint64_t i = 0; i < count; i++) {
            d[i] = ps_bf16_of_float(ps_float_of_bf16(s[i]) * (float)by);
        }
    } else {
        const double *s = src;
        double *d = dst;

        for (uint64_t i = 0; i < count; i++) {
            d[i] = s[i] * by;
        }
    }
}

void coll_copy_scaled(const struct coll *k, void *dst, const void *src,
                      size_t bytes, double by)
{
    if (by == 1) {
        ps_kernel_copy(dst, src, bytes);
    } else {
        scale_array(k->array.dtype, dst, src,
                    bytes / ps_dtype_size(k->array.dtype), by);
    }
}

static bool wants_result(const struct psc_op *part)
{
    const struct coll *k = part->coll;

    return k->stage == COLL_DATA && k->rc == 0 && !k->op->detached &&
           part->result.bytes > 0 &&
           (k->dst.out != NULL || k->dst.result != NULL ||
            k->dst.pieces != NULL);
}

static bool may_copy_progress(const struct psc_op *part)
{
    const struct coll *k = part->coll;

    return wants_result(part) && k->device == NULL && k->dst.out != NULL &&
           k->dst.pieces == NULL && k->dst.postscale == 1 &&
           part->result.from == 0;
}

static void copy_result(struct psc_op *part, const void *from)
{
    const struct coll *k = part->coll;
    const uint8_t *at = from;

    if (k->dst.pieces == NULL) {
        coll_copy_scaled(k, (uint8_t *)part->result.out + part->result.copied,
                         at + part->result.from + part->result.copied,
                         part->result.bytes - part->result.copied,
                         k->dst.postscale);
        return;
    }
    for (uint32_t i = 0; i < k->dst.piece_count; i++) {
        size_t bytes = k->dst.pieces[i].count * ps_dtype_size(k->array.dtype);

        coll_copy_scaled(k, k->dst.pieces[i].out, at, bytes, k->dst.postscale);
        at += bytes;
    }
}

/* ---------------------------------------------------------- sub-operations */

void coll_fail(struct coll *k, int rc, const char *text)
{
    if (k->rc == 0) {
        k->rc = rc;
        k->text = text != NULL ? strdup(text) : NULL;
    }
}

static void subop_ended(struct psc_op *part)
{
    struct coll *k = part->coll;

    if (part->rc != 0) {
        coll_fail(k, part->rc, part->text);
    }
    assert(k->subops.open > 0);
    k->subops.open--;
    k->on_idle(k);
}

static const struct op_hooks subop_hooks = {
    .on_ended = subop_ended,
    .wants_result = wants_result,
    .may_copy_progress = may_copy_progress,
    .copy_result = copy_result,
};

int coll_subop_new(struct coll *k, enum op_kind kind, const char *name,
                   uint32_t dtype, uint64_t count, struct psc_op **ret_part)
{
    struct psc_client *c = k->op->client;
    struct key *key;
    struct psc_op *part;
    int rc = client_grow(&k->subops.list, k->subops.count, &k->subops.cap,
                         sizeof(struct psc_op *));

    if (rc != 0) {
        return rc;
    }
    rc = key_get_collective(c, name, dtype, count, &key);
    if (rc != 0) {
        return rc;
    }
    part = op_new(c, kind);
    if (part == NULL) {
        return PSC_E_NOMEM;
    }
    part->key = key;
    part->coll = k;
    part->hooks = &subop_hooks;
    part->args.priority = k->op->args.priority;
    k->subops.list[k->subops.count++] = part;
    *ret_part = part;
    return 0;
}

void coll_subop_set_source(struct psc_op *part, size_t offset)
{
    struct coll *k = part->coll;

    part->src.block = k->src.block;
    part->src.block->uses++;
    part->src.offset = k->src.offset + offset;
}

void coll_subop_start(struct psc_op *part)
{
    struct coll *k = part->coll;
    int rc;

    k->subops.open++;
    rc = op_submit(part, NULL);
    if (rc != 0) {
        op_end(part, rc, NULL);
    }
}

const uint8_t *coll_subop_result(const struct psc_op *part)
{
    return part->result.data;
}

int coll_small_round(struct coll *k, const char *name, uint64_t bytes,
                     uint8_t **ret_words, struct psc_op **ret_part)
{
    struct psc_op *part;
    int rc = coll_subop_new(k, OP_PUSHPULL, name, PS_DTYPE_INT64,
                            bytes / WORD_BYTES, &part);

    if (rc != 0) {
        return rc;
    }
    part->args.reduce = PSC_SUM;
    part->args.priority = INT32_MAX;
    rc = op_alloc_staging(part);
    if (rc != 0) {
        return rc;
    }
    *ret_words = part->src.block->data;
    memset(*ret_words, 0, bytes);
    *ret_part = part;
    return 0;
}
