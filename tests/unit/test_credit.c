/* SPDX-License-Identifier: Apache-2.0 */
/* Credit of one sender. */
#include "core/part/credit.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define FIRST  ((uint64_t)PS_CREDIT_INITIAL)
#define WINDOW (4 * FIRST)

static void credit_grows_from_the_first_grant_to_a_window(void **state)
{
    struct ps_credit f;

    (void)state;
    ps_credit_init(&f, &(struct ps_credit_limits){.window = WINDOW});
    assert_int_equal(f.announced, FIRST);
    assert_false(ps_credit_is_exhausted(&f));
    ps_credit_on_receive(&f, FIRST);
    assert_true(ps_credit_is_exhausted(&f));
    /* All of it waits; the rest of the window is due, and at once. */
    assert_true(ps_credit_announce_due(&f, FIRST));
    assert_int_equal(ps_credit_announce(&f, FIRST), WINDOW);
    assert_false(ps_credit_is_exhausted(&f));
    assert_false(ps_credit_announce_due(&f, FIRST));
    /* Merged: released bytes and the window. */
    assert_int_equal(ps_credit_announce(&f, 0), FIRST + WINDOW);
}

static void credit_never_falls(void **state)
{
    struct ps_credit f;

    (void)state;
    ps_credit_init(&f, &(struct ps_credit_limits){.window = WINDOW});
    assert_int_equal(ps_credit_announce(&f, 0), WINDOW);
    assert_int_equal(ps_credit_announce(&f, 10 * WINDOW), WINDOW);
    ps_credit_grant_extra(&f);
    assert_int_equal(ps_credit_announce(&f, WINDOW), WINDOW + WINDOW / 4);
    /* A raise is absorbed by later credit, not added for ever. */
    ps_credit_on_receive(&f, WINDOW + WINDOW / 4);
    assert_int_equal(ps_credit_announce(&f, 0), 2 * WINDOW + WINDOW / 4);
}

static void small_growth_of_credit_waits_for_a_reply(void **state)
{
    struct ps_credit f;

    (void)state;
    ps_credit_init(&f, &(struct ps_credit_limits){.window = WINDOW});
    ps_credit_announce(&f, 0);
    ps_credit_on_receive(&f, 100);
    assert_false(ps_credit_announce_due(&f, 0));
    ps_credit_on_receive(&f, WINDOW / 2);
    assert_true(ps_credit_announce_due(&f, 0));
}

static void bytes_of_an_old_session_count(void **state)
{
    struct ps_credit f;

    (void)state;
    ps_credit_init(&f, &(struct ps_credit_limits){.window = WINDOW});
    ps_credit_announce(&f, 0);
    ps_credit_on_receive(&f, WINDOW);
    ps_credit_reset(&f);
    assert_int_equal(ps_credit_announce(&f, WINDOW), FIRST);
    ps_credit_on_receive(&f, FIRST); /* Sent again, dropped. */
    assert_int_equal(ps_credit_announce(&f, WINDOW), FIRST);
    assert_int_equal(ps_credit_announce(&f, WINDOW / 2), FIRST + WINDOW / 2);
}

static void overrun_is_less_than_one_frame(void **state)
{
    struct ps_credit f;

    (void)state;
    ps_credit_init(&f, &(struct ps_credit_limits){0});
    assert_int_equal(f.window, FIRST);
    ps_credit_on_receive(&f, FIRST - 1);
    assert_true(ps_credit_admits(&f, PS_PAYLOAD_MAX));
    assert_false(ps_credit_admits(&f, PS_PAYLOAD_MAX + 1));
    ps_credit_on_receive(&f, PS_PAYLOAD_MAX);
    assert_false(ps_credit_admits(&f, 1));
    assert_true(ps_credit_admits(&f, 0));
    assert_false(ps_credit_admits(&f, UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(credit_grows_from_the_first_grant_to_a_window),
        cmocka_unit_test(credit_never_falls),
        cmocka_unit_test(small_growth_of_credit_waits_for_a_reply),
        cmocka_unit_test(bytes_of_an_old_session_count),
        cmocka_unit_test(overrun_is_less_than_one_frame),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
