/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers, as optim.c declares them and step.c uses them. */
#pragma once

#include "core/optim/optim.h"

/* lbsgd: how the factor of the rate rises from 1 to batch_scale over the rounds
 * of the warm-up, or that norms give it. */
enum warmup_strategy {
    WARMUP_LINEAR,
    WARMUP_POWER2,
    WARMUP_SQRT,
    WARMUP_LARS,
};

enum {
    SGD = -1,   /* Has its own job operation instead of a step kind. */
    LARS = -2,  /* Uses SGD's operation with a scaled rate. */
    LBSGD = -3, /* The same. */
};

struct ps_optim_default {
    enum ps_optim_param param;
    double value;
};

#define OWN_PARAMS_MAX 8u

struct ps_optim_kind {
    const char *name;
    int step; /* enum ps_step_kind of the plain form, or SGD, LARS, LBSGD. */
    /* Its own parameters, with defaults, and PS_OPTIM_NONE behind them; one with
     * a rate has that first. */
    struct ps_optim_default params[OWN_PARAMS_MAX];
};

/* True if the optimizer has a step on single rows, as in MXNet's KVStore. */
static inline bool ps_optim_has_row_step(const struct ps_optim_kind *kind)
{
    return kind->step == SGD || kind->step == PS_STEP_ADAM ||
           kind->step == PS_STEP_ADAGRAD || kind->step == PS_STEP_FTRL ||
           kind->step == PS_STEP_GROUP_ADAGRAD;
}

static inline uint64_t ps_optim_param_rounds(const struct ps_optim *o,
                                             unsigned param)
{
    return (uint64_t)o->value[param];
}

/* Rounds of lbsgd before the first one of this job. */
static inline double ps_optim_lbsgd_rounds(const struct ps_optim *o)
{
    return o->value[PS_OPTIM_BEGIN_EPOCH] *
           o->value[PS_OPTIM_UPDATES_PER_EPOCH];
}

/* True if steps have a rate, and the rate a schedule. */
bool ps_optim_has_rate(const struct ps_optim_kind *kind);
/* Returns the parameter of that name or alias; PS_OPTIM_PARAMS: the optimizer
 * has none. */
unsigned ps_optim_find_param(const struct ps_optim_kind *kind,
                             const char *name);
