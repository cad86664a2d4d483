/* SPDX-License-Identifier: Apache-2.0 */
/* Credit of one sender. */
#include "core/flow.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define FIRST  ((uint64_t)PS_CREDIT_FIRST)
#define WINDOW (4 * FIRST)

static void first_credit_then_a_window(void **state)
{
    struct ps_flow f;

    (void)state;
    ps_flow_init(&f, &(struct ps_flow_limits){.window = WINDOW});
    assert_int_equal(f.credit, FIRST);
    assert_false(ps_flow_spent(&f));
    ps_flow_receive(&f, FIRST);
    assert_true(ps_flow_spent(&f));
    /* All of it waits; the rest of the window is due, and at once. */
    assert_true(ps_flow_due(&f, FIRST));
    assert_int_equal(ps_flow_announce(&f, FIRST), WINDOW);
    assert_false(ps_flow_spent(&f));
    assert_false(ps_flow_due(&f, FIRST));
    /* Merged: released bytes and the window. */
    assert_int_equal(ps_flow_announce(&f, 0), FIRST + WINDOW);
}

static void credit_never_falls(void **state)
{
    struct ps_flow f;

    (void)state;
    ps_flow_init(&f, &(struct ps_flow_limits){.window = WINDOW});
    assert_int_equal(ps_flow_announce(&f, 0), WINDOW);
    assert_int_equal(ps_flow_announce(&f, 10 * WINDOW), WINDOW);
    ps_flow_raise(&f);
    assert_int_equal(ps_flow_announce(&f, WINDOW), WINDOW + WINDOW / 4);
    /* A raise is caught up with, not added for ever. */
    ps_flow_receive(&f, WINDOW + WINDOW / 4);
    assert_int_equal(ps_flow_announce(&f, 0), 2 * WINDOW + WINDOW / 4);
}

static void small_growth_waits_for_an_answer(void **state)
{
    struct ps_flow f;

    (void)state;
    ps_flow_init(&f, &(struct ps_flow_limits){.window = WINDOW});
    ps_flow_announce(&f, 0);
    ps_flow_receive(&f, 100);
    assert_false(ps_flow_due(&f, 0));
    ps_flow_receive(&f, WINDOW / 2);
    assert_true(ps_flow_due(&f, 0));
}

static void what_an_old_session_left_counts(void **state)
{
    struct ps_flow f;

    (void)state;
    ps_flow_init(&f, &(struct ps_flow_limits){.window = WINDOW});
    ps_flow_announce(&f, 0);
    ps_flow_receive(&f, WINDOW);
    ps_flow_reset(&f);
    assert_int_equal(ps_flow_announce(&f, WINDOW), FIRST);
    ps_flow_receive(&f, FIRST); /* Sent again, dropped. */
    assert_int_equal(ps_flow_announce(&f, WINDOW), FIRST);
    assert_int_equal(ps_flow_announce(&f, WINDOW / 2), FIRST + WINDOW / 2);
}

static void overrun_is_less_than_one_frame(void **state)
{
    struct ps_flow f;

    (void)state;
    ps_flow_init(&f, &(struct ps_flow_limits){0});
    assert_int_equal(f.window, FIRST);
    ps_flow_receive(&f, FIRST - 1);
    assert_true(ps_flow_admits(&f, PS_PAYLOAD_MAX));
    assert_false(ps_flow_admits(&f, PS_PAYLOAD_MAX + 1));
    ps_flow_receive(&f, PS_PAYLOAD_MAX);
    assert_false(ps_flow_admits(&f, 1));
    assert_true(ps_flow_admits(&f, 0));
    assert_false(ps_flow_admits(&f, UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_credit_then_a_window),
        cmocka_unit_test(credit_never_falls),
        cmocka_unit_test(small_growth_waits_for_an_answer),
        cmocka_unit_test(what_an_old_session_left_counts),
        cmocka_unit_test(overrun_is_less_than_one_frame),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
