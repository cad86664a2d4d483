/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rate schedules. The rate is a pure function of the round, so no
 * state is kept or sent, and all servers agree. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PS_LR_MILESTONES_MAX 8u

enum ps_lr_kind {
    PS_LR_CONSTANT,
    /* base_rate * factor^floor((n-1)/step_rounds), not below min_rate */
    PS_LR_FACTOR,
    PS_LR_MULTIFACTOR, /* base_rate * factor^(number of milestones below n) */
    PS_LR_POLY,        /* final_rate + (base_rate-final_rate) * (1-p)^power */
    PS_LR_COSINE, /* final_rate + (base_rate-final_rate) * (1+cos(pi*p))/2 */
};

/* p is (n - warmup_rounds) / (max_update - warmup_rounds), at most 1. In rounds
 * n < warmup_rounds the rate rises linearly from warmup_rate to base_rate, or
 * stays at warmup_rate. */
struct ps_lr {
    enum ps_lr_kind kind;
    double base_rate;
    double factor;
    double min_rate;
    uint64_t step_rounds;                      /* At least 1. */
    uint64_t milestones[PS_LR_MILESTONES_MAX]; /* Rounds; 0: unused. */
    uint64_t max_update;                       /* Above warmup_rounds. */
    double power;
    double final_rate;
    uint64_t warmup_rounds;
    double warmup_rate;
    bool warmup_is_constant;
};

/* Rate of round n; the first round is 1. */
double ps_lr_at(const struct ps_lr *lr, uint64_t n);
