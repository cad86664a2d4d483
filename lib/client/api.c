/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls on operations. */
#include "client/rows.h"
#include "client/state.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/num.h"
#include "base/str.h"
#include "kernel/kernel.h"

/* Time for the agent to answer a stall query; it asks other members for up to a
 * second. */
#define STALL_QUERY_MS 5000

/* ----------------------------------------------------------------- starting */

static int check_op_options(struct psc_client *c,
                            const struct psc_op_options *o,
                            struct psc_op_options *ret_full)
{
    struct psc_op_options full = {.size = sizeof(full)};

    if (o != NULL) {
        if (o->size < offsetof(struct psc_op_options, src_count) ||
            o->size > sizeof(full)) {
            return client_error(c, PSC_E_INVAL,
                                "size is not of the operation's options");
        }
        memcpy(&full, o, o->size);
    }
    if (full.reduce > PSC_PRODUCT) {
        return client_error(c, PSC_E_INVAL, "no such reduction as %u",
                            full.reduce);
    }
    if (full.samples != 0 && full.reduce != PSC_MEAN) {
        return client_error(c, PSC_E_INVAL,
                            "samples are of a mean, and the reduction is %s",
                            ps_reduce_name((uint8_t)full.reduce));
    }
    if (full.root >= c->id.size) {
        return client_error(c, PSC_E_INVAL,
                            "rank %u is none of a job of %u workers", full.root,
                            c->id.size);
    }
    *ret_full = full;
    return 0;
}

/* True if this rank supplies an array. */
static bool contributes_array(const struct psc_op *op)
{
    switch (op->kind) {
    case OP_PUSH:
    case OP_PUSHPULL:
        return true;
    case OP_INIT:
    case OP_BROADCAST:
        return op->args.root == op->client->id.rank;
    case OP_PUSH_ROWS:
    case OP_PULL_ROWS:
    case OP_PULL:
    case OP_BARRIER:
    case OP_OPTIMIZER:
    case OP_CHANGE:
    case OP_STATE:
    case OP_COMPRESSION:
    case OP_KEY:
    case OP_COLL:
    case OP_SKIP:
        break;
    }
    return false;
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

/* Sums or copies the arrays into the staging block; without the mutex. */
static int copy_sources(struct psc_op *op, const void *const *srcs,
                        uint32_t count)
{
    struct psc_client *c = op->client;
    const struct ps_job job = {.op = PS_JOB_SUM,
                               .dtype = (enum ps_dtype)op->key->dtype,
                               .fold = fold_of_reduce(op->args.reduce),
                               .count = op->key->count,
                               .src_count = count,
                               .src = srcs,
                               .dst = ps_shm_data(op->src.block)};
    int rc = 0;

    client_leave(c);
    if (count == 1) {
        ps_kernel_copy(job.dst, srcs[0], op->key->bytes);
    } else {
        rc = ps_kernel_run(&job);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_copied += op->key->bytes * count;
    return rc;
}

/* True if the agent may get the operation before its array is copied. Not in a
 * job that survives the death of a worker, which would leave the array
 * incomplete; not if early parts of the result would overwrite elements that
 * are not copied yet. */
static bool may_stream(const struct psc_op *op, const void *src)
{
    const struct psc_client *c = op->client;
    const uintptr_t from = (uintptr_t)src;
    const uintptr_t out = (uintptr_t)op->result.out;

    return c->options.on_loss == PSC_ON_LOSS_FAIL && c->ring.memory != NULL &&
           op->kind != OP_INIT && !op->key->is_async &&
           op->key->bytes >= PIECES_MIN &&
           (out <= from || out >= from + op->key->bytes);
}

static int attach_source(struct psc_op *op, const void *const *srcs,
                         uint32_t count)
{
    struct psc_client *c = op->client;
    struct key *k = op->key;
    struct ps_shm_block *b;
    int rc;

    for (uint32_t i = 0; i < count; i++) {
        if (srcs[i] == NULL) {
            return client_error(c, PSC_E_INVAL, "'%s' is given no array",
                                k->name);
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
    op->src.streaming = rc == 0 && count == 1 && may_stream(op, srcs[0]);
    if (rc == 0 && !op->src.streaming) {
        rc = copy_sources(op, srcs, count);
    }
    if (rc != 0) {
        client_error(c, rc, "'%s' cannot be copied: %s", k->name,
                     c->rc != 0 ? c->text : ps_strerror(rc));
    }
    return rc;
}

static void apply_options(struct psc_op *op, const struct psc_op_options *o,
                          bool waited_for)
{
    op->args.priority = o->priority;
    op->args.reduce = (uint8_t)o->reduce;
    op->args.root = o->root;
    op->args.samples = o->samples;
    op->callback = o->callback;
    op->user = o->user;
    op->detached = !waited_for && o->callback == NULL;
}

/* Returns the stored error of an operation without handle, once. */
static int earlier_failure(struct psc_client *c, struct key *k)
{
    int rc = k->rc;

    if (rc != 0) {
        client_error(c, rc, "an earlier operation on '%s' failed: %s", k->name,
                     k->text != NULL ? k->text : ps_strerror(rc));
        k->rc = 0;
    }
    return rc;
}

/* Rows of a call; NULL: the call is about the whole key. */
struct rows {
    const int64_t *row;
    size_t count;
};

static int attach_rows(struct psc_op *op, const struct rows *r, const void *src)
{
    const struct key *k = op->key;

    if (k->row_width == 0) {
        return client_error(op->client, PSC_E_UNSUPPORTED,
                            "'%s' is not a key of rows: psc_key_rows() "
                            "declares one",
                            k->name);
    }
    if (r->count > 0 && src == NULL && op->result.out == NULL) {
        return client_error(op->client, PSC_E_INVAL,
                            "'%s' is given no memory for %zu rows", k->name,
                            r->count);
    }
    return rows_block(op, r->row, r->count,
                      op->kind == OP_PUSH_ROWS ? src : NULL);
}

static int start_locked(struct psc_client *c, enum op_kind kind, uint32_t key,
                        const struct rows *rows, const void *src, void *out,
                        const struct psc_op_options *o, struct psc_op **ret_op)
{
    struct psc_op_options full = {0};
    struct key *k = key_of(c, key);
    const void *const *srcs = &src;
    struct psc_op *op;
    int rc;

    if (c->rc != 0) {
        return client_error(c, c->rc, "%s", c->text);
    }
    if (k == NULL) {
        return client_error(c, PSC_E_NOKEY, "no key has the number %u", key);
    }
    rc = check_op_options(c, o, &full);
    if (rc == 0) {
        rc = earlier_failure(c, k);
    }
    if (rc != 0) {
        return rc;
    }
    if (c->colls.join != NULL && op_is_round(kind) && !k->is_async) {
        return client_error(c, PSC_E_INVAL,
                            "'%s': this rank has joined and gives to no "
                            "round until all have",
                            k->name);
    }
    if (full.reduce == PSC_MEAN && k->dtype == PSC_BOOL) {
        return client_error(c, PSC_E_INVAL,
                            "'%s' is of bool, which has no mean", k->name);
    }
    if (full.reduce > PSC_MEAN && rows != NULL) {
        return client_error(c, PSC_E_UNSUPPORTED,
                            "'%s': rows are summed or averaged; %s is for "
                            "whole arrays",
                            k->name, ps_reduce_name((uint8_t)full.reduce));
    }
    op = op_new(c, kind);
    if (op == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    op->key = k;
    op->result.out = out;
    apply_options(op, &full, ret_op != NULL);
    if (rows != NULL) {
        rc = attach_rows(op, rows, src);
    } else if (k->row_width != 0 && kind != OP_INIT) {
        rc = client_error(c, PSC_E_UNSUPPORTED,
                          "'%s' is a key of rows: they are pushed and "
                          "pulled by psc_push_rows_start() and "
                          "psc_pull_rows_start()",
                          k->name);
    } else if (contributes_array(op)) {
        srcs = full.src_count > 0 ? full.srcs : srcs;
        rc = attach_source(op, srcs, full.src_count > 0 ? full.src_count : 1);
    } else if (k->is_async && kind == OP_PULL) {
        rc = op_alloc_staging(op);
        if (rc != 0) {
            client_error(c, rc, "'%s': no memory for its value", k->name);
        }
    }
    if (rc == 0) {
        rc = op_submit(op, NULL);
        if (rc != 0) {
            client_error(c, rc, "%s", c->rc != 0 ? c->text : ps_strerror(rc));
        }
    }
    if (rc != 0) {
        op->src.streaming = false;
        op_free(op);
        return rc;
    }
    if (ret_op != NULL) {
        *ret_op = op;
    }
    if (op->src.streaming) {
        op_stream(op, srcs[0]);
    }
    return 0;
}

static int start_on_key(struct psc_client *c, enum op_kind kind, uint32_t key,
                        const void *src, void *out,
                        const struct psc_op_options *o, struct psc_op **ret_op)
{
    int rc = client_enter(c);

    if (rc == 0) {
        rc = start_locked(c, kind, key, NULL, src, out, o, ret_op);
        client_leave(c);
    }
    return rc;
}

static int start_rows(struct psc_client *c, enum op_kind kind, uint32_t key,
                      const struct rows *rows, const void *src, void *out,
                      const struct psc_op_options *o, struct psc_op **ret_op)
{
    int rc = client_enter(c);

    if (rc == 0) {
        rc = start_locked(c, kind, key, rows, src, out, o, ret_op);
        client_leave(c);
    }
    return rc;
}

int psc_push_rows_start(struct psc_client *c, uint32_t key, const int64_t *row,
                        size_t count, const void *src,
                        const struct psc_op_options *o, struct psc_op **ret_op)
{
    return start_rows(c, OP_PUSH_ROWS, key, &(struct rows){row, count}, src,
                      NULL, o, ret_op);
}

int psc_pull_rows_start(struct psc_client *c, uint32_t key, const int64_t *row,
                        size_t count, void *out, const struct psc_op_options *o,
                        struct psc_op **ret_op)
{
    return start_rows(c, OP_PULL_ROWS, key, &(struct rows){row, count}, NULL,
                      out, o, ret_op);
}

int psc_init_start(struct psc_client *c, uint32_t key, const void *src,
                   const struct psc_op_options *o, struct psc_op **ret_op)
{
    return start_on_key(c, OP_INIT, key, src, NULL, o, ret_op);
}

int psc_push_start(struct psc_client *c, uint32_t key, const void *src,
                   const struct psc_op_options *o, struct psc_op **ret_op)
{
    return start_on_key(c, OP_PUSH, key, src, NULL, o, ret_op);
}

int psc_pull_start(struct psc_client *c, uint32_t key, void *out,
                   const struct psc_op_options *o, struct psc_op **ret_op)
{
    return start_on_key(c, OP_PULL, key, NULL, out, o, ret_op);
}

int psc_pushpull_start(struct psc_client *c, uint32_t key, const void *src,
                       void *out, const struct psc_op_options *o,
                       struct psc_op **ret_op)
{
    return start_on_key(c, OP_PUSHPULL, key, src, out, o, ret_op);
}

int psc_broadcast_start(struct psc_client *c, uint32_t key, const void *src,
                        void *out, const struct psc_op_options *o,
                        struct psc_op **ret_op)
{
    return start_on_key(c, OP_BROADCAST, key, src, out, o, ret_op);
}

int op_start_plain(struct psc_client *c, enum op_kind kind, struct ps_msg *m,
                   uint64_t *op_id, const struct psc_op_options *o,
                   struct psc_op **ret_op)
{
    struct psc_op_options full;
    struct psc_op *op;
    int rc = 0;

    if (c->rc != 0) {
        return client_error(c, c->rc, "%s", c->text);
    }
    rc = check_op_options(c, o, &full);
    if (rc != 0) {
        return rc;
    }
    op = op_new(c, kind);
    if (op == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    apply_options(op, &full, ret_op != NULL);
    if (m != NULL) {
        rc = op_number(op);
        *op_id = op->id;
    }
    if (rc == 0) {
        rc = op_submit(op, m);
    }
    if (rc != 0) {
        op_free(op);
        return client_error(c, rc, "%s",
                            c->rc != 0 ? c->text : ps_strerror(rc));
    }
    if (ret_op != NULL) {
        *ret_op = op;
    }
    return 0;
}

static int start_barrier(struct psc_client *c, const struct psc_op_options *o,
                         struct psc_op **ret_op)
{
    return op_start_plain(c, OP_BARRIER, NULL, NULL, o, ret_op);
}

int psc_barrier_start(struct psc_client *c, const struct psc_op_options *o,
                      struct psc_op **ret_op)
{
    int rc = client_enter(c);

    if (rc == 0) {
        rc = start_barrier(c, o, ret_op);
        client_leave(c);
    }
    return rc;
}

/* ------------------------------------------------------------------ waiting */

static bool is_op_done(void *arg)
{
    return ((const struct psc_op *)arg)->state == OP_DONE;
}

/* Result of an ended operation, with its detail. */
static int op_result(const struct psc_op *op)
{
    char name[PS_KEY_NAME_MAX + 64];

    if (op->rc == 0) {
        return 0;
    }
    if (op->text != NULL) {
        return client_error(op->client, op->rc, "%s", op->text);
    }
    op_name(op, name, sizeof(name));
    return client_error(op->client, op->rc, "%s failed: %s", name,
                        ps_strerror(op->rc));
}

static bool is_stall_answered(void *arg)
{
    return ((const struct stall_request *)arg)->is_answered;
}

/* Number of the operation that a queued one waits for: the one on its key that
 * the agent has. */
static uint64_t reserved_number(const struct psc_op *op)
{
    PS_LIST_EACH(n, &op->client->ops.all)
    {
        const struct psc_op *other = PS_CONTAINER(n, struct psc_op, of_client);

        if (other->key == op->key && other->state == OP_SENT &&
            (op->key != NULL || other->kind == op->kind)) {
            return other->id;
        }
    }
    return 0;
}

/* Queries the agent; `text` is its answer, or why there is none. */
static void ask_stall(struct psc_op *whole, struct stall_request *w)
{
    const struct psc_op *op = whole->kind == OP_COLL
                                  ? whole->hooks->waits_for(whole)
                                  : whole;
    struct psc_client *c = op->client;
    struct ps_msg m = {.code = PS_MSG_L_STALL_QUERY};
    int rc = 0;

    *w = (struct stall_request){
        .id = op->state == OP_SENT ? op->id : reserved_number(op)};
    if (reattach_explain(c, op->key, w->text, sizeof(w->text))) {
        return;
    }
    if (w->id == 0) {
        ps_str_copy(w->text, sizeof(w->text),
                    "its result is being copied, or it is about to be sent");
        return;
    }
    m.l_stall_query.op_id = w->id;
    ps_list_push_back(&c->progress.stall_requests, &w->node);
    rc = client_send(c, &m);
    if (rc == 0) {
        rc = client_wait(c, is_stall_answered, w,
                         client_deadline(STALL_QUERY_MS));
    }
    ps_list_remove(&w->node);
    if (rc != 0) {
        ps_str_copy(w->text, sizeof(w->text),
                    rc == PS_E_TIMEOUT ? "the agent does not say why"
                    : c->rc != 0       ? c->text
                                       : ps_strerror(rc));
    }
}

void op_explain(struct psc_op *op, char *text, size_t size)
{
    char name[PS_KEY_NAME_MAX + 64];
    struct stall_request w;
    ps_time open_for;

    ask_stall(op, &w);
    /* The operation may have ended during the query. */
    op_name(op, name, sizeof(name));
    open_for = (client_now() - op->started) / PS_MILLIS(1);
    snprintf(text, size, "%s is open for %llu.%llu s: %.*s", name,
             (unsigned long long)(open_for / 1000),
             (unsigned long long)(open_for % 1000 / 100),
             (int)(size > 400 ? size - 400 : 0), w.text);
}

static int timeout_of(const struct psc_client *c, int timeout_ms)
{
    if (timeout_ms == PSC_WAIT_DEFAULT && c->op_timeout_ms > 0) {
        return c->op_timeout_ms;
    }
    return timeout_ms;
}

static int time_out_error(struct psc_op *op, int limit_ms)
{
    char text[PSC_TEXT_MAX];

    if (limit_ms == 0 || op->client->is_quiet) {
        op_name(op, text, sizeof(text));
        return client_error(op->client, PSC_E_TIMEOUT, "%.300s is open", text);
    }
    op_explain(op, text, sizeof(text));
    /* The operation may have ended during the query. */
    if (op->state == OP_DONE) {
        return op_result(op);
    }
    return client_error(op->client, PSC_E_TIMEOUT, "%s", text);
}

static uint32_t one_op_missing(void *arg)
{
    (void)arg;
    return 1;
}

static struct psc_op *op_itself(void *arg)
{
    return arg;
}

static int wait_locked(struct psc_op *op, int timeout_ms)
{
    struct psc_client *c = op->client;
    int limit = timeout_of(c, timeout_ms);
    int rc = wait_note_many(c, is_op_done, one_op_missing, op,
                            client_deadline(limit), op_itself);

    return rc == PS_E_TIMEOUT ? time_out_error(op, limit) : op_result(op);
}

int psc_op_wait(struct psc_op *op, int timeout_ms)
{
    struct psc_client *c = op->client;
    int rc = client_enter(c);

    if (rc == 0) {
        rc = wait_locked(op, timeout_ms);
        client_leave(c);
    }
    return rc;
}

int psc_op_test(struct psc_op *op)
{
    struct psc_client *c = op->client;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (op->state != OP_DONE) {
        client_poll(c);
    }
    rc = op->state == OP_DONE ? op_result(op) : PSC_E_AGAIN;
    client_leave(c);
    return rc;
}

struct op_set {
    struct psc_op *const *ops;
    size_t count;
    size_t next; /* All: the first open one. Any: the one that has ended. */
};

static bool all_ops_done(void *arg)
{
    struct op_set *w = arg;

    while (w->next < w->count &&
           (w->ops[w->next] == NULL || w->ops[w->next]->state == OP_DONE)) {
        w->next++;
    }
    return w->next == w->count;
}

/* Number of open operations; duplicates count once. */
static uint32_t ops_missing(void *arg)
{
    const struct op_set *w = arg;
    uint32_t missing = 0;
    uint32_t mark = 0;

    /* Completions wake the thread at half a ring at the latest. */
    for (size_t i = w->next; i < w->count && missing < PS_RING_DONE_SLOTS / 2;
         i++) {
        struct psc_op *op = w->ops[i];

        if (op == NULL || op->state == OP_DONE) {
            continue;
        }
        if (mark == 0) {
            mark = ++op->client->progress.count_mark;
        }
        missing += op->count_mark != mark;
        op->count_mark = mark;
    }
    return missing > 0 ? missing : 1;
}

static bool any_op_done(void *arg)
{
    struct op_set *w = arg;

    for (size_t i = 0; i < w->count; i++) {
        if (w->ops[i] != NULL && w->ops[i]->state == OP_DONE) {
            w->next = i;
            return true;
        }
    }
    return false;
}

/* The first open operation; some operation if none is open. */
static struct psc_op *first_open_op(void *arg)
{
    const struct op_set *w = arg;
    struct psc_op *any = NULL;

    for (size_t i = w->next; i < w->count; i++) {
        if (w->ops[i] != NULL && w->ops[i]->state != OP_DONE) {
            return w->ops[i];
        }
        any = w->ops[i] != NULL ? w->ops[i] : any;
    }
    return any;
}

static struct psc_op *first_collective_or_op(struct psc_op *const *ops,
                                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ops[i] != NULL) {
            return ops[i];
        }
    }
    return NULL;
}

int psc_ops_wait(struct psc_op *const *ops, size_t count, int timeout_ms)
{
    struct op_set w = {.ops = ops, .count = count};
    struct psc_op *first = first_collective_or_op(ops, count);
    struct psc_client *c;
    int limit;
    int rc;

    if (first == NULL) {
        return 0;
    }
    c = first->client;
    rc = client_enter(c);
    if (rc != 0) {
        return rc;
    }
    limit = timeout_of(c, timeout_ms);
    rc = wait_note_many(c, all_ops_done, ops_missing, &w,
                        client_deadline(limit), first_open_op);
    if (rc == PS_E_TIMEOUT) {
        rc = time_out_error(ops[w.next], limit);
        rc = rc != 0 ? rc : PSC_E_TIMEOUT;
    } else {
        rc = 0;
        for (size_t i = 0; i < count && rc == 0; i++) {
            rc = ops[i] != NULL ? op_result(ops[i]) : 0;
        }
    }
    client_leave(c);
    return rc;
}

int psc_ops_wait_any(struct psc_op *const *ops, size_t count, int timeout_ms,
                     size_t *ret_index)
{
    struct op_set w = {.ops = ops, .count = count};
    struct psc_op *first = first_collective_or_op(ops, count);
    struct psc_client *c;
    int limit;
    int rc;

    if (first == NULL) {
        return PSC_E_INVAL;
    }
    c = first->client;
    rc = client_enter(c);
    if (rc != 0) {
        return rc;
    }
    limit = timeout_of(c, timeout_ms);
    rc = wait_note_many(c, any_op_done, one_op_missing, &w,
                        client_deadline(limit), first_open_op);
    if (rc == PS_E_TIMEOUT) {
        rc = time_out_error(first, limit);
        rc = rc != 0 ? rc : PSC_E_TIMEOUT;
    } else {
        *ret_index = w.next;
        rc = op_result(ops[w.next]);
    }
    client_leave(c);
    return rc;
}

int psc_op_why(struct psc_op *op, char *text, size_t size)
{
    struct psc_client *c = op->client;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (op->state != OP_DONE) {
        client_poll(c);
    }
    if (op->state != OP_DONE) {
        op_explain(op, text, size);
    } else if (op->rc == 0) {
        char name[PS_KEY_NAME_MAX + 64];

        op_name(op, name, sizeof(name));
        snprintf(text, size, "%s has ended well", name);
    } else {
        snprintf(text, size, "%s",
                 op->text != NULL ? op->text : ps_strerror(op->rc));
    }
    client_leave(c);
    return 0;
}

/* ------------------------------------------------------------------ results */

static int check_result(const struct psc_op *op)
{
    struct psc_client *c = op->client;

    if (op->state != OP_DONE) {
        return client_error(c, PSC_E_AGAIN, "the operation is open");
    }
    if (op->rc != 0) {
        return op_result(op);
    }
    if (!op_has_result(op->kind) && op->kind != OP_COLL) {
        return client_error(c, PSC_E_NOENT,
                            "this kind of operation has no result");
    }
    return 0;
}

int psc_op_view(struct psc_op *op, const void **ret_data, size_t *ret_bytes)
{
    struct psc_client *c = op->client;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = check_result(op);
    if (rc == 0 && op->kind == OP_COLL) {
        const void *data;
        size_t bytes;

        rc = op->hooks->view(op, &data, &bytes);
        if (rc != 0) {
            client_error(c, rc, "its result is where it was asked for");
        } else {
            *ret_data = data;
            if (ret_bytes != NULL) {
                *ret_bytes = bytes;
            }
        }
    } else if (rc == 0 && op->key->is_async) {
        rc = client_error(c, PSC_E_UNSUPPORTED,
                          "values of an async or ssp job are written where "
                          "the pull asks for them; they have no view");
    } else if (rc == 0) {
        *ret_data = op->result.data;
        if (ret_bytes != NULL) {
            *ret_bytes = op->key->bytes;
        }
    }
    client_leave(c);
    return rc;
}

int psc_op_version(struct psc_op *op, uint64_t *ret_version)
{
    struct psc_client *c = op->client;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = op->state != OP_DONE ? PSC_E_AGAIN : op_result(op);
    if (rc == 0) {
        *ret_version = op->version;
    }
    client_leave(c);
    return rc;
}

void psc_op_free(struct psc_op *op)
{
    struct psc_client *c;

    if (op == NULL) {
        return;
    }
    c = op->client;
    if (client_enter(c) != 0) {
        return;
    }
    while (op->state == OP_COPYING ||
           (op->kind == OP_COLL && op->hooks->is_copying(op))) {
        c->progress.waiter_count++;
        pthread_cond_wait(&c->progress.changed, &c->lock);
        c->progress.waiter_count--;
    }
    if (op->state == OP_DONE) {
        op_free(op);
    } else {
        op->detached = true;
        op->callback = NULL;
    }
    client_leave(c);
}

/* ----------------------------------------------------------- one-call forms */

/* Frees the handle even after a time-out, because no caller holds it. */
int op_finish(struct psc_op *op, int rc)
{
    if (rc == 0) {
        rc = psc_op_wait(op, PSC_WAIT_DEFAULT);
        psc_op_free(op);
    }
    return rc;
}

int psc_init(struct psc_client *c, uint32_t key, const void *src)
{
    struct psc_op *op = NULL;
    int rc = psc_init_start(c, key, src, NULL, &op);

    return op_finish(op, rc);
}

int psc_push(struct psc_client *c, uint32_t key, const void *src)
{
    struct psc_op *op = NULL;
    int rc = psc_push_start(c, key, src, NULL, &op);

    return op_finish(op, rc);
}

int psc_pull(struct psc_client *c, uint32_t key, void *out)
{
    struct psc_op *op = NULL;
    int rc = psc_pull_start(c, key, out, NULL, &op);

    return op_finish(op, rc);
}

int psc_pushpull(struct psc_client *c, uint32_t key, const void *src, void *out)
{
    struct psc_op *op = NULL;
    int rc = psc_pushpull_start(c, key, src, out, NULL, &op);

    return op_finish(op, rc);
}

int psc_broadcast(struct psc_client *c, uint32_t key, const void *src,
                  void *out, uint32_t root)
{
    const struct psc_op_options o = {.size = sizeof(o), .root = root};
    struct psc_op *op = NULL;
    int rc = psc_broadcast_start(c, key, src, out, &o, &op);

    return op_finish(op, rc);
}

/* After a time-out the next call waits for the same barrier: barriers are
 * counted, and a program that calls again means the same one. */
int psc_barrier(struct psc_client *c)
{
    struct psc_op *op;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    op = c->queues.late_barrier;
    c->queues.late_barrier = NULL;
    if (op == NULL) {
        rc = start_barrier(c, NULL, &op);
    }
    if (rc == 0) {
        rc = wait_locked(op, PSC_WAIT_DEFAULT);
        if (rc == PSC_E_TIMEOUT && op->state != OP_DONE &&
            c->queues.late_barrier == NULL) {
            c->queues.late_barrier = op;
        } else if (op->state == OP_DONE) {
            op_free(op);
        } else {
            op->detached = true;
        }
    }
    client_leave(c);
    return rc;
}
