/* SPDX-License-Identifier: Apache-2.0 */
/* Sending of partitions. A partition leaves its queue when the link is up, the
 * job has credit there (rule C1), and the connection has few enough unsent
 * bytes that a more urgent partition could still overtake. Only then are the
 * arrays of several ranks summed; a sum is freed when its frame is
 * acknowledged, because it can be computed again. Small partitions of a job
 * travel as one batch. */
#include "core/agent/send.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/agent/batch.h"
#include "core/agent/conflict.h"
#include "core/agent/encode.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/agent/server.h"

/* ------------------------------------------------------------------ frames */

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
    } else {
        p->key->kind->stamp_push(p->key, &rec);
    }
    return rec;
}

void ps_agent_send_fail_part(struct ps_agent_step *st, struct ps_agent_part *p,
                             int error, const char *what)
{
    struct ps_agent_key *k = p->key;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    ps_agent_encode_end(p);
    /* It is queued again if its owner changed during the computation. */
    ps_agent_send_dequeue(st, p);
    ps_str_init(&t, text, sizeof(text));
    ps_str_addf(&t, "partition %u of '%s' %s: %s", p->index, k->name, what,
                ps_strerror(error));
    k->kind->fail_ops(st, k, error, text);
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
        ps_agent_send_fail_part(st, p, PS_E_TOOBIG, "is larger than a frame");
        return;
    }
    ps_agent_part_set_state(p, PS_AGENT_PART_SENT);
    p->encoding.was_sent = p->encoding.was_sent || slice == &p->encoding.data;
    if (!p->is_init) {
        f->bytes_sent += bytes;
        trace_send(st, f, &item.part, bytes);
    }
    if (bytes > PS_BATCH_PART_MAX || st->a->opt.unbatched) {
        ps_agent_batch_send_alone(st, f->server, &head, &item);
    } else {
        ps_agent_batch_add(st, f->server, &head, &item);
    }
}

/* ------------------------------------------------------------ computations */

/* Returns true if the open round still needs this partition and all ranks here
 * have copied their contribution to it. */
static bool is_part_needed(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return k->round.state == PS_AGENT_ROUND_COMPLETE &&
           p->completed_round < k->round.number &&
           ps_agent_contribution_is_ready(p);
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
        ps_agent_send_queue_wake(f);
        f->server->computing--;
        f->server->computing_bytes -= run->bytes;
        ps_agent_server_add_work(st->a, f->server);
        if (error != 0) {
            ps_agent_send_fail_part(st, p, error,
                                    "could not be computed on this node");
        } else if (run->is_encode) {
            ps_agent_encode_on_computed(p, run);
            if (p->state == PS_AGENT_PART_COMPUTING) {
                discard_sum(st, p); /* The owner may have changed. */
            }
        } else if (p->state == PS_AGENT_PART_COMPUTING &&
                   (!is_part_needed(p) ||
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

/* -------------------------------------------------------------------- pump */

/* Dispatches the head of a queue or starts its sum or encoding. Returns false
 * if the scratch pool has no memory for it. */
static bool start_part(struct ps_agent_step *st, struct ps_agent_send_queue *f,
                       struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    if (p->is_init) {
        struct ps_slice s = {.buf = k->init.array.buf,
                             .offset = k->init.array.offset +
                                       p->first_elem * ps_dtype_size(k->dtype),
                             .len = ps_agent_part_bytes(p)};

        ps_agent_send_dispatch(st, f, p, &s, 0);
        return true;
    }
    return k->kind->start_part(st, f, p);
}

static const struct ps_agent_queue_limits of_one_job = {
    .computing = 4ull * 1024 * 1024, .unsent = UINT64_MAX};

static bool has_send_capacity(const struct ps_agent *a,
                              const struct ps_agent_server *s)
{
    if (!ps_dialer_is_connected(&s->dialer)) {
        return false;
    }
    const struct ps_agent_queue_limits *most = ps_agent_server_is_shared(s)
                                                   ? s->shared_limits
                                                   : &of_one_job;
    uint64_t unsent = a->opt.unsent_max == 0 ? UNSENT_DEFAULT
                                             : a->opt.unsent_max;

    return s->unsent < ps_min_u64(unsent, most->unsent) &&
           s->computing < COMPUTING_MAX &&
           s->computing_bytes < most->computing &&
           ps_link_unacked(s->dialer.link) < PS_LINK_IN_FLIGHT_MAX;
}

enum pump_result {
    PUMP_STARTED,
    PUMP_NOTHING,   /* No partition may be sent to the server now. */
    PUMP_NO_MEMORY, /* The scratch pool has none for the next one. */
};

/* Starts one partition of one job. */
static enum pump_result pump_one_part(struct ps_agent_step *st,
                                      struct ps_agent_server *s)
{
    struct ps_agent_send_queue *f;
    struct ps_agent_part *p = ps_agent_send_queue_next(s, &f);

    if (p == NULL) {
        return PUMP_NOTHING;
    }
    const uint64_t used = f->bytes_sent + f->computing_bytes;
    const uint64_t init_bytes = p->is_init ? ps_agent_part_bytes(p) : 0;

    ps_heap_pop(&f->heap);
    ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
    if (!start_part(st, f, p)) {
        ps_agent_send_enqueue(st, p);
        st->a->due.scratch_retry_at = ps_time_add(st->now, SCRATCH_RETRY_WAIT);
        return PUMP_NO_MEMORY;
    }
    ps_agent_send_queue_charge(f, f->bytes_sent + f->computing_bytes - used +
                                      init_bytes);
    return PUMP_STARTED;
}

static enum pump_result pump_server(struct ps_agent_step *st,
                                    struct ps_agent_server *s)
{
    enum pump_result result = PUMP_STARTED;

    while (result == PUMP_STARTED) {
        result = has_send_capacity(st->a, s) ? pump_one_part(st, s)
                                             : PUMP_NOTHING;
    }
    return result;
}

void ps_agent_send_pump(struct ps_agent_step *st)
{
    struct ps_list *work = &st->a->servers.with_work;
    struct ps_list without_memory;
    struct ps_list_node *n;

    ps_list_init(&without_memory);
    while ((n = ps_list_first(work)) != NULL) {
        struct ps_agent_server *s = PS_CONTAINER(n, struct ps_agent_server,
                                                 work_node);
        const enum pump_result result = pump_server(st, s);

        ps_list_remove(n);
        if (result == PUMP_NO_MEMORY) {
            ps_list_push_back(&without_memory, n);
        }
    }
    /* Any event may have freed memory: the next one pumps them again. */
    while ((n = ps_list_pop(&without_memory)) != NULL) {
        ps_list_push_back(work, n);
    }
}
