/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/limits.h"
#include "base/str.h"

static void names_have_few_characters(void **state)
{
    static const char *const good[] = {"loss", "train/loss.1", "a:B-c_9", "0"};
    static const char *const bad[] = {"",    "a b",         "a\"", "a\\",
                                      "a\n", "l\xc3\xb6ss", "a{",  "a,b"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(ps_scalar_name_is_valid(good[i]));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(ps_scalar_name_is_valid(bad[i]));
    }
}

static void names_are_short(void **state)
{
    char name[PS_SCALAR_NAME_MAX + 2];

    (void)state;
    memset(name, 'x', sizeof(name));
    name[PS_SCALAR_NAME_MAX] = '\0';
    assert_true(ps_scalar_name_is_valid(name));
    name[PS_SCALAR_NAME_MAX] = 'x';
    name[PS_SCALAR_NAME_MAX + 1] = '\0';
    assert_false(ps_scalar_name_is_valid(name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_few_characters),
        cmocka_unit_test(names_are_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
