/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine on a bench, for test_agent*.c: told by hand what its
 * scheduler, its server and its workers say. Effects are kept for the test to
 * look at; computations run when the test says so. */
#pragma once

#include "base/pool.h"
#include "base/str.h"
#include "core/agent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SCHED_CONN  1u
#define SERVER_CONN 2u
#define WORKER_CONN 10u /* Of local rank 0; + 1 for each more. */
#define AGENT_NODE  7u
#define SERVER_NODE 9u
#define GEN         77u
#define SENT_MAX    4096

struct sent {
    ps_conn_id conn;
    uint64_t seq;
    struct ps_parcel *parcel;
};

struct bench {
    struct ps_agent *agent;
    struct ps_machine m;
    struct ps_pool *sums;
    ps_time now;
    struct ps_effects fx;
    struct sent sent[SENT_MAX];
    uint32_t sent_count;
    struct ps_compute *computes[64];
    uint32_t compute_count;
    uint32_t dialled;       /* Node of the last dial. */
    uint64_t targets[8];    /* Whole target of the last one, by node. */
    uint64_t pieces[8][64]; /* By worker: bytes that it heard of. */
    uint32_t piece_count[8];
    uint32_t workers;
    uint64_t sched_seq;
    uint64_t server_seq;
    struct ps_buf *region[8];
    bool compresses;     /* Keys that are opened travel in 2 bits of 2. */
    bool fails;          /* The job, when it loses a worker. */
    bool async;          /* The job; pushes are added. */
    uint64_t memory_max; /* Of a user; 0: no limit. */
    uint32_t width;      /* Of rows, in keys that are opened; 0: none. */
    bool may_end;        /* The daemon, */
    int rc;              /* for this reason. */
    uint32_t restarts;   /* Of the scheduler. */
    bool resumes;        /* Workers had another agent, */
    uint64_t pushed[8];  /* and heard the end of so many rounds of each key. */
};

static inline void collect(struct bench *b)
{
    ps_effects_done_as_sends(&b->fx);
    for (uint32_t i = 0; i < b->fx.count; i++) {
        struct ps_fx *f = &b->fx.items[i];

        if (f->type == PS_FX_SEND) {
            assert_true(b->sent_count < SENT_MAX);
            b->sent[b->sent_count++] = (struct sent){
                f->send.conn, f->send.seq, ps_parcel_ref(f->send.parcel)};
        } else if (f->type == PS_FX_COMPUTE) {
            assert_true(b->compute_count < 64);
            b->computes[b->compute_count++] = f->compute;
            f->compute = NULL;
        } else if (f->type == PS_FX_PIECE) {
            uint64_t worker = f->piece.conn - WORKER_CONN;

            assert_true(worker < b->workers && b->piece_count[worker] < 64);
            b->pieces[worker][b->piece_count[worker]++] = f->piece.bytes;
        } else if (f->type == PS_FX_DIAL) {
            b->dialled = (uint32_t)f->dial.target;
            b->targets[b->dialled % 8] = f->dial.target;
        }
    }
    ps_effects_clear(&b->fx);
}

static inline void step(struct bench *b, struct ps_event ev)
{
    ev.now = b->now;
    b->rc = b->m.ops->step(b->m.self, &ev, &b->fx);
    assert_true(b->rc == 0 || b->may_end);
    collect(b);
}

static inline void tick(struct bench *b)
{
    step(b, (struct ps_event){.type = PS_EV_TICK});
}

static inline void say(struct bench *b, ps_conn_id conn, struct ps_msg *m,
                       const struct ps_slice *payload)
{
    struct ps_event ev = {.type = PS_EV_MSG, .conn = conn};

    if (conn == SCHED_CONN) {
        m->seq = ++b->sched_seq;
    } else if (conn == SERVER_CONN) {
        m->seq = ++b->server_seq;
    }
    ev.msg.msg = m;
    ev.msg.payload = payload;
    step(b, ev);
}

static inline void compute_all(struct bench *b)
{
    while (b->compute_count > 0) {
        struct ps_compute *c = b->computes[0];
        struct ps_event ev = {.type = PS_EV_COMPUTED};

        memmove(b->computes, b->computes + 1,
                --b->compute_count * sizeof(b->computes[0]));
        ev.computed.token = c->token;
        ev.computed.rc = ps_kernel_run(&c->job);
        ps_compute_free(c);
        step(b, ev);
    }
}

static inline void forget_sent(struct bench *b)
{
    for (uint32_t i = 0; i < b->sent_count; i++) {
        ps_parcel_unref(b->sent[i].parcel);
    }
    b->sent_count = 0;
}

/* The n-th message of a code that went to a connection; NULL: none. */
static inline const struct sent *find(const struct bench *b, ps_conn_id conn,
                                      unsigned code, uint32_t n)
{
    for (uint32_t i = 0; i < b->sent_count; i++) {
        if (b->sent[i].conn == conn && b->sent[i].parcel->msg->code == code &&
            n-- == 0) {
            return &b->sent[i];
        }
    }
    return NULL;
}

static inline uint32_t count(const struct bench *b, ps_conn_id conn,
                             unsigned code)
{
    uint32_t n = 0;

    while (find(b, conn, code, n) != NULL) {
        n++;
    }
    return n;
}

static inline void open_conn(struct bench *b, ps_conn_id conn,
                             enum ps_conn_kind kind, uint32_t node)
{
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = conn};

    ev.open.kind = kind;
    ev.open.target = b->targets[node % 8];
    ev.open.uid = 1000;
    ev.open.peer = "test";
    step(b, ev);
}

static inline void welcome(struct bench *b, ps_conn_id conn, bool resumed,
                           uint64_t received)
{
    struct ps_msg m = {.code = PS_MSG_WELCOME,
                       .welcome = {.protocol = PS_PROTOCOL,
                                   .name = "peer",
                                   .instance = 1 + b->restarts,
                                   .node = AGENT_NODE,
                                   .incarnation = 1,
                                   .resumed = resumed,
                                   .received = received,
                                   .heartbeat_ns = PS_SECONDS(1)}};
    struct ps_event ev = {.type = PS_EV_MSG, .conn = conn};

    ev.msg.msg = &m;
    step(b, ev);
}

static inline void link_server(struct bench *b, bool resumed, uint64_t received)
{
    open_conn(b, SERVER_CONN, PS_CONN_DIALLED, SERVER_NODE);
    assert_non_null(find(b, SERVER_CONN, PS_MSG_HELLO, 0));
    welcome(b, SERVER_CONN, resumed, received);
}

static inline void tell_map_of(struct bench *b, uint32_t epoch)
{
    struct ps_rec_server server = {.node = SERVER_NODE,
                                   .name = "ps0",
                                   .incarnation = 1,
                                   .address = "ps0:1",
                                   .state = PS_NODE_STATE_ACTIVE};

    say(b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_MAP,
            .map = {.epoch = epoch, .servers = &server, .servers_count = 1}},
        NULL);
}

static inline void tell_map(struct bench *b)
{
    tell_map_of(b, 1);
}

static inline void tell_job(struct bench *b, uint32_t version, uint32_t servers)
{
    struct ps_rec_slot slot = {
        .node = AGENT_NODE, .incarnation = 1, .ranks = b->workers};
    struct ps_rec_rank ranks[8];

    for (uint32_t i = 0; i < b->workers; i++) {
        ranks[i] = (struct ps_rec_rank){.rank = i,
                                        .slot = 0,
                                        .worker = i + 1,
                                        .local_rank = i,
                                        .state = PS_RANK_STATE_LIVE,
                                        .incarnation = 1};
    }
    say(b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_JOB_STATE,
            .job_state = {.gen = GEN,
                          .version = version,
                          .name = "job",
                          .phase = PS_JOB_PHASE_RUNNING,
                          .mode = b->async ? PS_MODE_ASYNC : PS_MODE_SYNC,
                          .rule = b->async ? PS_RULE_ACCUMULATE : PS_RULE_NONE,
                          .num_workers = b->workers,
                          .num_servers = servers,
                          .slots = &slot,
                          .slots_count = 1,
                          .ranks = ranks,
                          .ranks_count = b->workers,
                          .reason = "",
                          .optimizer = ""}},
        NULL);
}

static inline void begin_job(struct bench *b, uint32_t servers)
{
    for (uint32_t i = 0; i < b->workers; i++) {
        open_conn(b, WORKER_CONN + i, PS_CONN_LOCAL, 0);
        say(b, WORKER_CONN + i,
            &(struct ps_msg){.code = PS_MSG_L_HELLO,
                             .l_hello = {.protocol = PS_PROTOCOL,
                                         .job = "job",
                                         .num_workers = b->workers,
                                         .num_servers = servers,
                                         .rank = (int32_t)i,
                                         .on_loss = b->fails,
                                         .gen = b->resumes ? GEN : 0,
                                         .keys = b->resumes,
                                         .keeps = true,
                                         .barriers = b->resumes ? 3 : 0}},
            NULL);
        say(b, SCHED_CONN,
            &(struct ps_msg){
                .code = PS_MSG_JOB_OPENED,
                .job_opened = {.worker = i + 1, .text = "", .gen = GEN}},
            NULL);
    }
    tell_job(b, 1, servers);
    for (uint32_t i = 0; i < b->workers; i++) {
        assert_non_null(find(b, WORKER_CONN + i, PS_MSG_L_WELCOME, 0));
    }
}

static inline struct ps_pool *results_new(void *ctx)
{
    (void)ctx;
    return ps_pool_new(&(struct ps_pool_options){.budget = 0});
}

static uint64_t sum_here_max; /* Of the next agent. */
static struct ps_account_limits agent_limits[PS_ACCOUNT_KIND_COUNT];

/* Memory that outlives agents; each gets it under another number. */
static _Alignas(64) uint8_t keep_memory[1 << 20];

static inline int keep_new(void *ctx, size_t size, struct ps_buf **ret_buf)
{
    (void)ctx;
    if (size > sizeof(keep_memory)) {
        return PS_E_NOMEM;
    }
    *ret_buf = ps_buf_wrap(keep_memory, size, NULL, NULL);
    (*ret_buf)->tag = 5;
    return 0;
}

static inline void begin_again(struct bench *b, uint32_t workers,
                               uint32_t servers)
{
    struct ps_agent_options o = {.instance = 1,
                                 .seed = 1,
                                 .sum_here_max = sum_here_max,
                                 .dial_first = PS_MILLIS(10),
                                 .dial_max = PS_SECONDS(1)};

    memcpy(o.limits, agent_limits, sizeof(o.limits));
    if (b->memory_max != 0) {
        o.limits[PS_ACCOUNT_USER].of[PS_COST_MEMORY] =
            (struct ps_account_limit){.max = b->memory_max,
                                      .option = "limits.user.memory"};
    }
    b->now = PS_SECONDS(1);
    b->workers = workers;
    b->sums = ps_pool_new(&(struct ps_pool_options){.budget = 0});
    o.sums = b->sums;
    o.results_new = results_new;
    o.keep_new = keep_new;
    o.keep_size = 64u << 10;
    ps_str_copy(o.name, sizeof(o.name), "node");
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched, sizeof(o.sched), "psched:1");
    ps_str_copy(o.host, sizeof(o.host), "host");
    ps_effects_init(&b->fx);
    b->agent = ps_agent_new(&o, b->now);
    b->m = ps_agent_machine(b->agent);
    tick(b);
    open_conn(b, SCHED_CONN, PS_CONN_DIALLED, 0);
    welcome(b, SCHED_CONN, false, 0);
    tell_map(b);
    begin_job(b, servers);
}

static inline void begin(struct bench *b, uint32_t workers, uint32_t servers)
{
    memset(b, 0, sizeof(*b));
    begin_again(b, workers, servers);
}

static inline void end(struct bench *b)
{
    for (uint32_t i = 0; i < b->compute_count; i++) {
        ps_compute_free(b->computes[i]);
    }
    forget_sent(b);
    ps_agent_free(b->agent);
    ps_effects_fini(&b->fx);
    for (int i = 0; i < 8; i++) {
        ps_buf_unref(b->region[i]);
    }
    assert_int_equal(ps_pool_used(b->sums), 0);
    ps_pool_free(b->sums);
}

/* A key of `parts` partitions of `each` floats on the server (or here). */
static inline void open_key(struct bench *b, uint32_t key, uint32_t parts,
                            uint32_t each, uint32_t node)
{
    const struct ps_rec_param threshold = {.name = "threshold", .value = 2};
    char name[32];
    struct ps_buf *table = ps_buf_new(8 * (size_t)parts);
    struct ps_slice payload = {.buf = table, .len = table->size};
    const struct sent *asked;

    snprintf(name, sizeof(name), "s:%u", key);
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t record[2] = {node, each};

        memcpy(table->data + 8 * i, record, 8);
    }
    for (uint32_t w = 0; w < b->workers; w++) {
        say(b, WORKER_CONN + w,
            &(struct ps_msg){.code = PS_MSG_L_KEY,
                             .l_key = {.request = key + 1,
                                       .name = name,
                                       .dtype = PS_DTYPE_FLOAT32,
                                       .count = (uint64_t)parts * each,
                                       .classic = -1,
                                       .width = b->width,
                                       .resumed = b->resumes,
                                       .pushed = b->pushed[w]}},
            NULL);
    }
    asked = find(b, SCHED_CONN, PS_MSG_KEY_OPEN,
                 count(b, SCHED_CONN, PS_MSG_KEY_OPEN) - 1);
    assert_non_null(asked);
    say(b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_KEY_OPENED,
            .ack = asked->seq,
            .key_opened = {.gen = GEN,
                           .request = asked->parcel->msg->key_open.request,
                           .text = "",
                           .key = key,
                           .epoch = 1,
                           .parts = parts,
                           .compression = b->compresses ? "2bit" : "",
                           .params = &threshold,
                           .params_count = b->compresses ? 1 : 0}},
        &payload);
    ps_buf_unref(table);
}

static inline void give_region(struct bench *b, uint32_t worker, size_t size)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = WORKER_CONN + worker};

    b->region[worker] = ps_buf_new(size);
    for (size_t i = 0; i < size / 4; i++) {
        ((float *)(void *)b->region[worker]->data)[i] = (float)(worker + 1);
    }
    ev.region.region = 1;
    ev.region.buf = b->region[worker];
    step(b, ev);
}

static inline void operate(struct bench *b, uint32_t worker,
                           struct ps_msg_l_op op)
{
    say(b, WORKER_CONN + worker,
        &(struct ps_msg){.code = PS_MSG_L_OP, .l_op = op}, NULL);
}

static inline struct ps_msg_l_op pushpull(uint32_t key, uint64_t round)
{
    return (struct ps_msg_l_op){.op_id = 1000 * key + round,
                                .op = PS_OP_PUSHPULL,
                                .key = key,
                                .region = 1,
                                .round = round};
}

static inline void push(struct bench *b, uint32_t worker, uint32_t key,
                        uint64_t round, int32_t priority)
{
    struct ps_msg_l_op op = pushpull(key, round);

    op.priority = priority;
    operate(b, worker, op);
}

static inline void pass(struct bench *b, uint32_t worker, uint32_t key,
                        uint64_t round)
{
    operate(b, worker,
            (struct ps_msg_l_op){.op_id = 1000 * key + round,
                                 .op = PS_OP_PASS,
                                 .key = key,
                                 .round = round});
}

/* The server answers one part with a commit. */
static inline void commit(struct bench *b, uint32_t key, uint32_t index,
                          uint64_t round, uint32_t each, uint32_t salt)
{
    struct ps_rec_part part = {.key = key,
                               .index = index,
                               .round = round,
                               .dtype = PS_DTYPE_FLOAT32,
                               .count = each,
                               .salt = salt};

    say(b, SERVER_CONN,
        &(struct ps_msg){.code = PS_MSG_COMMIT,
                         .commit = {.gen = GEN,
                                    .epoch = 1,
                                    .parts = &part,
                                    .parts_count = 1}},
        NULL);
}

/* The last l_done of a worker. */
static inline const struct ps_msg_l_done *last_done(const struct bench *b,
                                                    uint32_t worker)
{
    const ps_conn_id conn = WORKER_CONN + worker;
    const uint32_t n = count(b, conn, PS_MSG_L_DONE);

    assert_true(n > 0);
    return &find(b, conn, PS_MSG_L_DONE, n - 1)->parcel->msg->l_done;
}

/* The server answers one part with a value of all `v`. */
static inline void answer(struct bench *b, uint32_t key, uint32_t index,
                          uint64_t round, uint32_t each, float v,
                          uint64_t credit)
{
    struct ps_rec_part part = {.key = key,
                               .index = index,
                               .round = round,
                               .dtype = PS_DTYPE_FLOAT32,
                               .count = each};
    struct ps_msg m = {.code = PS_MSG_VALUE,
                       .value = {.gen = GEN,
                                 .epoch = 1,
                                 .credit = credit,
                                 .parts = &part,
                                 .parts_count = 1}};
    struct ps_slice at;

    m.seq = b->server_seq + 1;
    assert_int_equal(
        b->m.ops->payload(b->m.self, SERVER_CONN, &m, each * 4, &at), 0);
    for (uint32_t i = 0; i < each; i++) {
        ((float *)(void *)ps_slice_data(&at))[i] = v;
    }
    say(b, SERVER_CONN, &m, &at);
    ps_buf_unref(at.buf);
}

static inline void more(struct bench *b, uint32_t worker, uint32_t key,
                        uint64_t round, uint64_t bytes)
{
    operate(b, worker,
            (struct ps_msg_l_op){.op_id = 1000 * key + round,
                                 .op = PS_OP_MORE,
                                 .key = key,
                                 .offset = bytes});
}

/* A round of whose array the worker has copied so much. */
static inline void push_growing(struct bench *b, uint32_t worker, uint32_t key,
                                uint64_t round, uint64_t there)
{
    struct ps_msg_l_op op = pushpull(key, round);

    op.growing = true;
    operate(b, worker, op);
    if (there > 0) {
        more(b, worker, key, round, there);
    }
}

static inline void die(struct bench *b, uint32_t worker)
{
    struct ps_event ev = {.type = PS_EV_CLOSED, .conn = WORKER_CONN + worker};

    step(b, ev);
}
