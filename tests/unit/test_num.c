/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/num.h"

static void overflow_of_a_sum_is_reported(void **state)
{
    const uint64_t n[] = {UINT64_MAX - 2, 7, 2, 9, 1, 0};
    uint64_t sum = 5;

    (void)state;
    assert_true(ps_sum_u64(n, 0, 1, &sum));
    assert_int_equal(sum, 0);
    assert_true(ps_sum_u64(n + 1, 5, 1, &sum));
    assert_int_equal(sum, 19);
    assert_true(ps_sum_u64(n, 2, 2, &sum));
    assert_true(sum == UINT64_MAX);
    sum = 5;
    assert_false(ps_sum_u64(n, 3, 2, &sum)); /* All but nothing. */
    assert_false(ps_sum_u64(n, 2, 1, &sum));
    assert_int_equal(sum, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overflow_of_a_sum_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
