/* SPDX-License-Identifier: Apache-2.0 */
/* The network of the simulated cluster: connections, the frames on them, and
 * the links with several connections, as lib/driver has them. */
#include "support/world_internal.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "proto/frame.h"
#include "proto/msg_codec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Frames on their way to one end of a TCP connection, or stalled there, at
 * which the sender's kernel takes no more. */
#define WINDOW          64u
/* Unread frames of an end with which a payload may be slow. */
#define SLOW_BEFORE_MAX 16u

void world_frame_unref(struct wframe *f)
{
    if (f != NULL && --f->refs == 0) {
        ps_free(f->bytes);
        ps_free(f);
    }
}

static void queue_insert(struct wframe_queue *q, uint32_t at, struct wframe *f)
{
    q->frame = ps_realloc(q->frame, (q->count + 1) * sizeof(struct wframe *));
    memmove(q->frame + at + 1, q->frame + at,
            (q->count - at) * sizeof(struct wframe *));
    q->frame[at] = f;
    q->count++;
    f->refs++;
}

/* Removes the first frame. The caller owns its reference. */
static struct wframe *queue_pop(struct wframe_queue *q)
{
    struct wframe *f = q->frame[0];

    q->count--;
    memmove(q->frame, q->frame + 1, q->count * sizeof(struct wframe *));
    return f;
}

static void queue_clear(struct wframe_queue *q)
{
    while (q->count > 0) {
        world_frame_unref(queue_pop(q));
    }
}

/* Sockets of workers and tools are no connections of links. */
static bool is_local(const struct wconn *c)
{
    return c->node[1] == NULL;
}

/* Connection to which a path of `end` belongs. */
static struct wconn *conn_of_path(struct world *w, const struct ps_path *p)
{
    return world_conn(w, p->id / 2);
}

/* -------------------------------------------------------------- connections */

void world_close_conn(struct world *w, struct wconn *c, ps_time delay)
{
    if (c->cut) {
        return;
    }
    c->cut = true; /* Frames in flight are lost. */
    for (uint32_t end = 0; end < 2; end++) {
        struct wevent *e = world_event(
            w, WE_CLOSE, w->now + world_delay(w, delay, PS_MICROS(200)));

        e->conn = c->id;
        e->end = end;
    }
}

/* Closes the connection; frames in flight still arrive. */
static void close_gracefully(struct world *w, struct wconn *c)
{
    ps_time at = w->now + PS_MILLIS(1);

    if (c->cut || c->closing) {
        return;
    }
    c->closing = true;
    for (uint32_t end = 0; end < 2; end++) {
        at = ps_max_u64(at, c->kernel_last[end] + PS_MILLIS(1));
        at = ps_max_u64(at, c->local_last[end] + 1);
    }
    for (uint32_t end = 0; end < 2; end++) {
        struct wevent *e = world_event(w, WE_CLOSE,
                                       at + world_delay(w, 0, PS_MICROS(200)));

        e->conn = c->id;
        e->end = end;
    }
}

void world_finish_conn(struct world *w, struct wnode *n, const struct ps_fx *f)
{
    struct wconn *c = world_conn(w, f->close.conn / 2);

    if (c == NULL) {
        return;
    }
    if (f->close.rc != 0) {
        world_close_conn(w, c, 0);
        return;
    }
    c->ended[f->close.conn % 2] = true;
    close_gracefully(w, c);
    ps_path_finish(&c->path[f->close.conn % 2], &n->fx);
}

void world_conn_free(struct wconn *c)
{
    for (uint32_t end = 0; end < 2; end++) {
        world_forget_end(c, end);
        queue_clear(&c->parked[end]);
        ps_free(c->parked[end].frame);
        ps_free(c->stalled[end].frame);
        ps_free(c->carried[end]);
    }
    ps_free(c);
}

struct wconn *world_conn_new(struct world *w, struct wnode *a, struct wnode *b)
{
    struct wconn *c = ps_calloc(1, sizeof(*c));

    c->id = ++w->next_conn;
    c->node[0] = a;
    c->node[1] = b;
    ps_map_put(w->conns, c->id, c);
    return c;
}

void world_accepted(struct world *w, struct wconn *c)
{
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = c->id * 2 + 1};

    ev.open.kind = PS_CONN_ACCEPTED;
    ev.open.is_by_reference = c->id % 2 == 0;
    ev.open.peer = c->node[0]->name;
    world_output_add(c, 1);
    c->pre_handshake.id = ev.conn;
    c->pre_handshake.source = (uint64_t)(c->node[0] - w->node);
    ps_pre_handshake_add(&c->node[1]->pre_handshake, &c->pre_handshake,
                         &c->node[1]->fx);
    check_pre_handshake(w, c->node[1]);
    world_step(w, c->node[1], &ev);
}

/* The dial of a subflow led to `c`; NULL: it failed. */
static void subflow_dialled(struct world *w, const struct wevent *e,
                            struct wconn *c)
{
    struct wconn *first = world_conn(w, e->subflow_of / 2);
    struct ps_path *main = first != NULL ? &first->path[0] : NULL;

    if (c == NULL) {
        if (main != NULL) {
            ps_path_dial_failed(main, w->now);
        }
    } else if (main == NULL ||
               !ps_path_join(&c->path[0], c->id * 2, main, &e->node->fx)) {
        world_close_conn(w, c, 0);
    }
    world_apply(w, e->node);
}

void world_connect(struct world *w, struct wevent *e)
{
    const char *colon = strchr(e->address, ':');
    struct wnode *to = colon == NULL
                           ? NULL
                           : world_node_named(w, e->address,
                                              (size_t)(colon - e->address));
    struct ps_event ev = {.type = PS_EV_DIAL_FAILED};
    char pulse[sizeof(e->node->name) + 2];
    struct wconn *c;

    if (to == NULL || !to->alive ||
        world_is_split(w, world_node_index(w, e->node),
                       world_node_index(w, to))) {
        if (e->subflow_of != 0) {
            subflow_dialled(w, e, NULL);
            return;
        }
        ev.dial_failed.target = e->number;
        ev.dial_failed.rc = PS_E_UNREACH;
        world_step(w, e->node, &ev);
        return;
    }
    c = world_conn_new(w, e->node, to);
    c->open[0] = true;
    c->open[1] = true;
    world_output_add(c, 0);
    ps_path_open(&c->path[1], &to->multipath, c->id * 2 + 1, NULL);
    if (world_is_asleep(w, to)) { /* The kernel accepts the connection. */
        struct wevent *open = world_event(w, WE_OPEN, to->wakes_at);

        open->node = to;
        open->incarnation = to->incarnation;
        open->conn = c->id;
    } else {
        world_accepted(w, c);
    }
    if (e->subflow_of != 0) {
        subflow_dialled(w, e, c);
        return;
    }
    ps_path_open(&c->path[0], &e->node->multipath, c->id * 2,
                 to->role == PS_ROLE_SERVER ? e->address : NULL);
    ev = (struct ps_event){.type = PS_EV_OPEN, .conn = c->id * 2};
    ev.open.kind = PS_CONN_DIALLED;
    ev.open.target = e->number;
    ev.open.is_by_reference = c->id % 2 == 0;
    ev.open.peer = to->name;
    snprintf(pulse, sizeof(pulse), "%s:1", e->node->name);
    ev.open.liveness_address = e->node->role == PS_ROLE_AGENT ? pulse : NULL;
    world_step(w, e->node, &ev);
}

/* ------------------------------------------------------------------- frames */

static bool is_handshake(uint8_t code)
{
    return code == PS_MSG_HELLO || code == PS_MSG_WELCOME ||
           code == PS_MSG_REJECT;
}

static void schedule_delivery(struct world *w, struct wconn *c, uint32_t to,
                              struct wframe *f, ps_time at)
{
    struct wevent *e = world_event(w, WE_DELIVER, at);

    e->conn = c->id;
    e->end = to;
    e->frame = f;
    f->refs++;
    c->unread[to]++;
}

static bool is_held(const struct world *w, const struct wconn *c, uint32_t from,
                    uint8_t code)
{
    for (uint32_t i = 0; i < w->hold_count; i++) {
        const struct whold *h = &w->hold[i];

        if (h->from == c->node[from] && h->to == c->node[1 - from] &&
            h->code == code) {
            return true;
        }
    }
    return false;
}

/* Sends a frame over the network, which may lose, delay or duplicate it. */
static void transmit_frame(struct world *w, struct wconn *c, uint32_t from,
                           struct wframe *f)
{
    uint32_t to = 1 - from;
    ps_time at = w->now + world_delay(w, PS_MICROS(50), PS_MICROS(400));

    if (is_handshake(f->bytes[3])) {
        at = ps_max_u64(at, c->fence[from]);
        c->fence[from] = at; /* No later frame overtakes it. */
        schedule_delivery(w, c, to, f, at);
        return;
    }
    if (is_held(w, c, from, f->bytes[3])) {
        schedule_delivery(w, c, to, f, w->now + PS_MICROS(500));
        return;
    }
    if ((w->no_witness && f->bytes[3] == PS_MSG_PING_ACK) ||
        world_chance(w, w->opt.faults.loss)) {
        return;
    }
    if (world_chance(w, w->opt.faults.reorder)) {
        at += world_delay(w, PS_MICROS(500), PS_MILLIS(20));
    }
    at = ps_max_u64(at, c->fence[from]);
    schedule_delivery(w, c, to, f, at);
    if (world_chance(w, w->opt.faults.duplicate)) {
        schedule_delivery(w, c, to, f, at + world_delay(w, 0, PS_MILLIS(5)));
    }
}

/* Queues a frame at `end`. An urgent one goes ahead of the queue, but for a
 * handshake. */
static void queue_frame(struct world *w, struct wconn *c, uint32_t end,
                        struct wframe *frame, bool is_urgent)
{
    ps_time wait = world_delay(w, PS_MICROS(1), PS_MICROS(20)) +
                   PS_NANOS(frame->len / 4);
    ps_time at = w->now + wait;
    struct wevent *e;

    if (is_urgent) {
        at = ps_max_u64(at, c->kernel_handshake[end] + 1);
        w->overtakes += at < c->kernel_last[end];
    } else {
        /* The kernel takes the frames of a connection in order. */
        at = ps_max_u64(at, c->kernel_last[end] + 1);
        c->kernel_last[end] = at;
    }
    if (is_handshake(frame->bytes[3])) {
        c->kernel_handshake[end] = at;
    }
    c->queued[end] += frame->len;
    c->path[end].queued = c->queued[end];
    e = world_event(w, WE_KERNEL, at);
    e->conn = c->id;
    e->end = end;
    e->frame = frame;
    e->is_urgent = is_urgent;
    world_output_update(w, c, end);
}

/* Encodes `m` with the payload of `p` (NULL: none), and queues the frame. */
static void send_frame(struct world *w, struct wconn *c, uint32_t end,
                       const struct ps_msg *m, const struct ps_packet *p,
                       bool is_urgent)
{
    uint64_t payload_len = p != NULL ? p->payload_len : 0;
    size_t cap = ps_msg_encoded_bound(m);
    struct wframe *frame = ps_calloc(1, sizeof(*frame));

    if (c->cut || c->closing) {
        ps_free(frame);
        return;
    }
    frame->refs = 1;
    frame->bytes = ps_alloc(cap + payload_len);
    if (ps_msg_encode(m, PS_PROTOCOL, payload_len, frame->bytes, cap,
                      &frame->len) != 0) {
        world_fail(w, "%s: %s cannot be encoded", c->node[end]->name,
                   ps_msg_name(m->code));
        world_frame_unref(frame);
        return;
    }
    for (uint32_t i = 0; p != NULL && i < p->slice_count; i++) {
        memcpy(frame->bytes + frame->len, ps_slice_data(&p->slices[i]),
               p->slices[i].len);
        frame->len += p->slices[i].len;
    }
    queue_frame(w, c, end, frame, is_urgent);
}

/* Numbers that a subflow has carried, for check_resent(). */
static void note_carried(struct wconn *c, uint32_t end, uint64_t seq)
{
    uint32_t count = c->carried_count[end]++;

    c->carried[end] = ps_realloc(c->carried[end],
                                 (count + 1) * sizeof(*c->carried[end]));
    c->carried[end][count] = seq;
}

void world_send(struct world *w, struct wnode *n, const struct ps_fx *f)
{
    struct wconn *c = world_conn(w, f->send.conn / 2);
    uint32_t end = (uint32_t)(f->send.conn % 2);
    struct ps_packet *p = f->send.packet;
    struct ps_path_choice choice = {.path = NULL};
    struct ps_msg m = *p->msg;

    if (c == NULL || c->node[end] != n) {
        world_fail(w, "%s sends %s on a connection it does not have", n->name,
                   ps_msg_name(p->msg->code));
        return;
    }
    if (c->cut || c->closing) {
        return;
    }
    check_frame(w, n, c->node[1 - end], p);
    m.seq = f->send.seq;
    m.ack = f->send.ack;
    if (m.code == PS_MSG_L_RESIDUAL_SEGMENT && is_local(c)) {
        /* The worker holds the descriptor even if the agent dies. */
        worker_accept_segment(w, world_conn_worker(w, c),
                              &m.l_residual_segment);
    }
    if (!is_local(c)) {
        choice = ps_path_choose(&c->path[end], &m, p);
        if (choice.acks_ahead) {
            w->acks_ahead++;
            send_frame(w, c, end,
                       &(struct ps_msg){.code = PS_MSG_ACK, .ack = m.ack}, NULL,
                       true);
        }
        if (choice.path != &c->path[end]) {
            w->subflow_frames++;
            c = conn_of_path(w, choice.path);
            note_carried(c, end, m.seq);
        }
    }
    send_frame(w, c, end, &m, p, choice.is_urgent);
}

/* The kernel takes a frame of `end` from the process. */
static void take_frame(struct world *w, struct wconn *c, uint32_t end,
                       struct wframe *f)
{
    struct ps_event ev = {.type = PS_EV_SENT};

    c->queued[end] -= f->len;
    world_output_update(w, c, end);
    if (is_local(c)) {
        ps_time at = ps_max_u64(w->now +
                                    world_delay(w, PS_MICROS(5), PS_MICROS(40)),
                                c->local_last[end] + 1);

        c->local_last[end] = at;
        schedule_delivery(w, c, 1 - end, f, at);
    } else {
        transmit_frame(w, c, end, f);
    }
    ev.conn = c->id * 2 + end;
    ev.sent.queued = c->queued[end];
    if (is_local(c) || ps_path_sent(&c->path[end], c->queued[end], &ev)) {
        world_step(w, c->node[end], &ev);
    }
}

void world_kernel(struct world *w, struct wevent *e)
{
    struct wconn *c = world_conn(w, e->conn);
    struct wframe_queue *q;

    if (c == NULL || c->cut) {
        return;
    }
    q = &c->parked[e->end];
    if (!is_local(c) && (q->count > 0 || c->unread[1 - e->end] >= WINDOW)) {
        queue_insert(q, e->is_urgent ? 0 : q->count, e->frame);
        return;
    }
    take_frame(w, c, e->end, e->frame);
}

void world_resume(struct world *w, struct wevent *e)
{
    struct wconn *c;

    while ((c = world_conn(w, e->conn)) != NULL && !c->cut &&
           c->parked[e->end].count > 0 && c->unread[1 - e->end] < WINDOW) {
        struct wframe *f = queue_pop(&c->parked[e->end]);

        take_frame(w, c, e->end, f);
        world_frame_unref(f);
    }
}

/* `end` has read a frame. */
static void frame_read(struct world *w, struct wconn *c, uint32_t end)
{
    assert(c->unread[end] > 0);
    if (c->unread[end]-- == WINDOW && c->parked[1 - end].count > 0) {
        struct wevent *e = world_event(w, WE_RESUME, w->now + 1);

        e->conn = c->id;
        e->end = 1 - end;
    }
}

static void deliver_to_worker(struct world *w, struct wconn *c,
                              const struct ps_msg *msg)
{
    struct wworker *k = world_conn_worker(w, c);

    if (k == NULL) {
        return;
    }
    if (k->alive && k->conn == c->id) {
        worker_message(w, k, msg);
    }
    if (msg->code == PS_MSG_L_DONE && w->opt.faults.agent_crash != 0 &&
        world_chance(w, 10)) {
        /* Kills the agent when one rank knows the end of a round and others may
         * not. */
        world_lose_agent(w, k->agent->index);
    }
}

/* Decodes `f`; false: that failed. */
static bool decode_frame(struct world *w, const struct wframe *f,
                         struct ps_msg *msg, struct ps_frame_prefix *prefix)
{
    if (ps_frame_parse(f->bytes, prefix) != 0 ||
        ps_msg_decode(w->decoder, prefix->code, f->bytes + 16,
                      prefix->header_len, msg) != 0) {
        world_fail(w, "a frame of our own cannot be decoded");
        return false;
    }
    return true;
}

/* All of a frame has arrived: the driver's on_frame(). */
static void finish_frame(struct world *w, struct wconn *c, uint32_t end,
                         const struct ps_msg *msg, struct wreception *r)
{
    struct ps_event ev = {.type = PS_EV_MSG, .conn = c->id * 2 + end};
    enum ps_path_verdict verdict = PS_PATH_DELIVER;
    struct wnode *n = c->node[end];
    struct ps_buf *buf = r->payload.buf;

    ev.msg.msg = msg;
    ev.msg.payload = r->len > 0 ? &r->payload : NULL;
    ev.msg.discard_reason = r->discard_reason;
    if (!is_local(c)) {
        if (end == 1) {
            ps_pre_handshake_remove(&n->pre_handshake, &c->pre_handshake);
            world_output_on_hello(c);
        }
        verdict = ps_path_receive(&c->path[end], msg, w->now, &n->fx);
    }
    switch (verdict) {
    case PS_PATH_DELIVER:
        if (!is_local(c)) {
            ev.conn = ps_path_machine_conn(&c->path[end]);
            check_acked(w, ev.conn, msg->ack);
        }
        world_step(w, n, &ev);
        break;
    case PS_PATH_JOINED:
        ev.type = PS_EV_CLOSED;
        ev.closed.rc = PS_E_CLOSED;
        world_step(w, n, &ev);
        break;
    case PS_PATH_DROP:
        world_apply(w, n);
        break;
    }
    ps_buf_unref(buf);
}

static void copy_payload(const struct wframe *f, const struct wreception *r,
                         uint64_t from, uint64_t end)
{
    if (r->payload.buf != NULL) {
        memcpy((uint8_t *)ps_slice_data(&r->payload) + from,
               f->bytes + f->len - r->len + from, end - from);
    }
}

/* Asks the machine for the place of the payload. False: no memory now. */
static bool begin_payload(struct world *w, struct wconn *c, uint32_t end,
                          const struct ps_msg *msg, struct wreception *r)
{
    struct wnode *n = c->node[end];
    struct ps_slice payload = {0};
    int rc = is_local(c)
                 ? n->machine.ops->payload(n->machine.self, c->id * 2 + end,
                                           msg, r->len, &payload)
                 : ps_path_payload(&c->path[end], &n->machine, msg, r->len,
                                   &payload);

    if (rc == PS_E_AGAIN) {
        return false;
    }
    r->discard_reason = rc;
    if (rc == 0) {
        r->payload = payload;
        if (payload.len != r->len) {
            world_fail(w, "%s: room for %zu of %llu payload bytes", n->name,
                       payload.len, (unsigned long long)r->len);
            r->len = ps_min_u64(r->len, payload.len);
        }
    }
    return true;
}

static void trace_frame(struct world *w, const struct wconn *c, uint32_t end,
                        const struct wframe *f, const struct ps_msg *msg)
{
    if (w->opt.trace) {
        const struct wnode *n = c->node[end];
        char line[400];

        ps_msg_print(msg, line, sizeof(line));
        fprintf(stderr, "[%10.6f] %s <- %s: %s\n", (double)w->now / 1e9,
                n == NULL ? "worker" : n->name,
                c->node[1 - end] == NULL ? "worker" : c->node[1 - end]->name,
                line);
    }
    w->trace_hash = ps_fnv1a_64(w->trace_hash, f->bytes, f->len);
    w->trace_hash = ps_fnv1a_64(w->trace_hash, &w->now, sizeof(w->now));
}

/* Delivers a frame. A payload may arrive in two halves, with frames of other
 * connections between them. False: no memory for the frame now; it stays
 * queued. */
static bool deliver_frame(struct world *w, struct wconn *c, uint32_t end,
                          struct wframe *f)
{
    struct ps_frame_prefix prefix;
    struct wreception r = {0};
    struct ps_msg msg;

    if (!decode_frame(w, f, &msg, &prefix)) {
        return true;
    }
    trace_frame(w, c, end, f, &msg);
    if (c->node[end] == NULL) {
        deliver_to_worker(w, c, &msg);
        return true;
    }
    r.len = prefix.payload_len;
    if (r.len > 0 && !begin_payload(w, c, end, &msg, &r)) {
        return false;
    }
    if (w->opt.connections > 1 && r.len > 1 && ps_rng_chance(&w->rng, 500)) {
        /* Sometimes longer than the link waits before it sends again. With many
         * frames behind it, all of them would be sent again, and their copies
         * after them, faster than this connection delivers any. */
        const bool is_slow = ps_rng_chance(&w->rng, 100) &&
                             c->unread[end] < SLOW_BEFORE_MAX;
        ps_time most = is_slow ? PS_MILLIS(150) : PS_MILLIS(2);
        struct wevent *e = world_event(w, WE_RECEIVED,
                                       w->now + world_delay(w, 0, most));

        e->conn = c->id;
        e->end = end;
        copy_payload(f, &r, 0, r.len / 2);
        r.frame = f;
        f->refs++;
        c->reception[end] = r;
        return true;
    }
    copy_payload(f, &r, 0, r.len);
    finish_frame(w, c, end, &msg, &r);
    return true;
}

static void stall_frame(struct wconn *c, uint32_t end, struct wframe *f)
{
    queue_insert(&c->stalled[end], c->stalled[end].count, f);
    c->node[end]->stalled += c->stalled[end].count == 1;
}

static void drop_reception(struct wreception *r)
{
    world_frame_unref(r->frame);
    ps_buf_unref(r->payload.buf);
    *r = (struct wreception){0};
}

void world_forget_end(struct wconn *c, uint32_t end)
{
    drop_reception(&c->reception[end]);
    ps_path_fini(&c->path[end]);
    ps_output_remove(&c->output[end]);
    if (end == 1 && !is_local(c)) {
        ps_pre_handshake_remove(&c->node[1]->pre_handshake, &c->pre_handshake);
    }
    if (c->stalled[end].count > 0) {
        queue_clear(&c->stalled[end]);
        c->node[end]->stalled--;
    }
}

void world_deliver(struct world *w, struct wevent *e)
{
    struct wconn *c = world_conn(w, e->conn);

    if (c == NULL || c->cut || !c->open[e->end]) {
        return;
    }
    if (is_held(w, c, 1 - e->end, e->frame->bytes[3])) {
        c->unread[e->end]--;
        schedule_delivery(w, c, e->end, e->frame, w->now + PS_MICROS(500));
        return;
    }
    if (c->stalled[e->end].count > 0 || c->reception[e->end].frame != NULL ||
        !deliver_frame(w, c, e->end, e->frame)) {
        stall_frame(c, e->end, e->frame);
        return;
    }
    c = world_conn(w, e->conn);
    if (c != NULL) {
        frame_read(w, c, e->end);
    }
    if (c != NULL && !is_local(c) && !c->cut && c->open[0] && c->open[1] &&
        c->reception[e->end].frame == NULL && c->has_hello) {
        world_lie(w, c, e->end);
    }
}

/* Retries stalled frames after a step of the machine, as the driver does. */
static void unstall_end(struct world *w, struct wconn *c, uint32_t end)
{
    uint64_t id = c->id;

    while (c != NULL && !c->cut && c->open[end] && c->stalled[end].count > 0 &&
           c->reception[end].frame == NULL) {
        if (!deliver_frame(w, c, end, c->stalled[end].frame[0])) {
            return;
        }
        world_frame_unref(queue_pop(&c->stalled[end]));
        c->node[end]->stalled -= c->stalled[end].count == 0;
        frame_read(w, c, end);
        c = world_conn(w, id);
    }
}

/* The rest of a payload has arrived. */
void world_received(struct world *w, struct wevent *e)
{
    struct wconn *c = world_conn(w, e->conn);
    struct ps_frame_prefix prefix;
    struct wreception r;
    struct ps_msg msg;

    if (c == NULL || c->cut || c->reception[e->end].frame == NULL) {
        return;
    }
    r = c->reception[e->end];
    c->reception[e->end] = (struct wreception){0};
    if (decode_frame(w, r.frame, &msg, &prefix)) {
        copy_payload(r.frame, &r, r.len / 2, r.len);
        finish_frame(w, c, e->end, &msg, &r);
    }
    world_frame_unref(r.frame);
    c = world_conn(w, e->conn);
    if (c != NULL) {
        unstall_end(w, c, e->end);
    }
}

void world_unstall(struct world *w, struct wnode *n)
{
    struct ps_map_cursor cur = {0};
    struct wconn *c;
    uint64_t ids[256];
    uint32_t count = 0;

    n->unstall_due = false;
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        for (uint32_t end = 0; end < 2; end++) {
            if (c->node[end] == n && c->stalled[end].count > 0 && count < 256) {
                ids[count++] = c->id * 2 + end;
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        c = world_conn(w, ids[i] / 2);
        if (c != NULL) {
            unstall_end(w, c, ids[i] % 2);
        }
    }
}

/* True: the machine knows the connection. */
static bool path_closed(struct world *w, struct wconn *c, uint32_t end)
{
    struct wnode *n = c->node[end];
    const bool carries = ps_path_is_subflow(&c->path[end]);
    const ps_conn_id main = ps_path_machine_conn(&c->path[end]);
    const bool known = ps_path_closed(&c->path[end], w->now, &n->fx);

    if (carries) {
        check_resent(w, c, end, main);
    }
    return known;
}

void world_closed(struct world *w, struct wevent *e)
{
    struct wconn *c = world_conn(w, e->conn);
    struct ps_event ev = {.type = PS_EV_CLOSED};

    if (c == NULL || !c->open[e->end]) {
        return;
    }
    c->cut = true;
    c->open[e->end] = false;
    if (c->node[e->end] == NULL) {
        struct wworker *k = world_conn_worker(w, c);

        if (k != NULL && k->alive && k->conn == c->id) {
            worker_closed(w, k);
        }
    } else if (c->node[e->end]->alive) {
        ev.conn = c->id * 2 + e->end;
        ev.closed.rc = PS_E_CLOSED;
        if (is_local(c) || path_closed(w, c, e->end)) {
            world_step(w, c->node[e->end], &ev);
        } else {
            world_apply(w, c->node[e->end]);
        }
    }
    world_forget_end(c, e->end);
    if (!c->open[0] && !c->open[1]) {
        world_conn_free(ps_map_remove(w->conns, c->id));
    }
}
