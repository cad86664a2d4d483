/* SPDX-License-Identifier: Apache-2.0 */
#include "client/messages.h"
#include "client/arena.h"
#include "client/device/shared.h"
#include "client/handshake.h"
#include "client/key.h"
#include "client/op.h"
#include "client/profile_answer.h"
#include "client/reattach.h"
#include "client/state.h"
#include "client/threads.h"

#include "base/str.h"

static void accept_stall_answer(struct psc_client *c,
                                const struct ps_msg_l_stall_reply *m)
{
    PS_LIST_EACH(n, &c->progress.stall_requests)
    {
        struct stall_request *w = PS_CONTAINER(n, struct stall_request, node);

        if (w->id == m->op_id && !w->is_answered) {
            ps_str_copy(w->text, sizeof(w->text), m->text);
            w->is_answered = true;
        }
    }
    client_changed(c);
}

void client_accept_done(struct psc_client *c, const struct ps_msg_l_done *m)
{
    struct psc_op *op = op_find(c, m->op_id);

    if (op == NULL || op->state != OP_SENT || op->kind == OP_KEY) {
        client_fail(c, PSC_E_PROTO,
                    "the agent ended an operation that is not open");
        return;
    }
    op_accept_done(op, m);
}

/* Sends the requests that waited for the answer. */
static void send_job_requests(struct psc_client *c)
{
    int rc = op_send_job_requests(c);

    if (rc != 0) {
        client_fail(c, rc, "cannot write to the agent: %s", ps_strerror(rc));
    }
}

static void accept_key_info(struct psc_client *c,
                            const struct ps_msg_l_key_info *m)
{
    struct psc_op *op;

    if (m->reattached) {
        key_accept_rebind(c, m);
        if (c->rc == 0) {
            send_job_requests(c);
        }
        return;
    }
    op = op_find(c, m->request);
    if (op == NULL || op->state != OP_SENT || op->kind != OP_KEY) {
        client_fail(c, PSC_E_PROTO,
                    "the agent answered for a key that was not asked for");
        return;
    }
    key_accept_info(c, op, m);
}

static void accept_welcome(struct psc_client *c,
                           const struct ps_msg_l_welcome *m)
{
    if (c->id.is_welcomed) {
        reattach_welcome(c, m);
    } else {
        handshake_welcome(c, m);
    }
}

static void accept_message(struct psc_client *c, const struct ps_msg *m, int fd)
{
    switch ((int)m->code) {
    case PS_MSG_L_DONE:
        client_accept_done(c, &m->l_done);
        break;
    case PS_MSG_L_WELCOME:
        accept_welcome(c, &m->l_welcome);
        break;
    case PS_MSG_L_ARENA:
        arena_accept(c, &m->l_arena, fd);
        break;
    case PS_MSG_L_RESIDUAL_SEGMENT:
        reattach_add_segment(c, &m->l_residual_segment, fd);
        break;
    case PS_MSG_L_KEY_INFO:
        accept_key_info(c, &m->l_key_info);
        break;
    case PS_MSG_L_PROFILE_EVENTS:
        profile_accept_events(c, &m->l_profile_events);
        break;
    case PS_MSG_L_STALL_REPLY:
        accept_stall_answer(c, &m->l_stall_reply);
        break;
    case PS_MSG_L_WAIT_QUERY:
        waiting_answer(c, &m->l_wait_query);
        break;
    case PS_MSG_L_DEVICE_INFO:
        shared_accept_info(c, &m->l_device_info);
        break;
    case PS_MSG_L_WAKE:
        break; /* The reader polls the ring in any case. */
    case PS_MSG_L_ERROR:
        client_fail(c, client_failure(m->l_error.error), "%s", m->l_error.text);
        break;
    case PS_MSG_REJECT:
        client_fail(c, client_failure(m->reject.error), "%s", m->reject.text);
        break;
    default: /* The frame check admits no other message here. */
        client_fail(c, PSC_E_PROTO, "unexpected %s from the agent",
                    ps_msg_name(m->code));
    }
}

void client_accept_messages(struct psc_client *c)
{
    while (c->rc == 0) {
        struct ps_msg m;
        int fd = -1;
        int rc = ps_sock_next(c->sock, &m, &fd);

        if (rc == PS_E_AGAIN) {
            return;
        }
        if (rc != 0) {
            /* PSC_E_PERM and PSC_E_TOOBIG would blame the program. */
            rc = rc == PS_E_VERSION || rc == PS_E_NOMEM ? rc : PS_E_PROTO;
            client_fail(c, rc, "malformed frame from the agent: %s",
                        ps_strerror(rc));
            return;
        }
        accept_message(c, &m, fd);
    }
}
