/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over a block that each instruction set offers to cpu.c. Private to this
 * folder. Their source is cpu_type.inc, compiled once per instruction set. */
#pragma once

#include "kernel/kernel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Runs elements [from, to) of a job by rows (rows.c). */
PS_MUST_USE int ps_kernel_run_rows(const struct ps_job *job, uint64_t from,
                                   uint64_t to);

/* 0 if elements [from, to) of a dense job may be computed, else PS_E_INVAL. */
PS_MUST_USE int ps_kernel_check_range(const struct ps_job *job, uint64_t from,
                                      uint64_t to);
/* Runs a PS_JOB_ENCODE_EACH: `run` encodes one source, as a whole job. */
PS_MUST_USE int
ps_kernel_run_each(const struct ps_job *job,
                   int (*run)(void *ctx, const struct ps_job *one), void *ctx);
/* Mean of g'*g' over the job's elements, added up in double. */
double ps_kernel_mean_square(const struct ps_job *job);

#define PS_CPU_DTYPES    13 /* Size of tables indexed by enum ps_dtype. */

/* Most sources that one call of a fold adds: a complete subtree of three
 * levels. */
#define PS_CPU_GROUP_MAX 8u

/* Address in an array; NULL: there is no array. */
static inline void *ps_kernel_at(const void *array, uint64_t offset)
{
    return array == NULL ? NULL : (char *)(uintptr_t)array + offset;
}

struct ps_codec_ops;

/* `stream` in the loops below: use streaming stores for dst, which the caller
 * completes with `fence`. */

struct ps_cpu_sgd {
    void *dst; /* May be equal to `weight`. */
    const void *weight;
    const void *grad;
    const void *state; /* NULL: no momentum. */
    void *next_state;  /* May be `state`. */
    const struct ps_sgd *sgd;
    bool stream;
};

struct ps_cpu_step {
    void *dst; /* May be equal to `weight` or `grad`. */
    const void *weight;
    const void *grad;
    const void *states[PS_STATES_MAX];
    void *next_states[PS_STATES_MAX]; /* Each may be its state. */
    const struct ps_step *step;
    uint64_t first_index; /* Index in step->noise of the first element. */
};

/* dst = src[0] .. src[src_count-1], combined as a tree; src_count is
 * 1..PS_CPU_GROUP_MAX; dst may be one of the sources. */
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
    bool (*usable)(void); /* True if this processor has the instructions. */
    void (*fence)(void);
    const struct ps_codec_ops *codec;
    ps_cpu_fold_fn fold[PS_FOLDS][PS_CPU_DTYPES];
    ps_cpu_divide_fn divide[PS_CPU_DTYPES];
    ps_cpu_sgd_fn sgd[PS_CPU_DTYPES];       /* NULL: not for this type. */
    ps_cpu_step_fn step[PS_CPU_DTYPES];     /* NULL: not for this type. */
    ps_cpu_widen_fn widen[PS_CPU_DTYPES];   /* Only for 16-bit types. */
    ps_cpu_narrow_fn narrow[PS_CPU_DTYPES]; /* Only for 16-bit types. */
};

/* The variant in use. */
const struct ps_cpu_ops *ps_cpu_ops(void);

extern const struct ps_cpu_ops ps_cpu_portable;
extern const struct ps_cpu_ops ps_cpu_avx2;
extern const struct ps_cpu_ops ps_cpu_avx512;
