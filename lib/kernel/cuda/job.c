/* SPDX-License-Identifier: Apache-2.0 */
/* A job, piece by piece: copies its inputs to pinned memory and from there to
 * the device, starts the kernels, and copies the results back. Two pieces are
 * in progress at a time. Results reach the job's arrays in the order of the
 * elements and only after all of a piece is known to have succeeded, so that
 * the caller can compute the rest elsewhere if the device fails. */
#include "kernel/cuda/plan.h"

#include "base/err.h"

#include <stdio.h>
#include <string.h>

struct run {
    struct ps_cuda *c;
    const struct ps_kernel_range *range;
    const struct ps_job *job; /* That of the range. */
    struct ps_cuda_plan plan;
    const char *call; /* The call that failed. */
    ps_cu_result error;
    bool is_reserved; /* The arenas have been made. */
};

static bool has_succeeded(struct run *r, const char *call, ps_cu_result error)
{
    if (error != 0 && r->error == 0) {
        r->call = call;
        r->error = error;
    }
    return error == 0;
}

static void *address_in(const struct ps_cuda_slot *s, uint64_t at)
{
    return (void *)(uintptr_t)(s->device + at);
}

/* Address of an array on the device; NULL: the job has none. */
static void *address_of(const struct run *r, const struct ps_cuda_slot *s,
                        enum ps_cuda_array a)
{
    const struct ps_cuda_span *span = &r->plan.spans[a];

    if (span->kept != 0) {
        return (void *)(uintptr_t)(span->kept + s->first * span->each);
    }
    return ps_cuda_has(&r->plan, a) ? address_in(s, span->at) : NULL;
}

/* Address of source `i` in the type of the computation or of a source of 16
 * bits. */
static void *operand_at(const struct run *r, const struct ps_cuda_slot *s,
                        uint32_t i)
{
    return ps_job_decodes(r->job)
               ? address_in(s, r->plan.spans[PS_CUDA_FLOATS].at +
                                   i * r->plan.float_stride)
               : address_in(s, ps_cuda_source_at(&r->plan, i));
}

/* ------------------------------------------------------------------ copies */

static const void *const_offset(const void *array, uint64_t bytes)
{
    return (const char *)array + bytes;
}

static void fill_table(const struct run *r, struct ps_cuda_slot *s)
{
    const uint32_t count = r->job->src_count;
    char *table = s->host + r->plan.spans[PS_CUDA_TABLE].at;

    for (uint32_t i = 0; i < count; i++) {
        const uint64_t address = (uintptr_t)operand_at(r, s, i);

        memcpy(table + i * sizeof(address), &address, sizeof(address));
    }
    memcpy(table + count * sizeof(uint64_t), r->plan.merges, count);
}

static void copy_inputs(const struct run *r, struct ps_cuda_slot *s)
{
    const struct ps_cuda_plan *p = &r->plan;
    const struct ps_job *job = r->job;

    if (ps_cuda_has(p, PS_CUDA_TABLE)) {
        fill_table(r, s);
    }
    for (uint32_t i = 0; i < job->src_count; i++) {
        const uint64_t bytes = p->src_size == 0 ? r->range->src_code.bytes
                                                : s->count * p->src_size;

        memcpy(s->host + ps_cuda_source_at(p, i),
               const_offset(job->src[i], s->first * p->src_size), bytes);
    }
    for (unsigned a = 0; a < PS_CUDA_ARRAYS; a++) {
        const struct ps_cuda_span *span = &p->spans[a];

        if (span->from != NULL) {
            memcpy(s->host + span->at,
                   const_offset(span->from, s->first * span->each),
                   s->count * span->each);
        }
    }
}

static bool copy_up(struct run *r, const struct ps_cuda_slot *s,
                    ps_cu_address to, uint64_t at, uint64_t bytes)
{
    ps_cuda_count_copies(r->c, bytes, 0);
    return bytes == 0 || has_succeeded(r, "copy to the device",
                                       r->c->cu.to_device(to, s->host + at,
                                                          bytes, s->stream));
}

static bool copy_down(struct run *r, const struct ps_cuda_slot *s, uint64_t at,
                      ps_cu_address from, uint64_t bytes)
{
    ps_cuda_count_copies(r->c, 0, bytes);
    return bytes == 0 || has_succeeded(r, "copy to the host",
                                       r->c->cu.to_host(s->host + at, from,
                                                        bytes, s->stream));
}

static bool copy_to_device(struct run *r, const struct ps_cuda_slot *s)
{
    bool is_good = copy_up(r, s, s->device, 0, r->plan.in_end);

    for (unsigned a = 0; a < PS_CUDA_ARRAYS && is_good; a++) {
        const struct ps_cuda_span *span = &r->plan.spans[a];

        if (span->kept != 0 && span->from != NULL) {
            is_good = copy_up(r, s, span->kept + s->first * span->each,
                              span->at, s->count * span->each);
        }
    }
    return is_good;
}

static bool copy_to_host(struct run *r, const struct ps_cuda_slot *s)
{
    const struct ps_cuda_plan *p = &r->plan;
    bool is_good = copy_down(r, s, p->out_begin, s->device + p->out_begin,
                             p->out_end - p->out_begin);

    for (unsigned a = 0; a < PS_CUDA_ARRAYS && is_good; a++) {
        const struct ps_cuda_span *span = &p->spans[a];

        if (span->kept != 0 && span->to != NULL) {
            is_good = copy_down(r, s, span->at,
                                span->kept + s->first * span->each,
                                s->count * span->each);
        }
    }
    return is_good;
}

_Static_assert(sizeof(struct ps_square_sum) ==
                   PS_CUDA_SQUARE_WORDS * sizeof(uint64_t),
               "a square sum consists of words");

static void add_rows(const struct run *r, const struct ps_cuda_slot *s,
                     enum ps_cuda_array a, struct ps_square_sum *to)
{
    uint64_t *sum = (uint64_t *)to;
    const uint64_t *row = (const uint64_t *)(const void *)(s->host +
                                                           r->plan.spans[a].at);

    for (unsigned i = 0; i < PS_CUDA_SQUARE_ROWS * PS_CUDA_SQUARE_WORDS; i++) {
        if (row[i] != 0) {
            __atomic_fetch_add(&sum[i % PS_CUDA_SQUARE_WORDS], row[i],
                               __ATOMIC_RELAXED);
        }
    }
}

static void copy_results(const struct run *r, const struct ps_cuda_slot *s)
{
    const struct ps_cuda_plan *p = &r->plan;

    if (p->is_in_place) {
        memcpy((char *)r->job->dst + s->first * p->size, s->host + p->out_begin,
               s->count * p->size);
    }
    for (unsigned a = 0; a < PS_CUDA_ARRAYS; a++) {
        const struct ps_cuda_span *span = &p->spans[a];

        if (span->to != NULL) {
            memcpy((char *)span->to + s->first * span->each, s->host + span->at,
                   span->whole + s->count * span->each);
        }
    }
    if (r->job->square_sum != NULL) {
        add_rows(r, s, PS_CUDA_SQUARES, r->job->square_sum);
    }
    if (r->job->weight_square_sum != NULL) {
        add_rows(r, s, PS_CUDA_WEIGHT_SQUARES, r->job->weight_square_sum);
    }
}

/* ----------------------------------------------------------------- kernels */

static bool decode_sources(struct run *r, struct ps_cuda_slot *s)
{
    struct ps_cuda_codec k = {
        .codec = r->job->src_codec,
        .stream = r->job->src_rng_stream,
        .count = r->job->count,
        .kept = r->range->src_code.kept,
        .from = s->first,
        .n = s->count,
    };

    for (uint32_t i = 0; i < r->job->src_count; i++) {
        k.code = address_in(s, ps_cuda_source_at(&r->plan, i));
        k.out = operand_at(r, s, i);
        if (!has_succeeded(r, "decoding", ps_cuda_decode(r->c, s, &k))) {
            return false;
        }
    }
    return true;
}

enum ps_cuda_kernel ps_cuda_fold_kernel(uint32_t dtype)
{
    switch ((enum ps_dtype)dtype) {
    case PS_DTYPE_FLOAT32:
        return PS_CUDA_ps_fold_f32;
    case PS_DTYPE_FLOAT64:
        return PS_CUDA_ps_fold_f64;
    case PS_DTYPE_FLOAT16:
        return PS_CUDA_ps_fold_f16;
    case PS_DTYPE_BFLOAT16:
        return PS_CUDA_ps_fold_bf16;
    case PS_DTYPE_INT8:
        return PS_CUDA_ps_fold_i8;
    case PS_DTYPE_UINT8:
        return PS_CUDA_ps_fold_u8;
    case PS_DTYPE_INT32:
        return PS_CUDA_ps_fold_i32;
    case PS_DTYPE_INT64:
        return PS_CUDA_ps_fold_i64;
    case PS_DTYPE_BOOL:
        break;
    }
    return PS_CUDA_ps_fold_bool;
}

static enum ps_cuda_kernel fold_kernel(const struct ps_job *job)
{
    if (ps_job_widens(job)) {
        return job->storage_dtype == PS_DTYPE_FLOAT16
                   ? PS_CUDA_ps_fold_f32_of_f16
                   : PS_CUDA_ps_fold_f32_of_bf16;
    }
    return ps_cuda_fold_kernel(job->dtype);
}

/* Adds two sources with cuBLAS, which reads and writes as much as the fold.
 * False: it is not a job for it. */
static bool add_two(struct run *r, const struct ps_cuda_slot *s)
{
    static const float one = 1;
    static const double one_double = 1;
    const struct ps_job *job = r->job;
    const int count = (int)s->count;
    void *to = operand_at(r, s, 0);
    const void *from = operand_at(r, s, 1);

    const int status =
        job->dtype == PS_DTYPE_FLOAT32
            ? r->c->blas.saxpy(s->blas, count, &one, from, 1, to, 1)
            : r->c->blas.daxpy(s->blas, count, &one_double, from, 1, to, 1);

    /* Its codes are not those of the driver. */
    return has_succeeded(r, "cublasAxpy", status == 0 ? 0 : PS_CU_UNKNOWN);
}

static bool is_for_blas(const struct run *r, const struct ps_cuda_slot *s)
{
    const struct ps_job *job = r->job;

    return s->blas != NULL && r->plan.is_in_place && job->src_count == 2 &&
           job->fold == PS_FOLD_SUM && job->divide_by <= 1 &&
           (job->dtype == PS_DTYPE_FLOAT32 || job->dtype == PS_DTYPE_FLOAT64);
}

/* Folds all sources; the result is at *ret_sum. */
static bool fold_sources(struct run *r, struct ps_cuda_slot *s, void **ret_sum)
{
    const struct ps_job *job = r->job;
    const uint64_t pack = PS_CUDA_PACK_BYTES / r->plan.size;
    struct ps_cuda_fold k = {
        .count = s->count,
        .divide_by = job->divide_by,
        .fold = job->fold,
        .src_count = job->src_count,
        .is_short = job->level == NULL && job->src_count <= PS_CUDA_LEAVES_MAX,
    };

    *ret_sum = r->plan.is_sum && !r->plan.is_in_place
                   ? address_of(r, s, PS_CUDA_RESULT)
               : ps_job_widens(job) ? address_of(r, s, PS_CUDA_SUM)
                                    : operand_at(r, s, 0);
    if (job->src_count == 1 && job->divide_by <= 1 &&
        *ret_sum == operand_at(r, s, 0)) {
        return true;
    }
    if (is_for_blas(r, s)) {
        return add_two(r, s);
    }
    k.dst = *ret_sum;
    k.more_src = address_of(r, s, PS_CUDA_TABLE);
    if (k.more_src != NULL) {
        k.more_merges = (const uint8_t *)(k.more_src + job->src_count);
    } else {
        memcpy(k.merges, r->plan.merges, job->src_count);
        for (uint32_t i = 0; i < job->src_count; i++) {
            k.src[i] = operand_at(r, s, i);
        }
    }
    return has_succeeded(
        r, "fold",
        ps_cuda_launch(r->c, s, fold_kernel(job), &k, s->count / pack + 1));
}

/* Address of the old weights. */
static void *weights_of(const struct run *r, const struct ps_cuda_slot *s)
{
    return address_of(
        r, s, r->job->direction_only ? PS_CUDA_FIXED_WEIGHTS : PS_CUDA_WEIGHTS);
}

/* Address of new weights or of the direction. */
static void *result_of(const struct run *r, const struct ps_cuda_slot *s)
{
    return address_of(
        r, s, r->job->direction_only ? PS_CUDA_RESULT : PS_CUDA_WEIGHTS);
}

static bool run_sgd(struct run *r, struct ps_cuda_slot *s, const void *grad)
{
    const struct ps_cuda_sgd k = {
        .sgd = r->job->sgd,
        .count = s->count,
        .dst = result_of(r, s),
        .weight = weights_of(r, s),
        .grad = grad,
        .state = address_of(r, s, PS_CUDA_STATE_0),
        .half = address_of(r, s, PS_CUDA_HALF),
        .half_dtype = r->job->storage_dtype,
    };

    return has_succeeded(r, "sgd",
                         ps_cuda_launch(r->c, s,
                                        r->job->dtype == PS_DTYPE_FLOAT32
                                            ? PS_CUDA_ps_sgd_f32
                                            : PS_CUDA_ps_sgd_f64,
                                        &k, s->count));
}

static bool run_step(struct run *r, struct ps_cuda_slot *s, const void *grad)
{
    struct ps_cuda_step k = {
        .step = r->job->step,
        .count = s->count,
        .dst = result_of(r, s),
        .weight = weights_of(r, s),
        .grad = grad,
        .states = {address_of(r, s, PS_CUDA_STATE_0),
                   address_of(r, s, PS_CUDA_STATE_1),
                   address_of(r, s, PS_CUDA_STATE_2)},
        .half = address_of(r, s, PS_CUDA_HALF),
        .half_dtype = r->job->storage_dtype,
    };

    k.step.first_index += s->first;
    return has_succeeded(r, "step",
                         ps_cuda_launch(r->c, s,
                                        r->job->dtype == PS_DTYPE_FLOAT32
                                            ? PS_CUDA_ps_step_f32
                                            : PS_CUDA_ps_step_f64,
                                        &k, s->count));
}

/* Adds up the squares of an array, if that is asked for. */
static bool add_squares(struct run *r, struct ps_cuda_slot *s,
                        enum ps_cuda_array to, const void *x)
{
    const uint64_t most = PS_CUDA_SQUARE_ROWS * 256u;
    struct ps_cuda_square k = {.count = s->count, .x = x};

    k.rows = address_of(r, s, to);
    if (k.rows == NULL) {
        return true;
    }
    return has_succeeded(r, "fill",
                         r->c->cu.fill((ps_cu_address)(uintptr_t)k.rows, 0,
                                       r->plan.spans[to].whole, s->stream)) &&
           has_succeeded(r, "squares",
                         ps_cuda_launch(r->c, s,
                                        r->job->dtype == PS_DTYPE_FLOAT32
                                            ? PS_CUDA_ps_square_f32
                                            : PS_CUDA_ps_square_f64,
                                        &k, s->count < most ? s->count : most));
}

static bool run_encode(struct run *r, struct ps_cuda_slot *s, const void *sum)
{
    const struct ps_codec *codec = &r->job->codec;
    const struct ps_cuda_feedback feedback = {
        .count = s->count,
        .acc = address_of(r, s, PS_CUDA_RESIDUAL),
        .moment = address_of(r, s, PS_CUDA_MOMENT),
        .sum = sum,
        .mu = codec->momentum,
        .feedback = codec->feedback,
    };
    const struct ps_cuda_codec k = {
        .codec = *codec,
        .stream = r->job->rng_stream,
        .count = s->count,
        .kept = r->range->code.kept,
        .acc = feedback.acc,
        .code = address_of(r, s, PS_CUDA_CODE),
        .work = address_of(r, s, PS_CUDA_WORK),
        .above = address_of(r, s, PS_CUDA_ABOVE),
        .equal = address_of(r, s, PS_CUDA_EQUAL),
        .n = s->count,
        .out = address_of(r, s, PS_CUDA_DECODED),
    };

    return has_succeeded(r, "fill",
                         r->c->cu.fill((ps_cu_address)(uintptr_t)k.work, 0,
                                       sizeof(*k.work), s->stream)) &&
           has_succeeded(r, "feedback",
                         ps_cuda_launch(r->c, s, PS_CUDA_ps_feedback, &feedback,
                                        s->count)) &&
           has_succeeded(r, "encoding", ps_cuda_encode(r->c, s, &k)) &&
           (k.out == NULL ||
            has_succeeded(r, "decoding", ps_cuda_decode(r->c, s, &k)));
}

static bool run_operation(struct run *r, struct ps_cuda_slot *s,
                          const void *sum)
{
    switch (r->job->op) {
    case PS_JOB_SUM:
    case PS_JOB_ENCODE_EACH: /* plugin.h excludes it. */
        return true;
    case PS_JOB_SGD:
        return run_sgd(r, s, sum);
    case PS_JOB_STEP:
        return run_step(r, s, sum) &&
               add_squares(r, s, PS_CUDA_SQUARES, result_of(r, s)) &&
               add_squares(r, s, PS_CUDA_WEIGHT_SQUARES, weights_of(r, s));
    case PS_JOB_ENCODE:
        return run_encode(r, s, sum);
    }
    return true;
}

/* ------------------------------------------------------------------ pieces */

static bool start_piece(struct run *r, struct ps_cuda_slot *s, uint64_t first)
{
    const struct ps_cuda_plan *p = &r->plan;
    const uint64_t left = r->range->to - first;
    void *sum;

    s->first = first;
    s->count = left < p->count ? left : p->count;
    copy_inputs(r, s);
    return copy_to_device(r, s) &&
           (!ps_job_decodes(r->job) || decode_sources(r, s)) &&
           fold_sources(r, s, &sum) && run_operation(r, s, sum) &&
           copy_to_host(r, s);
}

/* Waits for the slot's piece, if it has one, and stores its results. */
static bool finish_piece(struct run *r, struct ps_cuda_slot *s,
                         uint64_t *ret_done)
{
    if (s->count == 0) {
        return true;
    }
    if (!has_succeeded(r, "wait", r->c->cu.wait(s->stream))) {
        return false;
    }
    copy_results(r, s);
    *ret_done = s->first + s->count;
    s->count = 0;
    return true;
}

/* Makes the arenas for all pieces, so that no memory is missing after the first
 * kernel: a piece whose arrays stay cannot be computed again. */
static bool reserve_arenas(struct run *r, struct ps_cuda_lane *lane)
{
    const uint64_t count = r->range->to - r->range->from;
    bool is_good = true;

    for (unsigned i = 0; i < PS_CUDA_SLOTS && is_good; i++) {
        if (i == 0 || count > r->plan.count) {
            is_good = has_succeeded(r, "arena",
                                    ps_cuda_slot_reserve(r->c, &lane->slots[i],
                                                         r->plan.host_end,
                                                         r->plan.end));
        }
    }
    r->is_reserved = is_good;
    return is_good;
}

static void run_pieces(struct run *r, struct ps_cuda_lane *lane,
                       uint64_t *ret_done)
{
    const struct ps_kernel_range *range = r->range;
    unsigned turn = 0;
    bool is_good = reserve_arenas(r, lane);

    for (uint64_t first = range->from; first < range->to && is_good;
         first += r->plan.count) {
        struct ps_cuda_slot *s = &lane->slots[turn++ % PS_CUDA_SLOTS];

        is_good = finish_piece(r, s, ret_done) && start_piece(r, s, first);
    }
    for (unsigned i = 0; i < PS_CUDA_SLOTS && is_good; i++) {
        is_good = finish_piece(r, &lane->slots[turn++ % PS_CUDA_SLOTS],
                               ret_done);
    }
    for (unsigned i = 0; i < PS_CUDA_SLOTS && !is_good; i++) {
        /* Nothing may use the arenas any more. */
        (void)r->c->cu.wait(lane->slots[i].stream);
        lane->slots[i].count = 0;
    }
}

int32_t ps_cuda_run(struct ps_cuda *c, const struct ps_kernel_range *range,
                    uint64_t *ret_done, char *why, uint64_t why_cap)
{
    struct run r = {.c = c, .range = range, .job = range->job};
    int rc = ps_cuda_plan_init(&r.plan, range);

    if (rc == 0) {
        struct ps_cuda_lane *lane = ps_cuda_lane_get(c);

        if (lane == NULL) {
            rc = PS_E_NOMEM;
        } else {
            run_pieces(&r, lane, ret_done);
            ps_cuda_lane_put(c, lane);
        }
    }
    ps_cuda_plan_fini(&r.plan);
    if (r.error != 0) {
        (void)snprintf(why, why_cap, "%s: %s", r.call,
                       ps_cuda_error(c, r.error));
        rc = r.error == PS_CU_OUT_OF_MEMORY && !r.is_reserved ? PS_E_NOMEM
                                                              : PS_E_IO;
    }
    return rc;
}
