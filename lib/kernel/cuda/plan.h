/* SPDX-License-Identifier: Apache-2.0 */
/* Where the arrays of a piece of a job lie in the arenas of a slot, and which
 * of them are copied. In this order, so that all inputs are contiguous, and all
 * outputs:
 *
 *     inputs:             table, fixed weights, sources (the first one last)
 *     inputs and outputs: weights, states, residual, moment
 *     outputs:            result, weights of 16 bits, code, decoded, squares
 *     neither:            decoded sources, sum, work, segments
 *
 * A plain sum is computed in place of the first source. Arrays that stay on the
 * device are used where they are; only pinned memory has a place for them,
 * after all others, for what of them is copied. */
#pragma once

#include "kernel/cuda/module.h"

enum ps_cuda_array {
    PS_CUDA_TABLE, /* Addresses and merges of many sources. */
    PS_CUDA_FIXED_WEIGHTS,
    PS_CUDA_SOURCES,
    PS_CUDA_WEIGHTS,
    PS_CUDA_STATE_0,
    PS_CUDA_STATE_1,
    PS_CUDA_STATE_2,
    PS_CUDA_RESIDUAL,
    PS_CUDA_MOMENT,
    PS_CUDA_RESULT,
    PS_CUDA_HALF,
    PS_CUDA_CODE,
    PS_CUDA_DECODED,
    PS_CUDA_SQUARES,
    PS_CUDA_WEIGHT_SQUARES,
    PS_CUDA_FLOATS,
    PS_CUDA_SUM,
    PS_CUDA_WORK,
    PS_CUDA_ABOVE,
    PS_CUDA_EQUAL,
    PS_CUDA_ARRAYS
};

/* Rows of square sums of a piece. */
#define PS_CUDA_SQUARE_ROWS 128u

struct ps_cuda_span {
    uint64_t at;        /* Offset in the arenas. */
    uint64_t each;      /* Bytes of an element of the job; */
    uint64_t whole;     /* and bytes for any number of elements. */
    const void *from;   /* The job's array: NULL: not copied to the device, */
    void *to;           /* and from it. */
    ps_cu_address kept; /* Of element 0, which stays; 0: in the arena. */
};

struct ps_cuda_plan {
    const struct ps_kernel_range *range;
    const struct ps_job *job; /* That of the range. */
    uint64_t count;           /* Elements of a piece, but for the last. */
    uint64_t size;            /* Bytes of an element in the computation. */
    uint64_t src_size;        /* Bytes of an element of a source; 0: encoded. */
    uint64_t src_stride;      /* From one source to the next. */
    uint64_t float_stride;    /* Of decoded sources. */
    uint8_t *merges;          /* See kernels.h; owned. */
    bool is_sum;
    bool encodes;
    bool is_in_place; /* A plain sum. */
    struct ps_cuda_span spans[PS_CUDA_ARRAYS];
    uint64_t in_end;
    uint64_t out_begin;
    uint64_t out_end;
    uint64_t end;      /* Of the device's arena, */
    uint64_t host_end; /* and of the host's. */
};

/* 0, PS_E_NOMEM or PS_E_UNSUPPORTED. */
int ps_cuda_plan_init(struct ps_cuda_plan *p,
                      const struct ps_kernel_range *range);
void ps_cuda_plan_fini(struct ps_cuda_plan *p);

static inline bool ps_cuda_has(const struct ps_cuda_plan *p,
                               enum ps_cuda_array a)
{
    return p->spans[a].each > 0 || p->spans[a].whole > 0;
}

/* Offset of source `i`. */
static inline uint64_t ps_cuda_source_at(const struct ps_cuda_plan *p,
                                         uint32_t i)
{
    const uint32_t place = i == 0 ? p->job->src_count - 1 : i - 1;

    return p->spans[PS_CUDA_SOURCES].at + place * p->src_stride;
}
