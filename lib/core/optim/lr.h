/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rates that change with the round. Pure: the rate of a round
 * follows from the round alone, so that nothing has to be kept, sent or
 * counted, and every server has the same. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PS_LR_MILESTONES_MAX 8u

enum ps_lr_kind {
    PS_LR_CONSTANT,
    PS_LR_FACTOR,      /* base * factor^floor((n-1)/step), not below stop */
    PS_LR_MULTIFACTOR, /* base * factor^(steps less than n) */
    PS_LR_POLY,        /* final + (base-final) * (1-p)^power */
    PS_LR_COSINE,      /* final + (base-final) * (1+cos(pi*p))/2 */
};

/* p is (n - warmup) / (max - warmup), at most 1. In the first rounds, those
 * with n < warmup, the rate rises in a line from `warmup_begin` to `base`, or
 * stays at `warmup_begin`. */
struct ps_lr {
    enum ps_lr_kind kind;
    double base_rate;
    double factor;
    double min_rate;
    uint64_t step_rounds;                      /* >= 1 */
    uint64_t milestones[PS_LR_MILESTONES_MAX]; /* 0: none. */
    uint64_t max_update;                       /* > warmup */
    double power;
    double final_rate;
    uint64_t warmup_rounds;
    double warmup_rate;
    bool warmup_is_constant;
};

/* The rate of round n, which counts from 1. */
double ps_lr_at(const struct ps_lr *lr, uint64_t n);
