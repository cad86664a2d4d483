/* SPDX-License-Identifier: Apache-2.0 */
/* What goes to a server next. Each job has a queue for each server: higher
 * priority first, first-in first-out among equals. A partition leaves its
 * queue when the link is up, the job has credit there, and little enough is
 * waiting in the connection that a more urgent one could still overtake. Only
 * then are the arrays of several ranks summed; nothing summed is kept beyond
 * the acknowledgement of its frame, because it can be summed again. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/round.h"

#include <assert.h>
#include <string.h>

/* Memory for small sums of one turn: room for one, and four times as much each
 * time that it is full. */
#define ROOM_FIRST       PS_FUSE_PART_MAX
#define HERE_SOURCES_MAX 64u

/* ------------------------------------------------------------------- queues */

static uint64_t first_credit(const struct ps_agent *a)
{
    return a->opt.credit_first != 0 ? a->opt.credit_first : PS_CREDIT_FIRST;
}

struct ps_agent_flow *ps_agent_flow_get(struct ps_agent_step *st,
                                        struct ps_agent_job *j, uint32_t node)
{
    struct ps_agent_flow *f = ps_map_get(j->flows, node);

    if (f == NULL) {
        f = ps_calloc(1, sizeof(*f));
        f->job = j;
        f->server = ps_agent_server_get(st, node);
        f->credit = first_credit(st->a);
        ps_heap_init(&f->queue);
        ps_list_push_back(&f->server->flows, &f->node);
        f->server->caller.wanted = !f->server->gone;
        ps_map_put(j->flows, node, f);
    }
    return f;
}

void ps_agent_flow_free(struct ps_agent_flow *f)
{
    assert(f->queue.count == 0);
    ps_list_remove(&f->node);
    ps_heap_fini(&f->queue);
    ps_free(f);
}

void ps_agent_send_queue(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_flow *f = ps_agent_flow_get(st, p->key->job, p->node);
    int64_t priority = p->init ? 0 : p->key->priority;

    assert(p->state != PS_AGENT_PART_QUEUED &&
           p->state != PS_AGENT_PART_SUMMING);
    p->state = PS_AGENT_PART_QUEUED;
    ps_heap_push(&f->queue, &p->item, (uint64_t)(INT32_MAX - priority));
    f->server->dirty = true;
}

void ps_agent_send_unqueue(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->state == PS_AGENT_PART_QUEUED) {
        struct ps_agent_flow *f = ps_agent_flow_get(st, p->key->job, p->node);

        ps_heap_remove(&f->queue, &p->item);
    }
    p->state = PS_AGENT_PART_IDLE;
}

void ps_agent_send_credit(struct ps_agent_step *st, struct ps_agent_server *s,
                          uint64_t gen, uint64_t credit)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, gen);
    struct ps_agent_flow *f = j == NULL ? NULL : ps_map_get(j->flows, s->node);

    if (f != NULL && credit > f->credit) {
        f->credit = credit;
    }
}

void ps_agent_send_taken(struct ps_agent_step *st, struct ps_agent_server *s,
                         uint64_t gen)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, gen);
    struct ps_agent_flow *f = j == NULL ? NULL : ps_map_get(j->flows, s->node);
    const ps_time soon = ps_time_add(st->now, RETRY_WAIT);

    if (f != NULL && f->full_wait != 0) {
        f->full_wait = 0;
        f->full_until = ps_time_min(f->full_until, soon);
        st->a->retry_at = ps_time_min(st->a->retry_at, soon);
    }
}

void ps_agent_send_full(struct ps_agent_step *st, struct ps_agent_flow *f)
{
    if (f->full_until <= st->now) {
        f->full_wait = ps_min_u64(ps_max_u64(2 * f->full_wait, RETRY_WAIT),
                                  FULL_WAIT_MAX);
        f->full_until = ps_time_add(st->now, f->full_wait);
    }
    st->a->retry_at = ps_time_min(st->a->retry_at, f->full_until);
}

bool ps_agent_send_waits(struct ps_agent_step *st,
                         const struct ps_agent_part *p)
{
    const struct ps_agent_flow *f = ps_map_get(p->key->job->flows, p->node);

    if (f == NULL || f->full_until <= st->now) {
        return false;
    }
    st->a->retry_at = ps_time_min(st->a->retry_at, f->full_until);
    return true;
}

void ps_agent_send_again(struct ps_agent_step *st, struct ps_agent_server *s)
{
    PS_LIST_EACH(n, &s->flows)
    {
        struct ps_agent_flow *f = PS_CONTAINER(n, struct ps_agent_flow, node);
        struct ps_map_cursor c = {0};
        struct ps_agent_key *k;

        f->sent = 0;
        f->credit = first_credit(st->a);
        while ((k = ps_map_next(f->job->keys, &c)) != NULL) {
            for (uint32_t i = 0; i < k->part_count; i++) {
                struct ps_agent_part *p = &k->parts[i];

                if (p->node == s->node &&
                    (p->moved || (k->past != NULL && p->held == NONE))) {
                    /* What it goes on from may have been lost as well. */
                    ps_agent_key_resume(st, p);
                }
                if (p->node == s->node &&
                    (p->state == PS_AGENT_PART_SENT ||
                     p->state == PS_AGENT_PART_HELD_BACK)) {
                    ps_agent_send_queue(st, p);
                }
            }
            ps_agent_quarrel_again(st, k, s->node);
            ps_agent_pull_again(st, k, s->node);
        }
    }
}

/* ------------------------------------------------------------------- frames */

static struct ps_rec_part record_of(const struct ps_agent_part *p, bool empty,
                                    bool code)
{
    return (struct ps_rec_part){
        .key = p->key->number,
        .index = p->index,
        .round = p->init ? 0 : p->key->round,
        .dtype = p->key->dtype,
        .count = empty ? 0 : p->count,
        .codec = code ? (uint8_t)p->key->compress.press.kind : PS_PRESS_NONE,
        .bytes = code ? (uint32_t)p->code.len : 0,
        .salt = code ? ps_compress_salt(p->key->label) : 0,
        .clock = p->init         ? p->key->init_attempt
                 : p->key->async ? p->key->clock
                                 : p->key->attempt};
}

static void send_parts(struct ps_agent_step *st, struct ps_agent_server *s,
                       const struct ps_agent_gather *g)
{
    struct ps_agent *a = st->a;
    struct ps_msg m = {.code = g->code};
    struct ps_parcel *parcel;

    if (g->code == PS_MSG_PUSH_ROWS) {
        m.push_rows.gen = g->job->gen;
        m.push_rows.epoch = a->epoch;
        m.push_rows.slot = g->job->slot;
        m.push_rows.incarnation = a->incarnation;
        m.push_rows.ranks = g->ranks;
        m.push_rows.reduce = g->reduce;
        m.push_rows.attempt = g->attempt;
        m.push_rows.parts = g->rows;
        m.push_rows.parts_count = g->count;
    } else if (g->code == PS_MSG_INIT) {
        m.init.gen = g->job->gen;
        m.init.epoch = a->epoch;
        m.init.slot = g->job->slot;
        m.init.parts = g->parts;
        m.init.parts_count = g->count;
        m.init.labels = g->labels;
        m.init.labels_count = g->labelled ? g->count : 0;
    } else {
        m.push.gen = g->job->gen;
        m.push.epoch = a->epoch;
        m.push.slot = g->job->slot;
        m.push.incarnation = a->incarnation;
        m.push.ranks = g->ranks;
        m.push.reduce = g->reduce;
        m.push.rule = g->rule;
        m.push.assign = g->assign;
        m.push.want = g->want;
        m.push.attempt = g->attempt;
        m.push.parts = g->parts;
        m.push.parts_count = g->count;
        m.push.labels = g->labels;
        m.push.labels_count = g->labelled ? g->count : 0;
    }
    parcel = ps_parcel_new(&m, g->slices, g->slice_count);
    s->queued += parcel->payload_len;
    a->stats.bytes_out += parcel->payload_len;
    ps_link_send(s->caller.link, parcel, st->now, st->fx);
}

void ps_agent_send_flush(struct ps_agent_step *st, struct ps_agent_server *s)
{
    struct ps_agent_gather *g = &s->gather;

    if (g->count == 0) {
        return;
    }
    send_parts(st, s, g);
    for (uint32_t i = 0; i < g->slice_count; i++) {
        ps_buf_unref(g->slices[i].buf);
    }
    g->count = 0;
    g->slice_count = 0;
    g->bytes = 0;
}

/* The job is going: what was gathered of it is not sent. */
void ps_agent_send_forget(struct ps_agent_job *j, struct ps_agent_server *s)
{
    struct ps_agent_gather *g = &s->gather;

    if (g->count == 0 || g->job != j) {
        return;
    }
    for (uint32_t i = 0; i < g->slice_count; i++) {
        ps_buf_unref(g->slices[i].buf);
    }
    g->count = 0;
    g->slice_count = 0;
    g->bytes = 0;
}

/* What a partition gives cannot be computed or sent: the operation fails, and
 * nothing of it goes on its way again. */
static void part_failed(struct ps_agent_step *st, struct ps_agent_part *p,
                        int error, const char *what)
{
    struct ps_agent_key *k = p->key;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    p->encoding = false;
    p->code_void = false;
    p->state = PS_AGENT_PART_IDLE;
    ps_str_init(&t, text, sizeof(text));
    ps_str_addf(&t, "partition %u of '%s' %s: %s", p->index, k->name, what,
                ps_strerror(error));
    if (k->async) {
        ps_agent_async_fail(st, k, error, text);
    } else {
        ps_agent_round_fail(st, k, error, text);
    }
}

/* `slice` NULL: an empty part. `rows` counts those of a block of rows. The
 * partition is on its way. */
static void dispatch(struct ps_agent_step *st, struct ps_agent_flow *f,
                     struct ps_agent_part *p, const struct ps_slice *slice,
                     uint32_t rows)
{
    struct ps_agent_server *s = f->server;
    struct ps_agent_key *k = p->key;
    struct ps_rec_part rec = record_of(p, slice == NULL, slice == &p->code);
    struct ps_rec_rows rec_rows = {.key = rec.key,
                                   .index = rec.index,
                                   .round = rec.round,
                                   .dtype = rec.dtype,
                                   .width = k->width,
                                   .count = rows};
    uint64_t bytes = slice == NULL ? 0 : slice->len;
    struct ps_agent_gather one = {
        .code = p->init         ? PS_MSG_INIT
                : k->width != 0 ? PS_MSG_PUSH_ROWS
                                : PS_MSG_PUSH,
        .job = f->job,
        .reduce = k->reduce,
        .rule = k->async ? k->rule : PS_RULE_NONE,
        .assign = k->kind == PS_OP_BROADCAST || k->collective,
        .want = k->want,
        .attempt = p->init || k->async ? 0 : ps_agent_quarrel_attempt(k),
        .ranks = k->kind == PS_OP_BROADCAST ? 1 : k->weight,
        .count = 1,
        .bytes = bytes,
        .parts = &rec,
        .rows = &rec_rows,
        .labelled = !k->collective &&
                    (rec.round <= 1 || k->kind == PS_OP_BROADCAST),
        .labels = &k->label,
        .slices = (struct ps_slice *)slice,
        .slice_count = slice == NULL ? 0 : 1,
    };
    struct ps_agent_gather *g = &s->gather;

    if (bytes > PS_PAYLOAD_MAX) {
        part_failed(st, p, PS_E_TOOBIG, "is larger than a frame");
        return;
    }
    p->state = PS_AGENT_PART_SENT;
    p->code_sent = p->code_sent || slice == &p->code;
    if (!p->init) {
        f->sent += bytes;
    }
    if (bytes > PS_FUSE_PART_MAX || st->a->opt.alone) {
        send_parts(st, s, &one);
        return;
    }
    if (g->count > 0 &&
        (g->code != one.code || g->job != one.job || g->reduce != one.reduce ||
         g->rule != one.rule || g->assign != one.assign ||
         g->want != one.want || g->ranks != one.ranks ||
         g->attempt != one.attempt || g->labelled != one.labelled ||
         g->count == PS_PARTS_MAX ||
         /* Who adds it up wants it aligned. */
         g->bytes % ps_dtype_size(rec.dtype) != 0 ||
         g->bytes + bytes > PS_FUSE_FRAME_MAX)) {
        ps_agent_send_flush(st, s);
    }
    if (g->parts == NULL) {
        g->parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->parts));
        g->rows = ps_calloc(PS_PARTS_MAX, sizeof(*g->rows));
        g->labels = ps_calloc(PS_PARTS_MAX, sizeof(*g->labels));
        g->slices = ps_calloc(PS_PARTS_MAX, sizeof(*g->slices));
    }
    if (g->count == 0) {
        struct ps_rec_part *parts = g->parts;
        struct ps_rec_rows *gathered = g->rows;
        uint64_t *labels = g->labels;
        struct ps_slice *slices = g->slices;

        *g = one;
        g->parts = parts;
        g->rows = gathered;
        g->labels = labels;
        g->slices = slices;
        g->count = 0;
        g->slice_count = 0;
        g->bytes = 0;
    }
    g->rows[g->count] = rec_rows;
    g->labels[g->count] = k->label;
    g->parts[g->count++] = rec;
    if (slice != NULL && g->slice_count > 0 &&
        ps_slice_follows(&g->slices[g->slice_count - 1], slice)) {
        g->slices[g->slice_count - 1].len += slice->len;
    } else if (slice != NULL) {
        g->slices[g->slice_count] = *slice;
        ps_buf_ref(slice->buf);
        g->slice_count++;
    }
    g->bytes += bytes;
    st->a->flush = true;
}

/* --------------------------------------------------------------------- sums */

void ps_agent_send_leave_room(struct ps_agent *a)
{
    ps_buf_unref(a->room);
    a->room = NULL;
}

/* Memory for a small sum, behind the last one: what travels together lies
 * together. */
static int take_room(struct ps_agent *a, uint64_t bytes, size_t align,
                     struct ps_slice *ret_slice)
{
    uint64_t at = ps_round_up(a->room_used, align);

    if (a->room == NULL || at > a->room->size || bytes > a->room->size - at) {
        uint64_t size = a->room == NULL
                            ? ROOM_FIRST
                            : ps_min_u64(4 * a->room->size, PS_FUSE_FRAME_MAX);
        struct ps_buf *buf;
        int rc = ps_pool_get(a->opt.sums, size, &buf);

        if (rc != 0) {
            return rc;
        }
        ps_buf_unref(a->room);
        a->room = buf;
        at = 0;
    }
    a->room_used = at + bytes;
    a->flush = true; /* Which lets go of it. */
    *ret_slice = (struct ps_slice){
        .buf = ps_buf_ref(a->room), .offset = at, .len = bytes};
    return 0;
}

static bool may_sum_here(const struct ps_agent *a, uint64_t bytes,
                         uint32_t count)
{
    return bytes <= PS_FUSE_PART_MAX && count <= HERE_SOURCES_MAX &&
           bytes * (count + 1) <= a->opt.sum_here_max;
}

/* PS_E_NOMEM: nothing has happened. */
static int sum_here(struct ps_agent_step *st, struct ps_agent_flow *f,
                    struct ps_agent_part *p, const struct ps_slice *slices,
                    uint32_t count)
{
    struct ps_agent *a = st->a;
    const void *src[HERE_SOURCES_MAX];
    struct ps_job job = {.op = PS_JOB_SUM,
                         .dtype = (enum ps_dtype)p->key->dtype,
                         .fold = ps_round_fold(p->key->reduce),
                         .count = p->count,
                         .src_count = count,
                         .src = src};
    struct ps_slice dst;
    int rc = take_room(a, ps_agent_part_bytes(p), ps_dtype_size(p->key->dtype),
                       &dst);

    if (rc != 0) {
        return rc;
    }
    for (uint32_t i = 0; i < count; i++) {
        src[i] = ps_slice_data(&slices[i]);
    }
    job.dst = ps_slice_data(&dst);
    rc = ps_kernel_run(&job);
    if (rc == 0) {
        a->stats.summed += dst.len * count;
        dispatch(st, f, p, &dst, 0);
    } else {
        part_failed(st, p, rc, "could not be computed on this node");
    }
    ps_buf_unref(dst.buf);
    return 0;
}

/* PS_E_NOMEM: nothing has happened. */
static int start_sum(struct ps_agent_step *st, struct ps_agent_flow *f,
                     struct ps_agent_part *p, const struct ps_slice *slices,
                     uint32_t count)
{
    struct ps_agent *a = st->a;
    uint64_t bytes = ps_agent_part_bytes(p);
    struct ps_agent_run *run;
    struct ps_compute *c;
    struct ps_buf *buf;
    int rc = ps_pool_get(a->opt.sums, bytes, &buf);

    if (rc != 0) {
        return rc;
    }
    run = ps_calloc(1, sizeof(*run));
    run->token = ++a->next_token;
    run->part = p;
    run->flow = f;
    run->attempt = p->key->attempt;
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
    ps_compute_hold(c, buf);
    ps_map_put(a->runs, run->token, run);
    p->state = PS_AGENT_PART_SUMMING;
    f->summing += bytes;
    f->server->summing++;
    f->server->summing_bytes += bytes;
    a->stats.summed += bytes * count;
    ps_effects_compute(st->fx, c);
    return 0;
}

/* PS_E_NOMEM: nothing has happened. */
static int start_rows(struct ps_agent_step *st, struct ps_agent_flow *f,
                      struct ps_agent_part *p)
{
    struct ps_agent *a = st->a;
    struct ps_agent_run *run = ps_calloc(1, sizeof(*run));
    struct ps_compute *c;
    int rc;

    run->token = ++a->next_token;
    run->part = p;
    run->flow = f;
    run->attempt = p->key->attempt;
    rc = ps_agent_rows_sum(a, p, run, &c);
    if (rc != 0 || c == NULL) {
        ps_free(run);
        if (rc == 0) {
            dispatch(st, f, p, NULL, 0);
        }
        return rc;
    }
    run->bytes = run->dst.len;
    ps_map_put(a->runs, run->token, run);
    p->state = PS_AGENT_PART_SUMMING;
    f->summing += run->bytes;
    f->server->summing++;
    f->server->summing_bytes += run->bytes;
    a->stats.summed += run->bytes;
    ps_effects_compute(st->fx, c);
    return 0;
}

/* Does the open round lack this partition, and can it go? */
static bool is_lacking(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return k->active && k->complete &&
           (k->async || (p->reached < k->round && ps_agent_round_there(p)));
}

/* What was summed again may come when its round is over: the value has come
 * with an answer to what was sent before, or the round has failed. The next
 * one, or an init, goes then. */
static void pass_over(struct ps_agent_step *st, struct ps_agent_part *p)
{
    p->state = PS_AGENT_PART_IDLE;
    if (p->init || is_lacking(p)) {
        ps_agent_send_queue(st, p);
    }
}

void ps_agent_send_summed(struct ps_agent_step *st, struct ps_agent_run *run,
                          int error)
{
    struct ps_agent_flow *f = run->flow;
    struct ps_agent_part *p = run->part;

    /* Its key may be gone, or its place moved: nothing to send then. */
    if (p != NULL) {
        f->summing -= run->bytes;
        f->server->summing--;
        f->server->summing_bytes -= run->bytes;
        f->server->dirty = true;
        if (error != 0) {
            part_failed(st, p, error, "could not be computed on this node");
        } else if (run->encodes) {
            ps_agent_code_made(p, run);
            if (p->state == PS_AGENT_PART_SUMMING) {
                pass_over(st, p); /* Its place may have moved. */
            }
        } else if (p->state == PS_AGENT_PART_SUMMING && p->key->async &&
                   !p->key->complete) {
            pass_over(st, p); /* Of pushes that have failed. */
            ps_agent_async_next(st, p->key);
        } else if (p->state == PS_AGENT_PART_SUMMING &&
                   (!is_lacking(p) || run->attempt != p->key->attempt)) {
            pass_over(st, p);
        } else if (p->state == PS_AGENT_PART_SUMMING &&
                   p->node == f->server->node) {
            dispatch(st, f, p, &run->dst, run->rows);
        }
    }
    ps_buf_unref(run->dst.buf);
    ps_free(run);
}

/* --------------------------------------------------------------------- pump */

/* Take the head of a queue on its way. False: no memory for its sum. */
static bool start(struct ps_agent_step *st, struct ps_agent_flow *f,
                  struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;
    struct ps_slice few[64];
    struct ps_slice *slices = few;
    uint32_t count;
    bool ok = true;

    if (p->init) {
        struct ps_slice s = {.buf = k->init_array.buf,
                             .offset = k->init_array.offset +
                                       p->first * ps_dtype_size(k->dtype),
                             .len = ps_agent_part_bytes(p)};

        dispatch(st, f, p, &s, 0);
        return true;
    }
    if (k->width != 0) {
        return start_rows(st, f, p) == 0;
    }
    if (ps_agent_code_applies(p) && p->encoding) {
        p->state = PS_AGENT_PART_SUMMING; /* For the server it had before. */
        return true;
    }
    if (ps_agent_code_applies(p) && ps_agent_code_has(p)) {
        dispatch(st, f, p, &p->code, 0);
        return true;
    }
    if (k->job->local_count > 64) {
        slices = ps_calloc(k->job->local_count, sizeof(*slices));
    }
    count = ps_agent_round_sources(p, slices);
    if (count > 0 && ps_agent_code_applies(p)) {
        ok = ps_agent_code_start(st, f, p, slices, count) == 0;
    } else if (count <= 1) {
        dispatch(st, f, p, count == 0 ? NULL : &slices[0], 0);
    } else if (may_sum_here(st->a, ps_agent_part_bytes(p), count)) {
        ok = sum_here(st, f, p, slices, count) == 0;
    } else {
        ok = start_sum(st, f, p, slices, count) == 0;
    }
    if (slices != few) {
        ps_free(slices);
    }
    return ok;
}

static bool may_send(const struct ps_agent *a, const struct ps_agent_server *s)
{
    uint64_t most = a->opt.hand_over_max == 0 ? HAND_OVER_DEFAULT
                                              : a->opt.hand_over_max;

    return ps_caller_is_known(&s->caller) && s->queued < most &&
           s->summing < SUMS_MAX && s->summing_bytes < SUMS_BYTES_MAX &&
           ps_link_in_flight(s->caller.link) < PS_LINK_IN_FLIGHT_MAX;
}

/* One partition of one job. False: nothing could go. */
static bool pump_one(struct ps_agent_step *st, struct ps_agent_server *s)
{
    PS_LIST_EACH(n, &s->flows)
    {
        struct ps_agent_flow *f = PS_CONTAINER(n, struct ps_agent_flow, node);
        struct ps_heap_item *item = ps_heap_peek(&f->queue);
        struct ps_agent_part *p;

        if (item == NULL) {
            continue;
        }
        p = PS_CONTAINER(item, struct ps_agent_part, item);
        if (!p->init && f->sent + f->summing >= f->credit) {
            continue;
        }
        ps_heap_pop(&f->queue);
        p->state = PS_AGENT_PART_IDLE;
        if (!start(st, f, p)) {
            ps_agent_send_queue(st, p);
            st->a->starved_at = ps_time_add(st->now, STARVED_WAIT);
            return false;
        }
        /* The next one asked first is another job's. */
        ps_list_remove(&f->node);
        ps_list_push_back(&s->flows, &f->node);
        return true;
    }
    return false;
}

void ps_agent_send_pump(struct ps_agent_step *st, struct ps_agent_server *s)
{
    s->dirty = false;
    while (may_send(st->a, s) && pump_one(st, s)) {
    }
}

void ps_agent_send_pump_all(struct ps_agent_step *st)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_server *s;

    while ((s = ps_map_next(st->a->servers, &c)) != NULL) {
        if (s->dirty) {
            ps_agent_send_pump(st, s);
        }
    }
}
