/* SPDX-License-Identifier: Apache-2.0 */
/* The way of an operation to the agent and back: its array becomes memory that
 * the agent reads, it leaves in its turn, and its result is copied to the
 * program; array and result also while the rest is on its way.
 *
 * A push of round r + 1 is sent only after round r is done and its result is
 * copied; therefore the agent's two result buffers suffice. */
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/str.h"
#include "kernel/kernel.h"
#include "proto/msg_codec.h"

/* Socket bytes that are gathered before a flush while the ring is full; fewer
 * leave with the next call that waits. */
#define FLUSH_BYTES        (size_t)(16u * 1024)

/* Bytes of a streaming operation copied between two progress reports. */
#define PROGRESS_BYTES_MIN (size_t)(2u * 1024 * 1024)

/* ------------------------------------------------------------------- arrays */

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

int op_sum_sources(struct psc_op *op, const void *const *srcs, uint32_t count)
{
    const struct ps_job job = {.op = PS_JOB_SUM,
                               .dtype = (enum ps_dtype)op->key->dtype,
                               .fold = fold_of_reduce(op->args.reduce),
                               .count = op->key->count,
                               .src_count = count,
                               .src = srcs,
                               .dst = op->src.block->data};

    return ps_kernel_run(&job);
}

/* Copies the array, or the sum of several, into the staging block; without the
 * mutex. */
static int fill_block(struct psc_op *op, const void *const *srcs,
                      uint32_t count)
{
    struct psc_client *c = op->client;
    int rc = 0;

    pthread_mutex_unlock(&c->lock);
    if (count > 1) {
        rc = op_sum_sources(op, srcs, count);
    } else {
        ps_kernel_copy(op->src.block->data, srcs[0], op->key->bytes);
    }
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
                                  (const uint8_t *)b->data);
        return 0;
    }
    rc = op_alloc_staging(op);
    op->src.streaming = rc == 0 && count == 1 && op_may_stream(op, srcs[0]);
    if (rc == 0 && !op->src.streaming) {
        rc = fill_block(op, srcs, count);
    }
    if (rc != 0) {
        client_error(c, rc, "'%s' cannot be copied: %s", k->name,
                     c->rc != 0 ? c->text : ps_strerror(rc));
    }
    return rc;
}

/* ----------------------------------------------------------- order on a key */

/* True if `out` may be written before the operation ends. False while the agent
 * may still read the source from it. */
static bool may_copy_progress(const struct psc_op *op)
{
    const struct key *k = op->key;
    const uint8_t *out = op->result.out;

    if (out == NULL || op->detached || k->is_async || k->bytes < PIECES_MIN ||
        op->client->ring.memory == NULL ||
        (op->kind != OP_PUSHPULL && op->kind != OP_BROADCAST) ||
        (op->hooks != NULL && !op->hooks->may_copy_progress(op)) ||
        (op->device != NULL && op->device->ops->copy_part == NULL)) {
        return false;
    }
    if (op->src.block != NULL && !op->src.staged) {
        const uint8_t *src = (const uint8_t *)op->src.block->data +
                             op->src.offset;

        return (uintptr_t)out >= (uintptr_t)src + k->bytes ||
               (uintptr_t)src >= (uintptr_t)out + k->bytes;
    }
    return true;
}

static size_t source_bytes(const struct psc_op *op)
{
    if (op->kind == OP_PUSH_ROWS) {
        return op->src.row_count * key_row_bytes(op->key);
    }
    return op->src.block != NULL && !op_kinds[op->kind].is_pull ? op->key->bytes
                                                                : 0;
}

static int send_op(struct psc_op *op)
{
    const struct op_kind_facts *kind = &op_kinds[op->kind];
    struct ps_shm_block *b = op->src.block;
    struct key *k = op->key;
    struct ps_msg_l_op m;
    int rc = op_number(op);

    if (rc != 0) {
        return rc;
    }
    op->round = kind->is_round ? k->round + 1 : kind->is_pull ? k->round : 0;
    op->result.copies_progress = may_copy_progress(op);
    m = (struct ps_msg_l_op){
        .op_id = op->id,
        .op = (uint8_t)(op->args.send_only ? PS_OP_BROADCAST_SEND_ONLY
                                           : kind->wire),
        .key = k->agent_number,
        .region = b != NULL ? b->region : 0,
        .offset = b != NULL ? b->offset + op->src.offset : 0,
        .round = op->round,
        .priority = op->args.priority,
        .reduce = op->args.reduce,
        .root = (uint16_t)op->args.root, /* Less than PS_RANKS_MAX. */
        .row_count = op->src.row_count,
        .samples = op->args.samples,
        .streaming = op->src.streaming,
    };
    if (op->device != NULL && op->device->ops->send != NULL) {
        rc = op->device->ops->send(op, &m);
    } else {
        rc = client_put_op(op->client, &m);
    }
    if (rc != 0) {
        return rc;
    }
    op_set_state(op, OP_SENT);
    if (kind->is_round) {
        k->round = op->round;
    }
    op->client->stats.bytes_given += source_bytes(op);
    return 0;
}

void op_pump(struct psc_client *c, struct key *k)
{
    struct psc_op *op;

    while (c->rc == 0 && k->is_ready && !k->is_unbound &&
           (op = PS_LIST_FIRST(struct psc_op, of_key, &k->queue)) != NULL) {
        int rc;

        if (!op_kinds[op->kind].is_pull && k->ops_open > 0) {
            return;
        }
        if (op->src.streaming && op->src.is_held) {
            return;
        }
        if (c->ops.sent >= SENT_MAX) {
            if (!ps_list_linked(&k->of_stalled)) {
                ps_list_push_back(&c->queues.stalled, &k->of_stalled);
            }
            return;
        }
        ps_list_remove(&op->of_key);
        rc = send_op(op);
        if (rc != 0) {
            op_end(op, rc, NULL);
        }
    }
}

void op_send_stalled(struct psc_client *c)
{
    struct key *k;

    while (c->rc == 0 && c->ops.sent < SENT_MAX &&
           (k = PS_LIST_POP(struct key, of_stalled, &c->queues.stalled)) !=
               NULL) {
        op_pump(c, k);
    }
}

/* ----------------------------------------------------------------- barriers */

static int send_barrier(struct psc_op *op)
{
    struct psc_client *c = op->client;
    int rc = op_number(op);

    if (rc != 0) {
        return rc;
    }
    op->round = c->queues.barriers_sent + 1;
    rc = client_put(c, &(struct ps_msg){.code = PS_MSG_L_BARRIER,
                                        .l_barrier = {.op_id = op->id,
                                                      .number = op->round}});
    if (rc != 0) {
        return rc;
    }
    op_set_state(op, OP_SENT);
    c->queues.barriers_sent = op->round;
    c->queues.barrier_open = true;
    return 0;
}

/* At most one barrier is open at a time. */
void op_send_barriers(struct psc_client *c)
{
    struct psc_op *op;

    while (c->rc == 0 && c->reattach.link == LINK_UP &&
           !c->queues.barrier_open &&
           (op = PS_LIST_POP(struct psc_op, of_key, &c->queues.barriers)) !=
               NULL) {
        int rc = send_barrier(op);

        if (rc != 0) {
            op_end(op, rc, NULL);
        }
    }
}

/* ------------------------------------------------------------ about the job */

/* Request about the whole job, kept until the agent has ended it, because it
 * may have to be sent to the next agent. */
struct job_request {
    uint32_t len; /* Bytes of `frame`; 0: `state` is used. */
    /* With the client's number of the key. */
    struct ps_msg_l_optimizer_state state;
    uint8_t frame[];
};

static int keep_job_request(struct psc_op *op, const struct ps_msg *msg)
{
    size_t bound = msg->code == PS_MSG_L_OPTIMIZER_STATE
                       ? 0
                       : ps_msg_encoded_bound(msg);
    struct job_request *w = calloc(1, sizeof(*w) + bound);
    size_t len = 0;
    int rc = 0;

    if (w == NULL) {
        return PSC_E_NOMEM;
    }
    if (bound == 0) {
        w->state = msg->l_optimizer_state;
    } else {
        rc = ps_msg_encode(msg, PS_PROTOCOL, 0, w->frame, bound, &len);
        w->len = (uint32_t)len;
    }
    if (rc != 0) {
        free(w);
        return rc;
    }
    op->job_request = w;
    return 0;
}

static const struct key *key_of_request(const struct psc_op *op)
{
    return op->job_request->len == 0
               ? op->client->keys.by_number[op->job_request->state.key]
               : NULL;
}

static int send_job_request(struct psc_op *op)
{
    const struct key *k = key_of_request(op);
    struct ps_msg m = {.code = PS_MSG_L_OPTIMIZER_STATE};

    if (k == NULL) {
        return ps_sock_put_frame(op->client->sock, op->job_request->frame,
                                 op->job_request->len);
    }
    m.l_optimizer_state = op->job_request->state;
    m.l_optimizer_state.key = k->agent_number;
    return client_put(op->client, &m);
}

static bool may_send_request(const struct psc_op *op)
{
    const struct key *k = key_of_request(op);

    return op->client->reattach.link == LINK_UP &&
           (k == NULL || !k->is_unbound);
}

/* The first queued request that may be sent, or NULL. */
static struct psc_op *next_job_request(const struct psc_client *c)
{
    PS_LIST_EACH_OF(struct psc_op, op, of_key, &c->queues.job_requests)
    {
        if (may_send_request(op)) {
            return op;
        }
    }
    return NULL;
}

int op_send_job_requests(struct psc_client *c)
{
    struct psc_op *op;
    int rc = 0;

    while (rc == 0 && (op = next_job_request(c)) != NULL) {
        rc = send_job_request(op);
        if (rc == 0) {
            ps_list_remove(&op->of_key);
            op_set_state(op, OP_SENT);
        }
    }
    return rc;
}

static int submit_job_request(struct psc_op *op, const struct ps_msg *msg)
{
    struct psc_client *c = op->client;
    int rc = keep_job_request(op, msg);

    if (rc != 0) {
        return rc;
    }
    if (!may_send_request(op)) {
        op_set_state(op, OP_QUEUED);
        ps_list_push_back(&c->queues.job_requests, &op->of_key);
        return 0;
    }
    rc = send_job_request(op);
    if (rc == 0) {
        op_set_state(op, OP_SENT);
    }
    return rc;
}

/* --------------------------------------------------------------- submitting */

int op_submit(struct psc_op *op, const struct ps_msg *msg)
{
    struct psc_client *c = op->client;

    if (c->rc != 0) {
        return c->rc;
    }
    if (op->kind == OP_BARRIER) {
        op_set_state(op, OP_QUEUED);
        ps_list_push_back(&c->queues.barriers, &op->of_key);
        op_send_barriers(c);
    } else if (op->key == NULL) {
        int rc = submit_job_request(op, msg);

        if (rc != 0) {
            return rc;
        }
    } else {
        op_set_state(op, OP_QUEUED);
        ps_list_push_back(&op->key->queue, &op->of_key);
        op_pump(c, op->key);
    }
    if (c->ops.queued > 0) {
        client_kick(c);
    }
    if (op->key != NULL && c->ring.is_full &&
        ps_sock_pending(c->sock) < FLUSH_BYTES) {
        return 0; /* The agent is busy: flushed with later operations. */
    }
    client_flush(c);
    return 0;
}

/* -------------------------------------------------------- arrays on the way */

void op_send_progress(struct psc_op *op)
{
    struct psc_client *c = op->client;
    int rc;

    if (op->state != OP_SENT && op->state != OP_COPYING) {
        return;
    }
    rc = client_put_op(c, &(struct ps_msg_l_op){.op_id = op->id,
                                                .op = PS_OP_PROGRESS,
                                                .key = op->key->agent_number,
                                                .offset = op->src.bytes_ready});
    if (rc != 0) {
        client_fail(c, rc,
                    "cannot report the progress of '%s' to the agent: %s",
                    op->key->name, ps_strerror(rc));
    }
    client_flush(c);
}

void op_stream(struct psc_op *op, const void *src)
{
    struct psc_client *c = op->client;
    const size_t bytes = op->key->bytes;
    uint8_t *dst = op->src.block->data;

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

/* ------------------------------------------------------------------ results */

/* True if the result is copied to `out`. */
static bool wants_result(const struct psc_op *op)
{
    return op->hooks != NULL && op->hooks->wants_result != NULL
               ? op->hooks->wants_result(op)
               : op_kinds[op->kind].has_result && op->result.out != NULL &&
                     !op->detached;
}

/* PS_E_AGAIN: the operation ends later; another error: it has failed. */
static int copy_out(struct psc_op *op)
{
    struct psc_client *c = op->client;
    const void *from = op->key->is_async ? op->src.block->data
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
    size_t bytes = key_row_bytes(op->key);
    const uint8_t *from;

    if (op->result.row_index_count == 0) {
        return;
    }
    from = (const uint8_t *)op->src.block->data + op->src.offset +
           key_row_numbers_bytes(op->src.row_count);
    op_set_state(op, OP_COPYING);
    pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < op->result.row_index_count; i++) {
        memcpy((uint8_t *)op->result.out + i * bytes,
               from + op->result.row_index[i] * bytes, bytes);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += op->result.row_index_count * bytes;
    c->stats.bytes_got += op->result.row_index_count * bytes;
}

/* Ends an operation that has ended well at the agent, after copying its
 * result. */
static void end_with_result(struct psc_op *op)
{
    int rc = 0;

    if (op_kinds[op->kind].has_result && !op->key->is_async) {
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

void op_accept_done(struct psc_client *c, const struct ps_msg_l_done *m)
{
    struct psc_op *op = op_find(c, m->op_id);
    struct key *k;
    bool is_barrier;

    if (op == NULL || op->state != OP_SENT || op->kind == OP_KEY) {
        client_fail(c, PSC_E_PROTO,
                    "the agent ended an operation that is not open");
        return;
    }
    k = op->key;
    is_barrier = op->kind == OP_BARRIER;
    op->version = m->version;
    op->result.all_skipped = m->all_skipped;
    op->result.is_undelivered = m->is_undelivered;
    if (m->error != 0) {
        /* A failed round had no contribution of this rank, so its number is
         * used again; so is that of a failed barrier. */
        if (op_kinds[op->kind].is_round && k->round == op->round) {
            k->round--;
        }
        if (is_barrier) {
            c->queues.barriers_sent--;
        }
        op_end(op, client_failure(m->error), m->text);
    } else if (op->src.streaming) {
        client_fail(c, PSC_E_PROTO,
                    "the agent has ended a round of '%s' while this rank was "
                    "copying its array",
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
    } else if (is_barrier) {
        op_send_barriers(c);
    }
    op_send_stalled(c);
}

void op_accept_profile(struct psc_client *c,
                       const struct ps_msg_l_profile_events *m)
{
    struct psc_op *op = op_find(c, m->op_id);
    const size_t bytes = m->entries_count * sizeof(m->entries[0]);
    struct profile_answer *a;

    if (op == NULL || op->kind != OP_PROFILE || op->state != OP_SENT) {
        client_fail(c, PSC_E_PROTO,
                    "the agent sent a recording that was not asked for");
        return;
    }
    a = malloc(sizeof(*a) + bytes);
    if (a == NULL) {
        op_end(op, PSC_E_NOMEM, NULL);
        return;
    }
    ps_str_copy(a->server, sizeof(a->server),
                m->server != NULL ? m->server : "");
    a->first = m->first;
    a->count = m->count;
    a->next = m->next;
    a->returned = m->entries_count;
    if (bytes > 0) {
        memcpy(a->entries, m->entries, bytes);
    }
    op->profile = a;
    op_end(op, 0, NULL);
}

/* ---------------------------------------------------------------- re-attach */

/* Queues an operation of a lost agent again. */
static void requeue(struct psc_op *op)
{
    struct psc_client *c = op->client;
    struct ps_list *queue = &c->queues.job_requests;

    if (op->key != NULL) {
        queue = &op->key->queue;
        c->stats.bytes_given -= source_bytes(op);
        if (op_kinds[op->kind].is_round) {
            op->key->round = op->round - 1;
        }
    } else if (op->kind == OP_BARRIER) {
        queue = &c->queues.barriers;
        c->queues.barriers_sent--;
    }
    if (queue != &c->queues.job_requests) {
        op_release_number(op);
    }
    op->result.copied = 0;
    op_set_state(op, OP_QUEUED);
    op->must_resend = true;
    ps_list_push_front(queue, &op->of_key);
}

void op_requeue_all(struct psc_client *c)
{
    /* `ops` is in order of creation, the order of sending on each key. */
    for (struct ps_list_node *n = ps_list_last(&c->ops.all); n != NULL;
         n = ps_list_prev(&c->ops.all, n)) {
        struct psc_op *op = PS_CONTAINER(n, struct psc_op, of_client);

        if (op->state == OP_SENT && op_is_abandoned(op)) {
            op_end(op, PSC_E_CANCELED, NULL);
        } else if (op->state == OP_SENT && op->kind != OP_KEY) {
            requeue(op);
        }
    }
}
