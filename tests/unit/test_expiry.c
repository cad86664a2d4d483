/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings before the end of a certificate. */
#include "common/expiry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define HOUR INT64_C(3600)
#define DAY  (24 * HOUR)

/* Days left at each warning from `from` days on, in calls as they are asked
 * for. */
static void expect_warnings(int64_t validity, int64_t from, const int64_t *left,
                            size_t count)
{
    struct ps_expiry e = {.begins_at = 0, .ends_at = validity};
    int64_t now = validity - from;
    size_t warned = 0;

    while (now < validity) {
        int64_t wait;

        if (ps_expiry_check(&e, now, &wait)) {
            assert_in_range(warned, 0, count - 1);
            assert_int_equal(validity - now, left[warned++]);
        }
        assert_in_range(wait, 1, DAY);
        now += wait;
    }
    assert_int_equal(warned, count);
}

static void warnings_come_30_and_7_days_before_and_daily(void **state)
{
    static const int64_t left[] = {30 * DAY, 7 * DAY, 6 * DAY, 5 * DAY,
                                   4 * DAY,  3 * DAY, 2 * DAY, 1 * DAY};

    (void)state;
    expect_warnings(365 * DAY, 100 * DAY, left, 8);
}

static void shares_count_for_a_short_validity(void **state)
{
    static const int64_t left[] = {10 * HOUR, 3 * HOUR, 2 * HOUR, 1 * HOUR};

    (void)state;
    expect_warnings(30 * HOUR, 30 * HOUR, left, 4);
}

static void a_clock_that_was_set_back_warns_again(void **state)
{
    struct ps_expiry e = {.begins_at = 0, .ends_at = 365 * DAY};
    int64_t wait;

    (void)state;
    assert_true(ps_expiry_check(&e, 340 * DAY, &wait));
    assert_false(ps_expiry_check(&e, 341 * DAY, &wait));
    assert_false(ps_expiry_check(&e, 100 * DAY, &wait));
    assert_int_equal(wait, DAY);
    assert_true(ps_expiry_check(&e, 340 * DAY, &wait));
    /* Past the end, each day. */
    assert_true(ps_expiry_check(&e, 366 * DAY, &wait));
    assert_true(ps_expiry_check(&e, 367 * DAY, &wait));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warnings_come_30_and_7_days_before_and_daily),
        cmocka_unit_test(shares_count_for_a_short_validity),
        cmocka_unit_test(a_clock_that_was_set_back_warns_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
