/* SPDX-License-Identifier: Apache-2.0 */
/* Rates, and the limits derived from them. */
#include "core/part/credit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* `bytes` in each millisecond, for `count` of them. */
static ps_time come(struct ps_rate_meter *r, ps_time now, unsigned count,
                    uint64_t bytes)
{
    for (unsigned i = 0; i < count; i++) {
        now += PS_MILLIS(1);
        (void)ps_rate_meter_add(r, now, bytes);
    }
    return now;
}

static void steady_stream_is_measured_at_its_rate(void **state)
{
    struct ps_rate_meter r = {0};

    (void)state;
    (void)come(&r, PS_SECONDS(1), 100, 25000);
    assert_int_equal(r.per_second, 25000000);
}

static void pauses_do_not_lower_the_rate(void **state)
{
    struct ps_rate_meter r = {0};
    ps_time now = PS_SECONDS(1);

    (void)state;
    for (int i = 0; i < 10; i++) {
        now = come(&r, now, 41, 25000) + PS_SECONDS(3);
    }
    assert_int_equal(r.per_second, 25000000);
}

static void a_rate_rises_faster_than_it_falls(void **state)
{
    struct ps_rate_meter r = {0};
    ps_time now = come(&r, PS_SECONDS(1), 100, 10000);
    uint64_t high;

    (void)state;
    now = come(&r, now, 30, 100000);
    high = r.per_second;
    assert_true(high > 50 * 1000000);
    (void)come(&r, now, 30, 10000);
    assert_true(r.per_second > 10 * 1000000 + (high - 10 * 1000000) / 2);
}

static void the_lead_grows_with_the_rate(void **state)
{
    struct ps_rate_meter r = {0};

    (void)state;
    assert_int_equal(ps_pacing_max_lead(&r), 64 * 1024);
    r.per_second = 1000 * 1000;
    assert_int_equal(ps_pacing_max_lead(&r), 64 * 1024);
    r.per_second = 100 * 1000 * 1000;
    assert_in_range(ps_pacing_max_lead(&r), 290 * 1000, 310 * 1000);
    r.per_second = 100ull * 1000 * 1000 * 1000;
    assert_int_equal(ps_pacing_max_lead(&r), 4 * 1024 * 1024);
}

static void time_limit_covers_the_lead_of_all_sources(void **state)
{
    struct ps_rate_meter r = {.per_second = 25 * 1000 * 1000};

    (void)state;
    for (uint32_t count = 2; count <= 16; count *= 2) {
        ps_time all = ps_pacing_max_lead(&r) * count * PS_SECONDS(1) /
                      r.per_second;

        assert_true(ps_pacing_patience(&r, count) > all);
    }
    r.per_second = 1;
    assert_true(ps_pacing_patience(&r, 16) < PS_SECONDS(1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_stream_is_measured_at_its_rate),
        cmocka_unit_test(pauses_do_not_lower_the_rate),
        cmocka_unit_test(a_rate_rises_faster_than_it_falls),
        cmocka_unit_test(the_lead_grows_with_the_rate),
        cmocka_unit_test(time_limit_covers_the_lead_of_all_sources),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
