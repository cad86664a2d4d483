/* SPDX-License-Identifier: Apache-2.0 */
#include "core/optim/param.h"

#include "base/err.h"
#include "core/optim/kind.h"
#include "kernel/kernel.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Up to this number every whole one has a double. */
#define EXACT_MAX 0x1p53

static const struct {
    double least;
    double most;
    double whole_from; /* Numbers from this one on are whole; INFINITY: none. */
    const char *must;
} ranges[] = {
    [PS_RANGE_ANY] = {-DBL_MAX, DBL_MAX, (double)INFINITY, ""},
    [PS_RANGE_NOT_NEGATIVE] = {0, DBL_MAX, (double)INFINITY,
                               "must not be negative"},
    [PS_RANGE_BELOW_ONE] = {0, 1 - DBL_EPSILON / 2, (double)INFINITY,
                            "must be at least 0 and less than 1"},
    [PS_RANGE_UP_TO_ONE] = {DBL_TRUE_MIN, 1, (double)INFINITY,
                            "must be above 0 and at most 1"},
    [PS_RANGE_SWITCH] = {0, 1, 0, "must be 0 or 1"},
    [PS_RANGE_WHOLE] = {0, 1e15, 0, "must be a whole number from 0 to 1e15"},
    [PS_RANGE_COUNT] = {1, 1e6, 0, "must be a whole number from 1 to 1000000"},
    [PS_RANGE_SCHEDULE] = {0, PS_LR_COSINE, 0,
                           "must be 0 (constant), 1 (factor), 2 (multifactor), "
                           "3 (poly) or 4 (cosine)"},
    [PS_RANGE_STRATEGY] = {0, WARMUP_LARS, 0,
                           "must be 0 (linear), 1 (power2), 2 (sqrt) or 3 "
                           "(lars)"},
    [PS_RANGE_THRESHOLD] = {0, 0x1p126, (double)INFINITY,
                            "must not be negative"},
    [PS_RANGE_ABOVE_ZERO] = {0x1p-126, 0x1p126, (double)INFINITY,
                             "must be above 0"},
    [PS_RANGE_FRACTION_OR_COUNT] = {DBL_TRUE_MIN, EXACT_MAX, 1,
                                    "must be a share below 1 or a whole "
                                    "number"},
    [PS_RANGE_SEED] = {0, EXACT_MAX, 0,
                       "must be a whole number that is not negative"},
    [PS_RANGE_LEVELS] = {1, PS_CODEC_LEVELS_MAX, 0,
                         "must be a whole number from 1 to 127"},
};

const void *ps_param_find_kind(const void *rows, size_t row_size, size_t count,
                               const char *name, const char *unknown,
                               struct ps_str *why)
{
    const char *const *row = rows;
    const char *wanted = ps_str_or_empty(name);

    for (size_t i = 0; i < count; i++) {
        row = (const void *)((const char *)rows + i * row_size);
        if (strcmp(*row, wanted) == 0) {
            return row;
        }
    }
    ps_str_add(why, unknown);
    ps_str_add_escaped(why, wanted, strlen(wanted), 32);
    ps_str_add(why, "'; there is");
    for (size_t i = 0; i < count; i++) {
        row = (const void *)((const char *)rows + i * row_size);
        ps_str_addf(why, "%s %s", i > 0 ? "," : "", *row);
    }
    return NULL;
}

static bool has_param(const struct ps_param_set *set, unsigned param)
{
    return (set->mask >> param & 1) != 0;
}

unsigned ps_param_find(const struct ps_param_set *set, const char *name)
{
    unsigned i = 0;

    while (i < set->count &&
           (!has_param(set, i) || (strcmp(name, set->list[i].name) != 0 &&
                                   (set->list[i].alias == NULL ||
                                    strcmp(name, set->list[i].alias) != 0)))) {
        i++;
    }
    return i;
}

void ps_param_add_names(const struct ps_param_set *set, struct ps_str *why)
{
    const char *before = "";

    for (unsigned i = 0; i < set->shown; i++) {
        if (has_param(set, i)) {
            ps_str_addf(why, "%s %s", before, set->list[i].name);
            before = ",";
        }
    }
}

int ps_param_check(const struct ps_param_set *set, unsigned param, double value,
                   struct ps_str *why)
{
    const struct ps_param *p = &set->list[param];
    const char *must = NULL;

    if (!isfinite(value)) {
        must = "must be a finite number";
    } else if (value < ranges[p->range].least ||
               value > ranges[p->range].most ||
               (value >= ranges[p->range].whole_from &&
                floor(value) != value)) {
        must = ranges[p->range].must;
    }
    if (must == NULL) {
        return 0;
    }
    ps_str_addf(why, "%s of %s %s, not %g", p->name, set->name, must, value);
    return PS_E_INVAL;
}

int ps_param_parse(const struct ps_param_set *set,
                   const struct ps_rec_param *given, uint32_t count,
                   double *values, struct ps_str *why)
{
    uint64_t seen = 0;

    for (uint32_t i = 0; i < count; i++) {
        const char *name = ps_str_or_empty(given[i].name);
        const unsigned param = ps_param_find(set, name);

        if (param == set->count) {
            ps_str_addf(why, "%s%s%s", set->prefix, set->name, set->lacks);
            ps_str_add_escaped(why, name, strlen(name), 32);
            ps_str_add(why, "'; it has");
            ps_param_add_names(set, why);
            return PS_E_INVAL;
        }
        if ((seen >> param & 1) != 0) {
            ps_str_addf(why, "%s of %s is given twice", set->list[param].name,
                        set->name);
            return PS_E_INVAL;
        }
        seen |= (uint64_t)1 << param;
        if (ps_param_check(set, param, given[i].value, why) != 0) {
            return PS_E_INVAL;
        }
        values[param] = given[i].value;
    }
    return 0;
}
