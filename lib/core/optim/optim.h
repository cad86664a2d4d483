/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers that a job may declare: names, hyper-parameters and their ranges,
 * and the plan of each step. The scheduler checks a declaration before it
 * publishes it, so an invalid one fails only its caller. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "core/optim/tuning.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>

#define PS_LR_MILESTONES_MAX 8u

/* Hyper-parameters of all optimizers. */
enum ps_optim_param {
    PS_OPTIM_NONE, /* Ends a list of them. */
    PS_OPTIM_LR,
    PS_OPTIM_MOMENTUM,
    PS_OPTIM_DECAY_AFTER,
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
    PS_OPTIM_BATCH_SCALE,
    PS_OPTIM_WARMUP_STRATEGY,
    PS_OPTIM_WARMUP_EPOCHS,
    PS_OPTIM_UPDATES_PER_EPOCH,
    PS_OPTIM_BEGIN_EPOCH,
    PS_OPTIM_SEED,
    PS_OPTIM_SKIP,
    PS_OPTIM_CLIP_GLOBAL,
    PS_OPTIM_SCHEDULER, /* The rest belongs to the learning rate's schedule. */
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

/* Learning rate schedules. The rate is a pure function of the round, so no
 * state is kept or sent, and all servers agree. p is (n - warmup) / (max_update -
 * warmup), at most 1. In rounds n < warmup the rate rises linearly from
 * warmup_begin_lr to learning_rate, or stays at warmup_begin_lr. */
enum ps_lr_kind {
    PS_LR_CONSTANT,
    /* learning_rate * factor^floor((n-1)/step), not below stop_lr */
    PS_LR_FACTOR,
    PS_LR_MULTIFACTOR, /* learning_rate * factor^(number of steps below n) */
    PS_LR_POLY,        /* final_lr + (learning_rate-final_lr) * (1-p)^power */
    PS_LR_COSINE, /* final_lr + (learning_rate-final_lr) * (1+cos(pi*p))/2 */
};

struct ps_optim_kind;

/* A valid declaration. */
struct ps_optim {
    const struct ps_optim_kind *kind;
    /* Only those of the optimizer's own parameters are used. */
    double value[PS_OPTIM_PARAMS];
    struct ps_changes changes;
};

/* Rate of round n, without changes; the first round is 1. */
double ps_optim_rate(const struct ps_optim *o, uint64_t n);

/* Parses a declaration; docs/optimizers.md has the optimizers, their
 * hyper-parameters, defaults and formulas. *ret is written only on success.
 *
 * PS_E_UNSUPPORTED: there is no optimizer of that name; PS_E_INVAL: a
 * hyper-parameter is unknown, given twice or out of range; the error text is
 * appended to `why`. */
PS_MUST_USE int ps_optim_parse(const char *name,
                               const struct ps_rec_param *params,
                               uint32_t count, struct ps_optim *ret,
                               struct ps_str *why);

/* Checks a change of a hyper-parameter in a running job. PS_E_INVAL: not
 * allowed, and the error text is appended to `why`. *ret_name is the parameter's
 * name, of static duration. */
PS_MUST_USE int ps_optim_check_change(const char *optimizer,
                                      const struct ps_rec_change *change,
                                      const char **ret_name,
                                      struct ps_str *why);

/* Rounds whose gradients are accumulated for one step. */
uint64_t ps_optim_rounds_per_step(const struct ps_optim *o);
/* Number of state buffers, each of the size of the weights. */
unsigned ps_optim_state_count(const struct ps_optim *o);
/* True if it works on rows keys only. */
bool ps_optim_needs_rows(const struct ps_optim *o);
/* True if steps need norms of whole arrays. Then it needs rounds, and no
 * rows. */
bool ps_optim_needs_norms(const struct ps_optim *o);
/* True if steps need the global norm of all gradients of a round. */
bool ps_optim_clips_global_norm(const struct ps_optim *o);
/* True if a key with a gradient that is not finite is left unchanged. */
bool ps_optim_skips_nonfinite(const struct ps_optim *o);
/* True if rows without contribution are left unchanged. Else a step treats them
 * as if their gradient were zero. */
bool ps_optim_is_lazy(const struct ps_optim *o);
/* True if state `i` is initialized with the weights, false: with zeros. */
bool ps_optim_state_is_weight(const struct ps_optim *o, unsigned i);

/* Identity and intermediate results of one step of one key. */
struct ps_optim_step_params {
    uint64_t round;       /* Round whose hyper-parameter changes apply. */
    uint64_t step_number; /* Steps of the key up to this one; the first is 1. */
    uint64_t name_hash;   /* Of the key, see base/name_hash.h. */
    uint64_t first_elem;  /* Where the partition begins in its array. */
    double lr_mult;
    double wd_mult;
    bool norm_exempt; /* See base/name_hash.h. */
    bool is_mean;     /* The gradient is a mean, over all rounds of the step. */
    bool apart;       /* The gradient is the result of a stage of its own. */
    enum ps_stage stage;
    /* Factor of the rate, from norms; 1 until they are known. */
    double trust_ratio;
    /* Factor of the gradient, from norms; 1 until they are known. */
    double grad_scale;
};

/* Sums of squares over whole arrays. */
struct ps_optim_norms {
    uint64_t nonfinite_count; /* Elements without a finite square. */
    double square_sum;        /* Square sum of the stage's result. */
    double weight_square_sum;
    double global_square_sum; /* Square sum of the gradients of all keys. */
};

/* The first stage of a step, and the one after `at->stage`. A step without
 * norms has only PS_STAGE_LAST. */
enum ps_stage ps_optim_first_stage(const struct ps_optim *o,
                                   const struct ps_optim_step_params *at);
enum ps_stage ps_optim_next_stage(const struct ps_optim *o,
                                  const struct ps_optim_step_params *at);
/* True if the step needs norms of the gradient. */
bool ps_optim_needs_gradient_norm(const struct ps_optim *o,
                                  const struct ps_optim_step_params *at);
/* True if the stage needs a norm of the weights. */
bool ps_optim_needs_weight_norm(const struct ps_optim *o,
                                const struct ps_optim_step_params *at);
/* Sets the factors that follow from the norms of `at->stage`. False: the step
 * is skipped. */
bool ps_optim_apply_norms(const struct ps_optim *o,
                          const struct ps_optim_norms *norms,
                          struct ps_optim_step_params *at);

/* Sets op, numbers and step parameters of `job` for one stage. The caller sets
 * the buffers. */
void ps_optim_plan_step(const struct ps_optim *o,
                        const struct ps_optim_step_params *at,
                        struct ps_job *job);
