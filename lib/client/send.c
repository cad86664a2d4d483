/* SPDX-License-Identifier: Apache-2.0 */
#include "client/send.h"
#include "client/error.h"
#include "client/state.h"

int client_put(struct psc_client *c, const struct ps_msg *msg)
{
    if (c->rc != 0 || c->reattach.link != LINK_UP) {
        return c->rc;
    }
    return ps_sock_put(c->sock, msg, -1);
}

bool client_push_op(struct psc_client *c, const struct ps_msg_l_op *m)
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

static void wake_agent(struct psc_client *c)
{
    static const struct ps_msg wake = {.code = PS_MSG_L_WAKE};
    int rc = 0;

    c->ring.needs_wake = false;
    /* A frame on its way wakes the agent as well. */
    if (c->rc == 0 && ps_sock_flushed(c->sock) &&
        ps_ring_wake_agent(&c->ring.worker)) {
        rc = ps_sock_put(c->sock, &wake, -1);
    }
    if (rc != 0) {
        client_fail(c, rc, "cannot wake the agent: %s", ps_strerror(rc));
    }
}

void client_flush(struct psc_client *c)
{
    int rc;

    if (c->ring.needs_wake) {
        wake_agent(c);
    }
    rc = c->rc != 0 || ps_sock_flushed(c->sock) ? 0 : ps_sock_flush(c->sock);
    /* Closed: the reader notices it after the agent's last messages. */
    if (rc != 0 && rc != PS_E_CLOSED) {
        client_fail(c, rc, "cannot write to the agent: %s", ps_strerror(rc));
    }
}

int client_send(struct psc_client *c, const struct ps_msg *msg)
{
    int rc = client_put(c, msg);

    if (rc == 0) {
        client_flush(c);
        rc = c->rc;
    }
    return rc;
}

bool client_wants_kick(const struct psc_client *c)
{
    return c->ops.queued > 0 || c->colls.join != NULL ||
           !ps_list_empty(&c->colls.order_queue);
}

void client_kick(struct psc_client *c)
{
    if (c->progress.wake_threshold > 1) {
        ps_sock_kick(c->sock); /* The next completion must wake it. */
    }
}
