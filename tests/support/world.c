/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cluster: event queue, network, and the driver that carries out
 * the machines' effects. Workers and checkers have files of their own. */
#include "support/world_internal.h"

#include "base/alloc.h"
#include "base/str.h"
#include "proto/frame.h"
#include "proto/ps_codec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ little things */

uint64_t world_hash(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}

ps_time world_delay(struct world *w, ps_time least, ps_time spread)
{
    return least + ps_rng_below(&w->rng, spread + 1);
}

void world_fail(struct world *w, const char *fmt, ...)
{
    struct ps_str s;
    va_list ap;

    if (w->error[0] != '\0') {
        return; /* The first finding is the one to look at. */
    }
    ps_str_init(&s, w->error, sizeof(w->error));
    ps_str_addf(&s, "[%10.6f] seed %llu: ", (double)w->now / 1e9,
                (unsigned long long)w->opt.seed);
    va_start(ap, fmt);
    ps_str_addv(&s, fmt, ap);
    va_end(ap);
}

static void tell_story(struct world *w, const struct wnode *n, const char *text)
{
    char line[1200];
    int len = snprintf(line, sizeof(line), "[%7.3f] %-7s %s\n",
                       (double)w->now / 1e9, n->name, text);

    if (w->opt.trace) {
        fputs(line, stderr);
    }
    if (!w->opt.story || len < 0) {
        return;
    }
    if ((size_t)len >= sizeof(line)) {
        len = sizeof(line) - 1;
    }
    w->story = ps_realloc(w->story, w->story_len + (size_t)len + 1);
    memcpy(w->story + w->story_len, line, (size_t)len + 1);
    w->story_len += (size_t)len;
}

struct wevent *world_event(struct world *w, enum wevent_type type, ps_time at)
{
    struct wevent *e = ps_calloc(1, sizeof(*e));

    assert(at >= w->now);
    e->type = type;
    ps_heap_push(&w->events, &e->item, at);
    return e;
}

static void frame_unref(struct wframe *f)
{
    if (f != NULL && --f->refs == 0) {
        ps_free(f->bytes);
        ps_free(f);
    }
}

static void event_free(struct wevent *e)
{
    frame_unref(e->frame);
    ps_compute_free(e->compute);
    ps_free(e);
}

struct wconn *world_conn(struct world *w, uint64_t id)
{
    return ps_map_get(w->conns, id);
}

static struct wnode *node_by_name(struct world *w, const char *name, size_t len)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (strlen(w->node[i].name) == len &&
            memcmp(w->node[i].name, name, len) == 0) {
            return &w->node[i];
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------ network */

static uint32_t node_index(const struct world *w, const struct wnode *n)
{
    return (uint32_t)(n - w->node);
}

static bool faulty(const struct world *w)
{
    return w->now < w->opt.faults.until;
}

static bool chance(struct world *w, uint32_t per_mille)
{
    if (per_mille == 0 || !faulty(w) || !ps_rng_chance(&w->rng, per_mille)) {
        return false;
    }
    w->faults++;
    return true;
}

void world_close_conn(struct world *w, struct wconn *c, ps_time delay)
{
    if (c->cut) {
        return;
    }
    c->cut = true; /* Whatever is on its way is lost. */
    for (uint32_t end = 0; end < 2; end++) {
        struct wevent *e = world_event(
            w, WE_CLOSE, w->now + world_delay(w, delay, PS_MICROS(200)));

        e->conn = c->id;
        e->end = end;
    }
}

/* What is on its way still arrives; nothing more is sent. */
static void hang_up(struct world *w, struct wconn *c)
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

static void conn_free(struct wconn *c)
{
    for (uint32_t end = 0; end < 2; end++) {
        for (uint32_t i = 0; i < c->stalled_count[end]; i++) {
            frame_unref(c->stalled[end][i]);
        }
        ps_free(c->stalled[end]);
    }
    ps_free(c);
}

static struct wconn *conn_new(struct world *w, struct wnode *a, struct wnode *b)
{
    struct wconn *c = ps_calloc(1, sizeof(*c));

    c->id = ++w->next_conn;
    c->node[0] = a;
    c->node[1] = b;
    ps_map_put(w->conns, c->id, c);
    return c;
}

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
}

/* A frame has left the kernel of end `from`: the network decides. */
static void transmit(struct world *w, struct wconn *c, uint32_t from,
                     struct wframe *f)
{
    uint32_t to = 1 - from;
    ps_time at = w->now + world_delay(w, PS_MICROS(50), PS_MICROS(400));

    if (is_handshake(f->bytes[3])) {
        at = ps_max_u64(at, c->fence[from]);
        c->fence[from] = at; /* Nothing sent later arrives before. */
        schedule_delivery(w, c, to, f, at);
        return;
    }
    if (chance(w, w->opt.faults.loss)) {
        return;
    }
    if (chance(w, w->opt.faults.reorder)) {
        at += world_delay(w, PS_MICROS(500), PS_MILLIS(20));
    }
    at = ps_max_u64(at, c->fence[from]);
    schedule_delivery(w, c, to, f, at);
    if (chance(w, w->opt.faults.duplicate)) {
        schedule_delivery(w, c, to, f, at + world_delay(w, 0, PS_MILLIS(5)));
    }
}

/* ---------------------------------------------------------- driving machines */

static void arm(struct world *w, struct wnode *n)
{
    ps_time at = n->machine.ops->deadline(n->machine.self);
    struct wevent *e;

    if (at == PS_TIME_NEVER) {
        n->tick_at = PS_TIME_NEVER;
        return;
    }
    at = ps_max_u64(at, w->now);
    if (n->tick_at <= at && n->tick_at >= w->now) {
        return; /* An earlier tick is queued; it arms again. */
    }
    n->tick_at = at;
    e = world_event(w, WE_TICK, at);
    e->node = n;
}

static void fx_send(struct world *w, struct wnode *n, struct ps_fx *f)
{
    struct wconn *c = world_conn(w, f->send.conn / 2);
    uint32_t end = (uint32_t)(f->send.conn % 2);
    const struct ps_parcel *p = f->send.parcel;
    struct ps_msg m = *p->msg;
    size_t header_len;
    struct wframe *frame;
    struct wevent *e;

    if (c == NULL || c->node[end] != n) {
        world_fail(w, "%s sends %s on a connection it does not have", n->name,
                   ps_msg_name(p->msg->code));
        return;
    }
    if (c->cut || c->closing) {
        return;
    }
    check_frame(w, n, p);
    frame = ps_calloc(1, sizeof(*frame));
    frame->refs = 1;
    m.seq = f->send.seq;
    m.ack = f->send.ack;
    {
        size_t cap = ps_codec_bound(&m);

        frame->bytes = ps_alloc(cap + p->payload_len);
        if (ps_codec_encode(&m, 1, p->payload_len, frame->bytes, cap,
                            &header_len) != 0) {
            world_fail(w, "%s: %s cannot be encoded", n->name,
                       ps_msg_name(p->msg->code));
            frame_unref(frame);
            return;
        }
    }
    frame->len = header_len;
    for (uint32_t i = 0; i < p->slice_count; i++) {
        memcpy(frame->bytes + frame->len, ps_slice_data(&p->slice[i]),
               p->slice[i].len);
        frame->len += p->slice[i].len;
    }
    if (m.code == PS_MSG_L_KEEP && c->node[1] == NULL) {
        /* The descriptor lies in the socket, whatever becomes of the agent. */
        worker_keeps(w, &w->worker[c->worker % WORLD_WORKERS_MAX], &m.l_keep);
    }
    c->queued[end] += frame->len;
    /* The kernel takes frames of a connection in order. */
    c->kernel_last[end] = ps_max_u64(
        c->kernel_last[end] + 1,
        w->now + world_delay(w, PS_MICROS(1), PS_MICROS(20)) +
            PS_NANOS(frame->len / 4));
    e = world_event(w, WE_KERNEL, c->kernel_last[end]);
    e->conn = c->id;
    e->end = end;
    e->frame = frame;
}

static void fx_dial(struct world *w, struct wnode *n, struct ps_fx *f)
{
    struct wevent *e = world_event(
        w, WE_CONNECT, w->now + world_delay(w, PS_MICROS(100), PS_MILLIS(1)));

    e->node = n;
    e->incarnation = n->life;
    e->number = f->dial.target;
    ps_str_copy(e->address, sizeof(e->address), f->dial.address);
}

static void carry_out(struct world *w, struct wnode *n)
{
    ps_effects_done_as_sends(&n->fx);
    for (uint32_t i = 0; i < n->fx.count; i++) {
        struct ps_fx *f = &n->fx.items[i];
        struct wconn *c;
        struct wevent *e;

        switch (f->type) {
        case PS_FX_SEND:
            fx_send(w, n, f);
            break;
        case PS_FX_DIAL:
            fx_dial(w, n, f);
            break;
        case PS_FX_HANGUP:
            c = world_conn(w, f->hangup.conn / 2);
            if (c != NULL) {
                hang_up(w, c);
            }
            break;
        case PS_FX_COMPUTE:
            e = world_event(w, WE_COMPUTE,
                            w->now +
                                world_delay(w, PS_MICROS(5), PS_MICROS(300)));
            e->node = n;
            e->incarnation = n->life;
            e->compute = f->compute;
            f->compute = NULL;
            break;
        case PS_FX_DONE:
            break; /* There are none any more. */
        case PS_FX_PIECE:
            break; /* Workers here copy nothing. */
        case PS_FX_NOTE:
            tell_story(w, n, f->note.text);
            break;
        }
    }
    ps_effects_clear(&n->fx);
}

void world_step(struct world *w, struct wnode *n, struct ps_event *ev)
{
    ev->now = w->now;
    w->steps++;
    if (n->machine.ops->step(n->machine.self, ev, &n->fx) < 0) {
        world_fail(w, "%s gave up", n->name);
    }
    check_step(w, n, ev);
    carry_out(w, n);
    arm(w, n);
    if (n->stalled > 0 && !n->unstalls) {
        n->unstalls = true;
        world_event(w, WE_UNSTALL, w->now + PS_MICROS(20))->node = n;
    }
}

/* ------------------------------------------------------------------- events */

static void on_connect(struct world *w, struct wevent *e)
{
    const char *colon = strchr(e->address, ':');
    struct wnode *to = colon == NULL
                           ? NULL
                           : node_by_name(w, e->address,
                                          (size_t)(colon - e->address));
    struct ps_event ev = {.type = PS_EV_DIAL_FAILED};
    struct wconn *c;

    if (to == NULL || !to->alive ||
        w->split[node_index(w, e->node)][node_index(w, to)]) {
        ev.dial_failed.target = e->number;
        ev.dial_failed.rc = PS_E_UNREACH;
        world_step(w, e->node, &ev);
        return;
    }
    c = conn_new(w, e->node, to);
    c->open[0] = true;
    c->open[1] = true;
    ev = (struct ps_event){.type = PS_EV_OPEN, .conn = c->id * 2 + 1};
    ev.open.kind = PS_CONN_ACCEPTED;
    ev.open.peer = e->node->name;
    world_step(w, to, &ev);
    ev = (struct ps_event){.type = PS_EV_OPEN, .conn = c->id * 2};
    ev.open.kind = PS_CONN_DIALLED;
    ev.open.target = e->number;
    ev.open.peer = to->name;
    world_step(w, e->node, &ev);
}

static void on_kernel(struct world *w, struct wevent *e)
{
    struct wconn *c = world_conn(w, e->conn);
    struct ps_event ev = {.type = PS_EV_SENT};

    if (c == NULL || c->cut) {
        return;
    }
    c->queued[e->end] -= e->frame->len;
    if (c->node[1] == NULL) {
        ps_time at = ps_max_u64(w->now +
                                    world_delay(w, PS_MICROS(5), PS_MICROS(40)),
                                c->local_last[e->end] + 1);

        c->local_last[e->end] = at;
        schedule_delivery(w, c, 1 - e->end, e->frame, at);
    } else {
        transmit(w, c, e->end, e->frame);
    }
    ev.conn = c->id * 2 + e->end;
    ev.sent.queued = c->queued[e->end];
    world_step(w, c->node[e->end], &ev);
}

/* Where a training process has not come to its job, or dies with the agent,
 * the job would rightly fail. */
static void lose_agent(struct world *w, uint32_t victim)
{
    const struct wnode *n = &w->node[1 + w->opt.servers + victim];
    struct wevent *e;

    for (uint32_t i = 0; i < w->opt.workers; i++) {
        if (w->worker[i].agent == n && !worker_may_lose_agent(&w->worker[i])) {
            return;
        }
    }
    if (!n->alive) {
        return;
    }
    w->faults++;
    world_kill_agent(w, victim);
    e = world_event(w, WE_AGENT,
                    w->now + world_delay(w, PS_MILLIS(1), PS_MILLIS(100)));
    e->number = victim;
}

static void deliver_to_worker(struct world *w, struct wconn *c,
                              const struct ps_msg *msg)
{
    struct wworker *k = &w->worker[c->worker % WORLD_WORKERS_MAX];

    if (c->worker < WORLD_WORKERS_MAX && k->alive && k->conn == c->id) {
        worker_message(w, k, msg);
    }
    if (msg->code == PS_MSG_L_DONE && w->opt.faults.agent != 0 &&
        chance(w, 10)) {
        /* One rank has heard the end of a round, and others perhaps not. */
        lose_agent(w, k->agent->index);
    }
}

/* False: there is no memory for it now, and it stays. */
static bool deliver(struct world *w, struct wconn *c, uint32_t end,
                    struct wframe *f)
{
    struct ps_frame_prefix prefix;
    struct ps_event ev = {.type = PS_EV_MSG};
    struct ps_slice payload = {0};
    struct ps_msg msg;
    const uint8_t *tail;
    struct wnode *n;

    n = c->node[end];
    if (ps_frame_parse(f->bytes, &prefix) != 0 ||
        ps_codec_decode(w->decoder, prefix.code, f->bytes + 16,
                        prefix.header_len, &msg) != 0) {
        world_fail(w, "a frame of our own cannot be decoded");
        return true;
    }
    if (w->opt.trace) {
        char line[400];

        ps_msg_print(&msg, line, sizeof(line));
        fprintf(stderr, "[%10.6f] %s <- %s: %s\n", (double)w->now / 1e9,
                n == NULL ? "worker" : n->name,
                c->node[1 - end] == NULL ? "worker" : c->node[1 - end]->name,
                line);
    }
    w->trace_hash = world_hash(w->trace_hash, f->bytes, f->len);
    w->trace_hash = world_hash(w->trace_hash, &w->now, sizeof(w->now));
    if (n == NULL) {
        deliver_to_worker(w, c, &msg);
        return true;
    }
    tail = f->bytes + 16 + prefix.header_len;
    ev.conn = c->id * 2 + end;
    ev.msg.msg = &msg;
    if (prefix.payload_len > 0) {
        int rc = n->machine.ops->payload(n->machine.self, ev.conn, &msg,
                                         prefix.payload_len, &payload);

        if (rc == PS_E_AGAIN) {
            return false;
        }
        if (rc == 0) {
            if (payload.len != prefix.payload_len) {
                world_fail(w, "%s: room for %zu of %llu payload bytes", n->name,
                           payload.len, (unsigned long long)prefix.payload_len);
                return true;
            }
            memcpy(ps_slice_data(&payload), tail, payload.len);
        } else {
            payload = (struct ps_slice){0};
        }
        ev.msg.payload = &payload;
        ev.msg.thrown = rc;
    }
    world_step(w, n, &ev);
    ps_buf_unref(payload.buf);
    return true;
}

static void stall(struct wconn *c, uint32_t end, struct wframe *f)
{
    uint32_t count = c->stalled_count[end]++;

    c->stalled[end] = ps_realloc(c->stalled[end],
                                 (count + 1) * sizeof(*c->stalled[end]));
    c->stalled[end][count] = f;
    f->refs++;
    c->node[end]->stalled += count == 0;
}

static void forget_stalled(struct wconn *c, uint32_t end)
{
    if (c->stalled_count[end] == 0) {
        return;
    }
    for (uint32_t i = 0; i < c->stalled_count[end]; i++) {
        frame_unref(c->stalled[end][i]);
    }
    c->stalled_count[end] = 0;
    c->node[end]->stalled--;
}

static void on_deliver(struct world *w, struct wevent *e)
{
    struct wconn *c = world_conn(w, e->conn);

    if (c == NULL || c->cut || !c->open[e->end]) {
        return;
    }
    if (c->stalled_count[e->end] > 0 || !deliver(w, c, e->end, e->frame)) {
        stall(c, e->end, e->frame);
    }
}

/* After a step of the machine, as the driver does. */
static void unstall_end(struct world *w, struct wconn *c, uint32_t end)
{
    uint64_t id = c->id;

    while (c != NULL && !c->cut && c->open[end] && c->stalled_count[end] > 0) {
        struct wframe *f = c->stalled[end][0];
        uint32_t left = c->stalled_count[end] - 1;

        if (!deliver(w, c, end, f)) {
            return;
        }
        memmove(c->stalled[end], c->stalled[end] + 1,
                left * sizeof(*c->stalled[end]));
        c->stalled_count[end] = left;
        c->node[end]->stalled -= left == 0;
        frame_unref(f);
        c = world_conn(w, id);
    }
}

static void on_unstall(struct world *w, struct wnode *n)
{
    struct ps_map_cursor cur = {0};
    struct wconn *c;
    uint64_t ids[256];
    uint32_t count = 0;

    n->unstalls = false;
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        for (uint32_t end = 0; end < 2; end++) {
            if (c->node[end] == n && c->stalled_count[end] > 0 && count < 256) {
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

static void on_close(struct world *w, struct wevent *e)
{
    struct wconn *c = world_conn(w, e->conn);
    struct ps_event ev = {.type = PS_EV_CLOSED};

    if (c == NULL || !c->open[e->end]) {
        return;
    }
    c->cut = true;
    c->open[e->end] = false;
    if (c->node[e->end] == NULL) {
        struct wworker *k = &w->worker[c->worker % WORLD_WORKERS_MAX];

        if (c->worker < WORLD_WORKERS_MAX && k->alive && k->conn == c->id) {
            worker_closed(w, k);
        }
    } else if (c->node[e->end]->alive) {
        ev.conn = c->id * 2 + e->end;
        ev.closed.rc = PS_E_CLOSED;
        world_step(w, c->node[e->end], &ev);
    }
    forget_stalled(c, e->end);
    if (!c->open[0] && !c->open[1]) {
        conn_free(ps_map_take(w->conns, c->id));
    }
}

static void on_compute(struct world *w, struct wevent *e)
{
    struct ps_event ev = {.type = PS_EV_COMPUTED};

    ev.computed.token = e->compute->token;
    ev.computed.rc = ps_kernel_run(&e->compute->job);
    /* The driver lets go of the job before the machine hears of it. */
    ps_compute_free(e->compute);
    e->compute = NULL;
    world_step(w, e->node, &ev);
}

/* ------------------------------------------------------------------- faults */

static struct wconn *random_tcp(struct world *w)
{
    struct ps_map_cursor cur = {0};
    struct wconn *c;
    struct wconn *pick = NULL;
    uint64_t n = 0;

    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        if (c->node[1] != NULL && !c->cut && ps_rng_below(&w->rng, ++n) == 0) {
            pick = c;
        }
    }
    return pick;
}

static void fault_split(struct world *w, ps_time length)
{
    struct wconn *c = random_tcp(w);
    uint32_t a;
    uint32_t b;
    struct wevent *e;

    if (c == NULL) {
        return;
    }
    a = node_index(w, c->node[0]);
    b = node_index(w, c->node[1]);
    if (w->split[a][b]) {
        return;
    }
    w->faults++;
    w->split[a][b] = true;
    w->split[b][a] = true;
    world_close_conn(w, c, 0);
    e = world_event(w, WE_HEAL, w->now + length);
    e->conn = a;
    e->number = b;
}

enum {
    FAULT_CUT,
    FAULT_PARTITION,
    FAULT_CRASH,
    FAULT_SERVER,
    FAULT_MOVE,
    FAULT_AGENT,
    FAULT_KINDS
};

/* What an operator's tool says. */
static void tell_sched(struct world *w, uint64_t conn, const struct ps_msg *msg)
{
    struct ps_msg *copy = ps_msg_dup(msg);
    struct ps_event ev = {.type = PS_EV_MSG, .conn = conn};

    ev.msg.msg = copy;
    world_step(w, &w->node[0], &ev);
    ps_msg_free(copy);
}

void world_rebalance(struct world *w, const char *off)
{
    struct wconn *c = conn_new(w, &w->node[0], NULL);
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = c->id * 2};

    c->open[0] = true;
    c->open[1] = true;
    c->worker = WORLD_WORKERS_MAX; /* Nobody reads the answer. */
    ev.open.kind = PS_CONN_LOCAL;  /* As root. */
    ev.open.peer = "psctl";
    world_step(w, &w->node[0], &ev);
    tell_sched(w, c->id * 2,
               &(struct ps_msg){.code = PS_MSG_HELLO,
                                .hello = {.protocol = 1,
                                          .protocol_least = 1,
                                          .role = PS_ROLE_CTL,
                                          .name = "psctl",
                                          .cluster = "default",
                                          .address = ""}});
    tell_sched(w, c->id * 2,
               &(struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_REBALANCE,
                                          .job = "job",
                                          .off = off != NULL ? off : ""}});
    world_close_conn(w, c, world_delay(w, PS_MILLIS(1), PS_MILLIS(50)));
}

static void lose_server(struct world *w)
{
    uint32_t victim = (uint32_t)ps_rng_below(&w->rng, w->opt.servers);

    for (uint32_t i = 0; i < w->opt.workers; i++) {
        if (w->worker[i].stage <= WS_HELLO) {
            /* A job that has not started would rightly wait for servers. */
            struct wevent *e = world_event(w, WE_FAULT,
                                           w->now + PS_MILLIS(100));

            e->number = FAULT_SERVER;
            return;
        }
    }
    w->faults++;
    world_kill_server(w, victim);
}

static void schedule_fault(struct world *w, uint64_t kind, uint32_t per_second)
{
    struct wevent *e;

    if (per_second == 0) {
        return;
    }
    e = world_event(w, WE_FAULT,
                    w->now + 1 +
                        ps_rng_below(&w->rng, 2 * PS_SECONDS(1) / per_second));
    e->number = kind;
}

static void on_fault(struct world *w, const struct wevent *e)
{
    const struct world_faults *f = &w->opt.faults;
    struct wconn *c;
    struct wworker *k;

    if (!faulty(w)) {
        return;
    }
    switch (e->number) {
    case FAULT_CUT:
        c = random_tcp(w);
        if (c != NULL) {
            w->faults++;
            world_close_conn(w, c, 0);
        }
        schedule_fault(w, FAULT_CUT, f->cut);
        break;
    case FAULT_PARTITION:
        /* Often longer than link_linger, so that links are forgotten. */
        fault_split(w, world_delay(w, PS_MILLIS(20), PS_MILLIS(400)));
        schedule_fault(w, FAULT_PARTITION, f->partition);
        break;
    case FAULT_CRASH:
        k = &w->worker[ps_rng_below(&w->rng, w->opt.workers)];
        if (k->alive && k->stage > WS_KEYS && k->stage < WS_BYE) {
            w->faults++;
            worker_kill(w, k);
            struct wevent *again = world_event(
                w, WE_WORKER,
                w->now + world_delay(w, PS_MILLIS(5), PS_MILLIS(100)));
            again->number = k->index;
            again->incarnation = k->life;
        }
        schedule_fault(w, FAULT_CRASH, f->crash);
        break;
    case FAULT_SERVER:
        lose_server(w);
        break;
    case FAULT_MOVE:
        w->faults++;
        if (ps_rng_chance(&w->rng, 700)) {
            char name[32];

            snprintf(name, sizeof(name), "server%u",
                     (unsigned)ps_rng_below(&w->rng, w->opt.servers));
            world_rebalance(w, name);
        } else {
            world_rebalance(w, NULL);
        }
        schedule_fault(w, FAULT_MOVE, f->move);
        break;
    case FAULT_AGENT:
        lose_agent(w, (uint32_t)ps_rng_below(&w->rng, w->opt.agents));
        schedule_fault(w, FAULT_AGENT, f->agent);
        break;
    }
}

static void heal_all(struct world *w)
{
    memset(w->split, 0, sizeof(w->split));
}

/* ----------------------------------------------------------------- main loop */

static void dispatch(struct world *w, struct wevent *e)
{
    struct ps_event ev;

    switch (e->type) {
    case WE_TICK:
        if (e->node->alive && e->node->tick_at == w->now) {
            e->node->tick_at = PS_TIME_NEVER;
            ev = (struct ps_event){.type = PS_EV_TICK};
            world_step(w, e->node, &ev);
        }
        break;
    case WE_CONNECT:
        if (e->node->alive && e->incarnation == e->node->life) {
            on_connect(w, e);
        }
        break;
    case WE_KERNEL:
        on_kernel(w, e);
        break;
    case WE_DELIVER:
        on_deliver(w, e);
        break;
    case WE_UNSTALL:
        if (e->node->alive) {
            on_unstall(w, e->node);
        }
        break;
    case WE_CLOSE:
        on_close(w, e);
        break;
    case WE_COMPUTE:
        if (e->node->alive && e->incarnation == e->node->life) {
            on_compute(w, e);
        }
        break;
    case WE_WORKER:
        if (e->incarnation == w->worker[e->number].life) {
            worker_event(w, &w->worker[e->number]);
        }
        break;
    case WE_COPY:
        if (e->incarnation == w->worker[e->number].life) {
            worker_copies(w, &w->worker[e->number], e->end);
        }
        break;
    case WE_FAULT:
        on_fault(w, e);
        break;
    case WE_AGENT:
        world_restart_agent(w, (uint32_t)e->number);
        break;
    case WE_HEAL:
        w->split[e->conn][e->number] = false;
        w->split[e->number][e->conn] = false;
        break;
    }
}

static bool next(struct world *w, ps_time until)
{
    struct ps_heap_item *item = ps_heap_peek(&w->events);
    struct wevent *e;

    if (item == NULL || item->key > until || w->error[0] != '\0') {
        return false;
    }
    ps_heap_pop(&w->events);
    e = PS_CONTAINER(item, struct wevent, item);
    assert(item->key >= w->now);
    w->now = item->key;
    dispatch(w, e);
    event_free(e);
    return true;
}

bool world_run(struct world *w, ps_time until)
{
    while (next(w, until)) {
    }
    if (w->error[0] == '\0' && until != PS_TIME_NEVER && w->now < until) {
        w->now = until;
    }
    return w->error[0] == '\0';
}

static bool all_done(const struct world *w)
{
    for (uint32_t i = 0; i < w->opt.workers; i++) {
        if (w->worker[i].stage != WS_DONE) {
            return false;
        }
    }
    return true;
}

/* Who has not ended, and where each of them is. */
static void tell_stuck(struct world *w)
{
    char text[900];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    for (uint32_t i = 0; i < w->opt.workers; i++) {
        const struct wworker *k = &w->worker[i];

        if (k->stage == WS_DONE && k->error == 0) {
            continue;
        }
        ps_str_addf(&s, "; rank %u in stage %d, round %llu, %u replies missing",
                    i, (int)k->stage, (unsigned long long)k->round, k->waiting);
        if (k->error != 0) {
            ps_str_addf(&s, ", error '%s'", k->text);
        }
    }
    world_fail(w, "no progress%s", text);
}

/* Its job has ended with an error, and whoever comes back after that starts
 * another job, for which the others do not come. */
static void end_latecomers(struct world *w)
{
    bool failed = false;

    for (uint32_t i = 0; i < w->opt.workers; i++) {
        const struct wworker *k = &w->worker[i];

        failed |= k->stage == WS_DONE && k->error != 0;
        if (k->stage != WS_DONE && k->stage > WS_HELLO) {
            return;
        }
    }
    for (uint32_t i = 0; failed && i < w->opt.workers; i++) {
        if (w->worker[i].stage != WS_DONE) {
            worker_kill(w, &w->worker[i]);
            w->worker[i].stage = WS_DONE;
        }
    }
}

bool world_run_workers(struct world *w, ps_time limit)
{
    while (!all_done(w)) {
        if (w->now >= w->opt.faults.until && w->opt.faults.until != 0) {
            heal_all(w);
        }
        if (w->steps % 64 == 0) {
            end_latecomers(w);
        }
        if (!next(w, limit)) {
            tell_stuck(w);
            return false;
        }
    }
    return w->error[0] == '\0';
}

bool world_settle(struct world *w, ps_time limit)
{
    w->opt.faults.until = 0;
    heal_all(w);
    if (!world_run(w, ps_time_add(w->now, limit))) {
        return false;
    }
    check_end(w);
    return w->error[0] == '\0';
}

/* ------------------------------------------------------------------- set-up */

static int arena_get(void *ctx, size_t size, void **ret_data, uint32_t *ret_tag,
                     uint64_t *ret_offset)
{
    struct world *w = ctx;
    void *p = NULL;

    if (posix_memalign(&p, 64, size) != 0) {
        return PS_E_NOMEM;
    }
    memset(p, 0xee, size); /* Nobody may count on zeros. */
    *ret_tag = ++w->next_arena;
    *ret_offset = 0;
    *ret_data = p;
    ps_map_put(w->arenas, *ret_tag, p);
    return 0;
}

static void arena_put(void *ctx, void *data, size_t size, uint32_t tag)
{
    struct world *w = ctx;

    (void)size;
    ps_map_take(w->arenas, tag);
    free(data);
}

static struct ps_pool *pool_new(struct world *w, uint64_t budget)
{
    return ps_pool_new(&(struct ps_pool_options){
        .budget = budget,
        .source = {.get = arena_get, .put = arena_put, .ctx = w}});
}

/* An agent's view of memory that others hold as well. */
struct keep {
    struct world *w;
    struct ps_buf *memory;
    uint32_t tag;
};

static void keep_release(void *ctx)
{
    struct keep *v = ctx;

    ps_map_take(v->w->keeps, v->tag);
    ps_buf_unref(v->memory);
    ps_free(v);
}

static struct ps_buf *keep_view(struct world *w, struct ps_buf *memory)
{
    struct keep *v = ps_calloc(1, sizeof(*v));
    struct ps_buf *view;

    *v = (struct keep){
        .w = w, .memory = ps_buf_ref(memory), .tag = ++w->next_keep};
    ps_map_put(w->keeps, v->tag, memory);
    view = ps_buf_wrap(memory->data, memory->size, keep_release, v);
    view->tag = v->tag;
    return view;
}

static void free_memory(void *p)
{
    free(p);
}

static int keep_new(void *ctx, size_t size, struct ps_buf **ret_buf)
{
    struct ps_buf *memory;
    void *p = NULL;

    if (posix_memalign(&p, 64, size) != 0) {
        return PS_E_NOMEM;
    }
    memset(p, 0, size);
    memory = ps_buf_wrap(p, size, free_memory, p);
    *ret_buf = keep_view(ctx, memory);
    ps_buf_unref(memory);
    return 0;
}

static struct ps_pool *results_new(void *ctx)
{
    return pool_new(ctx, 0);
}

static struct wnode *node_new(struct world *w, enum ps_role role,
                              uint32_t index)
{
    struct wnode *n = &w->node[w->node_count++];

    assert(w->node_count <= WORLD_NODES_MAX);
    n->role = role;
    n->index = index;
    n->alive = true;
    n->tick_at = PS_TIME_NEVER;
    ps_effects_init(&n->fx);
    if (role == PS_ROLE_SCHED) {
        snprintf(n->name, sizeof(n->name), "psched");
    } else {
        snprintf(n->name, sizeof(n->name), "%s%u",
                 role == PS_ROLE_SERVER ? "server" : "agent", index);
    }
    return n;
}

static const struct ps_link_options link_options = {
    .resend_timeout = PS_MILLIS(30),
    .resend_max = PS_MILLIS(200),
    .ack_delay = PS_MILLIS(5),
};

static void start_sched(struct world *w)
{
    struct wnode *n = node_new(w, PS_ROLE_SCHED, 0);
    struct ps_sched_options o = {
        .instance = 1 + ps_rng_next(&w->rng) / 2,
        .seed = ps_rng_next(&w->rng),
        .heartbeat = PS_MILLIS(100),
        .suspect_after = PS_MILLIS(500),
        .dead_after = PS_SECONDS(2),
        .start_timeout = PS_SECONDS(120),
        .rejoin_grace = PS_SECONDS(5),
        .partition_bytes = PS_PARTITION_BYTES_DEFAULT,
        .move_piece = 3000, /* Most partitions take several. */
        .link = link_options,
        .link_linger = PS_MILLIS(100),
    };

    ps_str_copy(o.name, sizeof(o.name), n->name);
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    n->sched = ps_sched_new(&o, w->now);
    n->machine = ps_sched_machine(n->sched);
}

static void start_server(struct world *w, uint32_t index)
{
    struct wnode *n = node_new(w, PS_ROLE_SERVER, index);
    struct ps_shard_options o = {
        .instance = 1 + ps_rng_next(&w->rng) / 2,
        .seed = ps_rng_next(&w->rng),
        .window = w->opt.window,
        .credit_first = w->opt.credit,
        .alone = w->opt.alone,
        .dial_first = PS_MILLIS(10),
        .dial_max = PS_MILLIS(200),
        .link = link_options,
        .link_linger = PS_MILLIS(100),
    };

    n->pool = pool_new(w, w->opt.store);
    o.pool = n->pool;
    ps_str_copy(o.name, sizeof(o.name), n->name);
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched, sizeof(o.sched), "psched:1");
    snprintf(o.address, sizeof(o.address), "%s:1", n->name);
    n->shard = ps_shard_new(&o, w->now);
    n->machine = ps_shard_machine(n->shard);
}

static void begin_agent(struct world *w, struct wnode *n)
{
    struct ps_agent_options o = {
        .instance = 1 + ps_rng_next(&w->rng) / 2,
        .seed = ps_rng_next(&w->rng),
        .dial_first = PS_MILLIS(10),
        .alone = w->opt.alone,
        .credit_first = w->opt.credit,
        .dial_max = PS_MILLIS(200),
        .link = link_options,
    };

    n->pool = pool_new(w, w->opt.sums);
    o.sum_here_max = (o.seed >> 32) % 2 * 1024;
    o.sums = n->pool;
    o.results_new = results_new;
    o.results_ctx = w;
    o.keep_new = keep_new;
    o.keep_size = 32u << 10; /* So that there are several. */
    ps_str_copy(o.name, sizeof(o.name), n->name);
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched, sizeof(o.sched), "psched:1");
    snprintf(o.host, sizeof(o.host), "host%u", n->index);
    n->agent = ps_agent_new(&o, w->now);
    n->machine = ps_agent_machine(n->agent);
}

/* Daemons start in a random order, so their registration does too. */
static void first_ticks(struct world *w)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct wevent *e = world_event(
            w, WE_TICK, w->now + 1 + ps_rng_below(&w->rng, PS_MILLIS(50)));

        e->node = &w->node[i];
        w->node[i].tick_at = e->item.key;
    }
}

struct world *world_new(const struct world_options *opt)
{
    struct world *w = ps_calloc(1, sizeof(*w));

    assert(opt->workers <= WORLD_WORKERS_MAX);
    assert(opt->rounds < 256 && opt->agents > 0);
    w->opt = *opt;
    w->trace_hash = 0xcbf29ce484222325u;
    ps_rng_init(&w->rng, opt->seed);
    ps_heap_init(&w->events);
    w->conns = ps_map_new();
    w->arenas = ps_map_new();
    w->keeps = ps_map_new();
    w->owners = ps_map_new();
    w->decoder = ps_decoder_new();
    start_sched(w);
    for (uint32_t i = 0; i < opt->servers; i++) {
        start_server(w, i);
    }
    for (uint32_t i = 0; i < opt->agents; i++) {
        begin_agent(w, node_new(w, PS_ROLE_AGENT, i));
    }
    first_ticks(w);
    for (uint32_t i = 0; i < opt->workers; i++) {
        struct wworker *k = &w->worker[i];
        struct wevent *e;

        k->index = i;
        k->agent =
            &w->node[1 + opt->servers +
                     (uint32_t)((uint64_t)i * opt->agents / opt->workers)];
        e = world_event(w, WE_WORKER,
                        w->now + 1 + ps_rng_below(&w->rng, PS_MILLIS(80)));
        e->number = i;
    }
    schedule_fault(w, FAULT_CUT, opt->faults.cut);
    schedule_fault(w, FAULT_PARTITION, opt->faults.partition);
    schedule_fault(w, FAULT_CRASH, opt->faults.crash);
    schedule_fault(w, FAULT_MOVE, opt->faults.move);
    schedule_fault(w, FAULT_AGENT, opt->faults.agent);
    if (opt->faults.lose_server) {
        struct wevent *e = world_event(
            w, WE_FAULT,
            PS_MILLIS(300) + ps_rng_below(&w->rng, PS_MILLIS(500)));
        e->number = FAULT_SERVER;
    }
    return w;
}

static void node_stop(struct wnode *n)
{
    if (!n->alive) {
        return;
    }
    n->alive = false;
    ps_sched_free(n->sched);
    ps_shard_free(n->shard);
    ps_agent_free(n->agent);
    n->agent = NULL;
    ps_effects_fini(&n->fx);
}

void world_free(struct world *w)
{
    struct ps_map_cursor cur = {0};
    struct ps_heap_item *item;
    struct wconn *c;

    if (w == NULL) {
        return;
    }
    while ((item = ps_heap_pop(&w->events)) != NULL) {
        event_free(PS_CONTAINER(item, struct wevent, item));
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        node_stop(&w->node[i]);
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        ps_pool_free(w->node[i].pool);
    }
    for (uint32_t i = 0; i < w->opt.workers; i++) {
        worker_release_memory(&w->worker[i]);
        worker_forget(&w->worker[i]);
    }
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        conn_free(c);
    }
    ps_map_free(w->conns);
    ps_map_free(w->arenas);
    ps_map_free(w->keeps);
    ps_map_free(w->owners);
    ps_heap_fini(&w->events);
    ps_decoder_free(w->decoder);
    ps_free(w->story);
    ps_free(w);
}

/* ------------------------------------------------------------ local sockets */

uint64_t world_local_connect(struct world *w, struct wworker *k)
{
    struct wconn *c = conn_new(w, k->agent, NULL);
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = c->id * 2};

    c->worker = k->index;
    c->open[0] = true;
    c->open[1] = true;
    k->conn = c->id;
    ev.open.kind = PS_CONN_LOCAL;
    ev.open.uid = 1000;
    ev.open.pid = 100 + k->index;
    ev.open.peer = "worker";
    world_step(w, k->agent, &ev);
    return c->id;
}

/* Worker to agent: at once, on a copy that is gone after the step. */
void world_local_send(struct world *w, struct wworker *k,
                      const struct ps_msg *msg)
{
    struct ps_msg *copy = ps_msg_dup(msg);
    struct ps_event ev = {.type = PS_EV_MSG, .conn = k->conn * 2};
    const struct wconn *c = world_conn(w, k->conn);

    if (c == NULL || c->cut) {
        ps_msg_free(copy);
        return; /* Its agent is dead, and it has not heard. */
    }
    ev.msg.msg = copy;
    if (msg->code == PS_MSG_L_OP && msg->l_op.op_id % 2 != 0) {
        ev.type = PS_EV_OPS; /* As out of a ring. */
        ev.ops.op = &copy->l_op;
        ev.ops.count = 1;
    }
    world_step(w, k->agent, &ev);
    ps_msg_free(copy);
}

struct ps_buf *world_kept(struct world *w, uint32_t number)
{
    struct ps_buf *memory = ps_map_get(w->keeps, number);

    if (memory == NULL) {
        world_fail(w, "no agent keeps anything under the number %u", number);
        return NULL;
    }
    return ps_buf_ref(memory);
}

void world_local_keep(struct world *w, struct wworker *k, uint32_t number,
                      struct ps_buf *memory)
{
    struct ps_event ev = {.type = PS_EV_KEEP, .conn = k->conn * 2};
    const struct wconn *c = world_conn(w, k->conn);

    if (c == NULL || c->cut) {
        return;
    }
    ev.region.region = number;
    ev.region.buf = keep_view(w, memory);
    world_step(w, k->agent, &ev);
    ps_buf_unref(ev.region.buf);
}

void world_local_region(struct world *w, struct wworker *k, uint32_t region,
                        struct ps_buf *buf)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = k->conn * 2};
    const struct wconn *c = world_conn(w, k->conn);

    if (c == NULL || c->cut) {
        return;
    }
    ev.region.region = region;
    ev.region.buf = buf;
    world_step(w, k->agent, &ev);
}

/* ------------------------------------------------------------------ stories */

ps_time world_now(const struct world *w)
{
    return w->now;
}

const char *world_error(const struct world *w)
{
    return w->error;
}

const char *world_story(const struct world *w)
{
    return w->story == NULL ? "" : w->story;
}

uint64_t world_result(const struct world *w)
{
    return w->result;
}

bool world_value(const struct world *w, uint32_t key, uint64_t version,
                 uint64_t *ret_hash)
{
    if (!w->seen_set[key][version]) {
        return false;
    }
    *ret_hash = w->seen_hash[key][version];
    return true;
}

uint64_t world_trace_hash(const struct world *w)
{
    return w->trace_hash;
}

uint64_t world_steps(const struct world *w)
{
    return w->steps;
}

uint64_t world_fault_count(const struct world *w)
{
    return w->faults;
}

void world_cut(struct world *w, const char *node_a, const char *node_b,
               ps_time for_how_long)
{
    struct wnode *a = node_by_name(w, node_a, strlen(node_a));
    struct wnode *b = node_by_name(w, node_b, strlen(node_b));
    struct ps_map_cursor cur = {0};
    struct wconn *c;
    struct wevent *e;

    assert(a != NULL && b != NULL);
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        if ((c->node[0] == a && c->node[1] == b) ||
            (c->node[0] == b && c->node[1] == a)) {
            world_close_conn(w, c, 0);
        }
    }
    w->split[node_index(w, a)][node_index(w, b)] = true;
    w->split[node_index(w, b)][node_index(w, a)] = true;
    e = world_event(w, WE_HEAL, w->now + for_how_long);
    e->conn = node_index(w, a);
    e->number = node_index(w, b);
}

void world_kill_worker(struct world *w, uint32_t rank)
{
    worker_kill(w, &w->worker[rank]);
}

void world_restart_worker(struct world *w, uint32_t rank)
{
    worker_event(w, &w->worker[rank]);
}

void world_kill_server(struct world *w, uint32_t index)
{
    struct wnode *n = &w->node[1 + index];
    struct ps_map_cursor cur = {0};
    struct wconn *c;

    assert(n->role == PS_ROLE_SERVER);
    if (!n->alive) {
        return;
    }
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        if (c->node[0] == n || c->node[1] == n) {
            world_close_conn(w, c, 0);
        }
    }
    node_stop(n);
}

void world_kill_agent(struct world *w, uint32_t index)
{
    struct wnode *n = &w->node[1 + w->opt.servers + index];
    struct ps_map_cursor cur = {0};
    struct wconn *c;

    assert(n->role == PS_ROLE_AGENT && n->alive);
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        for (uint32_t end = 0; end < 2; end++) {
            if (c->node[end] == n) {
                world_close_conn(w, c, 0);
                c->open[end] = false; /* Nobody is to hear of it there. */
                forget_stalled(c, end);
            }
        }
    }
    /* What is being computed goes with the process. */
    for (size_t i = 0; i < w->events.count; i++) {
        struct wevent *e = PS_CONTAINER(w->events.items[i], struct wevent,
                                        item);

        if (e->type == WE_COMPUTE && e->node == n) {
            ps_compute_free(e->compute);
            e->compute = NULL;
        }
    }
    node_stop(n);
    ps_pool_free(n->pool);
    n->pool = NULL;
    n->life++;
}

void world_restart_agent(struct world *w, uint32_t index)
{
    struct wnode *n = &w->node[1 + w->opt.servers + index];
    struct wevent *e;

    assert(!n->alive);
    n->alive = true;
    n->tick_at = PS_TIME_NEVER;
    ps_effects_init(&n->fx);
    begin_agent(w, n);
    e = world_event(w, WE_TICK, w->now + 1);
    e->node = n;
    n->tick_at = e->item.key;
}

void world_hold_worker(struct world *w, uint32_t rank, uint64_t round)
{
    w->worker[rank].hold_round = round;
}

void world_release_worker(struct world *w, uint32_t rank)
{
    struct wworker *k = &w->worker[rank];

    k->hold_round = 0;
    if (k->held) {
        struct wevent *e = world_event(w, WE_WORKER, w->now);

        e->number = rank;
        e->incarnation = k->life;
    }
}

bool world_worker_done(const struct world *w, uint32_t rank)
{
    return w->worker[rank].stage == WS_DONE;
}

int world_worker_error(const struct world *w, uint32_t rank, char *text,
                       size_t cap)
{
    ps_str_copy(text, cap, w->worker[rank].text);
    return w->worker[rank].error;
}

void world_ask_why(struct world *w, uint32_t rank)
{
    struct wworker *k = &w->worker[rank];
    struct ps_msg m = {.code = PS_MSG_L_WHY};

    m.l_why.op_id = k->oldest_op;
    world_local_send(w, k, &m);
}

const char *world_why(const struct world *w, uint32_t rank)
{
    return w->worker[rank].why;
}
