/* SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Output of the authors' C code for the state 1, 2, 3, 4. */
static void numbers_are_those_of_the_published_generator(void **state)
{
    struct ps_rng r = {.s = {1, 2, 3, 4}};

    (void)state;
    assert_int_equal(ps_rng_next(&r), 11520);
    assert_int_equal(ps_rng_next(&r), 0);
    assert_int_equal(ps_rng_next(&r), 1509978240);
    assert_int_equal(ps_rng_next(&r), 1215971899390074240);
}

static void sequence_depends_on_the_seed(void **state)
{
    struct ps_rng a;
    struct ps_rng b;
    struct ps_rng c;
    int same = 0;

    (void)state;
    ps_rng_init(&a, 0);
    ps_rng_init(&b, 0);
    ps_rng_init(&c, 1);
    for (int i = 0; i < 100; i++) {
        uint64_t x = ps_rng_next(&a);

        assert_int_equal(x, ps_rng_next(&b));
        same += x == ps_rng_next(&c);
    }
    assert_int_equal(same, 0);
}

static void numbers_below_a_bound_are_uniform(void **state)
{
    uint64_t seen[7] = {0};
    struct ps_rng r;

    (void)state;
    ps_rng_init(&r, 9);
    for (int i = 0; i < 70000; i++) {
        uint64_t x = ps_rng_below(&r, 7);

        assert_true(x < 7);
        seen[x]++;
    }
    for (int i = 0; i < 7; i++) {
        assert_in_range(seen[i], 9500, 10500);
    }
    for (int i = 0; i < 100; i++) {
        assert_int_equal(ps_rng_below(&r, 1), 0);
        /* Most numbers of a half are rejected here. */
        assert_true(ps_rng_below(&r, (UINT64_C(1) << 63) + 1) <= UINT64_C(1)
                                                                     << 63);
    }
}

static void chance_has_its_frequency(void **state)
{
    struct ps_rng r;
    int hits = 0;

    (void)state;
    ps_rng_init(&r, 4);
    for (int i = 0; i < 10000; i++) {
        assert_false(ps_rng_chance(&r, 0));
        assert_true(ps_rng_chance(&r, 1000));
        hits += ps_rng_chance(&r, 100);
    }
    assert_in_range(hits, 850, 1150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_published_generator),
        cmocka_unit_test(sequence_depends_on_the_seed),
        cmocka_unit_test(numbers_below_a_bound_are_uniform),
        cmocka_unit_test(chance_has_its_frequency),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
