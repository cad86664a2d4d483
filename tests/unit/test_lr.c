/* SPDX-License-Identifier: Apache-2.0 */
/* Rates by round, against numbers made by hand. */
#include "core/optim/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void expect(const struct ps_optim *lr, uint64_t n, double rate)
{
    double got = ps_optim_rate(lr, n);

    if (fabs(got - rate) > 1e-14) {
        fail_msg("round %llu has rate %.17g, not %.17g", (unsigned long long)n,
                 got, rate);
    }
}

static void constant_schedule_keeps_the_rate(void **state)
{
    const struct ps_optim lr = {.value = {[PS_OPTIM_LR] = 0.3}};

    (void)state;
    expect(&lr, 1, 0.3);
    expect(&lr, UINT64_MAX, 0.3);
}

static void factor_schedule_multiplies_after_each_step(void **state)
{
    const struct ps_optim lr = {.value = {[PS_OPTIM_SCHEDULER] = PS_LR_FACTOR,
                                          [PS_OPTIM_LR] = 0.8,
                                          [PS_OPTIM_FACTOR] = 0.5,
                                          [PS_OPTIM_STEP] = 10,
                                          [PS_OPTIM_STOP_LR] = 0.15}};

    (void)state;
    expect(&lr, 1, 0.8);
    expect(&lr, 10, 0.8); /* Not yet: only a later round is beyond it. */
    expect(&lr, 11, 0.4);
    expect(&lr, 20, 0.4);
    expect(&lr, 21, 0.2);
    expect(&lr, 31, 0.15);
    expect(&lr, 1000000, 0.15);
}

static void multifactor_schedule_multiplies_after_listed_rounds(void **state)
{
    const struct ps_optim lr = {
        .value = {[PS_OPTIM_SCHEDULER] = PS_LR_MULTIFACTOR,
                  [PS_OPTIM_LR] = 1,
                  [PS_OPTIM_FACTOR] = 0.25,
                  [PS_OPTIM_STEP_1] = 3,
                  [PS_OPTIM_STEP_1 + 1] = 5,
                  [PS_OPTIM_STEP_1 + 2] = 6}};

    (void)state;
    expect(&lr, 3, 1);
    expect(&lr, 4, 0.25);
    expect(&lr, 5, 0.25);
    expect(&lr, 6, 0.0625);
    expect(&lr, 7, 0.015625);
    expect(&lr, 99, 0.015625);
}

static void polynomial_schedule_ends_at_the_final_rate(void **state)
{
    const struct ps_optim lr = {.value = {[PS_OPTIM_SCHEDULER] = PS_LR_POLY,
                                          [PS_OPTIM_LR] = 1,
                                          [PS_OPTIM_MAX_UPDATE] = 10,
                                          [PS_OPTIM_POWER] = 2,
                                          [PS_OPTIM_FINAL_LR] = 0.2}};

    (void)state;
    expect(&lr, 1, 0.2 + 0.8 * 0.81);
    expect(&lr, 5, 0.2 + 0.8 * 0.25);
    expect(&lr, 10, 0.2);
    expect(&lr, 11, 0.2);
}

static void cosine_schedule_ends_at_the_final_rate(void **state)
{
    const struct ps_optim lr = {.value = {[PS_OPTIM_SCHEDULER] = PS_LR_COSINE,
                                          [PS_OPTIM_LR] = 1,
                                          [PS_OPTIM_MAX_UPDATE] = 12,
                                          [PS_OPTIM_FINAL_LR] = 0.5}};

    (void)state;
    expect(&lr, 4, 0.5 + 0.5 * 0.75);
    expect(&lr, 6, 0.75);
    expect(&lr, 8, 0.5 + 0.5 * 0.25);
    expect(&lr, 12, 0.5);
    expect(&lr, 13, 0.5);
}

static void schedules_begin_after_the_warm_up(void **state)
{
    struct ps_optim lr = {.value = {[PS_OPTIM_SCHEDULER] = PS_LR_COSINE,
                                    [PS_OPTIM_LR] = 1,
                                    [PS_OPTIM_MAX_UPDATE] = 8,
                                    [PS_OPTIM_WARMUP_STEPS] = 4,
                                    [PS_OPTIM_WARMUP_BEGIN_LR] = 0.2}};

    (void)state;
    expect(&lr, 1, 0.4);
    expect(&lr, 2, 0.6);
    expect(&lr, 3, 0.8);
    expect(&lr, 4, 1);
    expect(&lr, 6, 0.5);
    lr.value[PS_OPTIM_WARMUP_CONSTANT] = true;
    expect(&lr, 1, 0.2);
    expect(&lr, 3, 0.2);
    expect(&lr, 4, 1);
    lr.value[PS_OPTIM_SCHEDULER] = PS_LR_CONSTANT;
    expect(&lr, 3, 0.2);
    expect(&lr, 5, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant_schedule_keeps_the_rate),
        cmocka_unit_test(factor_schedule_multiplies_after_each_step),
        cmocka_unit_test(multifactor_schedule_multiplies_after_listed_rounds),
        cmocka_unit_test(polynomial_schedule_ends_at_the_final_rate),
        cmocka_unit_test(cosine_schedule_ends_at_the_final_rate),
        cmocka_unit_test(schedules_begin_after_the_warm_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
