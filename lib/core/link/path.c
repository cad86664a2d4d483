/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the connections of a link, and the frames of its main one. They are
 * not recorded: when it is closed, the link is resumed on another one and sends
 * them again. */
#include "core/link/path.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/state_table.h"
#include "core/link/path_inner.h"

#include <assert.h>

static const char *const path_names[] = {
    [PS_PATH_CLOSED] = "CLOSED",
    [PS_PATH_MAIN] = "MAIN",
    [PS_PATH_JOINING] = "JOINING",
    [PS_PATH_READY] = "READY",
};

static const uint32_t path_successors[] = {
    [PS_PATH_CLOSED] = 0,
    /* READY: an accepted connection has joined another link. */
    [PS_PATH_MAIN] = PS_STATE_BIT(PS_PATH_READY) | PS_STATE_BIT(PS_PATH_CLOSED),
    [PS_PATH_JOINING] = PS_STATE_BIT(PS_PATH_READY) |
                        PS_STATE_BIT(PS_PATH_CLOSED),
    [PS_PATH_READY] = PS_STATE_BIT(PS_PATH_CLOSED),
};

/* A connection of a link, as its driver sees it. */
static const struct ps_state_table path_states = {
    .name = "path",
    .states = path_names,
    .count = sizeof(path_names) / sizeof(path_names[0]),
    .allowed = path_successors,
};

void ps_path_set_state(struct ps_path *p, enum ps_path_state to)
{
    ps_state_change(&path_states, &p->state, (uint8_t)to);
}

/* ------------------------------------------------- links with one connection */

static struct ps_path *choose_main(struct ps_path_link *link,
                                   const struct ps_msg *msg,
                                   struct ps_packet *packet)
{
    (void)msg;
    (void)packet;
    return link->main;
}

static void ignore_ack(struct ps_path_link *link)
{
    (void)link; /* The main connection has no records. */
}

static void borrow_payload(struct ps_path *p, struct ps_slice *slice)
{
    (void)slice;
    p->borrows_payload = true;
}

static uint64_t queued_on_main(const struct ps_path_link *link)
{
    return link->main->queued;
}

const struct ps_path_kind ps_path_single_kind = {
    .choose = choose_main,
    .on_acked = ignore_ack,
    .borrow = borrow_payload,
    .queued = queued_on_main,
};

/* --------------------------------------------------------------------- life */

static void link_add_path(struct ps_path_link *link, struct ps_path *p)
{
    p->link = link;
    ps_list_push_back(&link->paths, &p->node);
    link->path_count++;
}

void ps_path_join_link(struct ps_path_link *link, struct ps_path *p)
{
    link_add_path(link, p);
    link->kind = &ps_multipath_kind;
}

void ps_path_init_subflow(struct ps_path *p, ps_conn_id id,
                          struct ps_path_link *link)
{
    *p = (struct ps_path){.id = id};
    p->state = PS_PATH_JOINING;
    ps_path_join_link(link, p);
}

void ps_path_leave(struct ps_path *p)
{
    struct ps_path_link *link = p->link;

    ps_multipath_drop_records(p);
    ps_list_remove(&p->node);
    link->path_count--;
    if (link->path_count == 1 && link->address == NULL) {
        link->kind = &ps_path_single_kind; /* The peer may dial more. */
    }
    p->link = NULL;
}

void ps_path_link_free(struct ps_path_link *link)
{
    assert(link->path_count == 0);
    link->multipath->dialled_links -= link->address != NULL;
    ps_list_remove(&link->node);
    ps_packet_unref(link->hello);
    ps_free(link->address);
    ps_free(link);
}

void ps_path_open(struct ps_path *p, struct ps_multipath *mp, ps_conn_id id,
                  const char *address)
{
    struct ps_path_link *link = ps_calloc(1, sizeof(*link));

    *p = (struct ps_path){.id = id};
    p->state = PS_PATH_MAIN;
    link->kind = &ps_path_single_kind;
    ps_list_init(&link->paths);
    link_add_path(link, p);
    link->main = p;
    link->multipath = mp;
    link->dial_at = PS_TIME_NEVER;
    link->dial_wait = PS_PATH_DIAL_WAIT;
    if (address != NULL && mp->opt.connections != 1) {
        link->address = ps_strdup(address);
        if (mp->opt.connections > 1) {
            link->kind = &ps_multipath_kind;
        }
    }
    mp->dialled_links += link->address != NULL;
    ps_list_push_front(&mp->links, &link->node);
}

void ps_path_fini(struct ps_path *p)
{
    struct ps_path_link *link = p->link;
    struct ps_list_node *n;

    if (link == NULL) {
        return;
    }
    if (p->state != PS_PATH_MAIN) {
        ps_path_leave(p);
        ps_path_set_state(p, PS_PATH_CLOSED);
        return;
    }
    while ((n = ps_list_first(&link->paths)) != NULL) {
        struct ps_path *one = PS_CONTAINER(n, struct ps_path, node);

        ps_path_leave(one);
        ps_path_set_state(one, PS_PATH_CLOSED);
    }
    ps_path_link_free(link);
}

void ps_path_finish(struct ps_path *p, struct ps_effects *fx)
{
    if (p->state != PS_PATH_MAIN || p->link->is_ending) {
        return;
    }
    p->link->is_ending = true;
    PS_LIST_EACH(n, &p->link->paths)
    {
        const struct ps_path *one = PS_CONTAINER(n, struct ps_path, node);

        if (one != p) {
            ps_effects_close(fx, one->id);
        }
    }
}

bool ps_path_closed(struct ps_path *p, ps_time now, struct ps_effects *fx)
{
    struct ps_path_link *link = p->link;
    bool is_main = p->state == PS_PATH_MAIN;

    if (link == NULL) {
        return false;
    }
    if (is_main) {
        PS_LIST_EACH(n, &link->paths)
        {
            const struct ps_path *one = PS_CONTAINER(n, struct ps_path, node);

            if (one != p) {
                ps_effects_abort(fx, one->id, PS_E_CLOSED,
                                 "its link has lost the main connection");
            }
        }
    } else if (!link->is_ending) {
        ps_multipath_resend(p, fx);
        ps_multipath_check_later(link, true, now);
    }
    ps_path_fini(p);
    return is_main;
}

ps_conn_id ps_path_machine_conn(const struct ps_path *p)
{
    return p->link != NULL ? p->link->main->id : 0;
}

/* ------------------------------------------------------------------ sending */

struct ps_path_choice ps_path_choose(struct ps_path *main, struct ps_msg *msg,
                                     struct ps_packet *packet)
{
    struct ps_path_link *link = main->link;
    struct ps_path_choice choice = {.path = main};

    if (main->state != PS_PATH_MAIN) {
        return choice; /* Handshake of the path itself. */
    }
    if (msg->code == PS_MSG_HELLO && link->address != NULL) {
        ps_packet_unref(link->hello);
        link->hello = ps_packet_ref(packet);
    }
    if (msg->code == PS_MSG_WELCOME &&
        link->multipath->opt.self == PS_ROLE_SERVER) {
        msg->welcome.features |= PS_FEATURE_SUBFLOW;
        link->is_welcomed = true;
    }
    if (msg->ack != link->ack_sent) {
        choice.acks_ahead = msg->code != PS_MSG_ACK && !main->by_reference &&
                            main->queued >= link->multipath->opt.late_min;
        link->ack_sent = msg->ack;
        link->ack = ps_max_u64(link->ack, msg->ack);
    }
    choice.is_urgent = msg->code == PS_MSG_ACK && msg->seq == 0;
    /* Also true of frames without a number. */
    const bool again = msg->seq <= link->seq_max;

    link->seq_max = ps_max_u64(link->seq_max, msg->seq);
    if (!again && packet->payload_len >= link->multipath->opt.payload_min) {
        choice.path = link->kind->choose(link, msg, packet);
        choice.path->payload_given += packet->payload_len;
    }
    return choice;
}

bool ps_path_sent(struct ps_path *p, uint64_t queued, struct ps_event *ev)
{
    const struct ps_path_link *link = p->link;

    p->queued = queued;
    if (link == NULL) {
        return false;
    }
    *ev = (struct ps_event){.type = PS_EV_SENT, .conn = link->main->id};
    ev->sent.queued = link->kind->queued(link);
    return true;
}

/* ---------------------------------------------------------------- receiving */

void ps_path_accept_ack(struct ps_path_link *link, uint64_t ack)
{
    if (ack > link->acked && ack <= link->seq_max) {
        link->acked = ack;
        link->kind->on_acked(link);
    }
}

enum ps_path_verdict ps_path_receive(struct ps_path *p,
                                     const struct ps_msg *msg, ps_time now,
                                     struct ps_effects *fx)
{
    struct ps_path_link *link = p->link;

    p->borrows_payload = false;
    if (link == NULL) {
        return PS_PATH_DROP; /* The link has ended. */
    }
    if (p->state != PS_PATH_MAIN) {
        return ps_multipath_receive(p, msg, fx);
    }
    if (msg->code == PS_MSG_HELLO) {
        if ((msg->hello.features & PS_FEATURE_SUBFLOW) != 0) {
            return ps_multipath_accept_join(p, &msg->hello, fx);
        }
        link->peer_node = msg->hello.node;
        link->instance = msg->hello.instance;
        link->session = msg->hello.session;
    }
    if (msg->code == PS_MSG_WELCOME && link->address != NULL &&
        (msg->welcome.features & PS_FEATURE_SUBFLOW) != 0) {
        link->is_welcomed = true;
        ps_multipath_check_later(link, false, now);
    }
    ps_path_accept_ack(link, msg->ack);
    return PS_PATH_DELIVER;
}

int ps_path_payload(struct ps_path *p, const struct ps_machine *m,
                    const struct ps_msg *msg, uint64_t len,
                    struct ps_slice *ret_slice)
{
    const struct ps_path_link *link = p->link;
    int rc;

    if (link == NULL || (p->state != PS_PATH_MAIN && msg->seq == 0)) {
        return PS_E_CANCELED;
    }
    rc = m->ops->payload(m->self, link->main->id, msg, len, ret_slice);
    if (rc == 0 && ret_slice->buf->refs > 1) {
        link->kind->borrow(p, ret_slice);
    }
    return rc;
}
