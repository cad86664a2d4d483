/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer declarations: one table of hyper-parameters with their ranges, one
 * of optimizers with their hyper-parameters. Names come from unauthenticated
 * peers and are escaped in error texts. */
#include "core/optim/kind.h"

#include "base/str.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum range {
    ANY,          /* Any finite number. */
    NOT_NEGATIVE, /* At least 0. */
    BELOW_ONE,    /* At least 0 and less than 1. */
    UP_TO_ONE,    /* More than 0 and at most 1. */
    SWITCH,       /* 0 or 1. */
    WHOLE,        /* A whole number, at least 0. */
    COUNT,        /* A whole number, at least 1. */
    SCHEDULE,     /* One of enum ps_lr_kind. */
    STRATEGY,     /* One of enum warmup_strategy. */
};

struct row {
    const char *name;
    const char *alias; /* NULL: no alias. */
    enum range range;
};

static const struct row param_specs[PS_OPTIM_PARAMS] = {
    [PS_OPTIM_LR] = {"learning_rate", "lr", NOT_NEGATIVE},
    [PS_OPTIM_MOMENTUM] = {"momentum", NULL, BELOW_ONE},
    [PS_OPTIM_DECAY_AFTER] = {"decay_after_step", NULL, SWITCH},
    [PS_OPTIM_WD] = {"wd", NULL, NOT_NEGATIVE},
    [PS_OPTIM_RESCALE] = {"rescale_grad", "rescale", ANY},
    [PS_OPTIM_CLIP] = {"clip_gradient", "clip", ANY},
    [PS_OPTIM_BETA1] = {"beta1", NULL, BELOW_ONE},
    [PS_OPTIM_BETA2] = {"beta2", NULL, BELOW_ONE},
    [PS_OPTIM_EPSILON] = {"epsilon", "eps", NOT_NEGATIVE},
    [PS_OPTIM_GAMMA1] = {"gamma1", NULL, BELOW_ONE},
    [PS_OPTIM_GAMMA2] = {"gamma2", NULL, BELOW_ONE},
    [PS_OPTIM_CENTERED] = {"centered", NULL, SWITCH},
    [PS_OPTIM_CLIP_WEIGHTS] = {"clip_weights", NULL, ANY},
    [PS_OPTIM_RHO] = {"rho", NULL, BELOW_ONE},
    [PS_OPTIM_LAMDA1] = {"lamda1", "lambda1", NOT_NEGATIVE},
    [PS_OPTIM_BETA] = {"beta", NULL, NOT_NEGATIVE},
    [PS_OPTIM_CORRECT_BIAS] = {"correct_bias", "bias_correction", SWITCH},
    [PS_OPTIM_SCHEDULE_DECAY] = {"schedule_decay", NULL, NOT_NEGATIVE},
    [PS_OPTIM_WD_LH] = {"wd_lh", NULL, NOT_NEGATIVE},
    [PS_OPTIM_LAMDA] = {"lamda", "lambda", NOT_NEGATIVE},
    [PS_OPTIM_LAZY] = {"lazy_update", NULL, SWITCH},
    [PS_OPTIM_BEGIN] = {"begin_num_update", NULL, WHOLE},
    [PS_OPTIM_ACCUMULATE] = {"accumulate", "accumulate_steps", COUNT},
    [PS_OPTIM_LOWER_BOUND] = {"lower_bound", NULL, NOT_NEGATIVE},
    [PS_OPTIM_UPPER_BOUND] = {"upper_bound", NULL, NOT_NEGATIVE},
    [PS_OPTIM_ETA] = {"eta", NULL, NOT_NEGATIVE},
    [PS_OPTIM_CORRECT_MOMENTUM] = {"momentum_correction", NULL, SWITCH},
    [PS_OPTIM_BATCH_SCALE] = {"batch_scale", NULL, COUNT},
    [PS_OPTIM_WARMUP_STRATEGY] = {"warmup_strategy", NULL, STRATEGY},
    [PS_OPTIM_WARMUP_EPOCHS] = {"warmup_epochs", NULL, NOT_NEGATIVE},
    [PS_OPTIM_UPDATES_PER_EPOCH] = {"updates_per_epoch", NULL, WHOLE},
    [PS_OPTIM_BEGIN_EPOCH] = {"begin_epoch", NULL, WHOLE},
    [PS_OPTIM_SEED] = {"seed", NULL, WHOLE},
    [PS_OPTIM_SKIP] = {"skip_nonfinite", NULL, SWITCH},
    [PS_OPTIM_CLIP_GLOBAL] = {"clip_global_norm", NULL, NOT_NEGATIVE},
    [PS_OPTIM_SCHEDULER] = {"lr_scheduler", NULL, SCHEDULE},
    [PS_OPTIM_STEP] = {"lr_scheduler_step", NULL, WHOLE},
    [PS_OPTIM_STEP_1] = {"lr_scheduler_step_1", NULL, WHOLE},
    [PS_OPTIM_STEP_1 + 1] = {"lr_scheduler_step_2", NULL, WHOLE},
    [PS_OPTIM_STEP_1 + 2] = {"lr_scheduler_step_3", NULL, WHOLE},
    [PS_OPTIM_STEP_1 + 3] = {"lr_scheduler_step_4", NULL, WHOLE},
    [PS_OPTIM_STEP_1 + 4] = {"lr_scheduler_step_5", NULL, WHOLE},
    [PS_OPTIM_STEP_1 + 5] = {"lr_scheduler_step_6", NULL, WHOLE},
    [PS_OPTIM_STEP_1 + 6] = {"lr_scheduler_step_7", NULL, WHOLE},
    [PS_OPTIM_STEP_8] = {"lr_scheduler_step_8", NULL, WHOLE},
    [PS_OPTIM_FACTOR] = {"lr_scheduler_factor", NULL, UP_TO_ONE},
    [PS_OPTIM_STOP_LR] = {"lr_scheduler_stop_lr", NULL, NOT_NEGATIVE},
    [PS_OPTIM_MAX_UPDATE] = {"lr_scheduler_max_update", NULL, WHOLE},
    [PS_OPTIM_POWER] = {"lr_scheduler_power", NULL, NOT_NEGATIVE},
    [PS_OPTIM_FINAL_LR] = {"lr_scheduler_final_lr", NULL, NOT_NEGATIVE},
    [PS_OPTIM_WARMUP_STEPS] = {"lr_scheduler_warmup_steps", NULL, WHOLE},
    [PS_OPTIM_WARMUP_BEGIN_LR] = {"lr_scheduler_warmup_begin_lr", NULL,
                                  NOT_NEGATIVE},
    [PS_OPTIM_WARMUP_CONSTANT] = {"lr_scheduler_warmup_constant", NULL, SWITCH},
};

_Static_assert(PS_OPTIM_PARAMS <= 64, "they are a set in 64 bits");

static const struct ps_optim_kind optim_kinds[] = {
    {"sgd", SGD, true, false, 2, {{PS_OPTIM_LR, .01}, {PS_OPTIM_MOMENTUM, 0}}},
    {"nag",
     PS_STEP_NAG,
     true,
     false,
     3,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_MOMENTUM, 0}, {PS_OPTIM_DECAY_AFTER, 0}}},
    {"adam",
     PS_STEP_ADAM,
     true,
     false,
     4,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_BETA1, .9},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-8}}},
    {"adamw",
     PS_STEP_ADAMW,
     true,
     false,
     5,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_BETA1, .9},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-6},
      {PS_OPTIM_CORRECT_BIAS, 1}}},
    {"adagrad",
     PS_STEP_ADAGRAD,
     true,
     false,
     2,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_EPSILON, 1e-7}}},
    {"rmsprop",
     PS_STEP_RMSPROP,
     true,
     false,
     6,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_GAMMA1, .9},
      {PS_OPTIM_GAMMA2, .9},
      {PS_OPTIM_EPSILON, 1e-8},
      {PS_OPTIM_CENTERED, 0},
      {PS_OPTIM_CLIP_WEIGHTS, 0}}},
    {"adadelta",
     PS_STEP_ADADELTA,
     false,
     false,
     2,
     {{PS_OPTIM_RHO, .9}, {PS_OPTIM_EPSILON, 1e-5}}},
    {"ftrl",
     PS_STEP_FTRL,
     true,
     false,
     3,
     {{PS_OPTIM_LR, .1}, {PS_OPTIM_LAMDA1, .01}, {PS_OPTIM_BETA, 1}}},
    {"adamax",
     PS_STEP_ADAMAX,
     true,
     false,
     3,
     {{PS_OPTIM_LR, .002}, {PS_OPTIM_BETA1, .9}, {PS_OPTIM_BETA2, .999}}},
    {"nadam",
     PS_STEP_NADAM,
     true,
     false,
     5,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_BETA1, .9},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-8},
      {PS_OPTIM_SCHEDULE_DECAY, .004}}},
    {"ftml",
     PS_STEP_FTML,
     true,
     false,
     4,
     {{PS_OPTIM_LR, .01},
      {PS_OPTIM_BETA1, .6},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-8}}},
    {"signum",
     PS_STEP_SIGNUM,
     true,
     false,
     3,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_MOMENTUM, .9}, {PS_OPTIM_WD_LH, 0}}},
    {"signsgd", PS_STEP_SIGNSGD, true, false, 1, {{PS_OPTIM_LR, .01}}},
    {"dcasgd",
     PS_STEP_DCASGD,
     true,
     false,
     3,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_MOMENTUM, 0}, {PS_OPTIM_LAMDA, .04}}},
    {"groupadagrad",
     PS_STEP_GROUP_ADAGRAD,
     true,
     false,
     2,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_EPSILON, 1e-5}}},
    {"sgld",
     PS_STEP_SGLD,
     true,
     false,
     2,
     {{PS_OPTIM_LR, .01}, {PS_OPTIM_SEED, 0}}},
    {"lamb",
     PS_STEP_LAMB,
     true,
     false,
     7,
     {{PS_OPTIM_LR, .001},
      {PS_OPTIM_BETA1, .9},
      {PS_OPTIM_BETA2, .999},
      {PS_OPTIM_EPSILON, 1e-6},
      {PS_OPTIM_CORRECT_BIAS, 1},
      {PS_OPTIM_LOWER_BOUND, 0},
      {PS_OPTIM_UPPER_BOUND, 0}}},
    {"lars",
     LARS,
     true,
     false,
     5,
     {{PS_OPTIM_LR, .01},
      {PS_OPTIM_MOMENTUM, 0},
      {PS_OPTIM_ETA, .001},
      {PS_OPTIM_EPSILON, 0},
      {PS_OPTIM_CORRECT_MOMENTUM, 1}}},
    {"lbsgd",
     LBSGD,
     true,
     false,
     7,
     {{PS_OPTIM_LR, .01},
      {PS_OPTIM_MOMENTUM, 0},
      {PS_OPTIM_BATCH_SCALE, 1},
      {PS_OPTIM_WARMUP_STRATEGY, WARMUP_LINEAR},
      {PS_OPTIM_WARMUP_EPOCHS, 5},
      {PS_OPTIM_UPDATES_PER_EPOCH, 32},
      {PS_OPTIM_BEGIN_EPOCH, 0}}},
    {"test", PS_STEP_TEST, false, true, 0, {{PS_OPTIM_LR, 0}}},
};

#define KINDS (sizeof(optim_kinds) / sizeof(optim_kinds[0]))

/* Defaults of the common parameters and of schedules. */
static const struct ps_optim_default common_defaults[] = {
    {PS_OPTIM_RESCALE, 1}, {PS_OPTIM_FACTOR, 1}, {PS_OPTIM_STOP_LR, 1e-8},
    {PS_OPTIM_POWER, 2},   {PS_OPTIM_LAZY, 1},   {PS_OPTIM_ACCUMULATE, 1},
};

static const char *text_or_empty(const char *s)
{
    return s != NULL ? s : "";
}

static bool kind_has_param(const struct ps_optim_kind *kind, unsigned param)
{
    if (param == PS_OPTIM_LAZY) {
        return ps_optim_has_row_step(kind);
    }
    if (param == PS_OPTIM_RESCALE || param == PS_OPTIM_BEGIN) {
        return true;
    }
    if (param == PS_OPTIM_ACCUMULATE) {
        return kind->step != LBSGD; /* It has batch_scale. */
    }
    if (param == PS_OPTIM_WD) {
        return !kind->is_bare && kind->step != PS_STEP_GROUP_ADAGRAD;
    }
    if (param == PS_OPTIM_SKIP || param == PS_OPTIM_CLIP_GLOBAL) {
        /* They need norms of whole arrays. */
        return kind->step != PS_STEP_GROUP_ADAGRAD;
    }
    if (param == PS_OPTIM_CLIP) {
        return !kind->is_bare;
    }
    if (param >= PS_OPTIM_SCHEDULER) {
        return kind->has_rate;
    }
    for (unsigned i = 0; i < kind->param_count; i++) {
        if (kind->params[i].param == param) {
            return true;
        }
    }
    return false;
}

unsigned ps_optim_find_param(const struct ps_optim_kind *kind, const char *name)
{
    for (unsigned i = 0; i < PS_OPTIM_PARAMS; i++) {
        if (kind_has_param(kind, i) &&
            (strcmp(name, param_specs[i].name) == 0 ||
             (param_specs[i].alias != NULL &&
              strcmp(name, param_specs[i].alias) == 0))) {
            return i;
        }
    }
    return PS_OPTIM_PARAMS;
}

static const struct ps_optim_kind *find_kind(const char *name)
{
    for (size_t i = 0; i < KINDS; i++) {
        if (strcmp(name, optim_kinds[i].name) == 0) {
            return &optim_kinds[i];
        }
    }
    return NULL;
}

static bool is_whole_between(double v, double least, double most)
{
    return v >= least && v <= most && floor(v) == v;
}

/* Returns the text of the violated range; NULL: the value is valid. */
static const char *range_violation(enum range range, double v)
{
    if (!isfinite(v)) {
        return "must be a finite number";
    }
    switch (range) {
    case ANY:
        return NULL;
    case NOT_NEGATIVE:
        return v >= 0 ? NULL : "must not be negative";
    case BELOW_ONE:
        return v >= 0 && v < 1 ? NULL : "must be at least 0 and less than 1";
    case UP_TO_ONE:
        return v > 0 && v <= 1 ? NULL : "must be above 0 and at most 1";
    case SWITCH:
        return v == 0 || v == 1 ? NULL : "must be 0 or 1";
    case WHOLE:
        return is_whole_between(v, 0, 1e15)
                   ? NULL
                   : "must be a whole number from 0 to 1e15";
    case COUNT:
        return is_whole_between(v, 1, 1e6)
                   ? NULL
                   : "must be a whole number from 1 to 1000000";
    case SCHEDULE:
        return is_whole_between(v, 0, PS_LR_COSINE)
                   ? NULL
                   : "must be 0 (constant), 1 (factor), 2 (multifactor), 3 "
                     "(poly) or 4 (cosine)";
    case STRATEGY:
        return is_whole_between(v, 0, WARMUP_LARS)
                   ? NULL
                   : "must be 0 (linear), 1 (power2), 2 (sqrt) or 3 (lars)";
    }
    return NULL;
}

static int accept_param(const struct ps_rec_param *p, uint64_t *seen,
                        struct ps_optim *o, struct ps_str *why)
{
    const char *name = text_or_empty(p->name);
    unsigned param = ps_optim_find_param(o->kind, name);

    if (param == PS_OPTIM_PARAMS) {
        const char *before = "";

        ps_str_addf(why, "%s has no hyper-parameter '", o->kind->name);
        ps_str_add_escaped(why, name, strlen(name), 32);
        ps_str_add(why, "'; it has");
        for (unsigned i = 0; i < PS_OPTIM_SCHEDULER; i++) {
            if (kind_has_param(o->kind, i)) {
                ps_str_addf(why, "%s %s", before, param_specs[i].name);
                before = ",";
            }
        }
        ps_str_add(why, o->kind->has_rate ? ", lr_scheduler" : "");
        return PS_E_INVAL;
    }
    if ((*seen & (uint64_t)1 << param) != 0) {
        ps_str_addf(why, "%s of %s is given twice", param_specs[param].name,
                    o->kind->name);
        return PS_E_INVAL;
    }
    *seen |= (uint64_t)1 << param;

    const char *must = range_violation(param_specs[param].range, p->value);
    if (must != NULL) {
        ps_str_addf(why, "%s of %s %s, not %g", param_specs[param].name,
                    o->kind->name, must, p->value);
        return PS_E_INVAL;
    }
    o->value[param] = p->value;
    return 0;
}

/* Sets o->lr, or fails if the numbers of the schedule contradict each other. */
static int parse_schedule(struct ps_optim *o, struct ps_str *why)
{
    const double *v = o->value;
    struct ps_lr *lr = &o->lr;

    *lr = (struct ps_lr){
        .kind = (enum ps_lr_kind)(int)v[PS_OPTIM_SCHEDULER],
        .base_rate = v[PS_OPTIM_LR],
        .factor = v[PS_OPTIM_FACTOR],
        .min_rate = v[PS_OPTIM_STOP_LR],
        .step_rounds = ps_optim_param_rounds(o, PS_OPTIM_STEP),
        .max_update = ps_optim_param_rounds(o, PS_OPTIM_MAX_UPDATE),
        .power = v[PS_OPTIM_POWER],
        .final_rate = v[PS_OPTIM_FINAL_LR],
        .warmup_rounds = ps_optim_param_rounds(o, PS_OPTIM_WARMUP_STEPS),
        .warmup_rate = v[PS_OPTIM_WARMUP_BEGIN_LR],
        .warmup_is_constant = v[PS_OPTIM_WARMUP_CONSTANT] != 0,
    };
    for (unsigned i = 0; i < PS_LR_MILESTONES_MAX; i++) {
        lr->milestones[i] = ps_optim_param_rounds(o, PS_OPTIM_STEP_1 + i);
    }
    switch (lr->kind) {
    case PS_LR_CONSTANT:
        break;
    case PS_LR_FACTOR:
        if (lr->step_rounds == 0) {
            ps_str_add(why, "the factor schedule needs lr_scheduler_step of at "
                            "least one round");
            return PS_E_INVAL;
        }
        break;
    case PS_LR_MULTIFACTOR:
        for (unsigned i = 0; i < PS_LR_MILESTONES_MAX; i++) {
            bool follows = i > 0 && lr->milestones[i] != 0;

            if ((i == 0 && lr->milestones[0] == 0) ||
                (follows && lr->milestones[i] <= lr->milestones[i - 1]) ||
                (follows && lr->milestones[i - 1] == 0)) {
                ps_str_add(why, "the multifactor schedule needs "
                                "lr_scheduler_step_1 and so on to rise");
                return PS_E_INVAL;
            }
        }
        break;
    case PS_LR_POLY:
    case PS_LR_COSINE:
        if (lr->max_update <= lr->warmup_rounds) {
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

static int parse_optim(const char *name, const struct ps_rec_param *params,
                       uint32_t count, struct ps_optim *o, struct ps_str *why)
{
    uint64_t seen = 0;

    name = text_or_empty(name);
    *o = (struct ps_optim){.kind = find_kind(name)};
    if (o->kind == NULL) {
        ps_str_add(why, "no optimizer is called '");
        ps_str_add_escaped(why, name, strlen(name), 32);
        ps_str_add(why, "'; there is");
        for (size_t i = 0; i < KINDS; i++) {
            ps_str_addf(why, "%s %s", i > 0 ? "," : "", optim_kinds[i].name);
        }
        return PS_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < sizeof(common_defaults) / sizeof(common_defaults[0]);
         i++) {
        o->value[common_defaults[i].param] = common_defaults[i].value;
    }
    for (unsigned i = 0; i < o->kind->param_count; i++) {
        o->value[o->kind->params[i].param] = o->kind->params[i].value;
    }
    for (uint32_t i = 0; i < count; i++) {
        int rc = accept_param(&params[i], &seen, o, why);

        if (rc != 0) {
            return rc;
        }
    }
    int rc = check_batches(o, why);

    return rc != 0 ? rc : parse_schedule(o, why);
}

int ps_optim_parse(const char *name, const struct ps_rec_param *params,
                   uint32_t count, struct ps_optim *ret, char *why,
                   size_t why_cap)
{
    struct ps_optim o;
    struct ps_str s;
    char none[1];
    int rc;

    ps_str_init(&s, why != NULL ? why : none,
                why != NULL ? why_cap : sizeof(none));
    rc = parse_optim(name, params, count, &o, &s);
    if (rc == 0) {
        *ret = o;
    }
    return rc;
}

int ps_optim_check_change(const char *optimizer,
                          const struct ps_rec_change *change,
                          const char **ret_name, char *why, size_t why_cap)
{
    static const unsigned live[] = {PS_OPTIM_LR, PS_OPTIM_WD, PS_OPTIM_RESCALE,
                                    PS_OPTIM_CLIP};
    const struct ps_optim_kind *kind = find_kind(text_or_empty(optimizer));
    const char *name = text_or_empty(change->name);
    const char *before = "";
    struct ps_str s;

    assert(kind != NULL);
    ps_str_init(&s, why, why_cap);
    const unsigned param = ps_optim_find_param(kind, name);

    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++) {
        if (live[i] != param) {
            continue;
        }
        const char *must = range_violation(param_specs[param].range,
                                           change->value);

        if (must != NULL) {
            ps_str_addf(&s, "%s of %s %s, not %g", param_specs[param].name,
                        kind->name, must, change->value);
            return PS_E_INVAL;
        }
        *ret_name = param_specs[param].name;
        return 0;
    }
    ps_str_addf(&s, "%s cannot change '", kind->name);
    ps_str_add_escaped(&s, name, strlen(name), 32);
    ps_str_add(&s, "' while the job runs; it can change");
    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++) {
        if (kind_has_param(kind, live[i])) {
            ps_str_addf(&s, "%s %s", before, param_specs[live[i]].name);
            before = ",";
        }
    }
    return PS_E_INVAL;
}
