/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of agents: the handler of each, and the payloads received. */
#include "core/server/agent_msg.h"

#include "core/server/conflict.h"
#include "core/server/contribution.h"
#include "core/server/credit.h"
#include "core/server/hello.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/opt_state.h"
#include "core/server/pull.h"
#include "core/server/push.h"
#include "core/server/restore.h"
#include "core/server/rows.h"
#include "core/server/session.h"

/* --------------------------------------------------------------- authority */

/* Rule A4: 0 if the message names a slot of this agent, or a job that is not
 * known here; that one may be on its way. Slots belong to their nodes for as
 * long as the job lives, so no honest agent names another's. */
static int check_slot(const struct ps_server *s,
                      const struct ps_server_session *p,
                      const struct ps_msg *msg, struct ps_msg_subject *ret)
{
    struct ps_server_job *job;
    struct ps_server_slot *slot;
    int rc;

    if (ps_msg_authority(msg->code, PS_ROLE_AGENT) != PS_AUTHORITY_MEMBER ||
        !ps_msg_subject(msg, ret)) {
        return 0;
    }
    job = ps_server_job_find(s, ret->gen);
    rc = job != NULL ? ps_server_job_find_slot(job, p, ret->slot, &slot) : 0;
    return rc == PS_E_STALE ? 0 : rc;
}

/* Refuses a message about what is not the sender's, without an answer. */
static bool check_authority(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg *msg)
{
    struct ps_server_session *p = c->session;
    struct ps_msg_subject about;
    int rc = check_slot(st->s, p, msg, &about);
    char text[PS_TEXT_MAX + 1];
    char who[PS_NAME_MAX + 32];
    struct ps_str t;

    if (rc == 0) {
        return true;
    }
    st->s->sessions.refused_frames++;
    ps_str_init(&t, text, sizeof(text));
    ps_str_addf(&t,
                "sent a message (%s) for slot %u of job %s, which is not its "
                "own",
                ps_msg_name(msg->code), about.slot,
                ps_server_job_find(st->s, about.gen)->name);
    ps_str_init(&t, who, sizeof(who));
    ps_str_addf(&t, "agent %s (node %u)", p->name, p->agent_node);
    if (ps_misuse_add(&p->misuse, st->now, st->fx, who, text)) {
        ps_server_conn_close(st, c);
    }
    return false;
}

/* ---------------------------------------------------------------- messages */

static void on_session_msg(struct ps_server_step *st, struct ps_server_conn *c,
                           const struct ps_msg *msg,
                           const struct ps_slice *payload)
{
    switch (msg->code) {
    case PS_MSG_ACK:
    case PS_MSG_PONG:
        break;
    case PS_MSG_PING:
        ps_effects_send_msg(st->fx, c->id,
                            &(struct ps_msg){
                                .code = PS_MSG_PONG,
                                .ack = ps_link_received(c->session->link),
                                .pong = {.stamp = msg->ping.stamp},
                            });
        break;
    case PS_MSG_PUSH:
    case PS_MSG_PUSH_ROWS:
        ps_server_on_push(st, c, msg, payload);
        break;
    case PS_MSG_PULL:
        ps_server_on_pull(st, c, msg);
        break;
    case PS_MSG_PULL_ROWS:
        ps_server_on_pull_rows(st, c, msg, payload);
        break;
    case PS_MSG_INIT:
        ps_server_on_init(st, c, msg, payload);
        break;
    case PS_MSG_STATE_GET:
        ps_server_on_state_get(st, c, &msg->state_get);
        break;
    case PS_MSG_STATE_PUT:
        ps_server_on_state_put(st, c, &msg->state_put, payload);
        break;
    case PS_MSG_ABORT_ROUND:
        ps_server_on_abort_round(st, c, &msg->abort_round);
        break;
    case PS_MSG_RESTORE:
        ps_server_on_restore(st, c, msg, payload);
        break;
    default:
        ps_server_session_close_bad(st, c, "it sent what is not for a server");
        break;
    }
}

void ps_server_agent_on_msg(struct ps_server_step *st, ps_conn_id conn,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload, int discard_reason)
{
    struct ps_server_conn *c = ps_map_get(st->s->sessions.conns, conn);

    if (c == NULL) {
        return; /* Closed here; late messages are ignored. */
    }
    if (c->session == NULL) {
        if (msg->code == PS_MSG_HELLO && c->unverified_hello == NULL) {
            ps_server_on_hello(st, c, &msg->hello);
        } else {
            ps_server_session_close_bad(st, c,
                                        c->unverified_hello == NULL
                                            ? "it did not say hello"
                                            : "it did not wait for a welcome");
        }
        return;
    }
    c->discard_reason = discard_reason;
    c->session->heard_at = st->now;
    bool fresh = ps_link_receive(c->session->link, msg, st->now, st->fx);

    ps_server_session_update_timer(st->s, c->session);
    ps_server_session_pump(st, c->session); /* Frames were acknowledged. */
    if (fresh && payload != NULL && payload->buf != NULL) {
        st->s->bytes_in += payload->len;
    }
    if (fresh && check_authority(st, c, msg)) {
        on_session_msg(st, c, msg, payload);
    }
    c = ps_map_get(st->s->sessions.conns, conn);
    if (c != NULL) {
        c->discard_reason = 0;
    }
}

/* Decides whether the message's payload is received: 0, or the discard
 * reason. */
static int check_payload(struct ps_server *s, struct ps_server_session *p,
                         const struct ps_msg *msg, uint64_t len,
                         struct ps_server_slot **ret_slot)
{
    const struct ps_rec_part *parts = NULL;
    uint32_t count = 0;
    uint32_t slot = 0;
    uint64_t gen = 0;
    uint64_t total;

    switch (msg->code) {
    case PS_MSG_PUSH:
    case PS_MSG_PUSH_ROWS:
        return ps_server_push_check_payload(s, p, msg, len, ret_slot);
    case PS_MSG_PULL_ROWS:
        return ps_server_rows_check_payload(s, p, msg, len, ret_slot);
    case PS_MSG_INIT:
        parts = msg->init.parts;
        count = msg->init.parts_count;
        slot = msg->init.slot;
        gen = msg->init.gen;
        break;
    case PS_MSG_STATE_PUT:
        parts = msg->state_put.parts;
        count = msg->state_put.parts_count;
        slot = msg->state_put.slot;
        gen = msg->state_put.gen;
        break;
    case PS_MSG_RESTORE:
        parts = msg->restore.parts;
        count = msg->restore.parts_count;
        slot = msg->restore.slot;
        gen = msg->restore.gen;
        break;
    default:
        return PS_E_PROTO;
    }
    if (!ps_server_parts_bytes(parts, count, &total) || total != len) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(p->link, msg->seq)) {
        return PS_E_EXIST;
    }
    struct ps_server_job *job = ps_server_job_find(s, gen);

    if (job == NULL) {
        return PS_E_NOJOB;
    }
    int rc = ps_server_job_find_slot(job, p, slot, ret_slot);
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_INIT &&
        ps_server_init_is_duplicate(job, &msg->init)) {
        return PS_E_EXIST;
    }
    return 0;
}

int ps_server_agent_payload(struct ps_server *s, ps_conn_id conn,
                            const struct ps_msg *msg, uint64_t len,
                            struct ps_slice *ret_slice)
{
    struct ps_server_conn *c = ps_map_get(s->sessions.conns, conn);
    struct ps_server_slot *slot = NULL;
    struct ps_buf *buf;

    if (c == NULL || c->session == NULL) {
        return PS_E_CLOSED;
    }
    struct ps_msg_subject about;
    int rc = check_slot(s, c->session, msg, &about);

    if (rc == 0) {
        rc = len <= PS_PAYLOAD_MAX
                 ? check_payload(s, c->session, msg, len, &slot)
                 : PS_E_PROTO;
    }
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_PUSH && ps_server_credit_is_ahead(slot) &&
        !ps_server_credit_shares_link(slot)) {
        return PS_E_AGAIN;
    }
    rc = ps_server_memory_alloc_payload(s, slot, msg, len, &buf);
    if (rc != 0) {
        return rc;
    }
    if (msg->code == PS_MSG_PUSH) {
        ps_server_credit_push_begins(slot);
    }
    *ret_slice = (struct ps_slice){.buf = buf, .offset = 0, .len = len};
    return 0;
}
