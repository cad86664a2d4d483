/* SPDX-License-Identifier: Apache-2.0 */
#include "core/lr.h"

#include <assert.h>
#include <math.h>

static double factor(const struct ps_lr *lr, uint64_t n)
{
    assert(lr->step >= 1);

    uint64_t steps = (n - 1) / lr->step; /* Whole ones. */
    double rate = lr->base * pow(lr->factor, (double)steps);

    return rate < lr->stop ? lr->stop : rate;
}

static double multifactor(const struct ps_lr *lr, uint64_t n)
{
    double rate = lr->base;

    for (unsigned i = 0; i < PS_LR_STEPS_MAX; i++) {
        if (lr->steps[i] != 0 && n > lr->steps[i]) {
            rate *= lr->factor;
        }
    }
    return rate;
}

/* How much of the way is done: 0 after the warm-up, 1 from `max` on. */
static double progress(const struct ps_lr *lr, uint64_t n)
{
    assert(lr->max > lr->warmup);
    if (n >= lr->max) {
        return 1;
    }
    return (double)(n - lr->warmup) / (double)(lr->max - lr->warmup);
}

double ps_lr_at(const struct ps_lr *lr, uint64_t n)
{
    const double pi = 3.14159265358979323846;

    assert(n >= 1);
    if (n < lr->warmup) {
        return lr->warmup_constant
                   ? lr->warmup_begin
                   : lr->warmup_begin + (lr->base - lr->warmup_begin) *
                                            (double)n / (double)lr->warmup;
    }
    switch (lr->kind) {
    case PS_LR_CONSTANT:
        break;
    case PS_LR_FACTOR:
        return factor(lr, n);
    case PS_LR_MULTIFACTOR:
        return multifactor(lr, n);
    case PS_LR_POLY:
        return lr->final +
               (lr->base - lr->final) * pow(1 - progress(lr, n), lr->power);
    case PS_LR_COSINE:
        return lr->final +
               (lr->base - lr->final) * (1 + cos(pi * progress(lr, n))) / 2;
    }
    return lr->base;
}
