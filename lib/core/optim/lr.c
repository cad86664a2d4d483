/* SPDX-License-Identifier: Apache-2.0 */
#include "core/optim/lr.h"

#include <assert.h>
#include <math.h>

static double factor_rate(const struct ps_lr *lr, uint64_t n)
{
    assert(lr->step_rounds >= 1);

    uint64_t steps = (n - 1) / lr->step_rounds; /* Completed steps. */
    double rate = lr->base_rate * pow(lr->factor, (double)steps);

    return rate < lr->min_rate ? lr->min_rate : rate;
}

static double multifactor_rate(const struct ps_lr *lr, uint64_t n)
{
    double rate = lr->base_rate;

    for (unsigned i = 0; i < PS_LR_MILESTONES_MAX; i++) {
        if (lr->milestones[i] != 0 && n > lr->milestones[i]) {
            rate *= lr->factor;
        }
    }
    return rate;
}

/* Position in the schedule: 0 after the warm-up, 1 from max_update on. */
static double schedule_progress(const struct ps_lr *lr, uint64_t n)
{
    assert(lr->max_update > lr->warmup_rounds);
    if (n >= lr->max_update) {
        return 1;
    }
    return (double)(n - lr->warmup_rounds) /
           (double)(lr->max_update - lr->warmup_rounds);
}

double ps_lr_at(const struct ps_lr *lr, uint64_t n)
{
    const double pi = 3.14159265358979323846;

    assert(n >= 1);
    if (n < lr->warmup_rounds) {
        return lr->warmup_is_constant
                   ? lr->warmup_rate
                   : lr->warmup_rate + (lr->base_rate - lr->warmup_rate) *
                                           (double)n /
                                           (double)lr->warmup_rounds;
    }
    switch (lr->kind) {
    case PS_LR_CONSTANT:
        break;
    case PS_LR_FACTOR:
        return factor_rate(lr, n);
    case PS_LR_MULTIFACTOR:
        return multifactor_rate(lr, n);
    case PS_LR_POLY:
        return lr->final_rate +
               (lr->base_rate - lr->final_rate) *
                   pow(1 - schedule_progress(lr, n), lr->power);
    case PS_LR_COSINE:
        return lr->final_rate + (lr->base_rate - lr->final_rate) *
                                    (1 + cos(pi * schedule_progress(lr, n))) /
                                    2;
    }
    return lr->base_rate;
}
