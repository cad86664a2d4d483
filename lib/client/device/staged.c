/* SPDX-License-Identifier: Apache-2.0 */
/* Path of an operation on a key:
 *
 *     start      an event in the program's stream; behind it, on a stream of
 *                the client, copies of the array to a block; the operation is
 *                queued
 *     fetched    the operation is sent; or it was sent at once, and each piece
 *                is reported when it is there (op_may_stream())
 *     result     copies to the GPU, behind the same event, also of parts while
 *                the rest is on its way; then the program's stream waits for
 *                them, and the operation ends
 *     written    the next round of the key may overwrite the result
 *
 * A copy that fails while the operation is queued ends it with an error; the
 * other ranks wait, as for a rank that has not pushed. */
#include "client/device/staged.h"
#include "client/key.h"
#include "client/op.h"
#include "client/psclient_stream.h"
#include "client/state.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "kernel/kernel.h"

/* Bytes of a piece of a source that is sent while it is copied. */
#define PIECE_BYTES (size_t)(4u * 1024 * 1024)

int staged_open(struct psc_client *c, const struct psc_device *where,
                const void *array, struct staged *ret)
{
    struct staged s = {.stream = where->stream,
                       .is_complete = (where->flags & PSC_DEVICE_COMPLETE) !=
                                      0};
    int rc = gpu_find(c, where, array, &s.gpu);

    if (rc != 0) {
        return rc;
    }
    /* Its name means another stream in the thread that ends the operation. */
    s.is_complete = s.is_complete ||
                    (uintptr_t)s.stream == PS_CU_STREAM_OF_THREAD;
    rc = gpu_mark(s.gpu, s.stream, &s.behind);
    if (rc == 0) {
        *ret = s;
    }
    return rc;
}

void staged_close(struct staged *s)
{
    if (s->gpu != NULL) {
        gpu_drop_event(s->gpu, s->behind);
        s->behind = NULL;
    }
}

int staged_fetch(struct staged *s, struct ps_shm_block *to,
                 const struct gpu_copy *copies, size_t count,
                 struct gpu_transfer *t)
{
    int rc = gpu_pin_block(s->gpu, to);

    rc = rc != 0 ? rc : gpu_copy(s->gpu, GPU_TO_HOST, s->behind, copies, count);
    if (rc == 0) {
        rc = gpu_transfer(s->gpu, GPU_TO_HOST, t);
    }
    if (rc != 0) {
        gpu_finish(s->gpu, GPU_TO_HOST); /* The block is used again. */
    }
    return rc;
}

/* ----------------------------------------------------------------- results */

/* Copies to the GPU that end the use of host memory. */
struct write {
    struct gpu_transfer transfer;
    struct psc_op *op; /* Ended afterwards; NULL: has ended. */
    struct key *key;
    struct ps_shm_block *block; /* Released afterwards; NULL: none. */
};

static void write_ended(struct psc_client *c, struct gpu_transfer *t, int rc)
{
    struct write *w = PS_CONTAINER(t, struct write, transfer);
    struct key *k = w->key;
    char text[PSC_TEXT_MAX];

    if (w->block != NULL) {
        op_release_staging(c, k, w->block);
    }
    if (w->op != NULL) {
        snprintf(text, sizeof(text), "'%s' cannot be copied to the GPU: %s",
                 k->name, gpu_why(c));
        op_end(w->op, rc, text);
    } else {
        k->ops_open--; /* The caller's stream reports a failure. */
    }
    free(w);
    op_pump(c, k);
    op_send_stalled(c);
}

int staged_write_part(struct staged *s, const struct gpu_copy *copies,
                      size_t count)
{
    int rc = gpu_copy(s->gpu, GPU_TO_DEVICE, s->behind, copies, count);

    if (rc == 0) {
        staged_close(s); /* The stream of copies has waited. */
    }
    return rc;
}

int staged_write(struct staged *s, struct psc_op *op,
                 const struct gpu_copy *copies, size_t count,
                 struct ps_shm_block *block)
{
    struct psc_client *c = op->client;
    struct write *w = calloc(1, sizeof(*w));
    int rc = w != NULL ? staged_write_part(s, copies, count) : PSC_E_NOMEM;

    if (rc == 0) {
        *w = (struct write){.transfer.ended = write_ended,
                            .op = s->is_complete ? op : NULL,
                            .key = op->key,
                            .block = block};
        rc = gpu_transfer(s->gpu, GPU_TO_DEVICE, &w->transfer);
    }
    if (rc != 0) {
        gpu_finish(s->gpu, GPU_TO_DEVICE);
        if (block != NULL) {
            op_release_staging(c, op->key, block);
        }
        free(w);
        return rc;
    }
    if (s->is_complete) {
        if (op->state != OP_COPYING) {
            op_set_state(op, OP_COPYING);
        }
        return PS_E_AGAIN;
    }
    op->key->ops_open++;
    return gpu_delay(s->gpu, s->stream, &w->transfer);
}

/* --------------------------------------------------------- operations on keys */

/* State of an operation on a key. */
struct staged_op {
    struct op_device base;
    struct staged at;
    uint32_t pieces; /* Of the source, under way. */
    /* Several sources, one behind the other, whose sum goes to the operation's
     * block; NULL: the source is copied there. */
    struct ps_shm_block *sources;
    uint32_t source_count;
    int rc; /* A piece has failed. */
    bool is_released;
};

static struct staged_op *state_of(const struct psc_op *op)
{
    return (struct staged_op *)(uintptr_t)op->device;
}

struct piece {
    struct gpu_transfer transfer;
    struct psc_op *op;
    size_t bytes;
};

/* The source is not complete. Operations that are queued on the key count on it:
 * a pull would wait for its round. */
static void fail_source(struct psc_op *op, int rc)
{
    struct psc_client *c = op->client;
    struct key *k = op->key;
    char text[PSC_TEXT_MAX];

    snprintf(text, sizeof(text), "'%s' cannot be copied from the GPU: %s",
             k->name, gpu_why(c));
    if (!op->src.is_held) {
        client_fail(c, rc, "%s", text); /* The agent waits for the rest. */
        return;
    }
    while ((op = PS_LIST_FIRST(struct psc_op, of_key, &k->queue)) != NULL) {
        op_end(op, rc, text);
    }
}

static size_t source_stride(const struct key *k)
{
    return ps_round_up(k->bytes, PS_SHM_ALIGN);
}

static void release_sources(struct psc_client *c, struct staged_op *s)
{
    if (s->sources != NULL) {
        s->sources->uses--;
        ps_shm_put(&c->shm, s->sources);
        s->sources = NULL;
    }
}

/* Sums the sources, which are complete. */
static int sum_sources(struct psc_op *op)
{
    struct staged_op *s = state_of(op);
    const uint8_t *at = s->sources->data;
    const void **srcs = calloc(s->source_count, sizeof(*srcs));
    int rc = PSC_E_NOMEM;

    if (srcs != NULL) {
        for (uint32_t i = 0; i < s->source_count; i++) {
            srcs[i] = at + i * source_stride(op->key);
        }
        rc = op_sum_sources(op, srcs, s->source_count);
        free(srcs);
    }
    release_sources(op->client, s);
    return rc;
}

static void piece_ended(struct psc_client *c, struct gpu_transfer *t, int rc)
{
    struct piece *p = PS_CONTAINER(t, struct piece, transfer);
    struct psc_op *op = p->op;
    struct staged_op *s = state_of(op);
    struct key *k = op->key;

    s->pieces--;
    s->rc = s->rc != 0 ? s->rc : rc;
    if (s->rc == 0) {
        op->src.bytes_ready += p->bytes;
    }
    if (s->rc == 0 && s->pieces == 0 && s->sources != NULL) {
        s->rc = sum_sources(op);
    }
    op->src.streaming = s->pieces > 0;
    free(p);
    if (s->is_released) {
        return;
    }
    if (op->state == OP_ENDING) {
        if (s->pieces == 0) {
            op_finish_ending(op);
        }
    } else if (s->rc != 0) {
        if (s->pieces == 0) {
            fail_source(op, s->rc);
        }
    } else if (!op->src.is_held) {
        op_send_progress(op);
    }
    op_pump(c, k);
    client_flush(c);
}

/* Begins the copy of one piece, or of one of several sources. */
static int fetch_piece(struct psc_op *op, struct staged *at,
                       struct ps_shm_block *block, const struct gpu_copy *copy)
{
    struct staged_op *s = state_of(op);
    struct piece *p = calloc(1, sizeof(*p));
    int rc;

    if (p == NULL) {
        return PSC_E_NOMEM;
    }
    *p = (struct piece){
        .transfer.ended = piece_ended, .op = op, .bytes = copy->bytes};
    rc = staged_fetch(at, block, copy, 1, &p->transfer);
    if (rc != 0) {
        free(p);
        return rc;
    }
    s->pieces++;
    op->src.streaming = true;
    return 0;
}

static int fetch_source(struct psc_op *op, const void *src)
{
    const size_t bytes = op->key->bytes;
    int rc = op_alloc_staging(op);
    size_t from = 0;
    uint8_t *to;

    if (rc != 0) {
        return rc;
    }
    to = op->src.block->data;
    op->src.is_held = !op_may_stream(op, src);
    while (rc == 0 && from < bytes) {
        size_t piece = op->src.is_held || bytes - from < PIECE_BYTES
                           ? bytes - from
                           : PIECE_BYTES;

        rc = fetch_piece(
            op, &state_of(op)->at, op->src.block,
            &(struct gpu_copy){to + from, (const uint8_t *)src + from, piece});
        from += piece;
    }
    return rc;
}

/* Begins the copies of several sources, each of a GPU and a stream of its own.
 * That of the first is open. */
static int fetch_sources(struct psc_op *op, const struct psc_device *where,
                         const void *const *srcs, uint32_t count)
{
    struct psc_client *c = op->client;
    struct staged_op *s = state_of(op);
    const size_t stride = source_stride(op->key);
    int rc = op_alloc_staging(op);
    uint8_t *to;

    rc = rc != 0 ? rc : ps_shm_get(&c->shm, count * stride, &s->sources);
    if (rc != 0) {
        return rc;
    }
    s->sources->uses++;
    s->source_count = count;
    op->src.is_held = true;
    to = s->sources->data;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        const struct gpu_copy copy = {to + i * stride, srcs[i], op->key->bytes};
        struct staged at = {0};

        rc = i > 0 ? staged_open(c, &where[i], srcs[i], &at) : 0;
        if (rc == 0) {
            rc = fetch_piece(op, i > 0 ? &at : &s->at, s->sources, &copy);
        }
        staged_close(&at);
    }
    return rc;
}

static void copy_part(struct psc_op *op, const void *data, size_t from,
                      size_t bytes)
{
    struct staged_op *s = state_of(op);
    int rc = gpu_pin_results(s->at.gpu, data)
                 ? staged_write_part(
                       &s->at,
                       &(struct gpu_copy){(uint8_t *)op->result.out + from,
                                          data, bytes},
                       1)
                 : PS_E_AGAIN;

    if (rc == 0) {
        op->result.copied = from + bytes;
    }
}

/* A pinned copy of the result, in the block of the operation. */
static int copy_to_block(struct psc_op *op, const void *data)
{
    struct psc_client *c = op->client;
    int rc = op->src.block == NULL ? op_alloc_staging(op) : 0;

    rc = rc != 0 ? rc : gpu_pin_block(state_of(op)->at.gpu, op->src.block);
    if (rc == 0) {
        op_set_state(op, OP_COPYING);
        pthread_mutex_unlock(&c->lock);
        ps_kernel_copy(op->src.block->data, data, op->key->bytes);
        pthread_mutex_lock(&c->lock);
        c->stats.bytes_copied += op->key->bytes;
    }
    return rc;
}

static int copy_result(struct psc_op *op, const void *data)
{
    struct staged_op *s = state_of(op);
    struct ps_shm_block *block = NULL;
    const size_t from = op->result.copied;
    int rc = 0;

    if (op->key->is_async) {
        rc = gpu_pin_block(s->at.gpu, op->src.block);
        block = op->src.block;
    } else if (!gpu_pin_results(s->at.gpu, data)) {
        rc = copy_to_block(op, data);
        block = op->src.block;
    }
    if (rc == 0 && block != NULL) {
        data = block->data;
        op->src.block = NULL;
    }
    if (rc == 0) {
        rc = staged_write(&s->at, op,
                          &(struct gpu_copy){(uint8_t *)op->result.out + from,
                                             (const uint8_t *)data + from,
                                             op->key->bytes - from},
                          1, block);
    }
    if (rc != 0 && rc != PS_E_AGAIN) {
        client_error(op->client, rc, "'%s' cannot be copied to the GPU: %s",
                     op->key->name, gpu_why(op->client));
    }
    return rc;
}

static void release(struct psc_op *op)
{
    struct staged_op *s = state_of(op);

    s->is_released = true;
    if (s->pieces > 0) {
        gpu_drain(op->client);
    }
    release_sources(op->client, s);
    staged_close(&s->at);
    free(s);
}

static const struct op_device_ops staged_ops = {
    .copy_part = copy_part, .copy_result = copy_result, .release = release};

int staged_attach(struct psc_op *op, const struct psc_device *where,
                  const void *const *srcs, uint32_t count)
{
    struct psc_client *c = op->client;
    const struct key *k = op->key;
    const void *array = srcs != NULL ? srcs[0] : op->result.out;
    struct staged_op *s;
    int rc;

    for (uint32_t i = 0; srcs != NULL && i < count; i++) {
        if (srcs[i] == NULL) {
            return client_error(c, PSC_E_INVAL, "'%s' has no array", k->name);
        }
    }
    s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    s->base.ops = &staged_ops;
    op->device = &s->base;
    rc = staged_open(c, where, array, &s->at);
    if (rc == 0 && srcs != NULL) {
        rc = count > 1 ? fetch_sources(op, where, srcs, count)
                       : fetch_source(op, array);
    } else if (rc == 0 && k->is_async) {
        rc = op_alloc_staging(op); /* For the value. */
    }
    if (rc != 0) {
        client_error(c, rc, "'%s' cannot be taken from the GPU: %s", k->name,
                     c->rc != 0 ? c->text : gpu_why(c));
    }
    return rc;
}
