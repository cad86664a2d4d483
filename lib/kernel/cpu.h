/* SPDX-License-Identifier: Apache-2.0 */
/* What one instruction set offers to cpu.c: loops over a block. Private to
 * this folder. The bodies stand once, in cpu_type.inc, and are compiled once
 * per instruction set. */
#pragma once

#include "kernel/kernel.h"

/* rows.c: elements [from, to) of a job by rows. */
PS_MUST_USE int ps_kernel_run_rows(const struct ps_job *job, uint64_t from,
                                   uint64_t to);

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_CPU_DTYPES    13 /* Tables are indexed by enum ps_dtype. */

/* Most leaves that one call of `sum` adds: a whole subtree of three levels. */
#define PS_CPU_GROUP_MAX 8u

/* Every loop takes `stream`: write dst around the caches, which the caller
 * makes visible to others with `fence`. */

/* The mean of g'*g' over the job's elements, added up in double. */
double ps_kernel_mean_square(const struct ps_job *job);

struct ps_codec_ops;

struct ps_cpu_sgd {
    void *dst; /* May be weight. */
    const void *weight;
    const void *grad;
    void *state; /* NULL: no momentum. */
    const struct ps_sgd *sgd;
    bool stream;
};

struct ps_cpu_step {
    void *dst; /* May be weight or grad. */
    const void *weight;
    const void *grad;
    void *states[PS_STATES_MAX];
    const struct ps_step *step;
};

/* dst = src[0] .. src[src_count-1] combined as a tree, 1..PS_CPU_GROUP_MAX of
 * them; dst may be any one of them. */
typedef void (*ps_cpu_fold_fn)(void *dst, const void *const *src,
                               unsigned src_count, size_t count, bool stream);
/* dst = src / by; dst may be src. */
typedef void (*ps_cpu_divide_fn)(void *dst, const void *src, size_t count,
                                 uint64_t by, bool stream);
typedef void (*ps_cpu_sgd_fn)(const struct ps_cpu_sgd *step, size_t count);
typedef void (*ps_cpu_step_fn)(const struct ps_cpu_step *s, size_t count);

typedef void (*ps_cpu_widen_fn)(float *dst, const void *src, size_t count);
typedef void (*ps_cpu_narrow_fn)(void *dst, const float *src, size_t count);

struct ps_cpu_ops {
    const char *name;
    bool (*usable)(void); /* Does this processor have the instructions? */
    void (*fence)(void);
    const struct ps_codec_ops *codec;
    ps_cpu_fold_fn fold[PS_FOLDS][PS_CPU_DTYPES];
    ps_cpu_divide_fn divide[PS_CPU_DTYPES];
    ps_cpu_sgd_fn sgd[PS_CPU_DTYPES];       /* NULL: none for the type. */
    ps_cpu_step_fn step[PS_CPU_DTYPES];     /* NULL: none for the type. */
    ps_cpu_widen_fn widen[PS_CPU_DTYPES];   /* Of types of 16 bits alone. */
    ps_cpu_narrow_fn narrow[PS_CPU_DTYPES]; /* The same. */
};

/* The one in use. */
const struct ps_cpu_ops *ps_cpu_ops(void);

extern const struct ps_cpu_ops ps_cpu_portable;
extern const struct ps_cpu_ops ps_cpu_avx2;
extern const struct ps_cpu_ops ps_cpu_avx512;
