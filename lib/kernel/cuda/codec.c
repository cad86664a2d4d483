/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of each codec, in their order. */
#include "kernel/cuda/module.h"

#include <stddef.h>

/* One kernel of a sequence. */
struct stage {
    enum ps_cuda_kernel kernel;
    uint64_t threads; /* 0: a block of `block` threads. */
    unsigned block;
};

static ps_cu_result launch_stages(const struct ps_cuda *c,
                                  struct ps_cuda_slot *s,
                                  const struct ps_cuda_codec *k,
                                  const struct stage *stages, size_t count)
{
    ps_cu_result rc = 0;

    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = stages[i].block > 0
                 ? ps_cuda_launch_block(c, s, stages[i].kernel, k,
                                        stages[i].block)
                 : ps_cuda_launch(c, s, stages[i].kernel, k, stages[i].threads);
    }
    return rc;
}

#define LAUNCH(c, s, k, stages)                                                \
    launch_stages(c, s, k, stages, sizeof(stages) / sizeof((stages)[0]))

static uint64_t part_count(uint64_t count, uint64_t each)
{
    return count / each + (count % each != 0);
}

static ps_cu_result encode_topk(const struct ps_cuda *c, struct ps_cuda_slot *s,
                                const struct ps_cuda_codec *k)
{
    const uint64_t segments = part_count(k->count, PS_CUDA_SEGMENT);
    const struct stage stages[] = {
        {PS_CUDA_ps_topk_histogram, k->count, 0},
        {PS_CUDA_ps_topk_digit, 0, 1},
        {PS_CUDA_ps_topk_histogram, k->count, 0},
        {PS_CUDA_ps_topk_digit, 0, 1},
        {PS_CUDA_ps_topk_histogram, k->count, 0},
        {PS_CUDA_ps_topk_digit, 0, 1},
        {PS_CUDA_ps_topk_segments, segments, 0},
        {PS_CUDA_ps_topk_places, 0, 1},
        {PS_CUDA_ps_encode_topk, segments, 0},
    };

    return LAUNCH(c, s, k, stages);
}

/* Bits and dithering, with the scale of the vector before. */
static ps_cu_result encode_scaled(const struct ps_cuda *c,
                                  struct ps_cuda_slot *s,
                                  const struct ps_cuda_codec *k)
{
    const bool is_dither = k->codec.kind != PS_CODEC_ONEBIT;
    const bool is_most = is_dither && !k->codec.l2;
    const struct stage stages[] = {
        {is_most ? PS_CUDA_ps_norm_most : PS_CUDA_ps_norm_lanes,
         is_most ? k->count : 0, is_most ? 0 : PS_CUDA_LANES},
        {PS_CUDA_ps_norm_scale, 0, 1},
        {is_dither ? PS_CUDA_ps_encode_dither : PS_CUDA_ps_encode_bits,
         part_count(k->count, is_dither ? 4 : 32), 0},
    };

    return LAUNCH(c, s, k, stages);
}

ps_cu_result ps_cuda_encode(const struct ps_cuda *c, struct ps_cuda_slot *s,
                            const struct ps_cuda_codec *k)
{
    ps_cu_result rc;

    switch (k->codec.kind) {
    case PS_CODEC_NONE:
        return ps_cuda_launch(c, s, PS_CUDA_ps_encode_plain, k, k->count);
    case PS_CODEC_2BIT:
    case PS_CODEC_1BIT:
        return ps_cuda_launch(c, s, PS_CUDA_ps_encode_bits, k,
                              part_count(k->count, 16));
    case PS_CODEC_FP16:
    case PS_CODEC_BF16:
        return ps_cuda_launch(c, s, PS_CUDA_ps_encode_half, k, k->count);
    case PS_CODEC_ONEBIT:
        return k->codec.scaling ? encode_scaled(c, s, k)
                                : ps_cuda_launch(c, s, PS_CUDA_ps_encode_bits,
                                                 k, part_count(k->count, 32));
    case PS_CODEC_TOPK:
        return encode_topk(c, s, k);
    case PS_CODEC_RANDOMK:
        rc = ps_cuda_launch(c, s, PS_CUDA_ps_encode_randomk, k, k->kept);
        return rc != 0 ? rc
                       : ps_cuda_launch(c, s, PS_CUDA_ps_clean, k, k->count);
    case PS_CODEC_DITHER:
    case PS_CODEC_NATURAL:
        return encode_scaled(c, s, k);
    }
    return 0;
}

ps_cu_result ps_cuda_decode(const struct ps_cuda *c, struct ps_cuda_slot *s,
                            const struct ps_cuda_codec *k)
{
    const bool is_topk = k->codec.kind == PS_CODEC_TOPK;

    if (!is_topk && k->codec.kind != PS_CODEC_RANDOMK) {
        return ps_cuda_launch(c, s, PS_CUDA_ps_decode, k, k->n);
    }
    ps_cu_result rc = c->cu.fill((ps_cu_address)(uintptr_t)k->out, 0,
                                 k->n * sizeof(float), s->stream);

    return rc != 0 ? rc
                   : ps_cuda_launch(c, s,
                                    is_topk ? PS_CUDA_ps_decode_topk
                                            : PS_CUDA_ps_decode_randomk,
                                    k, k->kept);
}
