/* SPDX-License-Identifier: Apache-2.0 */
/* Effects become frames, jobs and hang-ups. */
#include "common/driver_inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "net/arena.h"
#include "net/worker.h"

#include <assert.h>
#include <stdio.h>

/* An acknowledgement behind so many bytes comes late. On a slow link that is
 * seconds, and the peer sends again what has long arrived. */
#define LATE_MIN (64u * 1024u)

struct task {
    struct ps_worker_task task;
    struct ps_driver *driver;
    struct ps_compute *compute;
};

static void written(void *ctx)
{
    struct ps_parcel *p = ctx;

    assert(p->writing > 0);
    p->writing--;
    ps_parcel_unref(p);
}

int driver_write(struct link_conn *c, struct ps_conn_frame *frame,
                 struct ps_parcel *p)
{
    /* What is numbered is its link's, which keeps it until it is acknowledged.
     * The rest is nobody's but this connection's, and without a payload it is
     * not needed any more once it is encoded. */
    bool numbered = frame->msg->seq != 0;
    bool keep = numbered || p->slice_count > 0;

    if (keep) {
        frame->slices = p->slice;
        frame->slice_count = p->slice_count;
        frame->done = written;
        frame->ctx = p;
        frame->memory = numbered ? 0 : ps_parcel_memory(p);
    }
    int rc = ps_conn_send(c->conn, frame);

    if (rc == 0 && keep) {
        p->writing++;
    } else {
        ps_parcel_unref(p);
    }
    return rc;
}

void driver_mark_dirty(struct link_conn *c)
{
    if (!ps_list_linked(&c->dirty)) {
        ps_list_push_back(&c->driver->dirty, &c->dirty);
        driver_watch(c);
    }
    driver_output_count(c);
}

/* Greetings say whose link it is and what we can do. */
static void before_sent(struct link_conn *c, struct ps_msg *msg,
                        struct ps_parcel *p)
{
    const struct ps_driver *d = c->driver;

    if (msg->code == PS_MSG_HELLO && c->address != NULL) {
        ps_parcel_unref(c->hello);
        c->hello = ps_parcel_ref(p);
    }
    if (msg->code == PS_MSG_WELCOME && d->opt.self == PS_ROLE_SERVER) {
        msg->welcome.features |= PS_FEATURE_JOIN;
        c->welcomed = true;
    }
}

/* What rides on a frame that has to wait goes ahead as well. */
static void acknowledge(struct link_conn *c, const struct ps_msg *msg)
{
    const struct ps_msg ack = {.code = PS_MSG_ACK, .ack = msg->ack};
    const struct ps_conn_frame frame = {
        .msg = &ack, .pass_fd = -1, .ahead = true};
    bool late = msg->code != PS_MSG_ACK && !ps_conn_points(c->conn) &&
                ps_conn_queued(c->conn) >= LATE_MIN;

    /* A connection that takes no frame is closing, and says so. */
    if (msg->ack != c->acknowledged &&
        (!late || ps_conn_send(c->conn, &frame) == 0)) {
        c->acknowledged = msg->ack;
    }
}

/* A message that no frame can carry will not be one later either. One of a link
 * gives its number to an empty message, so that those behind it go on; a peer
 * without a link waits for it and is cut. */
static void skip(struct link_conn *c, const struct ps_msg *msg, int rc)
{
    const struct ps_msg empty = {
        .code = PS_MSG_ACK, .seq = msg->seq, .ack = msg->ack};
    const struct ps_conn_frame frame = {.msg = &empty, .pass_fd = -1};

    ps_log_of(LOG_NOT_SENT, PS_LOG_ERROR, "message not sent code %s reason %s",
              ps_msg_name(msg->code), ps_strerror(rc));
    if (msg->seq == 0) {
        char text[PS_TEXT_MAX];

        snprintf(text, sizeof(text), "%s cannot be sent: %s",
                 ps_msg_name(msg->code),
                 rc == PS_E_FULL ? "this daemon has no descriptor left "
                                   "(LimitNOFILE)"
                                 : ps_strerror(rc));
        driver_cut(c, rc, text);
    } else if (ps_conn_send(c->conn, &frame) == 0) {
        driver_mark_dirty(c);
    }
}

static void send_parcel(struct ps_driver *d, const struct ps_fx *fx)
{
    struct link_conn *c = ps_map_get(d->conns, fx->send.conn);
    struct ps_parcel *p = fx->send.parcel;
    struct ps_msg msg = *p->msg;
    int fd = -1;
    uint64_t size;

    if (c == NULL || !ps_conn_is_open(c->conn)) {
        return; /* The link sends it again on the next connection. */
    }
    msg.seq = fx->send.seq;
    msg.ack = fx->send.ack;
    if (msg.code == PS_MSG_L_ARENA) {
        int rc = ps_arenas_fd(d->opt.arenas, msg.l_arena.arena, &fd, &size);

        assert(rc == 0);
        (void)rc;
        msg.l_arena.size = size;
    }
    if (msg.code == PS_MSG_L_KEEP) {
        int rc = ps_arenas_kept_fd(d->opt.arenas, msg.l_keep.keep, &fd);

        assert(rc == 0);
        (void)rc;
    }
    if (msg.code == PS_MSG_L_DONE && msg.l_done.error != 0 &&
        driver_output_is_long(c)) {
        msg.l_done.text = "others failed before it, and say why";
    }
    before_sent(c, &msg, p);
    acknowledge(c, &msg);
    if (c->welcomed) {
        struct ps_strand *s = ps_bundle_choose(&c->bundle, c->conn, msg.seq,
                                               msg.ack, p);

        c = s != NULL ? PS_CONTAINER(s, struct link_conn, strand) : c;
    }
    struct ps_conn_frame frame = {.msg = &msg,
                                  .pass_fd = fd,
                                  .ahead = msg.code == PS_MSG_ACK &&
                                           msg.seq == 0};
    int rc = driver_write(c, &frame, ps_parcel_ref(p));

    if (rc != 0) {
        /* Otherwise that is the end of the connection, which says why. */
        if (ps_conn_is_open(c->conn)) {
            skip(c, &msg, rc);
        }
        return;
    }
    if (msg.code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(c->conn, msg.welcome.protocol);
    }
    driver_mark_dirty(c);
}

static void send_done(struct ps_driver *d, const struct ps_fx *fx)
{
    struct link_conn *c = ps_map_get(d->conns, fx->done.conn);
    struct ps_msg msg = {.code = PS_MSG_L_DONE};
    const struct ps_conn_frame frame = {.msg = &msg, .pass_fd = -1};

    if (c == NULL || !ps_conn_is_open(c->conn)) {
        return;
    }
    if (c->ring_memory != NULL &&
        ps_ring_put_done(&c->ring, fx->done.op_id, fx->done.version)) {
        if (!ps_list_linked(&c->told)) {
            ps_list_push_back(&d->told, &c->told);
        }
        return;
    }
    msg.l_done.op_id = fx->done.op_id;
    msg.l_done.version = fx->done.version;
    msg.l_done.text = "";
    /* A connection that takes no frame is closing, and says so. */
    if (ps_conn_send(c->conn, &frame) == 0) {
        driver_mark_dirty(c);
    }
}

/* Who has no ring, or a full one, copies when all of it is there. */
static void send_piece(struct ps_driver *d, const struct ps_fx *fx)
{
    const struct ps_ring_piece piece = {.op_id = fx->piece.op_id,
                                        .bytes = fx->piece.bytes};
    struct link_conn *c = ps_map_get(d->conns, fx->piece.conn);

    if (c != NULL && c->ring_memory != NULL && ps_conn_is_open(c->conn) &&
        ps_ring_put_piece(&c->ring, &piece) && !ps_list_linked(&c->told)) {
        ps_list_push_back(&d->told, &c->told);
    }
}

static void computed(struct ps_worker_task *task, int rc)
{
    struct task *t = PS_CONTAINER(task, struct task, task);
    struct ps_driver *d = t->driver;
    struct ps_compute *compute = t->compute;
    struct ps_event ev = {.type = PS_EV_COMPUTED};

    ps_free(t);
    d->computing--;
    ev.computed.token = compute->token;
    ev.computed.rc = rc;
    driver_feed(d, &ev);
    ps_compute_free(compute);
}

static void start_compute(struct ps_driver *d, struct ps_compute *c)
{
    struct task *t = ps_calloc(1, sizeof(*t));

    assert(d->opt.worker != NULL);
    t->driver = d;
    t->compute = c;
    t->task.job = &c->job;
    t->task.done = computed;
    d->computing++;
    ps_worker_submit(d->opt.worker, &t->task);
}

static void hang_up(struct ps_driver *d, ps_conn_id id)
{
    struct link_conn *c = ps_map_get(d->conns, id);

    if (c == NULL) {
        return;
    }
    ps_conn_finish(c->conn);
    PS_LIST_EACH(n, &c->bundle.strands)
    {
        ps_conn_finish(PS_CONTAINER(n, struct ps_strand, node)->conn);
    }
}

void driver_carry_out(struct ps_driver *d)
{
    for (uint32_t i = 0; i < d->fx.count; i++) {
        struct ps_fx *fx = &d->fx.items[i];

        switch (fx->type) {
        case PS_FX_SEND:
            send_parcel(d, fx);
            break;
        case PS_FX_DIAL:
            driver_dial(d, fx->dial.target, fx->dial.address, fx->dial.timeout);
            break;
        case PS_FX_PROBE:
            driver_probe(d, fx->dial.target, fx->dial.address,
                         fx->dial.timeout);
            break;
        case PS_FX_HANGUP:
            hang_up(d, fx->hangup.conn);
            break;
        case PS_FX_COMPUTE:
            start_compute(d, fx->compute);
            fx->compute = NULL; /* Ours now. */
            break;
        case PS_FX_DONE:
            send_done(d, fx);
            break;
        case PS_FX_PIECE:
            send_piece(d, fx);
            break;
        case PS_FX_NOTE:
            ps_log_of(fx->note.kind, fx->note.level, "%s", fx->note.text);
            break;
        }
    }
    ps_effects_clear(&d->fx);
}
