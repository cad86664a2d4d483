/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "core/sched/job/job.h"

static void barrier_opens_when_the_last_rank_enters(void **state)
{
    struct ps_barrier b;

    (void)state;
    ps_barrier_init(&b, 3);
    assert_false(ps_barrier_is_waiting(&b));
    assert_false(ps_barrier_enter(&b, 0, 1, 10));
    assert_true(ps_barrier_is_waiting(&b));
    assert_int_equal(b.waiting_since, 10);
    assert_false(ps_barrier_enter(&b, 2, 1, 20));
    assert_int_equal(b.waiting_since, 10);
    assert_true(ps_barrier_is_missing(&b, 1, 1));
    assert_false(ps_barrier_is_missing(&b, 2, 1));
    assert_true(ps_barrier_enter(&b, 1, 1, 30));
    assert_int_equal(b.last_open, 1);
    assert_false(ps_barrier_is_waiting(&b));
    assert_false(ps_barrier_is_missing(&b, 1, 1));
    ps_barrier_fini(&b);
}

static void rank_counts_once_in_a_barrier(void **state)
{
    struct ps_barrier b;

    (void)state;
    ps_barrier_init(&b, 2);
    for (int i = 0; i < 5; i++) {
        assert_false(ps_barrier_enter(&b, 0, 1, 0));
    }
    assert_int_equal(b.last_open, 0);
    assert_true(ps_barrier_enter(&b, 1, 1, 0));
    assert_false(ps_barrier_enter(&b, 1, 1, 0));
    assert_int_equal(b.last_open, 1);
    ps_barrier_fini(&b);
}

static void barrier_does_not_wait_for_a_departed_rank(void **state)
{
    struct ps_barrier b;

    (void)state;
    ps_barrier_init(&b, 3);
    assert_false(ps_barrier_enter(&b, 0, 1, 0));
    assert_false(ps_barrier_leave(&b, 1, 0));
    assert_false(ps_barrier_enter(&b, 1, 7, 0)); /* Late; means nothing. */
    assert_true(ps_barrier_enter(&b, 2, 1, 0));
    assert_int_equal(b.last_open, 1);
    assert_false(ps_barrier_enter(&b, 0, 2, 0));
    assert_true(ps_barrier_leave(&b, 2, 0));
    assert_int_equal(b.last_open, 2);
    assert_false(ps_barrier_leave(&b, 0, 0));
    assert_int_equal(b.last_open, 2);
    ps_barrier_fini(&b);
}

/* Entries of 40 barriers by 5 ranks in any order, doubled, agree with sets. */
static void entries_in_any_order_agree_with_sets(void **state)
{
    enum { RANKS = 5, NUMBERS = 40 };

    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct ps_barrier b;
        struct ps_rng rng;
        uint64_t at[RANKS] = {0};

        print_message("# seed %d\n", (int)seed);
        ps_rng_init(&rng, seed);
        ps_barrier_init(&b, RANKS);
        while (b.last_open < NUMBERS) {
            uint32_t rank = (uint32_t)ps_rng_below(&rng, RANKS);
            uint64_t number = 1 + ps_rng_below(&rng, NUMBERS);
            uint64_t before = b.last_open;
            uint64_t open = UINT64_MAX;
            bool more = ps_barrier_enter(&b, rank, number, 0);

            at[rank] = number > at[rank] ? number : at[rank];
            for (uint32_t i = 0; i < RANKS; i++) {
                open = at[i] < open ? at[i] : open;
            }
            assert_int_equal(b.last_open, open);
            assert_int_equal(more, open > before);
        }
        ps_barrier_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barrier_opens_when_the_last_rank_enters),
        cmocka_unit_test(rank_counts_once_in_a_barrier),
        cmocka_unit_test(barrier_does_not_wait_for_a_departed_rank),
        cmocka_unit_test(entries_in_any_order_agree_with_sets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
