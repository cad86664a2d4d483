/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs, apart from their loops over elements (codec_ops.h): lengths, random
 * numbers, selection, and checks of encoded data from peers. */
#include "kernel/codec.h"

#include "base/str.h"
#include "kernel/codec_ops.h"
#include "kernel/cpu.h"
#include "kernel/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static uint64_t word_count(uint64_t count, uint64_t each)
{
    return count / each + (count % each > 0);
}

uint64_t ps_codec_kept(const struct ps_codec *c, uint64_t count)
{
    const uint64_t half = count / 2;
    const double most = (double)half;
    double k = c->k < 1 ? c->k * (double)count : c->k;

    k = k < most ? k : most;
    return k < 1 ? (count > 0 ? 1 : 0) : (uint64_t)k;
}

uint64_t ps_codec_bytes(const struct ps_codec *c, uint64_t count)
{
    switch (c->kind) {
    case PS_CODEC_NONE:
        return 4 * count;
    case PS_CODEC_2BIT:
        return 4 * word_count(count, 16);
    case PS_CODEC_1BIT:
        return 4 * word_count(count, 32);
    case PS_CODEC_FP16:
    case PS_CODEC_BF16:
        return 4 * word_count(count, 2);
    case PS_CODEC_ONEBIT:
        return 4 * word_count(count, 32) + (c->scaling ? 4 : 0);
    case PS_CODEC_TOPK:
        return 8 * ps_codec_kept(c, count);
    case PS_CODEC_RANDOMK:
        return 4 * ps_codec_kept(c, count);
    case PS_CODEC_DITHER:
    case PS_CODEC_NATURAL:
        return 4 + 4 * word_count(count, 32 / width_of(c->levels));
    }
    return 0;
}

/* ---------------------------------------------------------- random numbers */

uint64_t ps_codec_rng_stream(const struct ps_codec *c,
                             const struct ps_codec_position *at)
{
    uint64_t x = hash_u64(c->seed);

    x = hash_u64(x ^ ((uint64_t)at->key << 32 | at->index));
    x = hash_u64(x ^ at->round);
    if (c->kind != PS_CODEC_RANDOMK) {
        x = hash_u64(x ^ at->slot);
    }
    return x;
}

/* ---------------------------------------------------------------- encoding */

void ps_codec_add_feedback(const struct ps_codec *c, float *acc, float *moment,
                           const float *sum, size_t count)
{
    const struct ps_codec_ops *ops = ps_cpu_ops()->codec;

    if (moment != NULL) {
        ops->move(acc, moment, sum, count, c->momentum, c->feedback);
    } else if (c->feedback) {
        ops->add(acc, sum, count);
    } else {
        memcpy(acc, sum, count * sizeof(*acc));
    }
}

static uint32_t magnitude(float x)
{
    return ps_float_bits(x) & 0x7fffffffu;
}

/* Returns the k-th largest magnitude as bits, and the number of larger ones: a
 * radix search by 11, 10 and 10 bits from the top, which counts the elements
 * that agree with the bits found so far. */
static uint32_t kth_magnitude(const float *x, uint64_t count, uint64_t k,
                              uint64_t *ret_larger)
{
    static const struct {
        unsigned shift;
        unsigned bits;
    } digit[3] = {{20, 11}, {10, 10}, {0, 10}};
    uint32_t known = 0;
    uint64_t larger = 0;

    for (unsigned d = 0; d < 3; d++) {
        uint32_t histogram[1u << 11] = {0};
        const unsigned above = digit[d].shift + digit[d].bits;
        uint32_t at = (1u << digit[d].bits) - 1u;

        for (uint64_t i = 0; i < count; i++) {
            uint32_t m = magnitude(x[i]);

            if (d == 0 || m >> above == known >> above) {
                histogram[(m >> digit[d].shift) & at]++;
            }
        }
        while (larger + histogram[at] < k) {
            larger += histogram[at];
            assert(at > 0);
            at--;
        }
        known |= at << digit[d].shift;
    }
    *ret_larger = larger;
    return known;
}

static void encode_topk(const struct ps_codec *c, float *acc, uint64_t count,
                        uint8_t *code)
{
    const uint64_t k = ps_codec_kept(c, count);
    uint64_t larger;
    uint64_t left = 0;

    if (k == 0) {
        return;
    }
    uint32_t least = kth_magnitude(acc, count, k, &larger);

    /* Elements to keep that have exactly the least magnitude. */
    left = k - larger;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t m = magnitude(acc[i]);
        uint32_t index = (uint32_t)i;

        if (m < least || (m == least && left == 0)) {
            continue;
        }
        left -= m == least ? 1 : 0;
        memcpy(code, &index, sizeof(index));
        memcpy(code + 4, &acc[i], sizeof(acc[i]));
        code += 8;
        acc[i] = 0;
    }
}

static void encode_randomk(const struct ps_codec *c, uint64_t stream,
                           float *acc, uint64_t count, uint8_t *code)
{
    const uint64_t k = ps_codec_kept(c, count);

    for (uint64_t i = 0; i < k; i++) {
        uint64_t at = chosen_index(stream, i, k, count);

        memcpy(code + 4 * i, &acc[at], sizeof(*acc));
        acc[at] = 0;
    }
}

static void encode_dither(const struct ps_codec *c, uint64_t stream, float *acc,
                          uint64_t count, uint8_t *code)
{
    const struct ps_codec_ops *ops = ps_cpu_ops()->codec;
    const uint64_t len = ps_codec_bytes(c, count);
    float norm;

    if (c->l2) {
        norm = (float)ops->length(acc, count);
    } else {
        uint32_t most = ops->max_abs_bits(acc, count);

        memcpy(&norm, &most, sizeof(norm));
    }
    memcpy(code, &norm, sizeof(norm));
    if (!(norm > 0) || isinf(norm)) {
        /* All zeros, or no finite norm: decoding gives zeros for the former and
         * NaN for the latter. */
        memset(code + 4, 0, len - 4);
        ops->clean(acc, count);
        return;
    }
    struct ps_codec_dither d = dither_of(c->levels, c->kind == PS_CODEC_NATURAL,
                                         stream, norm);

    if (len > 4) {
        memset(code + len - 4, 0, 4);
    }
    ops->to_dither(&d, acc, count, 0, code + 4);
}

void ps_codec_encode(const struct ps_codec *c, uint64_t stream, float *acc,
                     uint64_t count, void *code)
{
    const struct ps_codec_ops *ops = ps_cpu_ops()->codec;
    uint8_t *out = code;

    assert(count <= PS_CODEC_COUNT_MAX);
    switch (c->kind) {
    case PS_CODEC_NONE:
        memcpy(out, acc, count * sizeof(*acc));
        memset(acc, 0, count * sizeof(*acc));
        return;
    case PS_CODEC_2BIT:
        ops->to_2bit(acc, count, c->threshold, out);
        return;
    case PS_CODEC_1BIT:
        ops->to_1bit(acc, count, c->threshold, out);
        return;
    case PS_CODEC_FP16:
        ops->to_fp16(acc, count, out);
        return;
    case PS_CODEC_BF16:
        ops->to_bf16(acc, count, out);
        return;
    case PS_CODEC_ONEBIT: {
        float scale = 1;

        if (c->scaling) {
            scale = count == 0
                        ? 0
                        : (float)(ops->sum_abs(acc, count) / (double)count);
            memcpy(out + 4 * word_count(count, 32), &scale, sizeof(scale));
        }
        ops->to_sign(acc, count, scale, out);
        return;
    }
    case PS_CODEC_TOPK:
        encode_topk(c, acc, count, out);
        ops->clean(acc, count);
        return;
    case PS_CODEC_RANDOMK:
        encode_randomk(c, stream, acc, count, out);
        ops->clean(acc, count);
        return;
    case PS_CODEC_DITHER:
    case PS_CODEC_NATURAL:
        encode_dither(c, stream, acc, count, out);
        return;
    }
}

/* ---------------------------------------------------------------- checking */

static uint32_t read_u32(const uint8_t *p)
{
    uint32_t u;

    memcpy(&u, p, sizeof(u));
    return u;
}

static float read_float(const uint8_t *p)
{
    float x;

    memcpy(&x, p, sizeof(x));
    return x;
}

static int check_topk(const uint8_t *code, uint64_t k, uint64_t count,
                      struct ps_str *why)
{
    uint64_t next = 0;

    for (uint64_t i = 0; i < k; i++) {
        uint64_t index = read_u32(code + 8 * i);

        if (index >= count) {
            ps_str_addf(why, "index %llu of %llu elements",
                        (unsigned long long)index, (unsigned long long)count);
            return PS_E_PROTO;
        }
        if (index < next) {
            ps_str_addf(why, "index %llu does not ascend",
                        (unsigned long long)index);
            return PS_E_PROTO;
        }
        next = index + 1;
    }
    return 0;
}

/* The pair 01 is not valid, and bits after the last element must be zero. */
static int check_2bit(const uint8_t *code, uint64_t count, struct ps_str *why)
{
    uint32_t bad = 0;

    for (uint64_t i = 0; i < word_count(count, 16); i++) {
        uint32_t word = read_u32(code + 4 * i);

        bad |= word & ~(word >> 1) & 0x55555555u;
    }
    for (uint64_t i = count; i < 16 * word_count(count, 16); i++) {
        bad |= ((uint32_t)code[i / 4] << (2 * (i % 4))) & 0xc0u;
    }
    if (bad != 0) {
        ps_str_add(why, "a pair of bits that no encoder writes");
        return PS_E_PROTO;
    }
    return 0;
}

int ps_codec_check(const struct ps_codec *c, const void *code, uint64_t len,
                   uint64_t count, char *why, size_t why_cap)
{
    struct ps_str text;

    ps_str_init(&text, why, why_cap);
    if (count > PS_CODEC_COUNT_MAX) {
        ps_str_addf(&text,
                    "%llu elements are more than an encoded gradient can hold",
                    (unsigned long long)count);
        return PS_E_PROTO;
    }
    if (len != ps_codec_bytes(c, count)) {
        ps_str_addf(&text, "%llu bytes for %llu elements, which take %llu",
                    (unsigned long long)len, (unsigned long long)count,
                    (unsigned long long)ps_codec_bytes(c, count));
        return PS_E_PROTO;
    }
    if (c->kind == PS_CODEC_TOPK) {
        return check_topk(code, ps_codec_kept(c, count), count, &text);
    }
    if (c->kind == PS_CODEC_2BIT) {
        return check_2bit(code, count, &text);
    }
    return 0;
}

/* ---------------------------------------------------------------- decoding */

static void decode_topk(const struct ps_codec *c, const uint8_t *code,
                        uint64_t count, uint64_t from, size_t n, float *out)
{
    uint64_t low = 0;
    uint64_t high = ps_codec_kept(c, count);
    const uint64_t k = high;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (read_u32(code + 8 * middle) < from) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memset(out, 0, n * sizeof(*out));
    for (; low < k && read_u32(code + 8 * low) < from + n; low++) {
        out[read_u32(code + 8 * low) - from] = read_float(code + 8 * low + 4);
    }
}

static void decode_randomk(const struct ps_codec *c,
                           const struct ps_codec_data *data, uint64_t from,
                           size_t n, float *out)
{
    const uint8_t *code = data->code;
    const uint64_t count = data->count;
    const uint64_t k = ps_codec_kept(c, count);
    uint64_t i = count == 0 ? 0 : from * k / count;

    memset(out, 0, n * sizeof(*out));
    /* Find the range that contains `from`; rounding may have put `i` one too
     * high. */
    while (i > 0 && stretch_of_index(i, k, count) > from) {
        i--;
    }
    for (; i < k && stretch_of_index(i, k, count) < from + n; i++) {
        uint64_t at = chosen_index(data->stream, i, k, count);

        if (at >= from && at < from + n) {
            out[at - from] = read_float(code + 4 * i);
        }
    }
}

void ps_codec_decode(const struct ps_codec *c, const struct ps_codec_data *data,
                     uint64_t from, size_t n, float *out)
{
    const struct ps_codec_ops *ops = ps_cpu_ops()->codec;
    const uint8_t *in = data->code;

    assert(from % 16 == 0 && from <= data->count && n <= data->count - from);
    switch (c->kind) {
    case PS_CODEC_NONE:
        memcpy(out, in + 4 * from, n * sizeof(*out));
        return;
    case PS_CODEC_2BIT:
        ops->of_2bit(in + from / 4, n, c->threshold, out);
        return;
    case PS_CODEC_1BIT:
        ops->of_bits(in + from / 8, n, -1.0f, 1.0f, out);
        return;
    case PS_CODEC_FP16:
        ops->of_fp16(in + 2 * from, n, out);
        return;
    case PS_CODEC_BF16:
        ops->of_bf16(in + 2 * from, n, out);
        return;
    case PS_CODEC_ONEBIT: {
        float scale = c->scaling
                          ? read_float(in + 4 * word_count(data->count, 32))
                          : 1;

        ops->of_bits(in + from / 8, n, scale, -scale, out);
        return;
    }
    case PS_CODEC_TOPK:
        decode_topk(c, in, data->count, from, n, out);
        return;
    case PS_CODEC_RANDOMK:
        decode_randomk(c, data, from, n, out);
        return;
    case PS_CODEC_DITHER:
    case PS_CODEC_NATURAL: {
        struct ps_codec_dither d = dither_of(c->levels,
                                             c->kind == PS_CODEC_NATURAL,
                                             data->stream, read_float(in));

        ops->of_dither(&d, in + 4 + from * width_of(c->levels) / 8, n, out);
        return;
    }
    }
}
