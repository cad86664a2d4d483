/* SPDX-License-Identifier: Apache-2.0 */
/* Public call that cancels an operation. One that is QUEUED has had no effect
 * elsewhere and ends at once. A pull that the agent has is given up there and
 * here, whichever comes first, its end or its result. Everything else that the
 * agent has may count for other ranks already. */
#include "client/device/gpu.h"
#include "client/entry.h"
#include "client/error.h"
#include "client/op.h"
#include "client/op_queue.h"
#include "client/progress.h"
#include "client/send.h"
#include "client/state.h"

#include "base/limits.h"

static int refuse_cancel(const struct psc_op *op, int rc, const char *why)
{
    char name[PS_KEY_NAME_MAX + 64];

    op_name(op, name, sizeof(name));
    return client_error(op->client, rc, "%s cannot be cancelled: %s", name,
                        why);
}

static bool is_pull(const struct psc_op *op)
{
    return op->kind == OP_PULL || op->kind == OP_PULL_ROWS;
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
    const struct ps_msg m = {.code = PS_MSG_L_OP,
                             .l_op = {.op_id = op->id,
                                      .op = PS_OP_CANCEL,
                                      .key = op->key->agent_number}};
    int rc = client_push_op(c, &m.l_op) ? 0 : client_put(c, &m);

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
        if (op->must_resend && !is_pull(op)) {
            return refuse_cancel(op, PSC_E_REFUSED,
                                 "an agent that is lost now had it, and the "
                                 "other ranks may count on it");
        }
        cancel_queued(op);
        return 0;
    case OP_SENT:
        if (op_is_abandoned(op)) {
            return 0;
        }
        if (!is_pull(op)) {
            return refuse_cancel(op, PSC_E_REFUSED,
                                 "the agent has it, and the other ranks may "
                                 "count on it");
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
