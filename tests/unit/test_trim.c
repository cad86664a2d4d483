/* SPDX-License-Identifier: Apache-2.0 */
#include "common/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

/* Without a burst no memory is returned and the loop is not woken. */
static void idle_memory_is_no_burst(void **state)
{
    struct ps_trim t = {0};

    (void)state;
    for (ps_time now = 0; now < PS_SECONDS(100); now += PS_SECONDS(1)) {
        assert_false(ps_trim_check(&t, 10 * MIB, 9 * MIB, now));
        assert_int_equal(ps_trim_deadline(&t), PS_TIME_NEVER);
    }
}

static void memory_of_a_burst_is_returned_once(void **state)
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
static void burst_within_one_turn_of_the_loop_is_returned(void **state)
{
    struct ps_trim t = {0};

    (void)state;
    assert_false(ps_trim_check(&t, 100 * MIB, MIB, 1));
    assert_true(ps_trim_check(&t, MIB, MIB, ps_trim_deadline(&t)));
}

/* Rounds allocate and free much memory, repeatedly. */
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

static void burst_is_over_once_use_is_far_below_its_peak(void **state)
{
    struct ps_trim t = {0};

    (void)state;
    assert_false(ps_trim_is_burst_over(&t, 10 * MIB, 9 * MIB));
    assert_true(ps_trim_is_burst_over(&t, 13 * MIB, 9 * MIB));
    assert_false(ps_trim_check(&t, 13 * MIB, 9 * MIB, 1));
    /* A decision is pending. */
    assert_false(ps_trim_is_burst_over(&t, 13 * MIB, 9 * MIB));
    assert_true(ps_trim_check(&t, 9 * MIB, 9 * MIB, ps_trim_deadline(&t)));
    assert_false(ps_trim_is_burst_over(&t, 9 * MIB, 9 * MIB));
    assert_true(ps_trim_is_burst_over(&t, 9 * MIB, 5 * MIB));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_memory_is_no_burst),
        cmocka_unit_test(memory_of_a_burst_is_returned_once),
        cmocka_unit_test(burst_within_one_turn_of_the_loop_is_returned),
        cmocka_unit_test(rounds_keep_their_memory),
        cmocka_unit_test(burst_is_over_once_use_is_far_below_its_peak),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
