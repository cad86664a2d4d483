/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine, driven by hand: the test sends the messages of peers,
 * which record the replies. Time passes only in pass(), where every connected
 * peer pings, as daemons do. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/str.h"
#include "core/sched/sched.h"
#include "proto/ps_fixed.h"
#include "proto/row.h"
#include "support/rows.h"
#include "support/sched_peek.h"

#define PEERS_MAX        256
#define BEAT             PS_MILLIS(100)
/* A file of more rows is not read back after each step, for time. */
#define CHECKED_ROWS_MAX 64u

struct inbox_entry {
    struct ps_msg *msg;
    struct ps_packet *packet; /* Payload of `msg`. */
};

struct peer {
    enum ps_role role;
    char name[16];
    uint64_t instance;
    uint64_t session;
    ps_conn_id conn; /* 0: not connected. */
    uint64_t sent;
    uint64_t received;
    uint32_t node;
    bool deaf;                 /* Acknowledges nothing. */
    bool mute;                 /* Does not ping. */
    uint64_t certificate_ends; /* As its pings say. */
    uint64_t memory;           /* Memory limit of a server; 0: not stated. */
    bool keep;                 /* Its memory outlives its process. */
    bool is_older;             /* It is of protocol 1. */
    bool by_tcp;
    uint32_t uid;
    const struct ps_peer_identity *identity; /* NULL: no certificate. */
    const char *token;                       /* In the hello; NULL: none. */
    struct inbox_entry *inbox;
    uint32_t count;
};

struct world {
    struct ps_sched *sched;
    struct ps_machine machine;
    ps_time now;
    ps_conn_id conns;
    uint64_t probed; /* Target of the last PS_FX_PROBE. */
    char probed_address[PS_ADDRESS_MAX + 1]; /* Its address. */
    uint32_t probes;
    struct peer peer[PEERS_MAX];
    uint32_t peers;
    uint32_t placements_most; /* Most placements sent in one step. */
    int log_level;            /* The last one that was set. */
    char story[65536];
    size_t story_len;
    struct rows rows; /* The scheduler's file. */
    uint64_t starts;  /* Of the scheduler. */
};

/* ---------------------------------------------------------------- harness */

static inline void drop_inbox(struct peer *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        ps_msg_free(p->inbox[i].msg);
        ps_packet_unref(p->inbox[i].packet);
    }
    p->count = 0;
}

static inline struct peer *find_peer_by_conn(struct world *w, ps_conn_id conn)
{
    for (uint32_t i = 0; i < w->peers; i++) {
        if (w->peer[i].conn == conn) {
            return &w->peer[i];
        }
    }
    return NULL;
}

static inline void record_msg(struct peer *p, const struct ps_fx *f)
{
    const struct ps_msg *msg = f->send.packet->msg;

    p->inbox = ps_realloc(p->inbox, (p->count + 1) * sizeof(*p->inbox));
    p->inbox[p->count++] = (struct inbox_entry){
        .msg = ps_msg_dup(msg),
        .packet = ps_packet_ref(f->send.packet),
    };
    if (f->send.seq > p->received && !p->deaf) {
        p->received = f->send.seq;
    }
    if (msg->code == PS_MSG_WELCOME) {
        p->node = msg->welcome.node;
        if (!msg->welcome.resumed) {
            p->sent = 0;
            p->received = 0;
        }
    }
}

static bool world_file_is_hostile;

static inline void check_file(const struct world *w);

static inline void feed_event(struct world *w, struct ps_event ev)
{
    struct ps_effects fx;
    ps_conn_id closed[PS_SERVERS_MAX + PEERS_MAX];
    uint32_t closed_count = 0;
    uint32_t placements = 0;

    ps_effects_init(&fx);
    ev.now = w->now;
    assert_int_equal(w->machine.ops->step(w->machine.self, &ev, &fx), 0);
    for (uint32_t i = 0; i < fx.count; i++) {
        const struct ps_fx *f = &fx.items[i];
        struct peer *p;

        switch (f->type) {
        case PS_FX_STORE:
            assert_int_equal(i, 0); /* Nothing is sent before. */
            rows_apply(&w->rows, f);
            break;
        case PS_FX_SEND:
            placements += f->send.packet->msg->code == PS_MSG_KEY_OPENED;
            p = find_peer_by_conn(w, f->send.conn);
            if (p != NULL) {
                record_msg(p, f);
            }
            break;
        case PS_FX_CLOSE:
            p = find_peer_by_conn(w, f->close.conn);
            if (p != NULL) {
                p->conn = 0;
            }
            closed[closed_count++] = f->close.conn;
            break;
        case PS_FX_LOG:
            if (w->story_len + strlen(f->log.text) + 2 < sizeof(w->story)) {
                w->story_len += (size_t)sprintf(w->story + w->story_len, "%s\n",
                                                f->log.text);
            }
            break;
        case PS_FX_LOG_LEVEL:
            w->log_level = (int)f->log_level;
            break;
        case PS_FX_PROBE:
            w->probed = f->dial.target;
            w->probes++;
            ps_str_copy(w->probed_address, sizeof(w->probed_address),
                        f->dial.address);
            break;
        case PS_FX_DIAL:
            fail_msg("a scheduler dials nobody");
            break;
        case PS_FX_COMPUTE:
        case PS_FX_OP_PROGRESS:
        case PS_FX_OP_DONE:
            fail_msg("a scheduler computes nothing");
        }
    }
    if (fx.count > 0 && fx.items[0].type == PS_FX_STORE &&
        w->rows.count <= CHECKED_ROWS_MAX && !world_file_is_hostile) {
        check_file(w);
    }
    ps_effects_fini(&fx);
    if (placements > w->placements_most) {
        w->placements_most = placements;
    }
    for (uint32_t i = 0; i < closed_count; i++) {
        feed_event(w,
                   (struct ps_event){.type = PS_EV_CLOSED, .conn = closed[i]});
    }
}

static inline void deliver_unsequenced(struct world *w, struct peer *p,
                                       struct ps_msg msg)
{
    msg.ack = p->received;
    feed_event(w, (struct ps_event){.type = PS_EV_MSG,
                                    .conn = p->conn,
                                    .msg = {.msg = &msg}});
}

static inline void deliver_msg(struct world *w, struct peer *p,
                               struct ps_msg msg)
{
    assert_true(p->conn != 0);
    if (p->role != PS_ROLE_CTL) {
        msg.seq = ++p->sent;
    }
    deliver_unsequenced(w, p, msg);
}

/* Lets time pass; connected peers ping unless they are mute. */
static inline void advance_time(struct world *w, ps_time how_long)
{
    ps_time end = w->now + how_long;
    ps_time beat = w->now + BEAT;

    while (w->now < end) {
        ps_time due = w->machine.ops->deadline(w->machine.self);
        ps_time next = beat < end ? beat : end;

        if (due <= next) {
            w->now = due > w->now ? due : w->now;
            feed_event(w, (struct ps_event){.type = PS_EV_TICK});
            if (w->now < end) {
                continue;
            }
        }
        w->now = next;
        for (uint32_t i = 0; i < w->peers && next == beat; i++) {
            struct peer *p = &w->peer[i];

            if (p->conn != 0 && p->role != PS_ROLE_CTL && !p->mute) {
                deliver_unsequenced(
                    w, p,
                    (struct ps_msg){
                        .code = PS_MSG_PING,
                        .ping = {.rounds = 7,
                                 .certificate_ends = p->certificate_ends}});
            }
        }
        beat += next == beat ? BEAT : 0;
    }
}

/* Tools connect by the Unix socket, or by TCP if the test says so. */
static inline void open_peer_conn(struct world *w, struct peer *p)
{
    bool local = p->role == PS_ROLE_CTL && !p->by_tcp;

    p->conn = ++w->conns;
    feed_event(w, (struct ps_event){
                      .type = PS_EV_OPEN,
                      .conn = p->conn,
                      .open = {.kind = local ? PS_CONN_LOCAL : PS_CONN_ACCEPTED,
                               .uid = p->uid,
                               .identity = p->identity,
                               .peer = "test"}});
}

static inline struct ps_msg make_hello(const struct peer *p)
{
    return (struct ps_msg){
        .code = PS_MSG_HELLO,
        .hello = {
            .protocol = p->is_older ? 1 : PS_PROTOCOL,
            .protocol_least = PS_PROTOCOL_LEAST,
            .role = (uint8_t)p->role,
            .name = p->name,
            .cluster = "c",
            .instance = p->instance,
            .session = p->session,
            .received = p->received,
            .address = p->role == PS_ROLE_SERVER ? "10.0.0.1:9" : "",
            .memory_limit = p->memory,
            .token = p->token,
            .keep = p->keep,
        }};
}

static inline void connect_peer(struct world *w, struct peer *p)
{
    open_peer_conn(w, p);
    deliver_unsequenced(w, p, make_hello(p));
}

static inline struct peer *peer_new(struct world *w, enum ps_role role,
                                    const char *name)
{
    struct peer *p = &w->peer[w->peers++];

    assert_true(w->peers <= PEERS_MAX);
    p->role = role;
    ps_str_copy(p->name, sizeof(p->name), name);
    p->instance = 1000 + w->peers;
    p->session = 2000 + w->peers;
    return p;
}

static inline struct peer *join_peer(struct world *w, enum ps_role role,
                                     const char *name)
{
    struct peer *p = peer_new(w, role, name);

    connect_peer(w, p);
    return p;
}

static inline void lose_conn(struct world *w, struct peer *p)
{
    ps_conn_id conn = p->conn;

    p->conn = 0;
    feed_event(w, (struct ps_event){.type = PS_EV_CLOSED, .conn = conn});
}

/* Options of the scheduler in the next worlds. */
static struct ps_account_limits world_limits[PS_ACCOUNT_KIND_COUNT];
static uint64_t world_link_memory;
static const struct ps_token_ops *world_token_ops;
static bool world_reading_needs_token;

/* Begins a process of the scheduler, from its file if it has one. Returns the
 * result of reading it. */
static inline int world_begin_sched(struct world *w, struct ps_str *why)
{
    struct ps_sched_options opt = {
        .facts = {.version = "1.0",
                  .wall_zero_ns = PS_SECONDS(1000),
                  .ktls = true},
        .name = "sched",
        .cluster = "c",
        .instance = ++w->starts,
        .generation_base = w->starts == 1 ? 0 : w->now,
        .seed = 1,
        .operators = {9},
        .operator_count = 1,
        .token_ops = world_token_ops,
        .reading_needs_token = world_reading_needs_token,
        .wall_ns = PS_SECONDS(1000000),
        .heartbeat = BEAT,
        .suspect_after = PS_MILLIS(500),
        .dead_after = PS_SECONDS(2),
        .start_timeout = PS_SECONDS(60),
        .rejoin_grace = PS_SECONDS(30),
        .rejoin_timeout = PS_SECONDS(600),
        .partition_bytes = 1 << 20,
        .link_linger = PS_SECONDS(1),
        .link = {.memory_max = world_link_memory},
        .uid = 55,
    };

    memcpy(opt.limits, world_limits, sizeof(opt.limits));
    w->sched = ps_sched_new(&opt, w->now);
    w->machine = ps_sched_machine(w->sched);
    return rows_load(&w->rows, w->sched, w->now, why);
}

/* The bytes of the row, which the caller frees; a state has version 0, because a
 * scheduler that reads one raises it. */
static inline uint8_t *bytes_of_row(const struct row *r, size_t *ret_len)
{
    struct ps_decoder *d = ps_decoder_new();
    struct ps_slice payload;
    struct ps_msg m;
    uint8_t *bytes;

    assert_int_equal(ps_row_decode(d, r->bytes, r->len, &m, &payload), 0);
    if (m.code == PS_MSG_JOB_STATE) {
        m.job_state.version = 0;
    }
    assert_int_equal(
        ps_row_encode(&m, &payload, payload.buf != NULL, &bytes, ret_len), 0);
    ps_buf_unref(payload.buf);
    ps_decoder_free(d);
    return bytes;
}

static inline void check_same_row(const struct row *a, const struct row *b)
{
    size_t len[2];
    uint8_t *bytes[2] = {bytes_of_row(a, &len[0]), bytes_of_row(b, &len[1])};

    if (len[0] != len[1] || memcmp(bytes[0], bytes[1], len[0]) != 0) {
        fail_msg("row %u %llu %llu is not as it was stored", a->key.kind,
                 (unsigned long long)a->key.a, (unsigned long long)a->key.b);
    }
    ps_free(bytes[0]);
    ps_free(bytes[1]);
}

/* Whenever the scheduler dies, the next one can read the file, and would write the
 * same: all that is stored is loaded. */
static inline void check_file(const struct world *w)
{
    struct world next = {.now = w->now, .starts = w->starts};
    const struct ps_event tick = {.now = w->now, .type = PS_EV_TICK};
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_effects fx;

    rows_copy(&next.rows, &w->rows);
    int rc = world_begin_sched(&next, &why);

    assert_string_equal(why.data, "");
    assert_int_equal(rc, 0);
    sched_peek_mark_all(next.sched);
    ps_effects_init(&fx);
    assert_int_equal(next.machine.ops->step(next.machine.self, &tick, &fx), 0);
    assert_true(fx.count > 0 && fx.items[0].type == PS_FX_STORE);
    rows_apply(&next.rows, &fx.items[0]);
    ps_effects_fini(&fx);
    assert_int_equal(next.rows.count, w->rows.count);
    for (uint32_t i = 0; i < w->rows.count; i++) {
        check_same_row(&w->rows.list[i], &next.rows.list[i]);
    }
    rows_fini(&next.rows);
    ps_sched_free(next.sched);
}

static inline struct world *world_new(void)
{
    struct world *w = ps_calloc(1, sizeof(*w));
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    w->now = PS_SECONDS(10);
    assert_int_equal(world_begin_sched(w, &why), 0);
    return w;
}

/* Ends the scheduler; no peer has a connection any more. */
static inline void world_end_sched(struct world *w)
{
    for (uint32_t i = 0; i < w->peers; i++) {
        w->peer[i].conn = 0;
    }
    ps_sched_free(w->sched);
    w->sched = NULL;
}

/* Another process takes the scheduler's place, after a second. */
static inline void world_restart_sched(struct world *w)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    int rc;

    world_end_sched(w);
    w->now += PS_SECONDS(1);
    rc = world_begin_sched(w, &why);
    assert_string_equal(why.data, "");
    assert_int_equal(rc, 0);
    advance_time(w, 1);
}

static inline void world_free(struct world *w)
{
    for (uint32_t i = 0; i < w->peers; i++) {
        drop_inbox(&w->peer[i]);
        ps_free(w->peer[i].inbox);
    }
    ps_sched_free(w->sched);
    rows_fini(&w->rows);
    ps_free(w);
}

/* Returns the newest message of this code; fails without one. */
static inline const struct ps_msg *find_msg(const struct peer *p,
                                            enum ps_msg_code code)
{
    for (uint32_t i = p->count; i > 0; i--) {
        if (p->inbox[i - 1].msg->code == code) {
            return p->inbox[i - 1].msg;
        }
    }
    return NULL;
}

static inline const struct ps_msg *last_msg(const struct peer *p,
                                            enum ps_msg_code code)
{
    const struct ps_msg *msg = find_msg(p, code);

    if (msg == NULL) {
        fail_msg("%s never heard %s", p->name, ps_msg_name(code));
    }
    return msg;
}

static inline uint32_t count_msgs(const struct peer *p, enum ps_msg_code code)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        n += p->inbox[i].msg->code == code;
    }
    return n;
}

static inline void expect_substring(const char *text, const char *part)
{
    if (text == NULL || strstr(text, part) == NULL) {
        fail_msg("'%s' is not in '%s'", part, text);
    }
}

/* ------------------------------------------------------------------ words */

static inline struct ps_msg make_job_open(uint64_t worker, uint32_t workers,
                                          uint32_t servers, int32_t rank)
{
    return (struct ps_msg){.code = PS_MSG_JOB_OPEN,
                           .job_open = {
                               .worker = worker,
                               .name = "train",
                               .uid = 7,
                               .num_workers = workers,
                               .num_servers = servers,
                               .rank = rank,
                               .big_array_bound = 1000000,
                               .host = NULL,
                           }};
}

/* The placement in the last key_opened of a peer. */
struct placed {
    uint32_t node[64];
    uint32_t count[64];
    uint32_t parts;
    const struct ps_msg_key_opened *m;
};

static inline struct placed placed(const struct peer *p)
{
    struct placed r = {.m = &last_msg(p, PS_MSG_KEY_OPENED)->key_opened};

    for (uint32_t i = p->count; i > 0; i--) {
        if (p->inbox[i - 1].msg->code == PS_MSG_KEY_OPENED) {
            const struct ps_packet *packet = p->inbox[i - 1].packet;
            const uint8_t *d;

            assert_int_equal(packet->payload_len,
                             r.m->parts * PS_FIXED_PLACEMENT_PART_BYTES);
            assert_true(r.m->parts <= 64);
            d = r.m->parts > 0 ? ps_slice_data(&packet->slices[0]) : NULL;
            for (; r.parts < r.m->parts; r.parts++) {
                struct ps_fixed_placement_part row;

                assert_true(ps_fixed_get_placement_part(d, &row));
                r.node[r.parts] = row.node;
                r.count[r.parts] = row.count;
                d += PS_FIXED_PLACEMENT_PART_BYTES;
            }
            return r;
        }
    }
    return r;
}

static inline const struct ps_msg_job_opened *
last_job_opened(const struct peer *p)
{
    return &last_msg(p, PS_MSG_JOB_OPENED)->job_opened;
}

static inline const struct ps_msg_job_state *
last_job_state(const struct peer *p)
{
    return &last_msg(p, PS_MSG_JOB_STATE)->job_state;
}

/* The server acknowledges the newest job_state. */
static inline void deliver_job_ready(struct world *w, struct peer *server)
{
    const struct ps_msg_job_state *js = last_job_state(server);

    deliver_msg(
        w, server,
        (struct ps_msg){.code = PS_MSG_JOB_READY,
                        .job_ready = {.gen = js->gen, .version = js->version}});
}

static inline void deliver_worker_gone(struct world *w, struct peer *agent,
                                       uint64_t gen, uint64_t worker,
                                       bool clean)
{
    deliver_msg(
        w, agent,
        (struct ps_msg){.code = PS_MSG_WORKER_GONE,
                        .worker_gone = {.gen = gen,
                                        .worker = worker,
                                        .clean = clean,
                                        .text = clean ? "" : "killed"}});
}

static inline void deliver_barrier_enter(struct world *w, struct peer *agent,
                                         uint64_t gen, uint64_t number,
                                         const uint32_t *ranks, uint32_t count)
{
    deliver_msg(w, agent,
                (struct ps_msg){.code = PS_MSG_BARRIER_ENTER,
                                .barrier_enter = {.gen = gen,
                                                  .number = number,
                                                  .ranks = ranks,
                                                  .ranks_count = count}});
}

/* Opens a key of float32 of that kind. */
static inline void open_kind(struct world *w, struct peer *agent, uint64_t gen,
                             const struct ps_msg_key_open *m)
{
    struct ps_msg msg = {.code = PS_MSG_KEY_OPEN, .key_open = *m};

    msg.key_open.gen = gen;
    msg.key_open.dtype = PS_DTYPE_FLOAT32;
    msg.key_open.mxnet_key = -1;
    deliver_msg(w, agent, msg);
}

/* Opens a string key of float32. */
static inline void open_key(struct world *w, struct peer *agent, uint64_t gen,
                            uint64_t request, const char *name, uint64_t count)
{
    open_kind(w, agent, gen,
              &(struct ps_msg_key_open){
                  .request = request, .name = name, .count = count});
}

/* Two servers, two agents a0 and a1 with two workers each, all running:
 * ranks 0, 1 are workers 1, 2 of a0; ranks 2, 3 are workers 1, 2 of a1. */
struct job {
    struct world *w;
    struct peer *s[3]; /* Most tests have two. */
    struct peer *a[2];
    uint64_t gen;
};

static inline struct job start_job(enum ps_loss_policy on_loss)
{
    struct job j = {.w = world_new()};

    j.s[0] = join_peer(j.w, PS_ROLE_SERVER, "s0");
    j.s[1] = join_peer(j.w, PS_ROLE_SERVER, "s1");
    j.a[0] = join_peer(j.w, PS_ROLE_AGENT, "a0");
    j.a[1] = join_peer(j.w, PS_ROLE_AGENT, "a1");
    for (uint64_t i = 0; i < 4; i++) {
        struct ps_msg msg = make_job_open(1 + i % 2, 4, 2, -1);

        msg.job_open.on_loss = (uint8_t)on_loss;
        msg.job_open.host = i < 2 ? "host-a" : "host-b";
        deliver_msg(j.w, j.a[i / 2], msg);
        assert_int_equal(last_job_opened(j.a[i / 2])->error, 0);
    }
    j.gen = last_job_opened(j.a[0])->gen;
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_STARTING);
    deliver_job_ready(j.w, j.s[0]);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_STARTING);
    deliver_job_ready(j.w, j.s[1]);
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_RUNNING);
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    return j;
}

static inline void end_world(struct world *w)
{
    assert_int_equal(ps_sched_job_count(w->sched), 0);
    assert_int_equal(ps_sched_residue(w->sched), 0);
    world_free(w);
}

/* All remaining workers leave. */
static inline void finish_job(struct job *j)
{
    for (uint64_t i = 0; i < 4; i++) {
        deliver_worker_gone(j->w, j->a[i / 2], j->gen, 1 + i % 2, true);
    }
    end_world(j->w);
}
