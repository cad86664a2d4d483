/* SPDX-License-Identifier: Apache-2.0 */
#include "common/trim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

/* Nothing is given back at rest, and nothing wakes the loop. */
static void rest_is_no_burst(void **state)
{
    struct ps_trim t = {0};

    (void)state;
    for (ps_time now = 0; now < PS_SECONDS(100); now += PS_SECONDS(1)) {
        assert_false(ps_trim_check(&t, 10 * MIB, 9 * MIB, now));
        assert_int_equal(ps_trim_deadline(&t), PS_TIME_NEVER);
    }
}

static void what_a_burst_leaves_is_given_back_once(void **state)
{
    struct ps_trim t = {0};
    ps_time now = PS_SECONDS(1);

    (void)state;
    assert_false(ps_trim_check(&t, 100 * MIB, 100 * MIB, now));
    assert_int_equal(ps_trim_deadline(&t), PS_TIME_NEVER);
    now += PS_SECONDS(5);
    assert_false(ps_trim_check(&t, 100 * MIB, 10 * MIB, now));
    assert_in_range(ps_trim_deadline(&t), now, now + PS_SECONDS(4));
    now = ps_trim_deadline(&t);
    assert_false(ps_trim_check(&t, 10 * MIB, 10 * MIB, now - 1));
    assert_true(ps_trim_check(&t, 10 * MIB, 10 * MIB, now));
    assert_int_equal(ps_trim_deadline(&t), PS_TIME_NEVER);
    assert_false(ps_trim_check(&t, 10 * MIB, 10 * MIB, now + PS_SECONDS(9)));
    assert_int_equal(ps_trim_deadline(&t), PS_TIME_NEVER);
}

/* Within one turn of the loop. */
static void a_burst_that_nobody_saw(void **state)
{
    struct ps_trim t = {0};

    (void)state;
    assert_false(ps_trim_check(&t, 100 * MIB, MIB, 1));
    assert_true(ps_trim_check(&t, MIB, MIB, ps_trim_deadline(&t)));
}

/* Rounds take and free much, again and again. */
static void rounds_keep_their_memory(void **state)
{
    struct ps_trim t = {0};

    (void)state;
    for (ps_time now = 0; now < PS_SECONDS(100); now += PS_MILLIS(500)) {
        assert_false(ps_trim_check(&t, 50 * MIB, 2 * MIB, now));
    }
    /* Until the job is over. */
    ps_time now = PS_SECONDS(100);
    unsigned trims = 0;

    for (; now < PS_SECONDS(110); now += PS_MILLIS(500)) {
        trims += ps_trim_check(&t, 2 * MIB, 2 * MIB, now);
    }
    assert_int_equal(trims, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rest_is_no_burst),
        cmocka_unit_test(what_a_burst_leaves_is_given_back_once),
        cmocka_unit_test(a_burst_that_nobody_saw),
        cmocka_unit_test(rounds_keep_their_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
