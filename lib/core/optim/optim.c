/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer declarations: one table of hyper-parameters with their ranges, one
 * of optimizers with their hyper-parameters. */
#include "core/optim/kind.h"

#include "base/str.h"
#include "core/optim/param.h"

#include <assert.h>
#include <string.h>

static const struct ps_param param_specs[PS_OPTIM_PARAMS] = {
    [PS_OPTIM_LR] = {"learning_rate", "lr", PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_MOMENTUM] = {"momentum", NULL, PS_RANGE_BELOW_ONE},
    [PS_OPTIM_DECAY_AFTER] = {"decay_after_step", NULL, PS_RANGE_SWITCH},
    [PS_OPTIM_WD] = {"wd", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_RESCALE] = {"rescale_grad", "rescale", PS_RANGE_ANY},
    [PS_OPTIM_CLIP] = {"clip_gradient", "clip", PS_RANGE_ANY},
    [PS_OPTIM_BETA1] = {"beta1", NULL, PS_RANGE_BELOW_ONE},
    [PS_OPTIM_BETA2] = {"beta2", NULL, PS_RANGE_BELOW_ONE},
    [PS_OPTIM_EPSILON] = {"epsilon", "eps", PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_GAMMA1] = {"gamma1", NULL, PS_RANGE_BELOW_ONE},
    [PS_OPTIM_GAMMA2] = {"gamma2", NULL, PS_RANGE_BELOW_ONE},
    [PS_OPTIM_CENTERED] = {"centered", NULL, PS_RANGE_SWITCH},
    [PS_OPTIM_CLIP_WEIGHTS] = {"clip_weights", NULL, PS_RANGE_ANY},
    [PS_OPTIM_RHO] = {"rho", NULL, PS_RANGE_BELOW_ONE},
    [PS_OPTIM_LAMDA1] = {"lamda1", "lambda1", PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_BETA] = {"beta", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_CORRECT_BIAS] = {"correct_bias", "bias_correction",
                               PS_RANGE_SWITCH},
    [PS_OPTIM_SCHEDULE_DECAY] = {"schedule_decay", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_WD_LH] = {"wd_lh", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_LAMDA] = {"lamda", "lambda", PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_LAZY] = {"lazy_update", NULL, PS_RANGE_SWITCH},
    [PS_OPTIM_BEGIN] = {"begin_num_update", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_ACCUMULATE] = {"accumulate", "accumulate_steps", PS_RANGE_COUNT},
    [PS_OPTIM_LOWER_BOUND] = {"lower_bound", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_UPPER_BOUND] = {"upper_bound", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_ETA] = {"eta", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_CORRECT_MOMENTUM] = {"momentum_correction", NULL,
                                   PS_RANGE_SWITCH},
    [PS_OPTIM_BATCH_SCALE] = {"batch_scale", NULL, PS_RANGE_COUNT},
    [PS_OPTIM_WARMUP_STRATEGY] = {"warmup_strategy", NULL, PS_RANGE_STRATEGY},
    [PS_OPTIM_WARMUP_EPOCHS] = {"warmup_epochs", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_UPDATES_PER_EPOCH] = {"updates_per_epoch", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_BEGIN_EPOCH] = {"begin_epoch", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_SEED] = {"seed", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_SKIP] = {"skip_nonfinite", NULL, PS_RANGE_SWITCH},
    [PS_OPTIM_CLIP_GLOBAL] = {"clip_global_norm", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_SCHEDULER] = {"lr_scheduler", NULL, PS_RANGE_SCHEDULE},
    [PS_OPTIM_STEP] = {"lr_scheduler_step", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_STEP_1] = {"lr_scheduler_step_1", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_STEP_1 + 1] = {"lr_scheduler_step_2", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_STEP_1 + 2] = {"lr_scheduler_step_3", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_STEP_1 + 3] = {"lr_scheduler_step_4", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_STEP_1 + 4] = {"lr_scheduler_step_5", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_STEP_1 + 5] = {"lr_scheduler_step_6", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_STEP_1 + 6] = {"lr_scheduler_step_7", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_STEP_8] = {"lr_scheduler_step_8", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_FACTOR] = {"lr_scheduler_factor", NULL, PS_RANGE_UP_TO_ONE},
    [PS_OPTIM_STOP_LR] = {"lr_scheduler_stop_lr", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_MAX_UPDATE] = {"lr_scheduler_max_update", NULL, PS_RANGE_WHOLE},
    [PS_OPTIM_POWER] = {"lr_scheduler_power", NULL, PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_FINAL_LR] = {"lr_scheduler_final_lr", NULL,
                           PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_WARMUP_STEPS] = {"lr_scheduler_warmup_steps", NULL,
                               PS_RANGE_WHOLE},
    [PS_OPTIM_WARMUP_BEGIN_LR] = {"lr_scheduler_warmup_begin_lr", NULL,
                                  PS_RANGE_NOT_NEGATIVE},
    [PS_OPTIM_WARMUP_CONSTANT] = {"lr_scheduler_warmup_constant", NULL,
                                  PS_RANGE_SWITCH},
};

_Static_assert(PS_OPTIM_PARAMS < 64, "they are a set in 64 bits");

static const struct ps_optim_kind optim_kinds[] = {
    {"sgd", SGD, {{PS_OPTIM_LR, .01}, {PS_OPTIM_MOMENTUM, 0}}},
    {"nag",
     PS_STEP_NAG,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_MOMENTUM, 0}, {PS_OPTIM_DECAY_AFTER, 0}}},
    {"adam",
     PS_STEP_ADAM,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_BETA1, .9},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-8}}},
    {"adamw",
     PS_STEP_ADAMW,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_BETA1, .9},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-6},
      {PS_OPTIM_CORRECT_BIAS, 1}}},
    {"adagrad",
     PS_STEP_ADAGRAD,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_EPSILON, 1e-7}}},
    {"rmsprop",
     PS_STEP_RMSPROP,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_GAMMA1, .9},
      {PS_OPTIM_GAMMA2, .9},
      {PS_OPTIM_EPSILON, 1e-8},
      {PS_OPTIM_CENTERED, 0},
      {PS_OPTIM_CLIP_WEIGHTS, 0}}},
    {"adadelta",
     PS_STEP_ADADELTA,
     {{PS_OPTIM_RHO, .9}, {PS_OPTIM_EPSILON, 1e-5}}},
    {"ftrl",
     PS_STEP_FTRL,
     {{PS_OPTIM_LR, .1}, {PS_OPTIM_LAMDA1, .01}, {PS_OPTIM_BETA, 1}}},
    {"adamax",
     PS_STEP_ADAMAX,
     {{PS_OPTIM_LR, .002}, {PS_OPTIM_BETA1, .9}, {PS_OPTIM_BETA2, .999}}},
    {"nadam",
     PS_STEP_NADAM,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_BETA1, .9},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-8},
      {PS_OPTIM_SCHEDULE_DECAY, .004}}},
    {"ftml",
     PS_STEP_FTML,
     {{PS_OPTIM_LR, .01},
      {PS_OPTIM_BETA1, .6},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-8}}},
    {"signum",
     PS_STEP_SIGNUM,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_MOMENTUM, .9}, {PS_OPTIM_WD_LH, 0}}},
    {"signsgd", PS_STEP_SIGNSGD, {{PS_OPTIM_LR, .01}}},
    {"dcasgd",
     PS_STEP_DCASGD,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_MOMENTUM, 0}, {PS_OPTIM_LAMDA, .04}}},
    {"groupadagrad",
     PS_STEP_GROUP_ADAGRAD,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_EPSILON, 1e-5}}},
    {"sgld", PS_STEP_SGLD, {{PS_OPTIM_LR, .01}, {PS_OPTIM_SEED, 0}}},
    {"lamb",
     PS_STEP_LAMB,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_BETA1, .9},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-6},
      {PS_OPTIM_CORRECT_BIAS, 1},
      {PS_OPTIM_LOWER_BOUND, 0},
      {PS_OPTIM_UPPER_BOUND, 0}}},
    {"lars",
     LARS,
     {{PS_OPTIM_LR, .01},
      {PS_OPTIM_MOMENTUM, 0},
      {PS_OPTIM_ETA, .001},
      {PS_OPTIM_EPSILON, 0},
      {PS_OPTIM_CORRECT_MOMENTUM, 1}}},
    {"lbsgd",
     LBSGD,
     {{PS_OPTIM_LR, .01},
      {PS_OPTIM_MOMENTUM, 0},
      {PS_OPTIM_BATCH_SCALE, 1},
      {PS_OPTIM_WARMUP_STRATEGY, WARMUP_LINEAR},
      {PS_OPTIM_WARMUP_EPOCHS, 5},
      {PS_OPTIM_UPDATES_PER_EPOCH, 32},
      {PS_OPTIM_BEGIN_EPOCH, 0}}},
    {"test", PS_STEP_TEST, {{PS_OPTIM_NONE, 0}}},
};

/* Defaults of the common parameters and of schedules. */
static const struct ps_optim_default common_defaults[] = {
    {PS_OPTIM_RESCALE, 1}, {PS_OPTIM_FACTOR, 1}, {PS_OPTIM_STOP_LR, 1e-8},
    {PS_OPTIM_POWER, 2},   {PS_OPTIM_LAZY, 1},   {PS_OPTIM_ACCUMULATE, 1},
};

#define BIT(param) (UINT64_C(1) << (param))

bool ps_optim_has_rate(const struct ps_optim_kind *kind)
{
    return kind->params[0].param == PS_OPTIM_LR;
}

/* The parameters of the optimizer, its own and the common ones. */
static struct ps_param_set params_of(const struct ps_optim_kind *kind)
{
    const bool is_test = kind->step == PS_STEP_TEST;
    const bool is_grouped = kind->step == PS_STEP_GROUP_ADAGRAD;
    uint64_t mask = BIT(PS_OPTIM_RESCALE) | BIT(PS_OPTIM_BEGIN);

    for (unsigned i = 0; kind->params[i].param != PS_OPTIM_NONE; i++) {
        mask |= BIT(kind->params[i].param);
    }
    mask |= ps_optim_has_row_step(kind) ? BIT(PS_OPTIM_LAZY) : 0;
    /* lbsgd has batch_scale. */
    mask |= kind->step != LBSGD ? BIT(PS_OPTIM_ACCUMULATE) : 0;
    mask |= is_test ? 0 : BIT(PS_OPTIM_CLIP);
    mask |= is_test || is_grouped ? 0 : BIT(PS_OPTIM_WD);
    /* These need norms of whole arrays. */
    mask |= is_grouped ? 0 : BIT(PS_OPTIM_SKIP) | BIT(PS_OPTIM_CLIP_GLOBAL);
    if (ps_optim_has_rate(kind)) {
        mask |= BIT(PS_OPTIM_PARAMS) - BIT(PS_OPTIM_SCHEDULER);
    }
    return (struct ps_param_set){.list = param_specs,
                                 .count = PS_OPTIM_PARAMS,
                                 .shown = PS_OPTIM_SCHEDULER + 1,
                                 .mask = mask,
                                 .prefix = "",
                                 .name = kind->name,
                                 .lacks = " has no hyper-parameter '"};
}

unsigned ps_optim_find_param(const struct ps_optim_kind *kind, const char *name)
{
    const struct ps_param_set set = params_of(kind);

    return ps_param_find(&set, name);
}

static const struct ps_optim_kind *find_kind(const char *name,
                                             struct ps_str *why)
{
    return ps_param_find_kind(optim_kinds, sizeof(optim_kinds[0]),
                              sizeof(optim_kinds) / sizeof(optim_kinds[0]),
                              name, "no optimizer is called '", why);
}

/* Fails if the numbers of the schedule contradict each other. */
static int check_schedule(const struct ps_optim *o, struct ps_str *why)
{
    const double *step = &o->value[PS_OPTIM_STEP_1];

    switch ((enum ps_lr_kind)(int)o->value[PS_OPTIM_SCHEDULER]) {
    case PS_LR_CONSTANT:
        break;
    case PS_LR_FACTOR:
        if (o->value[PS_OPTIM_STEP] == 0) {
            ps_str_add(why, "the factor schedule needs lr_scheduler_step of at "
                            "least one round");
            return PS_E_INVAL;
        }
        break;
    case PS_LR_MULTIFACTOR:
        for (unsigned i = 0; i < PS_LR_MILESTONES_MAX; i++) {
            bool follows = i > 0 && step[i] != 0;

            if ((i == 0 && step[0] == 0) ||
                (follows && (step[i] <= step[i - 1] || step[i - 1] == 0))) {
                ps_str_add(why, "the multifactor schedule needs "
                                "lr_scheduler_step_1 and so on to rise");
                return PS_E_INVAL;
            }
        }
        break;
    case PS_LR_POLY:
    case PS_LR_COSINE:
        if (o->value[PS_OPTIM_MAX_UPDATE] <= o->value[PS_OPTIM_WARMUP_STEPS]) {
            ps_str_add(why, "this schedule needs lr_scheduler_max_update "
                            "beyond lr_scheduler_warmup_steps");
            return PS_E_INVAL;
        }
        break;
    }
    return 0;
}

/* Fails if the numbers of lbsgd contradict each other. */
static int check_batches(const struct ps_optim *o, struct ps_str *why)
{
    const uint64_t each = ps_optim_param_rounds(o, PS_OPTIM_BATCH_SCALE);

    if (o->kind->step == LBSGD &&
        (ps_optim_param_rounds(o, PS_OPTIM_BEGIN_EPOCH) % each) *
                (ps_optim_param_rounds(o, PS_OPTIM_UPDATES_PER_EPOCH) % each) %
                each !=
            0) {
        ps_str_add(why, "lbsgd begins between two steps: begin_epoch times "
                        "updates_per_epoch must be a multiple of batch_scale");
        return PS_E_INVAL;
    }
    return 0;
}

int ps_optim_parse(const char *name, const struct ps_rec_param *params,
                   uint32_t count, struct ps_optim *ret, struct ps_str *why)
{
    struct ps_optim o = {.kind = find_kind(name, why)};

    if (o.kind == NULL) {
        return PS_E_UNSUPPORTED;
    }
    const struct ps_param_set set = params_of(o.kind);

    for (size_t i = 0; i < sizeof(common_defaults) / sizeof(common_defaults[0]);
         i++) {
        o.value[common_defaults[i].param] = common_defaults[i].value;
    }
    for (unsigned i = 0; o.kind->params[i].param != PS_OPTIM_NONE; i++) {
        o.value[o.kind->params[i].param] = o.kind->params[i].value;
    }
    int rc = ps_param_parse(&set, params, count, o.value, why);

    rc = rc != 0 ? rc : check_batches(&o, why);
    rc = rc != 0 ? rc : check_schedule(&o, why);
    if (rc == 0) {
        *ret = o;
    }
    return rc;
}

int ps_optim_check_change(const char *optimizer,
                          const struct ps_rec_change *change,
                          const char **ret_name, struct ps_str *why)
{
    const char *name = ps_str_or_empty(change->name);
    const struct ps_optim_kind *kind = find_kind(optimizer, why);

    assert(kind != NULL);
    struct ps_param_set live = params_of(kind);

    live.mask &= BIT(PS_OPTIM_LR) | BIT(PS_OPTIM_WD) | BIT(PS_OPTIM_RESCALE) |
                 BIT(PS_OPTIM_CLIP);
    const unsigned param = ps_param_find(&live, name);

    if (param < live.count) {
        int rc = ps_param_check(&live, param, change->value, why);

        *ret_name = rc == 0 ? param_specs[param].name : *ret_name;
        return rc;
    }
    ps_str_addf(why, "%s cannot change '", kind->name);
    ps_str_add_escaped(why, name, strlen(name), 32);
    ps_str_add(why, "' while the job runs; it can change");
    ps_param_add_names(&live, why);
    return PS_E_INVAL;
}
