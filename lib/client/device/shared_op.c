/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on memory of a GPU that the agent maps, and the public calls for such
 * memory and for streams. Path of an operation on a key:
 *
 *     start      an event in the program's stream
 *     sent       l_device_op names memory and event; the agent begins when the
 *                event is over, and writes the result
 *     result     l_done: it lies in `out`. If the agent could not write it, it is
 *                copied from the agent's memory of the host, as staged.c does
 *
 * Memory is of psc_alloc_device(), or of another allocator. Memory that the agent
 * does not take is left to staged.c. */
#include "client/device/shared.h"
#include "client/device/gpu.h"
#include "client/device/staged.h"
#include "client/key.h"
#include "client/op.h"
#include "client/psclient_device.h"
#include "client/psclient_stream.h"
#include "client/state.h"
#include "client/threads.h"

#include <stdlib.h>

#include "base/dtype.h"

/* Time for the agent to answer for memory. */
#define ANSWER_MS 30000

/* --------------------------------------------------------------- operations */

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
            .out_region = s->out != NULL && !op->detached ? s->out->region : 0,
            .out_offset = s->out_offset,
        }};
    int rc = shared_event_announce(op->client, s->event);

    return rc != 0 ? rc : client_put(op->client, &msg);
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

static void put_memory(struct shared_memory *m)
{
    if (m != NULL) {
        m->uses--;
    }
}

static void release(struct psc_op *op)
{
    struct shared_op *s = state_of(op);

    put_memory(s->src);
    put_memory(s->out);
    shared_event_put(op->client, s->event);
    staged_close(&s->at);
    free(s);
}

/* The agent writes results, so there are no parts to copy. */
static const struct op_device_ops shared_ops = {
    .copy_result = copy_result, .release = release, .send = send_shared};

/* Uses the memory of an array, which may be NULL. False: the agent does not have
 * it. */
static bool take_memory(const struct psc_op *op, struct gpu *g,
                        const void *array, struct shared_memory **ret_memory,
                        uint64_t *ret_offset)
{
    struct psc_client *c = op->client;
    const size_t bytes = op->key->bytes;
    struct shared_memory *m;

    if (array == NULL) {
        return true;
    }
    m = shared_memory_find(c, array, bytes);
    if (m == NULL) {
        m = shared_foreign_find(c, g, array, bytes);
    }
    if (m != NULL && m->answer == ANSWER_REFUSED) {
        shared_explain(c, g, m->why);
    }
    if (m == NULL || m->answer != ANSWER_TAKEN ||
        (uintptr_t)array % ps_dtype_size(op->key->dtype) != 0) {
        return false;
    }
    m->uses++;
    *ret_memory = m;
    *ret_offset = (uintptr_t)array - m->at;
    return true;
}

static bool may_share(const struct psc_op *op, uint32_t count)
{
    return (op->kind == OP_PUSH || op->kind == OP_PUSHPULL ||
            op->kind == OP_BROADCAST) &&
           !op->key->is_async && op->coll == NULL && count <= 1;
}

static int untaken(const struct psc_op *op, int rc)
{
    return client_error(op->client, rc, "'%s' cannot be taken from the GPU: %s",
                        op->key->name, gpu_why(op->client));
}

int shared_attach(struct psc_op *op, const struct psc_device *where,
                  const void *const *srcs, uint32_t count)
{
    struct psc_client *c = op->client;
    const void *src = srcs != NULL ? srcs[0] : NULL;
    const void *out = op_kinds[op->kind].has_result && !op->detached
                          ? op->result.out
                          : NULL;
    struct shared_op s = {.base.ops = &shared_ops, .where = *where};
    struct shared_op *made;
    struct gpu *g;
    int rc;

    if (!may_share(op, count) ||
        (src == NULL && (srcs != NULL || out == NULL))) {
        return PS_E_UNSUPPORTED;
    }
    rc = gpu_find(c, where, src != NULL ? src : out, &g);
    if (rc != 0) {
        return untaken(op, rc);
    }
    if (shared_load(c, g) != 0) {
        return PS_E_UNSUPPORTED;
    }
    if (!take_memory(op, g, src, &s.src, &s.src_offset) ||
        !take_memory(op, g, out, &s.out, &s.out_offset)) {
        rc = PS_E_UNSUPPORTED;
        goto put;
    }
    made = malloc(sizeof(*made));
    if (made == NULL) {
        rc = client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
        goto put;
    }
    rc = shared_event_record(c, g, where->stream, &s.event);
    if (rc != 0) {
        rc = untaken(op, rc);
        free(made);
        goto put;
    }
    *made = s;
    op->device = &made->base;
    return 0;

put:
    put_memory(s.src);
    put_memory(s.out);
    return rc;
}

/* ------------------------------------------------------------- public calls */

static bool is_answered(void *arg)
{
    return ((const struct shared_memory *)arg)->answer != ANSWER_NONE;
}

int psc_alloc_device(struct psc_client *c, int32_t ordinal, size_t size,
                     void **ret_data)
{
    const struct psc_device where = {.size = sizeof(where), .ordinal = ordinal};
    struct shared_memory *m = NULL;
    struct gpu *g = NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (c->rc != 0) {
        rc = client_error(c, c->rc, "%s", c->text);
    } else if (size == 0 || size > (size_t)1 << 46 || ordinal < 0) {
        rc = client_error(c, PSC_E_INVAL,
                          "%zu bytes of GPU %d cannot be allocated", size,
                          ordinal);
    } else {
        rc = gpu_find(c, &where, NULL, &g);
        rc = rc != 0 ? client_error(c, rc, "no memory of GPU %d: %s", ordinal,
                                    gpu_why(c))
                     : shared_load(c, g);
    }
    if (rc == 0) {
        rc = shared_memory_new(c, g, size, &m);
    }
    if (rc == 0) {
        /* Without an answer, operations copy it. */
        int waited = client_wait(c, is_answered, m, client_deadline(ANSWER_MS));

        (void)waited;
        *ret_data = (void *)(uintptr_t)m->at;
        if (m->answer != ANSWER_TAKEN) {
            (void)client_error(
                c, 0, "operations copy memory of GPU %d: %s", ordinal,
                m->why[0] != '\0' ? m->why : "the agent does not answer");
        }
    }
    client_leave(c);
    return rc;
}

int psc_free_device(struct psc_client *c, void *data)
{
    struct shared_memory *m;
    int rc;

    if (data == NULL) {
        return 0;
    }
    rc = client_enter(c);
    if (rc != 0) {
        return rc;
    }
    m = shared_memory_find(c, data, 0);
    if (m == NULL || m->at != (uintptr_t)data) {
        rc = client_error(c, PSC_E_INVAL,
                          "the memory at %p is not from psc_alloc_device()",
                          data);
    } else if (m->uses > 0) {
        rc = client_error(c, PSC_E_AGAIN, "%u open operations use this memory",
                          m->uses);
    } else {
        shared_memory_free(c, m);
    }
    client_leave(c);
    return rc;
}

int psc_device_stream(struct psc_client *c, int32_t ordinal, void **ret_stream)
{
    const struct psc_device where = {.size = sizeof(where), .ordinal = ordinal};
    struct gpu *g = NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = gpu_find(c, &where, NULL, &g);
    if (rc == 0) {
        rc = gpu_entrance(g, ret_stream);
    }
    if (rc != 0) {
        client_error(c, rc, "no stream of the GPU: %s", gpu_why(c));
    }
    client_leave(c);
    return rc;
}
