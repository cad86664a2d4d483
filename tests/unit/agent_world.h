/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine on a bench, for test_agent*.c: the test plays its
 * scheduler, server and workers. Effects are kept for the test to inspect;
 * computations run when the test asks for it. */
#pragma once

#include "base/pool.h"
#include "base/str.h"
#include "core/agent/agent.h"
#include "proto/ps_fixed.h"
#include "tests/support/op_done.h"

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
#define WORKER_CONN                                                            \
    10u /* Connection of local rank 0; the next ranks have the next numbers. */
#define AGENT_NODE  7u
#define SERVER_NODE 9u
#define GEN         77u
#define SENT_MAX    4096

struct sent {
    ps_conn_id conn;
    uint64_t seq;
    struct ps_packet *packet;
};

struct bench {
    struct ps_agent *agent;
    struct ps_machine machine;
    struct ps_pool *scratch_pool;
    struct ps_trace *trace; /* The test's; NULL: none. */
    ps_time now;
    struct ps_effects fx;
    struct sent sent[SENT_MAX];
    uint32_t sent_count;
    struct ps_compute *computations[64];
    uint32_t computation_count;
    uint32_t dialled_node;    /* Node that was dialled last. */
    uint64_t dial_targets[8]; /* Target of the last dial, by node. */
    /* Bytes of each progress report, by worker. */
    uint64_t progress[8][64];
    uint32_t progress_count[8];
    uint32_t workers;
    uint64_t sched_seq;
    uint64_t server_seq;
    struct ps_buf *region[8];
    bool uses_compression; /* Keys are opened with codec 2bit, threshold 2. */
    uint8_t key_kind;      /* ps_key_kind of the keys that are opened. */
    bool keys_are_reassigned; /* key_opened.is_reassigned. */
    bool fails_on_loss;       /* The job's policy is fail. */
    bool is_async;            /* The job is async, with rule accumulate. */
    bool is_ssp;              /* Such a job, with staleness 0. */
    uint64_t memory_max;      /* Limit of a user; 0: none. */
    uint32_t row_width;       /* Row width of keys that are opened; 0: dense. */
    bool may_fail;            /* A step may fail. */
    int rc;                   /* Result of the last step. */
    uint32_t sched_restarts;  /* Restarts of the scheduler. */
    uint32_t server_restarts; /* Of the server. */
    bool reattaches;          /* Workers reattach. */
    uint32_t left;            /* Ranks after theirs that have left. */
    bool answers_waits;       /* Workers have process numbers: 101, 102, ... */
    /* Rounds of each key that they completed before. */
    uint64_t pushed_rounds[8];
    bool server_is_stream; /* Else its payloads go by reference. */
};

static inline void collect_effects(struct bench *b)
{
    op_done_as_msg(&b->fx);
    for (uint32_t i = 0; i < b->fx.count; i++) {
        struct ps_fx *f = &b->fx.items[i];

        if (f->type == PS_FX_SEND) {
            assert_true(b->sent_count < SENT_MAX);
            b->sent[b->sent_count++] = (struct sent){
                f->send.conn, f->send.seq, ps_packet_ref(f->send.packet)};
        } else if (f->type == PS_FX_COMPUTE) {
            assert_true(b->computation_count < 64);
            b->computations[b->computation_count++] = f->compute;
            f->compute = NULL;
        } else if (f->type == PS_FX_OP_PROGRESS) {
            uint64_t worker = f->op_progress.conn - WORKER_CONN;

            assert_true(worker < b->workers && b->progress_count[worker] < 64);
            b->progress[worker][b->progress_count[worker]++] =
                f->op_progress.bytes_ready;
        } else if (f->type == PS_FX_DIAL) {
            b->dialled_node = (uint32_t)f->dial.target;
            b->dial_targets[b->dialled_node % 8] = f->dial.target;
        }
    }
    ps_effects_clear(&b->fx);
}

static inline void feed_event(struct bench *b, struct ps_event ev)
{
    ev.now = b->now;
    b->rc = b->machine.ops->step(b->machine.self, &ev, &b->fx);
    assert_true(b->rc == 0 || b->may_fail);
    collect_effects(b);
}

static inline void feed_tick(struct bench *b)
{
    feed_event(b, (struct ps_event){.type = PS_EV_TICK});
}

static inline void deliver_msg(struct bench *b, ps_conn_id conn,
                               struct ps_msg *m, const struct ps_slice *payload)
{
    struct ps_event ev = {.type = PS_EV_MSG, .conn = conn};

    if (conn == SCHED_CONN) {
        m->seq = ++b->sched_seq;
    } else if (conn == SERVER_CONN) {
        m->seq = ++b->server_seq;
    }
    ev.msg.msg = m;
    ev.msg.payload = payload;
    feed_event(b, ev);
}

static inline void run_computations(struct bench *b)
{
    while (b->computation_count > 0) {
        struct ps_compute *c = b->computations[0];
        struct ps_event ev = {.type = PS_EV_COMPUTED};

        memmove(b->computations, b->computations + 1,
                --b->computation_count * sizeof(b->computations[0]));
        ev.computed.token = c->token;
        ev.computed.rc = ps_kernel_run(&c->job);
        ps_compute_free(c);
        feed_event(b, ev);
    }
}

static inline void drop_sent(struct bench *b)
{
    for (uint32_t i = 0; i < b->sent_count; i++) {
        ps_packet_unref(b->sent[i].packet);
    }
    b->sent_count = 0;
}

/* Returns the n-th message of a code sent to a connection; NULL: none. */
static inline const struct sent *
find_sent(const struct bench *b, ps_conn_id conn, unsigned code, uint32_t n)
{
    for (uint32_t i = 0; i < b->sent_count; i++) {
        if (b->sent[i].conn == conn && b->sent[i].packet->msg->code == code &&
            n-- == 0) {
            return &b->sent[i];
        }
    }
    return NULL;
}

static inline uint32_t count_sent(const struct bench *b, ps_conn_id conn,
                                  unsigned code)
{
    uint32_t n = 0;

    while (find_sent(b, conn, code, n) != NULL) {
        n++;
    }
    return n;
}

static const struct ps_peer_identity sched_identity = {.role = PS_ROLE_SCHED,
                                                       .name = "psched"};

static inline void open_conn(struct bench *b, ps_conn_id conn,
                             enum ps_conn_kind kind, uint32_t node)
{
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = conn};

    ev.open.kind = kind;
    ev.open.target = b->dial_targets[node % 8];
    ev.open.uid = 1000;
    ev.open.peer = "test";
    ev.open.is_by_reference = conn == SERVER_CONN && !b->server_is_stream;
    feed_event(b, ev);
}

static inline void deliver_welcome(struct bench *b, ps_conn_id conn,
                                   bool resumed, uint64_t received)
{
    struct ps_msg m = {
        .code = PS_MSG_WELCOME,
        .welcome = {.protocol = PS_PROTOCOL,
                    .name = "peer",
                    .instance = 1 + b->sched_restarts + b->server_restarts,
                    .node = AGENT_NODE,
                    .incarnation = 1,
                    .resumed = resumed,
                    .received = received,
                    .heartbeat_ns = PS_SECONDS(1)}};
    struct ps_event ev = {.type = PS_EV_MSG, .conn = conn};

    ev.msg.msg = &m;
    feed_event(b, ev);
}

static inline void connect_server(struct bench *b, bool resumed,
                                  uint64_t received)
{
    open_conn(b, SERVER_CONN, PS_CONN_DIALLED, SERVER_NODE);
    assert_non_null(find_sent(b, SERVER_CONN, PS_MSG_HELLO, 0));
    deliver_welcome(b, SERVER_CONN, resumed, received);
}

static inline void deliver_map_epoch(struct bench *b, uint32_t epoch)
{
    struct ps_rec_server server = {.node = SERVER_NODE,
                                   .name = "ps0",
                                   .incarnation = 1,
                                   .address = "ps0:1",
                                   .state = PS_NODE_STATE_ACTIVE};

    deliver_msg(
        b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_MAP,
            .map = {.epoch = epoch, .servers = &server, .servers_count = 1}},
        NULL);
}

static inline void deliver_map(struct bench *b)
{
    deliver_map_epoch(b, 1);
}

static inline void deliver_job_state(struct bench *b, uint32_t version,
                                     uint32_t servers)
{
    const uint32_t count = b->workers + b->left;
    const uint8_t async_mode = b->is_ssp ? PS_MODE_SSP : PS_MODE_ASYNC;
    struct ps_rec_slot slot = {
        .node = AGENT_NODE, .incarnation = 1, .ranks = count};
    struct ps_rec_rank ranks[8];

    for (uint32_t i = 0; i < count; i++) {
        ranks[i] = (struct ps_rec_rank){
            .rank = i,
            .slot = 0,
            .worker = i + 1,
            .local_rank = i,
            .state = i < b->workers ? PS_RANK_STATE_LIVE : PS_RANK_STATE_LEFT,
            .incarnation = 1};
    }
    deliver_msg(
        b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_JOB_STATE,
            .job_state = {.gen = GEN,
                          .version = version,
                          .name = "job",
                          .phase = PS_JOB_PHASE_RUNNING,
                          .mode = b->is_async ? async_mode : PS_MODE_SYNC,
                          .rule = b->is_async ? PS_RULE_ACCUMULATE
                                              : PS_RULE_NONE,
                          .num_workers = count,
                          .num_servers = servers,
                          .slots = &slot,
                          .slots_count = 1,
                          .ranks = ranks,
                          .ranks_count = count,
                          .reason = "",
                          .optimizer = ""}},
        NULL);
}

static inline void start_job(struct bench *b, uint32_t servers)
{
    for (uint32_t i = 0; i < b->workers; i++) {
        open_conn(b, WORKER_CONN + i, PS_CONN_LOCAL, 0);
        deliver_msg(
            b, WORKER_CONN + i,
            &(struct ps_msg){
                .code = PS_MSG_L_HELLO,
                .l_hello = {.protocol = PS_PROTOCOL,
                            .job = "job",
                            .num_workers = b->workers + b->left,
                            .num_servers = servers,
                            .rank = (int32_t)i,
                            .on_loss = b->fails_on_loss,
                            .gen = b->reattaches ? GEN : 0,
                            .reattach_keys = b->reattaches,
                            .holds_segments = true,
                            .process = b->answers_waits ? 101 + i : 0,
                            .completed_barriers = b->reattaches ? 3 : 0}},
            NULL);
        deliver_msg(
            b, SCHED_CONN,
            &(struct ps_msg){
                .code = PS_MSG_JOB_OPENED,
                .job_opened = {.worker = i + 1, .text = "", .gen = GEN}},
            NULL);
    }
    deliver_job_state(b, 1, servers);
    for (uint32_t i = 0; i < b->workers; i++) {
        assert_non_null(find_sent(b, WORKER_CONN + i, PS_MSG_L_WELCOME, 0));
    }
}

static inline struct ps_pool *result_pool_new(void *ctx)
{
    (void)ctx;
    return ps_pool_new(&(struct ps_pool_options){.budget = 0});
}

static uint64_t inline_sum_max; /* Options of the next agent. */
static struct ps_account_limits agent_limits[PS_ACCOUNT_KIND_COUNT];

/* Memory that outlives agents; each agent gets it under another number. */
static _Alignas(64) uint8_t segment_memory[1 << 20];
static size_t segments_used; /* Bytes of it that the agent has. */

static inline int residual_segment_new(void *ctx, size_t size,
                                       struct ps_buf **ret_buf)
{
    (void)ctx;
    if (size > sizeof(segment_memory) - segments_used) {
        return PS_E_NOMEM;
    }
    *ret_buf = ps_buf_wrap(segment_memory + segments_used, size, NULL, NULL);
    (*ret_buf)->tag = 5;
    segments_used += (size + 63) / 64 * 64;
    return 0;
}

static inline void restart_bench(struct bench *b, uint32_t workers,
                                 uint32_t servers)
{
    struct ps_agent_options o = {.instance = 1,
                                 .seed = 1,
                                 .inline_sum_max = inline_sum_max,
                                 .dial_backoff_min = PS_MILLIS(10),
                                 .dial_backoff_max = PS_SECONDS(1)};

    memcpy(o.limits, agent_limits, sizeof(o.limits));
    if (b->memory_max != 0) {
        o.limits[PS_ACCOUNT_USER].limit[PS_COST_MEMORY] =
            (struct ps_account_limit){.max = b->memory_max,
                                      .option = "limits.user.memory"};
    }
    segments_used = 0;
    b->now = PS_SECONDS(1);
    b->workers = workers;
    b->scratch_pool = ps_pool_new(&(struct ps_pool_options){.budget = 0});
    o.scratch_pool = b->scratch_pool;
    o.trace = b->trace;
    o.result_pool_new = result_pool_new;
    o.residual_segment_new = residual_segment_new;
    o.residual_segment_size = 64u << 10;
    ps_str_copy(o.name, sizeof(o.name), "node");
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched_address, sizeof(o.sched_address), "psched:1");
    ps_str_copy(o.host, sizeof(o.host), "host");
    ps_effects_init(&b->fx);
    b->agent = ps_agent_new(&o, b->now);
    b->machine = ps_agent_machine(b->agent);
    feed_tick(b);
    open_conn(b, SCHED_CONN, PS_CONN_DIALLED, 0);
    deliver_welcome(b, SCHED_CONN, false, 0);
    deliver_map(b);
    start_job(b, servers);
}

static inline void begin_bench(struct bench *b, uint32_t workers,
                               uint32_t servers)
{
    memset(b, 0, sizeof(*b));
    restart_bench(b, workers, servers);
}

static inline void end_bench(struct bench *b)
{
    for (uint32_t i = 0; i < b->computation_count; i++) {
        ps_compute_free(b->computations[i]);
    }
    drop_sent(b);
    ps_agent_free(b->agent);
    ps_effects_fini(&b->fx);
    for (int i = 0; i < 8; i++) {
        ps_buf_unref(b->region[i]);
    }
    assert_int_equal(ps_pool_used(b->scratch_pool), 0);
    ps_pool_free(b->scratch_pool);
}

/* A job of one worker beside the bench's. */
struct other_job {
    const char *name;
    uint64_t gen;
    uint64_t worker;
    uint32_t servers;
    uint32_t weight;
    uint32_t asked_replicas;
    uint32_t replicas; /* As the scheduler states them. */
    uint64_t process;
};

static inline void deliver_other_state(struct bench *b,
                                       const struct other_job *o,
                                       uint32_t version)
{
    const struct ps_rec_slot slot = {
        .node = AGENT_NODE, .incarnation = 1, .ranks = 1};
    const struct ps_rec_rank rank = {
        .worker = o->worker, .state = PS_RANK_STATE_LIVE, .incarnation = 1};

    deliver_msg(b, SCHED_CONN,
                &(struct ps_msg){.code = PS_MSG_JOB_STATE,
                                 .job_state = {.gen = o->gen,
                                               .version = version,
                                               .name = o->name,
                                               .phase = PS_JOB_PHASE_RUNNING,
                                               .num_workers = 1,
                                               .num_servers = o->servers,
                                               .weight = o->weight,
                                               .replicas = o->replicas,
                                               .slots = &slot,
                                               .slots_count = 1,
                                               .ranks = &rank,
                                               .ranks_count = 1,
                                               .reason = "",
                                               .optimizer = ""}},
                NULL);
}

/* A worker at `conn` opens the job, which begins at once. Returns what the agent
 * has asked the scheduler. */
static inline const struct ps_msg_job_open *
open_other_job(struct bench *b, ps_conn_id conn, const struct other_job *o)
{
    const struct sent *asked;

    open_conn(b, conn, PS_CONN_LOCAL, 0);
    deliver_msg(b, conn,
                &(struct ps_msg){.code = PS_MSG_L_HELLO,
                                 .l_hello = {.protocol = PS_PROTOCOL,
                                             .job = o->name,
                                             .num_workers = 1,
                                             .num_servers = o->servers,
                                             .weight = o->weight,
                                             .replicas = o->asked_replicas,
                                             .process = o->process}},
                NULL);
    asked = find_sent(b, SCHED_CONN, PS_MSG_JOB_OPEN,
                      count_sent(b, SCHED_CONN, PS_MSG_JOB_OPEN) - 1);
    deliver_msg(
        b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_JOB_OPENED,
            .job_opened = {.worker = o->worker, .text = "", .gen = o->gen}},
        NULL);
    deliver_other_state(b, o, 1);
    return &asked->packet->msg->job_open;
}

/* Opens a key of `parts` partitions of `each` floats, on the server or on the
 * agent. */
static inline void open_key(struct bench *b, uint32_t key, uint32_t parts,
                            uint32_t each, uint32_t node)
{
    const struct ps_rec_param threshold = {.name = "threshold", .value = 2};
    char name[32];
    struct ps_buf *table = ps_buf_new(PS_FIXED_PLACEMENT_PART_BYTES *
                                      (size_t)parts);
    struct ps_slice payload = {.buf = table, .len = table->size};
    const struct sent *asked;

    snprintf(name, sizeof(name), "%u", key);
    for (uint32_t i = 0; i < parts; i++) {
        ps_fixed_put_placement_part(
            table->data + (size_t)i * PS_FIXED_PLACEMENT_PART_BYTES,
            &(struct ps_fixed_placement_part){.node = node, .count = each});
    }
    for (uint32_t w = 0; w < b->workers; w++) {
        deliver_msg(
            b, WORKER_CONN + w,
            &(struct ps_msg){.code = PS_MSG_L_KEY,
                             .l_key = {.request = key + 1,
                                       .name = name,
                                       .dtype = PS_DTYPE_FLOAT32,
                                       .count = (uint64_t)parts * each,
                                       .mxnet_key = -1,
                                       .kind = b->key_kind,
                                       .row_width = b->row_width,
                                       .reattached = b->reattaches,
                                       .pushed_round = b->pushed_rounds[w]}},
            NULL);
    }
    asked = find_sent(b, SCHED_CONN, PS_MSG_KEY_OPEN,
                      count_sent(b, SCHED_CONN, PS_MSG_KEY_OPEN) - 1);
    assert_non_null(asked);
    deliver_msg(
        b, SCHED_CONN,
        &(struct ps_msg){
            .code = PS_MSG_KEY_OPENED,
            .ack = asked->seq,
            .key_opened = {.gen = GEN,
                           .request = asked->packet->msg->key_open.request,
                           .text = "",
                           .key = key,
                           .epoch = 1,
                           .parts = parts,
                           .compression = b->uses_compression ? "2bit" : "",
                           .params = &threshold,
                           .params_count = b->uses_compression ? 1 : 0,
                           .is_reassigned = b->keys_are_reassigned}},
        &payload);
    ps_buf_unref(table);
}

static inline void share_region(struct bench *b, uint32_t worker, size_t size)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = WORKER_CONN + worker};

    b->region[worker] = ps_buf_new(size);
    for (size_t i = 0; i < size / 4; i++) {
        ((float *)(void *)b->region[worker]->data)[i] = (float)(worker + 1);
    }
    ev.region.region = 1;
    ev.region.buf = b->region[worker];
    feed_event(b, ev);
}

static inline void submit_op(struct bench *b, uint32_t worker,
                             struct ps_msg_l_op op)
{
    deliver_msg(b, WORKER_CONN + worker,
                &(struct ps_msg){.code = PS_MSG_L_OP, .l_op = op}, NULL);
}

static inline struct ps_msg_l_op pushpull_op(uint32_t key, uint64_t round)
{
    return (struct ps_msg_l_op){.op_id = 1000 * key + round,
                                .op = PS_OP_PUSHPULL,
                                .key = key,
                                .region = 1,
                                .round = round};
}

static inline void submit_push(struct bench *b, uint32_t worker, uint32_t key,
                               uint64_t round, int32_t priority)
{
    struct ps_msg_l_op op = pushpull_op(key, round);

    op.priority = priority;
    submit_op(b, worker, op);
}

static inline void submit_skip(struct bench *b, uint32_t worker, uint32_t key,
                               uint64_t round)
{
    submit_op(b, worker,
              (struct ps_msg_l_op){.op_id = 1000 * key + round,
                                   .op = PS_OP_SKIP,
                                   .key = key,
                                   .round = round});
}

/* Delivers a commit of one part. */
static inline void deliver_commit(struct bench *b, uint32_t key, uint32_t index,
                                  uint64_t round, uint32_t each,
                                  bool all_skipped)
{
    struct ps_rec_part part = {.key = key,
                               .index = index,
                               .round = round,
                               .dtype = PS_DTYPE_FLOAT32,
                               .count = each,
                               .all_skipped = all_skipped};

    deliver_msg(b, SERVER_CONN,
                &(struct ps_msg){.code = PS_MSG_COMMIT,
                                 .commit = {.gen = GEN,
                                            .epoch = 1,
                                            .parts = &part,
                                            .parts_count = 1}},
                NULL);
}

/* Returns the last l_done of a worker. */
static inline const struct ps_msg_l_done *last_op_done(const struct bench *b,
                                                       uint32_t worker)
{
    const ps_conn_id conn = WORKER_CONN + worker;
    const uint32_t n = count_sent(b, conn, PS_MSG_L_DONE);

    assert_true(n > 0);
    return &find_sent(b, conn, PS_MSG_L_DONE, n - 1)->packet->msg->l_done;
}

/* Delivers a value of one part with all elements `v`. */
static inline void deliver_value(struct bench *b, uint32_t key, uint32_t index,
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
    assert_int_equal(b->machine.ops->payload(b->machine.self, SERVER_CONN, &m,
                                             each * 4, &at),
                     0);
    for (uint32_t i = 0; i < each; i++) {
        ((float *)(void *)ps_slice_data(&at))[i] = v;
    }
    deliver_msg(b, SERVER_CONN, &m, &at);
    ps_buf_unref(at.buf);
}

static inline void submit_progress(struct bench *b, uint32_t worker,
                                   uint32_t key, uint64_t round, uint64_t bytes)
{
    submit_op(b, worker,
              (struct ps_msg_l_op){.op_id = 1000 * key + round,
                                   .op = PS_OP_PROGRESS,
                                   .key = key,
                                   .offset = bytes});
}

/* Submits a streaming push of which the worker has copied `bytes_ready`
 * bytes. */
static inline void submit_streaming_push(struct bench *b, uint32_t worker,
                                         uint32_t key, uint64_t round,
                                         uint64_t bytes_ready)
{
    struct ps_msg_l_op op = pushpull_op(key, round);

    op.streaming = true;
    submit_op(b, worker, op);
    if (bytes_ready > 0) {
        submit_progress(b, worker, key, round, bytes_ready);
    }
}

static inline void kill_worker(struct bench *b, uint32_t worker)
{
    struct ps_event ev = {.type = PS_EV_CLOSED, .conn = WORKER_CONN + worker};

    feed_event(b, ev);
}
