/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/cuda/plan.h"

#include "base/dtype.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a piece: enough for the links' bandwidth, and few enough for two
 * slots of each thread. */
#define PIECE_BYTES (8u * 1024 * 1024)
/* Elements of a piece: a multiple of this. */
#define PIECE_UNIT  4096u
/* Most bytes of a piece of many sources. */
#define PIECE_MAX   (256u * 1024 * 1024)
/* Most bytes of a job that is one piece, because its codes are. */
#define WHOLE_MAX   (1024u * 1024 * 1024)
/* Alignment of arrays. */
#define LINE        256u
#define SQUARES_BYTES                                                          \
    (PS_CUDA_SQUARE_ROWS * PS_CUDA_SQUARE_WORDS * sizeof(uint64_t))

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Sets how many partial sums are merged after each source, as the counter of
 * kernel.h does. False: too many at a time. */
static bool count_merges(const struct ps_job *job, uint8_t *merges)
{
    unsigned levels[PS_CUDA_DEPTH_MAX];
    unsigned depth = 0;

    for (uint32_t i = 0; i < job->src_count; i++) {
        if (depth == PS_CUDA_DEPTH_MAX) {
            return false;
        }
        levels[depth++] = job->level == NULL ? 0 : job->level[i];
        merges[i] = 0;
        while (depth > 1 && levels[depth - 2] == levels[depth - 1]) {
            depth--;
            levels[depth - 1]++;
            merges[i]++;
        }
    }
    merges[job->src_count - 1] += (uint8_t)(depth - 1);
    return true;
}

static void add_span(struct ps_cuda_plan *p, enum ps_cuda_array a,
                     uint64_t each, const void *from, void *to)
{
    p->spans[a].each = each;
    p->spans[a].from = from;
    p->spans[a].to = to;
}

static void add_whole(struct ps_cuda_plan *p, enum ps_cuda_array a,
                      uint64_t bytes, void *to)
{
    p->spans[a].whole = bytes;
    p->spans[a].to = to;
}

/* Makes a span use the array that stays on the device, if there is one. */
static void keep_span(struct ps_cuda_plan *p, enum ps_cuda_array a, unsigned k)
{
    const struct ps_kernel_kept *kept = &p->range->kept[k];

    if (kept->address == 0) {
        return;
    }
    p->spans[a].kept = kept->address;
    if (kept->is_current != 0) {
        p->spans[a].from = NULL;
    }
    if (kept->stays != 0) {
        p->spans[a].to = NULL;
    }
}

static void add_states(struct ps_cuda_plan *p)
{
    const struct ps_job *job = p->job;

    if (job->op == PS_JOB_SGD && job->sgd.momentum != 0) {
        add_span(p, PS_CUDA_STATE_0, p->size, ps_job_prior_state(job, 0),
                 job->state);
        keep_span(p, PS_CUDA_STATE_0, PS_KEPT_STATE_0);
    }
    for (unsigned i = 0; job->op == PS_JOB_STEP && i < p->range->states; i++) {
        add_span(p, PS_CUDA_STATE_0 + i, p->size, ps_job_prior_state(job, i),
                 job->states[i]);
        keep_span(p, PS_CUDA_STATE_0 + i, PS_KEPT_STATE_0 + i);
    }
}

static void add_update(struct ps_cuda_plan *p)
{
    const struct ps_job *job = p->job;
    const bool is_half = ps_job_is_half(job);
    const void *weights = is_half ? ps_job_prior_master(job) : job->weight;

    if (job->direction_only) {
        add_span(p, PS_CUDA_FIXED_WEIGHTS, p->size, weights, NULL);
        keep_span(p, PS_CUDA_FIXED_WEIGHTS, PS_KEPT_WEIGHT);
        add_span(p, PS_CUDA_RESULT, p->size, NULL, job->dst);
    } else if (is_half) {
        add_span(p, PS_CUDA_WEIGHTS, p->size, weights, job->master);
        keep_span(p, PS_CUDA_WEIGHTS, PS_KEPT_WEIGHT);
        add_span(p, PS_CUDA_HALF, sizeof(uint16_t), NULL, job->dst);
    } else {
        add_span(p, PS_CUDA_WEIGHTS, p->size, weights, job->dst);
        keep_span(p, PS_CUDA_WEIGHTS, PS_KEPT_WEIGHT);
    }
    add_states(p);
    if (job->square_sum != NULL) {
        add_whole(p, PS_CUDA_SQUARES, SQUARES_BYTES, NULL);
    }
    if (job->weight_square_sum != NULL) {
        add_whole(p, PS_CUDA_WEIGHT_SQUARES, SQUARES_BYTES, NULL);
    }
}

static void add_encoding(struct ps_cuda_plan *p)
{
    const struct ps_job *job = p->job;
    const uint64_t segments = job->count / PS_CUDA_SEGMENT + 1;

    add_span(p, PS_CUDA_RESIDUAL, sizeof(float),
             job->prior.residual != NULL ? job->prior.residual : job->residual,
             job->residual);
    keep_span(p, PS_CUDA_RESIDUAL, PS_KEPT_RESIDUAL);
    if (job->moment != NULL) {
        add_span(p, PS_CUDA_MOMENT, sizeof(float),
                 job->prior.moment != NULL ? job->prior.moment : job->moment,
                 job->moment);
    }
    add_whole(p, PS_CUDA_CODE, p->range->code.bytes, job->dst);
    if (job->decoded != NULL) {
        add_span(p, PS_CUDA_DECODED, sizeof(float), NULL, job->decoded);
    }
    add_whole(p, PS_CUDA_WORK, sizeof(struct ps_cuda_work), NULL);
    if (job->codec.kind == PS_CODEC_TOPK) {
        add_whole(p, PS_CUDA_ABOVE, segments * sizeof(uint64_t), NULL);
        add_whole(p, PS_CUDA_EQUAL, segments * sizeof(uint64_t), NULL);
    }
}

static void add_sources(struct ps_cuda_plan *p)
{
    const struct ps_job *job = p->job;

    if (job->src_count > PS_CUDA_SOURCES_MAX) {
        p->spans[PS_CUDA_TABLE].whole = job->src_count *
                                        (sizeof(uint64_t) + sizeof(uint8_t));
    }
    if (ps_job_decodes(job)) {
        p->spans[PS_CUDA_SOURCES].whole = job->src_count *
                                          round_up(p->range->src_code.bytes);
        p->spans[PS_CUDA_FLOATS].each = job->src_count * sizeof(float);
    } else {
        p->src_size = ps_job_widens(job) ? sizeof(uint16_t) : p->size;
        p->spans[PS_CUDA_SOURCES].each = job->src_count * p->src_size;
    }
    if (ps_job_widens(job)) {
        p->spans[PS_CUDA_SUM].each = p->size;
    }
    if (p->is_sum && !p->is_in_place) {
        add_span(p, PS_CUDA_RESULT, p->size, NULL, job->dst);
    }
}

/* Bytes of an array, of which the rest of the last line is not used. */
static uint64_t span_bytes(const struct ps_cuda_plan *p, enum ps_cuda_array a)
{
    const struct ps_job *job = p->job;

    if (a == PS_CUDA_SOURCES) {
        return job->src_count * p->src_stride;
    }
    if (a == PS_CUDA_FLOATS) {
        return p->spans[a].each > 0 ? job->src_count * p->float_stride : 0;
    }
    return round_up(p->spans[a].whole + p->spans[a].each * p->count);
}

/* Chooses the length of a piece. */
static int choose_count(struct ps_cuda_plan *p)
{
    const uint64_t most = p->range->to - p->range->from;
    uint64_t each = 0;
    uint64_t whole = 0;

    for (unsigned a = 0; a < PS_CUDA_ARRAYS; a++) {
        each += p->spans[a].each;
        whole += p->spans[a].whole;
    }
    if (p->encodes || p->src_size == 0) {
        p->count = most;
        return whole + each * most <= WHOLE_MAX ? 0 : PS_E_UNSUPPORTED;
    }
    p->count = PIECE_BYTES / each / PIECE_UNIT * PIECE_UNIT;
    p->count = p->count > 0 ? p->count : PIECE_UNIT;
    p->count = p->count < most ? p->count : most;
    return whole + each * p->count <= PIECE_MAX ? 0 : PS_E_UNSUPPORTED;
}

/* Places what is copied of the arrays that stay. */
static void place_kept(struct ps_cuda_plan *p)
{
    p->host_end = p->in_end > p->out_end ? p->in_end : p->out_end;
    for (unsigned a = 0; a < PS_CUDA_ARRAYS; a++) {
        if (p->spans[a].kept != 0 &&
            (p->spans[a].from != NULL || p->spans[a].to != NULL)) {
            p->spans[a].at = p->host_end;
            p->host_end += span_bytes(p, a);
        }
    }
}

static void place_spans(struct ps_cuda_plan *p)
{
    p->src_stride = round_up(p->src_size == 0 ? p->range->src_code.bytes
                                              : p->src_size * p->count);
    p->float_stride = round_up(sizeof(float) * p->count);
    for (unsigned a = 0; a < PS_CUDA_ARRAYS; a++) {
        p->spans[a].at = p->end;
        if (a == PS_CUDA_WEIGHTS) {
            p->out_begin = p->end;
        } else if (a == PS_CUDA_RESULT) {
            p->in_end = p->end;
        } else if (a == PS_CUDA_FLOATS) {
            p->out_end = p->end;
        }
        p->end += p->spans[a].kept == 0 ? span_bytes(p, a) : 0;
    }
    if (p->is_in_place) {
        p->out_begin = ps_cuda_source_at(p, 0);
        p->out_end = p->out_begin + p->src_stride;
    }
    place_kept(p);
}

/* Of numbers that a later version adds, this one has no kernels. */
static bool is_known(const struct ps_job *job)
{
    return (unsigned)job->fold < PS_FOLDS &&
           (unsigned)job->codec.kind < PS_CODEC_KINDS &&
           (unsigned)job->src_codec.kind < PS_CODEC_KINDS &&
           (unsigned)job->step.kind < PS_STEP_KINDS;
}

static bool is_supported(const struct ps_job *job)
{
    const bool is_copy = job->op == PS_JOB_SUM && job->src_count == 1 &&
                         job->divide_by <= 1 && !ps_job_decodes(job);

    return !is_copy && is_known(job) && ps_dtype_size(job->dtype) != 0;
}

int ps_cuda_plan_init(struct ps_cuda_plan *p,
                      const struct ps_kernel_range *range)
{
    const struct ps_job *job = range->job;

    *p = (struct ps_cuda_plan){
        .range = range,
        .job = job,
        .size = ps_dtype_size(job->dtype),
        .is_sum = job->op == PS_JOB_SUM,
        .encodes = job->op == PS_JOB_ENCODE,
    };
    if (!is_supported(job)) {
        return PS_E_UNSUPPORTED;
    }
    p->is_in_place = p->is_sum && !ps_job_decodes(job);
    add_sources(p);
    if (p->encodes) {
        add_encoding(p);
    } else if (!p->is_sum) {
        add_update(p);
    }
    int rc = choose_count(p);

    if (rc != 0) {
        return rc;
    }
    place_spans(p);
    p->merges = malloc(job->src_count);
    if (p->merges == NULL) {
        return PS_E_NOMEM;
    }
    return count_merges(job, p->merges) ? 0 : PS_E_UNSUPPORTED;
}

void ps_cuda_plan_fini(struct ps_cuda_plan *p)
{
    free(p->merges);
}
