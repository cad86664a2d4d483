/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/compression.h"

#include "base/str.h"
#include "core/optim/param.h"

#include <string.h>

/* Elements of a partition for which no encoded form exceeds 32-bit sizes. */
#define PART_COUNT_MAX ((uint64_t)UINT32_MAX / 8)

enum codec_param {
    THRESHOLD,
    K,
    SEED,
    LEVELS,
    NATURAL_STEPS,
    L2,
    SCALING,
    EF,
    MOMENTUM,
    MIN_BYTES,
    BOTH,
    PER_WORKER,
    NUMBERS,
};

static const struct ps_param param_table[NUMBERS] = {
    [THRESHOLD] = {"threshold", NULL, PS_RANGE_THRESHOLD},
    [K] = {"k", NULL, PS_RANGE_FRACTION_OR_COUNT},
    [SEED] = {"seed", NULL, PS_RANGE_SEED},
    [LEVELS] = {"levels", NULL, PS_RANGE_LEVELS},
    [NATURAL_STEPS] = {"natural", NULL, PS_RANGE_SWITCH},
    [L2] = {"l2", NULL, PS_RANGE_SWITCH},
    [SCALING] = {"scaling", NULL, PS_RANGE_SWITCH},
    [EF] = {"ef", NULL, PS_RANGE_SWITCH},
    [MOMENTUM] = {"momentum", NULL, PS_RANGE_BELOW_ONE},
    [MIN_BYTES] = {"min_bytes", NULL, PS_RANGE_SEED},
    [BOTH] = {"both", NULL, PS_RANGE_SWITCH},
    [PER_WORKER] = {"per_worker", NULL, PS_RANGE_SWITCH},
};

#define BIT(n) (1u << (n))
#define ALL    (BIT(MOMENTUM) | BIT(MIN_BYTES) | BIT(BOTH))

static const struct codec_spec {
    const char *name;
    enum ps_codec_kind kind;
    uint32_t param_mask;  /* Bits of the parameters that it has. */
    bool needs_threshold; /* The threshold must be above 0. */
    double defaults[NUMBERS];
} codec_specs[] = {
    {"2bit",
     PS_CODEC_2BIT,
     ALL | BIT(THRESHOLD) | BIT(PER_WORKER),
     true,
     {[THRESHOLD] = 0.5, [EF] = 1}},
    {"1bit",
     PS_CODEC_1BIT,
     ALL | BIT(THRESHOLD) | BIT(PER_WORKER),
     false,
     {[EF] = 1}},
    {"fp16", PS_CODEC_FP16, ALL | BIT(EF), false, {0}},
    {"bf16", PS_CODEC_BF16, ALL | BIT(EF), false, {0}},
    {"onebit",
     PS_CODEC_ONEBIT,
     ALL | BIT(EF) | BIT(SCALING),
     false,
     {[EF] = 1, [SCALING] = 1}},
    {"topk",
     PS_CODEC_TOPK,
     ALL | BIT(EF) | BIT(K),
     false,
     {[EF] = 1, [K] = 0.01}},
    {"randomk",
     PS_CODEC_RANDOMK,
     ALL | BIT(EF) | BIT(K) | BIT(SEED),
     false,
     {[EF] = 1, [K] = 0.01}},
    {"dithering",
     PS_CODEC_DITHER,
     ALL | BIT(EF) | BIT(SEED) | BIT(LEVELS) | BIT(NATURAL_STEPS) | BIT(L2),
     false,
     {[EF] = 1, [LEVELS] = 7}},
};
int ps_compression_parse(const char *name, const struct ps_rec_param *params,
                         uint32_t count, struct ps_compression *ret,
                         struct ps_str *why)
{
    struct ps_param list[NUMBERS];
    double value[NUMBERS];

    if (name == NULL || *name == '\0') {
        *ret = (struct ps_compression){0};
        return 0;
    }
    const struct codec_spec *kind = ps_param_find_kind(
        codec_specs, sizeof(codec_specs[0]),
        sizeof(codec_specs) / sizeof(codec_specs[0]), name,
        "no compression is called '", why);

    if (kind == NULL) {
        return PS_E_UNSUPPORTED;
    }
    memcpy(list, param_table, sizeof(list));
    if (kind->needs_threshold) {
        list[THRESHOLD].range = PS_RANGE_ABOVE_ZERO;
    }
    memcpy(value, kind->defaults, sizeof(value));
    int rc = ps_param_parse(&(struct ps_param_set){.list = list,
                                                   .count = NUMBERS,
                                                   .shown = NUMBERS,
                                                   .mask = kind->param_mask,
                                                   .prefix = "compression ",
                                                   .name = kind->name,
                                                   .lacks = " has no "
                                                            "parameter '"},
                            params, count, value, why);

    if (rc != 0) {
        return rc;
    }
    bool natural = value[NATURAL_STEPS] != 0;

    if (natural && value[LEVELS] > PS_CODEC_NATURAL_LEVELS_MAX) {
        ps_str_addf(why,
                    "levels of natural dithering are powers of 2, at most "
                    "%u, not %g",
                    PS_CODEC_NATURAL_LEVELS_MAX, value[LEVELS]);
        return PS_E_INVAL;
    }
    *ret = (struct ps_compression){
        .codec = {.kind = natural ? PS_CODEC_NATURAL : kind->kind,
                  .feedback = value[EF] != 0,
                  .scaling = value[SCALING] != 0,
                  .l2 = value[L2] != 0,
                  .threshold = (float)value[THRESHOLD],
                  .momentum = (float)value[MOMENTUM],
                  .k = value[K],
                  .levels = (uint32_t)value[LEVELS],
                  .seed = (uint64_t)value[SEED]},
        .min_bytes = (uint64_t)value[MIN_BYTES],
        .bidirectional = value[BOTH] != 0,
        .per_worker = value[PER_WORKER] != 0,
    };
    return 0;
}

bool ps_compression_applies(const struct ps_compression *c, uint8_t dtype,
                            uint64_t count)
{
    return c->codec.kind != PS_CODEC_NONE && dtype == PS_DTYPE_FLOAT32 &&
           count > 0 && count <= PART_COUNT_MAX &&
           count * sizeof(float) >= c->min_bytes;
}
