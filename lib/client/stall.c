/* SPDX-License-Identifier: Apache-2.0 */
#include "client/stall.h"
#include "client/clock.h"
#include "client/op.h"
#include "client/progress.h"
#include "client/reattach.h"
#include "client/send.h"
#include "client/state.h"

#include <stdio.h>

#include "base/limits.h"
#include "base/str.h"

/* Time for the agent to answer a stall query; it asks other members for up to a
 * second. */
#define STALL_QUERY_MS 5000

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
