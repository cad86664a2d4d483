/* SPDX-License-Identifier: Apache-2.0 */
/* Life of an operation and order on a key.
 *
 *     NEW -> QUEUED -> SENT [-> COPYING] [-> ENDING] -> DONE
 *
 * A push of round r + 1 is sent only after round r is done and its result is
 * copied; therefore the agent's two result buffers suffice. No function here
 * runs a callback of the program. */
#include "client/rows.h"
#include "client/state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "kernel/kernel.h"
#include "proto/msg_codec.h"

/* Freed operations kept for reuse. */
#define SPARE_OPS          4096u
/* Low bits of an operation's id: its slot in the table. Above: a counter. */
#define PLACE_BITS         20u
#define PLACES_MAX         (1u << PLACE_BITS)
/* Bytes of a streaming operation copied between two progress reports. */
#define PROGRESS_BYTES_MIN (size_t)(2u * 1024 * 1024)
/* Socket bytes that are gathered before a flush while the ring is full; fewer
 * leave with the next call that waits. */
#define FLUSH_BYTES        (size_t)(16u * 1024)

static const struct {
    const char *name;
    enum ps_op wire;
} kinds[] = {
    [OP_INIT] = {"init", PS_OP_INIT},
    [OP_PUSH] = {"push", PS_OP_PUSH},
    [OP_PULL] = {"pull", PS_OP_PULL},
    [OP_PUSHPULL] = {"pushpull", PS_OP_PUSHPULL},
    [OP_BROADCAST] = {"broadcast", PS_OP_BROADCAST},
    [OP_PUSH_ROWS] = {"push of rows", PS_OP_PUSH_ROWS},
    [OP_PULL_ROWS] = {"pull of rows", PS_OP_PULL_ROWS},
    [OP_BARRIER] = {"barrier", 0},
    [OP_OPTIMIZER] = {"optimizer", 0},
    [OP_STATE] = {"copy of the optimizer's state", 0},
    [OP_CHANGE] = {"change of the optimizer", 0},
    [OP_COMPRESSION] = {"compression", 0},
    [OP_KEY] = {"declaration", 0},
    [OP_COLL] = {"collective", 0},
    [OP_SKIP] = {"pass", PS_OP_SKIP},
};

void op_name(const struct psc_op *op, char *text, size_t size)
{
    if (op->kind == OP_COLL) {
        op->hooks->name(op, text, size);
    } else if (op->key == NULL) {
        snprintf(text, size, "%s", kinds[op->kind].name);
    } else if (op_is_round(op->kind) && op->state != OP_QUEUED) {
        snprintf(text, size, "%s of '%s', round %llu,", kinds[op->kind].name,
                 op->key->name, (unsigned long long)op->round);
    } else {
        snprintf(text, size, "%s of '%s'", kinds[op->kind].name, op->key->name);
    }
}

/* ------------------------------------------------------------------ numbers */

static int reserve_op_slot(struct psc_client *c)
{
    uint32_t cap = c->ops.slot_cap == 0 ? 64 : c->ops.slot_cap * 2;
    struct psc_op **places;
    uint32_t *free_places;

    if (c->ops.free_slot_count > 0 || c->ops.slot_count < c->ops.slot_cap) {
        return 0;
    }
    if (cap > PLACES_MAX) {
        return PSC_E_FULL;
    }
    places = realloc(c->ops.by_slot, cap * sizeof(struct psc_op *));
    if (places == NULL) {
        return PSC_E_NOMEM;
    }
    c->ops.by_slot = places;
    free_places = realloc(c->ops.free_slots, cap * sizeof(uint32_t));
    if (free_places == NULL) {
        return PSC_E_NOMEM;
    }
    c->ops.free_slots = free_places;
    c->ops.slot_cap = cap;
    return 0;
}

int op_number(struct psc_op *op)
{
    struct psc_client *c = op->client;
    uint32_t place;
    int rc = reserve_op_slot(c);

    if (rc != 0) {
        return rc;
    }
    place = c->ops.free_slot_count > 0
                ? c->ops.free_slots[--c->ops.free_slot_count]
                : c->ops.slot_count++;
    c->ops.by_slot[place] = op;
    op->id = ++c->ops.next_id << PLACE_BITS | place;
    return 0;
}

static void release_number(struct psc_op *op)
{
    struct psc_client *c = op->client;
    uint32_t place = (uint32_t)(op->id & (PLACES_MAX - 1));

    if (op->id == 0) {
        return;
    }
    assert(c->ops.by_slot[place] == op);
    c->ops.by_slot[place] = NULL;
    c->ops.free_slots[c->ops.free_slot_count++] = place;
    op->id = 0;
}

struct psc_op *op_find(struct psc_client *c, uint64_t id)
{
    uint64_t place = id & (PLACES_MAX - 1);
    struct psc_op *op;

    if (place >= c->ops.slot_count) {
        return NULL;
    }
    op = c->ops.by_slot[place];
    return op != NULL && op->id == id ? op : NULL;
}

/* --------------------------------------------------------------------- life */

struct psc_op *op_new(struct psc_client *c, enum op_kind kind)
{
    struct ps_list_node *n = ps_list_pop(&c->ops.spare);
    struct psc_op *op;

    if (n != NULL) {
        c->ops.spare_count--;
        op = PS_CONTAINER(n, struct psc_op, of_client);
        memset(op, 0, sizeof(*op));
    } else {
        op = calloc(1, sizeof(*op));
    }
    if (op == NULL) {
        return NULL;
    }
    op->client = c;
    op->kind = kind;
    op->state = OP_NEW;
    op->started = client_now();
    ps_list_push_back(&c->ops.all, &op->of_client);
    return op;
}

static void release_block(struct psc_op *op)
{
    struct ps_shm_block *b = op->src.block;

    if (b == NULL) {
        return;
    }
    op->src.block = NULL;
    b->uses--;
    if (!op->src.staged) {
        return;
    }
    if (op->kind != OP_PUSH_ROWS && op->kind != OP_PULL_ROWS &&
        op->key->spare == NULL) {
        op->key->spare = b;
    } else {
        ps_shm_put(&op->client->shm, b);
    }
}

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

static void dequeue_op(struct psc_op *op)
{
    op->client->ops.queued -= op->state == OP_QUEUED;
}

static void enqueue_op(struct psc_op *op)
{
    op->state = OP_QUEUED;
    op->client->ops.queued++;
}

void op_free(struct psc_op *op)
{
    assert(op->state != OP_COPYING);
    dequeue_op(op);
    if (ps_list_linked(&op->of_callbacks)) {
        ps_list_remove(&op->of_callbacks);
    }
    if (ps_list_linked(&op->of_key)) {
        ps_list_remove(&op->of_key);
    }
    ps_list_remove(&op->of_client);
    if (op->hooks != NULL && op->hooks->fini != NULL) {
        op->hooks->fini(op);
    }
    release_block(op);
    release_number(op);
    if (op->result.arena != NULL) {
        key_drop_arena(op->client, op->result.arena);
    }
    free(op->job_request);
    free(op->result.row_index);
    free(op->text);
    if (op->client->ops.spare_count == SPARE_OPS) {
        free(op);
        return;
    }
    op->client->ops.spare_count++;
    ps_list_push_front(&op->client->ops.spare, &op->of_client);
}

void op_sent(struct psc_op *op)
{
    dequeue_op(op);
    op->state = OP_SENT;
    op->must_resend = false;
    op->client->ops.sent++;
    op->client->ops.streaming += op->result.copies_progress;
    if (op->key != NULL) {
        op->key->ops_open++;
    }
}

/* Stores the error of an operation without handle; the next call on the key
 * returns it. */
static void defer_error(struct psc_op *op)
{
    struct key *k = op->key;

    if (op->rc == 0 || k == NULL || op->kind == OP_KEY || k->rc != 0 ||
        op->client->rc != 0) {
        return;
    }
    k->rc = op->rc;
    free(k->text);
    k->text = op->text;
    op->text = NULL;
}

static void count_op_ended(struct psc_op *op)
{
    struct psc_client *c = op->client;

    c->stats.ops_ended++;
    if (op_is_round(op->kind) && op->kind != OP_SKIP) {
        c->stats.rounds++;
    }
    if (op_has_result(op->kind)) {
        c->stats.bytes_pulled += op->key->bytes;
    }
}

void op_free_later(struct psc_op *op)
{
    ps_list_push_back(&op->client->ops.deferred_free, &op->of_key);
}

void op_free_deferred(struct psc_client *c)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&c->ops.deferred_free)) != NULL) {
        op_free(PS_CONTAINER(n, struct psc_op, of_key));
    }
}

/* Takes an open operation out of its queue, or from those that are sent. */
static void withdraw_op(struct psc_op *op)
{
    struct psc_client *c = op->client;

    if (op->state == OP_SENT || op->state == OP_COPYING) {
        c->ops.sent--;
        c->ops.streaming -= op->result.copies_progress;
        if (op->key != NULL) {
            op->key->ops_open--;
        }
        if (op->kind == OP_BARRIER) {
            c->queues.barrier_open = false;
        }
    }
    if (ps_list_linked(&op->of_key)) {
        ps_list_remove(&op->of_key);
    }
    dequeue_op(op);
    release_number(op);
}

void op_report(struct psc_op *op)
{
    struct psc_client *c = op->client;

    if (op->detached) {
        defer_error(op);
        op_free_later(op);
    } else if (op->callback != NULL) {
        ps_list_push_back(&c->progress.callbacks, &op->of_callbacks);
        if (c->progress.event_fd >= 0 &&
            eventfd_write(c->progress.event_fd, 1) != 0) {
            /* A full counter is readable, too. */
        }
    }
}

static void finish_op(struct psc_op *op)
{
    release_block(op);
    op->state = OP_DONE;
    if (op->hooks != NULL && op->hooks->on_ended != NULL) {
        op->hooks->on_ended(op);
    } else {
        op_report(op);
    }
    client_changed(op->client);
}

void op_end(struct psc_op *op, int rc, const char *text)
{
    withdraw_op(op);
    op->rc = rc;
    if (rc == 0) {
        count_op_ended(op);
    } else if (text != NULL && text[0] != '\0') {
        /* Without memory the text of the code remains. */
        op->text = strdup(text);
    }
    if (op->src.streaming) {
        op->state = OP_ENDING;
        return;
    }
    finish_op(op);
}

void op_end_all(struct psc_client *c, int rc, const char *text)
{
    /* op_end() may append operations, and frees none. */
    PS_LIST_EACH(n, &c->ops.all)
    {
        struct psc_op *op = PS_CONTAINER(n, struct psc_op, of_client);

        if (op->state == OP_QUEUED || op->state == OP_SENT) {
            op_end(op, rc, text);
        }
    }
}

void op_cancel(struct psc_op *op)
{
    withdraw_op(op);
    release_block(op);
    op->state = OP_DONE;
    op_free_later(op);
}

/* ----------------------------------------------------------- order on a key */

static void assign_round(struct psc_op *op)
{
    switch (op->kind) {
    case OP_PUSH:
    case OP_PUSHPULL:
    case OP_BROADCAST:
    case OP_PUSH_ROWS:
    case OP_SKIP:
        op->round = op->key->round + 1;
        break;
    case OP_PULL:
    case OP_PULL_ROWS:
        op->round = op->key->round;
        break;
    case OP_INIT:
    case OP_BARRIER:
    case OP_OPTIMIZER:
    case OP_CHANGE:
    case OP_STATE:
    case OP_COMPRESSION:
    case OP_KEY:
    case OP_COLL:
        op->round = 0;
    }
}

/* False: the operation must use the socket. */
static bool submit_by_ring(struct psc_client *c, const struct ps_msg_l_op *m)
{
    if (c->ring.memory == NULL ||
        (c->ring.is_full &&
         ps_ring_free_op_slots(&c->ring.worker) < PS_RING_OP_SLOTS / 2)) {
        return false;
    }
    c->ring.is_full = !ps_ring_push_op(&c->ring.worker, m,
                                       ps_sock_frames(c->sock));
    c->ring.needs_wake = c->ring.needs_wake || !c->ring.is_full;
    return !c->ring.is_full;
}

/* True if `out` may be written before the operation ends. False while the agent
 * may still read the source from it. */
static bool may_copy_progress(const struct psc_op *op)
{
    const struct key *k = op->key;
    const uint8_t *out = op->result.out;

    if (out == NULL || op->detached || k->is_async || k->bytes < PIECES_MIN ||
        op->client->ring.memory == NULL ||
        (op->kind != OP_PUSHPULL && op->kind != OP_BROADCAST) ||
        (op->hooks != NULL && !op->hooks->may_copy_progress(op))) {
        return false;
    }
    if (op->src.block != NULL && !op->src.staged) {
        const uint8_t *src = (const uint8_t *)ps_shm_data(op->src.block) +
                             op->src.offset;

        return (uintptr_t)out >= (uintptr_t)src + k->bytes ||
               (uintptr_t)src >= (uintptr_t)out + k->bytes;
    }
    return true;
}

static size_t source_bytes(const struct psc_op *op)
{
    if (op->kind == OP_PUSH_ROWS) {
        return op->src.row_count * rows_bytes(op->key);
    }
    return op->src.block != NULL && op->kind != OP_PULL_ROWS &&
                   op->kind != OP_PULL
               ? op->key->bytes
               : 0;
}

static int send_op(struct psc_op *op)
{
    struct ps_shm_block *b = op->src.block;
    struct ps_msg m = {.code = PS_MSG_L_OP};
    int rc = op_number(op);

    if (rc != 0) {
        return rc;
    }
    assign_round(op);
    op->result.copies_progress = may_copy_progress(op);
    m.l_op = (struct ps_msg_l_op){
        .op_id = op->id,
        .op = (uint8_t)(op->args.send_only ? PS_OP_BROADCAST_SEND_ONLY
                                           : kinds[op->kind].wire),
        .key = op->key->agent_number,
        .region = b != NULL ? ps_shm_region(b) : 0,
        .offset = b != NULL ? b->offset + op->src.offset : 0,
        .round = op->round,
        .priority = op->args.priority,
        .reduce = op->args.reduce,
        .root = (uint16_t)op->args.root, /* Less than PS_RANKS_MAX. */
        .row_count = op->src.row_count,
        .samples = op->args.samples,
        .streaming = op->src.streaming,
    };
    if (!submit_by_ring(op->client, &m.l_op)) {
        rc = client_put(op->client, &m);
    }
    if (rc != 0) {
        return rc;
    }
    op_sent(op);
    if (op_is_round(op->kind)) {
        op->key->round = op->round;
    }
    op->client->stats.bytes_pushed += source_bytes(op);
    return 0;
}

/* Reports bytes_ready to the agent. A queued operation reports it when it is
 * sent. */
static void send_progress(struct psc_op *op)
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
    rc = submit_by_ring(c, &m.l_op) ? 0 : client_put(c, &m);
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
        send_progress(op);
    }
    op->src.streaming = false;
    if (op->state == OP_ENDING) {
        finish_op(op);
    }
}

/* Sends the operations of the key that may leave; the caller flushes. */
static void send_ready(struct psc_client *c, struct key *k)
{
    struct ps_list_node *n;

    while (c->rc == 0 && k->is_ready && !k->is_unbound &&
           (n = ps_list_first(&k->queue)) != NULL) {
        struct psc_op *op = PS_CONTAINER(n, struct psc_op, of_key);
        int rc;

        if (op->kind != OP_PULL && op->kind != OP_PULL_ROWS &&
            k->ops_open > 0) {
            return;
        }
        if (c->ops.sent >= SENT_MAX) {
            if (!ps_list_linked(&k->of_stalled)) {
                ps_list_push_back(&c->queues.stalled, &k->of_stalled);
            }
            return;
        }
        ps_list_remove(n);
        rc = send_op(op);
        if (rc != 0) {
            op_end(op, rc, NULL);
        }
    }
}

void op_pump(struct key *k, struct psc_client *c)
{
    send_ready(c, k);
}

static void send_stalled(struct psc_client *c)
{
    while (c->rc == 0 && c->ops.sent < SENT_MAX) {
        struct ps_list_node *n = ps_list_pop(&c->queues.stalled);
        struct key *k;

        if (n == NULL) {
            return;
        }
        k = PS_CONTAINER(n, struct key, of_stalled);
        send_ready(c, k);
    }
}

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
    op_sent(op);
    c->queues.barriers_sent = op->round;
    c->queues.barrier_open = true;
    return 0;
}

/* At most one barrier is open at a time. */
void op_send_barriers(struct psc_client *c)
{
    while (c->rc == 0 && c->reattach.link == LINK_UP &&
           !c->queues.barrier_open) {
        struct ps_list_node *n = ps_list_pop(&c->queues.barriers);
        struct psc_op *op;
        int rc;

        if (n == NULL) {
            return;
        }
        op = PS_CONTAINER(n, struct psc_op, of_key);
        rc = send_barrier(op);
        if (rc != 0) {
            op_end(op, rc, NULL);
        }
    }
}

static void kick_if_sleeping(struct psc_client *c)
{
    if (c->ops.queued > 0) {
        client_kick(c);
    }
}

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
    PS_LIST_EACH(n, &c->queues.job_requests)
    {
        struct psc_op *op = PS_CONTAINER(n, struct psc_op, of_key);

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
            op_sent(op);
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
        enqueue_op(op);
        ps_list_push_back(&c->queues.job_requests, &op->of_key);
        return 0;
    }
    rc = send_job_request(op);
    if (rc == 0) {
        op_sent(op);
    }
    return rc;
}

/* Queues an operation of a lost agent again. */
static void requeue(struct psc_op *op)
{
    struct psc_client *c = op->client;
    struct ps_list *queue = &c->queues.job_requests;

    if (op->key != NULL) {
        queue = &op->key->queue;
        op->key->ops_open--;
        c->stats.bytes_pushed -= source_bytes(op);
        if (op_is_round(op->kind)) {
            op->key->round = op->round - 1;
        }
    } else if (op->kind == OP_BARRIER) {
        queue = &c->queues.barriers;
        c->queues.barriers_sent--;
        c->queues.barrier_open = false;
    }
    if (queue != &c->queues.job_requests) {
        release_number(op);
    }
    c->ops.sent--;
    c->ops.streaming -= op->result.copies_progress;
    op->result.copied = 0;
    enqueue_op(op);
    op->must_resend = true;
    ps_list_push_front(queue, &op->of_key);
}

void op_requeue_all(struct psc_client *c)
{
    /* `ops` is in order of creation, the order of sending on each key. */
    for (struct ps_list_node *n = ps_list_last(&c->ops.all); n != NULL;
         n = ps_list_prev(&c->ops.all, n)) {
        struct psc_op *op = PS_CONTAINER(n, struct psc_op, of_client);

        if (op->state == OP_SENT && op->kind != OP_KEY) {
            requeue(op);
        }
    }
}

int op_submit(struct psc_op *op, const struct ps_msg *msg)
{
    struct psc_client *c = op->client;

    if (c->rc != 0) {
        return c->rc;
    }
    if (op->kind == OP_BARRIER) {
        enqueue_op(op);
        ps_list_push_back(&c->queues.barriers, &op->of_key);
        op_send_barriers(c);
        kick_if_sleeping(c);
    } else if (op->key == NULL) {
        int rc = submit_job_request(op, msg);

        if (rc != 0) {
            return rc;
        }
    } else {
        enqueue_op(op);
        ps_list_push_back(&op->key->queue, &op->of_key);
        send_ready(c, op->key);
        kick_if_sleeping(c);
        if (c->ring.is_full && ps_sock_pending(c->sock) < FLUSH_BYTES) {
            return 0; /* The agent is busy: flushed with later operations. */
        }
    }
    client_flush(c);
    return 0;
}

/* ------------------------------------------------------------------ answers */

/* True if the result is copied to `out`. */
static bool wants_result(const struct psc_op *op)
{
    return op->hooks != NULL && op->hooks->wants_result != NULL
               ? op->hooks->wants_result(op)
               : op_has_result(op->kind) && op->result.out != NULL &&
                     !op->detached;
}

static void copy_out(struct psc_op *op)
{
    struct psc_client *c = op->client;
    const void *from = op->key->is_async ? ps_shm_data(op->src.block)
                                         : op->result.data;
    size_t bytes = (op->hooks != NULL ? op->result.bytes : op->key->bytes) -
                   op->result.copied;

    op->state = OP_COPYING;
    pthread_mutex_unlock(&c->lock);
    if (op->hooks != NULL) {
        op->hooks->copy_result(op, from);
    } else {
        ps_kernel_copy((uint8_t *)op->result.out + op->result.copied,
                       (const uint8_t *)from + op->result.copied, bytes);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += bytes;
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
    op->state = OP_COPYING;
    pthread_mutex_unlock(&c->lock);
    ps_kernel_copy_part((uint8_t *)op->result.out + from,
                        k->data[op->round & 1] + from, bytes - from);
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += bytes - from;
    op->result.copied = bytes;
    op->state = OP_SENT;
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
    op->state = OP_COPYING;
    pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < op->result.row_index_count; i++) {
        memcpy((uint8_t *)op->result.out + i * bytes,
               from + op->result.row_index[i] * bytes, bytes);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += op->result.row_index_count * bytes;
    c->stats.bytes_pulled += op->result.row_index_count * bytes;
}

void op_accept_done(struct psc_op *op, const struct ps_msg_l_done *m)
{
    struct psc_client *c = op->client;
    struct key *k = op->key;

    op->version = m->version;
    op->result.all_skipped = m->all_skipped;
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
        if (op_has_result(op->kind) && !k->is_async) {
            op->result.data = k->data[op->version & 1];
        }
        if (wants_result(op)) {
            copy_out(op);
        } else if (op->kind == OP_PULL_ROWS && !op->detached) {
            copy_rows_out(op);
        }
        op_end(op, 0, NULL);
    }
    if (k != NULL) {
        send_ready(c, k);
    }
    op_send_barriers(c);
    send_stalled(c);
}
