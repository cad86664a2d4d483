/* SPDX-License-Identifier: Apache-2.0 */
/* The machine is stepped from the callbacks of the net, never from within a
 * call to it, so effects can be carried out at once. What must not happen
 * inside a step is put off to settle(), which runs before the loop waits:
 * small jobs, deadlines that are due, writing (so that all that one turn
 * produced goes out together), and asking again where there was no memory. */
#include "common/driver.h"

#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "base/num.h"
#include "base/spin.h"
#include "base/str.h"
#include "common/bundle.h"
#include "net/addr.h"
#include "net/arena.h"
#include "net/dial.h"
#include "net/local.h"
#include "net/loop.h"
#include "net/mover.h"
#include "net/near.h"
#include "net/worker.h"
#include "proto/ring.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Turns of settle() before sockets are looked at again. */
#define ROUNDS_MAX  16
/* Operations that a machine is told of at once. */
#define TAKE_OPS    32
/* For the last words of connections when the daemon ends. */
#define CLOSE_GRACE PS_SECONDS(2)
/* Between tries of a link to get another connection. */
#define JOIN_FIRST  PS_MILLIS(100)
#define JOIN_MAX    PS_SECONDS(5)

struct link_conn {
    struct ps_driver *driver;
    ps_conn_id id;
    struct ps_conn *conn;
    enum ps_conn_kind kind;
    struct ps_list_node stranger; /* Until it has greeted. */
    struct ps_list_node dirty;    /* Something was queued for it. */
    struct ps_list_node paused;
    struct ps_slice payload;    /* Under way; own reference. */
    struct ps_buf *ring_memory; /* NULL: no ring. */
    struct ps_ring_agent ring;
    struct ps_list_node ringed;
    struct ps_list_node told; /* Something was put into its ring. */
    int thrown;               /* Why the payload under way is thrown away. */
    bool near;
    /* A further connection of the link that `first` is the first of; NULL
     * when that one is over. */
    bool joins;
    struct link_conn *first;
    struct ps_strand strand;
    /* The first one of a link between an agent and a server: who it is, and
     * on the side that dialled, how to get more. */
    struct ps_bundle bundle;
    struct ps_msg_hello who; /* Numbers only. */
    bool welcomed;
    bool several; /* There are more, or will be. */
    bool lent;    /* `payload` is the machine's own memory. */
    struct ps_parcel *hello;
    char *address;
    uint32_t joining; /* Dials under way. */
    struct ps_loop_timer join;
    ps_time join_wait;
};

struct dial {
    struct ps_list_node node;
    struct ps_driver *driver;
    struct ps_dial *dial; /* NULL: it could not even start. */
    uint64_t target;
    ps_conn_id joins; /* The first connection of its link; 0: it is one. */
    uint32_t peer_roles;
    int rc;
    int fd; /* Near: connected already; else -1. */
    char address[PS_ADDRESS_MAX + 1];
};

struct task {
    struct ps_worker_task task;
    struct ps_driver *driver;
    struct ps_compute *compute;
};

struct ps_driver {
    struct ps_driver_options opt;
    struct ps_map *conns;
    ps_conn_id last_id;
    uint32_t local_count;
    uint32_t stranger_count;
    uint32_t paused_count;
    uint32_t computing;
    struct ps_list strangers; /* The oldest first. */
    struct ps_list dirty;
    struct ps_list paused;
    struct ps_list ringed;
    struct ps_list told;
    struct ps_list dials;
    struct ps_list ended_dials; /* At once, to be told of later. */
    struct ps_effects fx;
    struct ps_loop_timer tick;  /* Wakes the loop; settle() does the rest. */
    struct ps_loop_timer grace; /* When closing. */
    bool stepping;
    bool stepped; /* Since paused connections were asked last. */
    bool asleep;  /* The rings say so. */
    bool fed;     /* Something has happened since settle() looked. */
    struct ps_spin spin;
    ps_time spin_until; /* 0: is not looking. */
    bool closing;
    int failure;
    void (*closed)(void *ctx);
    uint64_t arenas_freed; /* When peers were last told. */
    ps_time refusal_told;  /* When a refused connection was last logged. */
    struct ps_driver_stats gone; /* Sums of connections that are no more. */
};

static void feed(struct ps_driver *d, struct ps_event *ev);
static void start_dial(struct ps_driver *d, uint64_t target,
                       const char *address);
static void join_later(struct link_conn *c, bool failed);

/* ------------------------------------------------------------- effects */

static void parcel_done(void *ctx)
{
    ps_parcel_unref(ctx);
}

static void mark_dirty(struct link_conn *c)
{
    if (!ps_list_linked(&c->dirty)) {
        ps_list_push_back(&c->driver->dirty, &c->dirty);
    }
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
    before_sent(c, &msg, p);
    if (c->welcomed) {
        struct ps_strand *s = ps_bundle_choose(&c->bundle, c->conn, msg.seq,
                                               msg.ack, p);

        c = s != NULL ? PS_CONTAINER(s, struct link_conn, strand) : c;
    }
    struct ps_conn_frame frame = {
        .msg = &msg,
        .slices = p->slice,
        .slice_count = p->slice_count,
        .pass_fd = fd,
        .done = parcel_done,
        .ctx = ps_parcel_ref(p),
    };
    int rc = ps_conn_send(c->conn, &frame);

    if (rc != 0) {
        ps_parcel_unref(p);
        if (rc != PS_E_CLOSED && rc != PS_E_FULL) {
            ps_log(PS_LOG_ERROR, "message not sent code %s reason %s",
                   ps_msg_name(msg.code), ps_strerror(rc));
        }
        return;
    }
    if (msg.code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(c->conn, msg.welcome.protocol);
    }
    mark_dirty(c);
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
        mark_dirty(c);
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
    feed(d, &ev);
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

static void carry_out(struct ps_driver *d)
{
    for (uint32_t i = 0; i < d->fx.count; i++) {
        struct ps_fx *fx = &d->fx.items[i];

        switch (fx->type) {
        case PS_FX_SEND:
            send_parcel(d, fx);
            break;
        case PS_FX_DIAL:
            start_dial(d, fx->dial.target, fx->dial.address);
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
        case PS_FX_NOTE:
            ps_log(fx->note.level, "%s", fx->note.text);
            break;
        }
    }
    ps_effects_clear(&d->fx);
}

static void feed_at(struct ps_driver *d, struct ps_event *ev, ps_time now)
{
    int rc;

    if (d->closing || d->failure != 0) {
        return;
    }
    assert(!d->stepping);
    d->stepping = true;
    ev->now = now;
    rc = d->opt.machine.ops->step(d->opt.machine.self, ev, &d->fx);
    carry_out(d);
    d->stepping = false;
    d->stepped = true;
    d->fed = true;
    if (rc < 0) {
        d->failure = rc;
    }
}

static void feed(struct ps_driver *d, struct ps_event *ev)
{
    feed_at(d, ev, ps_loop_now(d->opt.loop));
}

/* --------------------------------------------------------- connections */

static void forget_payload(struct link_conn *c)
{
    ps_buf_unref(c->payload.buf);
    c->payload = (struct ps_slice){0};
    c->lent = false;
}

static void greeted(struct link_conn *c)
{
    if (ps_list_linked(&c->stranger)) {
        ps_list_remove(&c->stranger);
        c->driver->stranger_count--;
    }
}

static void resumed(struct link_conn *c)
{
    if (ps_list_linked(&c->paused)) {
        ps_list_remove(&c->paused);
        c->driver->paused_count--;
    }
}

/* Frames of one link can be under way at once here. The machine's own memory,
 * which it offers for the only copy of something, might then be written to by
 * an old copy that comes slowly while the next one is in it already. */
static void own_payload(struct link_conn *c)
{
    size_t len = c->payload.len;

    if (c->payload.buf->refs > 1) {
        ps_buf_unref(c->payload.buf);
        c->payload = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    }
}

static bool may_join(const struct link_conn *c)
{
    const struct ps_driver_options *opt = &c->driver->opt;

    return c->address != NULL &&
           (opt->link_connections > 1 ||
            (opt->link_connections == 0 && opt->movers != NULL));
}

/* How many connections a link should have. */
static uint32_t connections_wanted(const struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    const struct link_conn *c;
    uint32_t links = 0;

    if (d->opt.link_connections != 0) {
        return d->opt.link_connections;
    }
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        links += c->address != NULL;
    }
    uint64_t loops = d->opt.movers != NULL ? ps_movers_count(d->opt.movers) : 0;

    return links == 0 ? 1
                      : (uint32_t)ps_max_u64(1, (loops + links - 1) / links);
}

static int on_header(void *ctx, struct ps_conn *conn, const struct ps_msg *msg,
                     uint64_t len, void **ret_dst)
{
    struct link_conn *c = ctx;
    struct ps_driver *d = c->driver;
    const struct ps_machine *m = &d->opt.machine;
    int rc;

    (void)conn;
    if (d->closing || m->ops->payload == NULL) {
        return PS_E_CANCELED;
    }
    assert(c->payload.buf == NULL);
    if (c->joins && (c->first == NULL || msg->seq == 0)) {
        return PS_E_CANCELED;
    }
    rc = m->ops->payload(m->self, c->joins ? c->first->id : c->id, msg, len,
                         &c->payload);
    c->thrown = rc;
    if (rc == 0) {
        assert(c->payload.len == len);
        if (c->joins || c->several) {
            own_payload(c);
        } else {
            c->lent = c->payload.buf->refs > 1;
        }
        *ret_dst = ps_slice_data(&c->payload);
    }
    if (rc == PS_E_AGAIN && !ps_list_linked(&c->paused)) {
        ps_list_push_back(&d->paused, &c->paused);
        d->paused_count++;
    } else if (rc != PS_E_AGAIN) {
        resumed(c);
    }
    return rc;
}

/* A worker's memory. The machine never sees descriptors. */
static void take_region(struct link_conn *c, const struct ps_msg *msg)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = c->id};
    int fd = ps_conn_take_fd(c->conn);
    struct ps_buf *buf;
    const char *why;

    if (fd < 0) {
        ps_conn_close(c->conn, PS_E_PROTO, "l_region without a descriptor");
        return;
    }
    int rc = ps_local_map_shared(fd, msg->l_region.size, &buf, &why);

    if (rc != 0) {
        ps_conn_close(c->conn, rc, why);
        return;
    }
    ev.region.region = msg->l_region.region;
    ev.region.buf = buf;
    feed(c->driver, &ev);
    ps_buf_unref(buf);
}

/* --------------------------------------------------------------- rings */

static void take_ring(struct link_conn *c, const struct ps_msg *msg)
{
    int fd = ps_conn_take_fd(c->conn);
    const char *why;

    if (fd < 0) {
        ps_conn_close(c->conn, PS_E_PROTO, "l_ring without a descriptor");
        return;
    }
    if (c->ring_memory != NULL || msg->l_ring.size != ps_ring_bytes()) {
        close(fd);
        ps_conn_close(c->conn, PS_E_PROTO,
                      c->ring_memory != NULL ? "a second l_ring"
                                             : "l_ring of another size");
        return;
    }
    int rc = ps_local_map_shared(fd, msg->l_ring.size, &c->ring_memory, &why);

    if (rc != 0) {
        ps_conn_close(c->conn, rc, why);
        return;
    }
    ps_ring_agent_init(&c->ring, c->ring_memory->data);
    ps_list_push_back(&c->driver->ringed, &c->ringed);
}

static void forget_ring(struct link_conn *c)
{
    if (ps_list_linked(&c->told)) {
        ps_list_remove(&c->told);
    }
    if (ps_list_linked(&c->ringed)) {
        ps_list_remove(&c->ringed);
    }
    ps_buf_unref(c->ring_memory);
    c->ring_memory = NULL;
}

/* Operations that came before the next frame of a worker that has sent
 * `frames`. True when there were any. */
static bool take_ops(struct link_conn *c, uint64_t frames)
{
    struct ps_msg_l_op ops[TAKE_OPS];
    struct ps_event ev = {.type = PS_EV_OPS, .conn = c->id, .ops = {.op = ops}};
    /* Asking the clock for each would cost as much as taking it. */
    ps_time now = ps_loop_now(c->driver->opt.loop);
    uint32_t count = 0;
    int rc = 1;

    /* Who fills its ring all the time has others served in between. */
    while (count < PS_RING_OPS &&
           (rc = ps_ring_take_ops(&c->ring, frames, ops, TAKE_OPS)) > 0) {
        count += (uint32_t)rc;
        ev.ops.count = (uint32_t)rc;
        feed_at(c->driver, &ev, now);
    }
    if (rc < 0) {
        ps_conn_close(c->conn, rc, "an operation in the ring makes no sense");
        forget_ring(c);
    }
    return count > 0;
}

static bool take_rings(struct ps_driver *d)
{
    struct ps_list_node *n = ps_list_first(&d->ringed);
    bool any = false;

    while (n != NULL) {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, ringed);

        n = ps_list_next(&d->ringed, n);
        if (ps_conn_is_open(c->conn)) {
            any |= take_ops(c, ps_conn_frames(c->conn));
        }
    }
    return any;
}

static void awake(struct ps_driver *d)
{
    if (!d->asleep) {
        return;
    }
    d->asleep = false;
    PS_LIST_EACH(n, &d->ringed)
    {
        ps_ring_agent_awake(&PS_CONTAINER(n, struct link_conn, ringed)->ring);
    }
}

/* False: there is an operation in one of them. */
static bool fall_asleep(struct ps_driver *d)
{
    d->asleep = true;
    PS_LIST_EACH(n, &d->ringed)
    {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, ringed);

        if (ps_conn_is_open(c->conn) &&
            !ps_ring_agent_sleep(&c->ring, ps_conn_frames(c->conn))) {
            awake(d);
            return false;
        }
    }
    return true;
}

static void wake_told(struct ps_driver *d)
{
    static const struct ps_msg wake = {.code = PS_MSG_L_WAKE};
    const struct ps_conn_frame frame = {.msg = &wake, .pass_fd = -1};
    struct ps_list_node *n;

    while ((n = ps_list_pop(&d->told)) != NULL) {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, told);

        /* A connection that takes no frame is closing, which wakes, too. */
        if (ps_ring_wake_worker(&c->ring) &&
            ps_conn_send(c->conn, &frame) == 0) {
            mark_dirty(c);
        }
    }
}

static void deliver(struct link_conn *c, ps_conn_id id,
                    const struct ps_msg *msg, uint64_t len)
{
    struct ps_event ev = {.type = PS_EV_MSG, .conn = id};

    ev.msg.msg = msg;
    ev.msg.payload = len > 0 ? &c->payload : NULL;
    ev.msg.thrown = len > 0 ? c->thrown : 0;
    c->thrown = 0;
    feed(c->driver, &ev);
    forget_payload(c);
}

/* The link that a hello wants to join; NULL: there is none, or it is full. */
static struct link_conn *find_first(struct ps_driver *d,
                                    const struct link_conn *joins,
                                    const struct ps_msg_hello *m)
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        uint32_t count = 1;

        if (c->joins || !c->welcomed || !ps_conn_is_open(c->conn) ||
            c->near != joins->near || c->who.session != m->session ||
            c->who.instance != m->instance || c->who.node != m->node) {
            continue;
        }
        PS_LIST_EACH(n, &c->bundle.strands)
        {
            count++;
        }
        return count < PS_LINK_CONNECTIONS_MAX ? c : NULL;
    }
    return NULL;
}

/* A server's side: one that dialled belongs to a link that is there. */
static void join(struct link_conn *c, const struct ps_msg_hello *m)
{
    const struct ps_msg welcome = {
        .code = PS_MSG_WELCOME,
        .welcome = {.protocol = m->protocol < PS_PROTOCOL
                                    ? m->protocol
                                    : (uint16_t)PS_PROTOCOL,
                    .name = "",
                    .resumed = true,
                    .features = PS_FEATURE_JOIN}};
    const struct ps_conn_frame frame = {.msg = &welcome, .pass_fd = -1};
    struct ps_driver *d = c->driver;
    struct ps_event ev = {.type = PS_EV_CLOSED, .conn = c->id};

    if (d->opt.self != PS_ROLE_SERVER || m->protocol < PS_PROTOCOL_LEAST ||
        m->session == 0 || (c->first = find_first(d, c, m)) == NULL) {
        ps_conn_close(c->conn, PS_E_STALE,
                      "wants to join a link that is not there");
        return;
    }
    c->joins = true;
    ps_bundle_add(&c->first->bundle, &c->strand, c->conn);
    /* To the machine it is as if it had gone. */
    ev.closed.rc = PS_E_CLOSED;
    feed(d, &ev);
    if (ps_conn_send(c->conn, &frame) == 0) {
        ps_conn_set_protocol(c->conn, welcome.welcome.protocol);
        ps_bundle_ready(&c->first->bundle, &c->strand);
        mark_dirty(c);
        ps_log(PS_LOG_DEBUG, "connection joins peer=%s link=%s",
               ps_conn_peer(c->conn), ps_conn_peer(c->first->conn));
    }
}

static void on_strand(struct link_conn *c, const struct ps_msg *msg,
                      uint64_t len)
{
    if (!c->joins) {
        join(c, &msg->hello);
    } else if (c->first == NULL) {
        forget_payload(c); /* The link is over. */
    } else if (msg->code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(c->conn, msg->welcome.protocol < PS_PROTOCOL
                                          ? msg->welcome.protocol
                                          : (uint16_t)PS_PROTOCOL);
        c->first->join_wait = JOIN_FIRST;
        ps_bundle_ready(&c->first->bundle, &c->strand);
    } else if (msg->seq == 0) {
        ps_conn_close(c->conn, PS_E_PROTO,
                      "what is not sequenced came on a joined connection");
        forget_payload(c);
    } else {
        ps_bundle_acked(&c->first->bundle, msg->ack);
        deliver(c, c->first->id, msg, len);
    }
}

static void on_frame(void *ctx, struct ps_conn *conn, const struct ps_msg *msg,
                     uint64_t len)
{
    struct link_conn *c = ctx;

    greeted(c);
    if (c->joins || (msg->code == PS_MSG_HELLO &&
                     (msg->hello.features & PS_FEATURE_JOIN) != 0)) {
        on_strand(c, msg, len);
        return;
    }
    if (c->ring_memory != NULL) {
        /* What its worker did before it sent this. */
        (void)take_ops(c, ps_conn_frames(conn) - 1);
        if (!ps_conn_is_open(conn)) {
            return;
        }
    }
    if (msg->code == PS_MSG_L_REGION) {
        take_region(c, msg);
        return;
    }
    if (msg->code == PS_MSG_L_RING) {
        take_ring(c, msg);
        return;
    }
    if (msg->code == PS_MSG_L_WAKE) {
        return; /* We are awake; settle() looks at the rings. */
    }
    if (msg->code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(conn, msg->welcome.protocol < PS_PROTOCOL
                                       ? msg->welcome.protocol
                                       : (uint16_t)PS_PROTOCOL);
    }
    if (msg->code == PS_MSG_HELLO) {
        c->who = (struct ps_msg_hello){.instance = msg->hello.instance,
                                       .node = msg->hello.node,
                                       .session = msg->hello.session};
    }
    ps_bundle_acked(&c->bundle, msg->ack);
    deliver(c, c->id, msg, len);
    if (msg->code == PS_MSG_WELCOME && may_join(c) &&
        (msg->welcome.features & PS_FEATURE_JOIN) != 0) {
        c->welcomed = true;
        join_later(c, false);
    }
}

static void on_sent(void *ctx, struct ps_conn *conn, uint64_t queued)
{
    struct link_conn *c = ctx;
    struct ps_event ev = {.type = PS_EV_SENT, .conn = c->id};

    (void)conn;
    if (c->joins) {
        c = c->first;
        if (c == NULL || !ps_conn_is_open(c->conn)) {
            return;
        }
        ev.conn = c->id;
    }
    ev.sent.queued = ps_list_empty(&c->bundle.strands)
                         ? queued
                         : ps_bundle_queued(&c->bundle, c->conn);
    feed(c->driver, &ev);
}

static void add_stats(struct ps_driver_stats *sum, const struct ps_conn *conn)
{
    struct ps_conn_stats s;

    ps_conn_stats(conn, &s);
    sum->bytes_in += s.bytes_in;
    sum->bytes_out += s.bytes_out;
    sum->copied += s.copied;
    sum->near += s.near;
    sum->moved += s.moved;
    sum->reads += s.reads;
    sum->writes += s.writes;
}

static void maybe_closed(struct ps_driver *d)
{
    if (d->closing && ps_map_count(d->conns) == 0 && ps_list_empty(&d->dials) &&
        d->closed != NULL) {
        void (*closed)(void *ctx) = d->closed;

        d->closed = NULL;
        ps_loop_timer_set(d->opt.loop, &d->grace, PS_TIME_NEVER);
        ps_loop_timer_set(d->opt.loop, &d->tick, PS_TIME_NEVER);
        closed(d->opt.ctx);
    }
}

/* A joined connection is cut: the first one sends what it had. */
static void leave(struct link_conn *c)
{
    struct ps_driver *d = c->driver;
    struct link_conn *first = c->first;
    struct ps_carried lost;

    if (first != NULL && !d->closing && ps_conn_is_open(first->conn)) {
        while (ps_strand_next(&c->strand, &lost)) {
            struct ps_msg msg = *lost.parcel->msg;
            struct ps_conn_frame frame = {
                .msg = &msg,
                .slices = lost.parcel->slice,
                .slice_count = lost.parcel->slice_count,
                .pass_fd = -1,
                .done = parcel_done,
                .ctx = lost.parcel};

            msg.seq = lost.seq;
            msg.ack = first->bundle.ack;
            if (ps_conn_send(first->conn, &frame) != 0) {
                ps_parcel_unref(lost.parcel);
            }
        }
        mark_dirty(first);
        join_later(first, true);
    }
    ps_strand_fini(&c->strand);
}

/* With the first connection the others end; the link lives on by itself. */
static void end_bundle(struct link_conn *c)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&c->bundle.strands)) != NULL) {
        struct link_conn *s = PS_CONTAINER(n, struct link_conn, strand.node);

        s->first = NULL;
        ps_strand_fini(&s->strand);
        ps_conn_close(s->conn, PS_E_CLOSED, "its link has lost the first one");
    }
    ps_loop_timer_set(c->driver->opt.loop, &c->join, PS_TIME_NEVER);
    ps_parcel_unref(c->hello);
    ps_free(c->address);
}

static void on_closed(void *ctx, struct ps_conn *conn, int rc)
{
    struct link_conn *c = ctx;
    struct ps_driver *d = c->driver;
    struct ps_event ev = {.type = PS_EV_CLOSED, .conn = c->id};

    ps_log(rc == PS_E_CLOSED || d->closing ? PS_LOG_DEBUG : PS_LOG_WARNING,
           "connection closed peer=%s reason=\"%s\"", ps_conn_peer(conn),
           ps_conn_reason(conn));
    if (c->ring_memory != NULL) {
        /* The worker is gone, but did this before. */
        (void)take_ops(c, ps_conn_frames(conn));
        forget_ring(c);
    }
    add_stats(&d->gone, conn);
    (void)ps_map_take(d->conns, c->id);
    d->local_count -= c->kind == PS_CONN_LOCAL;
    greeted(c);
    resumed(c);
    if (ps_list_linked(&c->dirty)) {
        ps_list_remove(&c->dirty);
    }
    forget_payload(c);
    if (c->joins) {
        leave(c);
    } else {
        end_bundle(c);
    }
    bool joins = c->joins;

    ps_conn_free(conn);
    ps_free(c);
    ev.closed.rc = rc;
    if (!joins) {
        feed(d, &ev);
    }
    maybe_closed(d);
}

static const struct ps_conn_ops conn_ops = {
    .header = on_header,
    .frame = on_frame,
    .sent = on_sent,
    .closed = on_closed,
};

static void refuse(struct ps_driver *d, int fd, const char *peer,
                   const char *why)
{
    ps_time now = ps_loop_now(d->opt.loop);

    close(fd);
    d->gone.refused++;
    /* A flood of them must not flood the log. */
    if (d->refusal_told == 0 || now - d->refusal_told >= PS_SECONDS(1)) {
        d->refusal_told = now;
        ps_log(PS_LOG_WARNING, "connection refused peer=%s reason=\"%s\"", peer,
               why);
    }
}

/* Who has not greeted for longest makes room. */
static void make_room(struct ps_driver *d)
{
    PS_LIST_EACH(n, &d->strangers)
    {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, stranger);

        if (d->stranger_count < d->opt.strangers_max) {
            return;
        }
        if (ps_conn_is_open(c->conn)) {
            /* It stays in the list until it is closed. */
            ps_conn_close(c->conn, PS_E_FULL,
                          "too many connections without a greeting");
            return;
        }
    }
}

struct opening {
    int fd;
    uint32_t peer_roles;
    const char *peer;
    bool near;
    const char *address;     /* Of a server; NULL where no more can be had. */
    struct link_conn *first; /* Of the link that it joins. */
};

static void say_join(struct link_conn *c)
{
    struct ps_msg msg = *c->first->hello->msg;
    const struct ps_conn_frame frame = {.msg = &msg, .pass_fd = -1};

    msg.hello.features |= PS_FEATURE_JOIN;
    if (ps_conn_send(c->conn, &frame) == 0) {
        mark_dirty(c);
    }
}

/* `ev` is the OPEN event without what is known here. */
static void open_conn(struct ps_driver *d, const struct opening *o,
                      struct ps_event *ev)
{
    struct link_conn *c = ps_calloc(1, sizeof(*c));
    enum ps_conn_kind kind = ev->open.kind;
    struct ps_conn_options opt = {
        .loop = d->opt.loop,
        .fd = o->fd,
        .peer = o->peer,
        .self = d->opt.self,
        .peer_roles = o->peer_roles,
        .dialled = kind == PS_CONN_DIALLED,
        .local = kind == PS_CONN_LOCAL,
        .near = o->near,
        .arenas = d->opt.arenas,
        .movers = d->opt.movers,
        .receive_buffer = d->opt.receive_buffer,
        .send_buffer = d->opt.send_buffer,
        .limits = d->opt.limits,
        .ops = &conn_ops,
        .ctx = c,
    };
    int rc = ps_conn_open(&opt, &c->conn);

    if (rc == 0 && o->near && d->opt.arenas != NULL) {
        ps_arenas_want(d->opt.arenas);
    }
    if (rc != 0) {
        ps_free(c);
        refuse(d, o->fd, o->peer, ps_strerror(rc));
        if (o->first != NULL) {
            join_later(o->first, true);
        } else if (kind == PS_CONN_DIALLED) {
            struct ps_event failed = {.type = PS_EV_DIAL_FAILED};

            failed.dial_failed.target = ev->open.target;
            failed.dial_failed.rc = rc;
            feed(d, &failed);
        }
        return;
    }
    c->driver = d;
    c->kind = kind;
    c->near = o->near;
    c->join_wait = JOIN_FIRST;
    ps_bundle_init(&c->bundle);
    if (o->address != NULL) {
        c->address = ps_strdup(o->address);
        c->several = d->opt.link_connections > 1;
    }
    c->id = ++d->last_id;
    ps_map_put(d->conns, c->id, c);
    d->local_count += kind == PS_CONN_LOCAL;
    if (kind != PS_CONN_DIALLED) {
        make_room(d);
        ps_list_push_back(&d->strangers, &c->stranger);
        d->stranger_count++;
    }
    ps_log(PS_LOG_DEBUG, "connection open peer=%s", o->peer);
    if (o->first != NULL) {
        c->joins = true;
        c->first = o->first;
        ps_bundle_add(&c->first->bundle, &c->strand, c->conn);
        say_join(c);
        return;
    }
    ev->type = PS_EV_OPEN;
    ev->conn = c->id;
    ev->open.peer = ps_conn_peer(c->conn);
    feed(d, ev);
}

static uint32_t callers(enum ps_role self)
{
    return self == PS_ROLE_SCHED
               ? 1u << PS_ROLE_SERVER | 1u << PS_ROLE_AGENT | 1u << PS_ROLE_CTL
               : 1u << PS_ROLE_AGENT;
}

void ps_driver_accept(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    char peer[PS_CONN_PEER_MAX];

    (void)getpeername(fd, (struct sockaddr *)&sa, &len);
    ps_addr_print((struct sockaddr *)&sa, peer, sizeof(peer));
    if (d->closing) {
        close(fd);
    } else if (ps_map_count(d->conns) - d->local_count >=
               d->opt.connections_max) {
        refuse(d, fd, peer, "too many connections");
    } else {
        open_conn(d,
                  &(struct opening){.fd = fd,
                                    .peer_roles = callers(d->opt.self),
                                    .peer = peer},
                  &ev);
    }
}

void ps_driver_accept_near(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct ps_local_peer who;
    char peer[PS_CONN_PEER_MAX];

    if (d->closing || ps_local_peer(fd, &who) != 0) {
        close(fd);
        return;
    }
    snprintf(peer, sizeof(peer), "host:uid=%u,pid=%u", who.uid, who.pid);
    if (!ps_near_trusts(fd)) {
        refuse(d, fd, peer, "an agent of another user");
    } else if (ps_map_count(d->conns) - d->local_count >=
               d->opt.connections_max) {
        refuse(d, fd, peer, "too many connections");
    } else {
        open_conn(d,
                  &(struct opening){.fd = fd,
                                    .peer_roles = callers(d->opt.self),
                                    .peer = peer,
                                    .near = true},
                  &ev);
    }
}

void ps_driver_accept_local(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_LOCAL}};
    struct ps_local_peer who;
    char peer[PS_CONN_PEER_MAX];
    int rc = ps_local_peer(fd, &who);

    if (rc != 0 || d->closing) {
        close(fd);
        return;
    }
    snprintf(peer, sizeof(peer), "local:uid=%u,pid=%u", who.uid, who.pid);
    if (d->local_count >= d->opt.local_max) {
        refuse(d, fd, peer, "too many local connections");
        return;
    }
    ev.open.uid = who.uid;
    ev.open.pid = who.pid;
    open_conn(d,
              &(struct opening){
                  .fd = fd, .peer_roles = 1u << PS_ROLE_WORKER, .peer = peer},
              &ev);
}

/* --------------------------------------------------------------- dials */

static void dial_failed(struct ps_driver *d, uint64_t target, int rc)
{
    struct ps_event ev = {.type = PS_EV_DIAL_FAILED};

    ev.dial_failed.target = target;
    ev.dial_failed.rc = rc;
    feed(d, &ev);
}

/* A further connection for a link. */
static void join_dialled(struct ps_driver *d, ps_conn_id id, int fd, int rc,
                         const char *detail)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    struct link_conn *first = ps_map_get(d->conns, id);

    if (first != NULL) {
        first->joining--;
    }
    if (first == NULL || !ps_conn_is_open(first->conn)) {
        if (rc == 0) {
            close(fd);
        }
        return;
    }
    if (rc != 0) {
        join_later(first, true);
        return;
    }
    open_conn(d,
              &(struct opening){.fd = fd,
                                .peer_roles = 1u << PS_ROLE_SERVER,
                                .peer = detail,
                                .first = first},
              &ev);
}

static void dialled(void *ctx, int fd, int rc, const char *detail)
{
    struct dial *dial = ctx;
    struct ps_driver *d = dial->driver;
    uint64_t target = dial->target;
    uint32_t roles = dial->peer_roles;
    ps_conn_id joins = dial->joins;
    char address[PS_ADDRESS_MAX + 1];

    ps_str_copy(address, sizeof(address), dial->address);
    ps_list_remove(&dial->node);
    ps_free(dial);
    if (d->closing) {
        if (fd >= 0) {
            close(fd);
        }
        maybe_closed(d);
        return;
    }
    if (joins != 0) {
        join_dialled(d, joins, fd, rc, detail);
        return;
    }
    if (rc != 0) {
        ps_log(PS_LOG_DEBUG, "dial failed reason=\"%s\"", detail);
        dial_failed(d, target, rc);
        return;
    }
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};

    ev.open.target = target;
    if (d->opt.same_host && (roles & 1u << PS_ROLE_SERVER) != 0) {
        ps_log(PS_LOG_INFO, "server reached by TCP address %s", detail);
    }
    open_conn(d,
              &(struct opening){
                  .fd = fd,
                  .peer_roles = roles,
                  .peer = detail,
                  .address = roles == 1u << PS_ROLE_SERVER ? address : NULL},
              &ev);
}

static void join_due(struct ps_loop_timer *t)
{
    struct link_conn *c = PS_CONTAINER(t, struct link_conn, join);
    struct ps_driver *d = c->driver;
    uint32_t wanted = connections_wanted(d);
    uint32_t count = 1 + c->joining;

    PS_LIST_EACH(n, &c->bundle.strands)
    {
        count++;
    }
    if (d->closing || !ps_conn_is_open(c->conn)) {
        return;
    }
    c->several = c->several || count < wanted;
    if (count < wanted && c->lent) {
        join_later(c, true); /* The last one that comes alone. */
        return;
    }
    for (; count < wanted; count++) {
        struct dial *dial = ps_calloc(1, sizeof(*dial));

        dial->driver = d;
        dial->joins = c->id;
        dial->fd = -1;
        if (ps_dial_start(d->opt.loop, c->address, d->opt.dial_timeout, dialled,
                          dial, &dial->dial) != 0) {
            ps_free(dial);
            join_later(c, true);
            return;
        }
        c->joining++;
        ps_list_push_back(&d->dials, &dial->node);
    }
}

static void join_later(struct link_conn *c, bool failed)
{
    ps_time at = ps_loop_now(c->driver->opt.loop);

    if (!may_join(c)) {
        return;
    }
    if (failed) {
        at = ps_time_add(at, c->join_wait);
        c->join_wait = ps_time_min(c->join_wait * 2, JOIN_MAX);
    }
    c->join.due = join_due;
    ps_loop_timer_set(c->driver->opt.loop, &c->join, at);
}

/* A server on this host; false: it has to be dialled. */
static bool dial_near(struct dial *dial, const char *address)
{
    int rc = ps_near_dial(address, &dial->fd);

    if (rc == PS_E_PERM) {
        ps_log(PS_LOG_WARNING,
               "server not reached through this host address %s reason "
               "\"it runs as another user\"",
               address);
    }
    if (rc != 0) {
        return false;
    }
    ps_str_copy(dial->address, sizeof(dial->address), address);
    return true;
}

static void start_dial(struct ps_driver *d, uint64_t target,
                       const char *address)
{
    struct dial *dial = ps_calloc(1, sizeof(*dial));
    bool sched = d->opt.scheduler != NULL &&
                 strcmp(address, d->opt.scheduler) == 0;

    dial->driver = d;
    dial->target = target;
    dial->fd = -1;
    dial->peer_roles = 1u << (sched ? PS_ROLE_SCHED : PS_ROLE_SERVER);
    if (!sched && d->opt.same_host && dial_near(dial, address)) {
        ps_list_push_back(&d->ended_dials, &dial->node);
        return;
    }
    ps_str_copy(dial->address, sizeof(dial->address), address);
    dial->rc = ps_dial_start(d->opt.loop, address, d->opt.dial_timeout, dialled,
                             dial, &dial->dial);
    ps_list_push_back(dial->rc == 0 ? &d->dials : &d->ended_dials, &dial->node);
}

/* ---------------------------------------------------------------- loop */

static bool tell_ended_dials(struct ps_driver *d)
{
    struct ps_list_node *n = ps_list_pop(&d->ended_dials);

    if (n == NULL) {
        return false;
    }
    struct dial *dial = PS_CONTAINER(n, struct dial, node);
    uint64_t target = dial->target;
    int rc = dial->rc;

    if (dial->fd >= 0) {
        struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
        char peer[PS_CONN_PEER_MAX];

        ps_log(PS_LOG_INFO, "server reached on this host address %s",
               dial->address);
        snprintf(peer, sizeof(peer), "host:%s", dial->address);
        ev.open.target = target;
        open_conn(d,
                  &(struct opening){.fd = dial->fd,
                                    .peer_roles = dial->peer_roles,
                                    .peer = peer,
                                    .near = true},
                  &ev);
        ps_free(dial);
        return true;
    }
    ps_free(dial);
    dial_failed(d, target, rc);
    return true;
}

static bool tick_if_due(struct ps_driver *d)
{
    const struct ps_machine *m = &d->opt.machine;
    struct ps_event ev = {.type = PS_EV_TICK};

    if (m->ops->deadline(m->self) > ps_loop_now(d->opt.loop)) {
        return false;
    }
    feed(d, &ev);
    return true;
}

static bool flush_dirty(struct ps_driver *d)
{
    struct ps_list_node *n;
    struct ps_list now;
    bool any = false;

    /* What steps below make dirty again waits for the next turn. */
    ps_list_init(&now);
    while ((n = ps_list_pop(&d->dirty)) != NULL) {
        ps_list_push_back(&now, n);
    }
    while ((n = ps_list_pop(&now)) != NULL) {
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, dirty);

        if (ps_conn_flush(c->conn) && ps_conn_is_open(c->conn)) {
            on_sent(c, c->conn, ps_conn_queued(c->conn));
            any = true;
        }
    }
    return any;
}

/* Peers that map arenas keep their memory until they hear. */
static void tell_freed(struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    if (d->opt.arenas == NULL ||
        d->arenas_freed == ps_arenas_freed(d->opt.arenas)) {
        return;
    }
    d->arenas_freed = ps_arenas_freed(d->opt.arenas);
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        if (ps_conn_tell_freed(c->conn)) {
            mark_dirty(c);
        }
    }
}

/* Memory may have come free with any step. */
static bool ask_paused(struct ps_driver *d)
{
    uint32_t count = d->paused_count;

    if (!d->stepped || count == 0) {
        return false;
    }
    d->stepped = false;
    while (count-- > 0) {
        struct ps_list_node *n = ps_list_first(&d->paused);

        if (n == NULL) {
            break;
        }
        struct link_conn *c = PS_CONTAINER(n, struct link_conn, paused);

        /* To the end of the line, so that each has its turn. */
        ps_list_remove(n);
        ps_list_push_back(&d->paused, n);
        ps_conn_resume(c->conn);
    }
    return d->stepped;
}

static bool settle_once(struct ps_driver *d)
{
    bool any = tell_ended_dials(d);

    any |= take_rings(d);
    if (d->opt.worker != NULL) {
        any |= ps_worker_run_small(d->opt.worker);
    }
    any |= tick_if_due(d);
    any |= ask_paused(d);
    wake_told(d);
    tell_freed(d);
    any |= flush_dirty(d);
    return any;
}

/* True: look once more instead of sleeping. */
static bool spins(struct ps_driver *d)
{
    ps_time now = ps_loop_now(d->opt.loop);
    bool fed = d->fed;
    bool crowded = false;

    d->fed = false;
    if (fed) {
        ps_time budget;

        if (d->spin_until != 0) {
            ps_spin_ended(&d->spin, true, false);
        }
        budget = ps_spin_budget(&d->spin);
        d->spin_until = budget > 0 ? now + budget : 0;
        return budget > 0;
    }
    if (d->spin_until == 0) {
        return false;
    }
    if (now < d->spin_until) {
        (void)sched_yield();
        crowded = ps_spin_is_crowded(&d->spin, now, ps_loop_now(d->opt.loop));
    }
    if (now >= d->spin_until || crowded) {
        ps_spin_ended(&d->spin, false, crowded);
        d->spin_until = 0;
    }
    return d->spin_until != 0;
}

static bool settle(void *ctx)
{
    struct ps_driver *d = ctx;
    const struct ps_machine *m = &d->opt.machine;
    bool more = true;

    awake(d);
    for (int i = 0; i < ROUNDS_MAX && more; i++) {
        more = !d->closing && d->failure == 0 && settle_once(d);
    }
    if (d->closing) {
        (void)flush_dirty(d);
        return false;
    }
    if (d->failure != 0) {
        d->opt.failed(d->opt.ctx, d->failure);
        return false;
    }
    more = more || spins(d) || !fall_asleep(d);
    if (!more) {
        ps_loop_timer_set(d->opt.loop, &d->tick, m->ops->deadline(m->self));
    }
    if (d->opt.settled != NULL) {
        d->opt.settled(d->opt.ctx);
    }
    return more;
}

static void tick_due(struct ps_loop_timer *t)
{
    (void)t;
}

static void cut_all(struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        ps_conn_close(c->conn, PS_E_CANCELED, "daemon ends");
    }
}

static void grace_over(struct ps_loop_timer *t)
{
    struct ps_driver *d = PS_CONTAINER(t, struct ps_driver, grace);

    cut_all(d);
    maybe_closed(d);
}

struct ps_driver *ps_driver_new(const struct ps_driver_options *opt)
{
    struct ps_driver *d = ps_calloc(1, sizeof(*d));

    d->opt = *opt;
    d->opt.connections_max = opt->connections_max != 0 ? opt->connections_max
                                                       : 4096;
    d->opt.local_max = opt->local_max != 0 ? opt->local_max : PS_LOCAL_MAX;
    d->opt.strangers_max = opt->strangers_max != 0 ? opt->strangers_max : 64;
    d->opt.dial_timeout = opt->dial_timeout != 0 ? opt->dial_timeout
                                                 : PS_SECONDS(10);
    d->conns = ps_map_new();
    ps_list_init(&d->strangers);
    ps_list_init(&d->dirty);
    ps_list_init(&d->paused);
    ps_list_init(&d->ringed);
    ps_list_init(&d->told);
    ps_spin_init(&d->spin, opt->spin);
    ps_list_init(&d->dials);
    ps_list_init(&d->ended_dials);
    ps_effects_init(&d->fx);
    d->tick.due = tick_due;
    d->grace.due = grace_over;
    ps_loop_set_hook(opt->loop, settle, d);
    return d;
}

void ps_driver_close(struct ps_driver *d, void (*closed)(void *ctx))
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;
    struct ps_list_node *n;

    assert(!d->stepping);
    if (d->closing) {
        cut_all(d); /* The second time in earnest. */
        return;
    }
    d->closing = true;
    d->closed = closed;
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        ps_conn_finish(c->conn);
    }
    PS_LIST_EACH(node, &d->dials)
    {
        ps_dial_cancel(PS_CONTAINER(node, struct dial, node)->dial);
    }
    while ((n = ps_list_pop(&d->ended_dials)) != NULL) {
        struct dial *dial = PS_CONTAINER(n, struct dial, node);

        if (dial->fd >= 0) {
            close(dial->fd);
        }
        ps_free(dial);
    }
    /* When nothing is open it comes at once, but not inside. */
    bool open = ps_map_count(d->conns) > 0 || !ps_list_empty(&d->dials);

    ps_loop_timer_set(d->opt.loop, &d->grace,
                      ps_loop_now(d->opt.loop) + (open ? CLOSE_GRACE : 0));
}

void ps_driver_free(struct ps_driver *d)
{
    if (d == NULL) {
        return;
    }
    assert(ps_map_count(d->conns) == 0 && d->computing == 0);
    ps_loop_set_hook(d->opt.loop, NULL, NULL);
    ps_effects_fini(&d->fx);
    ps_map_free(d->conns);
    ps_free(d);
}

void ps_driver_drain(struct ps_driver *d)
{
    struct ps_event ev = {.type = PS_EV_DRAIN};

    feed(d, &ev);
}

void ps_driver_loops_grown(struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    struct link_conn *c;

    while (d->opt.link_connections == 0 &&
           (c = ps_map_next(d->conns, &at)) != NULL) {
        if (c->welcomed && !c->joins) {
            join_later(c, false);
        }
    }
}

void ps_driver_shutdown(struct ps_driver *d)
{
    struct ps_event ev = {.type = PS_EV_SHUTDOWN};

    feed(d, &ev);
}

static uint64_t queued(const struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    const struct link_conn *c;
    uint64_t sum = 0;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        sum += ps_conn_queued(c->conn);
    }
    return sum;
}

bool ps_driver_is_quiet(const struct ps_driver *d)
{
    return d->computing == 0 && queued(d) == 0;
}

void ps_driver_stats(const struct ps_driver *d, struct ps_driver_stats *ret)
{
    struct ps_map_cursor at = {0};
    const struct link_conn *c;
    struct ps_driver_stats s = d->gone;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        add_stats(&s, c->conn);
    }
    s.connections = (uint32_t)ps_map_count(d->conns);
    s.strangers = d->stranger_count;
    s.paused = d->paused_count;
    s.computing = d->computing;
    s.queued = queued(d);
    *ret = s;
}

void ps_driver_dump(const struct ps_driver *d)
{
    static const char *const kinds[] = {
        [PS_CONN_DIALLED] = "dialled",
        [PS_CONN_ACCEPTED] = "accepted",
        [PS_CONN_LOCAL] = "local",
    };
    struct ps_map_cursor at = {0};
    const struct link_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        struct ps_conn_stats s;

        ps_conn_stats(c->conn, &s);
        ps_log(PS_LOG_NOTICE,
               "state connection peer=%s kind=%s greeted=%d paused=%d "
               "queued=%llu in=%llu out=%llu",
               ps_conn_peer(c->conn), kinds[c->kind],
               ps_conn_is_greeted(c->conn), ps_conn_is_paused(c->conn),
               (unsigned long long)ps_conn_queued(c->conn),
               (unsigned long long)s.bytes_in, (unsigned long long)s.bytes_out);
    }
}
