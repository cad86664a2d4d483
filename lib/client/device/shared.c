/* SPDX-License-Identifier: Apache-2.0 */
/* Path of an operation on a key:
 *
 *     start      an event in the program's stream
 *     sent       l_device_op names memory and event; the agent begins when the
 *                event is over, and writes the result
 *     result     l_done: it lies in `out`. If the agent could not write it, it is
 *                copied from the agent's memory of the host, as staged.c does
 *
 * Memory is of psc_alloc_device(). An agent that does not take it leaves it to
 * staged.c. */
#include "client/device/shared.h"
#include "client/device/shared_inner.h"
#include "client/device/staged.h"
#include "client/error.h"
#include "client/op_device.h"
#include "client/psclient_stream.h"
#include "client/send.h"
#include "client/state.h"

#include <stdlib.h>

#include "base/dtype.h"

/* State of an operation. */
struct shared_op {
    struct op_device base;
    struct psc_device where;
    struct shared_memory *src; /* NULL: none. */
    uint64_t src_offset;
    struct shared_memory *out; /* NULL: none. */
    uint64_t out_offset;
    struct shared_event *event;
    struct staged at; /* A result that the agent could not write. */
};

static struct shared_op *state_of(const struct psc_op *op)
{
    return (struct shared_op *)(uintptr_t)op->device;
}

static int send_shared(struct psc_op *op, const struct ps_msg_l_op *m)
{
    const struct shared_op *s = state_of(op);
    const struct ps_msg msg = {
        .code = PS_MSG_L_DEVICE_OP,
        .l_device_op = {
            .op_id = m->op_id,
            .op = m->op,
            .key = m->key,
            .region = s->src != NULL ? s->src->region : 0,
            .offset = s->src_offset,
            .round = m->round,
            .priority = m->priority,
            .reduce = m->reduce,
            .root = m->root,
            .samples = m->samples,
            .event = s->event->number,
            .out_region = s->out != NULL ? s->out->region : 0,
            .out_offset = s->out_offset,
        }};
    int rc = shared_event_announce(op->client, s->event);

    return rc != 0 ? rc : client_put(op->client, &msg);
}

static void copy_part(struct psc_op *op, const void *data, size_t from,
                      size_t bytes)
{
    (void)op;
    (void)data;
    (void)from;
    (void)bytes; /* The agent writes the result. */
}

static int copy_result(struct psc_op *op, const void *data)
{
    struct shared_op *s = state_of(op);
    struct psc_client *c = op->client;
    int rc;

    if (!op->result.is_undelivered) {
        return 0;
    }
    rc = staged_open(c, &s->where, op->result.out, &s->at);
    if (rc == 0) {
        (void)gpu_pin_results(s->at.gpu, data); /* Else it takes longer. */
        rc = staged_write(
            &s->at, op,
            &(struct gpu_copy){op->result.out, data, op->key->bytes}, 1, NULL);
    }
    if (rc != 0 && rc != PS_E_AGAIN) {
        client_error(c, rc, "'%s' cannot be copied to the GPU: %s",
                     op->key->name, gpu_why(c));
    }
    return rc;
}

static void release(struct psc_op *op)
{
    struct shared_op *s = state_of(op);

    if (s->src != NULL) {
        s->src->uses--;
    }
    if (s->out != NULL) {
        s->out->uses--;
    }
    shared_event_put(op->client, s->event);
    staged_close(&s->at);
    free(s);
}

static const struct op_device_ops shared_ops = {.copy_part = copy_part,
                                                .copy_result = copy_result,
                                                .release = release,
                                                .send = send_shared};

/* The memory of an array, if the agent has it. */
static struct shared_memory *taken_memory(const struct psc_op *op,
                                          const void *array)
{
    struct shared_memory *m = shared_memory_find(op->client, array,
                                                 op->key->bytes);

    return m != NULL && m->answer == ANSWER_TAKEN &&
                   (uintptr_t)array % ps_dtype_size(op->key->dtype) == 0
               ? m
               : NULL;
}

static bool may_share(const struct psc_op *op, uint32_t count)
{
    return (op->kind == OP_PUSH || op->kind == OP_PUSHPULL ||
            op->kind == OP_BROADCAST) &&
           !op->key->is_async && op->coll == NULL && count <= 1 &&
           op->client->shared != NULL;
}

int shared_attach(struct psc_op *op, const struct psc_device *where,
                  const void *const *srcs, uint32_t count)
{
    struct psc_client *c = op->client;
    const void *src = srcs != NULL ? srcs[0] : NULL;
    const void *out = op_has_result(op->kind) && !op->detached ? op->result.out
                                                               : NULL;
    struct shared_op s = {.base.ops = &shared_ops, .where = *where};
    struct shared_op *made;
    struct gpu *g;
    int rc;

    if (!may_share(op, count) || (src == NULL && out == NULL)) {
        return PS_E_UNSUPPORTED;
    }
    s.src = src != NULL ? taken_memory(op, src) : NULL;
    s.out = out != NULL ? taken_memory(op, out) : NULL;
    if ((src != NULL && s.src == NULL) || (out != NULL && s.out == NULL)) {
        return PS_E_UNSUPPORTED;
    }
    s.src_offset = s.src != NULL ? (uintptr_t)src - s.src->at : 0;
    s.out_offset = s.out != NULL ? (uintptr_t)out - s.out->at : 0;
    made = malloc(sizeof(*made));
    if (made == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    rc = gpu_find(c, where, src != NULL ? src : out, &g);
    if (rc == 0) {
        rc = shared_event_record(c, g, where->stream, &s.event);
    }
    if (rc != 0) {
        free(made);
        return client_error(c, rc, "'%s' cannot be taken from the GPU: %s",
                            op->key->name, gpu_why(c));
    }
    *made = s;
    if (s.src != NULL) {
        s.src->uses++;
    }
    if (s.out != NULL) {
        s.out->uses++;
    }
    op->device = &made->base;
    return 0;
}
