/* SPDX-License-Identifier: Apache-2.0 */
/* A scripted training process: attaches, declares its keys and the optimizer,
 * initialises, pushes and pulls its rounds, enters barriers, and detaches.
 * Killed at any point and restarted, it continues at the round that the agent
 * reports. When only its agent dies, it re-attaches to the next one. */
#include "support/world_internal.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "base/name_hash.h"
#include "base/str.h"
#include "support/sched_peek.h"
#include "support/world_data.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void advance_stage(struct world *w, struct wworker *k);

const char *worker_job_name(const struct world *w)
{
    static const char *const names[2][WORLD_JOBS_MAX] = {
        {"job", "rival"}, {"next", "next-rival"}};

    return names[w->next_job][w->current_job];
}

static size_t key_bytes(const struct world *w, uint32_t i)
{
    return w->opt.key[i].count * ps_dtype_size(w->opt.key[i].dtype);
}

/* Bytes of the numbers of `rows` rows, padded to 8. */
static size_t row_numbers_bytes(uint32_t rows)
{
    return ps_round_up(rows * sizeof(uint32_t), 8);
}

/* Bytes of one block in the memory of a key: rounds alternate between two
 * blocks, and pulled rows use a third. */
static size_t place_bytes(const struct world *w, uint32_t i)
{
    size_t numbers = 0;

    if (w->opt.key[i].width != 0) {
        numbers = row_numbers_bytes(
            (uint32_t)(w->opt.key[i].count / w->opt.key[i].width));
    }
    return ps_round_up(numbers + key_bytes(w, i) + 8, 64);
}

static void free_memory(void *p)
{
    free(p);
}

static struct ps_buf *new_memory(size_t size)
{
    void *p = NULL;

    if (posix_memalign(&p, 64, size + 64) != 0) {
        abort();
    }
    memset(p, 0, size + 64);
    return ps_buf_wrap(p, size, free_memory, p);
}

void worker_release_memory(struct wworker *k)
{
    for (uint32_t i = 0; i < WORLD_KEYS_MAX; i++) {
        ps_buf_unref(k->key[i].memory);
        k->key[i].memory = NULL;
        ps_free(k->key[i].final_value);
        k->key[i].final_value = NULL;
    }
}

void worker_drop_requests(struct wworker *k)
{
    for (uint32_t i = 0; i < 64; i++) {
        ps_msg_free(k->open_requests[i]);
        k->open_requests[i] = NULL;
    }
    while (k->segment_count > 0) {
        ps_buf_unref(k->segments[--k->segment_count].memory);
    }
}

/* Sends a request and keeps it until it has ended, for another agent. */
static void send_request(struct world *w, struct wworker *k, uint64_t op_id,
                         const struct ps_msg *m)
{
    assert(k->open_requests[op_id % 64] == NULL);
    k->open_requests[op_id % 64] = ps_msg_dup(m);
    world_local_send(w, k, m);
}

static uint64_t new_op(struct world *w, struct wworker *k, uint32_t key_index,
                       uint64_t round)
{
    uint64_t op = ++k->next_op;

    (void)w;
    k->op_key[op % 64] = key_index + 1;
    k->op_round[op % 64] = round;
    if (k->waiting == 0) {
        k->oldest_op = op;
    }
    k->waiting++;
    return op;
}

static bool is_rows_key(const struct world *w, uint32_t i)
{
    return w->opt.key[i].width != 0;
}

static bool is_async_job(const struct world *w)
{
    return w->opt.mode != PS_MODE_SYNC;
}

static void send_push_rows(struct world *w, struct wworker *k, uint32_t i,
                           uint64_t round)
{
    struct ps_msg m = {.code = PS_MSG_L_OP};
    const struct world_key *wk = &w->opt.key[i];
    size_t bytes = wk->width * ps_dtype_size(wk->dtype);
    uint64_t at = (round & 1u) * place_bytes(w, i);
    uint8_t *block = k->key[i].memory->data + at;
    uint32_t *row = (uint32_t *)(void *)block;
    uint32_t count = world_data_pushed(w, i, k->rank, round, row);
    uint8_t *array = ps_alloc(key_bytes(w, i));

    world_data_fill(w, array, i, k->rank, round);
    for (uint32_t r = 0; r < count; r++) {
        memcpy(block + row_numbers_bytes(count) + r * bytes,
               array + row[r] * bytes, bytes);
    }
    ps_free(array);
    m.l_op.op_id = new_op(w, k, i, round);
    m.l_op.op = PS_OP_PUSH_ROWS;
    m.l_op.key = k->key[i].key;
    m.l_op.round = round;
    m.l_op.priority = -(int32_t)i;
    m.l_op.reduce = w->opt.mean ? PS_REDUCE_MEAN : PS_REDUCE_SUM;
    m.l_op.row_count = count;
    m.l_op.region = count == 0 ? 0 : i + 1;
    m.l_op.offset = at;
    send_request(w, k, m.l_op.op_id, &m);
}

static void send_pull_rows(struct world *w, struct wworker *k, uint32_t i,
                           uint64_t round, bool all)
{
    struct ps_msg m = {.code = PS_MSG_L_OP};
    uint64_t at = 2 * place_bytes(w, i);
    uint32_t *row = (uint32_t *)(void *)(k->key[i].memory->data + at);
    uint32_t count = (uint32_t)(w->opt.key[i].count / w->opt.key[i].width);

    if (all) {
        for (uint32_t r = 0; r < count; r++) {
            row[r] = r;
        }
    } else {
        count = world_data_pulled(w, i, k->rank, round, row);
    }
    k->key[i].is_pulling = true;
    k->key[i].pulled_rows = count;
    m.l_op.op_id = new_op(w, k, i, round);
    m.l_op.op = PS_OP_PULL_ROWS;
    m.l_op.key = k->key[i].key;
    m.l_op.round = round;
    m.l_op.row_count = count;
    m.l_op.region = count == 0 ? 0 : i + 1;
    m.l_op.offset = at;
    send_request(w, k, m.l_op.op_id, &m);
}

static void copy_later(struct world *w, const struct wworker *k, uint32_t i)
{
    struct wevent *e = world_event(
        w, WE_COPY, w->now + world_delay(w, PS_MICROS(10), PS_MILLIS(2)));

    e->number = k->index;
    e->incarnation = k->incarnation;
    e->end = i;
}

void worker_copy_more(struct world *w, struct wworker *k, uint32_t i)
{
    size_t bytes = key_bytes(w, i);
    uint64_t left = bytes - k->key[i].bytes_ready;
    struct ps_msg m = {.code = PS_MSG_L_OP};
    uint64_t piece;
    uint8_t *array;

    w->current_job = k->job;
    if (!k->alive || k->key[i].streaming_op == 0) {
        return;
    }
    piece = 1 + ps_rng_below(&w->rng,
                             ps_rng_chance(&w->rng, 300) ? left : left / 3 + 1);
    array = ps_alloc(bytes);
    world_data_fill(w, array, i, k->rank, k->key[i].round);
    memcpy(k->key[i].memory->data + k->key[i].at + k->key[i].bytes_ready,
           array + k->key[i].bytes_ready, piece);
    ps_free(array);
    k->key[i].bytes_ready += piece;
    m.l_op.op_id = k->key[i].streaming_op;
    m.l_op.op = PS_OP_PROGRESS;
    m.l_op.key = k->key[i].key;
    m.l_op.offset = k->key[i].bytes_ready;
    if (k->key[i].bytes_ready == bytes) {
        k->key[i].streaming_op = 0;
    } else {
        copy_later(w, k, i);
    }
    world_local_send(w, k, &m);
}

/* Starts a streamed operation: no byte of the array is complete. */
static void begin_copy(struct world *w, struct wworker *k, uint32_t i,
                       struct ps_msg_l_op *m)
{
    m->streaming = true;
    memset(k->key[i].memory->data + m->offset, 0x5a, key_bytes(w, i));
    k->key[i].streaming_op = m->op_id;
    k->key[i].bytes_ready = 0;
    copy_later(w, k, i);
}

static void send_op(struct world *w, struct wworker *k, uint32_t i,
                    enum ps_op kind, uint64_t round)
{
    struct ps_msg m = {.code = PS_MSG_L_OP};

    if (is_rows_key(w, i) && kind == PS_OP_PUSH_ROWS) {
        send_push_rows(w, k, i, round);
        return;
    }
    if (is_rows_key(w, i) && kind == PS_OP_PULL) {
        send_pull_rows(w, k, i, round, true);
        return;
    }
    m.l_op.op_id = new_op(w, k, i, round);
    m.l_op.op = (uint8_t)kind;
    m.l_op.key = k->key[i].key;
    m.l_op.round = round;
    m.l_op.priority = -(int32_t)i;
    m.l_op.reduce = (uint8_t)world_data_reduce(w, i);
    m.l_op.root = kind == PS_OP_BROADCAST ? (uint16_t)world_data_root(w, round)
                                          : 0;
    if (kind == PS_OP_PUSHPULL || kind == PS_OP_PUSH ||
        (kind == PS_OP_BROADCAST && k->rank == m.l_op.root) ||
        (kind == PS_OP_INIT && k->rank == 0)) {
        uint64_t at = (round & 1u) * place_bytes(w, i);
        uint8_t *array = k->key[i].memory->data + at;

        m.l_op.region = i + 1;
        m.l_op.offset = at;
        if (is_async_job(w)) {
            world_data_count(w, array, i, k->rank, kind == PS_OP_INIT);
        } else if (w->opt.streams && kind != PS_OP_INIT &&
                   ps_rng_chance(&w->rng, 600)) {
            begin_copy(w, k, i, &m.l_op);
        } else {
            world_data_fill(w, array, i, k->rank, round);
        }
        k->key[i].at = at;
    } else if (kind == PS_OP_PULL && is_async_job(w)) {
        k->key[i].at = 2 * place_bytes(w, i);
        m.l_op.region = i + 1;
        m.l_op.offset = k->key[i].at;
    }
    send_request(w, k, m.l_op.op_id, &m);
}

uint32_t worker_uid(const struct world *w, uint32_t index)
{
    return w->opt.tokens && index % 2 != 0 ? 2000 : WORLD_OWNER;
}

static void send_hello(struct world *w, struct wworker *k)
{
    struct ps_msg m = {.code = PS_MSG_L_HELLO};

    m.l_hello.protocol = 1;
    m.l_hello.job = worker_job_name(w);
    m.l_hello.num_workers = w->opt.workers;
    m.l_hello.num_servers = w->opt.servers_wanted == 0 ? w->opt.servers
                                                       : w->opt.servers_wanted;
    m.l_hello.rank = (int32_t)k->rank;
    m.l_hello.mode = (uint8_t)w->opt.mode;
    m.l_hello.rule = is_async_job(w) && !w->opt.optimizer ? PS_RULE_ACCUMULATE
                                                          : PS_RULE_NONE;
    m.l_hello.staleness = w->opt.staleness;
    m.l_hello.on_loss = (uint8_t)w->opt.on_loss;
    m.l_hello.weight = w->current_job == 0 ? w->opt.weight : 0;
    m.l_hello.replicas = w->opt.replicas;
    m.l_hello.placement = (uint8_t)w->opt.placement;
    m.l_hello.big_array_bound = w->opt.big_array_bound;
    m.l_hello.partition_bytes = w->opt.partition_bytes;
    m.l_hello.start_timeout_ns = 0;
    m.l_hello.gen = k->gen;
    m.l_hello.token = worker_uid(w, k->index) != WORLD_OWNER ? WORLD_TOKEN : "";
    m.l_hello.holds_segments = true;
    m.l_hello.process = ((uint64_t)k->incarnation + 1) << 32 | (k->index + 1);
    for (uint32_t i = 0; k->gen != 0 && i < w->opt.key_count; i++) {
        m.l_hello.reattach_keys += k->key[i].is_open;
    }
    if (k->gen != 0) {
        m.l_hello.completed_barriers = k->barriers - (k->stage == WS_BARRIER &&
                                                      k->waiting > 0);
    }
    world_local_send(w, k, &m);
}

void worker_begin(struct world *w, struct wworker *k)
{
    w->current_job = k->job;
    k->alive = true;
    k->stage = WS_HELLO;
    k->waiting = 0;
    k->next_op = 0;
    k->gen = 0;
    k->agent_lost = false;
    for (uint32_t i = 0; i < WORLD_KEYS_MAX; i++) {
        k->key[i].is_pulling = false;
        k->key[i].is_open = false;
        k->key[i].read_arena = 0;
    }
    worker_drop_requests(k);
    world_local_connect(w, k);
    send_hello(w, k);
}

void worker_restart(struct world *w, struct wworker *k)
{
    struct wevent *e;

    assert(k->stage == WS_DONE);
    worker_drop_requests(k);
    worker_release_memory(k);
    for (uint32_t i = 0; i < WORLD_KEYS_MAX; i++) {
        k->key[i].round = 0;
        k->key[i].streaming_op = 0;
    }
    k->incarnation++;
    k->is_corrected = false;
    k->stage = WS_START;
    k->error = 0;
    k->text[0] = '\0';
    k->agent_lost = false;
    k->is_held = false;
    k->think_round = 0;
    k->is_thinking = false;
    k->round = 0;
    k->barriers = 0;
    e = world_event(w, WE_WORKER,
                    w->now + world_delay(w, PS_MILLIS(1), PS_MILLIS(80)));
    e->number = k->index;
    e->incarnation = k->incarnation;
}

void worker_kill(struct world *w, struct wworker *k)
{
    struct wconn *c = world_conn(w, k->conn);

    k->alive = false;
    k->incarnation++;
    k->conn = 0;
    k->is_held = false;
    k->think_round = 0;
    k->is_thinking = false;
    k->stage = WS_START;
    worker_release_memory(k); /* The agent keeps the references it needs. */
    if (c != NULL) {
        world_close_conn(w, c, 0);
    }
}

static void end_worker(struct world *w, struct wworker *k)
{
    struct wconn *c = world_conn(w, k->conn);

    worker_drop_requests(k);
    k->stage = WS_DONE;
    k->alive = false;
    k->conn = 0;
    if (c != NULL) {
        world_close_conn(w, c, PS_MICROS(10));
    }
}

bool worker_may_lose_agent(const struct wworker *k)
{
    return k->stage == WS_DONE ||
           (k->alive && k->stage > WS_HELLO && k->stage < WS_DETACH);
}

static void dial_later(struct world *w, struct wworker *k)
{
    struct wevent *e = world_event(
        w, WE_WORKER, w->now + world_delay(w, PS_MILLIS(1), PS_MILLIS(60)));

    e->number = k->index;
    e->incarnation = k->incarnation;
}

void worker_closed(struct world *w, struct wworker *k)
{
    w->current_job = k->job;
    if (k->error == 0 && k->gen != 0 && w->opt.faults.agent_crash != 0) {
        k->conn = 0;
        k->agent_lost = true;
        dial_later(w, k);
        return;
    }
    if (k->error == 0) {
        k->error = PS_E_CLOSED;
        ps_str_copy(k->text, sizeof(k->text), "the agent hung up");
    }
    end_worker(w, k);
}

/* Handles a start, a restart after a kill, or the end of a hold. */
void worker_event(struct world *w, struct wworker *k)
{
    w->current_job = k->job;
    if (k->agent_lost && k->conn == 0) {
        if (!k->agent->alive) {
            dial_later(w, k);
            return;
        }
        world_local_connect(w, k);
        send_hello(w, k);
    } else if (k->is_held) {
        k->is_held = false;
        advance_stage(w, k);
    } else if (!k->alive && k->stage == WS_START) {
        worker_begin(w, k);
    }
}

static void begin_compression(struct world *w, struct wworker *k)
{
    struct ps_msg m = {.code = PS_MSG_L_COMPRESSION};

    k->stage = WS_COMPRESSION;
    if (w->opt.compress.name == NULL) {
        return;
    }
    m.l_compression.op_id = new_op(w, k, 0, 0);
    k->op_key[m.l_compression.op_id % 64] = 0;
    m.l_compression.name = w->opt.compress.name;
    m.l_compression.params = w->opt.compress.param;
    m.l_compression.params_count = w->opt.compress.params;
    send_request(w, k, m.l_compression.op_id, &m);
}

void worker_accept_segment(struct world *w, struct wworker *k,
                           const struct ps_msg_l_residual_segment *m)
{
    if (k->segment_count == 64) {
        world_fail(w, "rank %u is given more and more to keep", k->rank);
        return;
    }
    k->segments[k->segment_count].number = m->segment;
    k->segments[k->segment_count].memory = world_segment_ref(w, m->segment);
    k->segment_count += k->segments[k->segment_count].memory != NULL;
}

/* True if the worker is to declare its first key otherwise than a peer, which
 * must have opened it, because the first declaration is the right one; so must
 * those of the same agent, which compares them before the scheduler does. */
static bool makes_mistake(const struct world *w, const struct wworker *k)
{
    bool is_first = true;

    if (!w->opt.contradict || k->index % 2 == 0 || k->is_corrected ||
        k->agent_lost || w->opt.key[0].kind == PS_KEY_KIND_COLLECTIVE) {
        return false;
    }
    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        const struct wworker *peer = &w->worker[i];

        if (peer == k || peer->job != k->job) {
            continue;
        }
        if (peer->alive && !peer->agent_lost && peer->stage > WS_KEYS &&
            peer->stage < WS_DETACH) {
            is_first = false;
        } else if (peer->agent == k->agent) {
            return false;
        }
    }
    return !is_first;
}

static void declare_key(struct world *w, struct wworker *k, uint32_t i)
{
    struct ps_msg m = {.code = PS_MSG_L_KEY};
    uint32_t width = w->opt.key[i].width;
    uint64_t shape[2] = {w->opt.key[i].count, 0};

    if (width != 0) {
        shape[0] /= width;
        shape[1] = width;
    }
    if (i == 0) {
        k->is_mistaken = makes_mistake(w, k);
        shape[0] += k->is_mistaken;
    }
    m.l_key.request = i + 1;
    m.l_key.kind = (uint8_t)w->opt.key[i].kind;
    m.l_key.name = w->opt.key[i].name;
    m.l_key.dtype = (uint8_t)w->opt.key[i].dtype;
    m.l_key.count = shape[0] * ps_max_u64(width, 1);
    m.l_key.row_width = width;
    m.l_key.shape = shape;
    m.l_key.shape_count = width != 0 ? 2 : 1;
    m.l_key.mxnet_key = m.l_key.kind == PS_KEY_KIND_INTEGER
                            ? atoll(m.l_key.name)
                            : -1;
    m.l_key.reattached = k->agent_lost && k->key[i].is_open;
    m.l_key.pushed_round = m.l_key.reattached ? k->key[i].ended_round : 0;
    world_local_send(w, k, &m);
}

static void open_key(struct world *w, struct wworker *k, uint32_t i)
{
    world_local_region(w, k, i + 1, k->key[i].memory);
    declare_key(w, k, i);
}

static void open_keys(struct world *w, struct wworker *k)
{
    k->stage = WS_KEYS;
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        bool more = w->opt.key[i].width != 0 || is_async_job(w);

        k->key[i].memory = new_memory((more ? 3 : 2) * place_bytes(w, i));
        k->waiting++;
        open_key(w, k, i);
    }
}

/* Sends the requests that the lost agent has not ended, in order. */
static void resend_requests(struct world *w, struct wworker *k)
{
    k->agent_lost = false;
    for (uint32_t i = 0; k->stage == WS_KEYS && i < w->opt.key_count; i++) {
        if (!k->key[i].is_open) {
            open_key(w, k, i);
        }
    }
    for (uint64_t op = k->next_op < 64 ? 1 : k->next_op - 63; op <= k->next_op;
         op++) {
        if (k->open_requests[op % 64] != NULL) {
            world_local_send(w, k, k->open_requests[op % 64]);
        }
    }
}

static void reattach(struct world *w, struct wworker *k)
{
    for (uint32_t i = 0; i < k->segment_count; i++) {
        world_local_segment(w, k, k->segments[i].number, k->segments[i].memory);
    }
    k->unanswered_keys = 0;
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        k->unanswered_keys += k->key[i].is_open;
    }
    if (k->unanswered_keys == 0) {
        resend_requests(w, k);
        return;
    }
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        if (k->key[i].is_open) {
            open_key(w, k, i);
        }
    }
}

static void check_result(struct world *w, struct wworker *k, uint32_t i,
                         uint64_t version)
{
    uint8_t *arena = ps_map_get(w->arenas, k->key[i].arena);

    if (is_rows_key(w, i)) {
        const uint8_t *block = k->key[i].memory->data + 2 * place_bytes(w, i);

        check_rows(w, k, i, version, (const uint32_t *)(const void *)block,
                   k->key[i].pulled_rows,
                   block + row_numbers_bytes(k->key[i].pulled_rows));
        return;
    }
    if (is_async_job(w)) {
        check_counts(w, k, i, version, k->key[i].memory->data + k->key[i].at);
        return;
    }
    if (arena == NULL) {
        world_fail(w, "rank %u got a view of arena %u, which is not there",
                   k->rank, k->key[i].arena);
        return;
    }
    check_value(w, k, i, version, arena + k->key[i].offset[version & 1],
                key_bytes(w, i));
    k->key[i].read_arena = k->key[i].arena;
    k->key[i].read_incarnation = k->agent->incarnation;
    k->key[i].read_offset = k->key[i].offset[version & 1];
    k->key[i].read_version = version;
    k->key[i].read_hash = ps_fnv1a_64(0, arena + k->key[i].offset[version & 1],
                                      key_bytes(w, i));
}

/* A value that was read may be read again until the rank pushes to the key, so
 * it must not change until then. */
static void check_unchanged(struct world *w, struct wworker *k, uint32_t i)
{
    const uint8_t *arena = ps_map_get(w->arenas, k->key[i].read_arena);

    /* The memory of an agent that died since is not held by workers here. */
    if (k->key[i].read_arena != 0 && k->agent->alive &&
        k->key[i].read_incarnation == k->agent->incarnation &&
        (arena == NULL ||
         ps_fnv1a_64(0, arena + k->key[i].read_offset, key_bytes(w, i)) !=
             k->key[i].read_hash)) {
        world_fail(w,
                   "rank %u: version %llu of %s is not any more what it read",
                   k->rank, (unsigned long long)k->key[i].read_version,
                   w->opt.key[i].name);
    }
    k->key[i].read_arena = 0;
}

static uint64_t first_round(const struct world *w, const struct wworker *k)
{
    uint64_t r = UINT64_MAX;

    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        r = ps_min_u64(r, k->key[i].round);
    }
    return r;
}

/* Asks for the round of the first key to which the former process contributed.
 * If the attempt at it is void, no round of the others may end before this
 * worker contributes again. */
static void begin_recover(struct world *w, struct wworker *k)
{
    k->stage = WS_RECOVER;
    k->round = first_round(w, k);
    if (w->opt.contradict && k->key[0].round > 0) {
        send_op(w, k, 0, PS_OP_PULL, k->key[0].round);
    }
}

/* True if the worker waits for its round of the key when it has contributed to
 * the others, because a key may be behind. */
static bool is_ahead(const struct world *w, const struct wworker *k, uint32_t i)
{
    return w->opt.contradict && !is_async_job(w) && k->key[i].round > k->round;
}

static void begin_rejoin(struct world *w, struct wworker *k)
{
    k->stage = WS_REJOIN;
    for (uint32_t i = w->opt.contradict ? 1 : 0; i < w->opt.key_count; i++) {
        if (k->key[i].round > 0 && !is_ahead(w, k, i)) {
            send_op(w, k, i, PS_OP_PULL, k->key[i].round);
        }
    }
}

static bool is_norm_exempt(const struct world *w, uint32_t i)
{
    const struct world_key *wk = &w->opt.key[i];

    return !(w->opt.tuned && i % 2 == 0) &&
           (ps_name_hash(wk->kind, wk->name) & 1) != 0;
}

/* Tunings like `like` for every n-th key, sorted by name_hash. */
static uint32_t fill_tunings(const struct world *w, uint32_t n,
                             const struct ps_rec_tuning *like,
                             struct ps_rec_tuning *tunings)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w->opt.key_count; i += n) {
        const struct world_key *wk = &w->opt.key[i];
        struct ps_rec_tuning t = *like;
        uint32_t at = count++;

        t.name_hash = ps_name_hash(wk->kind, wk->name);
        t.norm_exempt = is_norm_exempt(w, i);
        while (at > 0 && tunings[at - 1].name_hash > t.name_hash) {
            tunings[at] = tunings[at - 1];
            at--;
        }
        tunings[at] = t;
    }
    return count;
}

static void begin_optimizer(struct world *w, struct wworker *k)
{
    const struct ps_rec_param params[] = {
        {.name = "learning_rate", .value = 0.0625},
        {.name = "momentum", .value = 0.9},
        {.name = "wd", .value = 0.001},
        {.name = "rescale_grad", .value = 1.0 / 64},
        {.name = "accumulate",
         .value = (double)ps_max_u64(w->opt.accumulate, 1)},
        {.name = "clip_global_norm", .value = w->opt.clip_norm},
    };
    const struct ps_rec_param lamb[] = {
        {.name = "learning_rate", .value = 0.0625},
        {.name = "wd", .value = 0.001},
        {.name = "skip_nonfinite", .value = 1},
        {.name = "clip_global_norm", .value = w->opt.clip_norm},
    };
    const struct ps_rec_param lars[] = {
        {.name = "learning_rate", .value = 0.0625},
        {.name = "momentum", .value = 0.9},
        {.name = "momentum_correction", .value = 0},
        {.name = "wd", .value = 0.001},
        {.name = "eta", .value = 0.5},
        {.name = "clip_global_norm", .value = w->opt.clip_norm},
    };
    const struct ps_rec_param plain[] = {{.name = "learning_rate", .value = 1}};
    struct ps_rec_tuning tunings[WORLD_KEYS_MAX];
    struct ps_msg m = {.code = PS_MSG_L_OPTIMIZER};

    k->stage = WS_OPTIMIZER;
    if (!w->opt.optimizer) {
        return;
    }
    m.l_optimizer.op_id = new_op(w, k, 0, 0);
    k->op_key[m.l_optimizer.op_id % 64] = 0;
    if (w->opt.norms) {
        m.l_optimizer.name = w->opt.lars ? "lars" : "lamb";
        m.l_optimizer.params = w->opt.lars ? lars : lamb;
        m.l_optimizer.params_count = w->opt.lars ? 6 : 4;
    } else {
        m.l_optimizer.name = "sgd";
        m.l_optimizer.params = is_async_job(w) ? plain : params;
        m.l_optimizer.params_count = is_async_job(w) ? 1 : 6;
    }
    if (w->opt.tuned) {
        m.l_optimizer.tunings = tunings;
        m.l_optimizer.tunings_count = fill_tunings(
            w, 2, &(struct ps_rec_tuning){.lr_mult = 3, .wd_mult = 100},
            tunings);
    }
    send_request(w, k, m.l_optimizer.op_id, &m);
}

/* All workers declare the change before their first push, so that it is in
 * time. */
static void begin_change(struct world *w, struct wworker *k)
{
    struct ps_msg m = {.code = PS_MSG_L_OPTIMIZER_CHANGE};

    k->stage = WS_CHANGE;
    if (w->opt.change_round == 0) {
        return;
    }
    m.l_optimizer_change.op_id = new_op(w, k, 0, 0);
    k->op_key[m.l_optimizer_change.op_id % 64] = 0;
    m.l_optimizer_change.name = "learning_rate";
    m.l_optimizer_change.value = 0.5;
    m.l_optimizer_change.round = w->opt.change_round;
    send_request(w, k, m.l_optimizer_change.op_id, &m);
}

/* The same for settings of keys. */
static void begin_tune(struct world *w, struct wworker *k)
{
    struct ps_rec_tuning tunings[WORLD_KEYS_MAX];
    struct ps_msg m = {.code = PS_MSG_L_OPTIMIZER_TUNE};

    k->stage = WS_TUNE;
    if (w->opt.tune_round == 0) {
        return;
    }
    m.l_optimizer_tune.op_id = new_op(w, k, 0, 0);
    k->op_key[m.l_optimizer_tune.op_id % 64] = 0;
    m.l_optimizer_tune.tunings = tunings;
    m.l_optimizer_tune.tunings_count = fill_tunings(
        w, 3,
        &(struct ps_rec_tuning){
            .lr_mult = 2, .wd_mult = 10, .round = w->opt.tune_round},
        tunings);
    send_request(w, k, m.l_optimizer_tune.op_id, &m);
}

/* Begins the recording; of the workers that do so, the first one counts. */
static void begin_profile(struct world *w, struct wworker *k)
{
    struct ps_msg m = {.code = PS_MSG_L_PROFILE_SET};

    k->stage = WS_PROFILE;
    if (!w->opt.profile) {
        return;
    }
    m.l_profile_set.op_id = new_op(w, k, 0, 0);
    k->op_key[m.l_profile_set.op_id % 64] = 0;
    m.l_profile_set.mode = PS_PROFILE_MODE_ON;
    send_request(w, k, m.l_profile_set.op_id, &m);
}

/* Reports that its rank is at the stage. */
static void send_report(struct world *w, struct wworker *k, const char *stage)
{
    const struct ps_rec_scalar scalars[] = {
        {.name = stage, .step = k->round, .value = k->rank},
        {.name = "round", .step = k->round, .value = (double)k->round}};
    struct ps_msg m = {.code = PS_MSG_L_REPORT};

    if (!w->opt.reports) {
        return;
    }
    m.l_report.op_id = new_op(w, k, 0, 0);
    k->op_key[m.l_report.op_id % 64] = 0;
    m.l_report.scalars = scalars;
    m.l_report.scalars_count = 2;
    send_request(w, k, m.l_report.op_id, &m);
}

/* Reads that of one server. A server that is lost takes it along. */
static void read_recording(struct world *w, struct wworker *k)
{
    const uint32_t servers = w->opt.servers_wanted != 0 ? w->opt.servers_wanted
                                                        : w->opt.servers;
    struct ps_msg m = {.code = PS_MSG_L_PROFILE_GET};

    k->stage = WS_RECORDING;
    send_report(w, k, "ended");
    if (!w->opt.profile || w->opt.faults.lose_server ||
        w->opt.faults.copy_loss != 0 || w->opt.faults.isolate != 0 ||
        w->opt.faults.part != 0) {
        return;
    }
    m.l_profile_get.op_id = new_op(w, k, 0, 0);
    k->op_key[m.l_profile_get.op_id % 64] = 0;
    m.l_profile_get.server = k->rank % servers;
    send_request(w, k, m.l_profile_get.op_id, &m);
}

static void begin_init(struct world *w, struct wworker *k)
{
    k->stage = WS_INIT;
    send_report(w, k, "begun");
    if (!w->opt.init) {
        return;
    }
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        if (k->key[i].round == 0 && !world_data_is_collective(w, i)) {
            send_op(w, k, i, PS_OP_INIT, 0);
        }
    }
}

/* Operation of this rank in a round of the key. */
static enum ps_op op_of_round(const struct world *w, const struct wworker *k,
                              uint32_t i)
{
    if (world_data_skips(w, i, k->rank, k->round)) {
        return PS_OP_SKIP;
    }
    switch (world_data_kind(w, i)) {
    case WORLD_PUSHPULL:
        break;
    case WORLD_BROADCAST:
        return PS_OP_BROADCAST;
    case WORLD_REDUCE_TO_ONE:
        return k->rank == world_data_root(w, k->round) ? PS_OP_PUSHPULL
                                                       : PS_OP_PUSH;
    case WORLD_ROWS:
        return PS_OP_PUSH_ROWS;
    }
    return PS_OP_PUSHPULL;
}

static void begin_round(struct world *w, struct wworker *k)
{
    uint32_t start = (uint32_t)ps_rng_below(&w->rng, w->opt.key_count);

    k->stage = WS_ROUND;
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        if (k->alive && is_ahead(w, k, i)) {
            k->key[i].is_pulling = true;
            send_op(w, k, i, PS_OP_PULL, k->key[i].round);
        }
    }
    k->round++;
    for (uint32_t n = 0; n < w->opt.key_count; n++) {
        uint32_t i = (start + n) % w->opt.key_count;

        if (k->alive && k->key[i].round < k->round) {
            k->key[i].round = k->round;
            check_unchanged(w, k, i);
            send_op(w, k, i, op_of_round(w, k, i), k->round);
        }
    }
}

/* True if a barrier is due. A restarted worker first enters the barriers that
 * it has not completed. */
static bool barrier_due(const struct world *w, const struct wworker *k)
{
    return w->opt.barrier_every != 0 &&
           k->round / w->opt.barrier_every > k->barriers;
}

static void begin_barrier(struct world *w, struct wworker *k)
{
    struct ps_msg m = {.code = PS_MSG_L_BARRIER};

    k->stage = WS_BARRIER;
    m.l_barrier.op_id = new_op(w, k, 0, 0);
    k->op_key[m.l_barrier.op_id % 64] = 0;
    m.l_barrier.number = ++k->barriers;
    send_request(w, k, m.l_barrier.op_id, &m);
}

static void begin_final(struct world *w, struct wworker *k)
{
    k->stage = WS_FINAL;
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        check_unchanged(w, k, i);
        send_op(w, k, i, PS_OP_PULL, w->opt.rounds);
    }
}

static void send_detach(struct world *w, struct wworker *k)
{
    struct ps_msg m = {.code = PS_MSG_L_DETACH};

    if (k->rank == 0) {
        w->job[k->job].result = PS_FNV1A_64;
        for (uint32_t i = 0; i < w->opt.key_count; i++) {
            if (is_async_job(w)) {
                w->job[k->job].result = ps_fnv1a_64(
                    w->job[k->job].result,
                    k->key[i].memory->data + k->key[i].at, key_bytes(w, i));
                continue;
            }
            if (is_rows_key(w, i)) {
                w->job[k->job].result = ps_fnv1a_64(
                    w->job[k->job].result,
                    k->key[i].memory->data + 2 * place_bytes(w, i) +
                        row_numbers_bytes(k->key[i].pulled_rows),
                    key_bytes(w, i));
                continue;
            }
            w->job[k->job].result = ps_fnv1a_64(
                w->job[k->job].result, k->key[i].final_value, key_bytes(w, i));
        }
    }
    k->stage = WS_DETACH;
    world_local_send(w, k, &m);
    worker_release_memory(k);
    end_worker(w, k);
}

static void schedule_think_done(struct world *w, const struct wworker *k,
                                ps_time length)
{
    struct wevent *e = world_event(w, WE_THINK_DONE, w->now + length);

    e->number = k->index;
    e->incarnation = k->incarnation;
}

void worker_think_done(struct world *w, struct wworker *k)
{
    w->current_job = k->job;
    if (k->agent_lost) {
        schedule_think_done(w, k, PS_MILLIS(5));
    } else if (k->alive && k->is_thinking) {
        k->is_thinking = false;
        advance_stage(w, k);
    }
}

/* True if the worker is busy before its next round. */
static bool start_thinking(struct world *w, struct wworker *k)
{
    if (w->opt.think_time == 0 || k->think_round == k->round + 1) {
        return k->is_thinking;
    }
    k->think_round = k->round + 1;
    k->is_thinking = true;
    schedule_think_done(w, k, world_delay(w, 1, w->opt.think_time));
    return true;
}

/* Begins the next stage when no reply is missing, and further ones while they
 * need no reply. */
static void advance_stage(struct world *w, struct wworker *k)
{
    while (k->alive && k->waiting == 0 && k->stage != WS_DONE) {
        switch (k->stage) {
        case WS_HELLO:
            begin_compression(w, k);
            break;
        case WS_COMPRESSION:
            open_keys(w, k);
            break;
        case WS_KEYS:
            begin_recover(w, k);
            break;
        case WS_RECOVER:
            begin_rejoin(w, k);
            break;
        case WS_REJOIN:
            begin_optimizer(w, k);
            break;
        case WS_OPTIMIZER:
            begin_change(w, k);
            break;
        case WS_CHANGE:
            begin_tune(w, k);
            break;
        case WS_TUNE:
            begin_profile(w, k);
            break;
        case WS_PROFILE:
            begin_init(w, k);
            break;
        case WS_INIT:
        case WS_ROUND:
        case WS_BARRIER:
            if (barrier_due(w, k)) {
                begin_barrier(w, k);
                break;
            }
            if (k->round >= w->opt.rounds) {
                begin_final(w, k);
                break;
            }
            if (w->opt.diverge_round == k->round + 1 && k->rank == 0 &&
                k->stage != WS_BARRIER) {
                begin_barrier(w, k);
                break;
            }
            if (k->hold_round != 0 && k->round + 1 == k->hold_round) {
                k->is_held = true;
                return;
            }
            if (start_thinking(w, k)) {
                return;
            }
            begin_round(w, k);
            break;
        case WS_FINAL:
            read_recording(w, k);
            break;
        case WS_RECORDING:
            send_detach(w, k);
            return;
        case WS_START:
        case WS_DETACH:
        case WS_DONE:
            return;
        }
    }
}

/* Copies the value: the agent may have other memory when all have arrived. */
static void copy_final_value(struct world *w, struct wworker *k, uint32_t i)
{
    const uint8_t *arena = ps_map_get(w->arenas, k->key[i].arena);

    if (is_async_job(w) || is_rows_key(w, i)) {
        return;
    }
    ps_free(k->key[i].final_value);
    k->key[i].final_value = ps_alloc(key_bytes(w, i));
    memcpy(k->key[i].final_value, arena + k->key[i].offset[w->opt.rounds & 1],
           key_bytes(w, i));
}

/* True if the job of the worker has failed or ended, as the scheduler says. */
static bool is_job_over(const struct world *w, const struct wworker *k)
{
    return w->node[0].alive && sched_peek_is_over(w->node[0].sched, k->gen);
}

static void on_key_info(struct world *w, struct wworker *k,
                        const struct ps_msg_l_key_info *m)
{
    uint32_t i = (uint32_t)m->request - 1;

    if (m->request == 0 || m->request > w->opt.key_count) {
        world_fail(w, "rank %u got key info nobody asked for", k->rank);
        return;
    }
    if (i == 0 && k->is_mistaken &&
        (m->error != PS_E_JOBFAILED || !is_job_over(w, k))) {
        if (m->error != PS_E_MISMATCH) {
            world_fail(w,
                       "rank %u declared %s otherwise than others, and got %d",
                       k->rank, w->opt.key[i].name, m->error);
            return;
        }
        k->is_corrected = true;
        declare_key(w, k, i);
        return;
    }
    if (m->error != 0) {
        k->error = m->error;
        ps_str_copy(k->text, sizeof(k->text), m->text);
        end_worker(w, k);
        return;
    }
    k->key[i].key = m->key;
    k->key[i].arena = m->arena;
    k->key[i].offset[0] = m->even_offset;
    k->key[i].offset[1] = m->odd_offset;
    if (k->agent_lost) {
        if (--k->unanswered_keys == 0) {
            resend_requests(w, k);
        }
        return;
    }
    k->key[i].is_open = true;
    k->key[i].ended_round = m->pushed_round;
    k->key[i].round = m->pushed_round;
    k->waiting--;
}

/* Handles the end of a skip. Some workers read the value of a round that all
 * skipped. */
static void on_skip_done(struct world *w, struct wworker *k, uint32_t i,
                         uint64_t round, bool nobody)
{
    if (nobody != world_data_all_skip(w, i, round)) {
        world_fail(w, "rank %u passed round %llu of %s and heard that %s did",
                   k->rank, (unsigned long long)round, w->opt.key[i].name,
                   nobody ? "all" : "not all");
        return;
    }
    if (nobody && k->rank % 2 == 0) {
        k->key[i].is_pulling = true;
        send_op(w, k, i, PS_OP_PULL, round);
    }
}

/* Does an operation of the first key again that ended because another rank had
 * declared the key otherwise. Returns false if none can have done so. */
static bool do_again(struct world *w, struct wworker *k,
                     const struct ps_msg_l_done *m)
{
    struct ps_msg **at = &k->open_requests[m->op_id % 64];
    struct ps_msg *op = *at;

    if (!w->opt.contradict || m->error == 0 || op == NULL ||
        op->code != PS_MSG_L_OP || k->op_key[m->op_id % 64] != 1) {
        return false;
    }
    /* The attempt is void to which the former process had contributed. */
    const bool is_void = m->error == PS_E_INVAL && k->stage == WS_RECOVER &&
                         !is_async_job(w);

    if (m->error != PS_E_MISMATCH && !is_void) {
        return false;
    }
    if (++k->mismatches > 4 * w->opt.workers) {
        world_fail(w, "rank %u gets the mistakes of others again and again",
                   k->rank);
        return true;
    }
    *at = NULL;
    k->waiting--;
    k->key[0].streaming_op = 0;
    if (is_void) {
        k->key[0].round = op->l_op.round - 1;
        k->key[0].is_pulling = false;
        k->round = ps_min_u64(k->round, k->key[0].round);
    } else if (op->l_op.op == PS_OP_PULL_ROWS) {
        send_pull_rows(w, k, 0, op->l_op.round, k->stage != WS_ROUND);
    } else {
        send_op(w, k, 0, op->l_op.op, op->l_op.round);
    }
    ps_msg_free(op);
    return true;
}

static void on_op_done(struct world *w, struct wworker *k,
                       const struct ps_msg_l_done *m)
{
    uint64_t i = k->op_key[m->op_id % 64];
    uint64_t round = k->op_round[m->op_id % 64];

    if (do_again(w, k, m)) {
        return;
    }
    if (m->error != 0) {
        if (k->error == 0) {
            k->error = m->error;
            ps_str_copy(k->text, sizeof(k->text), m->text);
        }
        end_worker(w, k);
        return;
    }
    if (i > 0 && k->key[i - 1].streaming_op == m->op_id) {
        world_fail(w,
                   "rank %u: round %llu of %s is done, and its array is "
                   "not all there",
                   k->rank, (unsigned long long)round, w->opt.key[i - 1].name);
        return;
    }
    if (k->waiting == 0) {
        world_fail(w, "rank %u: operation %llu is done twice", k->rank,
                   (unsigned long long)m->op_id);
        return;
    }
    k->waiting--;
    if (i > 0 && k->stage == WS_ROUND && !k->key[i - 1].is_pulling) {
        k->key[i - 1].ended_round = round;
    }
    ps_msg_free(k->open_requests[m->op_id % 64]);
    k->open_requests[m->op_id % 64] = NULL;
    if (i == 0 || k->stage == WS_INIT) {
        return;
    }
    if (m->version < round) {
        world_fail(w, "rank %u asked for version %llu of %s and got %llu",
                   k->rank, (unsigned long long)round, w->opt.key[i - 1].name,
                   (unsigned long long)m->version);
        return;
    }
    if (k->stage == WS_ROUND && !k->key[i - 1].is_pulling &&
        op_of_round(w, k, (uint32_t)i - 1) == PS_OP_SKIP) {
        on_skip_done(w, k, (uint32_t)i - 1, round, m->all_skipped);
        return;
    }
    if (is_rows_key(w, (uint32_t)i - 1) && !k->key[i - 1].is_pulling) {
        send_pull_rows(w, k, (uint32_t)i - 1, round, false);
        return;
    }
    k->key[i - 1].is_pulling = false;
    if (k->stage == WS_ROUND &&
        op_of_round(w, k, (uint32_t)i - 1) == PS_OP_PUSH) {
        return; /* Its operation asked for no value. */
    }
    check_result(w, k, (uint32_t)i - 1, m->version);
    if (k->stage == WS_FINAL && k->rank == 0) {
        copy_final_value(w, k, (uint32_t)i - 1);
    }
}

static bool is_copying(const struct world *w, const struct wworker *k)
{
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        if (k->key[i].streaming_op != 0) {
            return true;
        }
    }
    return false;
}

/* Answers as the library does in a wait without a limit of time. Nobody reads
 * the socket of a worker that is busy. */
static void answer_wait_query(struct world *w, struct wworker *k,
                              uint64_t request)
{
    struct ps_msg m = {.code = PS_MSG_L_WAIT_STATE};

    if (k->waiting == 0 || k->is_thinking || k->is_held || k->agent_lost) {
        return;
    }
    m.l_wait_state.request = request;
    m.l_wait_state.still = k->stage == WS_KEYS || is_copying(w, k)
                               ? PS_STILLNESS_MOVING
                               : PS_STILLNESS_STILL;
    m.l_wait_state.moves = k->next_op;
    m.l_wait_state.ops = k->waiting;
    m.l_wait_state.does = k->stage == WS_BARRIER ? "in a barrier"
                                                 : "in a round";
    world_local_send(w, k, &m);
}

void worker_message(struct world *w, struct wworker *k,
                    const struct ps_msg *msg)
{
    w->current_job = k->job;
    switch (msg->code) {
    case PS_MSG_L_WELCOME:
        if (msg->l_welcome.rank != k->rank ||
            msg->l_welcome.num_workers != w->opt.workers) {
            world_fail(w, "rank %u was welcomed as %u of %u", k->rank,
                       msg->l_welcome.rank, msg->l_welcome.num_workers);
            return;
        }
        k->gen = msg->l_welcome.gen;
        w->job[k->job].gen = k->gen;
        if (k->agent_lost) {
            reattach(w, k);
            return;
        }
        k->barriers = msg->l_welcome.completed_barriers;
        break;
    case PS_MSG_L_KEY_INFO:
        on_key_info(w, k, &msg->l_key_info);
        break;
    case PS_MSG_L_DONE:
        on_op_done(w, k, &msg->l_done);
        break;
    case PS_MSG_L_PROFILE_EVENTS:
        on_op_done(w, k,
                   &(struct ps_msg_l_done){.op_id = msg->l_profile_events.op_id,
                                           .text = ""});
        break;
    case PS_MSG_L_STALL_REPLY:
        ps_str_copy(k->stall_reply, sizeof(k->stall_reply),
                    msg->l_stall_reply.text);
        return;
    case PS_MSG_L_WAIT_QUERY:
        answer_wait_query(w, k, msg->l_wait_query.request);
        return;
    case PS_MSG_L_ARENA:
        return;
    case PS_MSG_L_RESIDUAL_SEGMENT:
        return; /* Accepted when it was sent. */
    case PS_MSG_REJECT:
        k->error = msg->reject.error;
        ps_str_copy(k->text, sizeof(k->text), msg->reject.text);
        end_worker(w, k);
        return;
    case PS_MSG_L_ERROR:
        k->error = msg->l_error.error;
        ps_str_copy(k->text, sizeof(k->text), msg->l_error.text);
        end_worker(w, k);
        return;
    default:
        world_fail(w, "rank %u got a %s", k->rank, ps_msg_name(msg->code));
        return;
    }
    advance_stage(w, k);
}
