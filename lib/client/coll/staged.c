/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of a collective on a GPU, by way of the host (device/staged.c). The
 * source is copied while the ranks agree; results are copied by the
 * sub-operations that bring them. */
#include "client/coll/staged.h"
#include "client/coll/subop.h"
#include "client/device/staged.h"
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "kernel/kernel.h"

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
    uint8_t *at = ps_shm_data(k->src.block);

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
    uint8_t *to = ps_shm_data(k->src.block);
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
    struct ps_shm_block *b;
    int rc = coll_get_block(c, k->array.bytes, &b);

    if (rc != 0) {
        return client_error(c, rc, "no shared memory of %zu bytes: %s",
                            k->array.bytes, ps_strerror(rc));
    }
    b->uses++;
    k->src.block = b;
    k->src.staged = true;
    d->prescale = a->o.prescale;
    d->source.ended = source_ended;
    rc = a->piece_count > 0
             ? fetch_pieces(k, a)
             : staged_fetch(&d->at, b,
                            &(struct gpu_copy){ps_shm_data(b), a->array->src,
                                               k->array.bytes},
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
    coll_copy_scaled(k, ps_shm_data(b), from, part->result.bytes,
                     k->dst.postscale);
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
        from = rc == 0 ? ps_shm_data(block) : from;
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

/* Results of collectives are copied when they are complete. */
static void ignore_part(struct psc_op *part, const void *data, size_t from,
                        size_t bytes)
{
    (void)part;
    (void)data;
    (void)from;
    (void)bytes;
}

static void keep_device(struct psc_op *part)
{
    (void)part; /* It is the collective's. */
}

static const struct op_device_ops part_ops = {.copy_part = ignore_part,
                                              .copy_result = write_result,
                                              .release = keep_device};
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
