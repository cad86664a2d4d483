/* SPDX-License-Identifier: Apache-2.0 */
/* Data transfer of each kind of collective: the keys, the part of the array that
 * each of them carries, and its place in the result. Arrays on a GPU go by way of
 * the host (device/staged.c): the source is copied while the ranks agree; results
 * are copied by the sub-operations that bring them. */
#include "client/coll/coll.h"
#include "client/device/staged.h"
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/num.h"
#include "kernel/kernel.h"

/* Alltoall: ranks that send at least this many bytes to each other rank on
 * average use one key for each pair. */
#define PAIR_BYTES 2048u

/* ---------------------------------------------------------- arrays on a GPU */

struct coll_device {
    struct staged at;
    struct gpu_transfer source;
    struct coll *coll;
    double prescale; /* Of the source, when it is there. */
    bool is_fetching;
    bool is_dropped; /* The source is not needed any more. */
};

int coll_device_open(struct coll *k, const struct coll_request *a)
{
    struct psc_client *c = k->op->client;
    struct coll_device *d = calloc(1, sizeof(*d));
    const void *array = a->array->src != NULL ? a->array->src : a->array->out;
    int rc;

    if (d == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    if (a->piece_count > 0) {
        array = a->pieces[0].src;
    }
    k->device = d;
    d->coll = k;
    rc = staged_open(c, a->o.device, array, &d->at);
    return rc == 0 ? 0
                   : client_error(c, rc,
                                  "the arrays of the GPU cannot be "
                                  "used: %s",
                                  gpu_why(c));
}

void coll_device_close(struct coll *k)
{
    if (k->device != NULL) {
        staged_close(&k->device->at);
        free(k->device);
    }
}

/* ----------------------------------------------------------------- sources */

static void source_ended(struct psc_client *c, struct gpu_transfer *t, int rc)
{
    struct coll_device *d = PS_CONTAINER(t, struct coll_device, source);
    struct coll *k = d->coll;
    uint8_t *at = k->src.block->data;

    d->is_fetching = false;
    k->src.is_pending = false;
    if (d->is_dropped) {
        return;
    }
    if (rc != 0) {
        /* The other ranks wait for data of this rank. */
        client_fail(c, rc, "a collective cannot be copied from the GPU: %s",
                    gpu_why(c));
        coll_fail(k, rc, c->text);
    } else if (d->prescale != 1) {
        coll_copy_scaled(k, at, at, k->array.bytes, d->prescale);
    }
    k->on_idle(k);
}

static int fetch_pieces(struct coll *k, const struct coll_request *a)
{
    struct gpu_copy *copies = calloc(a->piece_count, sizeof(*copies));
    uint8_t *to = k->src.block->data;
    int rc;

    if (copies == NULL) {
        return PSC_E_NOMEM;
    }
    for (uint32_t i = 0; i < a->piece_count; i++) {
        copies[i] = (struct gpu_copy){to, a->pieces[i].src,
                                      (size_t)a->pieces[i].count *
                                          ps_dtype_size(k->array.dtype)};
        to += copies[i].bytes;
    }
    rc = staged_fetch(&k->device->at, k->src.block, copies, a->piece_count,
                      &k->device->source);
    free(copies);
    return rc;
}

int coll_device_fetch(struct coll *k, const struct coll_request *a)
{
    struct psc_client *c = k->op->client;
    struct coll_device *d = k->device;
    int rc = coll_alloc_source(k);

    if (rc != 0) {
        return rc;
    }
    d->prescale = a->o.prescale;
    d->source.ended = source_ended;
    rc = a->piece_count > 0
             ? fetch_pieces(k, a)
             : staged_fetch(&d->at, k->src.block,
                            &(struct gpu_copy){k->src.block->data,
                                               a->array->src, k->array.bytes},
                            1, &d->source);
    if (rc != 0) {
        return client_error(c, rc,
                            "a collective cannot be copied from the "
                            "GPU: %s",
                            gpu_why(c));
    }
    d->is_fetching = true;
    k->src.is_pending = true;
    return 0;
}

void coll_device_drop_source(struct coll *k)
{
    if (k->device != NULL && k->device->is_fetching) {
        k->device->is_dropped = true;
        gpu_drain(k->op->client);
    }
}

/* ----------------------------------------------------------------- results */

/* The result, scaled, in a pinned block. */
static int scale_to_block(struct psc_op *part, const uint8_t *from,
                          struct ps_shm_block **ret_block)
{
    struct coll *k = part->coll;
    struct psc_client *c = part->client;
    struct ps_shm_block *b;
    int rc = ps_shm_get(&c->shm, part->key->bytes, &b);

    if (rc != 0) {
        return rc;
    }
    b->uses++;
    rc = gpu_pin_block(k->device->at.gpu, b);
    if (rc != 0) {
        b->uses--;
        ps_shm_put(&c->shm, b);
        return rc;
    }
    coll_copy_scaled(k, b->data, from, part->result.bytes, k->dst.postscale);
    c->stats.bytes_copied += part->result.bytes;
    *ret_block = b;
    return 0;
}

static int write_pieces(struct psc_op *part, const uint8_t *from,
                        struct ps_shm_block *block)
{
    const struct coll *k = part->coll;
    struct gpu_copy *copies = calloc(k->dst.piece_count, sizeof(*copies));
    int rc;

    if (copies == NULL) {
        return PSC_E_NOMEM;
    }
    for (uint32_t i = 0; i < k->dst.piece_count; i++) {
        copies[i] = (struct gpu_copy){k->dst.pieces[i].out, from,
                                      (size_t)k->dst.pieces[i].count *
                                          ps_dtype_size(k->array.dtype)};
        from += copies[i].bytes;
    }
    rc = staged_write(&k->device->at, part, copies, k->dst.piece_count, block);
    free(copies);
    return rc;
}

static int write_result(struct psc_op *part, const void *data)
{
    const struct coll *k = part->coll;
    const uint8_t *from = (const uint8_t *)data + part->result.from;
    struct ps_shm_block *block = NULL;
    int rc = 0;

    if (k->dst.postscale != 1 || !gpu_pin_results(k->device->at.gpu, data)) {
        rc = scale_to_block(part, from, &block);
        from = rc == 0 ? block->data : from;
    }
    if (rc == 0 && k->dst.pieces != NULL) {
        rc = write_pieces(part, from, block);
    } else if (rc == 0) {
        rc = staged_write(&k->device->at, part,
                          &(struct gpu_copy){(uint8_t *)part->result.out, from,
                                             part->result.bytes},
                          1, block);
    }
    if (rc != 0 && rc != PS_E_AGAIN) {
        client_error(part->client, rc,
                     "a collective cannot be copied to the GPU: %s",
                     gpu_why(part->client));
    }
    return rc;
}

/* Its state is that of the collective. */
static const struct op_device_ops part_ops = {.copy_result = write_result};
static const struct op_device part_device = {.ops = &part_ops};

void coll_device_set(struct psc_op *part)
{
    const struct coll *k = part->coll;

    if (k->device != NULL && (k->dst.out != NULL || k->dst.pieces != NULL)) {
        part->device = &part_device;
    }
}

void coll_device_copy(struct coll *k, void *to, const void *from, size_t bytes)
{
    struct staged *at = &k->device->at;
    int rc = staged_write_part(at, &(struct gpu_copy){to, from, bytes}, 1);

    if (rc != 0) {
        coll_fail(k, rc, gpu_why(k->op->client));
    }
    gpu_finish(at->gpu, GPU_TO_DEVICE);
}

/* ----------------------------------------------------- keys and their parts */

static void data_key_name(struct coll *k, const char *prefix, uint32_t dtype,
                          uint64_t *count, char *name, size_t size)
{
    uint64_t step = 512;

    while (k->is_size_rounded && step * 16 < *count) {
        step *= 2;
    }
    if (k->is_size_rounded) {
        *count = ps_round_up(*count, step);
    }
    snprintf(name, size, "%s.%s.%llu", prefix, ps_dtype_name(dtype),
             (unsigned long long)*count);
}

/* Replaces a source whose memory ends before a rounded size does by a copy in a
 * larger block. */
static int widen_out(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct ps_shm_block *wide;
    int rc;

    if (k->src.block == NULL || !k->is_size_rounded ||
        k->src.offset + k->array.bytes + coll_slack(k->array.bytes) <=
            k->src.block->size) {
        return 0;
    }
    rc = coll_get_block(c, k->array.bytes, &wide);
    if (rc != 0) {
        return rc;
    }
    memcpy(wide->data, (const uint8_t *)k->src.block->data + k->src.offset,
           k->array.bytes);
    coll_release_source(k);
    wide->uses++;
    k->src.block = wide;
    k->src.offset = 0;
    k->src.staged = true;
    return 0;
}

/* Where bytes of the result go; NULL: nowhere. */
static uint8_t *result_at(const struct coll *k, size_t offset)
{
    uint8_t *result = k->dst.out != NULL ? k->dst.out : k->dst.result;

    return result != NULL ? result + offset : NULL;
}

static int reduce_part(struct coll *k, const char *prefix, uint64_t from,
                       uint64_t count, bool want)
{
    size_t size = ps_dtype_size(k->array.dtype);
    char name[PS_KEY_NAME_MAX + 1];
    uint64_t padded = count;
    struct psc_op *part;
    int rc;

    data_key_name(k, prefix, k->array.dtype, &padded, name, sizeof(name));
    rc = coll_subop_new(k, want ? OP_PUSHPULL : OP_PUSH, name, k->array.dtype,
                        padded, &part);
    if (rc != 0) {
        return rc;
    }
    part->args.reduce = k->op->args.reduce;
    coll_subop_set_source(part, from * size);
    coll_device_set(part);
    if (want) {
        part->result.out = result_at(k, 0);
        part->result.bytes = count * size;
    }
    return 0;
}

/* Range of rank `root`'s array that a sub-operation carries. `wanted_bytes`
 * from `value_offset` of the value go to `out_from` of the result. */
struct source_range {
    size_t source_offset; /* In bytes, a multiple of a word. */
    size_t bytes;
    size_t value_offset;
    size_t wanted_bytes;
    size_t out_from;
};

static int start_source_part(struct coll *k, const char *prefix, uint32_t root,
                             const struct source_range *s)
{
    struct psc_client *c = k->op->client;
    char name[PS_KEY_NAME_MAX + 1];
    uint64_t words = (s->bytes + WORD_BYTES - 1) / WORD_BYTES;
    struct psc_op *part;
    int rc;

    data_key_name(k, prefix, PS_DTYPE_INT64, &words, name, sizeof(name));
    rc = coll_subop_new(k, OP_BROADCAST, name, PS_DTYPE_INT64, words, &part);
    if (rc != 0) {
        return rc;
    }
    part->args.root = root;
    coll_device_set(part);
    if (root == c->id.rank) {
        coll_subop_set_source(part, s->source_offset);
    }
    part->result.out = result_at(k, s->out_from);
    part->result.from = s->value_offset;
    part->result.bytes = s->wanted_bytes;
    part->args.send_only = s->wanted_bytes == 0 || k->is_join;
    return 0;
}

/* Allocates the result. A rank whose array is too small takes part
 * nevertheless, so that the other ranks get theirs. */
static int reserve_out(struct coll *k, uint64_t rows)
{
    struct psc_client *c = k->op->client;
    char text[PSC_TEXT_MAX];
    char name[COLL_NAME_MAX + 64];
    uint64_t bytes;

    if (!ps_mul_u64(rows, k->array.row_bytes, &bytes) || bytes > SIZE_MAX / 2) {
        return PSC_E_TOOBIG;
    }
    if (k->is_join) {
        return 0; /* A joined rank needs no result. */
    }
    k->dst.result_size = (size_t)bytes;
    if (k->dst.out != NULL && k->dst.out_size < bytes) {
        coll_name(k, name, sizeof(name));
        snprintf(text, sizeof(text),
                 "%s brings %llu bytes to rank %u, but its array has %zu", name,
                 (unsigned long long)bytes, c->id.rank, k->dst.out_size);
        coll_fail(k, PSC_E_TOOBIG, text);
        return 0;
    }
    if (k->dst.out == NULL && bytes > 0) {
        k->dst.result = malloc((size_t)bytes);
        return k->dst.result == NULL ? PSC_E_NOMEM : 0;
    }
    return 0;
}

/* -------------------------------------------------------------------- kinds */

static int start_allreduce(struct coll *k)
{
    k->dst.result_size = k->array.bytes;
    return k->array.count == 0 ? 0
                               : reduce_part(k, "sum", 0, k->array.count, true);
}

static int start_bcast(struct coll *k)
{
    k->dst.result_size = k->array.bytes;
    return k->array.bytes == 0
               ? 0
               : start_source_part(
                     k, "copy", k->op->args.root,
                     &(struct source_range){.bytes = k->array.bytes,
                                            .wanted_bytes = k->array.bytes});
}

static int start_allgather(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint64_t rows;
    size_t at = 0;
    int rc = ps_sum_u64(k->rows_by_rank, c->id.size, 1, &rows)
                 ? reserve_out(k, rows)
                 : PSC_E_TOOBIG;

    for (uint32_t r = 0; rc == 0 && r < c->id.size; r++) {
        size_t bytes = (size_t)k->rows_by_rank[r] * k->array.row_bytes;
        char prefix[32];

        snprintf(prefix, sizeof(prefix), "from%u", r);
        if (bytes > 0) {
            rc = start_source_part(k, prefix, r,
                                   &(struct source_range){.bytes = bytes,
                                                          .wanted_bytes = bytes,
                                                          .out_from = at});
        }
        at += bytes;
    }
    return rc;
}

/* Chunk r belongs to rank r; the first ones have one row more. */
static int start_reducescatter(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint64_t elements = k->array.row_bytes / ps_dtype_size(k->array.dtype);
    uint64_t from = 0;
    int rc = reserve_out(k, k->array.rows / c->id.size +
                                (c->id.rank < k->array.rows % c->id.size));

    for (uint32_t r = 0; rc == 0 && r < c->id.size; r++) {
        uint64_t rows = k->array.rows / c->id.size +
                        (r < k->array.rows % c->id.size);
        char prefix[32];

        snprintf(prefix, sizeof(prefix), "chunk%u", r);
        if (rows * elements > 0) {
            rc = reduce_part(k, prefix, from, rows * elements, r == c->id.rank);
        }
        from += rows * elements;
    }
    return rc;
}

/* Copies the rows that this rank sends to itself. */
static void copy_own_rows(struct coll *k, const struct source_range *s)
{
    uint8_t *out = result_at(k, s->out_from);
    const uint8_t *from;

    if (k->rc != 0 || k->op->detached || k->src.block == NULL || out == NULL) {
        return;
    }
    from = (const uint8_t *)k->src.block->data + k->src.offset +
           s->source_offset;
    if (k->device != NULL && k->dst.out != NULL) {
        coll_device_copy(k, out, from, s->bytes);
    } else {
        ps_kernel_copy(out, from, s->bytes);
    }
}

/* Transfers the rows of rank `from`, one round for each receiving rank: only
 * nodes with such a rank receive them. */
static int start_pairs(struct coll *k, uint32_t from, size_t out_from)
{
    const uint32_t size = k->op->client->id.size;
    const uint32_t rank = k->op->client->id.rank;
    const uint64_t *sends = k->splits + (size_t)from * size;
    size_t at = 0;
    int rc = 0;

    for (uint32_t to = 0; rc == 0 && to < size; to++) {
        struct source_range s = {.source_offset = at,
                                 .bytes = (size_t)sends[to] *
                                          k->array.row_bytes,
                                 .out_from = out_from};
        char prefix[48];

        at += s.bytes;
        if (s.bytes == 0) {
            continue;
        }
        if (to == from) {
            if (from == rank) {
                copy_own_rows(k, &s);
            }
            continue;
        }
        s.wanted_bytes = to == rank ? s.bytes : 0;
        s.value_offset = s.source_offset %
                         WORD_BYTES; /* Ranges begin at whole words. */
        s.source_offset -= s.value_offset;
        s.bytes += s.value_offset;
        snprintf(prefix, sizeof(prefix), "from%u-%u", from, to);
        rc = start_source_part(k, prefix, from, &s);
    }
    return rc;
}

/* Transfers the rows of rank `from` with one broadcast to all receivers, for
 * few rows. */
static int start_rows_bcast(struct coll *k, uint32_t from, size_t out_from)
{
    const uint32_t size = k->op->client->id.size;
    const uint32_t rank = k->op->client->id.rank;
    const uint64_t *sends = k->splits + (size_t)from * size;
    struct source_range s = {.out_from = out_from};
    char prefix[32];

    for (uint32_t to = 0; to < size; to++) {
        s.bytes += (size_t)sends[to] * k->array.row_bytes;
        s.value_offset += to < rank ? (size_t)sends[to] * k->array.row_bytes
                                    : 0;
    }
    if (s.bytes == 0) {
        return 0;
    }
    if (s.bytes / size >= PAIR_BYTES) {
        return start_pairs(k, from, out_from);
    }
    s.wanted_bytes = (size_t)sends[rank] * k->array.row_bytes;
    snprintf(prefix, sizeof(prefix), "from%u", from);
    return start_source_part(k, prefix, from, &s);
}

/* True if the rows that each rank announces fit in memory. */
static bool splits_fit(const struct coll *k)
{
    const uint32_t size = k->op->client->id.size;

    for (uint32_t r = 0; r < size; r++) {
        uint64_t rows;
        uint64_t bytes;

        if (!ps_sum_u64(k->splits + (size_t)r * size, size, 1, &rows) ||
            !ps_mul_u64(rows, k->array.row_bytes, &bytes) ||
            bytes > SIZE_MAX / 2) {
            return false;
        }
    }
    return true;
}

static int start_alltoall(struct coll *k)
{
    struct psc_client *c = k->op->client;
    uint64_t rows;
    size_t at = 0;
    int rc;

    for (uint32_t r = 0; r < c->id.size; r++) {
        k->rows_by_rank[r] = k->splits[(size_t)r * c->id.size + c->id.rank];
    }
    if (!splits_fit(k) || !ps_sum_u64(k->rows_by_rank, c->id.size, 1, &rows)) {
        return PSC_E_TOOBIG;
    }
    rc = reserve_out(k, rows);
    for (uint32_t r = 0; rc == 0 && r < c->id.size; r++) {
        rc = start_rows_bcast(k, r, at);
        at += (size_t)k->rows_by_rank[r] * k->array.row_bytes;
    }
    return rc;
}

static int start_kind(struct coll *k)
{
    switch (k->kind) {
    case COLL_ALLREDUCE:
        return start_allreduce(k);
    case COLL_BCAST:
        return start_bcast(k);
    case COLL_ALLGATHER:
        return start_allgather(k);
    case COLL_REDUCESCATTER:
        return start_reducescatter(k);
    case COLL_ALLTOALL:
        return start_alltoall(k);
    case COLL_JOIN:
        break;
    }
    return PSC_E_INVAL;
}

void coll_start_data(struct coll *k)
{
    uint32_t first = k->subops.count;
    int rc = widen_out(k);

    if (rc == 0) {
        rc = start_kind(k);
    }
    if (rc != 0) {
        coll_fail_client(k, rc);
    }
    for (uint32_t i = first; i < k->subops.count; i++) {
        coll_subop_start(
            k->subops.list[i]); /* All fail if the client has failed. */
    }
}

/* ------------------------------------------------------------------- SPLITS */

void coll_start_splits(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    uint8_t *words;
    int rc = coll_small_round(k, "splits",
                              (uint64_t)c->id.size * c->id.size *
                                  PS_FIXED_COLL_SPLIT_BYTES,
                              &words, &part);

    if (rc != 0) {
        coll_fail_client(k, rc);
        return;
    }
    memcpy(words + (size_t)c->id.rank * c->id.size * PS_FIXED_COLL_SPLIT_BYTES,
           k->splits, c->id.size * PS_FIXED_COLL_SPLIT_BYTES);
    coll_subop_start(part);
}

void coll_end_splits(struct coll *k)
{
    uint32_t size = k->op->client->id.size;
    uint64_t *all = realloc(k->splits, (size_t)size * size * WORD_BYTES);

    if (all == NULL) {
        coll_fail_client(k, PSC_E_NOMEM);
        return;
    }
    memcpy(all, coll_subop_result(k->subops.list[k->subops.count - 1]),
           (size_t)size * size * WORD_BYTES);
    k->splits = all;
}

enum coll_stage coll_first_stage(const struct coll *k)
{
    return k->kind == COLL_ALLTOALL ? COLL_SPLITS : COLL_DATA;
}
