/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on the CPU: selection of the instruction set, and the walk over the
 * tree, block by block.
 *
 * A block is so short that the tree's partial sums stay in the caches nearest
 * to the core, so every source is read once and the result is written once, for
 * any number of sources. Up to eight sources of one level are added in
 * registers: such a group is a subtree that the counter of kernel.h would build
 * in the same shape. The other partial sums are blocks on a stack, one for each
 * digit of the counter.
 *
 * When both operands of an addition or product are NaN, the processor decides
 * which payload the result has; everything else is the same in all variants. */
#include "kernel/cpu.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/* Digits of the counter: valid levels fall from the bottom of the stack to the
 * top, and 64 of them would need 2^64 sources. */
#define DEPTH_MAX          64u

#define SCRATCH_BYTES      (64u * 1024)
#define BLOCK_BYTES        (16u * 1024)
/* Block size for encoded sources, which need up to eight decoded blocks
 * besides. */
#define ENCODED_BYTES      (4u * 1024)

/* Jobs from this size on write a result that is not an operand with streaming
 * stores. That avoids reading the old bytes first, a third of the time for two
 * sources and a fifth for eight. Such a job is mostly part of a larger tensor,
 * which would not stay in the caches anyway; a smaller result is better left in
 * the caches for its readers. */
#define STREAM_BYTES       (1024u * 1024)
/* The same for new states that are not written over the old ones, which nobody
 * reads before the next step; and their blocks, which stay in the nearest cache
 * until they are streamed. */
#define STATE_STREAM_BYTES (256u * 1024)
#define STATE_BLOCK_BYTES  2048u

static const struct ps_cpu_ops *const variants[] = {
#if defined(__x86_64__)
    &ps_cpu_avx512,
    &ps_cpu_avx2,
#endif
    &ps_cpu_portable,
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static const struct ps_cpu_ops *_Atomic chosen_variant;

const struct ps_cpu_ops *ps_cpu_ops(void)
{
    const struct ps_cpu_ops *ops = atomic_load_explicit(&chosen_variant,
                                                        memory_order_relaxed);

    for (size_t i = 0; ops == NULL && i < VARIANTS; i++) {
        if (variants[i]->usable()) {
            /* Concurrent threads store the same value. */
            ops = variants[i];
            atomic_store_explicit(&chosen_variant, ops, memory_order_relaxed);
        }
    }
    return ops;
}

const char *ps_kernel_variant(void)
{
    return ps_cpu_ops()->name;
}

int ps_kernel_force(const char *variant)
{
    for (size_t i = 0; i < VARIANTS; i++) {
        if (strcmp(variants[i]->name, variant) == 0) {
            if (!variants[i]->usable()) {
                return PS_E_UNSUPPORTED;
            }
            atomic_store_explicit(&chosen_variant, variants[i],
                                  memory_order_relaxed);
            return 0;
        }
    }
    return PS_E_UNSUPPORTED;
}

struct partial_sum {
    const void *data;
    unsigned level;
};

/* Square sums of the range that one call handles. */
struct norm_sums {
    struct ps_square_sum sum;
    struct ps_square_bins bins;
};

struct walk {
    const struct ps_job *job;
    const struct ps_cpu_ops *ops;
    ps_cpu_fold_fn fold;
    size_t size; /* Bytes of an element. */
    char *scratch;
    char *decoded; /* PS_CPU_GROUP_MAX blocks; NULL: sources are not encoded. */
    size_t block;  /* Bytes of one block of scratch. */
    /* A block for each state; NULL: new states go to their places at once. */
    char *states;
    /* Square sums of d and of the weights; NULL: not needed. */
    struct norm_sums *measured;
    struct partial_sum partial_sums[DEPTH_MAX];
    unsigned depth;
};

static unsigned level_of(const struct ps_job *job, uint32_t i)
{
    return job->level == NULL ? 0 : job->level[i];
}

/* Returns how many sources from `i` on one call may add: as many of one level
 * as make a complete subtree, or all that are left, but not past the point
 * where the counter would first carry into the digit on top of the stack. */
static uint32_t next_group(const struct ps_job *job, uint32_t i,
                           const struct partial_sum *top)
{
    const unsigned level = level_of(job, i);
    uint32_t span = PS_CPU_GROUP_MAX;
    uint32_t run = 1;
    uint32_t group = 1;

    if (top != NULL && top->level >= level && top->level < level + 3) {
        span = 1u << (top->level - level);
    }
    while (run < span && run < job->src_count - i &&
           level_of(job, i + run) == level) {
        run++;
    }
    if (run == job->src_count - i) {
        return run;
    }
    while (group * 2 <= run) {
        group *= 2;
    }
    return group;
}

static void push_partial(struct walk *w, const void *block, unsigned level)
{
    assert(w->depth < DEPTH_MAX);
    w->partial_sums[w->depth++] = (struct partial_sum){.data = block,
                                                       .level = level};
}

static void *scratch_at(const struct walk *w, unsigned depth)
{
    return w->scratch + (size_t)depth * w->block;
}

static bool computes_norm(const struct ps_job *job)
{
    return job->square_sum != NULL || job->weight_square_sum != NULL;
}

/* Returns `count` elements of source `i`: in place, or decoded into `room`. */
static const void *load_source(const struct walk *w, uint32_t i, uint64_t from,
                               size_t count, void *room)
{
    const struct ps_job *job = w->job;

    if (w->decoded == NULL) {
        return (const char *)job->src[i] + from * w->size;
    }
    if (ps_job_widens(job)) {
        w->ops->widen[job->storage_dtype](
            room, (const char *)job->src[i] + from * sizeof(uint16_t), count);
        return room;
    }
    ps_codec_decode(
        &job->src_codec,
        &(struct ps_codec_data){job->src_rng_stream, job->src[i], job->count},
        from, count, room);
    return room;
}

/* Replaces the two topmost digits by their sum, stored in `out`. */
static void merge_partials(struct walk *w, void *out, size_t count, bool stream)
{
    struct partial_sum *left = &w->partial_sums[w->depth - 2];
    const void *pair[2] = {left[0].data, left[1].data};

    w->fold(out, pair, 2, count, stream);
    left->data = out;
    left->level++;
    w->depth--;
}

/* Returns the sum of `count` elements of all sources from element `from` on: in
 * `out`, or in place if there is only one source. */
static const void *sum_block(struct walk *w, uint64_t from, size_t count,
                             void *out, bool stream)
{
    const struct ps_job *job = w->job;

    w->depth = 0;
    for (uint32_t i = 0; i < job->src_count;) {
        const struct partial_sum *top = w->depth > 0
                                            ? &w->partial_sums[w->depth - 1]
                                            : NULL;
        uint32_t group = next_group(job, i, top);
        bool last = group == job->src_count - i;
        unsigned level = level_of(job, i);
        const void *src[PS_CPU_GROUP_MAX];

        for (uint32_t j = 0; j < group; j++) {
            void *room = group == 1           ? scratch_at(w, w->depth)
                         : w->decoded == NULL ? NULL
                                              : w->decoded + j * w->block;

            src[j] = load_source(w, i + j, from, count, room);
        }
        i += group;
        if (group == 1) {
            push_partial(w, src[0], level);
        } else {
            bool whole = last && w->depth == 0;
            void *sum = whole ? out : scratch_at(w, w->depth);

            w->fold(sum, src, group, count, whole && stream);
            push_partial(w, sum, level + (group >= 8) + (group >= 4) + 1);
        }
        while (!last && w->depth > 1 &&
               w->partial_sums[w->depth - 1].level ==
                   w->partial_sums[w->depth - 2].level) {
            merge_partials(w, scratch_at(w, w->depth - 2), count, false);
        }
    }
    while (w->depth > 1) {
        bool whole = w->depth == 2;

        merge_partials(w, whole ? out : scratch_at(w, w->depth - 2), count,
                       whole && stream);
    }
    return w->partial_sums[0].data;
}

/* Maximum number of digits that sum_block holds at once; above DEPTH_MAX the
 * levels are not valid. */
static unsigned tree_depth(const struct ps_job *job)
{
    struct partial_sum digits[DEPTH_MAX];
    unsigned depth = 0;
    unsigned deepest = 0;

    for (uint32_t i = 0; i < job->src_count;) {
        const struct partial_sum *top = depth > 0 ? &digits[depth - 1] : NULL;
        uint32_t group = next_group(job, i, top);

        if (depth == DEPTH_MAX) {
            return DEPTH_MAX + 1;
        }
        digits[depth++].level = level_of(job, i) + (group >= 8) + (group >= 4) +
                                (group >= 2);
        deepest = depth > deepest ? depth : deepest;
        i += group;
        while (depth > 1 && i < job->src_count &&
               digits[depth - 1].level == digits[depth - 2].level) {
            depth--;
            digits[depth - 1].level++;
        }
    }
    return deepest;
}

unsigned ps_step_states(enum ps_step_kind kind)
{
    switch (kind) {
    case PS_STEP_KEEP:
    case PS_STEP_SIGNSGD:
    case PS_STEP_SGLD:
    case PS_STEP_GRADIENT:
    case PS_STEP_ALONG:
        return 0;
    case PS_STEP_NAG:
    case PS_STEP_NAG_LATE:
    case PS_STEP_ADAGRAD:
    case PS_STEP_RMSPROP:
    case PS_STEP_SIGNUM:
    case PS_STEP_TEST:
    case PS_STEP_GROUP_ADAGRAD:
        return 1;
    case PS_STEP_ADAM:
    case PS_STEP_ADAMW:
    case PS_STEP_ADADELTA:
    case PS_STEP_FTRL:
    case PS_STEP_ADAMAX:
    case PS_STEP_NADAM:
    case PS_STEP_DCASGD:
    case PS_STEP_LAMB:
        return 2;
    case PS_STEP_RMSPROP_CENTERED:
    case PS_STEP_FTML:
        return 3;
    }
    return 0;
}

static bool has_states(const struct ps_job *job)
{
    for (unsigned i = 0; i < ps_step_states(job->step.kind); i++) {
        if (job->states[i] == NULL) {
            return false;
        }
    }
    return true;
}

static bool is_valid_half_job(const struct ps_job *job)
{
    return (job->storage_dtype == PS_DTYPE_FLOAT16 ||
            job->storage_dtype == PS_DTYPE_BFLOAT16) &&
           job->dtype == PS_DTYPE_FLOAT32 &&
           (job->op == PS_JOB_SGD || job->op == PS_JOB_STEP) &&
           !ps_job_decodes(job) && (job->count == 0 || job->master != NULL);
}

/* Old weights, in the type of the computation. */
static const void *old_weights(const struct ps_job *job)
{
    return ps_job_is_half(job) ? ps_job_prior_master(job) : job->weight;
}

/* True if the type, the fold and the encoding of the sources are ones that
 * sums have. */
static bool has_valid_sources(const struct ps_job *job)
{
    return ps_dtype_size(job->dtype) != 0 && job->src_count > 0 &&
           job->src != NULL && job->count <= SIZE_MAX / 8 &&
           (unsigned)job->fold < PS_FOLDS &&
           (job->fold == PS_FOLD_SUM || job->divide_by <= 1) &&
           (!ps_job_decodes(job) ||
            (job->dtype == PS_DTYPE_FLOAT32 &&
             (unsigned)job->src_codec.kind < PS_CODEC_KINDS &&
             job->count <= PS_CODEC_COUNT_MAX));
}

/* True if no array of the sources and the result is missing. */
static bool has_arrays(const struct ps_job *job)
{
    if (job->count == 0) {
        return true;
    }
    if (job->dst == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < job->src_count; i++) {
        if (job->src[i] == NULL && job->op != PS_JOB_ENCODE_EACH) {
            return false;
        }
    }
    return true;
}

static bool is_valid_encode_job(const struct ps_job *job)
{
    return job->dtype == PS_DTYPE_FLOAT32 &&
           (unsigned)job->codec.kind < PS_CODEC_KINDS &&
           job->count <= PS_CODEC_COUNT_MAX &&
           (job->count == 0 || job->residual != NULL) &&
           (job->codec.momentum > 0) == (job->moment != NULL);
}

static bool is_valid_sgd_job(const struct ps_job *job)
{
    return ps_dtype_is_float(job->dtype) &&
           (job->count == 0 ||
            (old_weights(job) != NULL &&
             (job->sgd.momentum == 0 || job->state != NULL)));
}

static bool is_valid_step_job(const struct ps_job *job)
{
    return ps_dtype_is_float(job->dtype) &&
           (unsigned)job->step.kind < PS_STEP_KINDS &&
           (job->count == 0 || (old_weights(job) != NULL && has_states(job)));
}

static bool is_valid_job(const struct ps_job *job)
{
    if (ps_job_is_half(job) && !is_valid_half_job(job)) {
        return false;
    }
    if ((job->direction_only || computes_norm(job)) &&
        (job->op != PS_JOB_STEP || !job->direction_only || job->rows != NULL)) {
        return false;
    }
    if (!has_valid_sources(job) || !has_arrays(job)) {
        return false;
    }
    switch (job->op) {
    case PS_JOB_SUM:
        return true;
    case PS_JOB_ENCODE_EACH:
        return job->decoded == NULL && is_valid_encode_job(job);
    case PS_JOB_ENCODE:
        return is_valid_encode_job(job);
    case PS_JOB_SGD:
        return is_valid_sgd_job(job);
    case PS_JOB_STEP:
        return is_valid_step_job(job);
    }
    return false;
}

/* True if streaming stores pay. Depends on the whole job, not on the range, so
 * that threads that share a job agree. */
static bool should_stream(const struct ps_job *job, size_t size)
{
    return !ps_job_is_half(job) && !job->direction_only &&
           job->count * size >= STREAM_BYTES && job->dst != job->src[0] &&
           job->op != PS_JOB_ENCODE &&
           (job->op == PS_JOB_SUM || job->dst != job->weight);
}

/* Destination of the new weights, in the type of the computation. */
static void *new_weights(const struct walk *w, uint64_t from)
{
    const bool kept = ps_job_is_half(w->job) && !w->job->direction_only;

    return ps_kernel_at(kept ? w->job->master : w->job->dst, from * w->size);
}

static void add_square_sums(const struct ps_job *job, struct norm_sums *m,
                            const void *x, size_t count)
{
    if (job->dtype == PS_DTYPE_FLOAT32) {
        ps_square_sum_add_floats(&m->sum, &m->bins, x, count);
    } else {
        ps_square_sum_add_doubles(&m->sum, x, count);
    }
}

/* Adds the squares of the block's d and of its weights. */
static void add_block_square_sums(const struct walk *w, uint64_t from,
                                  size_t count)
{
    const struct ps_job *job = w->job;

    if (job->square_sum != NULL) {
        add_square_sums(job, &w->measured[0],
                        ps_kernel_at(job->dst, from * w->size), count);
    }
    if (job->weight_square_sum != NULL) {
        add_square_sums(job, &w->measured[1],
                        ps_kernel_at(old_weights(job), from * w->size), count);
    }
}

/* Adds the sums of this range to those of the job. */
static void merge_square_sums(const struct ps_job *job, struct norm_sums *m)
{
    struct ps_square_sum *const to[] = {job->square_sum,
                                        job->weight_square_sum};

    for (int i = 0; i < 2; i++) {
        if (to[i] != NULL) {
            ps_square_sum_flush_bins(&m[i].sum, &m[i].bins);
            ps_square_sum_merge(to[i], &m[i].sum);
        }
    }
}

static bool streams_states(const struct ps_job *job, size_t size)
{
    return job->prior.states[0] != NULL &&
           job->count * size >= STATE_STREAM_BYTES;
}

static void *new_state(const struct ps_job *job, unsigned i)
{
    return job->op == PS_JOB_SGD ? job->state : job->states[i];
}

/* Where a block of the i-th state is computed. */
static void *next_state(const struct walk *w, unsigned i, uint64_t from)
{
    return w->states != NULL && w->job->prior.states[i] != NULL
               ? w->states + i * STATE_BLOCK_BYTES
               : ps_kernel_at(new_state(w->job, i), from * w->size);
}

static void flush_states(const struct walk *w, unsigned states, uint64_t from,
                         size_t count)
{
    for (unsigned i = 0; i < states; i++) {
        void *to = ps_kernel_at(new_state(w->job, i), from * w->size);
        const void *block = next_state(w, i, from);

        if (block != to) {
            w->ops->fold[PS_FOLD_SUM][w->job->dtype](to, &block, 1, count,
                                                     true);
        }
    }
}

static void sgd_block(const struct walk *w, const void *grad, uint64_t from,
                      size_t count, bool stream)
{
    const struct ps_job *job = w->job;
    bool moving = job->sgd.momentum != 0;
    struct ps_cpu_sgd step = {
        .dst = new_weights(w, from),
        .weight = ps_kernel_at(old_weights(job), from * w->size),
        .grad = grad,
        .state = moving
                     ? ps_kernel_at(ps_job_prior_state(job, 0), from * w->size)
                     : NULL,
        .next_state = moving ? next_state(w, 0, from) : NULL,
        .sgd = &job->sgd,
        .stream = stream,
    };

    w->ops->sgd[job->dtype](&step, count);
    flush_states(w, moving ? 1 : 0, from, count);
}

static void other_step_block(const struct walk *w, const void *grad,
                             uint64_t from, size_t count)
{
    const struct ps_job *job = w->job;
    struct ps_cpu_step s = {
        .dst = new_weights(w, from),
        .weight = ps_kernel_at(old_weights(job), from * w->size),
        .grad = grad,
        .step = &job->step,
        .first_index = job->step.first_index + from,
    };

    for (unsigned i = 0; i < PS_STATES_MAX; i++) {
        s.states[i] = ps_kernel_at(ps_job_prior_state(job, i), from * w->size);
        s.next_states[i] = next_state(w, i, from);
    }
    w->ops->step[job->dtype](&s, count);
    flush_states(w, ps_step_states(job->step.kind), from, count);
}

static void step_block(const struct walk *w, const void *grad, uint64_t from,
                       size_t count, bool stream)
{
    const size_t most = w->states != NULL ? STATE_BLOCK_BYTES / w->size : count;

    for (size_t at = 0; at < count; at += most) {
        const void *g = ps_kernel_at(grad, at * w->size);
        const size_t n = count - at < most ? count - at : most;

        if (w->job->op == PS_JOB_SGD) {
            sgd_block(w, g, from + at, n, stream);
        } else {
            other_step_block(w, g, from + at, n);
        }
    }
}

/* Copies the prior state to one that is not updated in place. A codec may lack
 * the state; then `to` is NULL. */
static void copy_prior(float *to, const float *old, uint64_t from, size_t count)
{
    if (to != NULL && old != NULL) {
        memcpy(to + from, old + from, count * sizeof(*to));
    }
}

static void run_block(struct walk *w, uint64_t from, size_t count, bool stream)
{
    const struct ps_job *job = w->job;
    void *dst = ps_kernel_at(job->dst, from * w->size);
    bool divided = job->divide_by > 1;
    const void *sum;

    if (job->op == PS_JOB_SUM && !divided) {
        (void)sum_block(w, from, count, dst, stream);
        return;
    }
    sum = sum_block(w, from, count, w->scratch, false);
    if (divided) {
        bool whole = job->op == PS_JOB_SUM;
        void *out = whole ? dst : w->scratch;

        w->ops->divide[job->dtype](out, sum, count, job->divide_by,
                                   whole && stream);
        sum = out;
    }
    switch (job->op) {
    case PS_JOB_SUM:
    case PS_JOB_ENCODE_EACH: /* Never run by blocks. */
        break;
    case PS_JOB_SGD:
    case PS_JOB_STEP:
        step_block(w, sum, from, count, stream);
        break;
    case PS_JOB_ENCODE:
        copy_prior(job->residual, job->prior.residual, from, count);
        copy_prior(job->moment, job->prior.moment, from, count);
        ps_codec_add_feedback(&job->codec, job->residual + from,
                              job->moment == NULL ? NULL : job->moment + from,
                              sum, count);
        break;
    }
    if (w->measured != NULL) {
        add_block_square_sums(w, from, count);
    }
    if (ps_job_is_half(job) && !job->direction_only) {
        w->ops->narrow[job->storage_dtype](
            ps_kernel_at(job->dst, from * sizeof(uint16_t)),
            new_weights(w, from), count);
    }
}

/* Copies a single source. */
static void run_copy(const struct walk *w, uint64_t from, uint64_t to,
                     bool stream)
{
    const struct ps_job *job = w->job;
    const void *src = ps_kernel_at(job->src[0], from * w->size);
    void *dst = ps_kernel_at(job->dst, from * w->size);

    if (w->decoded != NULL) {
        (void)load_source(w, 0, from, to - from, dst);
    } else if (stream) {
        w->ops->fold[PS_FOLD_SUM][job->dtype](dst, &src, 1, to - from, true);
    } else if (dst != src) {
        memcpy(dst, src, (to - from) * w->size);
    }
}

/* Encodes the residual, to which the sum has been added. */
static void run_encode(const struct ps_job *job)
{
    ps_codec_encode(&job->codec, job->rng_stream, job->residual, job->count,
                    job->dst);
    if (job->decoded != NULL) {
        ps_codec_decode(
            &job->codec,
            &(struct ps_codec_data){job->rng_stream, job->dst, job->count}, 0,
            job->count, job->decoded);
    }
}

bool ps_kernel_is_divisible(const struct ps_job *job)
{
    return job->op != PS_JOB_ENCODE && job->op != PS_JOB_ENCODE_EACH;
}

static int run_range(const struct ps_job *job, uint64_t from, uint64_t to,
                     struct norm_sums *measured);

/* The job that encodes source `i` alone. */
static struct ps_job job_of_source(const struct ps_job *job, uint32_t i,
                                   void *dst)
{
    const uint64_t first = i * job->count * sizeof(float);
    struct ps_job one = *job;

    one.op = PS_JOB_ENCODE;
    one.src = &job->src[i];
    one.src_count = 1;
    one.level = NULL;
    one.dst = dst;
    one.residual = ps_kernel_at(job->residual, first);
    one.prior.residual = ps_kernel_at(job->prior.residual, first);
    one.moment = ps_kernel_at(job->moment, first);
    one.prior.moment = ps_kernel_at(job->prior.moment, first);
    return one;
}

int ps_kernel_run_each(const struct ps_job *job,
                       int (*run)(void *ctx, const struct ps_job *one),
                       void *ctx)
{
    char *dst = job->dst;
    int rc = 0;

    for (uint32_t i = 0; i < job->src_count && rc == 0; i++) {
        const struct ps_job one = job_of_source(job, i, dst);

        if (job->src[i] == NULL) {
            copy_prior(one.residual, one.prior.residual, 0, one.count);
            copy_prior(one.moment, one.prior.moment, 0, one.count);
            continue;
        }
        rc = run(ctx, &one);
        dst += ps_codec_bytes(&job->codec, job->count);
    }
    return rc;
}

static int encode_one(void *ctx, const struct ps_job *one)
{
    (void)ctx;
    return run_range(one, 0, one->count, NULL);
}

int ps_kernel_check_range(const struct ps_job *job, uint64_t from, uint64_t to)
{
    if (!is_valid_job(job) || from % 16 != 0 || from > to || to > job->count ||
        tree_depth(job) > DEPTH_MAX) {
        return PS_E_INVAL;
    }
    if (!ps_kernel_is_divisible(job) && (from != 0 || to != job->count)) {
        return PS_E_INVAL;
    }
    return 0;
}

/* Prepares the walk over a job that has been checked. `decoded` has
 * PS_CPU_GROUP_MAX blocks of ENCODED_BYTES. */
static void init_walk(struct walk *w, const struct ps_job *job, char *scratch,
                      char *decoded)
{
    const bool decodes = ps_job_decodes(job) || ps_job_widens(job);
    const unsigned depth = tree_depth(job);

    *w = (struct walk){.job = job,
                       .ops = ps_cpu_ops(),
                       .size = ps_dtype_size(job->dtype),
                       .scratch = scratch,
                       .decoded = decodes ? decoded : NULL,
                       .block = decodes ? ENCODED_BYTES : BLOCK_BYTES};
    w->fold = w->ops->fold[job->fold][job->dtype];
    while (w->block * depth > SCRATCH_BYTES) {
        w->block /= 2;
    }
}

static int run_range(const struct ps_job *job, uint64_t from, uint64_t to,
                     struct norm_sums *measured)
{
    _Alignas(64) char scratch[SCRATCH_BYTES];
    _Alignas(64) char decoded[PS_CPU_GROUP_MAX * ENCODED_BYTES];
    _Alignas(64) char states[PS_STATES_MAX * STATE_BLOCK_BYTES];
    struct walk w;
    bool stream;
    int rc = ps_kernel_check_range(job, from, to);

    if (rc != 0 || from == to) {
        return rc;
    }
    if (job->op == PS_JOB_ENCODE_EACH) {
        return ps_kernel_run_each(job, encode_one, NULL);
    }
    init_walk(&w, job, scratch, decoded);
    w.measured = measured;
    stream = should_stream(job, w.size);
    w.states = streams_states(job, w.size) ? states : NULL;
    if (job->op == PS_JOB_SUM && job->src_count == 1 && job->divide_by <= 1) {
        run_copy(&w, from, to, stream);
    } else {
        for (uint64_t i = from; i < to;) {
            uint64_t count = w.block / w.size;

            count = count < to - i ? count : to - i;
            run_block(&w, i, (size_t)count, stream);
            i += count;
        }
    }
    if (stream || w.states != NULL) {
        w.ops->fence();
    }
    if (job->op == PS_JOB_ENCODE) {
        run_encode(job);
    }
    return 0;
}

int ps_kernel_run_range(const struct ps_job *job, uint64_t from, uint64_t to)
{
    if (job->rows != NULL) {
        return ps_kernel_run_rows(job, from, to);
    }
    if (!computes_norm(job)) {
        return run_range(job, from, to, NULL);
    }
    struct norm_sums measured[2] = {0};
    int rc = run_range(job, from, to, measured);

    if (rc == 0) {
        merge_square_sums(job, measured);
    }
    return rc;
}

/* Element i of the gradient, scaled and clipped; each product rounds in the
 * element's type. */
static double clipped_gradient(const struct ps_job *job, const void *sum,
                               size_t i)
{
    const bool single = job->dtype == PS_DTYPE_FLOAT32;
    const double c = single ? (double)(float)job->step.clip : job->step.clip;
    const double g = single ? (double)(((const float *)sum)[i] *
                                       (float)job->step.rescale)
                            : ((const double *)sum)[i] * job->step.rescale;

    if (job->step.clip <= 0) {
        return g;
    }
    return g > c ? c : g < -c ? -c : g;
}

double ps_kernel_mean_square(const struct ps_job *job)
{
    _Alignas(64) char scratch[SCRATCH_BYTES];
    _Alignas(64) char decoded[PS_CPU_GROUP_MAX * ENCODED_BYTES];
    struct walk w;
    double total = 0;

    assert(tree_depth(job) <= DEPTH_MAX && !ps_job_decodes(job));
    init_walk(&w, job, scratch, decoded);
    for (uint64_t from = 0; from < job->count;) {
        const uint64_t left = job->count - from;
        const size_t most = w.block / w.size;
        const size_t count = left < most ? (size_t)left : most;
        const void *sum = sum_block(&w, from, count, scratch, false);

        if (job->divide_by > 1) {
            w.ops->divide[job->dtype](scratch, sum, count, job->divide_by,
                                      false);
            sum = scratch;
        }
        for (size_t i = 0; i < count; i++) {
            const double g = clipped_gradient(job, sum, i);

            total += g * g;
        }
        from += count;
    }
    return total / (double)job->count;
}

void ps_kernel_widen(enum ps_dtype half, float *dst, const void *src,
                     size_t count)
{
    ps_cpu_ops()->widen[half](dst, src, count);
}

void ps_kernel_narrow(enum ps_dtype half, void *dst, const float *src,
                      size_t count)
{
    ps_cpu_ops()->narrow[half](dst, src, count);
}

int ps_kernel_run(const struct ps_job *job)
{
    return ps_kernel_run_range(job, 0, job->count);
}
