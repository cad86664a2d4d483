/* SPDX-License-Identifier: Apache-2.0 */
#include "base/autoscale.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct ps_autoscale rule = {
    .period = PS_SECONDS(1), .busy_percent = 60, .periods = 3};

/* Returns the seconds until another thread is requested if each of `count` is
 * busy for `percent` of the time; 0: never. */
static unsigned seconds_until(struct ps_autoscale *g, ps_time *now,
                              uint64_t *busy, unsigned count, unsigned percent)
{
    for (unsigned i = 0; i < 20 * 10; i++) {
        *now += PS_MILLIS(100);
        *busy += PS_MILLIS(1) * percent * count;
        if (ps_autoscale_is_due(g, *now, *busy, count)) {
            return i / 10 + 1;
        }
    }
    return 0;
}

static void thread_is_added_after_seconds_of_load(void **state)
{
    struct ps_autoscale g = rule;
    ps_time now = PS_SECONDS(100);
    uint64_t busy = PS_SECONDS(77);

    (void)state;
    assert_int_equal(seconds_until(&g, &now, &busy, 1, 59), 0);
    assert_in_range(seconds_until(&g, &now, &busy, 1, 61), 3, 4);
    /* Afresh, and for all that there are. */
    assert_in_range(seconds_until(&g, &now, &busy, 2, 100), 3, 4);
    assert_int_equal(seconds_until(&g, &now, &busy, 4, 30), 0);
}

static void pauses_count_as_idle(void **state)
{
    struct ps_autoscale g = rule;
    ps_time now = PS_SECONDS(100);
    uint64_t busy = 0;

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        /* Two seconds of work, then four of none. */
        for (unsigned j = 0; j < 20; j++) {
            now += PS_MILLIS(100);
            busy += PS_MILLIS(100);
            assert_false(ps_autoscale_is_due(&g, now, busy, 1));
        }
        now += PS_SECONDS(4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thread_is_added_after_seconds_of_load),
        cmocka_unit_test(pauses_count_as_idle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
