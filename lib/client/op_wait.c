/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls that wait for operations, show their results and free them. */
#include "client/op_wait.h"
#include "client/clock.h"
#include "client/device/gpu.h"
#include "client/entry.h"
#include "client/error.h"
#include "client/op.h"
#include "client/progress.h"
#include "client/stall.h"
#include "client/state.h"
#include "client/wait_note.h"
#include "client/waiting.h"

#include <stdio.h>

#include "base/limits.h"

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

/* A call that waits. */
struct wait_call {
    bool (*ready)(void *arg);
    uint32_t (*missing)(void *arg);
    struct psc_op *(*first)(void *arg);
    void *arg;
};

/* Waits, with notes about the first open operation if that takes long.
 * `is_limited`: the program does something else at the end of the time. */
static int wait_until_ready(struct psc_client *c, const struct wait_call *call,
                            ps_time deadline, bool is_limited)
{
    struct waiting w = {.is_limited = is_limited,
                        .is_over = call->ready,
                        .first = call->first,
                        .arg = call->arg};
    int rc;

    if (call->ready(call->arg)) {
        return client_wait_many(c, call->ready, call->missing, call->arg,
                                deadline);
    }
    waiting_begin(c, &w);
    rc = c->options.wait_notes_ms < 0
             ? client_wait_many(c, call->ready, call->missing, call->arg,
                                deadline)
             : wait_note_many(c, call->ready, call->missing, call->arg,
                              deadline, call->first);
    waiting_end(&w);
    return rc;
}

static int wait_for_op(struct psc_op *op, int limit, bool is_limited)
{
    int rc = wait_until_ready(op->client,
                              &(struct wait_call){.ready = is_op_done,
                                                  .missing = one_op_missing,
                                                  .first = op_itself,
                                                  .arg = op},
                              client_deadline(limit), is_limited);

    return rc == PS_E_TIMEOUT ? time_out_error(op, limit) : op_result(op);
}

int op_wait_locked(struct psc_op *op, int timeout_ms)
{
    const int limit = timeout_of(op->client, timeout_ms);

    return wait_for_op(op, limit, limit >= 0);
}

int psc_op_wait(struct psc_op *op, int timeout_ms)
{
    struct psc_client *c = op != NULL ? op->client : NULL;
    int rc = client_enter(c);

    if (rc == 0) {
        rc = op_wait_locked(op, timeout_ms);
        client_leave(c);
    }
    return rc;
}

int psc_op_wait_slice(struct psc_op *op, int timeout_ms)
{
    struct psc_client *c = op != NULL ? op->client : NULL;
    int rc = client_enter(c);

    if (rc == 0) {
        rc = wait_for_op(op, timeout_ms, false);
        client_leave(c);
    }
    return rc;
}

int psc_op_test(struct psc_op *op)
{
    struct psc_client *c = op != NULL ? op->client : NULL;
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

/* NULL: there is no operation. */
static struct psc_client *client_of_ops(struct psc_op *const *ops, size_t count)
{
    for (size_t i = 0; i < count && ops != NULL; i++) {
        if (ops[i] != NULL) {
            return ops[i]->client;
        }
    }
    return NULL;
}

/* Waits until `ready`: 0, or an error that names an open operation. */
static int wait_locked(struct psc_client *c, struct op_set *w,
                       bool (*ready)(void *arg), uint32_t (*missing)(void *arg),
                       int timeout_ms)
{
    const int limit = timeout_of(c, timeout_ms);
    int rc = wait_until_ready(c,
                              &(struct wait_call){.ready = ready,
                                                  .missing = missing,
                                                  .first = first_open_op,
                                                  .arg = w},
                              client_deadline(limit), limit >= 0);

    if (rc != PS_E_TIMEOUT) {
        return 0;
    }
    rc = time_out_error(first_open_op(w), limit);
    return rc != 0 ? rc : PSC_E_TIMEOUT;
}

int psc_ops_wait(struct psc_op *const *ops, size_t count, int timeout_ms)
{
    struct op_set w = {.ops = ops, .count = count};
    struct psc_client *c = client_of_ops(ops, count);
    int rc = c != NULL                  ? client_enter(c)
             : ops == NULL && count > 0 ? PSC_E_INVAL
                                        : 0;

    if (c == NULL || rc != 0) {
        return rc;
    }
    rc = wait_locked(c, &w, all_ops_done, ops_missing, timeout_ms);
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = ops[i] != NULL ? op_result(ops[i]) : 0;
    }
    client_leave(c);
    return rc;
}

int psc_ops_wait_any(struct psc_op *const *ops, size_t count, int timeout_ms,
                     size_t *ret_index)
{
    struct op_set w = {.ops = ops, .count = count};
    struct psc_client *c = client_of_ops(ops, count);
    int rc = client_enter_with(c, ret_index, "ret_index");

    if (rc != 0) {
        return rc;
    }
    rc = wait_locked(c, &w, any_op_done, one_op_missing, timeout_ms);
    if (rc == 0) {
        *ret_index = w.next;
        rc = op_result(ops[w.next]);
    }
    client_leave(c);
    return rc;
}

int psc_op_why(struct psc_op *op, char *text, size_t size)
{
    struct psc_client *c = op != NULL ? op->client : NULL;
    int rc = client_enter_with(c, text, "text");

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

/* ----------------------------------------------------------------- results */

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
    struct psc_client *c = op != NULL ? op->client : NULL;
    int rc = client_enter_with(c, ret_data, "ret_data");

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
    struct psc_client *c = op != NULL ? op->client : NULL;
    int rc = client_enter_with(c, ret_version, "ret_version");

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
        if (!gpu_is_idle(c)) {
            gpu_drain(c); /* It may be a copy to a GPU. */
            continue;
        }
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

/* Frees the handle even after a time-out, because no caller holds it. */
int op_finish(struct psc_op *op, int rc)
{
    if (rc == 0) {
        rc = psc_op_wait(op, PSC_WAIT_DEFAULT);
        psc_op_free(op);
    }
    return rc;
}
