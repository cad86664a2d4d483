/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls that start operations, and those that also wait for them. */
#include "client/device/shared.h"
#include "client/device/staged.h"
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"
#include "client/threads.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "kernel/kernel.h"

/* --------------------------------------------------------------------- rows */

/* A row number of the caller and its index in the caller's array. */
struct row_ref {
    uint32_t row;
    uint32_t index;
};

static int compare_rows(const void *a, const void *b)
{
    const struct row_ref *x = a;
    const struct row_ref *y = b;

    if (x->row != y->row) {
        return x->row < y->row ? -1 : 1;
    }
    return x->index < y->index ? -1 : 1;
}

/* Checks the numbers and sorts them; mostly they are sorted already. */
static int check_row_numbers(struct psc_op *op, const int64_t *rows,
                             size_t count, struct row_ref *named)
{
    const struct key *k = op->key;
    uint64_t all = k->count / k->row_width;
    bool sorted = true;

    for (size_t i = 0; i < count; i++) {
        if (rows[i] < 0 || (uint64_t)rows[i] >= all) {
            client_error(op->client, PSC_E_INVAL,
                         "'%s' has the rows 0 to %llu, and not %lld", k->name,
                         (unsigned long long)all - 1, (long long)rows[i]);
            return PSC_E_INVAL;
        }
        named[i] = (struct row_ref){.row = (uint32_t)rows[i],
                                    .index = (uint32_t)i};
        sorted = sorted && (i == 0 || rows[i] >= rows[i - 1]);
    }
    if (!sorted) {
        qsort(named, count, sizeof(*named), compare_rows);
    }
    return 0;
}

/* Writes the rows of a push, duplicates added. */
static int fill_sorted_rows(const struct psc_op *op,
                            const struct row_ref *named, size_t count,
                            const void *data, uint8_t *out)
{
    size_t bytes = key_row_bytes(op->key);
    uint8_t *at = out;

    for (size_t i = 0; i < count; i++) {
        const uint8_t *from = (const uint8_t *)data + named[i].index * bytes;

        if (i > 0 && named[i].row == named[i - 1].row) {
            const void *two[] = {at, from};
            int rc = ps_kernel_run(
                &(struct ps_job){.op = PS_JOB_SUM,
                                 .dtype = (enum ps_dtype)op->key->dtype,
                                 .count = op->key->row_width,
                                 .src_count = 2,
                                 .src = two,
                                 .dst = at});

            if (rc != 0) {
                return rc;
            }
            continue;
        }
        at = i == 0 ? out : at + bytes;
        memcpy(at, from, bytes);
    }
    return 0;
}

/* Allocates and fills the block of a push or pull of these rows, in any order.
 * A push adds duplicate rows in the order given. `data` NULL: a pull, whose
 * block the agent fills. On failure a negative PSC_E_*, with detail. */
static int rows_block(struct psc_op *op, const int64_t *rows, size_t count,
                      const void *data)
{
    struct psc_client *c = op->client;
    struct row_ref *named;
    uint32_t *number;
    uint32_t last = 0;
    int rc;

    if (count == 0) {
        return 0;
    }
    if (count > UINT32_MAX / 2 || rows == NULL) {
        return client_error(c, PSC_E_INVAL, "'%s': %zu rows in one call",
                            op->key->name, count);
    }
    named = malloc(count * sizeof(*named));
    if (named == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    rc = check_row_numbers(op, rows, count, named);
    if (rc != 0) {
        goto leave;
    }
    for (size_t i = 0; i < count; i++) {
        op->src.row_count += i == 0 || named[i].row != named[i - 1].row;
    }
    if (data == NULL) {
        op->result.row_index = malloc(count * sizeof(*op->result.row_index));
        op->result.row_index_count = count;
        if (op->result.row_index == NULL) {
            rc = client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
            goto leave;
        }
    }
    rc = ps_shm_get(
        &c->shm,
        key_row_numbers_bytes(op->src.row_count) +
            ps_round_up(op->src.row_count * key_row_bytes(op->key), 8),
        &op->src.block);
    if (rc != 0) {
        client_error(c, rc, "'%s': no memory for %u rows", op->key->name,
                     op->src.row_count);
        goto leave;
    }
    op->src.block->uses++;
    op->src.offset = 0;
    op->src.staged = true;
    number = op->src.block->data;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || named[i].row != number[last - 1]) {
            number[last++] = named[i].row;
        }
        if (op->result.row_index != NULL) {
            op->result.row_index[named[i].index] = last - 1;
        }
    }
    if (data != NULL) {
        rc = fill_sorted_rows(op, named, count, data,
                              (uint8_t *)op->src.block->data +
                                  key_row_numbers_bytes(op->src.row_count));
        c->stats.bytes_copied += count * key_row_bytes(op->key);
    }

leave:
    free(named);
    return rc;
}

/* ------------------------------------------------------------------- checks */

static int check_op_options(struct psc_client *c,
                            const struct psc_op_options *o,
                            struct psc_op_options *ret_full)
{
    struct psc_op_options full = {.size = sizeof(full)};

    if (o != NULL) {
        if (o->size < offsetof(struct psc_op_options, src_count) ||
            o->size > sizeof(full)) {
            return client_error(c, PSC_E_INVAL,
                                "size is not that of struct psc_op_options");
        }
        memcpy(&full, o, o->size);
    }
    if (full.reduce > PSC_PRODUCT) {
        return client_error(c, PSC_E_INVAL, "no such reduction as %u",
                            full.reduce);
    }
    if (full.samples != 0 && full.reduce != PSC_MEAN) {
        return client_error(c, PSC_E_INVAL,
                            "samples are for the reduction mean, not for %s",
                            ps_reduce_name((uint8_t)full.reduce));
    }
    if (full.root >= c->id.size) {
        return client_error(c, PSC_E_INVAL,
                            "rank %u is out of range: the job has %u workers",
                            full.root, c->id.size);
    }
    *ret_full = full;
    return 0;
}

/* True if this rank supplies an array. */
static bool contributes_array(const struct psc_op *op)
{
    return op->kind == OP_PUSH || op->kind == OP_PUSHPULL ||
           ((op->kind == OP_INIT || op->kind == OP_BROADCAST) &&
            op->args.root == op->client->id.rank);
}

/* A new operation with these options. NULL: no memory. */
static struct psc_op *new_op(struct psc_client *c, enum op_kind kind,
                             const struct psc_op_options *o, bool waited_for)
{
    struct psc_op *op = op_new(c, kind);

    if (op == NULL) {
        client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
        return NULL;
    }
    op->args.priority = o->priority;
    op->args.reduce = (uint8_t)o->reduce;
    op->args.root = o->root;
    op->args.samples = o->samples;
    op->callback = o->callback;
    op->user = o->user;
    op->detached = !waited_for && o->callback == NULL;
    return op;
}

/* Arguments of a public call on a key. */
struct op_call {
    enum op_kind kind;
    uint32_t key;
    const struct psc_rows *rows; /* NULL: the whole key. */
    const void *src;
    void *out;
    const struct psc_op_options *options;
};

/* The key and the options of a call that may be started. */
static int check_call(struct psc_client *c, const struct op_call *a,
                      struct key **ret_key, struct psc_op_options *o)
{
    struct key *k = key_of(c, a->key);
    int rc;

    if (c->rc != 0) {
        return client_error(c, c->rc, "%s", c->text);
    }
    if (k == NULL) {
        return client_error(c, PSC_E_NOKEY, "no key has the number %u", a->key);
    }
    rc = check_op_options(c, a->options, o);
    if (rc != 0) {
        return rc;
    }
    if (k->rc != 0) { /* Of an operation without handle; returned once. */
        rc = client_error(c, k->rc, "an earlier operation on '%s' failed: %s",
                          k->name,
                          k->text != NULL ? k->text : ps_strerror(k->rc));
        k->rc = 0;
        return rc;
    }
    if (c->colls.join != NULL && op_kinds[a->kind].is_round && !k->is_async) {
        return client_error(c, PSC_E_INVAL,
                            "'%s': this rank has joined; it takes part in "
                            "rounds again once all ranks have joined",
                            k->name);
    }
    if (o->reduce == PSC_MEAN && k->dtype == PSC_BOOL) {
        return client_error(c, PSC_E_INVAL,
                            "'%s' is of bool, which has no mean", k->name);
    }
    if (o->reduce > PSC_MEAN && a->rows != NULL) {
        return client_error(c, PSC_E_UNSUPPORTED,
                            "'%s': rows are summed or averaged; %s is for "
                            "whole arrays",
                            k->name, ps_reduce_name((uint8_t)o->reduce));
    }
    *ret_key = k;
    return 0;
}

/* -------------------------------------------------------------------- start */

static int attach_rows(struct psc_op *op, const struct psc_rows *r,
                       const void *src)
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
                            "'%s': no memory is given for %zu rows", k->name,
                            r->count);
    }
    return rows_block(op, r->numbers, r->count,
                      op->kind == OP_PUSH_ROWS ? src : NULL);
}

/* Attaches arrays in the memory of a GPU. */
static int attach_device(struct psc_op *op, const struct op_call *a,
                         const struct psc_op_options *o,
                         const void *const *srcs, uint32_t src_count)
{
    if (a->rows != NULL || op->key->row_width != 0) {
        return client_error(op->client, PSC_E_UNSUPPORTED,
                            "'%s': rows lie in the memory of the host, not of "
                            "a GPU",
                            op->key->name);
    }
    if (!contributes_array(op)) {
        srcs = NULL;
    }
    int rc = shared_attach(op, o->device, srcs, src_count);

    return rc != PS_E_UNSUPPORTED
               ? rc
               : staged_attach(op, o->device, srcs, src_count);
}

/* Attaches the arrays or rows of the call. */
static int attach_memory(struct psc_op *op, const struct op_call *a,
                         const void *const *srcs, uint32_t src_count)
{
    const struct key *k = op->key;
    int rc = 0;

    if (a->rows != NULL) {
        return attach_rows(op, a->rows, a->src);
    }
    if (k->row_width != 0 && a->kind != OP_INIT) {
        return client_error(op->client, PSC_E_UNSUPPORTED,
                            "'%s' is a key of rows: they are pushed and "
                            "pulled by psc_push_rows_start() and "
                            "psc_pull_rows_start()",
                            k->name);
    }
    if (contributes_array(op)) {
        return op_attach_source(op, srcs, src_count);
    }
    if (k->is_async && a->kind == OP_PULL) {
        rc = op_alloc_staging(op);
        if (rc != 0) {
            client_error(op->client, rc, "'%s': no memory for its value",
                         k->name);
        }
    }
    return rc;
}

static int start_locked(struct psc_client *c, const struct op_call *a,
                        struct psc_op **ret_op)
{
    struct psc_op_options full = {0};
    const void *const *srcs = &a->src;
    struct key *k = NULL;
    uint32_t src_count;
    struct psc_op *op;
    int rc = check_call(c, a, &k, &full);

    if (rc != 0) {
        return rc;
    }
    op = new_op(c, a->kind, &full, ret_op != NULL);
    if (op == NULL) {
        return PSC_E_NOMEM;
    }
    op->key = k;
    op->result.out = a->out;
    srcs = full.src_count > 0 ? full.srcs : srcs;
    src_count = full.src_count > 0 ? full.src_count : 1;
    rc = full.device != NULL && (contributes_array(op) || a->out != NULL)
             ? attach_device(op, a, &full, srcs, src_count)
             : attach_memory(op, a, srcs, src_count);
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
    if (op->src.streaming && op->device == NULL) {
        op_stream(op, srcs[0]);
    }
    return 0;
}

static int start(struct psc_client *c, const struct op_call *a,
                 struct psc_op **ret_op)
{
    int rc = client_enter(c);

    if (rc == 0) {
        rc = start_locked(c, a, ret_op);
        client_leave(c);
    }
    return rc;
}

static int start_rows(struct psc_client *c, enum op_kind kind, uint32_t key,
                      const struct psc_rows *rows,
                      const struct psc_op_options *o, struct psc_op **ret_op)
{
    struct op_call a = {.kind = kind, .key = key, .rows = rows, .options = o};

    if (rows == NULL) {
        return client_enter_with(c, rows, "rows");
    }
    a.src = kind == OP_PUSH_ROWS ? rows->src : NULL;
    a.out = kind == OP_PULL_ROWS ? rows->out : NULL;
    return start(c, &a, ret_op);
}

int psc_push_rows_start(struct psc_client *c, uint32_t key,
                        const struct psc_rows *rows,
                        const struct psc_op_options *o, struct psc_op **ret_op)
{
    return start_rows(c, OP_PUSH_ROWS, key, rows, o, ret_op);
}

int psc_pull_rows_start(struct psc_client *c, uint32_t key,
                        const struct psc_rows *rows,
                        const struct psc_op_options *o, struct psc_op **ret_op)
{
    return start_rows(c, OP_PULL_ROWS, key, rows, o, ret_op);
}

int psc_init_start(struct psc_client *c, uint32_t key, const void *src,
                   const struct psc_op_options *o, struct psc_op **ret_op)
{
    const struct op_call a = {
        .kind = OP_INIT, .key = key, .src = src, .options = o};

    return start(c, &a, ret_op);
}

int psc_push_start(struct psc_client *c, uint32_t key, const void *src,
                   const struct psc_op_options *o, struct psc_op **ret_op)
{
    const struct op_call a = {
        .kind = OP_PUSH, .key = key, .src = src, .options = o};

    return start(c, &a, ret_op);
}

int psc_pull_start(struct psc_client *c, uint32_t key, void *out,
                   const struct psc_op_options *o, struct psc_op **ret_op)
{
    const struct op_call a = {
        .kind = OP_PULL, .key = key, .out = out, .options = o};

    return start(c, &a, ret_op);
}

int psc_pushpull_start(struct psc_client *c, uint32_t key, const void *src,
                       void *out, const struct psc_op_options *o,
                       struct psc_op **ret_op)
{
    const struct op_call a = {
        .kind = OP_PUSHPULL, .key = key, .src = src, .out = out, .options = o};

    return start(c, &a, ret_op);
}

int psc_broadcast_start(struct psc_client *c, uint32_t key, const void *src,
                        void *out, const struct psc_op_options *o,
                        struct psc_op **ret_op)
{
    const struct op_call a = {
        .kind = OP_BROADCAST, .key = key, .src = src, .out = out, .options = o};

    return start(c, &a, ret_op);
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
    op = new_op(c, kind, &full, ret_op != NULL);
    if (op == NULL) {
        return PSC_E_NOMEM;
    }
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

int psc_barrier_start(struct psc_client *c, const struct psc_op_options *o,
                      struct psc_op **ret_op)
{
    int rc = client_enter(c);

    if (rc == 0) {
        rc = op_start_plain(c, OP_BARRIER, NULL, NULL, o, ret_op);
        client_leave(c);
    }
    return rc;
}

/* ----------------------------------------------------------- start and wait */

static int start_and_wait(struct psc_client *c, enum op_kind kind, uint32_t key,
                          const void *src, void *out,
                          const struct psc_op_options *o)
{
    const struct op_call a = {
        .kind = kind, .key = key, .src = src, .out = out, .options = o};
    struct psc_op *op = NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = start_locked(c, &a, &op);
    if (rc == 0) {
        rc = op_wait_locked(op, PSC_WAIT_DEFAULT);
        op_free_handle(op); /* Even after a time-out: no caller has it. */
    }
    client_leave(c);
    return rc;
}

int psc_init(struct psc_client *c, uint32_t key, const void *src)
{
    return start_and_wait(c, OP_INIT, key, src, NULL, NULL);
}

int psc_push(struct psc_client *c, uint32_t key, const void *src)
{
    return start_and_wait(c, OP_PUSH, key, src, NULL, NULL);
}

int psc_pull(struct psc_client *c, uint32_t key, void *out)
{
    return start_and_wait(c, OP_PULL, key, NULL, out, NULL);
}

int psc_pushpull(struct psc_client *c, uint32_t key, const void *src, void *out)
{
    return start_and_wait(c, OP_PUSHPULL, key, src, out, NULL);
}

int psc_broadcast(struct psc_client *c, uint32_t key, const void *src,
                  void *out, uint32_t root)
{
    const struct psc_op_options o = {.size = sizeof(o), .root = root};

    return start_and_wait(c, OP_BROADCAST, key, src, out, &o);
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
        rc = op_start_plain(c, OP_BARRIER, NULL, NULL, NULL, &op);
    }
    if (rc == 0) {
        rc = op_wait_locked(op, PSC_WAIT_DEFAULT);
        if (rc == PSC_E_TIMEOUT && op->state != OP_DONE &&
            c->queues.late_barrier == NULL) {
            c->queues.late_barrier = op;
        } else {
            op_free_handle(op);
        }
    }
    client_leave(c);
    return rc;
}
