/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer declarations: one table of hyper-parameters with their ranges, one
 * of optimizers with their hyper-parameters. Names come from unauthenticated
 * peers and are escaped in error texts. */
#include "core/optim/optim.h"

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

/* lbsgd: how the factor of the rate rises from 1 to batch_scale over the rounds
 * of the warm-up, or that norms give it. */
enum warmup_strategy {
    WARMUP_LINEAR,
    WARMUP_POWER2,
    WARMUP_SQRT,
    WARMUP_LARS,
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

enum {
    SGD = -1,   /* Has its own job operation instead of a step kind. */
    LARS = -2,  /* Uses SGD's operation with a scaled rate. */
    LBSGD = -3, /* The same. */
};

struct param_default {
    enum ps_optim_param param;
    double value;
};

#define OWN_PARAMS_MAX 8u

struct ps_optim_kind {
    const char *name;
    int step; /* enum ps_step_kind of the plain form, or SGD, LARS, LBSGD. */
    bool has_rate;
    bool is_bare; /* Has neither wd nor clip_gradient. */
    unsigned param_count;
    /* Further parameters, with defaults. */
    struct param_default params[OWN_PARAMS_MAX];
};

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
static const struct param_default common_defaults[] = {
    {PS_OPTIM_RESCALE, 1}, {PS_OPTIM_FACTOR, 1}, {PS_OPTIM_STOP_LR, 1e-8},
    {PS_OPTIM_POWER, 2},   {PS_OPTIM_LAZY, 1},   {PS_OPTIM_ACCUMULATE, 1},
};

/* True if the optimizer has a step on single rows, as in MXNet's KVStore. */
static bool kind_has_row_step(const struct ps_optim_kind *kind)
{
    return kind->step == SGD || kind->step == PS_STEP_ADAM ||
           kind->step == PS_STEP_ADAGRAD || kind->step == PS_STEP_FTRL ||
           kind->step == PS_STEP_GROUP_ADAGRAD;
}

static const char *text_or_empty(const char *s)
{
    return s != NULL ? s : "";
}

static bool kind_has_param(const struct ps_optim_kind *kind, unsigned param)
{
    if (param == PS_OPTIM_LAZY) {
        return kind_has_row_step(kind);
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

/* Returns the parameter of that name or alias; PS_OPTIM_PARAMS: the optimizer
 * has none. */
static unsigned find_param(const struct ps_optim_kind *kind, const char *name)
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
    unsigned param = find_param(o->kind, name);

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

static uint64_t param_rounds(const struct ps_optim *o, unsigned param)
{
    return (uint64_t)o->value[param];
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
        .step_rounds = param_rounds(o, PS_OPTIM_STEP),
        .max_update = param_rounds(o, PS_OPTIM_MAX_UPDATE),
        .power = v[PS_OPTIM_POWER],
        .final_rate = v[PS_OPTIM_FINAL_LR],
        .warmup_rounds = param_rounds(o, PS_OPTIM_WARMUP_STEPS),
        .warmup_rate = v[PS_OPTIM_WARMUP_BEGIN_LR],
        .warmup_is_constant = v[PS_OPTIM_WARMUP_CONSTANT] != 0,
    };
    for (unsigned i = 0; i < PS_LR_MILESTONES_MAX; i++) {
        lr->milestones[i] = param_rounds(o, PS_OPTIM_STEP_1 + i);
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

/* Rounds of lbsgd before the first one of this job. */
static double lbsgd_rounds_before(const struct ps_optim *o)
{
    return o->value[PS_OPTIM_BEGIN_EPOCH] *
           o->value[PS_OPTIM_UPDATES_PER_EPOCH];
}

/* Fails if the numbers of lbsgd contradict each other. */
static int check_batches(const struct ps_optim *o, struct ps_str *why)
{
    const uint64_t each = param_rounds(o, PS_OPTIM_BATCH_SCALE);

    if (o->kind->step == LBSGD &&
        (param_rounds(o, PS_OPTIM_BEGIN_EPOCH) % each) *
                (param_rounds(o, PS_OPTIM_UPDATES_PER_EPOCH) % each) % each !=
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

int ps_optim_check(const char *name, const struct ps_rec_param *params,
                   uint32_t count, char *why, size_t why_cap)
{
    struct ps_optim o;
    struct ps_str s;

    ps_str_init(&s, why, why_cap);
    return parse_optim(name, params, count, &o, &s);
}

int ps_optim_parse(const char *name, const struct ps_rec_param *params,
                   uint32_t count, struct ps_optim *ret)
{
    struct ps_optim o;
    char why[1];
    struct ps_str s;

    ps_str_init(&s, why, sizeof(why));
    int rc = parse_optim(name, params, count, &o, &s);
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
    const unsigned param = find_param(kind, name);

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
    return param_rounds(o, o->kind->step == LBSGD ? PS_OPTIM_BATCH_SCALE
                                                  : PS_OPTIM_ACCUMULATE);
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
    return kind_has_row_step(o->kind) && o->value[PS_OPTIM_LAZY] != 0;
}

bool ps_optim_state_is_weight(const struct ps_optim *o, unsigned i)
{
    return o->kind->step == PS_STEP_DCASGD && i == 1;
}

/* ------------------------------------------------------------ one step */

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
            now.value[find_param(o->kind, c->name)] = c->value;
        }
    }
    now.lr.base_rate = now.value[PS_OPTIM_LR];
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
    return at->step_number + param_rounds(o, PS_OPTIM_BEGIN);
}

/* The rate, less the factors of the key. */
static double rate_of_step(const struct ps_optim *o,
                           const struct ps_optim_step_params *at)
{
    if (!o->kind->has_rate) {
        return 0;
    }
    if (o->kind->step != LBSGD) {
        return ps_lr_at(&o->lr, step_number_of(o, at));
    }
    /* Its schedule and its warm-up count rounds. */
    const uint64_t rounds = at->step_number * ps_optim_rounds_per_step(o);
    const double rate = ps_lr_at(&o->lr,
                                 rounds + param_rounds(o, PS_OPTIM_BEGIN));

    return lbsgd_uses_norms(o) ? rate
                               : rate * lbsgd_warmup(o, lbsgd_rounds_before(o) +
                                                            (double)rounds);
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
    const double before = ps_lr_at(&old.lr, step_number_of(o, at) - 1);

    return before != 0
               ? given * (ps_lr_at(&o->lr, step_number_of(o, at)) / before)
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
        .noise = {.key = at->name_hash ^ param_rounds(o, PS_OPTIM_SEED),
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

enum ps_stage ps_optim_first_stage(const struct ps_optim *o,
                                   const struct ps_optim_step_params *at)
{
    if (ps_optim_skips_nonfinite(o) || ps_optim_clips_global_norm(o) ||
        lbsgd_uses_norms(o) || (o->kind->step == LARS && !at->norm_exempt)) {
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
