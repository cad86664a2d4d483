/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/pool.h"
#include "base/rng.h"
#include "core/sched/place/place.h"

/* Values of a key at a server: each in a buffer of its own, or all in the frame
 * that carried them. */
static void check_frame(uint32_t parts, uint64_t count)
{
    const struct ps_demand_profile kind = {0};
    struct ps_demand need = {0};

    for (uint32_t i = 0; i < parts; i++) {
        ps_demand_add(&need, &kind, PS_DTYPE_FLOAT32, count);
    }
    assert_true(need.value_bytes >=
                parts * ps_pool_cost(count * sizeof(float)));
    assert_true(need.value_bytes >=
                ps_pool_cost(parts * count * sizeof(float)));
    assert_true(need.stored_bytes >= need.value_bytes);
    assert_true(ps_demand_round_bytes(&need, 1) >=
                ps_pool_cost(parts * count * sizeof(float)));
}

static void demand_of_a_frame_is_at_most_its_values(void **state)
{
    struct ps_rng r;

    (void)state;
    check_frame(11, 4096); /* 176 KiB in a piece of 192 KiB. */
    ps_rng_init(&r, 1);
    for (uint32_t i = 0; i < 10000; i++) {
        const uint64_t count = 1 + ps_rng_below(&r, 4096);
        const uint64_t most = (256 * 1024) / (count * sizeof(float));

        check_frame(1 + (uint32_t)ps_rng_below(&r, most), count);
    }
}

static void a_removed_demand_leaves_nothing(void **state)
{
    const struct ps_demand_profile kind = {
        .has_optimizer = true, .step_buffers = 3, .sum_buffers = 1};
    struct ps_demand need = {0};

    (void)state;
    for (uint64_t count = 1; count < 100000; count = count * 3 + 1) {
        ps_demand_add(&need, &kind, PS_DTYPE_FLOAT16, count);
        ps_demand_remove(&need, &kind, PS_DTYPE_FLOAT16, count);
        assert_int_equal(need.stored_bytes, 0);
        assert_int_equal(need.value_bytes, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demand_of_a_frame_is_at_most_its_values),
        cmocka_unit_test(a_removed_demand_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
