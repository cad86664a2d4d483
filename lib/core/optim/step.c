/* SPDX-License-Identifier: Apache-2.0 */
/* Plan of an optimizer's step: what it needs, its numbers, and the stages and
 * factors of one that needs norms. */
#include "core/optim/kind.h"

#include "core/optim/optim.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* True if the step is SGD's operation. */
static bool is_sgd(const struct ps_optim *o)
{
    return o->kind->step < 0;
}

/* Step kind, resolved to the variant that the parameters select. Not for
 * SGD. */
static enum ps_step_kind step_kind(const struct ps_optim *o)
{
    assert(!is_sgd(o));
    if (o->kind->step == PS_STEP_NAG && o->value[PS_OPTIM_DECAY_AFTER] != 0) {
        return PS_STEP_NAG_LATE;
    }
    if (o->kind->step == PS_STEP_RMSPROP && o->value[PS_OPTIM_CENTERED] != 0) {
        return PS_STEP_RMSPROP_CENTERED;
    }
    if (o->kind->step == PS_STEP_SIGNUM && o->value[PS_OPTIM_MOMENTUM] == 0) {
        return PS_STEP_SIGNSGD;
    }
    return (enum ps_step_kind)o->kind->step;
}

uint64_t ps_optim_rounds_per_step(const struct ps_optim *o)
{
    return ps_optim_param_rounds(
        o, o->kind->step == LBSGD ? PS_OPTIM_BATCH_SCALE : PS_OPTIM_ACCUMULATE);
}

unsigned ps_optim_state_count(const struct ps_optim *o)
{
    if (is_sgd(o)) {
        return o->value[PS_OPTIM_MOMENTUM] != 0 ? 1 : 0;
    }
    return ps_step_states(step_kind(o));
}

bool ps_optim_needs_rows(const struct ps_optim *o)
{
    return o->kind->step == PS_STEP_GROUP_ADAGRAD;
}

bool ps_optim_needs_norms(const struct ps_optim *o)
{
    return ps_optim_first_stage(o, &(struct ps_optim_step_params){0}) !=
           PS_STAGE_LAST;
}

bool ps_optim_clips_global_norm(const struct ps_optim *o)
{
    return o->value[PS_OPTIM_CLIP_GLOBAL] > 0;
}

bool ps_optim_skips_nonfinite(const struct ps_optim *o)
{
    return o->value[PS_OPTIM_SKIP] != 0;
}

bool ps_optim_is_lazy(const struct ps_optim *o)
{
    return ps_optim_has_row_step(o->kind) && o->value[PS_OPTIM_LAZY] != 0;
}

bool ps_optim_state_is_weight(const struct ps_optim *o, unsigned i)
{
    return o->kind->step == PS_STEP_DCASGD && i == 1;
}

/* ----------------------------------------------------- schedule of the rate */

static double factor_rate(const struct ps_optim *o, uint64_t n)
{
    const uint64_t step = ps_optim_param_rounds(o, PS_OPTIM_STEP);

    assert(step >= 1);
    const uint64_t steps = (n - 1) / step; /* Completed steps. */
    const double rate = o->value[PS_OPTIM_LR] *
                        pow(o->value[PS_OPTIM_FACTOR], (double)steps);
    const double least = o->value[PS_OPTIM_STOP_LR];

    return rate < least ? least : rate;
}

static double multifactor_rate(const struct ps_optim *o, uint64_t n)
{
    double rate = o->value[PS_OPTIM_LR];

    for (unsigned i = PS_OPTIM_STEP_1; i <= PS_OPTIM_STEP_8; i++) {
        const uint64_t step = ps_optim_param_rounds(o, i);

        if (step != 0 && n > step) {
            rate *= o->value[PS_OPTIM_FACTOR];
        }
    }
    return rate;
}

/* Position in the schedule: 0 after the warm-up, 1 from max_update on. */
static double schedule_progress(const struct ps_optim *o, uint64_t n)
{
    const uint64_t end = ps_optim_param_rounds(o, PS_OPTIM_MAX_UPDATE);
    const uint64_t warmup = ps_optim_param_rounds(o, PS_OPTIM_WARMUP_STEPS);

    assert(end > warmup);
    return n >= end ? 1 : (double)(n - warmup) / (double)(end - warmup);
}

double ps_optim_rate(const struct ps_optim *o, uint64_t n)
{
    const double pi = 3.14159265358979323846;
    const uint64_t warmup = ps_optim_param_rounds(o, PS_OPTIM_WARMUP_STEPS);
    const double *v = o->value;
    const double base = v[PS_OPTIM_LR];
    const double first = v[PS_OPTIM_WARMUP_BEGIN_LR];
    const double last = v[PS_OPTIM_FINAL_LR];

    assert(n >= 1);
    if (n < warmup) {
        return v[PS_OPTIM_WARMUP_CONSTANT] != 0
                   ? first
                   : first + (base - first) * (double)n / (double)warmup;
    }
    switch ((enum ps_lr_kind)(int)v[PS_OPTIM_SCHEDULER]) {
    case PS_LR_CONSTANT:
        break;
    case PS_LR_FACTOR:
        return factor_rate(o, n);
    case PS_LR_MULTIFACTOR:
        return multifactor_rate(o, n);
    case PS_LR_POLY:
        return last + (base - last) *
                          pow(1 - schedule_progress(o, n), v[PS_OPTIM_POWER]);
    case PS_LR_COSINE:
        return last +
               (base - last) * (1 + cos(pi * schedule_progress(o, n))) / 2;
    }
    return base;
}

/* ----------------------------------------------------------------- one step */

/* 1 - beta^t: bias of a moving average that began at zero. */
static double bias_correction(double beta, uint64_t t)
{
    return 1 - pow(beta, (double)t);
}

/* Nadam's momentum factor of step t. */
static double nadam_momentum(const struct ps_optim *o, uint64_t t)
{
    return o->value[PS_OPTIM_BETA1] *
           (1 - 0.5 * pow(0.96, (double)t * o->value[PS_OPTIM_SCHEDULE_DECAY]));
}

/* Product of all factors up to t. It is not kept as state, because it soon
 * vanishes beside 1. If beta is too close to 1 for that, the factors after
 * NADAM_TERMS_MAX terms are replaced by their limit. */
#define NADAM_TERMS_MAX 100000u

static double nadam_momentum_product(const struct ps_optim *o, uint64_t t)
{
    double product = 1;

    for (uint64_t i = 1; i <= t && product > 1e-20; i++) {
        if (i > NADAM_TERMS_MAX) {
            return product * pow(o->value[PS_OPTIM_BETA1], (double)(t - i + 1));
        }
        product *= nadam_momentum(o, i);
    }
    return product;
}

static void fill_nadam(const struct ps_optim *o, uint64_t t,
                       struct ps_step *step)
{
    double product = nadam_momentum_product(o, t);
    double now = nadam_momentum(o, t);
    double next = nadam_momentum(o, t + 1);

    step->k[0] = (1 - now) / (1 - product);
    step->k[1] = next / (1 - product * next);
    step->k[2] = bias_correction(step->beta2, t);
}

/* Numbers that are the same in all steps with one rate. */
static void fill_constants(const struct ps_optim *o, struct ps_step *step)
{
    const double *v = o->value;

    switch (step->kind) {
    case PS_STEP_NAG:
    case PS_STEP_NAG_LATE:
        step->beta1 = v[PS_OPTIM_MOMENTUM];
        break;
    case PS_STEP_RMSPROP:
    case PS_STEP_RMSPROP_CENTERED:
        step->beta1 = v[PS_OPTIM_GAMMA1];
        step->beta2 = v[PS_OPTIM_GAMMA2];
        step->k[0] = v[PS_OPTIM_CLIP_WEIGHTS] > 0 ? v[PS_OPTIM_CLIP_WEIGHTS]
                                                  : (double)INFINITY;
        break;
    case PS_STEP_ADADELTA:
        step->beta1 = v[PS_OPTIM_RHO];
        break;
    case PS_STEP_FTRL:
        step->k[0] = v[PS_OPTIM_LAMDA1];
        step->k[1] = v[PS_OPTIM_BETA];
        break;
    case PS_STEP_SIGNUM:
        step->beta1 = v[PS_OPTIM_MOMENTUM];
        step->k[0] = 1 - step->lr * v[PS_OPTIM_WD_LH];
        break;
    case PS_STEP_SGLD:
        step->k[0] = sqrt(step->lr);
        step->lr /= 2;
        break;
    case PS_STEP_SIGNSGD:
        step->k[0] = 1 - step->lr * step->wd;
        break;
    case PS_STEP_DCASGD:
        step->beta1 = v[PS_OPTIM_MOMENTUM];
        step->k[0] = v[PS_OPTIM_LAMDA];
        break;
    default:
        break;
    }
}

/* Numbers of step t. */
static void fill_step(const struct ps_optim *o, uint64_t t,
                      struct ps_step *step)
{
    const double *v = o->value;

    switch (step->kind) {
    case PS_STEP_LAMB:
        step->k[0] = v[PS_OPTIM_CORRECT_BIAS] != 0
                         ? bias_correction(step->beta1, t)
                         : 1;
        step->k[1] = v[PS_OPTIM_CORRECT_BIAS] != 0
                         ? bias_correction(step->beta2, t)
                         : 1;
        break;
    case PS_STEP_ADAM:
        step->lr *= sqrt(bias_correction(step->beta2, t)) /
                    bias_correction(step->beta1, t);
        break;
    case PS_STEP_ADAMW:
        if (v[PS_OPTIM_CORRECT_BIAS] != 0) {
            step->lr *= sqrt(bias_correction(step->beta2, t)) /
                        bias_correction(step->beta1, t);
        }
        break;
    case PS_STEP_ADAMAX:
        step->lr /= bias_correction(step->beta1, t);
        break;
    case PS_STEP_NADAM:
        fill_nadam(o, t, step);
        break;
    case PS_STEP_FTML:
        step->k[0] = bias_correction(step->beta1, t) / step->lr;
        step->k[1] = bias_correction(step->beta2, t);
        break;
    default:
        fill_constants(o, step);
        break;
    }
}

/* FTRL and FTML divide by the rate; a rate below this makes no step. */
#define RATE_NEGLIGIBLE 1e-30

/* The declaration with all changes up to this round applied. */
static struct ps_optim optim_at_round(const struct ps_optim *o, uint64_t round)
{
    struct ps_optim now = *o;

    for (uint32_t i = 0; i < o->changes.count; i++) {
        const struct ps_rec_change *c = &o->changes.list[i];

        if (c->round <= round) {
            now.value[ps_optim_find_param(o->kind, c->name)] = c->value;
        }
    }
    return now;
}

/* True if norms give the factor of lbsgd's rate. */
static bool lbsgd_uses_norms(const struct ps_optim *o)
{
    return o->kind->step == LBSGD &&
           o->value[PS_OPTIM_WARMUP_STRATEGY] == WARMUP_LARS;
}

/* Factor of lbsgd's rate after n rounds, without norms. */
static double lbsgd_warmup(const struct ps_optim *o, double n)
{
    const double most = o->value[PS_OPTIM_BATCH_SCALE];
    const double end = o->value[PS_OPTIM_WARMUP_EPOCHS] *
                       o->value[PS_OPTIM_UPDATES_PER_EPOCH];
    const double way = n / end;

    if (n >= end) {
        return most;
    }
    switch ((enum warmup_strategy)(int)o->value[PS_OPTIM_WARMUP_STRATEGY]) {
    case WARMUP_LINEAR:
        return 1 + (most - 1) * way;
    case WARMUP_POWER2:
        return 1 + (most - 1) * (way * way);
    case WARMUP_SQRT:
        return 1 + (most - 1) * sqrt(way);
    case WARMUP_LARS:
        break;
    }
    return 1;
}

/* Factor of the gradient: with lbsgd it is a mean over the rounds. */
static double rescale_of_step(const struct ps_optim *o,
                              const struct ps_optim_step_params *at)
{
    return o->kind->step == LBSGD && !at->is_mean
               ? o->value[PS_OPTIM_RESCALE] / o->value[PS_OPTIM_BATCH_SCALE]
               : o->value[PS_OPTIM_RESCALE];
}

static uint64_t step_number_of(const struct ps_optim *o,
                               const struct ps_optim_step_params *at)
{
    return at->step_number + ps_optim_param_rounds(o, PS_OPTIM_BEGIN);
}

/* The rate, less the factors of the key. */
static double rate_of_step(const struct ps_optim *o,
                           const struct ps_optim_step_params *at)
{
    if (!ps_optim_has_rate(o->kind)) {
        return 0;
    }
    if (o->kind->step != LBSGD) {
        return ps_optim_rate(o, step_number_of(o, at));
    }
    /* Its schedule and its warm-up count rounds. */
    const uint64_t rounds = at->step_number * ps_optim_rounds_per_step(o);
    const double rate = ps_optim_rate(
        o, rounds + ps_optim_param_rounds(o, PS_OPTIM_BEGIN));

    return lbsgd_uses_norms(o)
               ? rate
               : rate *
                     lbsgd_warmup(o, ps_optim_lbsgd_rounds(o) + (double)rounds);
}

/* LARS: momentum, scaled by the ratio of this step's rate to the one before. */
static double momentum_of_step(const struct ps_optim *o,
                               const struct ps_optim_step_params *at)
{
    const double given = o->value[PS_OPTIM_MOMENTUM];

    if (o->kind->step != LARS || o->value[PS_OPTIM_CORRECT_MOMENTUM] == 0 ||
        at->step_number <= 1) {
        return given;
    }
    const struct ps_optim old = optim_at_round(o, at->round - 1);
    const double before = ps_optim_rate(&old, step_number_of(o, at) - 1);

    return before != 0
               ? given * (ps_optim_rate(o, step_number_of(o, at)) / before)
               : given;
}

/* Step kind of one stage of a step that is not SGD's. */
static enum ps_step_kind stage_step_kind(const struct ps_optim *o,
                                         enum ps_stage stage)
{
    switch (stage) {
    case PS_STAGE_GRADIENT:
        return PS_STEP_GRADIENT;
    case PS_STAGE_DIRECTION:
        break;
    case PS_STAGE_LAST:
        return step_kind(o) == PS_STEP_LAMB ? PS_STEP_ALONG : step_kind(o);
    }
    return step_kind(o);
}

static void plan_step(const struct ps_optim *o,
                      const struct ps_optim_step_params *at, struct ps_job *job)
{
    const double *v = o->value;
    const uint64_t t = step_number_of(o, at);
    const double lr = rate_of_step(o, at) * at->lr_mult * at->trust_ratio;
    const double wd = v[PS_OPTIM_WD] * at->wd_mult;

    if (is_sgd(o) && at->stage == PS_STAGE_LAST) {
        job->op = PS_JOB_SGD;
        job->sgd = (struct ps_sgd){
            .lr = lr,
            .momentum = momentum_of_step(o, at),
            .wd = wd,
            .rescale = rescale_of_step(o, at) * at->grad_scale,
            .clip = v[PS_OPTIM_CLIP],
        };
        return;
    }
    job->op = PS_JOB_STEP;
    job->direction_only = at->stage != PS_STAGE_LAST;
    job->step = (struct ps_step){
        .kind = stage_step_kind(o, at->stage),
        .lr = lr,
        .wd = wd,
        .rescale = v[PS_OPTIM_RESCALE] * at->grad_scale,
        .clip = v[PS_OPTIM_CLIP],
        .beta1 = v[PS_OPTIM_BETA1],
        .beta2 = v[PS_OPTIM_BETA2],
        .epsilon = v[PS_OPTIM_EPSILON],
        .noise = {.key = at->name_hash ^
                         ps_optim_param_rounds(o, PS_OPTIM_SEED),
                  .step = t},
        .first_index = at->first_elem,
    };
    if ((job->step.kind == PS_STEP_FTRL || job->step.kind == PS_STEP_FTML) &&
        lr < RATE_NEGLIGIBLE) {
        job->step.kind = PS_STEP_KEEP;
    }
    fill_step(o, t, &job->step);
}

void ps_optim_plan_step(const struct ps_optim *o,
                        const struct ps_optim_step_params *at,
                        struct ps_job *job)
{
    assert(at->step_number >= 1);
    if (o->changes.count == 0) {
        plan_step(o, at, job);
    } else {
        const struct ps_optim now = optim_at_round(o, at->round);

        plan_step(&now, at, job);
    }
}

/* ---------------------------------------------------------------- norms */

bool ps_optim_needs_gradient_norm(const struct ps_optim *o,
                                  const struct ps_optim_step_params *at)
{
    return ps_optim_skips_nonfinite(o) || ps_optim_clips_global_norm(o) ||
           lbsgd_uses_norms(o) || (o->kind->step == LARS && !at->norm_exempt);
}

enum ps_stage ps_optim_first_stage(const struct ps_optim *o,
                                   const struct ps_optim_step_params *at)
{
    if (at->apart || ps_optim_needs_gradient_norm(o, at)) {
        return PS_STAGE_GRADIENT;
    }
    return o->kind->step == PS_STEP_LAMB ? PS_STAGE_DIRECTION : PS_STAGE_LAST;
}

enum ps_stage ps_optim_next_stage(const struct ps_optim *o,
                                  const struct ps_optim_step_params *at)
{
    return at->stage == PS_STAGE_GRADIENT && o->kind->step == PS_STEP_LAMB
               ? PS_STAGE_DIRECTION
               : PS_STAGE_LAST;
}

bool ps_optim_needs_weight_norm(const struct ps_optim *o,
                                const struct ps_optim_step_params *at)
{
    return at->stage == PS_STAGE_DIRECTION || lbsgd_uses_norms(o) ||
           (o->kind->step == LARS && !at->norm_exempt);
}

/* Factor that limits the global norm of s g to clip_global. */
static double global_clip_scale(const struct ps_optim *o,
                                const struct ps_optim_step_params *at,
                                double all_square)
{
    const double most = o->value[PS_OPTIM_CLIP_GLOBAL];
    const double scale =
        most / (fabs(rescale_of_step(o, at)) * sqrt(all_square) + 1e-8);

    return most > 0 && scale < 1 ? scale : 1;
}

/* eta |w| / (|s g| + wd |w| + epsilon) */
static double lars_ratio(const struct ps_optim *o,
                         const struct ps_optim_norms *norms,
                         const struct ps_optim_step_params *at)
{
    const double *v = o->value;
    const double w = sqrt(norms->weight_square_sum);
    const double g = fabs(v[PS_OPTIM_RESCALE] * at->grad_scale) *
                     sqrt(norms->square_sum);

    if (w == 0 || g == 0) {
        return 1;
    }
    return v[PS_OPTIM_ETA] * w /
           (g + v[PS_OPTIM_WD] * at->wd_mult * w + v[PS_OPTIM_EPSILON]);
}

/* |w| / sqrt(|g|^2 + wd |w|^2), between .01 and 100, with g before it is
 * rescaled. */
static double lbsgd_ratio(const struct ps_optim *o,
                          const struct ps_optim_norms *norms,
                          const struct ps_optim_step_params *at)
{
    const double scale = at->grad_scale *
                         (at->is_mean ? 1 : 1 / o->value[PS_OPTIM_BATCH_SCALE]);
    const double w = norms->weight_square_sum;
    const double g = norms->square_sum * scale * scale;
    const double ratio = sqrt(
        w / (g + o->value[PS_OPTIM_WD] * at->wd_mult * w + 1e-18));

    return ratio < .01 ? .01 : ratio > 100 ? 100 : ratio;
}

/* |w|, clamped to the bounds, / |u| */
static double lamb_ratio(const struct ps_optim *o,
                         const struct ps_optim_norms *norms)
{
    const double low = o->value[PS_OPTIM_LOWER_BOUND];
    const double high = o->value[PS_OPTIM_UPPER_BOUND];
    const double u = sqrt(norms->square_sum);
    double w = sqrt(norms->weight_square_sum);

    w = low > 0 && w < low ? low : w;
    w = high > 0 && w > high ? high : w;
    return w == 0 || u == 0 ? 1 : w / u;
}

bool ps_optim_apply_norms(const struct ps_optim *o,
                          const struct ps_optim_norms *norms,
                          struct ps_optim_step_params *at)
{
    const struct ps_optim now = optim_at_round(o, at->round);

    if (at->stage == PS_STAGE_DIRECTION) {
        /* Without a finite norm there is no direction. */
        at->trust_ratio = norms->nonfinite_count > 0 ? (double)NAN
                                                     : lamb_ratio(&now, norms);
    } else if (norms->nonfinite_count > 0) {
        return !ps_optim_skips_nonfinite(o);
    } else {
        at->grad_scale = global_clip_scale(&now, at, norms->global_square_sum);
        if (ps_optim_needs_weight_norm(o, at)) {
            at->trust_ratio = o->kind->step == LARS
                                  ? lars_ratio(&now, norms, at)
                                  : lbsgd_ratio(&now, norms, at);
        }
    }
    return true;
}
