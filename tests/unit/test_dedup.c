/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "core/link/window.h"

#define MAX PS_LINK_IN_FLIGHT_MAX

static void each_number_is_new_once(void **state)
{
    struct ps_dedup d;

    (void)state;
    ps_dedup_reset(&d);
    for (uint64_t seq = 1; seq <= 3 * MAX; seq++) {
        assert_true(ps_dedup_is_new(&d, seq));
        assert_true(ps_dedup_add(&d, seq));
        assert_int_equal(d.received, seq);
        assert_false(ps_dedup_is_new(&d, seq));
        assert_false(ps_dedup_add(&d, seq));
    }
    assert_false(ps_dedup_add(&d, 1));
    assert_false(ps_dedup_add(&d, 0));
}

static void a_gap_holds_the_count_and_nothing_else(void **state)
{
    struct ps_dedup d;

    (void)state;
    ps_dedup_reset(&d);
    assert_true(ps_dedup_add(&d, 1));
    assert_true(ps_dedup_add(&d, 3));
    assert_true(ps_dedup_add(&d, 4));
    assert_int_equal(d.received, 1);
    assert_false(ps_dedup_add(&d, 4));
    assert_true(ps_dedup_add(&d, 2));
    assert_int_equal(d.received, 4);
}

static void numbers_beyond_the_window_are_not_recorded(void **state)
{
    struct ps_dedup d;

    (void)state;
    ps_dedup_reset(&d);
    assert_true(ps_dedup_add(&d, 1));
    assert_true(ps_dedup_add(&d, 1 + MAX));
    assert_false(ps_dedup_add(&d, 2 + MAX));
    assert_false(ps_dedup_add(&d, UINT64_MAX));
    assert_true(ps_dedup_add(&d, 2));
    assert_true(ps_dedup_add(&d, 2 + MAX));
    assert_int_equal(d.received, 2);
}

/* Against a plain array of what was seen. */
static void random_orders_agree_with_an_array(void **state)
{
    enum { NUMBERS = 20000 };
    static uint8_t seen[NUMBERS + MAX + 2];
    const uint64_t seed = 4711;
    struct ps_dedup d;
    struct ps_rng rng;
    uint64_t received = 0;

    (void)state;
    print_message("# seed %d\n", (int)seed);
    ps_rng_init(&rng, seed);
    ps_dedup_reset(&d);
    while (received < NUMBERS) {
        /* Mostly near the count, so that it moves. */
        uint64_t span = ps_rng_chance(&rng, 700) ? 8 : MAX;
        uint64_t seq = received + 1 + ps_rng_below(&rng, span);

        assert_int_equal(ps_dedup_add(&d, seq), !seen[seq]);
        seen[seq] = 1;
        while (seen[received + 1]) {
            received++;
        }
        assert_int_equal(d.received, received);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_number_is_new_once),
        cmocka_unit_test(a_gap_holds_the_count_and_nothing_else),
        cmocka_unit_test(numbers_beyond_the_window_are_not_recorded),
        cmocka_unit_test(random_orders_agree_with_an_array),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
