/* SPDX-License-Identifier: Apache-2.0 */
/* Loops of codecs in one instruction set: called by codec.c, implemented in
 * codec_loops.inc; and what the CPU and a GPU (cuda/codec.inc) compute by one
 * source: random numbers, the choice of elements by randomk, dithering. Private
 * to this folder. Lengths are in elements; encoded data begins and ends at a
 * byte, with zero bits after the last element. */
#pragma once

#include "kernel/both.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

PS_BOTH uint64_t hash_u64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* First element of range `i` when `count` elements are divided into `k` ranges.
 * Both are below 2^32. */
PS_BOTH uint64_t stretch_of_index(uint64_t i, uint64_t k, uint64_t count)
{
    return i * count / k;
}

/* Element that randomk chooses from range `i`. */
PS_BOTH uint64_t chosen_index(uint64_t stream, uint64_t i, uint64_t k,
                              uint64_t count)
{
    uint64_t first = stretch_of_index(i, k, count);
    uint64_t len = stretch_of_index(i + 1, k, count) - first;

    return first + (((hash_u64(stream + i) >> 32) * len) >> 32);
}

/* Parameters of dithering for one vector. */
struct ps_codec_dither {
    float norm;
    uint32_t levels;
    unsigned width; /* Bits per element: 2, 4 or 8. */
    bool natural;
    uint32_t stream[2];
};

/* Bits of a dithered element: level and sign. */
PS_BOTH unsigned width_of(uint32_t levels)
{
    return levels <= 1 ? 2 : levels <= 7 ? 4 : 8;
}

PS_BOTH struct ps_codec_dither dither_of(uint32_t levels, bool is_natural,
                                         uint64_t stream, float norm)
{
    struct ps_codec_dither d;

    d.norm = norm;
    d.levels = levels;
    d.width = width_of(levels);
    d.natural = is_natural;
    d.stream[0] = (uint32_t)stream;
    d.stream[1] = (uint32_t)(stream >> 32);
    return d;
}

struct ps_codec_ops {
    void (*add)(float *acc, const float *sum, size_t n);
    void (*move)(float *acc, float *moment, const float *sum, size_t n,
                 float mu, bool feedback);
    void (*to_2bit)(float *acc, size_t n, float t, uint8_t *code);
    void (*of_2bit)(const uint8_t *code, size_t n, float t, float *out);
    void (*to_1bit)(float *acc, size_t n, float t, uint8_t *code);
    void (*to_sign)(float *acc, size_t n, float s, uint8_t *code);
    /* Writes `one` for a set bit, `zero` for a clear one. */
    void (*of_bits)(const uint8_t *code, size_t n, float zero, float one,
                    float *out);
    void (*to_fp16)(float *acc, size_t n, uint8_t *code);
    void (*of_fp16)(const uint8_t *code, size_t n, float *out);
    void (*to_bf16)(float *acc, size_t n, uint8_t *code);
    void (*of_bf16)(const uint8_t *code, size_t n, float *out);
    double (*sum_abs)(const float *x, size_t n);
    double (*length)(const float *x, size_t n); /* sqrt(sum x*x) */
    uint32_t (*max_abs_bits)(const float *x, size_t n);
    void (*to_dither)(const struct ps_codec_dither *d, float *acc, size_t n,
                      uint32_t from, uint8_t *code);
    void (*of_dither)(const struct ps_codec_dither *d, const uint8_t *code,
                      size_t n, float *out);
    /* Sets residuals that are not finite to zero. */
    void (*clean)(float *acc, size_t n);
};
