/* SPDX-License-Identifier: Apache-2.0 */
/* Every variant of the kernel against the scalar model: same bits for any
 * number of sources, levels, type, length, alignment, division of the range
 * and aliasing that kernel.h allows. A random test prints its seed when it
 * fails; PS_TEST_SEED=<seed> runs it again. */
#include "kernel/kernel.h"

#include "base/rng.h"
#include "kernel/device.h"
#include "kernel/half.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/sanitized.h"

#define SOURCES_MAX   40u
#define GUARD         64u /* Bytes around a result that must not change. */
#define ROUNDS        150u
/* A device's jobs have delays of their own, and its arithmetic is that of the
 * CPU's source. */
#define DEVICE_ROUNDS 30u
#define DEVICE_LESS   (PS_TEST_SANITIZED ? 4u : 1u)

/* The device that computes; NULL: the CPU. */
static struct ps_device *device;

static int run_range(const struct ps_job *job, uint64_t from, uint64_t to)
{
    if (device == NULL) {
        return ps_kernel_run_range(job, from, to);
    }
    int rc = ps_device_run_range(device, job, NULL, from, to);

    if (ps_device_failure(device) != NULL) {
        fail_msg("the device has failed: %s", ps_device_failure(device));
    }
    return rc;
}

static int run(const struct ps_job *job)
{
    return run_range(job, 0, job->count);
}

/* Rounds of a test: fewer on the emulated device under a sanitizer, where each
 * load and store of a kernel has two checks. */
static uint64_t rounds_of(uint64_t rounds)
{
    return device == NULL ? rounds : rounds / DEVICE_LESS;
}

static const char *variant(void)
{
    return device == NULL ? ps_kernel_variant() : "cuda";
}

static double model_normal(const struct ps_normal_stream *stream,
                           uint64_t index)
{
    double two[2];

    ps_normal_pair(stream, index / 2, two);
    return two[index % 2];
}

#define ELEM       float
#define WRAP       float
#define ELEM_FLOAT 1
#define NAME(x)    x##_f32
#include "kernel_model.inc"
#undef ELEM
#undef WRAP
#undef ELEM_FLOAT
#undef NAME

#define ELEM       double
#define WRAP       double
#define ELEM_FLOAT 1
#define NAME(x)    x##_f64
#include "kernel_model.inc"
#undef ELEM
#undef WRAP
#undef ELEM_FLOAT
#undef NAME

#define ELEM       int32_t
#define WRAP       uint32_t
#define ELEM_FLOAT 0
#define NAME(x)    x##_i32
#include "kernel_model.inc"
#undef ELEM
#undef WRAP
#undef ELEM_FLOAT
#undef NAME

#define ELEM       int64_t
#define WRAP       uint64_t
#define ELEM_FLOAT 0
#define NAME(x)    x##_i64
#include "kernel_model.inc"
#undef ELEM
#undef WRAP
#undef ELEM_FLOAT
#undef NAME

static void model_run(const struct ps_job *job, void *dst, void *state)
{
    switch (job->dtype) {
    case PS_DTYPE_FLOAT32:
        model_run_f32(job, dst, state);
        break;
    case PS_DTYPE_FLOAT64:
        model_run_f64(job, dst, state);
        break;
    case PS_DTYPE_INT32:
        model_run_i32(job, dst, state);
        break;
    case PS_DTYPE_INT64:
        model_run_i64(job, dst, state);
        break;
    default:
        break; /* The small types have tests of their own. */
    }
}

static const enum ps_dtype dtypes[] = {
    PS_DTYPE_FLOAT32,
    PS_DTYPE_FLOAT64,
    PS_DTYPE_INT32,
    PS_DTYPE_INT64,
};

/* One random job and everything that it needs. */
struct trial {
    struct ps_rng rng;
    uint64_t seed;
    struct ps_job job;
    size_t size;  /* Of an element. */
    size_t bytes; /* Of a buffer. */
    const void *src[SOURCES_MAX];
    uint8_t level[SOURCES_MAX];
    void *blocks[SOURCES_MAX + 20];
    unsigned blocks_count;
    void *dst; /* Writable aliases of what the job names. */
    void *state;
    void *want;
    void *want_state;
    /* States before a job that does not update them in place; NULL: it does. */
    void *prior[PS_STATES_MAX];
    void *want_prior[PS_STATES_MAX];
};

static uint64_t seed_of(uint64_t round)
{
    const char *given = getenv("PS_TEST_SEED");

    return given != NULL ? strtoull(given, NULL, 0) : round;
}

/* Numbers whose float sum depends on the order. */
static double tricky(struct ps_rng *r)
{
    static const double scales[] = {1e8, 1, -1e8, 1e-8, -1, 3e-4};
    double scale = scales[ps_rng_below(r, 6)];

    return ps_rng_chance(r, 500)
               ? scale
               : scale * (1 + (double)ps_rng_below(r, 1u << 20) / 1e6);
}

static void fill(struct trial *t, void *buffer)
{
    for (uint64_t i = 0; i < t->job.count; i++) {
        switch (t->job.dtype) {
        case PS_DTYPE_FLOAT32:
            ((float *)buffer)[i] = (float)tricky(&t->rng);
            break;
        case PS_DTYPE_FLOAT64:
            /* Scaled, so that double loses bits as well. */
            ((double *)buffer)[i] = tricky(&t->rng) * tricky(&t->rng);
            break;
        case PS_DTYPE_INT32:
            ((uint32_t *)buffer)[i] = (uint32_t)ps_rng_next(&t->rng);
            break;
        case PS_DTYPE_INT64:
            ((uint64_t *)buffer)[i] = ps_rng_next(&t->rng);
            break;
        default:
            break;
        }
    }
}

/* A buffer that starts at a multiple of the element's size and, mostly, of
 * nothing larger; guards before and behind. */
static void *buffer_new(struct trial *t)
{
    size_t skew = GUARD + t->size * ps_rng_below(&t->rng, GUARD / t->size);
    char *block = aligned_alloc(64, (t->bytes + skew + GUARD + 63) / 64 * 64);

    assert_non_null(block);
    memset(block, 0xa5, (t->bytes + skew + GUARD + 63) / 64 * 64);
    t->blocks[t->blocks_count++] = block;
    return block + skew;
}

static void assert_guards(const void *buffer, size_t bytes)
{
    const unsigned char *p = buffer;

    for (size_t i = 1; i <= GUARD; i++) {
        assert_int_equal(*(p - i), 0xa5);
        assert_int_equal(p[bytes + i - 1], 0xa5);
    }
}

/* Levels that a counter can have made: a row of whole subtrees over the
 * leaves 0, 1, 2 and so on, each at a multiple of its own size. */
static void choose_levels(struct trial *t, uint32_t src_count)
{
    uint64_t leaf = 0;

    for (uint32_t i = 0; i < src_count; i++) {
        unsigned most = leaf == 0 ? 6 : (unsigned)__builtin_ctzll(leaf);

        most = most > 6 ? 6 : most;
        t->level[i] = (uint8_t)ps_rng_below(&t->rng, most + 1);
        if (ps_rng_chance(&t->rng, 500)) {
            t->level[i] = 0;
        }
        leaf += (uint64_t)1 << t->level[i];
    }
}

static uint64_t choose_count(struct ps_rng *r)
{
    switch (ps_rng_below(r, 4)) {
    case 0:
        return 1 + ps_rng_below(r, 20);
    case 1:
        return 1 + ps_rng_below(r, 300);
    case 2: /* Around the edge of a block. */
        return 4096 * (1 + ps_rng_below(r, 2)) - 3 + ps_rng_below(r, 7);
    default:
        return 1 + ps_rng_below(r, 20000); /* Streamed states, too. */
    }
}

static void choose_sgd(struct trial *t)
{
    struct ps_sgd *sgd = &t->job.sgd;

    sgd->lr = 0.01 * (double)(1 + ps_rng_below(&t->rng, 50));
    sgd->rescale = ps_rng_chance(&t->rng, 500) ? 1 : 1.0 / 3;
    sgd->momentum = ps_rng_chance(&t->rng, 500) ? 0.9 : 0;
    sgd->wd = ps_rng_chance(&t->rng, 500) ? 1e-4 : 0;
    sgd->clip = ps_rng_chance(&t->rng, 500) ? 1.7 : 0;
}

/* Makes the job write a state out of place. */
static void set_prior(struct trial *t, unsigned i, void *state)
{
    t->prior[i] = buffer_new(t);
    t->want_prior[i] = buffer_new(t);
    memcpy(t->prior[i], state, t->bytes);
    memcpy(t->want_prior[i], state, t->bytes);
    t->job.prior.states[i] = t->prior[i];
    fill(t, state);
}

static void assert_priors_unchanged(const struct trial *t)
{
    for (unsigned i = 0; i < PS_STATES_MAX; i++) {
        if (t->prior[i] != NULL) {
            assert_memory_equal(t->prior[i], t->want_prior[i], t->bytes);
        }
    }
}

static void trial_init(struct trial *t, uint64_t seed, enum ps_dtype dtype,
                       enum ps_job_op op)
{
    uint32_t src_count;

    *t = (struct trial){.seed = seed, .size = ps_dtype_size(dtype)};
    ps_rng_init(&t->rng, seed * 7 + dtype);
    src_count = (uint32_t)(1 + ps_rng_below(&t->rng, SOURCES_MAX));
    if (ps_rng_chance(&t->rng, 400)) {
        src_count = (uint32_t)(1 + ps_rng_below(&t->rng, 9));
    }
    t->job = (struct ps_job){
        .op = op,
        .dtype = dtype,
        .count = choose_count(&t->rng),
        .src_count = src_count,
        .src = t->src,
    };
    t->bytes = t->job.count * t->size;
    if (ps_rng_chance(&t->rng, 500)) {
        choose_levels(t, src_count);
        t->job.level = t->level;
    }
    if (ps_rng_chance(&t->rng, 300)) {
        t->job.divide_by = ps_rng_below(&t->rng, 2 * SOURCES_MAX);
    }
    for (uint32_t i = 0; i < src_count; i++) {
        void *src = buffer_new(t);

        fill(t, src);
        t->src[i] = src;
    }
    t->dst = buffer_new(t);
    t->want = buffer_new(t);
    t->state = buffer_new(t);
    t->want_state = buffer_new(t);
    t->job.dst = t->dst;
    if (op == PS_JOB_SGD) {
        choose_sgd(t);
        t->job.weight = ps_rng_chance(&t->rng, 500) ? t->dst : buffer_new(t);
        fill(t, (void *)(uintptr_t)t->job.weight);
        fill(t, t->state);
        memcpy(t->want_state, t->state, t->bytes);
        t->job.state = t->state;
    } else if (ps_rng_chance(&t->rng, 300)) {
        t->dst = (void *)(uintptr_t)t->src[0];
        t->job.dst = t->dst;
    }
    model_run(&t->job, t->want, t->want_state);
    if (op == PS_JOB_SGD && t->job.sgd.momentum != 0 &&
        ps_rng_chance(&t->rng, 500)) {
        set_prior(t, 0, t->state);
    }
}

static void trial_fini(struct trial *t)
{
    for (unsigned i = 0; i < t->blocks_count; i++) {
        free(t->blocks[i]);
    }
}

/* All of the job in up to eight ranges, in no particular order. */
static void run_in_pieces(struct trial *t)
{
    uint64_t cut[9] = {0};
    unsigned cuts = 1;
    unsigned first;

    while (cuts < 8 && cut[cuts - 1] < t->job.count) {
        cut[cuts] = cut[cuts - 1] +
                    16 * ps_rng_below(&t->rng, t->job.count / 32 + 2);
        if (cut[cuts] > t->job.count) {
            cut[cuts] = t->job.count;
        }
        cuts++;
    }
    cut[cuts] = t->job.count;
    first = (unsigned)ps_rng_below(&t->rng, cuts);
    for (unsigned i = 0; i < cuts; i++) {
        unsigned piece = (first + i) % cuts;

        if (cut[piece] % 16 == 0) {
            assert_int_equal(run_range(&t->job, cut[piece], cut[piece + 1]), 0);
        } else {
            /* Only the empty piece at an odd end. */
            assert_int_equal(cut[piece], cut[piece + 1]);
        }
    }
}

static void check_trial(struct trial *t)
{
    bool same = memcmp(t->dst, t->want, t->bytes) == 0;

    if (t->job.op == PS_JOB_SGD) {
        same = same && memcmp(t->state, t->want_state, t->bytes) == 0;
    }
    if (!same) {
        print_error("differs from the model: %s %s, %u sources, %" PRIu64
                    " elements; PS_TEST_SEED=%" PRIu64 "\n",
                    variant(), ps_dtype_name(t->job.dtype), t->job.src_count,
                    t->job.count, t->seed);
    }
    assert_true(same);
    assert_guards(t->dst, t->bytes);
    assert_guards(t->state, t->bytes);
    assert_priors_unchanged(t);
}

static void random_jobs(enum ps_job_op op, bool pieces)
{
    const uint64_t rounds = device == NULL ? ROUNDS : rounds_of(DEVICE_ROUNDS);

    for (uint64_t round = 1; round <= rounds; round++) {
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
            struct trial t;

            if (op == PS_JOB_SGD && !ps_dtype_is_float(dtypes[d])) {
                continue;
            }
            trial_init(&t, seed_of(round), dtypes[d], op);
            if (pieces) {
                run_in_pieces(&t);
            } else {
                assert_int_equal(run(&t.job), 0);
            }
            check_trial(&t);
            trial_fini(&t);
        }
    }
}

/* ------------------------------------------- least, greatest and product */

static const enum ps_dtype all_dtypes[] = {
    PS_DTYPE_FLOAT32, PS_DTYPE_FLOAT64, PS_DTYPE_FLOAT16,
    PS_DTYPE_UINT8,   PS_DTYPE_INT32,   PS_DTYPE_INT8,
    PS_DTYPE_INT64,   PS_DTYPE_BOOL,    PS_DTYPE_BFLOAT16,
};

static float float_of(uint64_t bits)
{
    return ps_float_of_bits((uint32_t)bits);
}

static double double_of(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Number that the bits encode; long double holds every number of every type. */
static long double number_of(enum ps_dtype dtype, uint64_t bits)
{
    switch (dtype) {
    case PS_DTYPE_FLOAT32:
        return float_of(bits);
    case PS_DTYPE_FLOAT64:
        return double_of(bits);
    case PS_DTYPE_FLOAT16:
        return ps_float_of_fp16((uint16_t)bits);
    case PS_DTYPE_BFLOAT16:
        return ps_float_of_bf16((uint16_t)bits);
    case PS_DTYPE_INT8:
        return (int8_t)bits;
    case PS_DTYPE_INT32:
        return (int32_t)bits;
    case PS_DTYPE_INT64:
        return (int64_t)bits;
    case PS_DTYPE_UINT8:
    case PS_DTYPE_BOOL:
        break;
    }
    return bits;
}

static uint64_t product_of(enum ps_dtype dtype, uint64_t a, uint64_t b)
{
    double x = double_of(a) * double_of(b);
    uint64_t bits;

    switch (dtype) {
    case PS_DTYPE_FLOAT32:
        return ps_float_bits(float_of(a) * float_of(b));
    case PS_DTYPE_FLOAT64:
        memcpy(&bits, &x, sizeof(bits));
        return bits;
    case PS_DTYPE_FLOAT16:
        return ps_fp16_of_float(ps_float_of_fp16((uint16_t)a) *
                                ps_float_of_fp16((uint16_t)b));
    case PS_DTYPE_BFLOAT16:
        return ps_bf16_of_float(ps_float_of_bf16((uint16_t)a) *
                                ps_float_of_bf16((uint16_t)b));
    case PS_DTYPE_BOOL:
        return a & b;
    case PS_DTYPE_INT8:
    case PS_DTYPE_UINT8:
    case PS_DTYPE_INT32:
    case PS_DTYPE_INT64:
        break;
    }
    return a * b; /* Whatever does not fit is cut off by the caller. */
}

static uint64_t fold_two(const struct ps_job *job, uint64_t a, uint64_t b)
{
    long double x = number_of(job->dtype, a);
    long double y = number_of(job->dtype, b);

    if (job->fold == PS_FOLD_PRODUCT) {
        return product_of(job->dtype, a, b);
    }
    if (isnan(x) || isnan(y)) {
        return isnan(x) ? a : b;
    }
    if (job->fold == PS_FOLD_MIN) {
        return y < x ? b : a;
    }
    return y > x ? b : a;
}

static uint64_t model_fold(const struct ps_job *job, size_t size, uint64_t at)
{
    uint64_t value[SOURCES_MAX];
    unsigned level[SOURCES_MAX];
    unsigned depth = 0;

    for (uint32_t i = 0; i <= job->src_count; i++) {
        if (i < job->src_count) {
            value[depth] = 0;
            memcpy(&value[depth], (const char *)job->src[i] + at * size, size);
            level[depth++] = job->level == NULL ? 0 : job->level[i];
        }
        while (depth > 1 &&
               (i == job->src_count || level[depth - 2] == level[depth - 1])) {
            uint64_t two = fold_two(job, value[depth - 2], value[depth - 1]);

            depth--;
            value[depth - 1] = 0;
            memcpy(&value[depth - 1], &two, size);
            level[depth - 1]++;
        }
    }
    return value[0];
}

/* Numbers of all sizes, equal ones, both zeros, infinities and, where the
 * result says which, NaNs of several payloads. */
static void fill_bits(struct trial *t, void *buffer)
{
    bool nans = t->job.fold != PS_FOLD_PRODUCT;

    for (uint64_t i = 0; i < t->job.count; i++) {
        uint64_t bits = ps_rng_next(&t->rng);

        if (ps_rng_chance(&t->rng, 300)) {
            bits = ps_rng_chance(&t->rng, 500) ? 0 : bits & 1;
        }
        if (t->job.dtype == PS_DTYPE_BOOL) {
            bits &= 1;
        } else if (ps_dtype_is_real(t->job.dtype)) {
            if (ps_rng_chance(&t->rng, 200)) { /* A zero of either sign. */
                bits = (bits & 1) << (8 * t->size - 1);
            }
            if (!nans && isnan(number_of(t->job.dtype, bits))) {
                bits = 1;
            }
        }
        memcpy((char *)buffer + i * t->size, &bits, t->size);
    }
}

/* Makes all NaNs alike where a device computes: their sign and payload are not
 * specified, and a GPU has others than the model. */
static void unify_nans(enum ps_dtype dtype, void *buffer, uint64_t count)
{
    const size_t size = ps_dtype_size(dtype);

    for (uint64_t i = 0; i < count && device != NULL && ps_dtype_is_real(dtype);
         i++) {
        uint64_t bits = 0;

        memcpy(&bits, (char *)buffer + i * size, size);
        if (isnan(number_of(dtype, bits))) {
            memset((char *)buffer + i * size, 0xff, size);
        }
    }
}

static void fold_once(uint64_t seed, enum ps_dtype dtype, enum ps_fold fold)
{
    struct trial t;

    trial_init(&t, seed, dtype, PS_JOB_SUM);
    t.job.fold = fold;
    t.job.divide_by = 0;
    for (uint32_t i = 0; i < t.job.src_count; i++) {
        fill_bits(&t, (void *)(uintptr_t)t.src[i]);
    }
    for (uint64_t i = 0; i < t.job.count; i++) {
        uint64_t bits = model_fold(&t.job, t.size, i);

        memcpy((char *)t.want + i * t.size, &bits, t.size);
    }
    if (seed % 2 == 0) {
        run_in_pieces(&t);
    } else {
        assert_int_equal(run(&t.job), 0);
    }
    if (fold == PS_FOLD_PRODUCT) {
        unify_nans(dtype, t.dst, t.job.count);
        unify_nans(dtype, t.want, t.job.count);
    }
    check_trial(&t);
    trial_fini(&t);
}

static void other_reductions_match_the_model(void **state)
{
    (void)state;
    for (uint64_t round = 1; round <= rounds_of(16); round++) {
        for (size_t d = 0; d < sizeof(all_dtypes) / sizeof(all_dtypes[0]);
             d++) {
            fold_once(seed_of(round), all_dtypes[d], PS_FOLD_MIN);
            fold_once(seed_of(round), all_dtypes[d], PS_FOLD_MAX);
            fold_once(seed_of(round), all_dtypes[d], PS_FOLD_PRODUCT);
        }
    }
}

/* -------------------------------------------------------------------- sums */

static void sums_match_the_model(void **state)
{
    (void)state;
    random_jobs(PS_JOB_SUM, false);
}

static void sums_do_not_depend_on_ranges(void **state)
{
    (void)state;
    random_jobs(PS_JOB_SUM, true);
}

static void steps_match_the_model(void **state)
{
    (void)state;
    random_jobs(PS_JOB_SGD, false);
}

static void steps_do_not_depend_on_ranges(void **state)
{
    (void)state;
    random_jobs(PS_JOB_SGD, true);
}

/* Sums of whole subtrees, summed, are the sum of their leaves: what lets one
 * agent send one tensor for several ranks. */
static void subtrees_add_up_to_their_leaves(void **state)
{
    float leaves[SOURCES_MAX][50];
    float parts[SOURCES_MAX][50];
    const void *src[SOURCES_MAX];
    const void *part_src[SOURCES_MAX];
    uint8_t levels[SOURCES_MAX];
    struct ps_rng rng;
    bool order_matters = false;

    ps_rng_init(&rng, 3);
    for (uint32_t n = 1; n <= SOURCES_MAX; n++) {
        float whole[50];
        float merged[50];
        struct ps_job job = {
            .dtype = PS_DTYPE_FLOAT32,
            .count = 50,
            .src_count = n,
            .src = src,
            .dst = whole,
        };
        uint32_t parts_count = 0;

        for (uint32_t i = 0; i < n; i++) {
            for (size_t e = 0; e < 50; e++) {
                leaves[i][e] = (float)tricky(&rng);
            }
            src[i] = leaves[i];
        }
        assert_int_equal(run(&job), 0);
        for (uint32_t at = 0; at < n;) {
            unsigned level = (unsigned)ps_rng_below(&rng, 4);

            while (at % (1u << level) != 0 || at + (1u << level) > n) {
                level--;
            }
            job.src = src + at;
            job.src_count = 1u << level;
            job.dst = parts[parts_count];
            assert_int_equal(run(&job), 0);
            part_src[parts_count] = parts[parts_count];
            levels[parts_count++] = (uint8_t)level;
            at += 1u << level;
        }
        job.src = part_src;
        job.level = levels;
        job.src_count = parts_count;
        job.dst = merged;
        assert_int_equal(run(&job), 0);
        assert_memory_equal(whole, merged, sizeof(whole));
        for (size_t e = 0; e < 50; e++) {
            float in_row = leaves[0][e];

            for (uint32_t i = 1; i < n; i++) {
                in_row += leaves[i][e];
            }
            order_matters = order_matters || in_row != whole[e];
        }
    }
    assert_true(order_matters); /* Else the numbers prove nothing. */
    (void)state;
}

/* Long enough for streaming stores, at odd addresses. */
static void long_results_have_the_same_bits(void **state)
{
    const uint64_t count = (5u << 20) / 4 + 13;
    struct trial t = {
        .size = 4,
        .job = {.dtype = PS_DTYPE_FLOAT32,
                .count = count,
                .sgd = {.lr = 0.3, .momentum = 0.9, .rescale = 1, .wd = 1e-4}},
    };

    (void)state;
    ps_rng_init(&t.rng, 5);
    t.bytes = count * 4;
    for (uint32_t i = 0; i < 3; i++) {
        void *src = buffer_new(&t);

        fill(&t, src);
        t.src[i] = src;
    }
    t.dst = buffer_new(&t);
    t.want = buffer_new(&t);
    t.state = buffer_new(&t);
    t.want_state = buffer_new(&t);
    t.job.src = t.src;
    t.job.dst = t.dst;
    t.job.weight = t.src[2];
    t.job.state = t.state;
    for (uint32_t n = 1; n <= 3; n++) {
        for (unsigned kind = 0; kind < 3; kind++) {
            t.job.src_count = n;
            t.job.op = kind == 2 ? PS_JOB_SGD : PS_JOB_SUM;
            t.job.divide_by = kind == 0 ? 1 : 3;
            fill(&t, t.state);
            memcpy(t.want_state, t.state, t.bytes);
            model_run(&t.job, t.want, t.want_state);
            assert_int_equal(run(&t.job), 0);
            check_trial(&t);
        }
    }
    trial_fini(&t);
}

/* ------------------------------------------------------ other optimizers */

static double between(struct ps_rng *r, double low, double high)
{
    return low + (high - low) * (double)ps_rng_below(r, 1u << 20) / (1u << 20);
}

static void fill_between(struct trial *t, void *buffer, double low, double high)
{
    for (uint64_t i = 0; i < t->job.count; i++) {
        double v = between(&t->rng, low, high);

        if (t->job.dtype == PS_DTYPE_FLOAT32) {
            ((float *)buffer)[i] = (float)v;
        } else {
            ((double *)buffer)[i] = v;
        }
    }
}

static struct ps_step random_step(struct ps_rng *r, enum ps_step_kind kind)
{
    bool keeps = kind == PS_STEP_SIGNUM || kind == PS_STEP_SIGNSGD;

    return (struct ps_step){
        .kind = kind,
        .lr = between(r, 0.001, 0.5),
        .wd = ps_rng_chance(r, 500) ? 0.01 : 0,
        .rescale = ps_rng_chance(r, 500) ? 1 : 1.0 / 3,
        .clip = ps_rng_chance(r, 500) ? 0.7 : 0,
        .beta1 = between(r, 0.1, 0.95),
        .beta2 = between(r, 0.8, 0.9999),
        .epsilon = 1e-7,
        .k = {keeps ? 0.999 : between(r, 0.5, 2), between(r, 0.1, 1),
              between(r, 0.1, 1)},
        .noise = {.key = ps_rng_next(r), .step = ps_rng_next(r)},
        .first_index = ps_rng_next(r) >> 8,
    };
}

static bool same(const struct trial *t, const void *a, const void *b,
                 uint64_t *nans)
{
    return t->job.dtype == PS_DTYPE_FLOAT32
               ? same_numbers_f32(a, b, t->job.count, nans)
               : same_numbers_f64(a, b, t->job.count, nans);
}

static void step_once(uint64_t seed, enum ps_dtype dtype,
                      enum ps_step_kind kind, bool pieces, uint64_t *nans)
{
    struct trial t;
    void *got[PS_STATES_MAX];
    void *want[PS_STATES_MAX];
    unsigned states = ps_step_states(kind);

    /* Sources, a destination and what to expect come from the sum. */
    trial_init(&t, seed, dtype, PS_JOB_SUM);
    t.job.op = PS_JOB_STEP;
    t.job.step = random_step(&t.rng, kind);
    t.job.weight = t.dst == t.src[0] || ps_rng_chance(&t.rng, 500)
                       ? buffer_new(&t)
                       : t.dst;
    fill_between(&t, (void *)(uintptr_t)t.job.weight, -2, 2);
    if (ps_rng_chance(&t.rng, 700)) {
        for (uint32_t i = 0; i < t.job.src_count; i++) {
            fill_between(&t, (void *)(uintptr_t)t.src[i], -1, 1);
        }
    }
    for (unsigned i = 0; i < PS_STATES_MAX; i++) {
        got[i] = buffer_new(&t);
        want[i] = buffer_new(&t);
        fill_between(&t, got[i], i == 1 ? 0 : 0.5, 1);
        memcpy(want[i], got[i], t.bytes);
        t.job.states[i] = i < states ? got[i] : NULL;
    }
    if (dtype == PS_DTYPE_FLOAT32) {
        model_steps_f32(&t.job, t.want, want[0], want[1], want[2]);
    } else {
        model_steps_f64(&t.job, t.want, want[0], want[1], want[2]);
    }
    for (unsigned i = 0; i < states; i++) {
        if (ps_rng_chance(&t.rng, 500)) {
            set_prior(&t, i, got[i]);
        }
    }
    if (pieces) {
        run_in_pieces(&t);
    } else {
        assert_int_equal(run(&t.job), 0);
    }
    bool good = same(&t, t.dst, t.want, nans);
    for (unsigned i = 0; i < states; i++) {
        good = good && same(&t, got[i], want[i], nans);
        assert_guards(got[i], t.bytes);
    }
    assert_priors_unchanged(&t);
    if (!good) {
        fail_msg("kind %d differs from the model: %s %s, %" PRIu64
                 " elements; PS_TEST_SEED=%" PRIu64,
                 (int)kind, variant(), ps_dtype_name(dtype), t.job.count, seed);
    }
    assert_guards(t.dst, t.bytes);
    trial_fini(&t);
}

static void optimizers_match_the_model(void **state)
{
    uint64_t nans = 0;

    (void)state;
    for (unsigned kind = 0; kind < PS_STEP_KINDS; kind++) {
        for (uint64_t round = 1; round <= rounds_of(12); round++) {
            step_once(seed_of(round), PS_DTYPE_FLOAT32, (enum ps_step_kind)kind,
                      round % 2 == 0, &nans);
            step_once(seed_of(round), PS_DTYPE_FLOAT64, (enum ps_step_kind)kind,
                      round % 2 != 0, &nans);
        }
        if (kind != PS_STEP_RMSPROP_CENTERED) {
            assert_int_equal(nans, 0); /* Else the numbers prove nothing. */
        }
        nans = 0;
    }
}

/* Noise belongs to the index in the whole array, by rows as well, whatever part
 * of the array a job has. */
static void noise_does_not_depend_on_the_parts(void **state)
{
    enum { WIDTH = 3, ROWS = 700, COUNT = WIDTH * ROWS, CUT = 333 * WIDTH };
    static float w[COUNT], g[COUNT], whole[COUNT], part[COUNT], row[COUNT];
    static float zeros[WIDTH];
    static uint32_t numbers[ROWS];
    const void *src[1] = {g};
    const struct ps_step step = {.kind = PS_STEP_SGLD,
                                 .lr = 0.005,
                                 .rescale = 1,
                                 .k = {0.1},
                                 .noise = {.key = 7, .step = 3},
                                 .first_index = 1000001};
    const struct ps_row_source source = {
        .numbers = numbers, .count = ROWS, .data = g};
    const struct ps_row_job rows = {.row_width = WIDTH,
                                    .count = ROWS,
                                    .numbers = numbers,
                                    .all_rows = ROWS,
                                    .leaf_count = 1,
                                    .source_count = 1,
                                    .source = &source,
                                    .zeros = zeros};
    struct ps_job job = {.op = PS_JOB_STEP,
                         .dtype = PS_DTYPE_FLOAT32,
                         .count = COUNT,
                         .src = src,
                         .src_count = 1,
                         .weight = w,
                         .dst = whole,
                         .step = step};
    struct ps_rng r;

    (void)state;
    ps_rng_init(&r, seed_of(1));
    for (uint32_t i = 0; i < COUNT; i++) {
        w[i] = (float)between(&r, -1, 1);
        g[i] = (float)between(&r, -1, 1);
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        numbers[i] = i;
    }
    assert_int_equal(run(&job), 0);

    job.dst = part;
    job.count = CUT;
    assert_int_equal(run(&job), 0);
    src[0] = g + CUT;
    job.weight = w + CUT;
    job.dst = part + CUT;
    job.count = COUNT - CUT;
    job.step.first_index += CUT;
    assert_int_equal(run(&job), 0);
    assert_memory_equal(part, whole, sizeof(whole));

    memcpy(row, w, sizeof(row));
    job.rows = &rows;
    job.count = COUNT;
    job.weight = job.dst = row;
    job.step = step;
    assert_int_equal(run(&job), 0);
    assert_memory_equal(row, whole, sizeof(whole));
}

static void step_without_states_or_floats_is_refused(void **state)
{
    float w[1] = {1};
    float g[1] = {1};
    float s[3] = {0};
    float out[1] = {7};
    const void *src[1] = {g};
    struct ps_job job = {.op = PS_JOB_STEP,
                         .count = 1,
                         .src_count = 1,
                         .src = src,
                         .weight = w,
                         .dst = out,
                         .step = {.kind = PS_STEP_ADAM, .rescale = 1}};

    (void)state;
    job.dtype = PS_DTYPE_FLOAT32;
    job.states[0] = &s[0];
    assert_int_equal(run(&job), PS_E_INVAL);
    job.states[1] = &s[1];
    assert_int_equal(run(&job), 0);
    out[0] = 7;
    job.weight = NULL;
    assert_int_equal(run(&job), PS_E_INVAL);
    job.weight = w;
    job.dtype = PS_DTYPE_INT32;
    assert_int_equal(run(&job), PS_E_INVAL);
    job.dtype = PS_DTYPE_FLOAT32;
    job.step.kind = (enum ps_step_kind)PS_STEP_KINDS;
    assert_int_equal(run(&job), PS_E_INVAL);
    assert_true(out[0] == 7);
}

/* The square sums of the stored gradient and of the weights, computed whole and
 * in ranges, equal those of the numbers themselves. */
static void square_sums_of_a_stored_gradient_are_exact(void **state)
{
    enum { COUNT = 9000, CUT = 4096 };
    static uint16_t given[2][COUNT], out[COUNT];
    static float grad[COUNT], along[COUNT], w[COUNT], kept[COUNT];
    const void *src[] = {given[0], given[1]};
    struct ps_rng r;

    (void)state;
    ps_rng_init(&r, seed_of(1));
    for (unsigned i = 0; i < COUNT; i++) {
        for (unsigned k = 0; k < 2; k++) {
            given[k][i] = ps_fp16_of_float((float)between(&r, -2, 2));
        }
        w[i] = kept[i] = (float)between(&r, -2, 2);
        along[i] = ps_float_of_fp16(given[0][i]) +
                   ps_float_of_fp16(given[1][i]);
    }
    struct ps_square_sum want[2] = {0};
    struct ps_square_bins bins[2] = {0};
    struct ps_square_sum got[2] = {0};
    struct ps_job job = {.op = PS_JOB_STEP,
                         .dtype = PS_DTYPE_FLOAT32,
                         .storage_dtype = PS_DTYPE_FLOAT16,
                         .direction_only = true,
                         .count = COUNT,
                         .src = src,
                         .src_count = 2,
                         .dst = grad,
                         .master = w,
                         .square_sum = &got[0],
                         .weight_square_sum = &got[1],
                         .step = {.kind = PS_STEP_GRADIENT}};

    ps_square_sum_add_floats(&want[0], &bins[0], along, COUNT);
    ps_square_sum_add_floats(&want[1], &bins[1], kept, COUNT);
    for (unsigned i = 0; i < 2; i++) {
        ps_square_sum_flush_bins(&want[i], &bins[i]);
        ps_square_sum_normalize(&want[i]);
    }
    for (unsigned pieces = 1; pieces <= 2; pieces++) {
        memset(got, 0, sizeof(got));
        if (pieces == 2) {
            assert_int_equal(run_range(&job, CUT, COUNT), 0);
        }
        assert_int_equal(run_range(&job, 0, pieces == 2 ? CUT : COUNT), 0);
        ps_square_sum_normalize(&got[0]);
        ps_square_sum_normalize(&got[1]);
        assert_memory_equal(got, want, sizeof(want));
        assert_memory_equal(grad, along, sizeof(grad));
        assert_memory_equal(w, kept, sizeof(w));
    }
    /* And the weights along it, of a source that is wide. */
    src[0] = grad;
    job.src_count = 1;
    job.src_is_float32 = true;
    job.direction_only = false;
    job.dst = out;
    job.step = (struct ps_step){.kind = PS_STEP_ALONG, .lr = 0.5};
    assert_int_equal(run(&job), PS_E_INVAL); /* These are none. */
    job.square_sum = job.weight_square_sum = NULL;
    assert_int_equal(run(&job), 0);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_true(w[i] == kept[i] - 0.5F * along[i]);
        assert_int_equal(out[i], ps_fp16_of_float(w[i]));
    }
}

/* A step of weights of 16 bits is that of their masters, rounded. */
static void steps_of_half_weights_match_their_masters(void **state)
{
    static const enum ps_dtype halves[] = {PS_DTYPE_FLOAT16, PS_DTYPE_BFLOAT16};
    enum { COUNT = 5000 };
    static uint16_t given[3][COUNT], out[COUNT];
    static float wide[3][COUNT], master[COUNT], want[COUNT];
    static float s[2][COUNT], t[2][COUNT];
    struct ps_rng r;

    (void)state;
    for (unsigned h = 0; h < 2; h++) {
        const void *src[] = {given[0], given[1], given[2]};
        const void *wide_src[] = {wide[0], wide[1], wide[2]};

        ps_rng_init(&r, seed_of(h));
        for (unsigned i = 0; i < COUNT; i++) {
            for (unsigned k = 0; k < 3; k++) {
                const float x = (float)between(&r, -2, 2);

                given[k][i] = h == 0 ? ps_fp16_of_float(x)
                                     : ps_bf16_of_float(x);
                wide[k][i] = h == 0 ? ps_float_of_fp16(given[k][i])
                                    : ps_float_of_bf16(given[k][i]);
            }
            master[i] = want[i] = (float)between(&r, -2, 2);
            s[0][i] = t[0][i] = (float)between(&r, -1, 1);
            s[1][i] = t[1][i] = (float)between(&r, 0, 1);
        }
        struct ps_job job = {.op = PS_JOB_STEP,
                             .dtype = PS_DTYPE_FLOAT32,
                             .storage_dtype = halves[h],
                             .count = COUNT,
                             .src = src,
                             .src_count = 3,
                             .divide_by = 3,
                             .dst = out,
                             .master = master,
                             .states = {s[0], s[1]},
                             .step = {.kind = PS_STEP_ADAM,
                                      .lr = 0.1,
                                      .rescale = 1,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .epsilon = 1e-8}};
        struct ps_job same = job;

        same.storage_dtype = PS_DTYPE_FLOAT32;
        same.src = wide_src;
        same.dst = want;
        same.weight = want;
        same.states[0] = t[0];
        same.states[1] = t[1];
        assert_int_equal(run_range(&job, 0, 1600), 0);
        assert_int_equal(run_range(&job, 1600, COUNT), 0);
        assert_int_equal(run(&same), 0);
        assert_memory_equal(master, want, sizeof(master));
        assert_memory_equal(s, t, sizeof(s));
        for (unsigned i = 0; i < COUNT; i++) {
            assert_int_equal(out[i], h == 0 ? ps_fp16_of_float(want[i])
                                            : ps_bf16_of_float(want[i]));
        }
        /* The next step, out of place, leaves what it reads as it was. */
        static float next[COUNT], u[2][COUNT];

        job.prior = (struct ps_job_prior){.master = master,
                                          .states = {s[0], s[1]}};
        job.master = next;
        job.states[0] = u[0];
        job.states[1] = u[1];
        assert_int_equal(run(&job), 0);
        assert_memory_equal(master, want, sizeof(master));
        assert_memory_equal(s, t, sizeof(s));
        assert_int_equal(run(&same), 0);
        assert_memory_equal(next, want, sizeof(next));
        assert_memory_equal(u, t, sizeof(u));
        job.prior = (struct ps_job_prior){0};
        job.master = NULL;
        assert_int_equal(run(&job), PS_E_INVAL);
        job.master = master;
        job.dtype = PS_DTYPE_FLOAT64;
        assert_int_equal(run(&job), PS_E_INVAL);
        job.dtype = PS_DTYPE_FLOAT32;
        job.op = PS_JOB_SUM;
        assert_int_equal(run(&job), PS_E_INVAL);
    }
}

/* ------------------------------------------------------------------ codecs */

static const struct ps_codec codecs[] = {
    {.kind = PS_CODEC_NONE, .feedback = true},
    {.kind = PS_CODEC_2BIT, .threshold = 0.5F, .feedback = true},
    {.kind = PS_CODEC_1BIT, .threshold = 0.1F, .feedback = true},
    {.kind = PS_CODEC_FP16, .feedback = true},
    {.kind = PS_CODEC_BF16},
    {.kind = PS_CODEC_ONEBIT, .feedback = true},
    {.kind = PS_CODEC_ONEBIT, .scaling = true, .momentum = 0.9F},
    {.kind = PS_CODEC_TOPK, .k = 0.1, .feedback = true},
    {.kind = PS_CODEC_TOPK, .k = 3, .momentum = 0.5F, .feedback = true},
    {.kind = PS_CODEC_RANDOMK, .k = 0.3, .seed = 3, .feedback = true},
    {.kind = PS_CODEC_DITHER, .levels = 1, .seed = 4, .feedback = true},
    {.kind = PS_CODEC_DITHER, .levels = 5, .seed = 5, .l2 = true},
    {.kind = PS_CODEC_DITHER, .levels = 127, .seed = 6, .feedback = true},
    {.kind = PS_CODEC_NATURAL, .levels = 4, .seed = 7, .l2 = true},
    {.kind = PS_CODEC_NATURAL, .levels = 31, .seed = 8, .feedback = true},
};
#define CODECS      (sizeof(codecs) / sizeof(codecs[0]))
#define CODEC_COUNT 5003u

/* Arrays that a job that encodes writes. */
struct codec_outputs {
    float residual[3 * CODEC_COUNT];
    float moment[3 * CODEC_COUNT];
    float decoded[CODEC_COUNT];
    uint8_t code[3 * 4 * CODEC_COUNT];
};

static void fill_outputs(struct codec_outputs *o, struct ps_rng *r)
{
    memset(o, 0xa5, sizeof(*o));
    for (unsigned i = 0; i < 3 * CODEC_COUNT; i++) {
        o->residual[i] = (float)between(r, -0.3, 0.3);
        o->moment[i] = (float)between(r, -0.1, 0.1);
    }
}

/* Numbers around the thresholds, zeros, equal magnitudes, and one infinity
 * among the vectors of `turn` 3. */
static void fill_gradient(float *g, uint32_t count, unsigned turn,
                          struct ps_rng *r)
{
    for (uint32_t i = 0; i < count; i++) {
        g[i] = ps_rng_chance(r, 100)   ? 0
               : ps_rng_chance(r, 200) ? 0.25F
                                       : (float)between(r, -1, 1);
    }
    if (turn == 3 && count > 7) {
        g[7] = INFINITY;
    }
}

/* The portable loops are the model: unit tests compare them with the formulas.
 */
static void run_model(const struct ps_job *job)
{
    const char *now = ps_kernel_variant();

    assert_int_equal(ps_kernel_force("portable"), 0);
    assert_int_equal(ps_kernel_run(job), 0);
    assert_int_equal(ps_kernel_force(now), 0);
}

static void set_outputs(struct ps_job *job, struct codec_outputs *o)
{
    job->dst = o->code;
    job->residual = o->residual;
    job->moment = job->codec.momentum > 0 ? o->moment : NULL;
    job->decoded = job->op == PS_JOB_ENCODE ? o->decoded : NULL;
}

static void codecs_match_the_portable_loops(void **state)
{
    static const uint32_t counts[] = {1, 15, 33, 1024, CODEC_COUNT};
    static float g[3][CODEC_COUNT];
    static struct codec_outputs start, want, got;
    const void *src[] = {g[0], g[1], g[2]};
    struct ps_rng r;

    (void)state;
    ps_rng_init(&r, seed_of(1));
    for (unsigned turn = 0; turn < 4 * CODECS; turn++) {
        const uint32_t count = counts[ps_rng_below(&r, 5)];
        const bool is_each = turn % 4 == 1;
        struct ps_job job = {.op = is_each ? PS_JOB_ENCODE_EACH : PS_JOB_ENCODE,
                             .dtype = PS_DTYPE_FLOAT32,
                             .count = count,
                             .src_count = 1 + turn % 3,
                             .src = src,
                             .divide_by = is_each ? 1 : turn % 3 + 1,
                             .codec = codecs[turn / 4],
                             .rng_stream = ps_rng_next(&r)};

        for (unsigned i = 0; i < 3; i++) {
            fill_gradient(g[i], count, turn % 4, &r);
            src[i] = is_each && i == 1 ? NULL : g[i];
        }
        fill_outputs(&start, &r);
        want = start;
        got = start;
        set_outputs(&job, &want);
        run_model(&job);
        set_outputs(&job, &got);
        assert_int_equal(run(&job), 0);
        /* Dithering with a norm that is not finite decodes to NaN. */
        unify_nans(PS_DTYPE_FLOAT32, got.decoded, count);
        unify_nans(PS_DTYPE_FLOAT32, want.decoded, count);
        if (memcmp(&got, &want, sizeof(want)) != 0) {
            fail_msg("codec %u differs: %s, turn %u, %u elements",
                     (unsigned)job.codec.kind, variant(), turn, count);
        }
    }
}

/* Sums of encoded sources, whole and in ranges. */
static void encoded_sources_match_the_portable_loops(void **state)
{
    static float g[CODEC_COUNT], want[CODEC_COUNT], got[CODEC_COUNT];
    static struct codec_outputs encoded[3];
    const void *src[] = {encoded[0].code, encoded[1].code, encoded[2].code};
    struct ps_rng r;

    (void)state;
    ps_rng_init(&r, seed_of(2));
    for (unsigned turn = 0; turn < 2 * CODECS; turn++) {
        struct ps_job job = {.op = PS_JOB_ENCODE,
                             .dtype = PS_DTYPE_FLOAT32,
                             .count = CODEC_COUNT,
                             .src_count = 1,
                             .codec = codecs[turn / 2],
                             .rng_stream = ps_rng_next(&r)};

        for (unsigned i = 0; i < 3; i++) {
            const void *one[] = {g};

            fill_gradient(g, CODEC_COUNT, 0, &r);
            fill_outputs(&encoded[i], &r);
            job.src = one;
            set_outputs(&job, &encoded[i]);
            run_model(&job);
        }
        job = (struct ps_job){.dtype = PS_DTYPE_FLOAT32,
                              .count = CODEC_COUNT,
                              .src_count = turn % 2 == 0 ? 3 : 1,
                              .src = src,
                              .src_codec = job.codec,
                              .src_rng_stream = job.rng_stream};
        job.dst = want;
        run_model(&job);
        job.dst = got;
        assert_int_equal(run(&job), 0);
        assert_memory_equal(got, want, sizeof(want));
        memset(got, 0, sizeof(got));
        assert_int_equal(run_range(&job, 1616, CODEC_COUNT), 0);
        assert_int_equal(run_range(&job, 0, 1616), 0);
        assert_memory_equal(got, want, sizeof(want));
    }
}

/* A sum of a type of 8 or 16 bits, divided in half of the turns, against the
 * portable loops, which unit tests compare with the formulas. */
static void sum_small_type(enum ps_dtype dtype, uint64_t seed)
{
    struct trial t;

    trial_init(&t, seed, dtype, PS_JOB_SUM);
    t.job.divide_by = seed % 2 == 0 ? 1 + seed : 0;
    for (uint32_t i = 0; i < t.job.src_count; i++) {
        uint8_t *bytes = (uint8_t *)(uintptr_t)t.src[i];

        for (uint64_t e = 0; e < t.job.count; e++) {
            const uint16_t half = ps_fp16_of_float((float)tricky(&t.rng));
            const uint64_t bits = dtype == PS_DTYPE_FLOAT16 ? half
                                  : dtype == PS_DTYPE_BFLOAT16
                                      ? ps_bf16_of_float((float)tricky(&t.rng))
                                  : dtype == PS_DTYPE_BOOL
                                      ? ps_rng_below(&t.rng, 2)
                                      : ps_rng_below(&t.rng, 256);

            memcpy(bytes + e * t.size, &bits, t.size);
        }
    }
    t.job.dst = t.want;
    run_model(&t.job);
    t.job.dst = t.dst;
    run_in_pieces(&t);
    unify_nans(dtype, t.dst, t.job.count);
    unify_nans(dtype, t.want, t.job.count);
    check_trial(&t);
    trial_fini(&t);
}

static void sums_of_small_types_match_the_portable_loops(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof(all_dtypes) / sizeof(all_dtypes[0]); d++) {
        for (uint64_t round = 1; round <= 8; round++) {
            if (ps_dtype_size(all_dtypes[d]) < 4) {
                sum_small_type(all_dtypes[d], seed_of(round));
            }
        }
    }
}

/* More sources than the arguments of a kernel have room for. */
static void very_many_sources_match_the_model(void **state)
{
    enum { SOURCES = 200, COUNT = 300 };
    static double leaves[SOURCES][COUNT], want[COUNT], got[COUNT];
    const void *src[SOURCES];
    struct ps_rng r;
    struct ps_job job = {.dtype = PS_DTYPE_FLOAT64,
                         .count = COUNT,
                         .src_count = SOURCES,
                         .src = src};

    (void)state;
    ps_rng_init(&r, seed_of(3));
    for (unsigned i = 0; i < SOURCES; i++) {
        src[i] = leaves[i];
        for (unsigned e = 0; e < COUNT; e++) {
            leaves[i][e] = tricky(&r) * tricky(&r);
        }
    }
    job.dst = want;
    run_model(&job);
    job.dst = got;
    assert_int_equal(run(&job), 0);
    assert_memory_equal(got, want, sizeof(want));
}

/* All of the above were jobs of the device, apart from those that are invalid
 * and the copies and rows that belong to the CPU. */
static void the_device_has_computed(void **state)
{
    struct ps_device_stats stats;

    (void)state;
    if (device == NULL) {
        return;
    }
    ps_device_stats(device, &stats);
    print_message("# device jobs computed %" PRIu64 " refused %" PRIu64 "\n",
                  stats.computed, stats.refused);
    assert_true(stats.computed > 3 * stats.refused);
}

/* Opens the device of the module. */
static int open_device(const char *module)
{
    char why[256];
    int rc = ps_device_open(module, 0, &device, why, sizeof(why));

    if (rc != 0) {
        printf("1..0 # SKIP %s\n", why);
        return rc;
    }
    ps_device_describe(device, why, sizeof(why));
    printf("# %s\n", why);
    return 0;
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_match_the_model),
        cmocka_unit_test(sums_do_not_depend_on_ranges),
        cmocka_unit_test(steps_match_the_model),
        cmocka_unit_test(steps_do_not_depend_on_ranges),
        cmocka_unit_test(subtrees_add_up_to_their_leaves),
        cmocka_unit_test(long_results_have_the_same_bits),
        cmocka_unit_test(other_reductions_match_the_model),
        cmocka_unit_test(optimizers_match_the_model),
        cmocka_unit_test(noise_does_not_depend_on_the_parts),
        cmocka_unit_test(step_without_states_or_floats_is_refused),
        cmocka_unit_test(square_sums_of_a_stored_gradient_are_exact),
        cmocka_unit_test(steps_of_half_weights_match_their_masters),
        cmocka_unit_test(codecs_match_the_portable_loops),
        cmocka_unit_test(encoded_sources_match_the_portable_loops),
        cmocka_unit_test(sums_of_small_types_match_the_portable_loops),
        cmocka_unit_test(very_many_sources_match_the_model),
        cmocka_unit_test(the_device_has_computed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* kernel_suite VARIANT: of the CPU. kernel_suite cuda MODULE: the GPU, if there
 * is one; kernel_suite emulated MODULE: the one of the emulated driver, which
 * must be there. A further argument is a pattern: only tests of such names. */
int main(int argc, char **argv)
{
    int rc = PS_E_INVAL;

    if (argc >= 3 && open_device(argv[2]) != 0) {
        return strcmp(argv[1], "emulated") == 0 ? 1 : 0;
    }
    if (argc == 4) {
        cmocka_set_test_filter(argv[3]);
    }
    if (argc == 2) {
        rc = ps_kernel_force(argv[1]);
    }
    if (rc == PS_E_UNSUPPORTED) {
        printf("1..0 # SKIP this processor has no %s\n", argv[1]);
        return 0;
    }
    if (rc != 0 && device == NULL) {
        fprintf(stderr, "usage: kernel_suite VARIANT [MODULE [PATTERN]]\n");
        return 2;
    }
    rc = run_all();
    ps_device_close(device);
    return rc;
}
