/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls that wait for operations, show their results, cancel and free
 * them. A wait that takes long says on standard error what it waits for. */
#include "client/device/gpu.h"
#include "client/key.h"
#include "client/op.h"
#include "client/reattach.h"
#include "client/state.h"
#include "client/threads.h"

#include <stdio.h>

#include "base/limits.h"
#include "base/str.h"

/* Time for the agent to answer a stall query; it asks other members for up to a
 * second. */
#define STALL_QUERY_MS 5000

/* Times of a wait before its first line. Where all ranks of a job write to one
 * place two lines suffice: either of the two ranks may be the missing one. The
 * others are later, for nodes and ranks with a file of their own; most ranks of
 * a job of a thousand write last, so that it has few lines. */
#define NOTE_MS        30000
#define LATER_NOTE_MS  (4 * NOTE_MS)
#define LAST_NOTE_MS   (16 * NOTE_MS)
#define EARLY_RANKS    2
#define LATER_RANKS    64
/* Bindings that wait in slices call again within this time. */
#define SLICE          PS_SECONDS(1)

/* ------------------------------------------------------------------ reasons */

static bool is_stall_answered(void *arg)
{
    return ((const struct stall_request *)arg)->is_answered;
}

/* Number of the operation that a queued one waits for: the one on its key that
 * the agent has. */
static uint64_t reserved_number(const struct psc_op *op)
{
    PS_LIST_EACH_OF(const struct psc_op, other, of_client, &op->client->ops.all)
    {
        if (other->key == op->key && other->state == OP_SENT &&
            (op->key != NULL || other->kind == op->kind)) {
            return other->id;
        }
    }
    return 0;
}

/* Queries the agent; `text` is its answer, or why there is none. */
static void ask_agent(struct psc_client *c, struct stall_request *w)
{
    struct ps_msg m = {.code = PS_MSG_L_STALL_QUERY,
                       .l_stall_query = {.op_id = w->id}};
    int rc;

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

void start_explain(struct psc_client *c, char *text, size_t size)
{
    struct stall_request w = {0};

    ask_agent(c, &w);
    ps_str_copy(text, size, w.text);
}

static void ask_stall(struct psc_op *whole, struct stall_request *w)
{
    const struct psc_op *op = whole->kind == OP_COLL
                                  ? whole->hooks->waits_for(whole)
                                  : whole;
    struct psc_client *c = op->client;

    *w = (struct stall_request){
        .id = op->state == OP_SENT ? op->id : reserved_number(op)};
    if (reattach_explain(c, op->key, w->text, sizeof(w->text))) {
        return;
    }
    if (op->src.streaming && op->src.is_held) {
        ps_str_copy(w->text, sizeof(w->text),
                    "its array is being copied from the GPU");
        return;
    }
    if (w->id == 0) {
        ps_str_copy(w->text, sizeof(w->text),
                    "its result is being copied, or it is about to be sent");
        return;
    }
    ask_agent(c, w);
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

/* -------------------------------------------------------------------- notes */

/* A worker that waits for another one looks the same as one that computes, so a
 * line on standard error names the ranks that are missing: the first when a wait
 * has lasted for the interval of the options, the next ones whenever it has
 * lasted twice as long as at the line before. */

ps_time wait_note_first_after(const struct psc_client *c)
{
    const int32_t ms = c->options.wait_notes_ms;
    int64_t rank = c->options.rank; /* -1: not known before the welcome. */
    bool is_first_of_node = false;

    if (ms != 0) {
        return ms < 0 ? PS_TIME_NEVER : PS_MILLIS(ms);
    }
    if (c->id.is_welcomed) {
        rank = c->id.rank;
        is_first_of_node = c->id.local_rank == 0;
    }
    if (rank < EARLY_RANKS) {
        return PS_MILLIS(NOTE_MS);
    }
    return rank < LATER_RANKS || is_first_of_node ? PS_MILLIS(LATER_NOTE_MS)
                                                  : PS_MILLIS(LAST_NOTE_MS);
}

/* Writes the line with one call, so that lines of several workers do not
 * mix. */
static void print_wait_note(const struct psc_client *c, const char *text)
{
    char who[32] = "a worker";
    bool has_node = c->id.node[0] != '\0';

    if (c->id.is_welcomed) {
        snprintf(who, sizeof(who), "rank %u", c->id.rank);
    } else if (c->options.rank >= 0) {
        snprintf(who, sizeof(who), "rank %d", c->options.rank);
    }
    fprintf(stderr,
            "pskv: job %s, %s%s%s: %s; 'psctl stall' shows the waits of all "
            "ranks\n",
            c->options.job, who, has_node ? " on " : "", c->id.node, text);
}

/* A wait that begins now. */
static struct wait_note new_note(const struct psc_client *c)
{
    const ps_time now = client_now();

    return (struct wait_note){
        .began = now, .due = ps_time_add(now, wait_note_first_after(c))};
}

/* As client_wait_many(), with the lines of that note. */
static int wait_with_notes(struct psc_client *c,
                           const struct wait_condition *until, ps_time deadline,
                           wait_note_describe describe, struct wait_note *note)
{
    char text[PSC_TEXT_MAX];

    for (;;) {
        int rc = client_wait_many(c, until, ps_time_min(note->due, deadline));
        ps_time now;

        if (rc != PS_E_TIMEOUT) {
            return rc;
        }
        now = client_now();
        if (now >= deadline) {
            return rc;
        }
        if (now >= note->due) {
            describe(c, until, (now - note->began) / PS_SECONDS(1), text,
                     sizeof(text));
            if (text[0] != '\0') {
                print_wait_note(c, text);
            }
            note->due = ps_time_add(now, now - note->began);
        }
    }
}

int wait_note_text(struct psc_client *c, bool (*ready)(void *arg), void *arg,
                   ps_time deadline, wait_note_describe describe)
{
    const struct wait_condition until = {.is_over = ready, .arg = arg};
    struct wait_note note = new_note(c);

    return wait_with_notes(c, &until, deadline, describe, &note);
}

static void describe_first(struct psc_client *c,
                           const struct wait_condition *until,
                           unsigned long long seconds, char *text, size_t size)
{
    struct psc_op *open = until->first(until->arg);

    (void)c;
    (void)seconds;
    op_explain(open, text, size);
    /* The operation may have ended during the query. */
    if (open->state == OP_DONE) {
        text[0] = '\0';
    }
}

/* -------------------------------------------------------------------- waits */

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
    if (timeout_ms == PSC_WAIT_DEFAULT && c->options.op_timeout_ms > 0) {
        return c->options.op_timeout_ms;
    }
    return timeout_ms;
}

static int time_out_error(struct psc_op *op, int limit_ms)
{
    char text[PSC_TEXT_MAX];

    if (limit_ms == 0 || (op->client->options.flags & PSC_OPEN_QUIET) != 0) {
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

static struct psc_op *op_itself(void *arg)
{
    return arg;
}

/* Waits, with notes about the first open operation if that takes long; slices of
 * one wait count together. `is_limited`: the program does something else at the
 * end of the time. */
static int wait_for_ops(struct psc_client *c,
                        const struct wait_condition *until, ps_time deadline,
                        bool is_limited)
{
    struct waiting w = {.is_limited = is_limited, .until = until};
    const struct wait_note *last;
    struct wait_note note;
    int rc;

    if (until->is_over(until->arg)) {
        return client_wait_many(c, until, deadline);
    }
    waiting_begin(c, &w);
    last = &until->first(until->arg)->note;
    note = new_note(c);
    if (last->due != 0 && note.began < last->ended_at + SLICE) {
        note = *last;
    }
    rc = wait_with_notes(c, until, deadline, describe_first, &note);
    if (rc == PS_E_TIMEOUT) { /* Perhaps a slice: the next one goes on. */
        note.ended_at = client_now();
        until->first(until->arg)->note = note;
    }
    waiting_end(&w);
    return rc;
}

static int wait_for_op(struct psc_op *op, int limit, bool is_limited)
{
    const struct wait_condition until = {
        .is_over = is_op_done, .first = op_itself, .arg = op};
    int rc = wait_for_ops(op->client, &until, client_deadline(limit),
                          is_limited);

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

/* Waits until `is_over`: 0, or an error that names an open operation. */
static int wait_locked(struct psc_client *c, struct op_set *w,
                       bool (*is_over)(void *arg),
                       uint32_t (*missing)(void *arg), int timeout_ms)
{
    const int limit = timeout_of(c, timeout_ms);
    const struct wait_condition until = {.is_over = is_over,
                                         .missing = missing,
                                         .first = first_open_op,
                                         .arg = w};
    int rc = wait_for_ops(c, &until, client_deadline(limit), limit >= 0);

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
    rc = wait_locked(c, &w, any_op_done, NULL, timeout_ms);
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
        snprintf(text, size, "%s has succeeded", name);
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
    if (!op_kinds[op->kind].has_result && op->kind != OP_COLL) {
        return client_error(c, PSC_E_NOENT,
                            "this kind of operation has no result");
    }
    return 0;
}

int psc_op_view(struct psc_op *op, const void **ret_data, size_t *ret_bytes)
{
    struct psc_client *c = op != NULL ? op->client : NULL;
    const void *data = NULL;
    size_t bytes = 0;
    int rc = client_enter_with(c, ret_data, "ret_data");

    if (rc != 0) {
        return rc;
    }
    rc = check_result(op);
    if (rc == 0 && op->kind == OP_COLL) {
        rc = op->hooks->view(op, &data, &bytes);
        if (rc != 0) {
            client_error(c, rc,
                         "its result was written to the array of the call; "
                         "there is no view of it");
        }
    } else if (rc == 0 && op->key->is_async) {
        rc = client_error(c, PSC_E_UNSUPPORTED,
                          "values of an async or ssp job are written where "
                          "the pull asks for them; they have no view");
    } else if (rc == 0) {
        data = op->result.data;
        bytes = op->key->bytes;
    }
    if (rc == 0) {
        *ret_data = data;
        if (ret_bytes != NULL) {
            *ret_bytes = bytes;
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

/* ------------------------------------------------------ the end of a handle */

void op_free_handle(struct psc_op *op)
{
    struct psc_client *c = op->client;

    while (op->state == OP_COPYING ||
           (op->kind == OP_COLL && op->hooks->is_copying(op))) {
        if (c->gpu_transfers > 0) {
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
}

void psc_op_free(struct psc_op *op)
{
    struct psc_client *c = op != NULL ? op->client : NULL;

    if (client_enter(c) == 0) {
        op_free_handle(op);
        client_leave(c);
    }
}

int op_finish(struct psc_op *op, int rc)
{
    struct psc_client *c = op != NULL ? op->client : NULL;

    if (rc == 0) {
        rc = client_enter(c);
    }
    if (rc == 0) {
        rc = op_wait_locked(op, PSC_WAIT_DEFAULT);
        op_free_handle(op);
        client_leave(c);
    }
    return rc;
}

/* ------------------------------------------------------------- cancellation */

/* An operation that is QUEUED has had no effect elsewhere and ends at once. A
 * pull that the agent has is given up there and here, whichever comes first, its
 * end or its result. Everything else that the agent has may count for other
 * ranks already. */

static int refuse_cancel(const struct psc_op *op, int rc, const char *why)
{
    char name[PS_KEY_NAME_MAX + 64];

    op_name(op, name, sizeof(name));
    return client_error(op->client, rc, "%s cannot be cancelled: %s", name,
                        why);
}

/* Others may be next in its place. */
static void cancel_queued(struct psc_op *op)
{
    struct psc_client *c = op->client;
    struct key *k = op->key;

    op_end(op, PSC_E_CANCELED, NULL);
    if (k != NULL) {
        op_pump(c, k);
    }
    client_flush(c);
}

static int cancel_pull(struct psc_op *op)
{
    struct psc_client *c = op->client;
    int rc = client_put_op(c,
                           &(struct ps_msg_l_op){.op_id = op->id,
                                                 .op = PS_OP_CANCEL,
                                                 .key = op->key->agent_number});

    if (rc != 0) {
        return client_error(c, rc, "cannot write to the agent: %s",
                            ps_strerror(rc));
    }
    op_abandon(op);
    client_flush(c);
    return 0;
}

static int cancel_op(struct psc_op *op)
{
    switch (op->state) {
    case OP_QUEUED:
        if (op->must_resend && !op_kinds[op->kind].is_pull) {
            return refuse_cancel(op, PSC_E_REFUSED,
                                 "an agent that was lost had it, and the other "
                                 "ranks may depend on it");
        }
        cancel_queued(op);
        return 0;
    case OP_SENT:
        if (op_is_abandoned(op)) {
            return 0;
        }
        if (!op_kinds[op->kind].is_pull) {
            return refuse_cancel(
                op, PSC_E_REFUSED,
                "the agent has it, and the other ranks may depend on it");
        }
        return cancel_pull(op);
    case OP_COLLECTING:
        return refuse_cancel(op, PSC_E_REFUSED,
                             "all ranks take part in a collective");
    case OP_COPYING:
    case OP_ENDING:
    case OP_DONE:
        return refuse_cancel(op, PSC_E_NOENT, "it has ended");
    case OP_NEW:
        break; /* No handle shows it. */
    }
    return refuse_cancel(op, PSC_E_BUG, "it has not begun");
}

int psc_op_cancel(struct psc_op *op)
{
    struct psc_client *c = op != NULL ? op->client : NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (op->state != OP_DONE) {
        client_poll(c); /* It may have ended. */
    }
    if (op->src.streaming && op->device != NULL) {
        gpu_drain(c); /* Its array is the caller's again afterwards. */
    }
    rc = cancel_op(op);
    client_leave(c);
    return rc;
}
