/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on tensors: the interface between the daemons and the compute
 * code, which is that of this folder or a module loaded at run time. It has no
 * types of the daemons, only buffers, lengths and numbers.
 *
 * A job adds its sources in the order of a fixed tree, scales the sum, and
 * either stores it or feeds it to an optimizer, all in one pass over blocks
 * that stay in cache. The tree makes the bits a function of the inputs alone:
 * each source has the level of the subtree that it is the sum of (0: a leaf),
 * and they are combined like the digits of a binary counter:
 *
 *     for each source in order: push it; while the two topmost have the same
 *     level, replace them by their sum, one level higher
 *     at the end: while more than one is left, replace the two topmost, left
 *     operand below, by their sum
 *
 * so 6 leaves give ((0+1)+(2+3))+(4+5), and 7 give
 * ((0+1)+(2+3))+((4+5)+6). */
#pragma once

#include "base/buf.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/square_sum.h"
#include "kernel/codec.h"
#include "kernel/normal.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ps_job_op {
    PS_JOB_SUM,  /* dst = sum / divide_by */
    PS_JOB_SGD,  /* dst = weight after one step with the gradient sum */
    PS_JOB_STEP, /* The same with the optimizer in `step`. */
    /* dst = encoded sum; see codec.h. Not divisible into ranges. */
    PS_JOB_ENCODE,
    /* Encodes each source alone, with its part of residual and moment, which
     * have `count` elements for each source; dst gets the codes one after the
     * other. A source that is NULL has no code, and its part stays. `decoded`
     * is NULL. */
    PS_JOB_ENCODE_EACH,
};

/* Operation that joins two sources; "sum" stands for all of them in other
 * comments. Minimum and maximum return one of the two bit patterns: the left
 * one if they are equal (as are zeros of both signs), and a NaN in preference
 * to a number. Products round or wrap as sums do. bool: or, and, or, and. */
enum ps_fold { PS_FOLD_SUM, PS_FOLD_MIN, PS_FOLD_MAX, PS_FOLD_PRODUCT };
#define PS_FOLDS 4u

/* SGD as in MXNet's KVStore. With s rescale, c clip, g the sum (after
 * divide_by): g' = clamp(s * g, -c, c) when c > 0, else s * g.
 * momentum = 0: w' = (1 - lr*wd) * w - lr*g'
 * else: m' = momentum*m - lr*wd*w - lr*g';  w' = w + m'
 * Arithmetic in the element type; every product and sum rounds by itself. */
struct ps_sgd {
    double lr;
    double momentum;
    double wd;
    double rescale;
    double clip; /* <= 0: no clipping. */
};

/* One step of an element-wise optimizer. With w the weight, s rescale,
 * c clip, g the sum (after divide_by):
 *     g' = clamp(s*g, -c, c), G = clamp(s*g + wd*w, -c, c)
 * without the clamp when c <= 0. Numbers that change from step to step have
 * their values of this step. Arithmetic as for SGD; 1 - beta is rounded once.
 * x, y, z are the states. */
enum ps_step_kind {
    PS_STEP_KEEP, /* w' = w */
    /* x' = beta1*x - lr*(g' + wd*w);  w' = w + beta1*x' - lr*(g' + wd*w) */
    PS_STEP_NAG,
    /* The same, with the decay of x by the new weight, as MXNet has it:
     * m = beta1*x;  w' = w - m + (beta1+1)*(m - lr*(g' + wd*w))
     * x' = m - lr*(g' + wd*w') */
    PS_STEP_NAG_LATE,
    /* x' = beta1*x + (1-beta1)*G;  y' = beta2*y + (1-beta2)*G*G
     * w' = w - lr*x'/(sqrt(y') + epsilon) */
    PS_STEP_ADAM,
    /* x, y as of Adam with g';  w' = w - lr*(x'/(sqrt(y')+epsilon) + wd*w) */
    PS_STEP_ADAMW,
    /* x' = x + g'*g';  w' = w - lr*(g'/sqrt(x' + epsilon) + wd*w) */
    PS_STEP_ADAGRAD,
    /* x' = beta1*x + (1-beta1)*G*G
     * w' = clamp(w - lr*G/sqrt(x' + epsilon), -k[0], k[0]) */
    PS_STEP_RMSPROP,
    /* x as of RMSProp;  y' = beta1*y + (1-beta1)*G
     * z' = beta2*z - lr*G/sqrt(x' - y'*y' + epsilon)
     * w' = clamp(w + z', -k[0], k[0]) */
    PS_STEP_RMSPROP_CENTERED,
    /* x' = beta1*x + (1-beta1)*g'*g'
     * d = sqrt(y + epsilon)/sqrt(x' + epsilon)*g'
     * y' = beta1*y + (1-beta1)*d*d;  w' = w - (d + wd*w) */
    PS_STEP_ADADELTA,
    /* x' = x + g' - (sqrt(y + g'*g') - sqrt(y))*w/lr;  y' = y + g'*g'
     * w' = |x'| <= k[0] ? 0
     *    : (sign(x')*k[0] - x')/((k[1] + sqrt(y'))/lr + wd) */
    PS_STEP_FTRL,
    /* x as of Adam;  y' = max(beta2*y, |G|)
     * w' = y' = 0 ? w : w - lr*x'/y' */
    PS_STEP_ADAMAX,
    /* x, y as of Adam
     * w' = w - lr*(k[0]*G + k[1]*x')/(sqrt(y'/k[2]) + epsilon) */
    PS_STEP_NADAM,
    /* y' = beta2*y + (1-beta2)*G*G;  z' = k[0]*(sqrt(y'/k[1]) + epsilon)
     * x' = beta1*x + (1-beta1)*G - (z' - beta1*z)*w;  w' = -x'/z' */
    PS_STEP_FTML,
    /* x' = beta1*x - (1-beta1)*(g' + wd*w);  w' = k[0]*w + lr*sign(x') */
    PS_STEP_SIGNUM,
    /* w' = k[0]*w - lr*sign(g) */
    PS_STEP_SIGNSGD,
    /* x' = beta1*x - lr*(g' + wd*w + k[0]*g'*g'*(w - y));  y' = w
     * w' = w + x' */
    PS_STEP_DCASGD,
    /* w' = x' = w + s*g */
    PS_STEP_TEST,
    /* x' = x + k[0];  w' = w - lr*g'/sqrt(x' + epsilon)
     * A job by rows sets k[0] itself, to the mean of g'*g' over the row. */
    PS_STEP_GROUP_ADAGRAD,
    /* w' = w - lr*(g' + wd*w) + k[0]*n, where n is the normal number of the
     * element (normal.h) */
    PS_STEP_SGLD,
    /* Stages of steps with norms of whole arrays, see direction_only:
     * d = g */
    PS_STEP_GRADIENT,
    /* x, y as of Adam with g'
     * d = (x'/k[0])/(sqrt(y'/k[1]) + epsilon) + wd*w */
    PS_STEP_LAMB,
    /* w' = w - lr*g */
    PS_STEP_ALONG,
};
#define PS_STEP_KINDS 22u
#define PS_STATES_MAX 3u

struct ps_step {
    enum ps_step_kind kind;
    double lr;
    double wd;
    double rescale;
    double clip; /* <= 0: no clipping. */
    double beta1;
    double beta2;
    double epsilon;
    double k[3];
    struct ps_normal_stream noise;
    uint64_t first_index; /* Index in `noise` of the job's first element. */
};

/* Rows of one source. */
struct ps_row_source {
    const uint32_t *numbers; /* Row numbers, ascending. */
    uint32_t count;
    uint32_t leaf;    /* Leaf of the tree; ascending over the sources. */
    const void *data; /* The rows, contiguous. */
};

/* A job by rows: for each row, the sources that have it are added in the order
 * of a tree over all leaves, where an empty half is left out and the other half
 * stands for the whole. */
struct ps_row_job {
    uint32_t row_width; /* Elements of one row. */
    uint32_t count;
    const uint32_t *numbers; /* Union of all sources' row numbers, ascending. */
    /* 0: only rows in `numbers` are computed. Else the array has this many
     * rows, and rows without source are computed as if their gradient were
     * zero. */
    uint32_t all_rows;
    bool compact; /* dst has only the rows of `numbers`, contiguous. */
    uint32_t leaf_count;
    uint32_t source_count; /* At most PS_ROW_SOURCES_MAX. */
    const struct ps_row_source *source;
    const void *zeros; /* A row of zeros; needed if all_rows is not 0. */
};
#define PS_ROW_SOURCES_MAX 4096u

/* Sets `level` to the levels of leaves `place`, ascending, in a tree over
 * `places` leaves of which all others are empty. */
void ps_row_levels(const uint32_t *place, uint32_t count, uint32_t places,
                   uint8_t *level);

/* Arrays of a job that the next job on the same parameters uses again. */
enum ps_kept {
    PS_KEPT_WEIGHT, /* `master`, or `weight` without one. */
    PS_KEPT_STATE_0,
    PS_KEPT_STATE_1,
    PS_KEPT_STATE_2,
    PS_KEPT_RESIDUAL,
    PS_KEPT_RESULT, /* `dst`, if it has new weights. */
};
#define PS_KEPT_COUNT 6u

/* Arrays before the job, for each that it does not update in place; NULL: it
 * does. No overlap. Not for jobs by rows. */
struct ps_job_prior {
    const float *residual;
    const float *moment;
    const void *states[PS_STATES_MAX]; /* [0] also of the momentum of SGD. */
    const void *master;
};

struct ps_job {
    enum ps_job_op op;
    enum ps_dtype dtype;
    enum ps_fold fold;  /* By rows: PS_FOLD_SUM. */
    uint64_t count;     /* Elements of every buffer. */
    uint32_t src_count; /* At least 1; a PS_JOB_SUM with 1 is a copy. */
    const void *const *src;
    const uint8_t *level; /* Level of each source; NULL: all are leaves. */
    /* 0 or 1: no division. Integers are truncated. Sums only. */
    uint64_t divide_by;
    void *dst;          /* May be src[0] or weight; no other overlap. */
    const void *weight; /* SGD, step: old weights. */
    void *state;        /* SGD with momentum: m, updated. */
    struct ps_sgd sgd;
    /* Step: optimizer state, updated; no overlap. */
    void *states[PS_STATES_MAX];
    struct ps_step step;
    /* SGD and steps that compute in float32 on weights stored in a 16-bit type:
     * storage_dtype is the type of src and dst, `master` has the float32
     * weights, updated, and dst gets them rounded. Else PS_DTYPE_FLOAT32. */
    enum ps_dtype storage_dtype;
    void *master;
    /* Step: the result is d instead of new weights: dst has the type of the
     * computation, and the weights do not change. */
    bool direction_only;
    /* With a 16-bit storage_dtype: sources are float32, too. */
    bool src_is_float32;
    /* Sums to which the squares of d and of the weights are added; NULL:
     * none. */
    struct ps_square_sum *square_sum;
    struct ps_square_sum *weight_square_sum;
    /* Rows instead of src and level; `count` is then the elements of all
     * computed rows, and dst may be `weight`. NULL: a dense job. */
    const struct ps_row_job *rows;
    /* Codec of the sources, which are encoded float32 vectors that have been
     * checked; NONE: they are not encoded. */
    struct ps_codec src_codec;
    uint64_t src_rng_stream;
    /* Encode: codec, residual, and decoded result. */
    struct ps_codec codec;
    uint64_t rng_stream;
    float *residual;
    float *moment; /* NULL: no momentum. */
    struct ps_job_prior prior;
    float *decoded; /* Decoded form of the result; NULL: not needed. */
    /* Buffers of these arrays, of which a device may keep copies (device.h).
     * NULL: it does not. */
    struct ps_buf *kept[PS_KEPT_COUNT];
};

/* True if weights are stored in a 16-bit type. */
static inline bool ps_job_is_half(const struct ps_job *job)
{
    return job->storage_dtype != PS_DTYPE_FLOAT32;
}
/* Float32 weights before the job, of weights of a 16-bit type. */
static inline const void *ps_job_prior_master(const struct ps_job *job)
{
    return job->prior.master != NULL ? job->prior.master : job->master;
}
/* State `i` of a step before the job; 0 also the momentum of SGD. */
static inline const void *ps_job_prior_state(const struct ps_job *job,
                                             unsigned i)
{
    return job->prior.states[i] != NULL ? job->prior.states[i]
           : job->op == PS_JOB_SGD      ? job->state
                                        : job->states[i];
}
/* True if sources have another type than the computation. */
static inline bool ps_job_widens(const struct ps_job *job)
{
    return ps_job_is_half(job) && !job->src_is_float32;
}
/* True if sources are encoded. */
static inline bool ps_job_decodes(const struct ps_job *job)
{
    return job->src_codec.kind != PS_CODEC_NONE;
}

/* Number of states of an optimizer. */
unsigned ps_step_states(enum ps_step_kind kind);

/* Runs the job on the calling thread. PS_E_INVAL: the job is not valid (SGD on
 * integers, no sources), and nothing is written. */
PS_MUST_USE int ps_kernel_run(const struct ps_job *job);

/* Runs elements [from, to) of the job with the same bits as the whole, so that
 * several threads can share one. `from` must be a multiple of 16. */
PS_MUST_USE int ps_kernel_run_range(const struct ps_job *job, uint64_t from,
                                    uint64_t to);

/* True if the job may be run in ranges. */
bool ps_kernel_is_divisible(const struct ps_job *job);

/* Converts elements of a 16-bit type to float. */
void ps_kernel_widen(enum ps_dtype half, float *dst, const void *src,
                     size_t count);
/* Converts floats to a 16-bit type, rounded to nearest. */
void ps_kernel_narrow(enum ps_dtype half, void *dst, const float *src,
                      size_t count);

/* memcpy() with streaming stores for arrays larger than the cache. */
void ps_kernel_copy(void *dst, const void *src, size_t bytes);
/* The same for a part of such an array, where the part may be small. */
void ps_kernel_copy_part(void *dst, const void *src, size_t bytes);

/* Name of the variant in use, "avx512", "avx2" or "portable": chosen at first
 * use by the processor's features. All give the same bits. */
const char *ps_kernel_variant(void);
/* Tests and benchmarks: selects a variant; PS_E_UNSUPPORTED: this processor
 * lacks its instructions. */
int ps_kernel_force(const char *variant);
