/* SPDX-License-Identifier: Apache-2.0 */
/* How a partition leaves. A complete round or an init launches its partitions:
 * each is queued for its server, or in a job without servers summed into the
 * results. The end of a step pumps the queues. A partition leaves its queue when
 * the link is up, the job has credit there (rule C1), and the connection has few
 * enough unsent bytes that a more urgent partition could still overtake. Only
 * then are the arrays of several ranks summed; a sum is freed when its frame is
 * acknowledged, because it can be computed again. A frame has one partition, or
 * a batch of small ones of one job that leaves at the next tick, when it is full,
 * or when a partition comes that does not belong to it. */
#include "core/agent/send.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/agent/conflict.h"
#include "core/agent/encode.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/agent/server.h"
#include "core/part/round.h"

#include <assert.h>

/* Wait before a sum is retried for which the scratch pool had no memory. */
#define SCRATCH_RETRY_WAIT PS_MILLIS(5)
/* Most partitions being summed for one server at a time, so that an urgent
 * partition does not wait behind many that are summed already. */
#define COMPUTING_MAX      1024u
/* Default of ps_agent_options.unsent_max, in bytes. */
#define UNSENT_DEFAULT     (2u * 1024u * 1024u)

/* A partition to be sent. */
struct ps_agent_batch_item {
    struct ps_rec_part part;
    struct ps_rec_rows rows; /* PUSH_ROWS: used instead of `part`. */
    uint64_t name_hash;
    uint64_t first_elem;
    const struct ps_slice *slice; /* NULL: an empty part. */
};

/* ------------------------------------------------------------------ frames */

/* Number of first_elems that are sent: none if all are 0. */
static uint32_t first_elems_count(const struct ps_agent_batch *g)
{
    for (uint32_t i = 0; i < g->parts.part_count; i++) {
        if (g->first_elems[i] != 0) {
            return g->parts.part_count;
        }
    }
    return 0;
}

static void send_frame(struct ps_agent_step *st, struct ps_agent_server *s,
                       const struct ps_agent_batch *g)
{
    const struct ps_agent_batch_head *h = &g->head;
    const uint32_t named = h->has_name_hashes ? g->parts.part_count : 0;
    const uint32_t placed = h->has_name_hashes ? first_elems_count(g) : 0;
    struct ps_agent *a = st->a;
    struct ps_msg m = {.code = h->msg_code};
    struct ps_packet *packet;

    if (h->msg_code == PS_MSG_PUSH_ROWS) {
        m.push_rows.gen = h->job->gen;
        m.push_rows.epoch = a->servers.map_epoch;
        m.push_rows.slot = h->job->slot;
        m.push_rows.incarnation = a->uplink.incarnation;
        m.push_rows.weight = h->weight;
        m.push_rows.reduce = h->reduce;
        m.push_rows.retry = h->retry;
        m.push_rows.parts = g->row_parts;
        m.push_rows.parts_count = g->parts.part_count;
    } else if (h->msg_code == PS_MSG_INIT) {
        m.init.gen = h->job->gen;
        m.init.epoch = a->servers.map_epoch;
        m.init.slot = h->job->slot;
        m.init.parts = g->parts.parts;
        m.init.parts_count = g->parts.part_count;
        m.init.name_hashes = g->name_hashes;
        m.init.name_hashes_count = named;
        m.init.first_elems = g->first_elems;
        m.init.first_elems_count = placed;
    } else {
        m.push.gen = h->job->gen;
        m.push.epoch = a->servers.map_epoch;
        m.push.slot = h->job->slot;
        m.push.incarnation = a->uplink.incarnation;
        m.push.weight = h->weight;
        m.push.reduce = h->reduce;
        m.push.rule = h->rule;
        m.push.assign = h->assign;
        m.push.needs_value = h->needs_value;
        m.push.retry = h->retry;
        m.push.parts = g->parts.parts;
        m.push.parts_count = g->parts.part_count;
        m.push.name_hashes = g->name_hashes;
        m.push.name_hashes_count = named;
        m.push.first_elems = g->first_elems;
        m.push.first_elems_count = placed;
    }
    packet = ps_packet_new(&m, g->parts.slices, g->parts.slice_count);
    s->unsent += packet->payload_len;
    a->stats.bytes_out += packet->payload_len;
    ps_agent_server_send(st, s, packet);
}

/* Sends a partition in a frame of its own. */
static void batch_send_alone(struct ps_agent_step *st,
                             struct ps_agent_server *s,
                             const struct ps_agent_batch_head *h,
                             struct ps_agent_batch_item *item)
{
    send_frame(st, s,
               &(struct ps_agent_batch){
                   .head = *h,
                   .parts = {.parts = &item->part,
                             .slices = (struct ps_slice *)item->slice,
                             .part_count = 1,
                             .slice_count = item->slice == NULL ? 0 : 1},
                   .name_hashes = &item->name_hash,
                   .first_elems = &item->first_elem,
                   .row_parts = &item->rows});
}

static void clear_batch(struct ps_agent_server *s)
{
    ps_batch_clear(&s->batch.parts);
    ps_list_remove(&s->batch_node);
}

static void flush_batch(struct ps_agent_step *st, struct ps_agent_server *s)
{
    send_frame(st, s, &s->batch);
    clear_batch(s);
}

void ps_agent_send_drop_batch(struct ps_agent_server *s,
                              const struct ps_agent_job *j)
{
    if (!ps_batch_is_empty(&s->batch.parts) && s->batch.head.job == j) {
        clear_batch(s);
    }
}

static bool is_same_head(const struct ps_agent_batch_head *g,
                         const struct ps_agent_batch_head *h)
{
    return g->msg_code == h->msg_code && g->job == h->job &&
           g->reduce == h->reduce && g->rule == h->rule &&
           g->assign == h->assign && g->needs_value == h->needs_value &&
           g->weight == h->weight && g->retry == h->retry &&
           g->has_name_hashes == h->has_name_hashes;
}

/* Returns true if a partition of `bytes` can leave with those of the batch. */
static bool fits_batch(const struct ps_agent_batch *g,
                       const struct ps_agent_batch_head *h,
                       const struct ps_agent_batch_item *item, uint64_t bytes)
{
    return is_same_head(&g->head, h) && ps_batch_has_room(&g->parts, bytes) &&
           /* The server requires aligned elements. */
           g->parts.payload_bytes % ps_dtype_size(item->part.dtype) == 0;
}

/* Adds a partition of at most PS_BATCH_PART_MAX bytes to the server's batch. */
static void batch_add(struct ps_agent_step *st, struct ps_agent_server *s,
                      const struct ps_agent_batch_head *h,
                      const struct ps_agent_batch_item *item)
{
    struct ps_agent_batch *g = &s->batch;
    const uint64_t bytes = item->slice == NULL ? 0 : item->slice->len;

    if (!ps_batch_is_empty(&g->parts) && !fits_batch(g, h, item, bytes)) {
        flush_batch(st, s);
    }
    if (g->row_parts == NULL) {
        g->row_parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->row_parts));
        g->name_hashes = ps_calloc(PS_PARTS_MAX, sizeof(*g->name_hashes));
        g->first_elems = ps_calloc(PS_PARTS_MAX, sizeof(*g->first_elems));
    }
    if (ps_batch_is_empty(&g->parts)) {
        g->head = *h;
        ps_list_push_back(&st->a->servers.with_batch, &s->batch_node);
    }
    const uint32_t place = ps_batch_add(&g->parts, &item->part, item->slice);

    g->row_parts[place] = item->rows;
    g->name_hashes[place] = item->name_hash;
    g->first_elems[place] = item->first_elem;
}

/* ------------------------------------------------- a partition for a frame */

static struct ps_rec_part part_record(const struct ps_agent_part *p, bool empty,
                                      bool code)
{
    struct ps_rec_part rec = {
        .key = p->key->number,
        .index = p->index,
        .round = p->is_init ? 0 : p->key->round.number,
        .dtype = p->key->dtype,
        .count = empty ? 0 : p->count,
        .codec = code ? (uint8_t)p->key->compression.codec.kind : PS_CODEC_NONE,
        .encoded_bytes = code ? (uint32_t)p->encoding.data.len : 0,
        .rng_key = code ? ps_compression_rng_key(p->key->name_hash) : 0,
    };

    if (p->is_init) {
        rec.attempt = p->key->init.retry;
    } else if (p->key->kind->push_clock == NULL) {
        rec.attempt = p->key->round.starts;
    } else {
        rec.clock = p->key->kind->push_clock(p->key);
    }
    return rec;
}

/* Fails the round or async push of a partition that cannot be computed or sent.
 * The partition becomes idle, so that it is not sent again. */
static void fail_part(struct ps_agent_step *st, struct ps_agent_part *p,
                      int error, const char *what)
{
    struct ps_agent_key *k = p->key;

    ps_agent_encode_end(p);
    /* It is queued again if its owner changed during the computation. */
    ps_agent_server_dequeue(st, p);
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

    ps_str_addf(&t, "partition %u of '%s' %s: %s", p->index, k->name, what,
                ps_strerror(error));
    k->kind->fail_ops(st, k, error, t.data);
}

static void trace_send(const struct ps_agent_step *st,
                       const struct ps_agent_send_queue *f,
                       const struct ps_rec_part *part, uint64_t bytes)
{
    ps_trace_add(st->a->opt.trace,
                 &(struct ps_trace_entry){.begun_at = st->now,
                                          .ended_at = st->now,
                                          .gen = f->job->gen,
                                          .round = part->round,
                                          .bytes = bytes,
                                          .key = part->key,
                                          .index = part->index,
                                          .peer = f->server->node,
                                          .kind = PS_TRACE_KIND_SEND});
}

void ps_agent_send_dispatch(struct ps_agent_step *st,
                            struct ps_agent_send_queue *f,
                            struct ps_agent_part *p,
                            const struct ps_slice *slice, uint32_t rows)
{
    const struct ps_agent_key *k = p->key;
    const uint64_t bytes = slice == NULL ? 0 : slice->len;
    struct ps_agent_batch_item item = {
        .part = part_record(p, slice == NULL, slice == &p->encoding.data),
        .name_hash = k->name_hash,
        .first_elem = p->first_elem,
        .slice = slice,
    };
    const struct ps_agent_batch_head head = {
        .msg_code = p->is_init ? PS_MSG_INIT : k->kind->push_code,
        .job = f->job,
        .reduce = k->round.reduce,
        .rule = k->round.rule,
        .assign = k->round.op == PS_OP_BROADCAST || k->kind->is_collective,
        .needs_value = k->round.needs_value,
        .retry = p->is_init ? 0 : ps_agent_round_retry(k),
        .weight = k->round.op == PS_OP_BROADCAST ? 1 : k->round.weight,
        .has_name_hashes = !k->kind->is_collective &&
                           (item.part.round <= 1 ||
                            k->round.op == PS_OP_BROADCAST),
    };

    item.rows = (struct ps_rec_rows){.key = item.part.key,
                                     .index = item.part.index,
                                     .round = item.part.round,
                                     .dtype = item.part.dtype,
                                     .row_width = k->row_width,
                                     .count = rows};
    if (bytes > PS_PAYLOAD_MAX) {
        fail_part(st, p, PS_E_TOOBIG, "is larger than a frame");
        return;
    }
    ps_agent_part_set_state(p, PS_AGENT_PART_SENT);
    p->encoding.was_sent = p->encoding.was_sent || slice == &p->encoding.data;
    if (!p->is_init) {
        f->bytes_sent += bytes;
        trace_send(st, f, &item.part, bytes);
    }
    if (bytes > PS_BATCH_PART_MAX || st->a->opt.unbatched) {
        batch_send_alone(st, f->server, &head, &item);
    } else {
        batch_add(st, f->server, &head, &item);
    }
}

/* -------------------------------------------------------------------- sums */

/* First size of the batch arena in bytes; quadruples each time it is full, up
 * to PS_BATCH_FRAME_MAX. */
#define ARENA_MIN          PS_BATCH_PART_MAX
/* Most arrays of a sum that is made within the step. */
#define INLINE_SOURCES_MAX 64u

void ps_agent_send_release_arena(struct ps_agent *a)
{
    ps_buf_unref(a->sum_arena.buf);
    a->sum_arena.buf = NULL;
}

void ps_agent_send_tick(struct ps_agent_step *st)
{
    struct ps_agent_server *s;

    while ((s = PS_LIST_FIRST(struct ps_agent_server, batch_node,
                              &st->a->servers.with_batch)) != NULL) {
        flush_batch(st, s);
    }
    ps_agent_send_release_arena(st->a);
}

/* Allocates a small sum behind the last one, so that the sums of one batch
 * leave as one slice. */
static int alloc_in_arena(struct ps_agent *a, uint64_t bytes, size_t align,
                          struct ps_slice *ret_slice)
{
    uint64_t at = ps_round_up(a->sum_arena.used, align);

    if (a->sum_arena.buf == NULL || at > a->sum_arena.buf->size ||
        bytes > a->sum_arena.buf->size - at) {
        uint64_t size = a->sum_arena.buf == NULL
                            ? ARENA_MIN
                            : ps_min_u64(4 * a->sum_arena.buf->size,
                                         PS_BATCH_FRAME_MAX);
        struct ps_buf *buf;
        int rc = ps_pool_get(a->opt.scratch_pool, size, &buf);

        if (rc != 0) {
            return rc;
        }
        ps_buf_unref(a->sum_arena.buf);
        a->sum_arena.buf = buf;
        at = 0;
    }
    a->sum_arena.used = at + bytes;
    *ret_slice = (struct ps_slice){
        .buf = ps_buf_ref(a->sum_arena.buf), .offset = at, .len = bytes};
    return 0;
}

static bool may_sum_inline(const struct ps_agent *a, uint64_t bytes,
                           uint32_t count)
{
    return bytes <= PS_BATCH_PART_MAX && count <= INLINE_SOURCES_MAX &&
           bytes * (count + 1) <= a->opt.inline_sum_max;
}

/* Sums and dispatches a small partition in this step. PS_E_NOMEM: no change. */
static int sum_inline(struct ps_agent_step *st, struct ps_agent_send_queue *f,
                      struct ps_agent_part *p, const struct ps_slice *slices,
                      uint32_t count)
{
    struct ps_agent *a = st->a;
    const void *src[INLINE_SOURCES_MAX];
    struct ps_job job = {.op = PS_JOB_SUM,
                         .dtype = (enum ps_dtype)p->key->dtype,
                         .fold = ps_round_fold(p->key->round.reduce),
                         .count = p->count,
                         .src_count = count,
                         .src = src};
    struct ps_slice dst;
    int rc = alloc_in_arena(a, ps_agent_part_bytes(p),
                            ps_dtype_size(p->key->dtype), &dst);

    if (rc != 0) {
        return rc;
    }
    for (uint32_t i = 0; i < count; i++) {
        src[i] = ps_slice_data(&slices[i]);
    }
    job.dst = ps_slice_data(&dst);
    rc = ps_kernel_run(&job);
    if (rc == 0) {
        a->stats.bytes_summed += dst.len * count;
        ps_agent_send_dispatch(st, f, p, &dst, 0);
    } else {
        fail_part(st, p, rc, "could not be computed on this node");
    }
    ps_buf_unref(dst.buf);
    return 0;
}

/* Sum of slices of a partition into `dst`. */
static struct ps_compute *sum_new(const struct ps_agent_computation *run,
                                  const struct ps_slice *slices, uint32_t count,
                                  const struct ps_slice *dst)
{
    const struct ps_agent_key *k = run->part->key;
    struct ps_compute *c = ps_compute_new(run->token, count, 1);

    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)k->dtype;
    c->job.fold = ps_round_fold(k->round.reduce);
    c->job.count = run->part->count;
    for (uint32_t i = 0; i < count; i++) {
        ps_compute_add_src(c, &slices[i], 0);
    }
    c->job.dst = ps_slice_data(dst);
    ps_compute_pin(c, dst->buf);
    return c;
}

/* Starts the sum of a dense partition. PS_E_NOMEM: no change. */
static int start_part_sum(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p,
                          const struct ps_slice *slices, uint32_t count)
{
    uint64_t bytes = ps_agent_part_bytes(p);
    struct ps_agent_computation *run;
    struct ps_buf *buf;
    int rc = ps_pool_get(st->a->opt.scratch_pool, bytes, &buf);

    if (rc != 0) {
        return rc;
    }
    run = ps_agent_computation_new(st->a, p, f);
    run->bytes = bytes;
    run->dst = (struct ps_slice){.buf = buf, .len = bytes};
    st->a->stats.bytes_summed += bytes * count;
    ps_agent_computation_start(st, run, sum_new(run, slices, count, &run->dst));
    return 0;
}

static bool reads_device(const struct ps_slice *slices, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (slices[i].buf->device != NULL) {
            return true;
        }
    }
    return false;
}

bool ps_agent_send_dense(struct ps_agent_step *st,
                         struct ps_agent_send_queue *f, struct ps_agent_part *p)
{
    const uint32_t locals = p->key->job->local_rank_count;
    struct ps_slice few[INLINE_SOURCES_MAX];
    struct ps_slice *slices = few;
    const bool encodes = p->key->compression.codec.kind != PS_CODEC_NONE &&
                         ps_agent_encode_applies(p);
    uint32_t count;
    bool ok = true;

    ps_agent_encode_begin_attempt(p);
    if (encodes && ps_agent_encode_is_running(p)) {
        /* The encoding was started for the previous owner. */
        ps_agent_part_set_state(p, PS_AGENT_PART_COMPUTING);
        return true;
    }
    if (encodes && ps_agent_encode_is_ready(p)) {
        ps_agent_send_dispatch(st, f, p, &p->encoding.data, 0);
        return true;
    }
    if (locals > INLINE_SOURCES_MAX) {
        slices = ps_calloc(locals, sizeof(*slices));
    }
    count = ps_agent_contribution_sources(p, slices);
    if (count > 0 && encodes) {
        ok = ps_agent_encode_start(st, f, p, slices, count) == 0;
    } else if (count <= 1 && !reads_device(slices, count)) {
        ps_agent_send_dispatch(st, f, p, count == 0 ? NULL : &slices[0], 0);
    } else if (may_sum_inline(st->a, ps_agent_part_bytes(p), count) &&
               !reads_device(slices, count)) {
        ok = sum_inline(st, f, p, slices, count) == 0;
    } else {
        ok = start_part_sum(st, f, p, slices, count) == 0;
    }
    if (slices != few) {
        ps_free(slices);
    }
    return ok;
}

/* ------------------------------------------------------------ ends of sums */

/* Drops a sum whose round is over: an earlier push was answered with the value,
 * or the round failed. Queues the partition again if its next round or an init
 * needs it. */
static void discard_sum(struct ps_agent_step *st, struct ps_agent_part *p)
{
    ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
    if (p->is_init || ps_agent_contribution_is_needed(p)) {
        ps_agent_server_enqueue(st, p);
    }
}

void ps_agent_send_on_computed(struct ps_agent_step *st,
                               struct ps_agent_computation *run, int error)
{
    struct ps_agent_send_queue *f = run->send_queue;
    struct ps_agent_part *p = run->part;

    /* The result is dropped if its key is gone or the owner changed. */
    if (p != NULL) {
        ps_agent_computation_leave(run);
        ps_agent_server_touch(st->a, f->server);
        if (error != 0) {
            fail_part(st, p, error, "could not be computed on this node");
        } else if (run->is_encode) {
            ps_agent_encode_on_computed(p, run);
            if (p->state == PS_AGENT_PART_COMPUTING) {
                discard_sum(st, p); /* The owner may have changed. */
            }
        } else if (p->state == PS_AGENT_PART_COMPUTING &&
                   (!ps_agent_contribution_is_needed(p) ||
                    run->round_starts != p->key->round.starts)) {
            discard_sum(st, p);
            if (p->key->kind->resume_push != NULL) {
                p->key->kind->resume_push(st, p->key);
            }
        } else if (p->state == PS_AGENT_PART_COMPUTING &&
                   p->owner_node == f->server->node) {
            ps_agent_send_dispatch(st, f, p, &run->dst, run->row_count);
        }
    }
    ps_buf_unref(run->dst.buf);
    ps_free(run);
}

/* ------------------------------------------------------------------ queues */

static const struct ps_agent_queue_limits of_one_job = {
    .computing = 4ull * 1024 * 1024, .unsent = UINT64_MAX};

/* Returns true if one more partition may be started for the server. */
static bool has_send_capacity(const struct ps_agent *a,
                              struct ps_agent_server *s)
{
    if (s->dialer.conn == 0) {
        return false;
    }
    const struct ps_agent_queue_limits *most = s->queue_count > 1
                                                   ? s->shared_limits
                                                   : &of_one_job;
    const uint64_t unsent = a->opt.unsent_max == 0 ? UNSENT_DEFAULT
                                                   : a->opt.unsent_max;

    s->is_full = s->unsent >= ps_min_u64(unsent, most->unsent);
    return !s->is_full && s->computing < COMPUTING_MAX &&
           s->computing_bytes < most->computing &&
           ps_link_unacked(s->dialer.link) < PS_LINK_IN_FLIGHT_MAX;
}

/* The partition at the head of the queue; NULL: there is none, or credit is
 * used up. An init needs no credit. */
static struct ps_agent_part *head_part(const struct ps_agent_send_queue *f)
{
    struct ps_heap_item *item = ps_heap_peek(&f->heap);
    struct ps_agent_part *p;

    if (item == NULL) {
        return NULL;
    }
    p = PS_CONTAINER(item, struct ps_agent_part, queue_item);
    return p->is_init || f->bytes_sent + f->computing_bytes < f->credit ? p
                                                                        : NULL;
}

/* The partition that may be sent to the server next, the head of the queue
 * whose turn it is; NULL: none may. */
static struct ps_agent_part *next_part(struct ps_agent_server *s,
                                       struct ps_agent_send_queue **ret_queue)
{
    struct ps_fair_flow *flow;

    if (s->queue_count <= 1) {
        *ret_queue = PS_LIST_FIRST(struct ps_agent_send_queue, node,
                                   &s->send_queues);
        return *ret_queue == NULL ? NULL : head_part(*ret_queue);
    }
    while ((flow = ps_fair_next(&s->fair)) != NULL) {
        struct ps_agent_part *p;

        *ret_queue = PS_CONTAINER(flow, struct ps_agent_send_queue, flow);
        p = head_part(*ret_queue);
        if (p != NULL) {
            return p;
        }
        /* More partitions or credit make it active again. */
        ps_fair_deactivate(&s->fair, flow);
    }
    return NULL;
}

/* Starts the partitions that may leave for the server now. False: the scratch
 * pool has no memory for the next one. */
static bool pump_server(struct ps_agent_step *st, struct ps_agent_server *s)
{
    while (has_send_capacity(st->a, s)) {
        struct ps_agent_send_queue *f;
        struct ps_agent_part *p = next_part(s, &f);

        if (p == NULL) {
            break;
        }
        const uint64_t used = f->bytes_sent + f->computing_bytes;
        const uint64_t init_bytes = p->is_init ? ps_agent_part_bytes(p) : 0;

        ps_heap_pop(&f->heap);
        ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
        if (p->is_init) {
            const struct ps_slice first = ps_agent_part_slice(
                p, &p->key->init.array);

            ps_agent_send_dispatch(st, f, p, &first, 0);
        } else if (!p->key->kind->start_part(st, f, p)) {
            ps_agent_server_enqueue(st, p);
            st->a->due.scratch_retry_at = ps_time_add(st->now,
                                                      SCRATCH_RETRY_WAIT);
            return false;
        }
        if (s->queue_count > 1) {
            ps_fair_charge(&s->fair, &f->flow, f->job->config.weight,
                           f->bytes_sent + f->computing_bytes - used +
                               init_bytes);
        }
    }
    return true;
}

void ps_agent_send_pump(struct ps_agent_step *st)
{
    struct ps_list *touched = &st->a->servers.touched;
    struct ps_list without_memory;
    struct ps_agent_server *s;

    ps_list_init(&without_memory);
    while ((s = PS_LIST_FIRST(struct ps_agent_server, touched_node, touched)) !=
           NULL) {
        const bool has_memory = pump_server(st, s);

        ps_agent_server_update_deadlines(st->a, s);
        ps_list_remove(&s->touched_node);
        if (!has_memory) {
            ps_list_push_back(&without_memory, &s->touched_node);
        }
    }
    /* Any event may have freed memory: the next one pumps them again. */
    ps_list_move_all(&without_memory, touched);
}

/* ------------------------------------------------------------------ launch */

/* Without servers: computes the partition directly into the results. Returns
 * true if it has the version without a computation. */
static bool compute_locally(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent *a = st->a;
    struct ps_agent_key *k = p->key;
    uint64_t version = p->is_init ? 0 : k->round.number;
    const struct ps_slice dst = ps_agent_part_result(p, version);
    struct ps_slice one = ps_agent_part_slice(p, &k->init.array);
    const bool sums = !p->is_init && k->round.op != PS_OP_BROADCAST &&
                      k->round.op != PS_OP_SKIP;
    struct ps_slice *slices = &one;
    uint32_t count = 1;
    struct ps_agent_computation *run;
    struct ps_compute *c;

    if (!p->is_init && k->round.op == PS_OP_SKIP) {
        ps_agent_part_skip(p, version);
        if (p->local_version !=
            (int64_t)version - 1) { /* No value exists yet. */
            p->committed_version = (int64_t)version;
            return true;
        }
        /* A skipped round repeats the newest value. */
        one = ps_agent_part_result(p, (uint64_t)p->local_version);
    } else if (!p->is_init) {
        slices = ps_calloc(k->job->local_rank_count, sizeof(*slices));
        count = ps_agent_contribution_sources(p, slices);
    }
    run = ps_agent_computation_new(a, p, NULL);
    run->version = (int64_t)version;
    c = sum_new(run, slices, count, &dst);
    if (!sums) {
        c->job.fold = PS_FOLD_SUM; /* Of one array: a copy. */
    }
    c->job.divide_by = sums && k->round.reduce == PS_REDUCE_MEAN
                           ? k->round.weight
                           : 1;
    a->stats.bytes_summed += count * dst.len;
    ps_agent_computation_start(st, run, c);
    if (slices != &one) {
        ps_free(slices);
    }
    return false;
}

bool ps_agent_send_launch(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->owner_node == 0) {
        return compute_locally(st, p);
    }
    ps_agent_server_enqueue(st, p);
    return false;
}
