/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on tensors: the interface between the daemons and what computes,
 * which is the CPU code of this folder or a module opened at run time. No
 * product types: buffers, lengths and numbers only.
 *
 * A job adds its sources in the order of a fixed tree, scales the sum, and
 * either stores it or feeds it to an optimizer, all in one pass over blocks
 * that stay in cache. The tree makes the bits a function of the inputs alone:
 * sources carry the level of the subtree they already are (0: a leaf), and are
 * combined like the digits of a binary counter:
 *
 *     for each source in order: push it; while the two topmost have the same
 *     level, replace them by their sum, one level higher
 *     at the end: while more than one is left, replace the two topmost, left
 *     operand below, by their sum
 *
 * so 6 leaves give ((0+1)+(2+3))+(4+5), and 7 give
 * ((0+1)+(2+3))+((4+5)+6). */
#pragma once

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_KERNEL_ABI 1u

enum ps_job_op {
    PS_JOB_SUM, /* dst = sum / divide_by */
    PS_JOB_SGD, /* dst = weight after one step with the gradient sum */
};

/* SGD as in the classic key-value store. With s rescale, c clip, g the sum
 * (after divide_by): g' = clamp(s * g, -c, c) when c > 0, else s * g.
 * momentum = 0: w' = (1 - lr*wd) * w - lr*g'
 * else: m' = momentum*m - lr*wd*w - lr*g';  w' = w + m'
 * Arithmetic in the element type; every product and sum rounds by itself. */
struct ps_sgd {
    double lr;
    double momentum;
    double wd;
    double rescale;
    double clip; /* <= 0: off */
};

struct ps_job {
    enum ps_job_op op;
    enum ps_dtype dtype;
    uint64_t count;     /* Elements of every buffer. */
    uint32_t src_count; /* >= 1; 1 with PS_JOB_SUM is a copy. */
    const void *const *src;
    const uint8_t *level; /* src_count of them; NULL: all leaves. */
    uint64_t divide_by;   /* 0 or 1: no division. Integers truncate. */
    void *dst;            /* May be src[0] or weight; else no overlap. */
    const void *weight;   /* SGD: old weights. */
    void *state;          /* SGD with momentum: m, updated in place. */
    struct ps_sgd sgd;
};

/* Runs the job on the calling thread. PS_E_INVAL for a job that makes no
 * sense (SGD on integers, no sources); nothing is written then. */
PS_MUST_USE int ps_kernel_run(const struct ps_job *job);

/* Runs elements [from, to) of the job: the same bits as the whole, so that
 * several threads may share one. `from` must be a multiple of 16. */
PS_MUST_USE int ps_kernel_run_range(const struct ps_job *job, uint64_t from,
                                    uint64_t to);

/* "avx512", "avx2" or "portable": chosen at first use by what the processor
 * has. All give the same bits. */
const char *ps_kernel_variant(void);
/* Tests and benchmarks: force a variant; PS_E_UNSUPPORTED if this processor
 * lacks it. */
int ps_kernel_force(const char *variant);
