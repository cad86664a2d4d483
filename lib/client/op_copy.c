/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of an operation: its array into memory that the agent reads, and its
 * result out of the agent's memory, both also while the rest is on its way. */
#include "client/op_copy.h"
#include "client/error.h"
#include "client/op.h"
#include "client/op_device.h"
#include "client/op_queue.h"
#include "client/rows.h"
#include "client/send.h"
#include "client/state.h"

#include <string.h>

#include "base/dtype.h"
#include "kernel/kernel.h"

/* Bytes of a streaming operation copied between two progress reports. */
#define PROGRESS_BYTES_MIN (size_t)(2u * 1024 * 1024)

/* ----------------------------------------------------------------- sources */

int op_alloc_staging(struct psc_op *op)
{
    struct key *k = op->key;
    int rc;

    if (k->spare != NULL) {
        op->src.block = k->spare;
        k->spare = NULL;
    } else {
        rc = ps_shm_get(&op->client->shm, k->bytes, &op->src.block);
        if (rc != 0) {
            return rc;
        }
    }
    op->src.block->uses++;
    op->src.offset = 0;
    op->src.staged = true;
    return 0;
}

static enum ps_fold fold_of_reduce(uint8_t reduce)
{
    switch (reduce) {
    case PSC_MIN:
        return PS_FOLD_MIN;
    case PSC_MAX:
        return PS_FOLD_MAX;
    case PSC_PRODUCT:
        return PS_FOLD_PRODUCT;
    default:
        return PS_FOLD_SUM;
    }
}

/* Copies the array into the staging block; without the mutex. */
static void copy_source(struct psc_op *op, const void *src)
{
    struct psc_client *c = op->client;
    void *dst = ps_shm_data(op->src.block);

    pthread_mutex_unlock(&c->lock);
    ps_kernel_copy(dst, src, op->key->bytes);
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += op->key->bytes;
}

int op_sum_sources(struct psc_op *op, const void *const *srcs, uint32_t count)
{
    const struct ps_job job = {.op = PS_JOB_SUM,
                               .dtype = (enum ps_dtype)op->key->dtype,
                               .fold = fold_of_reduce(op->args.reduce),
                               .count = op->key->count,
                               .src_count = count,
                               .src = srcs,
                               .dst = ps_shm_data(op->src.block)};

    return ps_kernel_run(&job);
}

/* The same without the mutex. */
static int sum_unlocked(struct psc_op *op, const void *const *srcs,
                        uint32_t count)
{
    struct psc_client *c = op->client;
    int rc;

    pthread_mutex_unlock(&c->lock);
    rc = op_sum_sources(op, srcs, count);
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += op->key->bytes * count;
    return rc;
}

bool op_may_stream(const struct psc_op *op, const void *src)
{
    const struct psc_client *c = op->client;
    const uintptr_t from = (uintptr_t)src;
    const uintptr_t out = (uintptr_t)op->result.out;

    return c->options.on_loss == PSC_ON_LOSS_FAIL && c->ring.memory != NULL &&
           op->kind != OP_INIT && !op->key->is_async &&
           op->key->bytes >= PIECES_MIN &&
           (out <= from || out >= from + op->key->bytes);
}

int op_attach_source(struct psc_op *op, const void *const *srcs, uint32_t count)
{
    struct psc_client *c = op->client;
    struct key *k = op->key;
    struct ps_shm_block *b;
    int rc;

    for (uint32_t i = 0; i < count; i++) {
        if (srcs[i] == NULL) {
            return client_error(c, PSC_E_INVAL, "'%s' has no array", k->name);
        }
    }
    /* The value of a pushpull without rounds arrives in the same block. */
    b = count == 1 && !(k->is_async && op->kind == OP_PUSHPULL)
            ? ps_shm_find(&c->shm, srcs[0], k->bytes)
            : NULL;
    if (b != NULL && (uintptr_t)srcs[0] % ps_dtype_size(k->dtype) == 0) {
        b->uses++;
        op->src.block = b;
        op->src.offset = (size_t)((const uint8_t *)srcs[0] -
                                  (const uint8_t *)ps_shm_data(b));
        return 0;
    }
    rc = op_alloc_staging(op);
    op->src.streaming = rc == 0 && count == 1 && op_may_stream(op, srcs[0]);
    if (rc == 0 && count > 1) {
        rc = sum_unlocked(op, srcs, count);
    } else if (rc == 0 && !op->src.streaming) {
        copy_source(op, srcs[0]);
    }
    if (rc != 0) {
        client_error(c, rc, "'%s' cannot be copied: %s", k->name,
                     c->rc != 0 ? c->text : ps_strerror(rc));
    }
    return rc;
}

void op_send_progress(struct psc_op *op)
{
    struct psc_client *c = op->client;
    const struct ps_msg m = {.code = PS_MSG_L_OP,
                             .l_op = {.op_id = op->id,
                                      .op = PS_OP_PROGRESS,
                                      .key = op->key->agent_number,
                                      .offset = op->src.bytes_ready}};
    int rc;

    if (op->state != OP_SENT && op->state != OP_COPYING) {
        return;
    }
    rc = client_push_op(c, &m.l_op) ? 0 : client_put(c, &m);
    if (rc != 0) {
        client_fail(c, rc, "cannot tell the agent more of '%s': %s",
                    op->key->name, ps_strerror(rc));
    }
    client_flush(c);
}

void op_stream(struct psc_op *op, const void *src)
{
    struct psc_client *c = op->client;
    const size_t bytes = op->key->bytes;
    uint8_t *dst = ps_shm_data(op->src.block);

    while (op->src.streaming && op->state != OP_ENDING && c->rc == 0) {
        size_t piece = bytes - op->src.bytes_ready < PROGRESS_BYTES_MIN
                           ? bytes - op->src.bytes_ready
                           : PROGRESS_BYTES_MIN;

        pthread_mutex_unlock(&c->lock);
        ps_kernel_copy_part(dst + op->src.bytes_ready,
                            (const uint8_t *)src + op->src.bytes_ready, piece);
        pthread_mutex_lock(&c->lock);
        c->stats.bytes_copied += piece;
        op->src.bytes_ready += piece;
        op->src.streaming = op->src.bytes_ready < bytes;
        op_send_progress(op);
    }
    op->src.streaming = false;
    if (op->state == OP_ENDING) {
        op_finish_ending(op);
    }
}

/* ----------------------------------------------------------------- results */

/* True if the result is copied to `out`. */
static bool wants_result(const struct psc_op *op)
{
    return op->hooks != NULL && op->hooks->wants_result != NULL
               ? op->hooks->wants_result(op)
               : op_has_result(op->kind) && op->result.out != NULL &&
                     !op->detached;
}

/* PS_E_AGAIN: the operation ends later; another error: it has failed. */
static int copy_out(struct psc_op *op)
{
    struct psc_client *c = op->client;
    const void *from = op->key->is_async ? ps_shm_data(op->src.block)
                                         : op->result.data;
    size_t bytes = (op->hooks != NULL ? op->result.bytes : op->key->bytes) -
                   op->result.copied;

    if (op->device != NULL) {
        return op->device->ops->copy_result(op, from);
    }
    op_set_state(op, OP_COPYING);
    pthread_mutex_unlock(&c->lock);
    if (op->hooks != NULL) {
        op->hooks->copy_result(op, from);
    } else {
        ps_kernel_copy((uint8_t *)op->result.out + op->result.copied,
                       (const uint8_t *)from + op->result.copied, bytes);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += bytes;
    return 0;
}

void op_accept_progress(struct psc_op *op, uint64_t bytes)
{
    struct psc_client *c = op->client;
    const struct key *k = op->key;
    size_t from = op->result.copied;

    if (op->state != OP_SENT || !op->result.copies_progress ||
        bytes > k->bytes || !wants_result(op)) {
        return;
    }
    if (op->hooks != NULL && bytes > op->result.bytes) {
        bytes = op->result.bytes; /* Rounded keys of collectives are longer. */
    }
    if (bytes <= from) {
        return;
    }
    if (op->device != NULL) {
        op->device->ops->copy_part(op, k->data[op->round & 1] + from, from,
                                   bytes - from);
        return;
    }
    op_set_state(op, OP_COPYING);
    pthread_mutex_unlock(&c->lock);
    ps_kernel_copy_part((uint8_t *)op->result.out + from,
                        k->data[op->round & 1] + from, bytes - from);
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += bytes - from;
    op->result.copied = bytes;
    op_set_state(op, OP_SENT);
    /* psc_op_free() waits for the copy. */
    client_changed(c);
    if (c->rc != 0) {
        /* op_end_all() skips operations in COPYING. */
        op_end(op, c->rc, c->text);
    }
}

/* Copies each received row to all its places in `out`. */
static void copy_rows_out(struct psc_op *op)
{
    struct psc_client *c = op->client;
    size_t bytes = rows_bytes(op->key);
    const uint8_t *from;

    if (op->result.row_index_count == 0) {
        return;
    }
    from = (const uint8_t *)ps_shm_data(op->src.block) + op->src.offset +
           rows_numbers_bytes(op->src.row_count);
    op_set_state(op, OP_COPYING);
    pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < op->result.row_index_count; i++) {
        memcpy((uint8_t *)op->result.out + i * bytes,
               from + op->result.row_index[i] * bytes, bytes);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += op->result.row_index_count * bytes;
    c->stats.bytes_pulled += op->result.row_index_count * bytes;
}

/* Ends an operation that has ended well at the agent, after copying its
 * result. */
static void end_with_result(struct psc_op *op)
{
    int rc = 0;

    if (op_has_result(op->kind) && !op->key->is_async) {
        op->result.data = op->key->data[op->version & 1];
    }
    if (wants_result(op)) {
        rc = copy_out(op);
    } else if (op->kind == OP_PULL_ROWS && !op->detached) {
        copy_rows_out(op);
    }
    if (rc != PS_E_AGAIN) {
        op_end(op, rc, rc != 0 ? op->client->detail : NULL);
    }
}

void op_accept_done(struct psc_op *op, const struct ps_msg_l_done *m)
{
    struct psc_client *c = op->client;
    struct key *k = op->key;

    op->version = m->version;
    op->result.all_skipped = m->all_skipped;
    op->result.is_undelivered = m->is_undelivered;
    if (m->error != 0) {
        /* A failed round had no contribution of this rank, so its number is
         * used again; so is that of a failed barrier. */
        if (op_is_round(op->kind) && k->round == op->round) {
            k->round--;
        }
        if (op->kind == OP_BARRIER) {
            c->queues.barriers_sent--;
        }
        op_end(op, client_failure(m->error), m->text);
    } else if (op->src.streaming) {
        client_fail(c, PSC_E_PROTO,
                    "the agent has ended a round of '%s' without what this "
                    "rank still copies",
                    k->name);
        return;
    } else if (k != NULL && op->version < op->round) {
        client_fail(c, PSC_E_PROTO,
                    "the agent gave version %llu of '%s' for round %llu",
                    (unsigned long long)op->version, k->name,
                    (unsigned long long)op->round);
        return;
    } else {
        end_with_result(op);
    }
    if (k != NULL) {
        op_pump(c, k);
    }
    op_send_barriers(c);
    op_send_stalled(c);
}
