/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers that a job may declare: names, hyper-parameters and the ranges
 * these may lie in. The scheduler asks before it tells the servers, so that a
 * declaration that makes no sense fails for its caller alone. */
#pragma once

#include "base/err.h"
#include "core/optim/lr.h"
#include "core/optim/tuning.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>

/* Every hyper-parameter of any optimizer. */
enum ps_optim_param {
    PS_OPTIM_LR,
    PS_OPTIM_MOMENTUM,
    PS_OPTIM_WD,
    PS_OPTIM_RESCALE,
    PS_OPTIM_CLIP,
    PS_OPTIM_BETA1,
    PS_OPTIM_BETA2,
    PS_OPTIM_EPSILON,
    PS_OPTIM_GAMMA1,
    PS_OPTIM_GAMMA2,
    PS_OPTIM_CENTERED,
    PS_OPTIM_CLIP_WEIGHTS,
    PS_OPTIM_RHO,
    PS_OPTIM_LAMDA1,
    PS_OPTIM_BETA,
    PS_OPTIM_CORRECT_BIAS,
    PS_OPTIM_SCHEDULE_DECAY,
    PS_OPTIM_WD_LH,
    PS_OPTIM_LAMDA,
    PS_OPTIM_LAZY,
    PS_OPTIM_BEGIN,
    PS_OPTIM_ACCUMULATE,
    PS_OPTIM_LOWER_BOUND,
    PS_OPTIM_UPPER_BOUND,
    PS_OPTIM_ETA,
    PS_OPTIM_CORRECT_MOMENTUM,
    PS_OPTIM_SKIP,
    PS_OPTIM_CLIP_GLOBAL,
    PS_OPTIM_SCHEDULER, /* From here on: of the learning rate's schedule. */
    PS_OPTIM_STEP,
    PS_OPTIM_STEP_1,
    PS_OPTIM_STEP_8 = PS_OPTIM_STEP_1 + PS_LR_MILESTONES_MAX - 1,
    PS_OPTIM_FACTOR,
    PS_OPTIM_STOP_LR,
    PS_OPTIM_MAX_UPDATE,
    PS_OPTIM_POWER,
    PS_OPTIM_FINAL_LR,
    PS_OPTIM_WARMUP_STEPS,
    PS_OPTIM_WARMUP_BEGIN_LR,
    PS_OPTIM_WARMUP_CONSTANT,
    PS_OPTIM_PARAMS,
};

struct ps_optim_kind;

/* A declaration that makes sense. */
struct ps_optim {
    const struct ps_optim_kind *kind;
    double value[PS_OPTIM_PARAMS]; /* Those that the optimizer has. */
    struct ps_lr lr;
    struct ps_changes changes;
};

/* What optimizers there are, with their hyper-parameters, defaults and
 * formulas: docs/optimizers.md.
 *
 * 0, PS_E_UNSUPPORTED for an optimizer that does not exist, PS_E_INVAL for a
 * hyper-parameter that does not, stands there twice, or holds a value that
 * makes no sense; then `why` says in words what is wrong. */
PS_MUST_USE int ps_optim_check(const char *name,
                               const struct ps_rec_param *params,
                               uint32_t count, char *why, size_t why_cap);

/* The same checks; *ret is written only on success. */
PS_MUST_USE int ps_optim_parse(const char *name,
                               const struct ps_rec_param *params,
                               uint32_t count, struct ps_optim *ret);

/* May this hyper-parameter be given another value while the job runs? 0, or
 * PS_E_INVAL and `why` says in words what is wrong. *ret_name is its name, of
 * static duration. */
PS_MUST_USE int ps_optim_check_change(const char *optimizer,
                                      const struct ps_rec_change *change,
                                      const char **ret_name, char *why,
                                      size_t why_cap);

/* A step takes the gradients of so many rounds together. */
uint64_t ps_optim_rounds_per_step(const struct ps_optim *o);
/* How many buffers as large as the weights it keeps between steps. */
unsigned ps_optim_state_count(const struct ps_optim *o);
/* Is it for keys of rows alone? */
bool ps_optim_needs_rows(const struct ps_optim *o);
/* Does it look at norms of whole arrays? Then it needs rounds, and no rows. */
bool ps_optim_needs_norms(const struct ps_optim *o);
/* Does it look at the norm of all gradients of a round together? */
bool ps_optim_clips_global_norm(const struct ps_optim *o);
/* Does it leave a key as it is when its gradient is not finite? */
bool ps_optim_skips_nonfinite(const struct ps_optim *o);
/* Does it leave rows alone that nobody gave anything to? Else a step takes
 * them as if zeros had been given. */
bool ps_optim_is_lazy(const struct ps_optim *o);
/* Does state `i` begin as a copy of the weights? Else it begins as zeros. */
bool ps_optim_state_is_weight(const struct ps_optim *o, unsigned i);

/* Which step of which key. */
struct ps_optim_step_params {
    uint64_t round;       /* Whose changes hold. */
    uint64_t step_number; /* Steps made before, and this one: from 1. */
    double lr_mult;
    double wd_mult;
    bool norm_exempt; /* A bias or the like, see base/name_hash.h. */
    enum ps_stage stage;
    double trust_ratio; /* Of the rate, by norms; 1 until they are known. */
    double grad_scale;  /* Of the gradient, likewise. */
};

/* Sums of squares of whole arrays. */
struct ps_optim_norms {
    uint64_t nonfinite_count; /* Elements that have no finite square. */
    double square_sum;        /* Of what the stage has made, */
    double weight_square_sum;
    double global_square_sum; /* and of the gradients of all keys. */
};

/* The first part of the step, or the one behind `at->stage`: what needs no
 * norms has only a last one. */
enum ps_stage ps_optim_first_stage(const struct ps_optim *o,
                                   const struct ps_optim_step_params *at);
enum ps_stage ps_optim_next_stage(const struct ps_optim *o,
                                  const struct ps_optim_step_params *at);
/* Does the stage need a norm of the weights? */
bool ps_optim_needs_weight_norm(const struct ps_optim *o,
                                const struct ps_optim_step_params *at);
/* The norms that `at->stage` has waited for. False: there is no step. */
bool ps_optim_apply_norms(const struct ps_optim *o,
                          const struct ps_optim_norms *norms,
                          struct ps_optim_step_params *at);

/* Makes the job this part of the step: its op, all numbers and `aside`. The
 * buffers are the caller's to set. */
void ps_optim_plan_step(const struct ps_optim *o,
                        const struct ps_optim_step_params *at,
                        struct ps_job *job);
