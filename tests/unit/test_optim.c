/* SPDX-License-Identifier: Apache-2.0 */
/* Which declarations of an optimizer are taken, and what is said of others. */
#include "core/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void check_refused(const char *name, const struct ps_rec_param *params,
                          uint32_t count, int rc, const char *says)
{
    struct ps_sgd sgd = {.lr = 42};
    char why[256];

    assert_int_equal(ps_optim_check(name, params, count, why, sizeof(why)), rc);
    if (strstr(why, says) == NULL) {
        fail_msg("'%s' does not say '%s'", why, says);
    }
    assert_int_equal(ps_optim_parse(name, params, count, &sgd), rc);
    assert_true(sgd.lr == 42);
}

static void defaults_are_plain_sgd(void **state)
{
    struct ps_sgd sgd;
    char why[64];

    (void)state;
    assert_int_equal(ps_optim_check("sgd", NULL, 0, why, sizeof(why)), 0);
    assert_int_equal(ps_optim_parse("sgd", NULL, 0, &sgd), 0);
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
    struct ps_sgd sgd;

    (void)state;
    assert_int_equal(ps_optim_parse("sgd", params, 5, &sgd), 0);
    assert_true(sgd.lr == 0.5);
    assert_true(sgd.momentum == 0.9);
    assert_true(sgd.wd == 0.0001);
    assert_true(sgd.rescale == 0.25);
    assert_true(sgd.clip == 5);
}

static void nonsense_is_refused_in_words(void **state)
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

static void a_parameter_stands_once_under_either_name(void **state)
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
    (void)state;
    check_refused("adam", NULL, 0, PS_E_UNSUPPORTED, "called 'adam'");
    check_refused("", NULL, 0, PS_E_UNSUPPORTED, "called ''");
    check_refused(NULL, NULL, 0, PS_E_UNSUPPORTED, "there is sgd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_plain_sgd),
        cmocka_unit_test(every_parameter_reaches_its_place),
        cmocka_unit_test(nonsense_is_refused_in_words),
        cmocka_unit_test(a_parameter_stands_once_under_either_name),
        cmocka_unit_test(unknown_optimizers_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
