/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/path.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MEGABYTE (1024u * 1024u)

static ps_time now;

static int set_up(void **state)
{
    (void)state;
    now = PS_SECONDS(10);
    return 0;
}

/* Seconds with a megabyte each, of which `again` bytes are sent twice; the
 * connections wanted after them. */
static uint32_t seconds(struct ps_losses *l, unsigned count, uint64_t again,
                        bool heeded)
{
    for (unsigned i = 0; i < count; i++) {
        now += PS_SECONDS(1);
        (void)ps_losses_add(l, now, MEGABYTE, again, heeded);
    }
    return l->subflows;
}

static void link_without_losses_keeps_one_connection(void **state)
{
    struct ps_losses l = {0};

    (void)state;
    assert_int_equal(seconds(&l, 100, 0, true), 0);
    assert_int_equal(seconds(&l, 100, MEGABYTE / 4000, true), 0);
}

static void queue_that_overflows_once_adds_no_connection(void **state)
{
    struct ps_losses l = {0};

    (void)state;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(seconds(&l, 2, MEGABYTE / 10, true), 0);
        assert_int_equal(seconds(&l, 1, 0, true), 0);
    }
}

static void persistent_losses_add_connections_by_steps(void **state)
{
    struct ps_losses l = {0};

    (void)state;
    assert_int_equal(seconds(&l, 2, MEGABYTE / 100, true), 0);
    assert_int_equal(seconds(&l, 1, MEGABYTE / 100, true), 4);
    assert_int_equal(seconds(&l, 2, MEGABYTE / 100, true), 4);
    assert_int_equal(seconds(&l, 1, MEGABYTE / 100, true),
                     PS_LINK_CONNECTIONS_MAX);
    assert_int_equal(seconds(&l, 20, MEGABYTE / 100, true),
                     PS_LINK_CONNECTIONS_MAX);
}

static void connections_stop_at_four_if_losses_cost_no_rate(void **state)
{
    struct ps_losses l = {0};

    (void)state;
    assert_int_equal(seconds(&l, 20, MEGABYTE / 100, false), 4);
}

static void few_bytes_change_no_connections(void **state)
{
    struct ps_losses l = {0};

    (void)state;
    for (int i = 0; i < 1000; i++) { /* Much, in one look. */
        assert_false(ps_losses_add(&l, now, MEGABYTE, MEGABYTE / 10, true));
    }
    l = (struct ps_losses){0};
    for (int i = 0; i < 9; i++) { /* Little in a long time. */
        now += PS_SECONDS(10);
        assert_false(ps_losses_add(&l, now, MEGABYTE / 4, MEGABYTE / 4, true));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(link_without_losses_keeps_one_connection,
                               set_up),
        cmocka_unit_test_setup(queue_that_overflows_once_adds_no_connection,
                               set_up),
        cmocka_unit_test_setup(persistent_losses_add_connections_by_steps,
                               set_up),
        cmocka_unit_test_setup(connections_stop_at_four_if_losses_cost_no_rate,
                               set_up),
        cmocka_unit_test_setup(few_bytes_change_no_connections, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
