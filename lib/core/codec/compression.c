/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/compression.h"

#include "base/str.h"

#include <math.h>
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

enum range {
    ABOVE_ZERO,
    NOT_NEGATIVE,
    BELOW_ONE,
    FRACTION_OR_COUNT,
    WHOLE, /* Up to 2^53, which a double represents exactly. */
    STEPS,
    SWITCH,
};

static const struct {
    const char *name;
    enum range range;
} param_table[NUMBERS] = {
    [THRESHOLD] = {"threshold", NOT_NEGATIVE},
    [K] = {"k", FRACTION_OR_COUNT},
    [SEED] = {"seed", WHOLE},
    [LEVELS] = {"levels", STEPS},
    [NATURAL_STEPS] = {"natural", SWITCH},
    [L2] = {"l2", SWITCH},
    [SCALING] = {"scaling", SWITCH},
    [EF] = {"ef", SWITCH},
    [MOMENTUM] = {"momentum", BELOW_ONE},
    [MIN_BYTES] = {"min_bytes", WHOLE},
    [BOTH] = {"both", SWITCH},
    [PER_WORKER] = {"per_worker", SWITCH},
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
#define KINDS (sizeof(codec_specs) / sizeof(codec_specs[0]))

static const char *text_or_empty(const char *s)
{
    return s == NULL ? "" : s;
}

/* Largest number up to which every whole one has a double. */
#define WHOLE_MAX 0x1p53

static bool is_whole_between(double v, double least, double most)
{
    return v >= least && v <= most && floor(v) == v;
}

/* Returns the text of the violated range; NULL: the value is valid. */
static const char *range_violation(enum range range, double v)
{
    if (!isfinite(v)) {
        return "must be a number";
    }
    switch (range) {
    case ABOVE_ZERO:
        return v >= 0x1p-126 && v <= 0x1p126 ? NULL : "must be above 0";
    case NOT_NEGATIVE:
        return v >= 0 && v <= 0x1p126 ? NULL : "must not be negative";
    case BELOW_ONE:
        return v >= 0 && v < 1 ? NULL : "must be at least 0 and less than 1";
    case FRACTION_OR_COUNT:
        return (v > 0 && v < 1) || is_whole_between(v, 1, WHOLE_MAX)
                   ? NULL
                   : "must be a share below 1 or a whole number";
    case WHOLE:
        return is_whole_between(v, 0, WHOLE_MAX)
                   ? NULL
                   : "must be a whole number that is not negative";
    case STEPS:
        return is_whole_between(v, 1, PS_CODEC_LEVELS_MAX)
                   ? NULL
                   : "must be a whole number from 1 to 127";
    case SWITCH:
        return v == 0 || v == 1 ? NULL : "must be 0 or 1";
    }
    return NULL;
}

static const struct codec_spec *find_codec(const char *name, struct ps_str *why)
{
    for (size_t i = 0; i < KINDS; i++) {
        if (strcmp(codec_specs[i].name, name) == 0) {
            return &codec_specs[i];
        }
    }
    ps_str_add(why, "no compression is called '");
    ps_str_add_escaped(why, name, strlen(name), 32);
    ps_str_add(why, "'; there is");
    for (size_t i = 0; i < KINDS; i++) {
        ps_str_addf(why, "%s %s", i > 0 ? "," : "", codec_specs[i].name);
    }
    return NULL;
}

static int accept_param(const struct codec_spec *kind,
                        const struct ps_rec_param *p, uint32_t *seen,
                        double *value, struct ps_str *why)
{
    const char *name = text_or_empty(p->name);
    unsigned n = 0;

    while (n < NUMBERS && ((kind->param_mask & BIT(n)) == 0 ||
                           strcmp(param_table[n].name, name) != 0)) {
        n++;
    }
    if (n == NUMBERS) {
        const char *before = "";

        ps_str_addf(why, "compression %s has no parameter '", kind->name);
        ps_str_add_escaped(why, name, strlen(name), 32);
        ps_str_add(why, "'; it has");
        for (unsigned i = 0; i < NUMBERS; i++) {
            if ((kind->param_mask & BIT(i)) != 0) {
                ps_str_addf(why, "%s %s", before, param_table[i].name);
                before = ",";
            }
        }
        return PS_E_INVAL;
    }
    if ((*seen & BIT(n)) != 0) {
        ps_str_addf(why, "%s of %s is given twice", param_table[n].name,
                    kind->name);
        return PS_E_INVAL;
    }
    *seen |= BIT(n);

    const char *must = range_violation(n == THRESHOLD && kind->needs_threshold
                                           ? ABOVE_ZERO
                                           : param_table[n].range,
                                       p->value);
    if (must != NULL) {
        ps_str_addf(why, "%s of %s %s, not %g", param_table[n].name, kind->name,
                    must, p->value);
        return PS_E_INVAL;
    }
    value[n] = p->value;
    return 0;
}

int ps_compression_parse(const char *name, const struct ps_rec_param *params,
                         uint32_t count, struct ps_compression *ret, char *why,
                         size_t why_cap)
{
    double value[NUMBERS];
    uint32_t seen = 0;
    struct ps_str s;

    ps_str_init(&s, why, why_cap);
    if (*text_or_empty(name) == '\0') {
        *ret = (struct ps_compression){0};
        return 0;
    }
    const struct codec_spec *kind = find_codec(name, &s);

    if (kind == NULL) {
        return PS_E_UNSUPPORTED;
    }
    memcpy(value, kind->defaults, sizeof(value));
    for (uint32_t i = 0; i < count; i++) {
        int rc = accept_param(kind, &params[i], &seen, value, &s);

        if (rc != 0) {
            return rc;
        }
    }
    bool natural = value[NATURAL_STEPS] != 0;

    if (natural && value[LEVELS] > PS_CODEC_NATURAL_LEVELS_MAX) {
        ps_str_addf(&s,
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
