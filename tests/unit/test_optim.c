/* SPDX-License-Identifier: Apache-2.0 */
/* Valid declarations of optimizers, and the errors of invalid ones. */
#include "core/optim/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A reason that no test reads. */
#define UNREAD (&(struct ps_str)PS_STR_ROOM(512))

static void check_refused(const char *name, const struct ps_rec_param *params,
                          uint32_t count, int rc, const char *says)
{
    struct ps_optim o = {.value = {[PS_OPTIM_LR] = 42}};
    struct ps_str why = PS_STR_ROOM(512);

    assert_int_equal(ps_optim_parse(name, params, count, &o, &why), rc);
    if (strstr(why.data, says) == NULL) {
        fail_msg("'%s' does not say '%s'", why.data, says);
    }
    assert_true(o.value[PS_OPTIM_LR] == 42);
}

/* Job of step t of a declaration. */
static struct ps_job step_job(const char *name,
                              const struct ps_rec_param *params, uint32_t count,
                              uint64_t t)
{
    struct ps_optim o;
    struct ps_job job = {0};

    assert_int_equal(ps_optim_parse(name, params, count, &o, UNREAD), 0);
    ps_optim_plan_step(&o,
                       &(struct ps_optim_step_params){.round = t,
                                                      .step_number = t,
                                                      .lr_mult = 1,
                                                      .wd_mult = 1,
                                                      .trust_ratio = 1,
                                                      .grad_scale = 1},
                       &job);
    return job;
}

static void defaults_are_plain_sgd(void **state)
{
    (void)state;

    const struct ps_job job = step_job("sgd", NULL, 0, 1);
    const struct ps_sgd sgd = job.sgd;

    assert_int_equal(job.op, PS_JOB_SGD);
    assert_true(sgd.lr == 0.01);
    assert_true(sgd.momentum == 0);
    assert_true(sgd.wd == 0);
    assert_true(sgd.rescale == 1);
    assert_true(sgd.clip <= 0);
}

static void every_parameter_reaches_its_place(void **state)
{
    const struct ps_rec_param params[] = {
        {"clip_gradient", 5},   {"wd", 0.0001},    {"lr", 0.5},
        {"rescale_grad", 0.25}, {"momentum", 0.9},
    };
    const struct ps_sgd sgd = step_job("sgd", params, 5, 1).sgd;

    (void)state;
    assert_true(sgd.lr == 0.5);
    assert_true(sgd.momentum == 0.9);
    assert_true(sgd.wd == 0.0001);
    assert_true(sgd.rescale == 0.25);
    assert_true(sgd.clip == 5);
}

static void malformed_declarations_are_refused_with_a_text(void **state)
{
    const struct {
        struct ps_rec_param param;
        const char *says;
    } rows[] = {
        {{"lr", NAN}, "learning_rate of sgd must be a finite number"},
        {{"lr", INFINITY}, "finite"},
        {{"lr", -0.1}, "learning_rate of sgd must not be negative, not -0.1"},
        {{"wd", -1}, "wd of sgd must not be negative"},
        {{"wd", NAN}, "finite"},
        {{"momentum", 1}, "at least 0 and less than 1, not 1"},
        {{"momentum", -0.5}, "at least 0 and less than 1"},
        {{"momentum", NAN}, "finite"},
        {{"rescale_grad", INFINITY}, "finite"},
        {{"clip_gradient", NAN}, "finite"},
        {{"gamma", 1}, "no hyper-parameter 'gamma'; it has learning_rate,"},
        {{"\n\x01", 1}, "'\\x0a\\x01'"},
        {{"", 1}, "no hyper-parameter ''"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_refused("sgd", &rows[i].param, 1, PS_E_INVAL, rows[i].says);
    }
}

static void parameter_is_accepted_once_under_name_or_alias(void **state)
{
    const struct ps_rec_param params[] = {
        {"lr", 0.1},
        {"learning_rate", 0.1},
    };

    (void)state;
    check_refused("sgd", params, 2, PS_E_INVAL, "given twice");
}

static void unknown_optimizers_are_named(void **state)
{
    struct ps_optim o;
    struct ps_str why = PS_STR_ROOM(512);

    (void)state;
    check_refused("adam ", NULL, 0, PS_E_UNSUPPORTED, "called 'adam '");
    check_refused("", NULL, 0, PS_E_UNSUPPORTED, "called ''");
    assert_int_equal(ps_optim_parse(NULL, NULL, 0, &o, &why), PS_E_UNSUPPORTED);
    assert_string_equal(
        why.data,
        "no optimizer is called ''; there is sgd, nag, adam, adamw, "
        "adagrad, rmsprop, adadelta, ftrl, adamax, nadam, ftml, signum, "
        "signsgd, dcasgd, groupadagrad, sgld, lamb, lars, lbsgd, test");
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * (1 + fabs(b));
}

/* The norms that a step waits for, and the ratios from them. */
static void norms_give_trust_ratios(void **state)
{
    static const struct ps_rec_param guard[] = {{"skip_nonfinite", 1}};
    static const struct ps_rec_param clip[] = {{"clip_global_norm", 3},
                                               {"rescale_grad", -0.5}};
    static const struct ps_rec_param lars[] = {
        {"eta", 0.5}, {"wd", 0.25}, {"eps", 1}, {"clip_global_norm", 3}};
    static const struct ps_rec_param lamb[] = {{"lower_bound", 2},
                                               {"upper_bound", 5}};
    const struct ps_optim_norms norms = {
        .square_sum = 16, .weight_square_sum = 64, .global_square_sum = 36};
    const struct ps_optim_norms wild = {.nonfinite_count = 1};
    struct ps_optim_step_params at = {
        .step_number = 1, .wd_mult = 2, .trust_ratio = 1, .grad_scale = 1};
    const struct ps_optim_step_params first = at;
    struct ps_optim o;

    (void)state;
    assert_int_equal(ps_optim_parse("adam", NULL, 0, &o, UNREAD), 0);
    assert_false(ps_optim_needs_norms(&o));
    assert_int_equal(ps_optim_first_stage(&o, &at), PS_STAGE_LAST);

    assert_int_equal(ps_optim_parse("adam", guard, 1, &o, UNREAD), 0);
    assert_true(ps_optim_needs_norms(&o));
    at.stage = ps_optim_first_stage(&o, &at);
    assert_int_equal(at.stage, PS_STAGE_GRADIENT);
    assert_int_equal(ps_optim_next_stage(&o, &at), PS_STAGE_LAST);
    assert_false(ps_optim_needs_weight_norm(&o, &at));
    assert_false(ps_optim_apply_norms(&o, &wild, &at));
    assert_true(ps_optim_apply_norms(&o, &norms, &at));
    assert_true(at.trust_ratio == 1 && at.grad_scale == 1);

    assert_int_equal(ps_optim_parse("adam", clip, 2, &o, UNREAD), 0);
    assert_true(ps_optim_clips_global_norm(&o));
    assert_true(ps_optim_apply_norms(
        &o, &wild, &at)); /* Not a parameter of this optimizer. */
    assert_true(at.grad_scale == 1);
    assert_true(ps_optim_apply_norms(&o, &norms, &at));
    assert_true(fabs(at.grad_scale - 1) < 1e-8);
    assert_true(ps_optim_apply_norms(
        &o, &(struct ps_optim_norms){.global_square_sum = 144}, &at));
    assert_true(fabs(at.grad_scale - 0.5) < 1e-8);

    assert_int_equal(ps_optim_parse("lars", lars, 4, &o, UNREAD), 0);
    at = first;
    at.norm_exempt = true;
    assert_int_equal(ps_optim_first_stage(&o, &at),
                     PS_STAGE_GRADIENT); /* To clip. */
    assert_false(ps_optim_needs_weight_norm(&o, &at));
    at.norm_exempt = false;
    at.stage = PS_STAGE_GRADIENT;
    assert_true(ps_optim_needs_weight_norm(&o, &at));
    assert_true(ps_optim_apply_norms(&o, &norms, &at));
    assert_true(fabs(at.grad_scale - 0.5) < 1e-8);
    /* 0.5 * 8 / (0.5 * 4 + 0.25 * 2 * 8 + 1) */
    assert_true(fabs(at.trust_ratio - 4.0 / 7) < 1e-8);
    at = first;
    at.stage = PS_STAGE_GRADIENT;
    assert_true(ps_optim_apply_norms(
        &o, &(struct ps_optim_norms){.square_sum = 1}, &at));
    assert_true(at.trust_ratio == 1);

    assert_int_equal(ps_optim_parse("lamb", lamb, 2, &o, UNREAD), 0);
    at = first;
    at.stage = ps_optim_first_stage(&o, &at);
    assert_int_equal(at.stage, PS_STAGE_DIRECTION);
    assert_int_equal(ps_optim_next_stage(&o, &at), PS_STAGE_LAST);
    assert_true(ps_optim_apply_norms(&o, &norms, &at));
    assert_true(at.trust_ratio == 5.0 / 4);
    assert_true(ps_optim_apply_norms(
        &o, &(struct ps_optim_norms){.square_sum = 16, .weight_square_sum = 1},
        &at));
    assert_true(at.trust_ratio == 2.0 / 4);
    assert_true(ps_optim_apply_norms(&o, &wild, &at));
    assert_true(isnan(at.trust_ratio));
    at.stage = PS_STAGE_GRADIENT; /* With a guard it has both. */
    assert_int_equal(ps_optim_next_stage(&o, &at), PS_STAGE_DIRECTION);
}

/* The rate of lbsgd's third step, of four rounds each, where the warm-up takes
 * two epochs of eight rounds. */
static void large_batches_warm_up(void **state)
{
    static const double factor[] = {1 + 3 * 12.0 / 16, 1 + 3 * 144.0 / 256,
                                    1 + 3 * 0.8660254037844386, 1};
    struct ps_rec_param params[] = {
        {"lr", 0.5},         {"batch_scale", 4},       {"warmup_epochs", 2},
        {"rescale_grad", 2}, {"updates_per_epoch", 8}, {"warmup_strategy", 0},
        {"begin_epoch", 0},
    };
    struct ps_optim_step_params at = {.round = 12,
                                      .step_number = 3,
                                      .lr_mult = 1,
                                      .wd_mult = 1,
                                      .trust_ratio = 1,
                                      .grad_scale = 1};
    struct ps_optim o;
    struct ps_job job = {0};

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        params[5].value = i;
        job = step_job("lbsgd", params, 7, 3);
        assert_int_equal(job.op, PS_JOB_SGD);
        assert_true(near(job.sgd.lr, 0.5 * factor[i]));
        assert_true(job.sgd.rescale == 0.5); /* A mean of four rounds. */
        assert_int_equal(ps_optim_parse("lbsgd", params, 7, &o, UNREAD), 0);
        assert_int_equal(ps_optim_rounds_per_step(&o), 4);
        assert_true(ps_optim_needs_norms(&o) == (i == 3));
    }
    /* The mean of a job whose rounds are means. */
    at.is_mean = true;
    ps_optim_plan_step(&o, &at, &job);
    assert_true(job.sgd.rescale == 2);
    params[5].value = 1;
    params[6].value = 1; /* 20 of 16 rounds. */
    assert_true(step_job("lbsgd", params, 7, 3).sgd.lr == 2);
    params[1].value = 3;
    check_refused("lbsgd", params, 7, PS_E_INVAL, "multiple of batch_scale");
    params[5].value = 4;
    check_refused("lbsgd", params, 7, PS_E_INVAL, "3 (lars), not 4");
    check_refused("lbsgd", &(struct ps_rec_param){"accumulate", 2}, 1,
                  PS_E_INVAL, "no hyper-parameter 'accumulate'");
}

/* |w| / sqrt(|g|^2 + wd |w|^2) of the mean gradient, before it is rescaled. */
static void large_batches_scale_by_norms(void **state)
{
    static const struct ps_rec_param params[] = {{"wd", 0.25},
                                                 {"batch_scale", 2},
                                                 {"rescale_grad", 8},
                                                 {"warmup_strategy", 3}};
    struct ps_optim_norms norms = {.square_sum = 36, .weight_square_sum = 64};
    struct ps_optim_step_params at = {
        .step_number = 1, .wd_mult = 0.5, .trust_ratio = 1, .grad_scale = 1};
    struct ps_optim o;

    (void)state;
    assert_int_equal(ps_optim_parse("lbsgd", params, 4, &o, UNREAD), 0);
    at.stage = ps_optim_first_stage(&o, &at);
    assert_int_equal(at.stage, PS_STAGE_GRADIENT);
    assert_true(ps_optim_needs_weight_norm(&o, &at));
    assert_true(ps_optim_apply_norms(&o, &norms, &at));
    assert_true(near(at.trust_ratio, sqrt(64.0 / (9 + 8))));
    at.is_mean = true;
    assert_true(ps_optim_apply_norms(&o, &norms, &at));
    assert_true(near(at.trust_ratio, sqrt(64.0 / (36 + 8))));
    norms.square_sum = 1e9;
    assert_true(ps_optim_apply_norms(&o, &norms, &at));
    assert_true(at.trust_ratio == 0.01);
    at.wd_mult = norms.square_sum = 0;
    assert_true(ps_optim_apply_norms(&o, &norms, &at));
    assert_true(at.trust_ratio == 100);
    assert_int_equal(ps_optim_next_stage(&o, &at), PS_STAGE_LAST);
}

static void optimizers_accept_exactly_their_parameters(void **state)
{
    const struct ps_rec_param momentum = {"momentum", 0.5};
    const struct ps_rec_param half = {"centered", 0.5};
    const struct ps_rec_param lr = {"lr", 0.1};
    const struct ps_rec_param wd = {"wd", 0.1};

    (void)state;
    check_refused("adam", &momentum, 1, PS_E_INVAL,
                  "adam has no hyper-parameter 'momentum'; it has "
                  "learning_rate, wd, rescale_grad, clip_gradient, beta1, "
                  "beta2, epsilon, lazy_update, begin_num_update, accumulate, "
                  "skip_nonfinite, clip_global_norm, lr_scheduler");
    check_refused("rmsprop", &half, 1, PS_E_INVAL, "must be 0 or 1");
    check_refused("adadelta", &lr, 1, PS_E_INVAL, "no hyper-parameter 'lr'");
    check_refused("test", &wd, 1, PS_E_INVAL, "it has rescale_grad");
}

static void malformed_schedules_are_refused(void **state)
{
    const struct ps_rec_param kind[] = {{"lr_scheduler", 5}};
    const struct ps_rec_param factor[] = {{"lr_scheduler", 1}};
    const struct ps_rec_param falling[] = {{"lr_scheduler", 2},
                                           {"lr_scheduler_step_1", 9},
                                           {"lr_scheduler_step_2", 9}};
    const struct ps_rec_param gap[] = {{"lr_scheduler", 2},
                                       {"lr_scheduler_step_1", 9},
                                       {"lr_scheduler_step_3", 12}};
    const struct ps_rec_param late[] = {{"lr_scheduler", 4},
                                        {"lr_scheduler_max_update", 10},
                                        {"lr_scheduler_warmup_steps", 10}};
    const struct ps_rec_param part[] = {{"lr_scheduler_step", 1.5}};

    (void)state;
    check_refused("sgd", kind, 1, PS_E_INVAL, "4 (cosine), not 5");
    check_refused("sgd", factor, 1, PS_E_INVAL, "lr_scheduler_step");
    check_refused("adam", falling, 3, PS_E_INVAL, "to rise");
    check_refused("adam", gap, 3, PS_E_INVAL, "to rise");
    check_refused("ftrl", late, 3, PS_E_INVAL, "beyond");
    check_refused("ftrl", part, 1, PS_E_INVAL, "whole number from 0");
}

static void forms_and_states(void **state)
{
    const struct {
        const char *name;
        struct ps_rec_param param;
        enum ps_step_kind kind;
        unsigned states;
    } table[] = {
        {"nag", {"momentum", 0.9}, PS_STEP_NAG, 1},
        {"nag", {"decay_after_step", 1}, PS_STEP_NAG_LATE, 1},
        {"adam", {"beta1", 0.8}, PS_STEP_ADAM, 2},
        {"adamw", {"beta1", 0.8}, PS_STEP_ADAMW, 2},
        {"adagrad", {"eps", 0.1}, PS_STEP_ADAGRAD, 1},
        {"rmsprop", {"centered", 0}, PS_STEP_RMSPROP, 1},
        {"rmsprop", {"centered", 1}, PS_STEP_RMSPROP_CENTERED, 3},
        {"adadelta", {"rho", 0.8}, PS_STEP_ADADELTA, 2},
        {"ftrl", {"beta", 2}, PS_STEP_FTRL, 2},
        {"ftrl", {"lr", 0}, PS_STEP_KEEP, 2},
        {"adamax", {"lr", 1}, PS_STEP_ADAMAX, 2},
        {"nadam", {"lr", 1}, PS_STEP_NADAM, 2},
        {"ftml", {"lr", 1}, PS_STEP_FTML, 3},
        {"signum", {"momentum", 0.5}, PS_STEP_SIGNUM, 1},
        {"signum", {"momentum", 0}, PS_STEP_SIGNSGD, 0},
        {"signsgd", {"wd", 0}, PS_STEP_SIGNSGD, 0},
        {"dcasgd", {"lamda", 1}, PS_STEP_DCASGD, 2},
        {"sgld", {"seed", 1}, PS_STEP_SGLD, 0},
        {"groupadagrad", {"epsilon", 1}, PS_STEP_GROUP_ADAGRAD, 1},
        {"test", {"rescale_grad", 2}, PS_STEP_TEST, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct ps_optim o;
        struct ps_job job = step_job(table[i].name, &table[i].param, 1, 1);

        assert_int_equal(
            ps_optim_parse(table[i].name, &table[i].param, 1, &o, UNREAD), 0);
        assert_int_equal(job.op, PS_JOB_STEP);
        assert_int_equal(job.step.kind, table[i].kind);
        assert_int_equal(ps_optim_state_count(&o), table[i].states);
        for (unsigned s = 0; s < table[i].states; s++) {
            assert_int_equal(ps_optim_state_is_weight(&o, s),
                             table[i].kind == PS_STEP_DCASGD && s == 1);
        }
    }
}

static void numbers_of_a_step_depend_on_the_round(void **state)
{
    const struct ps_rec_param decay = {"schedule_decay", 0};
    const struct ps_rec_param steep = {"beta1", 0.9999999};
    double product = 1;

    (void)state;
    /* Adam: .001 * sqrt(1 - .999^2) / (1 - .9^2). */
    assert_true(near(step_job("adam", NULL, 0, 2).step.lr,
                     0.001 * sqrt(1 - 0.999 * 0.999) / 0.19));
    assert_true(near(step_job("adamax", NULL, 0, 1).step.lr, 0.02));
    assert_true(near(step_job("ftml", NULL, 0, 1).step.k[0], 0.4 / 0.01));
    assert_true(near(step_job("ftml", NULL, 0, 1).step.k[1], 0.001));
    /* Nadam without decay of the schedule: every factor is .45. */
    for (uint64_t t = 1; t <= 100; t++) {
        const struct ps_step s = step_job("nadam", &decay, 1, t).step;

        product *= 0.45;
        assert_true(near(s.k[0], 0.55 / (1 - product)));
        assert_true(near(s.k[1], 0.45 / (1 - product * 0.45)));
    }
    /* The product is computed in bounded time for any round and decay. */
    assert_true(
        isfinite(step_job("nadam", &steep, 1, UINT64_MAX - 1).step.k[1]));
}

/* Half the rate, its root for the noise, and what the noise is a function of. */
static void noise_belongs_to_key_step_and_element(void **state)
{
    static const struct ps_rec_param params[] = {
        {"lr", 0.25}, {"seed", 5}, {"begin_num_update", 10}};
    struct ps_optim o;
    struct ps_job job = {0};

    (void)state;
    assert_int_equal(ps_optim_parse("sgld", params, 3, &o, UNREAD), 0);
    ps_optim_plan_step(&o,
                       &(struct ps_optim_step_params){.round = 7,
                                                      .step_number = 3,
                                                      .name_hash = 6,
                                                      .first_elem = 1000,
                                                      .lr_mult = 4,
                                                      .wd_mult = 1,
                                                      .trust_ratio = 1,
                                                      .grad_scale = 1},
                       &job);
    assert_true(job.step.lr == 0.5 && job.step.k[0] == 1);
    assert_true(job.step.noise.key == (6 ^ 5) && job.step.noise.step == 13);
    assert_true(job.step.first_index == 1000);
    check_refused("sgld", &(struct ps_rec_param){"seed", 0.5}, 1, PS_E_INVAL,
                  "seed of sgld must be a whole number");
}

static void keys_have_multipliers_and_a_first_step(void **state)
{
    const struct ps_rec_param params[] = {
        {"lr", 0.5}, {"wd", 0.1}, {"begin_num_update", 2}};
    struct ps_optim o;
    struct ps_job job = {0};

    (void)state;
    assert_int_equal(ps_optim_parse("sgd", params, 3, &o, UNREAD), 0);
    ps_optim_plan_step(&o,
                       &(struct ps_optim_step_params){.round = 1,
                                                      .step_number = 1,
                                                      .lr_mult = 2,
                                                      .wd_mult = 0.5,
                                                      .trust_ratio = 1,
                                                      .grad_scale = 1},
                       &job);
    assert_true(job.sgd.lr == 1.0);
    assert_true(job.sgd.wd == 0.05);

    const struct ps_rec_param adam[] = {{"begin_num_update", 2}};
    assert_int_equal(ps_optim_parse("adam", adam, 1, &o, UNREAD), 0);
    ps_optim_plan_step(&o,
                       &(struct ps_optim_step_params){.round = 1,
                                                      .step_number = 1,
                                                      .lr_mult = 1,
                                                      .wd_mult = 1,
                                                      .trust_ratio = 1,
                                                      .grad_scale = 1},
                       &job);
    assert_true(job.step.lr == step_job("adam", NULL, 0, 3).step.lr);
}

static void changes_apply_from_their_round_on(void **state)
{
    const double want[] = {0.5, 0.5, 0.25, 0.25, 2};
    struct ps_rec_change c = {.name = "lr", .value = 0.25, .round = 3};
    struct ps_optim o;
    struct ps_str why = PS_STR_ROOM(512);

    (void)state;
    assert_int_equal(
        ps_optim_parse("sgd", &(struct ps_rec_param){"lr", 0.5}, 1, &o, UNREAD),
        0);
    assert_int_equal(ps_optim_check_change("sgd", &c, &c.name, &why), 0);
    assert_string_equal(c.name, "learning_rate");
    ps_changes_add(&o.changes, &c);
    c = (struct ps_rec_change){.name = "learning_rate", .value = 2, .round = 5};
    ps_changes_add(&o.changes, &c);
    for (uint64_t round = 1; round <= 5; round++) {
        struct ps_job job = {0};

        ps_optim_plan_step(&o,
                           &(struct ps_optim_step_params){.round = round,
                                                          .step_number = 1,
                                                          .lr_mult = 1,
                                                          .wd_mult = 1,
                                                          .trust_ratio = 1,
                                                          .grad_scale = 1},
                           &job);
        assert_true(job.sgd.lr == want[round - 1]);
    }
    c = (struct ps_rec_change){.name = "momentum"};
    assert_int_equal(ps_optim_check_change("sgd", &c, &c.name, &why),
                     PS_E_INVAL);
    assert_non_null(strstr(why.data, "cannot change 'momentum'"));
    c = (struct ps_rec_change){.name = "lr", .value = NAN};
    assert_int_equal(ps_optim_check_change("sgd", &c, &c.name, &why),
                     PS_E_INVAL);
    c = (struct ps_rec_change){.name = "lr", .value = 1};
    assert_int_equal(ps_optim_check_change("test", &c, &c.name, &why),
                     PS_E_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_belongs_to_key_step_and_element),
        cmocka_unit_test(keys_have_multipliers_and_a_first_step),
        cmocka_unit_test(changes_apply_from_their_round_on),
        cmocka_unit_test(defaults_are_plain_sgd),
        cmocka_unit_test(every_parameter_reaches_its_place),
        cmocka_unit_test(malformed_declarations_are_refused_with_a_text),
        cmocka_unit_test(parameter_is_accepted_once_under_name_or_alias),
        cmocka_unit_test(unknown_optimizers_are_named),
        cmocka_unit_test(norms_give_trust_ratios),
        cmocka_unit_test(large_batches_warm_up),
        cmocka_unit_test(large_batches_scale_by_norms),
        cmocka_unit_test(optimizers_accept_exactly_their_parameters),
        cmocka_unit_test(malformed_schedules_are_refused),
        cmocka_unit_test(forms_and_states),
        cmocka_unit_test(numbers_of_a_step_depend_on_the_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
