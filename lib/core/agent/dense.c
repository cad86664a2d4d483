/* SPDX-License-Identifier: Apache-2.0 */
/* x */
#include "core/agent/dense.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/agent/encode.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/agent/send.h"
#include "core/round/round.h"

/* First size of the batch arena in bytes; quadruples each time it is full, up
 * to PS_BATCH_FRAME_MAX. */
#define ARENA_MIN          PS_BATCH_PART_MAX

#define INLINE_SOURCES_MAX 64u

/* -------------------------------------------------------------------- sums */

void ps_agent_dense_release_arena(struct ps_agent *a)
{
    ps_buf_unref(a->sum_arena.buf);
    a->sum_arena.buf = NULL;
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
    a->must_flush = true; /* The next tick releases the arena. */
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
        ps_agent_send_fail_part(st, p, rc,
                                "could not be computed on this node");
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
    run->token = ++a->last.token;
    run->part = p;
    run->send_queue = f;
    run->round_starts = p->key->round.starts;
    run->bytes = bytes;
    run->dst = (struct ps_slice){.buf = buf, .len = bytes};
    c = ps_compute_new(run->token, count, 1);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)p->key->dtype;
    c->job.fold = ps_round_fold(p->key->round.reduce);
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

static bool reads_device(const struct ps_slice *slices, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (slices[i].buf->device != NULL) {
            return true;
        }
    }
    return false;
}

bool ps_agent_dense_start(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p)
{
    const uint32_t locals = p->key->job->local_rank_count;
    struct ps_slice few[INLINE_SOURCES_MAX];
    struct ps_slice *slices = few;
    const bool encodes = ps_agent_key_has_codec(p->key) &&
                         ps_agent_encode_applies(p);
    uint32_t count;
    bool ok = true;

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
