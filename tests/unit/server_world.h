/* SPDX-License-Identifier: Apache-2.0 */
/* A server machine, a scheduler and some agents, for test_server*.c. Both ends
 * of every connection run the real link; between them is a function call.
 * Computations run when the test asks for it, or at once. */
#pragma once

#include "base/alloc.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/str.h"
#include "core/codec/compression.h"
#include "core/link/link.h"
#include "core/server/server.h"
#include "support/server_peek.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define AGENTS_MAX 8u
#define KEYS_MAX   128u
#define GEN        UINT64_C(100)
#define NODE(i)    (10u + (uint32_t)(i))

struct world;

/* Replies that an agent got for a key of one partition. */
struct seen {
    uint64_t value_version;
    uint64_t commit_version;
    uint64_t clock;
    bool all_skipped; /* All ranks skipped, as of the last reply. */
    uint32_t values;  /* Number of values received. */
    uint32_t commits;
    uint32_t refusals;
    int error;                  /* Error of the last refusal. */
    uint32_t retry;             /* Its retry number. */
    uint32_t epoch;             /* Its epoch. */
    uint32_t conflict_slots[8]; /* Slots that it names. */
    uint32_t conflict_slot_count;
    bool assign;
    uint8_t bytes[256];
    size_t len;
};

struct agent {
    struct world *w;
    uint32_t index;
    const char *name; /* As its hello says; NULL: "agent". */
    uint64_t incarnation;
    uint64_t instance;
    uint64_t session;
    ps_conn_id conn; /* 0: none. */
    struct ps_link *link;
    struct ps_rng rng;
    struct ps_effects out;
    bool resumed; /* As the last welcome states. */
    bool mute;    /* Frames of the server are dropped. */
    int rejected; /* Error of the last reject. */
    const struct ps_peer_identity *identity; /* NULL: no certificate. */
    bool is_owner;          /* It is a server, with a backup here. */
    uint64_t copied_number; /* The last one that is confirmed. */
    uint64_t refused_copy;  /* The last one that is refused. */
    bool is_stream;         /* Else payloads to it go by reference. */
    uint64_t sent;          /* Push bytes of this session. */
    uint32_t retry;         /* Retry number of its pushes. */
    uint64_t credit;
    uint32_t value_frames;
    uint32_t credit_frames;
    uint32_t row_frames;
    uint32_t states;        /* Number of replies about optimizer state. */
    int state_error;        /* Error of the last of them. */
    char text[PS_TEXT_MAX]; /* Text of the last refusal. */
    struct seen seen[KEYS_MAX];
};

/* Another server that gets copies from this one, at address "peer:1"; the test
 * confirms them. */
#define PEER_NODE     40u
#define PEER_INSTANCE 41u

struct peer {
    struct world *w;
    ps_conn_id conn; /* 0: none. */
    struct ps_link *link;
    struct ps_effects out;
    struct ps_rng rng;
    uint32_t copies; /* Messages. */
    /* Of the last one. */
    struct ps_msg_copy last; /* Without what it points to. */
    struct ps_rec_part_image image;
    uint64_t lens[PS_PART_BUFFERS];
    /* Of the version that the last one is of. */
    uint8_t data[PS_PART_BUFFERS][64];
};

struct world {
    struct ps_pool *pool;
    struct ps_records *records; /* NULL: none. */
    struct ps_trace *trace;
    struct ps_server *server;
    struct ps_machine machine;
    struct ps_effects fx;
    ps_time now;
    ps_conn_id next_conn;
    bool hold_compute; /* The test ends computations. */
    struct ps_compute *computes[4096];
    uint32_t compute_count;

    struct ps_link *sched;
    struct ps_effects sched_out;
    struct ps_rng rng;
    ps_conn_id sched_conn;
    bool sched_silent; /* Dials fail. */
    uint32_t dials;
    uint32_t pings;
    uint32_t ping_ack_count;
    struct ps_msg_ping_ack last_ping_ack;
    uint32_t epoch;    /* As the last ping states. */
    uint64_t restarts; /* Restarts of the scheduler. */
    bool refuses_name; /* The scheduler rejects the name. */
    bool may_fail;     /* A step may fail. */
    int rc;            /* Result of the last step. */
    uint32_t job_ready_count;
    struct ps_msg *trace_entries; /* The last ones; NULL: none. */
    uint32_t norm_part_count;
    struct ps_msg_norm_part last_norm_part;    /* Without the digits. */
    struct ps_msg_norm_result norm_results[3]; /* Last ones, by stage. */
    double square;
    double weight_square;
    uint32_t value_lost_count;
    struct ps_msg_moved last_moved; /* Without the text. */
    char moved_text[PS_TEXT_MAX];
    uint32_t moved_count;
    uint32_t filled_count;
    uint32_t filled_epoch;       /* Of the last `filled`. */
    struct ps_msg *refused_read; /* The last part_chunk or part_ack. */
    struct ps_msg_job_ready last_ready;
    uint64_t ready_gen;
    uint32_t ready_version;
    uint64_t up_session;
    bool up_resumed;
    bool draining;     /* As the last ping states. */
    bool memory_short; /* As the last ping states. */

    uint32_t closed_count;
    char last_log[1024]; /* Text of the last warning or error. */
    uint32_t slots;
    uint64_t credit_first;
    struct agent agents[AGENTS_MAX];
    struct peer peer;
};

static inline void world_run_until_idle(struct world *w);

static inline void world_event(struct world *w, const struct ps_event *ev)
{
    w->rc = w->machine.ops->step(w->machine.self, ev, &w->fx);
    assert_true(w->rc == 0 || w->may_fail);
}

/* ------------------------------------------------------- towards a server */

/* Delivers a frame as a driver does: first the header, then the bytes. */
static inline void world_frame(struct world *w, ps_conn_id conn,
                               const struct ps_msg *msg,
                               const struct ps_slice *in, uint64_t len)
{
    struct ps_slice got = {.len = len};
    struct ps_event ev = {
        .now = w->now,
        .type = PS_EV_MSG,
        .conn = conn,
        .msg = {.msg = msg, .payload = len > 0 ? &got : NULL},
    };

    if (len > 0) {
        int rc = w->machine.ops->payload(w->machine.self, conn, msg, len, &got);

        /* Pacing holds the frame back while other agents send. */
        for (int i = 0; rc == PS_E_AGAIN && i < 100; i++) {
            w->now = ps_time_add(w->now, PS_MILLIS(5));
            world_event(w,
                        &(struct ps_event){.now = w->now, .type = PS_EV_TICK});
            rc = w->machine.ops->payload(w->machine.self, conn, msg, len, &got);
        }
        ev.now = w->now;
        assert_int_not_equal(rc, PS_E_AGAIN);
        ev.msg.discard_reason = rc;
        if (rc != 0) {
            got = (struct ps_slice){0};
        } else {
            assert_int_equal(got.len, len);
            memcpy(ps_slice_data(&got), ps_slice_data(in), len);
        }
    }
    world_event(w, &ev);
    ps_buf_unref(got.buf);
}

/* Delivers the frames that an agent's link has sent to the server. */
static inline void agent_flush(struct agent *a)
{
    for (uint32_t i = 0; i < a->out.count; i++) {
        struct ps_fx *f = &a->out.items[i];

        if (f->type != PS_FX_SEND) {
            continue;
        }
        const struct ps_packet *p = f->send.packet;
        struct ps_msg msg = *p->msg;

        msg.seq = f->send.seq;
        msg.ack = f->send.ack;
        if (f->send.conn == a->conn) {
            world_frame(a->w, a->conn, &msg,
                        p->slice_count > 0 ? &p->slices[0] : NULL,
                        p->payload_len);
        }
    }
    ps_effects_clear(&a->out);
}

/* ----------------------------------------------------------- from a server */

static inline struct seen *agent_seen(struct agent *a,
                                      const struct ps_rec_part *rec)
{
    assert_true(rec->key < KEYS_MAX && rec->index == 0);
    return &a->seen[rec->key];
}

static inline void agent_on_value(struct agent *a, const struct ps_msg_value *m,
                                  const struct ps_packet *p)
{
    uint32_t slice = 0;
    size_t at = 0; /* Adjacent parts arrive as one slice. */

    a->value_frames++;
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        struct seen *s = agent_seen(a, rec);
        size_t len = rec->count * ps_dtype_size(rec->dtype);

        assert_true(slice < p->slice_count && len <= p->slices[slice].len - at);
        s->values++;
        s->value_version = rec->round;
        s->clock = rec->clock;
        s->all_skipped = rec->all_skipped;
        s->len = len < sizeof(s->bytes) ? len : sizeof(s->bytes);
        memcpy(s->bytes, ps_slice_data(&p->slices[slice]) + at, s->len);
        at += len;
        if (at == p->slices[slice].len) {
            slice++;
            at = 0;
        }
    }
    assert_int_equal(slice, p->slice_count);
}

static inline void agent_on_credit(struct agent *a, uint64_t credit)
{
    if (credit > a->credit) {
        a->credit = credit;
    }
}

static inline void agent_on_msg(struct agent *a, const struct ps_msg *msg,
                                const struct ps_packet *p)
{
    switch (msg->code) {
    case PS_MSG_VALUE:
        agent_on_credit(a, msg->value.credit);
        agent_on_value(a, &msg->value, p);
        break;
    case PS_MSG_COMMIT:
        agent_on_credit(a, msg->commit.credit);
        for (uint32_t i = 0; i < msg->commit.parts_count; i++) {
            struct seen *s = agent_seen(a, &msg->commit.parts[i]);

            s->commits++;
            s->commit_version = msg->commit.parts[i].round;
            s->clock = msg->commit.parts[i].clock;
            s->all_skipped = msg->commit.parts[i].all_skipped;
        }
        break;
    case PS_MSG_REFUSE:
        agent_on_credit(a, msg->refuse.credit);
        ps_str_copy(a->text, sizeof(a->text),
                    msg->refuse.text != NULL ? msg->refuse.text : "");
        for (uint32_t i = 0; i < msg->refuse.parts_count; i++) {
            struct seen *s = agent_seen(a, &msg->refuse.parts[i]);

            s->refusals++;
            s->error = msg->refuse.error;
            s->retry = msg->refuse.retry;
            s->epoch = msg->refuse.epoch;
            s->assign = msg->refuse.conflict_assign;
            s->conflict_slot_count = msg->refuse.conflict_slots_count;
            for (uint32_t n = 0; n < s->conflict_slot_count && n < 8; n++) {
                s->conflict_slots[n] = msg->refuse.conflict_slots[n];
            }
        }
        break;
    case PS_MSG_CREDIT:
        a->credit_frames++;
        agent_on_credit(a, msg->credit.credit);
        break;
    case PS_MSG_ROWS:
        a->row_frames++;
        break;
    case PS_MSG_STATE:
        a->states++;
        a->state_error = msg->state.error;
        break;
    case PS_MSG_COPIED:
        assert_true(a->is_owner);
        for (uint32_t i = 0; i < msg->copied.copies_count; i++) {
            a->copied_number = msg->copied.copies[i].number;
        }
        for (uint32_t i = 0; i < msg->copied.refused_count; i++) {
            a->refused_copy = msg->copied.refused[i].number;
        }
        break;
    case PS_MSG_PONG:
        break;
    default:
        fail_msg("an agent got %s", ps_msg_name(msg->code));
    }
}

static inline void agent_receive(struct agent *a, const struct ps_msg *msg,
                                 const struct ps_packet *p)
{
    if (a->mute) {
        return;
    }
    if (msg->code == PS_MSG_WELCOME) {
        a->resumed = msg->welcome.resumed;
        if (!a->resumed) {
            a->sent = 0;
            a->credit = a->w->credit_first;
        }
        ps_link_open(a->link, a->conn, a->resumed, msg->welcome.received,
                     a->w->now, &a->out);
    } else if (msg->code == PS_MSG_REJECT) {
        a->rejected = msg->reject.error;
    } else if (ps_link_receive(a->link, msg, a->w->now, &a->out)) {
        agent_on_msg(a, msg, p);
    }
}

static inline void sched_on_norm_part(struct world *w,
                                      const struct ps_msg_norm_part *m)
{
    struct ps_square_sum s[2] = {0};

    ps_square_sum_add_packed(&s[0], 0, m->first_digit, m->digits,
                             m->digits_count);
    ps_square_sum_add_packed(&s[1], 0, m->weight_first_digit, m->weight_digits,
                             m->weight_digits_count);
    w->norm_part_count++;
    w->last_norm_part = *m;
    w->last_norm_part.digits = w->last_norm_part.weight_digits = NULL;
    w->square = ps_square_sum_value(&s[0]);
    w->weight_square = ps_square_sum_value(&s[1]);
}

static inline void sched_receive(struct world *w, const struct ps_msg *msg)
{
    if (msg->code == PS_MSG_HELLO && w->refuses_name) {
        world_frame(w, w->sched_conn,
                    &(struct ps_msg){.code = PS_MSG_REJECT,
                                     .reject = {.error = PS_E_EXIST,
                                                .text = "the name is taken"}},
                    NULL, 0);
    } else if (msg->code == PS_MSG_HELLO) {
        bool resumed = w->sched != NULL && w->up_session == msg->hello.session;

        assert_int_equal(msg->hello.role, PS_ROLE_SERVER);
        assert_string_equal(msg->hello.address, "127.0.0.1:7002");
        if (w->sched == NULL) {
            w->sched = ps_link_new(&(struct ps_link_options){0}, &w->rng);
        }
        w->up_session = msg->hello.session;
        w->up_resumed = resumed;
        world_frame(w, w->sched_conn,
                    &(struct ps_msg){
                        .code = PS_MSG_WELCOME,
                        .welcome = {.protocol = PS_PROTOCOL,
                                    .name = "sched",
                                    .instance = 1 + w->restarts,
                                    .node = 2,
                                    .incarnation = 1,
                                    .resumed = resumed,
                                    .received = ps_link_received(w->sched),
                                    .heartbeat_ns = PS_MILLIS(500)},
                    },
                    NULL, 0);
        ps_link_open(w->sched, w->sched_conn, resumed, msg->hello.received,
                     w->now, &w->sched_out);
    } else if (msg->code == PS_MSG_PING) {
        w->pings++;
        w->epoch = msg->ping.epoch;
        w->memory_short = msg->ping.memory_short;
        w->draining = msg->ping.draining;
        world_frame(w, w->sched_conn,
                    &(struct ps_msg){.code = PS_MSG_PONG,
                                     .ack = ps_link_received(w->sched)},
                    NULL, 0);
    } else if (msg->code == PS_MSG_PING_ACK) {
        w->ping_ack_count++;
        w->last_ping_ack = msg->ping_ack;
    } else if (ps_link_receive(w->sched, msg, w->now, &w->sched_out)) {
        if (msg->code == PS_MSG_NORM_PART) {
            sched_on_norm_part(w, &msg->norm_part);
            return;
        }
        if (msg->code == PS_MSG_NORM_RESULT) {
            w->norm_results[msg->norm_result.stage] = msg->norm_result;
            return;
        }
        if (msg->code == PS_MSG_VALUE_LOST) {
            w->value_lost_count++;
            return;
        }
        if (msg->code == PS_MSG_MOVED) {
            w->moved_count++;
            w->last_moved = msg->moved;
            w->last_moved.text = NULL;
            ps_str_copy(w->moved_text, sizeof(w->moved_text),
                        ps_str_or_empty(msg->moved.text));
            return;
        }
        if (msg->code == PS_MSG_FILLED) {
            if (msg->filled.percent == 100) {
                w->filled_count++;
                w->filled_epoch = msg->filled.epoch;
            }
            return;
        }
        if (msg->code == PS_MSG_PART_CHUNK || msg->code == PS_MSG_PART_ACK) {
            ps_msg_free(w->refused_read);
            w->refused_read = ps_msg_dup(msg);
            return;
        }
        if (msg->code == PS_MSG_COSTS) {
            return;
        }
        if (msg->code == PS_MSG_TRACE_ENTRIES) {
            ps_msg_free(w->trace_entries);
            w->trace_entries = ps_msg_dup(msg);
            return;
        }
        assert_int_equal(msg->code, PS_MSG_JOB_READY);
        w->job_ready_count++;
        w->last_ready = msg->job_ready;
        w->ready_gen = msg->job_ready.gen;
        w->ready_version = msg->job_ready.version;
    }
}

static inline void sched_flush(struct world *w)
{
    for (uint32_t i = 0; i < w->sched_out.count; i++) {
        struct ps_fx *f = &w->sched_out.items[i];

        if (f->type == PS_FX_SEND && f->send.conn == w->sched_conn) {
            struct ps_msg msg = *f->send.packet->msg;

            msg.seq = f->send.seq;
            msg.ack = f->send.ack;
            if (f->send.packet->slice_count > 0) {
                const struct ps_slice *s = &f->send.packet->slices[0];

                world_frame(w, w->sched_conn, &msg, s, s->len);
            } else {
                world_frame(w, w->sched_conn, &msg, NULL, 0);
            }
        }
    }
    ps_effects_clear(&w->sched_out);
}

/* ------------------------------------------------- the server that gets copies */

static inline void peer_on_copy(struct peer *p, const struct ps_msg_copy *m,
                                const struct ps_packet *packet)
{
    const struct ps_slice *s = packet->slices;

    assert_int_equal(m->image_count, 1);
    assert_int_equal(m->buffer_bytes_count, PS_PART_BUFFERS);
    p->copies++;
    p->image = *m->image;
    memcpy(p->lens, m->buffer_bytes, sizeof(p->lens));
    if (packet->slice_count > 0) {
        assert_in_range(s->len, 1, sizeof(p->data[0]));
        assert_int_equal(s->len, p->lens[m->buffer]);
        memcpy(p->data[m->buffer], ps_slice_data(s), s->len);
    }
    p->last = *m;
    p->last.image = &p->image;
    p->last.buffer_bytes = p->lens;
}

static inline void peer_receive(struct peer *p, const struct ps_msg *msg,
                                const struct ps_packet *packet)
{
    if (msg->code == PS_MSG_HELLO) {
        assert_int_equal(msg->hello.role, PS_ROLE_SERVER);
        if (p->link == NULL) {
            p->link = ps_link_new(&(struct ps_link_options){0}, &p->rng);
        }
        world_frame(p->w, p->conn,
                    &(struct ps_msg){
                        .code = PS_MSG_WELCOME,
                        .welcome = {.protocol = PS_PROTOCOL,
                                    .name = "peer",
                                    .instance = PEER_INSTANCE,
                                    .received = ps_link_received(p->link)}},
                    NULL, 0);
        ps_link_open(p->link, p->conn, false, msg->hello.received, p->w->now,
                     &p->out);
    } else if (ps_link_receive(p->link, msg, p->w->now, &p->out) &&
               msg->code == PS_MSG_COPY) {
        peer_on_copy(p, &msg->copy, packet);
    }
}

static inline void peer_flush(struct peer *p)
{
    for (uint32_t i = 0; i < p->out.count; i++) {
        struct ps_fx *f = &p->out.items[i];

        if (f->type == PS_FX_SEND && f->send.conn == p->conn) {
            struct ps_msg msg = *f->send.packet->msg;

            msg.seq = f->send.seq;
            msg.ack = f->send.ack;
            world_frame(p->w, p->conn, &msg, NULL, 0);
        }
    }
    ps_effects_clear(&p->out);
}

/* Confirms the last copy. */
static inline void peer_confirm(struct peer *p)
{
    const struct ps_rec_part_copy copy = {
        .key = p->last.key, .index = p->last.index, .number = p->last.number};

    ps_link_send_msg(p->link,
                     &(struct ps_msg){.code = PS_MSG_COPIED,
                                      .copied = {.gen = p->last.gen,
                                                 .epoch = p->last.epoch,
                                                 .move = p->last.move,
                                                 .copies = &copy,
                                                 .copies_count = 1}},
                     p->w->now, &p->out);
    world_run_until_idle(p->w);
}

/* -------------------------------------------------------------- the driver */

static inline void world_closed(struct world *w, ps_conn_id conn)
{
    if (conn == w->sched_conn) {
        w->sched_conn = 0;
        if (w->sched != NULL) {
            ps_link_close(w->sched);
        }
    }
    if (conn == w->peer.conn && conn != 0) {
        w->peer.conn = 0;
        ps_link_close(w->peer.link);
    }
    for (uint32_t i = 0; i < AGENTS_MAX; i++) {
        if (w->agents[i].conn == conn) {
            w->agents[i].conn = 0;
            ps_link_close(w->agents[i].link);
        }
    }
    world_event(w, &(struct ps_event){.now = w->now,
                                      .type = PS_EV_CLOSED,
                                      .conn = conn,
                                      .closed = {.rc = PS_E_CLOSED}});
}

static inline void world_send(struct world *w, const struct ps_fx *f)
{
    struct ps_msg msg = *f->send.packet->msg;

    msg.seq = f->send.seq;
    msg.ack = f->send.ack;
    if (f->send.conn == w->sched_conn && w->sched_conn != 0) {
        sched_receive(w, &msg);
        return;
    }
    if (f->send.conn == w->peer.conn && w->peer.conn != 0) {
        peer_receive(&w->peer, &msg, f->send.packet);
        return;
    }
    for (uint32_t i = 0; i < AGENTS_MAX; i++) {
        if (w->agents[i].conn == f->send.conn && f->send.conn != 0) {
            agent_receive(&w->agents[i], &msg, f->send.packet);
        }
    }
}

static inline void world_computed(struct world *w, uint32_t i, int rc)
{
    struct ps_compute *c = w->computes[i];

    w->computes[i] = w->computes[--w->compute_count];
    if (rc == 0) {
        rc = ps_kernel_run(&c->job);
    }
    world_event(w,
                &(struct ps_event){.now = w->now,
                                   .type = PS_EV_COMPUTED,
                                   .computed = {.token = c->token, .rc = rc}});
    ps_compute_free(c);
}

static inline void world_apply_effect(struct world *w, struct ps_fx *f)
{
    switch (f->type) {
    case PS_FX_SEND:
        world_send(w, f);
        break;
    case PS_FX_DIAL: {
        struct ps_event ev = {.now = w->now, .type = PS_EV_DIAL_FAILED};

        w->dials++;
        if (w->sched_silent) {
            ev.dial_failed.target = f->dial.target;
            ev.dial_failed.rc = PS_E_UNREACH;
        } else {
            ps_conn_id *to = strcmp(f->dial.address, "peer:1") == 0
                                 ? &w->peer.conn
                                 : &w->sched_conn;

            ev.type = PS_EV_OPEN;
            ev.conn = *to = ++w->next_conn;
            ev.open.kind = PS_CONN_DIALLED;
            ev.open.target = f->dial.target;
        }
        world_event(w, &ev);
        break;
    }
    case PS_FX_CLOSE:
        w->closed_count++;
        world_closed(w, f->close.conn);
        break;
    case PS_FX_STORE:
    case PS_FX_PROBE:
    case PS_FX_OP_DONE:
    case PS_FX_OP_PROGRESS:
        assert_true(false); /* Servers have no workers' connections. */
        break;
    case PS_FX_COMPUTE:
        for (uint32_t i = 0; i < f->compute->job.src_count; i++) {
            assert_int_equal((uintptr_t)f->compute->src[i] %
                                 ps_dtype_size(f->compute->job.dtype),
                             0);
        }
        assert_true(w->compute_count < 4096);
        w->computes[w->compute_count++] = f->compute;
        f->compute = NULL;
        break;
    case PS_FX_LOG:
        if (f->log.level <= PS_LOG_WARNING) {
            strncpy(w->last_log, f->log.text, sizeof(w->last_log) - 1);
        }
        break;
    case PS_FX_LOG_LEVEL:
        break; /* All lines are seen here. */
    }
}

/* One pass: carries out the effects, then delivers the replies of the peers. */
static inline bool world_run_once(struct world *w)
{
    struct ps_effects fx = w->fx;
    bool busy = fx.count > 0;

    ps_effects_init(&w->fx);
    for (uint32_t i = 0; i < fx.count; i++) {
        world_apply_effect(w, &fx.items[i]);
    }
    ps_effects_fini(&fx);
    for (uint32_t i = 0; i < AGENTS_MAX; i++) {
        busy |= w->agents[i].out.count > 0;
        agent_flush(&w->agents[i]);
    }
    busy |= w->sched_out.count > 0 || w->peer.out.count > 0;
    sched_flush(w);
    peer_flush(&w->peer);
    while (!w->hold_compute && w->compute_count > 0) {
        busy = true;
        world_computed(w, 0, 0);
    }
    if (w->fx.count == 0 &&
        w->machine.ops->deadline(w->machine.self) <= w->now) {
        busy = true;
        world_event(w, &(struct ps_event){.now = w->now, .type = PS_EV_TICK});
    }
    return busy;
}

static inline void world_run_until_idle(struct world *w)
{
    uint32_t turns = 0;

    while (world_run_once(w)) {
        assert_true(++turns < 10000);
    }
}

/* Lets time pass, with every tick that is due. */
static inline void world_run(struct world *w, ps_time span)
{
    ps_time end = w->now + span;

    world_run_until_idle(w);
    while (w->now < end) {
        ps_time next = w->machine.ops->deadline(w->machine.self);

        for (uint32_t i = 0; i < AGENTS_MAX; i++) {
            if (w->agents[i].conn != 0) {
                next = ps_time_min(next, ps_link_deadline(w->agents[i].link));
            }
        }
        if (w->sched_conn != 0 && w->sched != NULL) {
            next = ps_time_min(next, ps_link_deadline(w->sched));
        }
        w->now = next > end ? end : next > w->now ? next : w->now + 1;
        for (uint32_t i = 0; i < AGENTS_MAX; i++) {
            if (w->agents[i].conn != 0) {
                ps_link_tick(w->agents[i].link, w->now, &w->agents[i].out);
            }
        }
        if (w->sched_conn != 0 && w->sched != NULL) {
            ps_link_tick(w->sched, w->now, &w->sched_out);
        }
        world_run_until_idle(w);
    }
}

/* --------------------------------------------------------------- scheduler */

struct job_options {
    uint64_t gen; /* 0: GEN. */
    uint32_t version;
    enum ps_job_phase phase;
    const struct ps_rec_param *params; /* NULL: no optimizer. */
    uint32_t params_count;
    const char *optimizer;   /* NULL: sgd. */
    const char *compression; /* NULL: none. */
    uint8_t profile_mode;
    uint32_t profile_number;
    bool without_names;               /* As a scheduler that states no names. */
    const struct ps_rec_place *place; /* NULL: it states none. */
    uint32_t place_count;             /* 0: one. */
    uint32_t replicas;
    bool was_rebalanced;
    bool has_moved;
};

static inline void sched_send_job_state(struct world *w,
                                        const struct job_options *opt)
{
    struct ps_rec_slot slots[AGENTS_MAX];

    for (uint32_t i = 0; i < w->slots; i++) {
        slots[i] = (struct ps_rec_slot){
            .node = NODE(i),
            .incarnation = w->agents[i].incarnation,
            .instance = w->agents[i].instance,
            .ranks = 1,
            .name = opt->without_names ? "" : "agent",
        };
    }
    ps_link_send_msg(w->sched,
                     &(struct ps_msg){
                         .code = PS_MSG_JOB_STATE,
                         .job_state = {.gen = opt->gen != 0 ? opt->gen : GEN,
                                       .version = opt->version,
                                       .name = "job",
                                       .phase = (uint8_t)opt->phase,
                                       .slots = slots,
                                       .slots_count = w->slots,
                                       .optimizer = opt->params == NULL ? ""
                                                    : opt->optimizer == NULL
                                                        ? "sgd"
                                                        : opt->optimizer,
                                       .params = opt->params,
                                       .params_count = opt->params_count,
                                       .profile_mode = opt->profile_mode,
                                       .profile_number = opt->profile_number,
                                       .places = opt->place,
                                       .places_count = opt->place == NULL ? 0
                                                       : opt->place_count == 0
                                                           ? 1
                                                           : opt->place_count,
                                       .replicas = opt->replicas,
                                       .was_rebalanced = opt->was_rebalanced,
                                       .has_moved = opt->has_moved,
                                       .compression = opt->compression == NULL
                                                          ? ""
                                                          : opt->compression},
                     },
                     w->now, &w->sched_out);
    world_run_until_idle(w);
}

static inline void sched_send_norm_result(struct world *w,
                                          const struct ps_msg_norm_result *m)
{
    ps_link_send_msg(
        w->sched,
        &(struct ps_msg){.code = PS_MSG_NORM_RESULT, .norm_result = *m}, w->now,
        &w->sched_out);
    world_run_until_idle(w);
}

/* Where the peer is. */
static inline void sched_send_map(struct world *w)
{
    const struct ps_rec_server peer = {
        .node = PEER_NODE, .name = "peer", .address = "peer:1"};

    ps_link_send_msg(
        w->sched,
        &(struct ps_msg){
            .code = PS_MSG_MAP,
            .map = {.epoch = 2, .servers = &peer, .servers_count = 1}},
        w->now, &w->sched_out);
    world_run_until_idle(w);
}

/* The partition 0 of the key moves to the peer, or from a server; `epoch`: of the
 * placement before. */
static inline void sched_move_at(struct world *w, uint64_t number, uint32_t key,
                                 const struct agent *from, uint32_t epoch)
{
    const uint32_t own = w->server->uplink.node;

    ps_link_send_msg(
        w->sched,
        &(struct ps_msg){
            .code = PS_MSG_MOVE,
            .move = {.move = number,
                     .gen = GEN,
                     .key = key,
                     .source = from != NULL ? NODE(from->index) : own,
                     .source_name = "agent",
                     .source_incarnation = from != NULL ? from->incarnation : 1,
                     .source_instance = from != NULL ? from->instance : 77,
                     .target = from != NULL ? own : PEER_NODE,
                     .target_instance = from != NULL ? 77 : PEER_INSTANCE,
                     .epoch = epoch}},
        w->now, &w->sched_out);
    world_run_until_idle(w);
}

static inline void sched_move(struct world *w, uint64_t number, uint32_t key,
                              const struct agent *from)
{
    sched_move_at(w, number, key, from, 4);
}

static inline void sched_move_end(struct world *w, uint64_t number,
                                  uint32_t key, bool is_owner, uint32_t epoch)
{
    ps_link_send_msg(w->sched,
                     &(struct ps_msg){.code = PS_MSG_MOVE_END,
                                      .move_end = {.move = number,
                                                   .gen = GEN,
                                                   .key = key,
                                                   .is_owner = is_owner,
                                                   .epoch = epoch}},
                     w->now, &w->sched_out);
    world_run_until_idle(w);
}

/* Answer to the last question about a partition that was taken over. */
static inline void sched_answer(struct world *w, bool is_owner)
{
    const struct ps_msg_moved *m = &w->last_moved;

    assert_int_not_equal(m->version, 0);
    ps_link_send_msg(w->sched,
                     &(struct ps_msg){.code = PS_MSG_MOVE_END,
                                      .move_end = {.move = m->move,
                                                   .gen = GEN,
                                                   .key = m->key,
                                                   .is_owner = is_owner,
                                                   .epoch = 9,
                                                   .version = m->version}},
                     w->now, &w->sched_out);
    world_run_until_idle(w);
}

static inline void sched_end(struct world *w)
{
    sched_send_job_state(
        w, &(struct job_options){.version = 99, .phase = PS_JOB_PHASE_ENDED});
}

/* ------------------------------------------------------------------ agents */

static inline struct ps_msg agent_hello_msg(const struct agent *a)
{
    return (struct ps_msg){
        .code = PS_MSG_HELLO,
        .hello = {.protocol = PS_PROTOCOL,
                  .protocol_least = PS_PROTOCOL_LEAST,
                  .role = a->is_owner ? PS_ROLE_SERVER : PS_ROLE_AGENT,
                  .name = a->name != NULL ? a->name : "agent",
                  .cluster = "test",
                  .instance = a->instance,
                  .node = NODE(a->index),
                  .incarnation = a->incarnation,
                  .session = a->session,
                  .received = ps_link_received(a->link)},
    };
}

static inline void agent_open(struct agent *a)
{
    a->conn = ++a->w->next_conn;
    world_event(a->w, &(struct ps_event){
                          .now = a->w->now,
                          .type = PS_EV_OPEN,
                          .conn = a->conn,
                          .open = {.kind = PS_CONN_ACCEPTED,
                                   .identity = a->identity,
                                   .is_by_reference = !a->is_stream,
                                   .peer = "test"},
                      });
    world_run_until_idle(a->w);
}

static inline void agent_dial(struct agent *a)
{
    agent_open(a);

    struct ps_msg hello = agent_hello_msg(a);

    a->rejected = 0;
    world_frame(a->w, a->conn, &hello, NULL, 0);
    world_run_until_idle(a->w);
}

static inline void agent_disconnect(struct agent *a)
{
    world_closed(a->w, a->conn);
    world_run_until_idle(a->w);
}

/* The same process, without the state of the link. */
static inline void agent_drop_link(struct agent *a)
{
    a->session++;
    ps_link_free(a->link);
    a->link = ps_link_new(&(struct ps_link_options){0}, &a->rng);
}

static inline void agent_restart(struct agent *a)
{
    a->incarnation++;
    a->instance++;
    agent_drop_link(a);
}

static inline void agent_send(struct agent *a, const struct ps_msg *msg,
                              const void *data, size_t len)
{
    struct ps_slice s = {.len = len};

    if (len > 0) {
        s.buf = ps_buf_new(len);
        memcpy(s.buf->data, data, len);
    }
    ps_link_send(a->link, ps_packet_new(msg, &s, len > 0 ? 1 : 0), a->w->now,
                 &a->out);
    ps_buf_unref(s.buf);
}

struct push_options {
    uint32_t key;
    uint64_t round;
    enum ps_dtype dtype;
    uint32_t count;
    const void *data;
    uint32_t weight; /* 0: 1 */
    enum ps_reduce reduce;
    enum ps_rule rule; /* NONE: a round. */
    uint64_t clock;
    bool assign;
    bool commit_only;
    bool skips; /* All ranks of the slot skip. */
};

static inline void agent_push(struct agent *a, const struct push_options *o)
{
    struct ps_rec_part part = {
        .key = o->key,
        .round = o->round,
        .dtype = (uint8_t)o->dtype,
        .count = o->count,
        .clock = o->clock,
    };
    size_t len = o->count * ps_dtype_size(o->dtype);
    struct ps_msg msg = {
        .code = PS_MSG_PUSH,
        .push = {.gen = GEN,
                 .slot = a->index,
                 .incarnation = a->incarnation,
                 .weight = o->skips         ? 0
                           : o->weight == 0 ? 1
                                            : o->weight,
                 .reduce = (uint8_t)o->reduce,
                 .rule = (uint8_t)o->rule,
                 .assign = o->assign,
                 .needs_value = !o->commit_only,
                 .retry = a->retry,
                 .parts = &part,
                 .parts_count = 1},
    };

    a->sent += len;
    agent_send(a, &msg, o->data, len);
    world_run_until_idle(a->w);
}

static inline void agent_push_f32(struct agent *a, uint32_t key, uint64_t round,
                                  float v)
{
    agent_push(a, &(struct push_options){
                      .key = key, .round = round, .count = 1, .data = &v});
}

static inline void agent_skip(struct agent *a, uint32_t key, uint64_t round)
{
    agent_push(
        a, &(struct push_options){
               .key = key, .round = round, .skips = true, .commit_only = true});
}

static inline void agent_push_i64(struct agent *a, uint32_t key, uint64_t round,
                                  int64_t v)
{
    agent_push(a, &(struct push_options){.key = key,
                                         .round = round,
                                         .dtype = PS_DTYPE_INT64,
                                         .count = 1,
                                         .data = &v});
}

static inline void agent_pull(struct agent *a, uint32_t key, uint64_t least)
{
    struct ps_rec_part part = {.key = key, .round = least};

    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_PULL,
                                .pull = {.gen = GEN,
                                         .slot = a->index,
                                         .parts = &part,
                                         .parts_count = 1}},
               NULL, 0);
    world_run_until_idle(a->w);
}

static inline void agent_init(struct agent *a, uint32_t key, uint32_t count,
                              const float *data)
{
    struct ps_rec_part part = {.key = key, .count = count};

    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_INIT,
                                .init = {.gen = GEN,
                                         .slot = a->index,
                                         .parts = &part,
                                         .parts_count = 1}},
               data, count * sizeof(float));
    world_run_until_idle(a->w);
}

static inline void agent_restore(struct agent *a, uint32_t key,
                                 uint64_t version, float value, bool held)
{
    struct ps_rec_part part = {
        .key = key,
        .round = held ? version : 0,
        .count = held ? 1 : 0,
    };

    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_RESTORE,
                                .restore = {.gen = GEN,
                                            .slot = a->index,
                                            .has_value = held,
                                            .parts = &part,
                                            .parts_count = 1}},
               &value, held ? sizeof(value) : 0);
    world_run_until_idle(a->w);
}

/* It knows the version to be committed, without its value. */
static inline void agent_restore_committed(struct agent *a, uint32_t key,
                                           uint64_t version)
{
    struct ps_rec_part part = {.key = key};

    agent_send(a,
               &(struct ps_msg){.code = PS_MSG_RESTORE,
                                .restore = {.gen = GEN,
                                            .slot = a->index,
                                            .parts = &part,
                                            .parts_count = 1,
                                            .committed_version = version}},
               NULL, 0);
    world_run_until_idle(a->w);
}

static inline float agent_f32(const struct agent *a, uint32_t key)
{
    float v;

    assert_int_equal(a->seen[key].len, sizeof(v));
    memcpy(&v, a->seen[key].bytes, sizeof(v));
    return v;
}

static inline int64_t agent_i64(const struct agent *a, uint32_t key)
{
    int64_t v;

    assert_int_equal(a->seen[key].len, sizeof(v));
    memcpy(&v, a->seen[key].bytes, sizeof(v));
    return v;
}

/* ------------------------------------------------------------------- world */

/* Fills memory of the pool, so that code that takes it for zeros fails. */
static inline void world_fill_pool_memory(struct ps_pool *pool)
{
    struct ps_buf *bufs[64];

    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(ps_pool_get(pool, 4096, &bufs[i]), 0);
        memset(bufs[i]->data, 0x47, 4096);
    }
    for (uint32_t i = 0; i < 64; i++) {
        ps_buf_unref(bufs[i]);
    }
}

struct world_options {
    uint32_t slots;
    uint64_t credit_window;
    uint64_t credit_first;             /* 0: PS_CREDIT_INITIAL. */
    uint64_t memory;                   /* 0: without limit. */
    const struct ps_rec_param *params; /* NULL: no optimizer. */
    uint32_t params_count;
    const char *optimizer;        /* NULL: sgd. */
    const char *compression;      /* NULL: none. */
    struct ps_pool_source source; /* Source of the pool's memory. */
    bool no_job;                  /* Another job has the agents. */
    /* State memory, the world's own; NULL: the server keeps none. */
    struct ps_records *records;
};

/* A registered server, a running job, and all its agents connected. */
static inline struct world *world_new(const struct world_options *opt)
{
    struct world *w = ps_calloc(1, sizeof(*w));
    struct ps_server_options so = {
        .name = "s0",
        .cluster = "test",
        .address = "127.0.0.1:7002",
        .sched_address = "127.0.0.1:7000",
        .instance = 77,
        .seed = 5,
        .credit_window = opt->credit_window,
        .initial_credit = opt->credit_first,
        .dial_backoff_min = PS_MILLIS(100),
        .dial_backoff_max = PS_SECONDS(2),
        .link_linger = PS_SECONDS(30),
    };

    w->now = PS_SECONDS(1);
    w->pool = ps_pool_new(&(struct ps_pool_options){
        .budget = opt->memory,
        .source = opt->records != NULL ? ps_records_source(opt->records)
                                       : opt->source});
    so.pool = w->pool;
    so.records = w->records = opt->records;
    w->trace = ps_trace_new();
    so.trace = w->trace;
    world_fill_pool_memory(w->pool);
    ps_rng_init(&w->rng, 9);
    ps_effects_init(&w->fx);
    ps_effects_init(&w->sched_out);
    w->peer.w = w;
    ps_rng_init(&w->peer.rng, 3);
    ps_effects_init(&w->peer.out);
    w->slots = opt->slots;
    w->credit_first = opt->credit_first != 0 ? opt->credit_first
                                             : PS_CREDIT_INITIAL;
    for (uint32_t i = 0; i < AGENTS_MAX; i++) {
        struct agent *a = &w->agents[i];

        a->w = w;
        a->index = i;
        a->incarnation = 1;
        a->instance = 1000 * (i + 1);
        a->session = 100 * (i + 1);
        ps_rng_init(&a->rng, i);
        ps_effects_init(&a->out);
        a->link = ps_link_new(&(struct ps_link_options){0}, &a->rng);
    }
    w->server = ps_server_new(&so, w->now);
    w->machine = ps_server_machine(w->server);
    world_run_until_idle(w);
    assert_true(ps_server_is_ready(w->server));
    if (!opt->no_job) {
        sched_send_job_state(
            w, &(struct job_options){.version = 1,
                                     .phase = PS_JOB_PHASE_STARTING,
                                     .params = opt->params,
                                     .params_count = opt->params_count,
                                     .optimizer = opt->optimizer,
                                     .compression = opt->compression});
        assert_int_equal(w->ready_gen, GEN);
        assert_int_equal(w->ready_version, 1);
    } else if (w->slots > 0) {
        sched_send_job_state(
            w, &(struct job_options){.gen = GEN + 1,
                                     .version = 1,
                                     .phase = PS_JOB_PHASE_STARTING});
    }
    for (uint32_t i = 0; i < w->slots; i++) {
        agent_dial(&w->agents[i]);
        assert_false(w->agents[i].resumed);
    }
    return w;
}

/* Frees the world; every byte of tensor memory must have come back. */
static inline void world_free(struct world *w)
{
    while (w->compute_count > 0) {
        world_computed(w, 0, 0);
    }
    ps_effects_fini(&w->fx);
    ps_effects_fini(&w->sched_out);
    if (w->records != NULL) {
        ps_records_freeze(w->records); /* As a process that ends. */
    }
    ps_server_free(w->server);
    ps_trace_free(w->trace);
    ps_link_free(w->sched);
    ps_msg_free(w->refused_read);
    ps_effects_fini(&w->peer.out);
    ps_link_free(w->peer.link);
    ps_msg_free(w->trace_entries);
    for (uint32_t i = 0; i < AGENTS_MAX; i++) {
        ps_effects_fini(&w->agents[i].out);
        ps_link_free(w->agents[i].link);
    }
    assert_int_equal(ps_pool_used(w->pool), 0);
    ps_pool_free(w->pool);
    ps_records_free(w->records);
    ps_free(w);
}

/* --------------------------------------------------------- copies from an owner */

#define OWNER 20u /* Number of the place of agents[1], which is a server. */

/* That place, with this server as the backup from `epoch` on. */
static inline struct ps_rec_place owners_place(const struct world *w,
                                               uint32_t epoch)
{
    return (struct ps_rec_place){.epoch = epoch,
                                 .node = NODE(1),
                                 .name = "agent",
                                 .incarnation = w->agents[1].incarnation,
                                 .instance = w->agents[1].instance,
                                 .number = OWNER,
                                 .backup = w->server->uplink.node,
                                 .backup_instance = 77};
}

/* One of two buffers of a copy of key 1; those of `shared` are as in copy
 * `base`. */
struct copy_options {
    uint32_t epoch;
    uint64_t number;
    uint64_t version;
    uint8_t buffer;
    uint64_t base;
    uint8_t shared;
    const float *values; /* Four. */
};

static inline void owner_send_copy(struct agent *owner,
                                   const struct copy_options *o)
{
    const struct ps_rec_part_image image = {.version = o->version,
                                            .has_dtype = true,
                                            .dtype = PS_DTYPE_FLOAT32,
                                            .count = 4};
    const uint64_t lens[PS_PART_BUFFERS] = {
        [PS_PART_BUFFER_VALUE] = 16, [PS_PART_BUFFER_STATE_0] = 16};

    agent_send(owner,
               &(struct ps_msg){.code = PS_MSG_COPY,
                                .copy = {.gen = GEN,
                                         .epoch = o->epoch,
                                         .key = 1,
                                         .number = o->number,
                                         .image = &image,
                                         .image_count = 1,
                                         .buffer = o->buffer,
                                         .base = o->base,
                                         .shared = o->shared,
                                         .buffer_bytes = lens,
                                         .buffer_bytes_count = PS_PART_BUFFERS,
                                         .newest_version = o->version}},
               o->values, 16);
    world_run(owner->w, PS_MILLIS(1));
}
