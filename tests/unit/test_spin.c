/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_requested_poll_is_always_done(void **state)
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

/* Returns the number of waits with polling, of `count` that end so. */
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

static void automatic_polling_follows_its_success(void **state)
{
    struct ps_spin s;

    (void)state;
    ps_spin_init(&s, PS_SPIN_AUTO);
    assert_int_equal(looked(&s, 100, true, false), 100);
    /* An occasional wait in vain has no effect. */
    assert_int_equal(looked(&s, 1, false, false), 1);
    assert_int_equal(looked(&s, 10, true, false), 10);
    /* Always in vain: polling stops soon, with occasional attempts. */
    assert_in_range(looked(&s, 3200, false, false), 100, 110);
    /* It pays again: an attempt detects that. */
    assert_in_range(looked(&s, 200, true, false), 50, 199);
    assert_int_equal(looked(&s, 100, true, false), 100);
}

static void polling_ends_when_other_threads_need_the_processor(void **state)
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
        cmocka_unit_test(a_requested_poll_is_always_done),
        cmocka_unit_test(automatic_polling_follows_its_success),
        cmocka_unit_test(polling_ends_when_other_threads_need_the_processor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
