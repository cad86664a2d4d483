/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void what_was_asked_for_is_done_always(void **state)
{
    struct ps_spin s;

    (void)state;
    ps_spin_init(&s, PS_MICROS(7));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(ps_spin_budget(&s), PS_MICROS(7));
        ps_spin_record(&s, false, true);
    }
    assert_false(ps_spin_is_crowded(&s, 0, PS_SECONDS(1)));
    ps_spin_init(&s, 0);
    assert_int_equal(ps_spin_budget(&s), 0);
}

/* Waits in which it looked, of `count` that end so. */
static unsigned looked(struct ps_spin *s, unsigned count, bool paid,
                       bool crowded)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < count; i++) {
        ps_time t = ps_spin_budget(s);

        if (t > 0) {
            assert_int_equal(t, PS_SPIN_AUTO_MAX);
            ps_spin_record(s, paid, crowded);
            sum++;
        }
    }
    return sum;
}

static void by_itself_it_does_what_pays(void **state)
{
    struct ps_spin s;

    (void)state;
    ps_spin_init(&s, PS_SPIN_AUTO);
    assert_int_equal(looked(&s, 100, true, false), 100);
    /* One wait in vain now and then does no harm. */
    assert_int_equal(looked(&s, 1, false, false), 1);
    assert_int_equal(looked(&s, 10, true, false), 10);
    /* Only in vain: it stops soon, and tries again at times. */
    assert_in_range(looked(&s, 3200, false, false), 100, 110);
    /* It pays again: it is found out. */
    assert_in_range(looked(&s, 200, true, false), 50, 199);
    assert_int_equal(looked(&s, 100, true, false), 100);
}

static void others_that_want_the_processor_end_it(void **state)
{
    struct ps_spin s;

    (void)state;
    ps_spin_init(&s, PS_SPIN_AUTO);
    assert_false(ps_spin_is_crowded(&s, 100, 100 + PS_SPIN_CROWDED));
    assert_true(ps_spin_is_crowded(&s, 100, 101 + PS_SPIN_CROWDED));
    assert_int_equal(looked(&s, 1, false, true), 1);
    assert_in_range(looked(&s, 3200, false, true), 95, 105);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_asked_for_is_done_always),
        cmocka_unit_test(by_itself_it_does_what_pays),
        cmocka_unit_test(others_that_want_the_processor_end_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
