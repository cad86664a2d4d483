/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments and names of the kernels on the GPU: between cuda.c, which launches
 * them, kernels.cu, which has them, and the emulated driver of the tests, which
 * calls them by name. Each kernel has one argument, a struct by value. All
 * pointers are addresses of device memory. Arrays begin at a multiple of 16
 * bytes and have room for whole packs of 16 bytes, whose rest has no meaning. */
#pragma once

#include "kernel/codec.h"
#include "kernel/kernel.h"

#include <stdint.h>

/* Sources whose addresses are arguments; those of more are in device memory. */
#define PS_CUDA_SOURCES_MAX  64u
/* Most partial sums at a time. */
#define PS_CUDA_DEPTH_MAX    32u
#define PS_CUDA_PACK_BYTES   16u
/* Sources whose tree is unrolled if all are leaves. */
#define PS_CUDA_LEAVES_MAX   8u
/* Words of a row of ps_cuda_square: the digits, and the count of elements
 * without a finite square. */
#define PS_CUDA_SQUARE_WORDS (PS_SQUARE_SUM_DIGITS + 1u)
#define PS_CUDA_LANES        16u
/* Elements of a segment of topk's selection. */
#define PS_CUDA_SEGMENT      1024u

/* dst = the sources, folded in the tree of kernel.h and divided. dst may be one
 * of them. */
struct ps_cuda_fold {
    uint64_t count;
    uint64_t divide_by; /* 0 or 1: no division. */
    void *dst;
    enum ps_fold fold;
    uint32_t src_count;
    /* All sources are leaves, and there are at most PS_CUDA_LEAVES_MAX. */
    uint32_t is_short;
    /* NULL: up to PS_CUDA_SOURCES_MAX sources in `src` and `merges`. */
    const void *const *more_src;
    const uint8_t *more_merges;
    const void *src[PS_CUDA_SOURCES_MAX];
    /* Times that the two topmost partial sums are replaced by their sum after a
     * source. */
    uint8_t merges[PS_CUDA_SOURCES_MAX];
};

/* New weights; dst may be `weight`. */
struct ps_cuda_sgd {
    struct ps_sgd sgd;
    uint64_t count;
    void *dst;
    const void *weight;
    const void *grad;
    void *state; /* NULL: no momentum. */
    void *half;  /* Of float32: gets dst, rounded to half_dtype; or NULL. */
    enum ps_dtype half_dtype;
};

struct ps_cuda_step {
    struct ps_step step; /* first_index is that of the first element here. */
    uint64_t count;
    void *dst;
    const void *weight;
    const void *grad;
    void *states[PS_STATES_MAX];
    void *half;
    enum ps_dtype half_dtype;
};

/* Adds the squares of x to the rows, one for each block. */
struct ps_cuda_square {
    uint64_t count;
    const void *x;
    uint64_t *rows;
};

/* x of codec.h into `acc`. */
struct ps_cuda_feedback {
    uint64_t count;
    float *acc;
    float *moment; /* NULL: no momentum. */
    const float *sum;
    float mu;
    uint32_t feedback;
};

/* State of an encoding; starts zeroed. */
struct ps_cuda_work {
    double lane[PS_CUDA_LANES];
    uint64_t larger; /* topk: elements with a larger magnitude than `known`. */
    uint32_t known;  /* Bits found so far. */
    uint32_t digit;  /* Digits found so far. */
    uint32_t most;   /* Largest magnitude, as bits. */
    float scale;
    uint32_t histogram[1u << 11];
};

struct ps_cuda_codec {
    struct ps_codec codec;
    uint64_t stream;
    uint64_t count; /* Elements of the vector. */
    uint64_t kept;  /* topk, randomk: elements that they keep. */
    float *acc;     /* Encoding: x before, r after. */
    uint8_t *code;
    struct ps_cuda_work *work;
    /* topk: elements of each segment above the least magnitude and of that
     * magnitude; then the place of the segment's first, and the elements of
     * the least magnitude that are left for it. */
    uint64_t *above;
    uint64_t *equal;
    /* Decoding: elements [from, from + n) into `out`. */
    uint64_t from;
    uint64_t n;
    float *out;
};

#define PS_CUDA_KERNELS(X)                                                     \
    X(ps_fold_f32, struct ps_cuda_fold)                                        \
    X(ps_fold_f64, struct ps_cuda_fold)                                        \
    X(ps_fold_f16, struct ps_cuda_fold)                                        \
    X(ps_fold_bf16, struct ps_cuda_fold)                                       \
    X(ps_fold_i8, struct ps_cuda_fold)                                         \
    X(ps_fold_u8, struct ps_cuda_fold)                                         \
    X(ps_fold_i32, struct ps_cuda_fold)                                        \
    X(ps_fold_i64, struct ps_cuda_fold)                                        \
    X(ps_fold_bool, struct ps_cuda_fold)                                       \
    X(ps_fold_f32_of_f16, struct ps_cuda_fold)                                 \
    X(ps_fold_f32_of_bf16, struct ps_cuda_fold)                                \
    X(ps_sgd_f32, struct ps_cuda_sgd)                                          \
    X(ps_sgd_f64, struct ps_cuda_sgd)                                          \
    X(ps_step_f32, struct ps_cuda_step)                                        \
    X(ps_step_f64, struct ps_cuda_step)                                        \
    X(ps_square_f32, struct ps_cuda_square)                                    \
    X(ps_square_f64, struct ps_cuda_square)                                    \
    X(ps_feedback, struct ps_cuda_feedback)                                    \
    X(ps_norm_lanes, struct ps_cuda_codec)                                     \
    X(ps_norm_most, struct ps_cuda_codec)                                      \
    X(ps_norm_scale, struct ps_cuda_codec)                                     \
    X(ps_encode_plain, struct ps_cuda_codec)                                   \
    X(ps_encode_bits, struct ps_cuda_codec)                                    \
    X(ps_encode_half, struct ps_cuda_codec)                                    \
    X(ps_encode_dither, struct ps_cuda_codec)                                  \
    X(ps_topk_histogram, struct ps_cuda_codec)                                 \
    X(ps_topk_digit, struct ps_cuda_codec)                                     \
    X(ps_topk_segments, struct ps_cuda_codec)                                  \
    X(ps_topk_places, struct ps_cuda_codec)                                    \
    X(ps_encode_topk, struct ps_cuda_codec)                                    \
    X(ps_encode_randomk, struct ps_cuda_codec)                                 \
    X(ps_clean, struct ps_cuda_codec)                                          \
    X(ps_decode, struct ps_cuda_codec)                                         \
    X(ps_decode_topk, struct ps_cuda_codec)                                    \
    X(ps_decode_randomk, struct ps_cuda_codec)
