/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"

#define SIZE_MAX_TRIED 200u

static uint32_t naive_next_clear(const bool *bits, uint32_t size, uint32_t from)
{
    while (from < size && bits[from]) {
        from++;
    }
    return from < size ? from : size;
}

static void check_all(const struct ps_bits *b, const bool *bits)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < b->size; i++) {
        assert_int_equal(ps_bits_get(b, i), bits[i]);
        assert_int_equal(ps_bits_next_clear(b, i),
                         naive_next_clear(bits, b->size, i));
        count += bits[i];
    }
    assert_int_equal(ps_bits_next_clear(b, b->size), b->size);
    assert_int_equal(b->count, count);
    assert_int_equal(ps_bits_full(b), count == b->size);
}

/* Sizes around the word borders, filled at random and emptied again. */
static void bits_agree_with_an_array_of_booleans(void **state)
{
    (void)state;
    for (uint32_t size = 0; size <= SIZE_MAX_TRIED; size++) {
        bool bits[SIZE_MAX_TRIED] = {false};
        struct ps_bits b;
        struct ps_rng rng;

        ps_rng_init(&rng, size);
        ps_bits_init(&b, size);
        check_all(&b, bits);
        for (uint32_t step = 0; step < 3 * size; step++) {
            uint32_t i = (uint32_t)ps_rng_below(&rng, size);
            /* More is set than cleared, so that it fills up. */
            if (ps_rng_chance(&rng, 900)) {
                assert_int_equal(ps_bits_set(&b, i), !bits[i]);
                bits[i] = true;
            } else {
                assert_int_equal(ps_bits_clear(&b, i), bits[i]);
                bits[i] = false;
            }
        }
        check_all(&b, bits);
        for (uint32_t i = 0; i < size; i++) {
            ps_bits_set(&b, i);
            bits[i] = true;
        }
        check_all(&b, bits);
        ps_bits_zero(&b);
        for (uint32_t i = 0; i < size; i++) {
            bits[i] = false;
        }
        check_all(&b, bits);
        ps_bits_fini(&b);
    }
    assert_int_equal(ps_alloc_live(), 0);
}

static void bit_set_twice_counts_once(void **state)
{
    struct ps_bits b;

    (void)state;
    ps_bits_init(&b, 2);
    assert_true(ps_bits_set(&b, 1));
    assert_false(ps_bits_set(&b, 1));
    assert_false(ps_bits_full(&b));
    assert_true(ps_bits_set(&b, 0));
    assert_true(ps_bits_full(&b));
    assert_true(ps_bits_clear(&b, 1));
    assert_false(ps_bits_clear(&b, 1));
    assert_int_equal(b.count, 1);
    ps_bits_fini(&b);
}

static void bits_may_be_freed_twice(void **state)
{
    struct ps_bits b;

    (void)state;
    ps_bits_init(&b, 10);
    ps_bits_fini(&b);
    ps_bits_fini(&b);
    assert_int_equal(ps_alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_agree_with_an_array_of_booleans),
        cmocka_unit_test(bit_set_twice_counts_once),
        cmocka_unit_test(bits_may_be_freed_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
