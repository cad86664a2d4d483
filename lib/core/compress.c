/* SPDX-License-Identifier: Apache-2.0 */
#include "core/compress.h"

#include "base/str.h"

#include <math.h>
#include <string.h>

/* No code is larger, whatever it stands for. */
#define PART_COUNT_MAX ((uint64_t)UINT32_MAX / 8)

enum number {
    THRESHOLD,
    K,
    SEED,
    LEVELS,
    NATURAL,
    L2,
    SCALING,
    EF,
    MOMENTUM,
    MIN_BYTES,
    BOTH,
    NUMBERS,
};

enum range {
    ABOVE_ZERO,
    NOT_NEGATIVE,
    BELOW_ONE,
    KEPT,
    WHOLE, /* Up to 2^53: a double holds it. */
    STEPS,
    SWITCH,
};

static const struct {
    const char *name;
    enum range range;
} rows[NUMBERS] = {
    [THRESHOLD] = {"threshold", NOT_NEGATIVE},
    [K] = {"k", KEPT},
    [SEED] = {"seed", WHOLE},
    [LEVELS] = {"levels", STEPS},
    [NATURAL] = {"natural", SWITCH},
    [L2] = {"l2", SWITCH},
    [SCALING] = {"scaling", SWITCH},
    [EF] = {"ef", SWITCH},
    [MOMENTUM] = {"momentum", BELOW_ONE},
    [MIN_BYTES] = {"min_bytes", WHOLE},
    [BOTH] = {"both", SWITCH},
};

#define BIT(n) (1u << (n))
#define ALL    (BIT(MOMENTUM) | BIT(MIN_BYTES) | BIT(BOTH))

static const struct kind {
    const char *name;
    enum ps_press_kind kind;
    uint32_t has;   /* Numbers that it knows. */
    bool threshold; /* Must be above 0. */
    double defaults[NUMBERS];
} kinds[] = {
    {"2bit",
     PS_PRESS_2BIT,
     ALL | BIT(THRESHOLD),
     true,
     {[THRESHOLD] = 0.5, [EF] = 1}},
    {"1bit", PS_PRESS_1BIT, ALL | BIT(THRESHOLD), false, {[EF] = 1}},
    {"fp16", PS_PRESS_FP16, ALL | BIT(EF), false, {0}},
    {"bf16", PS_PRESS_BF16, ALL | BIT(EF), false, {0}},
    {"onebit",
     PS_PRESS_ONEBIT,
     ALL | BIT(EF) | BIT(SCALING),
     false,
     {[EF] = 1, [SCALING] = 1}},
    {"topk",
     PS_PRESS_TOPK,
     ALL | BIT(EF) | BIT(K),
     false,
     {[EF] = 1, [K] = 0.01}},
    {"randomk",
     PS_PRESS_RANDOMK,
     ALL | BIT(EF) | BIT(K) | BIT(SEED),
     false,
     {[EF] = 1, [K] = 0.01}},
    {"dithering",
     PS_PRESS_DITHER,
     ALL | BIT(EF) | BIT(SEED) | BIT(LEVELS) | BIT(NATURAL) | BIT(L2),
     false,
     {[EF] = 1, [LEVELS] = 7}},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const char *text(const char *s)
{
    return s == NULL ? "" : s;
}

/* NULL: fine. */
static const char *objection(enum range range, double v)
{
    bool whole = v >= 0 && v <= 0x1p53 && floor(v) == v;

    if (isnan(v) || isinf(v)) {
        return "must be a number";
    }
    switch (range) {
    case ABOVE_ZERO:
        return v >= 0x1p-126 && v <= 0x1p126 ? NULL : "must be above 0";
    case NOT_NEGATIVE:
        return v >= 0 && v <= 0x1p126 ? NULL : "must not be negative";
    case BELOW_ONE:
        return v >= 0 && v < 1 ? NULL : "must be at least 0 and less than 1";
    case KEPT:
        return (v > 0 && v < 1) || (v >= 1 && whole)
                   ? NULL
                   : "must be a share below 1 or a whole number";
    case WHOLE:
        return whole ? NULL : "must be a whole number that is not negative";
    case STEPS:
        return whole && v >= 1 && v <= PS_PRESS_LEVELS_MAX
                   ? NULL
                   : "must be a whole number from 1 to 127";
    case SWITCH:
        return v == 0 || v == 1 ? NULL : "must be 0 or 1";
    }
    return NULL;
}

static const struct kind *find(const char *name, struct ps_str *why)
{
    for (size_t i = 0; i < KINDS; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    ps_str_add(why, "no compression is called '");
    ps_str_add_escaped(why, name, strlen(name), 32);
    ps_str_add(why, "'; there is");
    for (size_t i = 0; i < KINDS; i++) {
        ps_str_addf(why, "%s %s", i > 0 ? "," : "", kinds[i].name);
    }
    return NULL;
}

static int take(const struct kind *kind, const struct ps_rec_param *p,
                uint32_t *seen, double *value, struct ps_str *why)
{
    const char *name = text(p->name);
    unsigned n = 0;

    while (n < NUMBERS &&
           ((kind->has & BIT(n)) == 0 || strcmp(rows[n].name, name) != 0)) {
        n++;
    }
    if (n == NUMBERS) {
        const char *before = "";

        ps_str_addf(why, "compression %s has no number '", kind->name);
        ps_str_add_escaped(why, name, strlen(name), 32);
        ps_str_add(why, "'; it has");
        for (unsigned i = 0; i < NUMBERS; i++) {
            if ((kind->has & BIT(i)) != 0) {
                ps_str_addf(why, "%s %s", before, rows[i].name);
                before = ",";
            }
        }
        return PS_E_INVAL;
    }
    if ((*seen & BIT(n)) != 0) {
        ps_str_addf(why, "%s of %s is given twice", rows[n].name, kind->name);
        return PS_E_INVAL;
    }
    *seen |= BIT(n);

    const char *must = objection(
        n == THRESHOLD && kind->threshold ? ABOVE_ZERO : rows[n].range,
        p->value);
    if (must != NULL) {
        ps_str_addf(why, "%s of %s %s, not %g", rows[n].name, kind->name, must,
                    p->value);
        return PS_E_INVAL;
    }
    value[n] = p->value;
    return 0;
}

int ps_compress_parse(const char *name, const struct ps_rec_param *params,
                      uint32_t count, struct ps_compress *ret, char *why,
                      size_t why_cap)
{
    double value[NUMBERS];
    uint32_t seen = 0;
    struct ps_str s;

    ps_str_init(&s, why, why_cap);
    if (*text(name) == '\0') {
        *ret = (struct ps_compress){0};
        return 0;
    }
    const struct kind *kind = find(name, &s);

    if (kind == NULL) {
        return PS_E_UNSUPPORTED;
    }
    memcpy(value, kind->defaults, sizeof(value));
    for (uint32_t i = 0; i < count; i++) {
        int rc = take(kind, &params[i], &seen, value, &s);

        if (rc != 0) {
            return rc;
        }
    }
    bool natural = value[NATURAL] != 0;

    if (natural && value[LEVELS] > PS_PRESS_NATURAL_LEVELS_MAX) {
        ps_str_addf(&s,
                    "levels of natural dithering are powers of 2, at most "
                    "%u, not %g",
                    PS_PRESS_NATURAL_LEVELS_MAX, value[LEVELS]);
        return PS_E_INVAL;
    }
    *ret = (struct ps_compress){
        .press = {.kind = natural ? PS_PRESS_NATURAL : kind->kind,
                  .feedback = value[EF] != 0,
                  .scaling = value[SCALING] != 0,
                  .l2 = value[L2] != 0,
                  .threshold = (float)value[THRESHOLD],
                  .momentum = (float)value[MOMENTUM],
                  .k = value[K],
                  .levels = (uint32_t)value[LEVELS],
                  .seed = (uint64_t)value[SEED]},
        .min_bytes = (uint64_t)value[MIN_BYTES],
        .both = value[BOTH] != 0,
    };
    return 0;
}

bool ps_compress_applies(const struct ps_compress *c, uint8_t dtype,
                         uint64_t count)
{
    return c->press.kind != PS_PRESS_NONE && dtype == PS_DTYPE_FLOAT32 &&
           count > 0 && count <= PART_COUNT_MAX &&
           count * sizeof(float) >= c->min_bytes;
}
