/* SPDX-License-Identifier: Apache-2.0 */
/* Compression of fp32 vectors with error feedback: formulas and the packing of
 * every codec. Pure functions of their arguments; all variants give the same
 * bits. docs/compression.md has the formulas with references.
 *
 * With g the vector, r the residual (initially zero), C encoding, D decoding:
 *     p = g                                 without momentum (mu = 0)
 *     m = mu*m + g;  p = g + mu*m           with it
 *     x = r + p  with feedback, else p
 *     c = C(x);  r = x - D(c), 0 where that is not finite
 *
 * All numbers are little-endian; bits and pairs of bits go from the most
 * significant of the first byte downwards. The encoded form of n elements has
 * exactly ps_codec_bytes() bytes, a multiple of 4:
 *     2bit     16 pairs a word: 11 x >= t, 10 x <= -t, 00 else; t, -t, 0
 *     1bit     32 bits a word: 1 x > t, 0 else; +1, -1
 *     fp16     n halves, then a zero half if n is odd; bf16 the same
 *     onebit   32 bits a word: 1 x < 0; then a float, with scaling
 *              s = mean |x|, without it 1; +s, -s
 *     topk     k pairs of index (4 bytes, ascending) and float: the largest
 *              |x|; of equal values the lower index first
 *     randomk  k floats: one random element of each of k equal ranges;
 *              both sides compute its index
 *     dither   a float, the norm u = max |x| or sqrt(sum x*x); then 2, 4 or 8
 *              bits an element: the sign, then level l of s, rounded at
 *              random: l * (u/s)
 *     natural  the same with levels at powers of two: u * 2^(l - s), 0 for 0
 *
 * Sums of n numbers are in double, in 16 lanes by index modulo 16; the lanes
 * are added in order. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are part of the protocol and never reused. */
enum ps_codec_kind {
    PS_CODEC_NONE = 0,
    PS_CODEC_2BIT = 1,
    PS_CODEC_1BIT = 2,
    PS_CODEC_FP16 = 3,
    PS_CODEC_BF16 = 4,
    PS_CODEC_ONEBIT = 5,
    PS_CODEC_TOPK = 6,
    PS_CODEC_RANDOMK = 7,
    PS_CODEC_DITHER = 8,
    PS_CODEC_NATURAL = 9,
};
#define PS_CODEC_KINDS              10u

#define PS_CODEC_LEVELS_MAX         127u /* Largest level in 7 bits. */
#define PS_CODEC_NATURAL_LEVELS_MAX 31u

/* Elements of one encoded vector: indexes have 32 bits. */
#define PS_CODEC_COUNT_MAX          UINT32_MAX

struct ps_codec {
    enum ps_codec_kind kind;
    bool feedback;
    bool scaling; /* onebit */
    bool l2;      /* dither, natural: scale by the L2 norm; else by max |x|. */
    float threshold; /* 2bit: > 0; 1bit: >= 0 */
    float momentum;  /* mu; 0: none */
    double k; /* topk, randomk: number of elements (>= 1) or fraction (< 1). */
    uint32_t levels; /* dither, natural: s */
    uint64_t seed;   /* randomk, dither, natural */
};

/* Bytes of the encoded form of `count` elements. */
uint64_t ps_codec_bytes(const struct ps_codec *c, uint64_t count);
/* Elements that topk and randomk keep: at most half, at least one. */
uint64_t ps_codec_kept(const struct ps_codec *c, uint64_t count);

/* Input of the random numbers, besides the seed. randomk's choice must not
 * depend on the encoding slot; the rounding of dither and natural does. */
struct ps_codec_position {
    uint32_t key;
    uint32_t index;
    uint64_t round;
    uint32_t slot;
};
uint64_t ps_codec_rng_stream(const struct ps_codec *c,
                             const struct ps_codec_position *at);

/* Computes x of the formulas for `count` elements of the sum g into `acc`,
 * which holds r before. `moment` is m; NULL: no momentum. */
void ps_codec_add_feedback(const struct ps_codec *c, float *acc, float *moment,
                           const float *sum, size_t count);

/* Writes the encoded form of all `count` elements of x to `code`, and r to
 * `acc`, which holds x before. */
void ps_codec_encode(const struct ps_codec *c, uint64_t stream, float *acc,
                     uint64_t count, void *code);

/* Checks encoded data of a peer. PS_E_PROTO: no encoder writes it, and `why`
 * has the error text. Never reads beyond `len`. */
PS_MUST_USE int ps_codec_check(const struct ps_codec *c, const void *code,
                               uint64_t len, uint64_t count, char *why,
                               size_t why_cap);

/* Encoded data that has been checked. */
struct ps_codec_data {
    uint64_t stream; /* Stream of random numbers, as for the encoder. */
    const void *code;
    uint64_t count; /* Elements. */
};

/* Decodes elements [from, from + n). `from` must be a multiple of 16. */
void ps_codec_decode(const struct ps_codec *c, const struct ps_codec_data *data,
                     uint64_t from, size_t n, float *out);
