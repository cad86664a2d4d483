/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls that start an operation and wait for it. */
#include "client/entry.h"
#include "client/op.h"
#include "client/op_start.h"
#include "client/op_wait.h"
#include "client/state.h"

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
        rc = op_start_plain(c, OP_BARRIER, NULL, NULL, NULL, &op);
    }
    if (rc == 0) {
        rc = op_wait_locked(op, PSC_WAIT_DEFAULT);
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
