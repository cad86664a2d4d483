/* SPDX-License-Identifier: Apache-2.0 */
/* Send queues: order in which partitions go to a server. Each job has one queue
 * per server: higher priority first, FIFO among equals (rule C5). A partition
 * leaves its queue when the link is up, the job has credit there (rule C1), and
 * the connection has few enough unsent bytes that a more urgent partition could
 * still overtake. Only then are the arrays of several ranks summed; a sum is
 * freed when its frame is acknowledged, because it can be computed again. */
#include "core/agent/inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/round/round.h"

#include <assert.h>
#include <string.h>

/* First size of the batch arena in bytes; quadruples each time it is full, up
 * to PS_BATCH_FRAME_MAX. */
#define ARENA_MIN          PS_BATCH_PART_MAX
#define INLINE_SOURCES_MAX 64u

/* ------------------------------------------------------------------- queues */

static uint64_t initial_credit(const struct ps_agent *a)
{
    return a->opt.initial_credit != 0 ? a->opt.initial_credit
                                      : PS_CREDIT_INITIAL;
}

struct ps_agent_send_queue *ps_agent_send_queue_get(struct ps_agent_step *st,
                                                    struct ps_agent_job *j,
                                                    uint32_t node)
{
    struct ps_agent_send_queue *f = ps_map_get(j->send_queues, node);

    if (f == NULL) {
        f = ps_calloc(1, sizeof(*f));
        f->job = j;
        f->server = ps_agent_server_get(st, node);
        f->credit = initial_credit(st->a);
        ps_heap_init(&f->heap);
        ps_list_push_back(&f->server->send_queues, &f->node);
        f->server->dialer.enabled = !f->server->removed;
        ps_map_put(j->send_queues, node, f);
    }
    return f;
}

void ps_agent_send_queue_free(struct ps_agent_send_queue *f)
{
    assert(f->heap.count == 0);
    ps_list_remove(&f->node);
    ps_heap_fini(&f->heap);
    ps_free(f);
}

void ps_agent_send_enqueue(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, p->key->job,
                                                            p->owner_node);
    int64_t priority = p->is_init ? 0 : p->key->priority;

    assert(p->state != PS_AGENT_PART_QUEUED &&
           p->state != PS_AGENT_PART_COMPUTING);
    ps_agent_part_set_state(p, PS_AGENT_PART_QUEUED);
    ps_heap_push(&f->heap, &p->queue_item, (uint64_t)(INT32_MAX - priority));
    f->server->needs_pump = true;
}

void ps_agent_send_dequeue(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->state == PS_AGENT_PART_QUEUED) {
        struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, p->key->job,
                                                                p->owner_node);

        ps_heap_remove(&f->heap, &p->queue_item);
    }
    ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
}

void ps_agent_send_raise_credit(struct ps_agent_step *st,
                                struct ps_agent_server *s, uint64_t gen,
                                uint64_t credit)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, gen);
    struct ps_agent_send_queue *f = j == NULL
                                        ? NULL
                                        : ps_map_get(j->send_queues, s->node);

    if (f != NULL && credit > f->credit) {
        f->credit = credit;
    }
}

void ps_agent_send_end_backoff(struct ps_agent_step *st,
                               struct ps_agent_server *s, uint64_t gen)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, gen);
    struct ps_agent_send_queue *f = j == NULL
                                        ? NULL
                                        : ps_map_get(j->send_queues, s->node);
    const ps_time soon = ps_time_add(st->now, RESEND_WAIT);

    if (f != NULL && f->backoff != 0) {
        f->backoff = 0;
        f->backoff_until = ps_time_min(f->backoff_until, soon);
        st->a->resend_at = ps_time_min(st->a->resend_at, soon);
    }
}

void ps_agent_send_begin_backoff(struct ps_agent_step *st,
                                 struct ps_agent_send_queue *f)
{
    if (f->backoff_until <= st->now) {
        f->backoff = ps_min_u64(ps_max_u64(2 * f->backoff, RESEND_WAIT),
                                FULL_BACKOFF_MAX);
        f->backoff_until = ps_time_add(st->now, f->backoff);
    }
    st->a->resend_at = ps_time_min(st->a->resend_at, f->backoff_until);
}

bool ps_agent_send_is_backing_off(struct ps_agent_step *st,
                                  const struct ps_agent_part *p)
{
    const struct ps_agent_send_queue *f = ps_map_get(p->key->job->send_queues,
                                                     p->owner_node);

    if (f == NULL || f->backoff_until <= st->now) {
        return false;
    }
    st->a->resend_at = ps_time_min(st->a->resend_at, f->backoff_until);
    return true;
}

void ps_agent_send_resend(struct ps_agent_step *st, struct ps_agent_server *s)
{
    PS_LIST_EACH(n, &s->send_queues)
    {
        struct ps_agent_send_queue *f = PS_CONTAINER(
            n, struct ps_agent_send_queue, node);
        struct ps_map_cursor c = {0};
        struct ps_agent_key *k;

        f->bytes_sent = 0;
        f->credit = initial_credit(st->a);
        while ((k = ps_map_next(f->job->keys, &c)) != NULL) {
            for (uint32_t i = 0; i < k->part_count; i++) {
                struct ps_agent_part *p = &k->parts[i];

                if (p->owner_node == s->node &&
                    (p->owner_changed || (k->prior_state != NULL &&
                                          p->local_version == NO_VERSION))) {
                    /* The state sent before may have been lost as well. */
                    ps_agent_part_send_state(st, p);
                }
                if (p->owner_node == s->node &&
                    (p->state == PS_AGENT_PART_SENT ||
                     p->state == PS_AGENT_PART_BACKOFF)) {
                    ps_agent_send_enqueue(st, p);
                }
            }
            ps_agent_conflict_resend(st, k, s->node);
            ps_agent_pull_resend(st, k, s->node);
        }
    }
}

/* ------------------------------------------------------------------- frames */

static struct ps_rec_part part_record(const struct ps_agent_part *p, bool empty,
                                      bool code)
{
    struct ps_rec_part rec = {
        .key = p->key->number,
        .index = p->index,
        .round = p->is_init ? 0 : p->key->round,
        .dtype = p->key->dtype,
        .count = empty ? 0 : p->count,
        .codec = code ? (uint8_t)p->key->compression.codec.kind : PS_CODEC_NONE,
        .encoded_bytes = code ? (uint32_t)p->encoded.len : 0,
        .rng_key = code ? ps_compression_rng_key(p->key->name_hash) : 0,
    };

    if (p->is_init) {
        rec.attempt = p->key->init_retry;
    } else {
        p->key->kind->stamp_push(p->key, &rec);
    }
    return rec;
}

static void send_batch(struct ps_agent_step *st, struct ps_agent_server *s,
                       const struct ps_agent_batch *g)
{
    struct ps_agent *a = st->a;
    struct ps_msg m = {.code = g->msg_code};
    struct ps_packet *parcel;

    if (g->msg_code == PS_MSG_PUSH_ROWS) {
        m.push_rows.gen = g->job->gen;
        m.push_rows.epoch = a->map_epoch;
        m.push_rows.slot = g->job->slot;
        m.push_rows.incarnation = a->uplink.incarnation;
        m.push_rows.weight = g->weight;
        m.push_rows.reduce = g->reduce;
        m.push_rows.retry = g->retry;
        m.push_rows.parts = g->row_parts;
        m.push_rows.parts_count = g->part_count;
    } else if (g->msg_code == PS_MSG_INIT) {
        m.init.gen = g->job->gen;
        m.init.epoch = a->map_epoch;
        m.init.slot = g->job->slot;
        m.init.parts = g->parts;
        m.init.parts_count = g->part_count;
        m.init.name_hashes = g->name_hashes;
        m.init.name_hashes_count = g->has_name_hashes ? g->part_count : 0;
    } else {
        m.push.gen = g->job->gen;
        m.push.epoch = a->map_epoch;
        m.push.slot = g->job->slot;
        m.push.incarnation = a->uplink.incarnation;
        m.push.weight = g->weight;
        m.push.reduce = g->reduce;
        m.push.rule = g->rule;
        m.push.assign = g->assign;
        m.push.needs_value = g->needs_value;
        m.push.retry = g->retry;
        m.push.parts = g->parts;
        m.push.parts_count = g->part_count;
        m.push.name_hashes = g->name_hashes;
        m.push.name_hashes_count = g->has_name_hashes ? g->part_count : 0;
    }
    parcel = ps_packet_new(&m, g->slices, g->slice_count);
    s->unsent += parcel->payload_len;
    a->stats.bytes_out += parcel->payload_len;
    ps_link_send(s->dialer.link, parcel, st->now, st->fx);
}

void ps_agent_send_flush(struct ps_agent_step *st, struct ps_agent_server *s)
{
    struct ps_agent_batch *g = &s->batch;

    if (g->part_count == 0) {
        return;
    }
    send_batch(st, s, g);
    for (uint32_t i = 0; i < g->slice_count; i++) {
        ps_buf_unref(g->slices[i].buf);
    }
    g->part_count = 0;
    g->slice_count = 0;
    g->payload_bytes = 0;
}

/* Discards the unsent batch of a job that is being freed. */
void ps_agent_send_drop_batch(struct ps_agent_job *j, struct ps_agent_server *s)
{
    struct ps_agent_batch *g = &s->batch;

    if (g->part_count == 0 || g->job != j) {
        return;
    }
    for (uint32_t i = 0; i < g->slice_count; i++) {
        ps_buf_unref(g->slices[i].buf);
    }
    g->part_count = 0;
    g->slice_count = 0;
    g->payload_bytes = 0;
}

/* Fails the round or async push of a partition that cannot be computed or sent.
 * The partition becomes idle, so that it is not sent again. */
static void fail_part(struct ps_agent_step *st, struct ps_agent_part *p,
                      int error, const char *what)
{
    struct ps_agent_key *k = p->key;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    p->is_encoding = false;
    p->encoding_cancelled = false;
    /* It is queued again if its owner changed during the computation. */
    ps_agent_send_dequeue(st, p);
    ps_str_init(&t, text, sizeof(text));
    ps_str_addf(&t, "partition %u of '%s' %s: %s", p->index, k->name, what,
                ps_strerror(error));
    k->kind->fail_ops(st, k, error, text);
}

void ps_agent_send_dispatch(struct ps_agent_step *st,
                            struct ps_agent_send_queue *f,
                            struct ps_agent_part *p,
                            const struct ps_slice *slice, uint32_t rows)
{
    struct ps_agent_server *s = f->server;
    struct ps_agent_key *k = p->key;
    struct ps_rec_part rec = part_record(p, slice == NULL,
                                         slice == &p->encoded);
    struct ps_rec_rows rec_rows = {.key = rec.key,
                                   .index = rec.index,
                                   .round = rec.round,
                                   .dtype = rec.dtype,
                                   .row_width = k->row_width,
                                   .count = rows};
    uint64_t bytes = slice == NULL ? 0 : slice->len;
    struct ps_agent_batch one = {
        .msg_code = p->is_init ? PS_MSG_INIT : k->kind->push_code,
        .job = f->job,
        .reduce = k->reduce,
        .rule = k->rule,
        .assign = k->round_op == PS_OP_BROADCAST || k->kind->is_collective,
        .needs_value = k->needs_value,
        .retry = p->is_init ? 0 : ps_agent_conflict_retry(k),
        .weight = k->round_op == PS_OP_BROADCAST ? 1 : k->weight,
        .part_count = 1,
        .payload_bytes = bytes,
        .parts = &rec,
        .row_parts = &rec_rows,
        .has_name_hashes = !k->kind->is_collective &&
                           (rec.round <= 1 || k->round_op == PS_OP_BROADCAST),
        .name_hashes = &k->name_hash,
        .slices = (struct ps_slice *)slice,
        .slice_count = slice == NULL ? 0 : 1,
    };
    struct ps_agent_batch *g = &s->batch;

    if (bytes > PS_PAYLOAD_MAX) {
        fail_part(st, p, PS_E_TOOBIG, "is larger than a frame");
        return;
    }
    ps_agent_part_set_state(p, PS_AGENT_PART_SENT);
    p->encoded_sent = p->encoded_sent || slice == &p->encoded;
    if (!p->is_init) {
        f->bytes_sent += bytes;
    }
    if (bytes > PS_BATCH_PART_MAX || st->a->opt.unbatched) {
        send_batch(st, s, &one);
        return;
    }
    if (g->part_count > 0 &&
        (g->msg_code != one.msg_code || g->job != one.job ||
         g->reduce != one.reduce || g->rule != one.rule ||
         g->assign != one.assign || g->needs_value != one.needs_value ||
         g->weight != one.weight || g->retry != one.retry ||
         g->has_name_hashes != one.has_name_hashes ||
         g->part_count == PS_PARTS_MAX ||
         /* The server requires aligned elements. */
         g->payload_bytes % ps_dtype_size(rec.dtype) != 0 ||
         g->payload_bytes + bytes > PS_BATCH_FRAME_MAX)) {
        ps_agent_send_flush(st, s);
    }
    if (g->parts == NULL) {
        g->parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->parts));
        g->row_parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->row_parts));
        g->name_hashes = ps_calloc(PS_PARTS_MAX, sizeof(*g->name_hashes));
        g->slices = ps_calloc(PS_PARTS_MAX, sizeof(*g->slices));
    }
    if (g->part_count == 0) {
        struct ps_rec_part *parts = g->parts;
        struct ps_rec_rows *gathered = g->row_parts;
        uint64_t *labels = g->name_hashes;
        struct ps_slice *slices = g->slices;

        *g = one;
        g->parts = parts;
        g->row_parts = gathered;
        g->name_hashes = labels;
        g->slices = slices;
        g->part_count = 0;
        g->slice_count = 0;
        g->payload_bytes = 0;
    }
    g->row_parts[g->part_count] = rec_rows;
    g->name_hashes[g->part_count] = k->name_hash;
    g->parts[g->part_count++] = rec;
    if (slice != NULL && g->slice_count > 0 &&
        ps_slice_is_adjacent(&g->slices[g->slice_count - 1], slice)) {
        g->slices[g->slice_count - 1].len += slice->len;
    } else if (slice != NULL) {
        g->slices[g->slice_count] = *slice;
        ps_buf_ref(slice->buf);
        g->slice_count++;
    }
    g->payload_bytes += bytes;
    st->a->must_flush = true;
}

/* --------------------------------------------------------------------- sums */

void ps_agent_send_release_arena(struct ps_agent *a)
{
    ps_buf_unref(a->batch_arena);
    a->batch_arena = NULL;
}

/* Allocates a small sum behind the last one, so that the sums of one batch
 * leave as one slice. */
static int alloc_in_arena(struct ps_agent *a, uint64_t bytes, size_t align,
                          struct ps_slice *ret_slice)
{
    uint64_t at = ps_round_up(a->batch_arena_used, align);

    if (a->batch_arena == NULL || at > a->batch_arena->size ||
        bytes > a->batch_arena->size - at) {
        uint64_t size = a->batch_arena == NULL
                            ? ARENA_MIN
                            : ps_min_u64(4 * a->batch_arena->size,
                                         PS_BATCH_FRAME_MAX);
        struct ps_buf *buf;
        int rc = ps_pool_get(a->opt.scratch_pool, size, &buf);

        if (rc != 0) {
            return rc;
        }
        ps_buf_unref(a->batch_arena);
        a->batch_arena = buf;
        at = 0;
    }
    a->batch_arena_used = at + bytes;
    a->must_flush = true; /* The next tick releases the arena. */
    *ret_slice = (struct ps_slice){
        .buf = ps_buf_ref(a->batch_arena), .offset = at, .len = bytes};
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
                         .fold = ps_round_fold(p->key->reduce),
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

/* Starts the sum of a dense partition. PS_E_NOMEM: no change. */
static int start_part_sum(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p,
                          const struct ps_slice *slices, uint32_t count)
{
    struct ps_agent *a = st->a;
    uint64_t bytes = ps_agent_part_bytes(p);
    struct ps_agent_computation *run;
    struct ps_compute *c;
    struct ps_buf *buf;
    int rc = ps_pool_get(a->opt.scratch_pool, bytes, &buf);

    if (rc != 0) {
        return rc;
    }
    run = ps_calloc(1, sizeof(*run));
    run->token = ++a->last_token;
    run->part = p;
    run->send_queue = f;
    run->round_starts = p->key->round_starts;
    run->bytes = bytes;
    run->dst = (struct ps_slice){.buf = buf, .len = bytes};
    c = ps_compute_new(run->token, count, 1);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)p->key->dtype;
    c->job.fold = ps_round_fold(p->key->reduce);
    c->job.count = p->count;
    for (uint32_t i = 0; i < count; i++) {
        ps_compute_add_src(c, &slices[i], 0);
    }
    c->job.dst = buf->data;
    ps_compute_pin(c, buf);
    ps_map_put(a->computations, run->token, run);
    ps_agent_part_set_state(p, PS_AGENT_PART_COMPUTING);
    f->computing_bytes += bytes;
    f->server->computing++;
    f->server->computing_bytes += bytes;
    a->stats.bytes_summed += bytes * count;
    ps_effects_compute(st->fx, c);
    return 0;
}

/* Returns true if the open round still needs this partition and all ranks here
 * have copied their contribution to it. */
static bool is_part_needed(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return k->round_open && k->round_complete &&
           p->completed_round < k->round && ps_agent_round_is_part_ready(p);
}

/* Drops a sum whose round is over: an earlier push was answered with the value,
 * or the round failed. Queues the partition again if its next round or an init
 * needs it. */
static void discard_sum(struct ps_agent_step *st, struct ps_agent_part *p)
{
    ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
    if (p->is_init || is_part_needed(p)) {
        ps_agent_send_enqueue(st, p);
    }
}

void ps_agent_send_on_computed(struct ps_agent_step *st,
                               struct ps_agent_computation *run, int error)
{
    struct ps_agent_send_queue *f = run->send_queue;
    struct ps_agent_part *p = run->part;

    /* The result is dropped if its key is gone or the owner changed. */
    if (p != NULL) {
        f->computing_bytes -= run->bytes;
        f->server->computing--;
        f->server->computing_bytes -= run->bytes;
        f->server->needs_pump = true;
        if (error != 0) {
            fail_part(st, p, error, "could not be computed on this node");
        } else if (run->is_encode) {
            ps_agent_encode_on_computed(p, run);
            if (p->state == PS_AGENT_PART_COMPUTING) {
                discard_sum(st, p); /* The owner may have changed. */
            }
        } else if (p->state == PS_AGENT_PART_COMPUTING &&
                   (!is_part_needed(p) ||
                    run->round_starts != p->key->round_starts)) {
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

/* --------------------------------------------------------------------- pump */

bool ps_agent_send_start_dense(struct ps_agent_step *st,
                               struct ps_agent_send_queue *f,
                               struct ps_agent_part *p)
{
    const uint32_t locals = p->key->job->local_rank_count;
    struct ps_slice few[INLINE_SOURCES_MAX];
    struct ps_slice *slices = few;
    uint32_t count;
    bool ok = true;

    if (ps_agent_encode_applies(p) && p->is_encoding) {
        ps_agent_part_set_state(
            p, PS_AGENT_PART_COMPUTING); /* For the previous owner. */
        return true;
    }
    if (ps_agent_encode_applies(p) && ps_agent_encode_is_ready(p)) {
        ps_agent_send_dispatch(st, f, p, &p->encoded, 0);
        return true;
    }
    if (locals > INLINE_SOURCES_MAX) {
        slices = ps_calloc(locals, sizeof(*slices));
    }
    count = ps_agent_round_part_sources(p, slices);
    if (count > 0 && ps_agent_encode_applies(p)) {
        ok = ps_agent_encode_start(st, f, p, slices, count) == 0;
    } else if (count <= 1) {
        ps_agent_send_dispatch(st, f, p, count == 0 ? NULL : &slices[0], 0);
    } else if (may_sum_inline(st->a, ps_agent_part_bytes(p), count)) {
        ok = sum_inline(st, f, p, slices, count) == 0;
    } else {
        ok = start_part_sum(st, f, p, slices, count) == 0;
    }
    if (slices != few) {
        ps_free(slices);
    }
    return ok;
}

/* Dispatches the head of a queue or starts its sum or encoding. Returns false
 * if the scratch pool has no memory for it. */
static bool start_part(struct ps_agent_step *st, struct ps_agent_send_queue *f,
                       struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    if (p->is_init) {
        struct ps_slice s = {.buf = k->init_array.buf,
                             .offset = k->init_array.offset +
                                       p->first_elem * ps_dtype_size(k->dtype),
                             .len = ps_agent_part_bytes(p)};

        ps_agent_send_dispatch(st, f, p, &s, 0);
        return true;
    }
    return k->kind->start_part(st, f, p);
}

static bool has_send_capacity(const struct ps_agent *a,
                              const struct ps_agent_server *s)
{
    uint64_t most = a->opt.unsent_max == 0 ? UNSENT_DEFAULT : a->opt.unsent_max;

    return ps_dialer_is_connected(&s->dialer) && s->unsent < most &&
           s->computing < COMPUTING_MAX &&
           s->computing_bytes < COMPUTING_BYTES_MAX &&
           ps_link_unacked(s->dialer.link) < PS_LINK_IN_FLIGHT_MAX;
}

/* Starts one partition of one job. Returns false if none could start. */
static bool pump_one_part(struct ps_agent_step *st, struct ps_agent_server *s)
{
    PS_LIST_EACH(n, &s->send_queues)
    {
        struct ps_agent_send_queue *f = PS_CONTAINER(
            n, struct ps_agent_send_queue, node);
        struct ps_heap_item *item = ps_heap_peek(&f->heap);
        struct ps_agent_part *p;

        if (item == NULL) {
            continue;
        }
        p = PS_CONTAINER(item, struct ps_agent_part, queue_item);
        if (!p->is_init && f->bytes_sent + f->computing_bytes >= f->credit) {
            continue;
        }
        ps_heap_pop(&f->heap);
        ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
        if (!start_part(st, f, p)) {
            ps_agent_send_enqueue(st, p);
            st->a->scratch_retry_at = ps_time_add(st->now, SCRATCH_RETRY_WAIT);
            return false;
        }
        /* Round robin: the queue of another job comes first next. */
        ps_list_remove(&f->node);
        ps_list_push_back(&s->send_queues, &f->node);
        return true;
    }
    return false;
}

void ps_agent_send_pump(struct ps_agent_step *st, struct ps_agent_server *s)
{
    s->needs_pump = false;
    while (has_send_capacity(st->a, s) && pump_one_part(st, s)) {
    }
}

void ps_agent_send_pump_all(struct ps_agent_step *st)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_server *s;

    while ((s = ps_map_next(st->a->servers, &c)) != NULL) {
        if (s->needs_pump) {
            ps_agent_send_pump(st, s);
        }
    }
}
