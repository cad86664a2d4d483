/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls of collectives: check the arguments, describe the request, and
 * copy the source where the agent can read it. */
#include "client/coll/coll.h"
#include "client/op.h"
#include "client/state.h"
#include "client/threads.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/num.h"
#include "kernel/kernel.h"

#define DIMS_MAX 16u

static int check_options(struct psc_client *c, struct coll_request *a,
                         const struct psc_coll_options *o)
{
    a->o = (struct psc_coll_options){.size = sizeof(a->o)};
    if (o != NULL) {
        if (o->size < offsetof(struct psc_coll_options, callback) ||
            o->size > sizeof(a->o)) {
            return client_error(c, PSC_E_INVAL,
                                "size is not that of struct psc_coll_options");
        }
        memcpy(&a->o, o, o->size);
    }
    a->o.prescale = a->o.prescale == 0 ? 1 : a->o.prescale;
    a->o.postscale = a->o.postscale == 0 ? 1 : a->o.postscale;
    if (a->o.reduce > PSC_PRODUCT) {
        return client_error(c, PSC_E_INVAL, "no such reduction as %u",
                            a->o.reduce);
    }
    if (a->o.joined > PSC_JOINED_REFUSE) {
        return client_error(c, PSC_E_INVAL, "no such value of joined as %u",
                            a->o.joined);
    }
    if (a->o.reduce == PSC_MEAN && a->array->dtype == PSC_BOOL) {
        return client_error(c, PSC_E_INVAL, "bool has no mean");
    }
    if (a->o.root >= c->id.size) {
        return client_error(c, PSC_E_INVAL,
                            "rank %u is out of range: there are %u workers",
                            a->o.root, c->id.size);
    }
    if ((a->o.prescale != 1 || a->o.postscale != 1) &&
        (a->kind == COLL_BCAST || a->kind == COLL_ALLGATHER ||
         a->kind == COLL_ALLTOALL || !ps_dtype_is_real(a->array->dtype))) {
        return client_error(c, PSC_E_INVAL,
                            "only reductions of real numbers can be scaled");
    }
    return 0;
}

static int check_shape(struct psc_client *c, const struct coll_request *a,
                       uint64_t *ret_count)
{
    const struct psc_array *s = a->array;
    size_t size = ps_dtype_size(s->dtype);
    uint64_t bytes;

    if (size == 0) {
        return client_error(c, PSC_E_INVAL, "%s: no element type %u",
                            coll_kind_name(a->kind), s->dtype);
    }
    if (s->ndim > DIMS_MAX) {
        return client_error(c, PSC_E_INVAL, "%s: %u dimensions, but at most %u",
                            coll_kind_name(a->kind), s->ndim, DIMS_MAX);
    }
    if (s->ndim == 0 && a->kind != COLL_ALLREDUCE && a->kind != COLL_BCAST &&
        a->kind != COLL_JOIN) {
        return client_error(c, PSC_E_INVAL,
                            "%s needs an array with at least one dimension",
                            coll_kind_name(a->kind));
    }
    *ret_count = 1;
    for (uint32_t i = 0; i < s->ndim; i++) {
        if (!ps_mul_u64(*ret_count, s->dims[i], ret_count)) {
            *ret_count = UINT64_MAX;
        }
    }
    if (!ps_mul_u64(*ret_count, size, &bytes) || bytes > (uint64_t)1 << 40) {
        return client_error(c, PSC_E_TOOBIG, "%s of more than 1 TiB",
                            coll_kind_name(a->kind));
    }
    return 0;
}

/* True if this rank supplies an array. */
static bool contributes_array(const struct psc_client *c,
                              const struct coll_request *a)
{
    return a->kind != COLL_JOIN &&
           (a->kind != COLL_BCAST || a->o.root == c->id.rank);
}

/* Copies the source into shared memory; releases the mutex. */
static int copy_source(struct psc_client *c, struct coll *k,
                       const struct coll_request *a)
{
    uint8_t *at;
    int rc = coll_alloc_source(k);

    if (rc != 0) {
        return rc;
    }
    at = k->src.block->data;
    pthread_mutex_unlock(&c->lock);
    if (a->piece_count == 0) {
        coll_copy_scaled(k, at, a->array->src, k->array.bytes, a->o.prescale);
    }
    for (uint32_t i = 0; i < a->piece_count; i++) {
        size_t bytes = a->pieces[i].count * ps_dtype_size(k->array.dtype);

        coll_copy_scaled(k, at, a->pieces[i].src, bytes, a->o.prescale);
        at += bytes;
    }
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += k->array.bytes;
    return 0;
}

static int adopt_source(struct psc_client *c, struct coll *k,
                        const struct coll_request *a)
{
    struct ps_shm_block *b;

    if (!contributes_array(c, a) || k->array.bytes == 0) {
        return 0;
    }
    if (a->piece_count == 0 && a->array->src == NULL) {
        return client_error(c, PSC_E_INVAL, "%s has no array",
                            coll_kind_name(k->kind));
    }
    if (k->device != NULL) {
        return coll_device_fetch(k, a);
    }
    if (a->piece_count == 0 && a->o.prescale == 1 &&
        (uintptr_t)a->array->src % WORD_BYTES == 0) {
        b = ps_shm_find(&c->shm, a->array->src, k->array.bytes);
        if (b != NULL) {
            b->uses++;
            k->src.block = b;
            k->src.offset = (size_t)((const uint8_t *)a->array->src -
                                     (const uint8_t *)b->data);
            return 0;
        }
    }
    return copy_source(c, k, a);
}

static int fill_coll(struct psc_client *c, struct coll *k,
                     const struct coll_request *a)
{
    const struct psc_array *s = a->array;
    uint64_t sent = 0;
    int rc = check_shape(c, a, &k->array.count);

    if (rc != 0) {
        return rc;
    }
    k->kind = a->kind;
    k->is_join = a->kind == COLL_JOIN;
    k->array.dtype = s->dtype;
    k->array.bytes = (size_t)k->array.count * ps_dtype_size(s->dtype);
    k->array.rows = s->ndim > 0 ? s->dims[0] : 1;
    k->array.row_bytes = ps_dtype_size(s->dtype);
    for (uint32_t i = 1; i < s->ndim; i++) {
        k->array.row_bytes *= (size_t)s->dims[i];
    }
    k->dst.out = s->out;
    k->dst.out_size = a->kind == COLL_ALLREDUCE || a->kind == COLL_BCAST
                          ? SIZE_MAX
                          : s->out_size;
    k->dst.postscale = a->o.postscale;
    k->joined = (enum psc_joined)a->o.joined;
    k->name = strdup(a->name);
    k->rows_by_rank = calloc(c->id.size, WORD_BYTES);
    if (k->name == NULL || k->rows_by_rank == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    if (a->piece_count > 0) {
        k->dst.pieces = calloc(a->piece_count, sizeof(*k->dst.pieces));
        if (k->dst.pieces == NULL) {
            return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
        }
        memcpy(k->dst.pieces, a->pieces,
               a->piece_count * sizeof(*k->dst.pieces));
        k->dst.piece_count = a->piece_count;
    }
    if (a->kind == COLL_ALLTOALL) {
        k->splits = calloc(c->id.size, WORD_BYTES);
        if (k->splits == NULL) {
            return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
        }
        if (a->splits == NULL && k->array.rows % c->id.size != 0) {
            return client_error(
                c, PSC_E_INVAL,
                "alltoall of %llu rows among %u ranks needs splits",
                (unsigned long long)k->array.rows, c->id.size);
        }
        for (uint32_t r = 0; r < c->id.size; r++) {
            k->splits[r] = a->splits != NULL ? a->splits[r]
                                             : k->array.rows / c->id.size;
        }
        if (!ps_sum_u64(k->splits, c->id.size, 1, &sent) ||
            sent != k->array.rows) {
            return client_error(
                c, PSC_E_INVAL,
                "alltoall: the splits send %llu rows, but there are %llu",
                (unsigned long long)sent, (unsigned long long)k->array.rows);
        }
    }
    return 0;
}

/* Returns the open join that was freed after a time-out: a repeated call means
 * the same join. */
static int resume_join(struct psc_client *c, const struct coll_request *a,
                       struct psc_op **ret_op)
{
    struct psc_op *op = c->colls.join;

    if (!op->detached) {
        return client_error(c, PSC_E_INVAL,
                            "this rank has joined, and waits for the "
                            "others");
    }
    op->detached = false;
    op->callback = a->o.callback;
    op->user = a->o.user;
    *ret_op = op;
    return 0;
}

static int start_locked(struct psc_client *c, struct coll_request *a,
                        struct psc_op **ret_op)
{
    struct psc_op *op;
    struct coll *k;
    int rc;

    if (c->rc != 0) {
        return client_error(c, c->rc, "%s", c->text);
    }
    if (strlen(a->name) > COLL_NAME_MAX) {
        return client_error(c, PSC_E_INVAL,
                            "the name of a collective has at most %u bytes",
                            COLL_NAME_MAX);
    }
    if (a->kind == COLL_JOIN && c->colls.join != NULL) {
        return resume_join(c, a, ret_op);
    }
    k = coll_new(c);
    if (k == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    op = k->op;
    rc = fill_coll(c, k, a);
    if (rc != 0) {
        goto free_op;
    }
    op->args.priority = a->o.priority;
    op->args.reduce = (uint8_t)a->o.reduce;
    op->args.root = a->o.root;
    rc = a->kind == COLL_JOIN ? coll_skips_prepare(k) : 0;
    if (rc != 0) {
        goto free_op;
    }
    coll_describe(c, k, a);
    rc = a->o.device != NULL && a->kind != COLL_JOIN ? coll_device_open(k, a)
                                                     : 0;
    rc = rc == 0 ? adopt_source(c, k, a) : rc;
    if (rc != 0) {
        goto free_op;
    }
    op->callback = a->o.callback;
    op->user = a->o.user;
    rc = coll_start(k);
    if (rc != 0) {
        client_error(c, rc, "%s", c->rc != 0 ? c->text : ps_strerror(rc));
        goto free_op;
    }
    if (a->kind == COLL_JOIN) {
        coll_skips_start(k);
    }
    client_kick(c);
    *ret_op = op;
    return 0;

free_op:
    op_free(op); /* With everything allocated so far. */
    return rc;
}

static int start_coll(struct psc_client *c, struct coll_request *a,
                      const struct psc_coll_options *o, struct psc_op **ret_op)
{
    int rc = client_enter_with(c, a->array, "array");

    if (rc != 0) {
        return rc;
    }
    a->name = a->name != NULL ? a->name : "";
    rc = check_options(c, a, o);
    if (rc == 0) {
        rc = start_locked(c, a, ret_op);
    }
    client_leave(c);
    return rc;
}

int psc_allreduce_start(struct psc_client *c, const char *name,
                        const struct psc_array *array,
                        const struct psc_coll_options *o,
                        struct psc_op **ret_op)
{
    struct coll_request a = {
        .kind = COLL_ALLREDUCE, .name = name, .array = array};

    return start_coll(c, &a, o, ret_op);
}

int psc_allreduce_many_start(struct psc_client *c, const char *name,
                             const struct psc_pieces *arrays,
                             const struct psc_coll_options *o,
                             struct psc_op **ret_op)
{
    uint64_t total = 0;
    struct psc_array all = {.ndim = 1, .dims = &total};
    struct coll_request a = {
        .kind = COLL_ALLREDUCE, .name = name, .array = &all};

    if (arrays == NULL || (arrays->pieces == NULL && arrays->count > 0)) {
        return client_enter_with(c, NULL, "arrays");
    }
    all.dtype = arrays->dtype;
    a.pieces = arrays->pieces;
    a.piece_count = arrays->count;
    for (uint32_t i = 0; i < arrays->count; i++) {
        if (arrays->pieces[i].count > UINT64_MAX - total) {
            return PSC_E_TOOBIG;
        }
        total += arrays->pieces[i].count;
    }
    return arrays->count == 0 ? PSC_E_INVAL : start_coll(c, &a, o, ret_op);
}

int psc_bcast_start(struct psc_client *c, const char *name,
                    const struct psc_array *array,
                    const struct psc_coll_options *o, struct psc_op **ret_op)
{
    struct coll_request a = {.kind = COLL_BCAST, .name = name, .array = array};

    return start_coll(c, &a, o, ret_op);
}

int psc_allgather_start(struct psc_client *c, const char *name,
                        const struct psc_array *array,
                        const struct psc_coll_options *o,
                        struct psc_op **ret_op)
{
    struct coll_request a = {
        .kind = COLL_ALLGATHER, .name = name, .array = array};

    return start_coll(c, &a, o, ret_op);
}

int psc_reducescatter_start(struct psc_client *c, const char *name,
                            const struct psc_array *array,
                            const struct psc_coll_options *o,
                            struct psc_op **ret_op)
{
    struct coll_request a = {
        .kind = COLL_REDUCESCATTER, .name = name, .array = array};

    return start_coll(c, &a, o, ret_op);
}

int psc_alltoall_start(struct psc_client *c, const char *name,
                       const struct psc_array *array, const uint64_t *splits,
                       const struct psc_coll_options *o, struct psc_op **ret_op)
{
    struct coll_request a = {
        .kind = COLL_ALLTOALL, .name = name, .array = array, .splits = splits};

    return start_coll(c, &a, o, ret_op);
}

int psc_join_start(struct psc_client *c, const struct psc_coll_options *o,
                   struct psc_op **ret_op)
{
    const struct psc_array none = {.dtype = PSC_FLOAT32, .ndim = 0};
    struct coll_request a = {.kind = COLL_JOIN, .array = &none};

    return start_coll(c, &a, o, ret_op);
}

int psc_op_rows(struct psc_op *op, uint64_t *rows, uint32_t count)
{
    struct psc_client *c = op != NULL ? op->client : NULL;
    int rc = client_enter_with(c, rows, "rows");

    if (rc != 0) {
        return rc;
    }
    if (op->state != OP_DONE) {
        rc = client_error(c, PSC_E_AGAIN, "the operation is open");
    } else if (op->coll == NULL || op->rc != 0 || count != c->id.size ||
               (op->coll->kind != COLL_ALLGATHER &&
                op->coll->kind != COLL_ALLTOALL)) {
        rc = client_error(c, PSC_E_NOENT,
                          "only an allgather or alltoall that has succeeded "
                          "has rows, those of %u ranks",
                          c->id.size);
    } else {
        memcpy(rows, op->coll->rows_by_rank, c->id.size * WORD_BYTES);
    }
    client_leave(c);
    return rc;
}
