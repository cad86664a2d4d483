/* SPDX-License-Identifier: Apache-2.0 */
#include "base/state_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { SHUT, OPEN, BROKEN };

static const char *const names[] = {"shut", "open", "broken"};
static const uint32_t successors[] = {
    [SHUT] = PS_STATE_BIT(OPEN),
    [OPEN] = PS_STATE_BIT(SHUT) | PS_STATE_BIT(BROKEN),
    [BROKEN] = 0,
};
static const struct ps_state_table doors = {
    .name = "door", .states = names, .count = 3, .allowed = successors};

static void only_changes_in_the_table_are_allowed(void **state)
{
    (void)state;
    assert_true(ps_state_may_follow(&doors, SHUT, OPEN));
    assert_true(ps_state_may_follow(&doors, OPEN, BROKEN));
    assert_false(ps_state_may_follow(&doors, SHUT, BROKEN));
    assert_false(ps_state_may_follow(&doors, SHUT, SHUT));
    assert_false(ps_state_may_follow(&doors, BROKEN, SHUT));
}

static void
a_state_outside_of_the_table_neither_follows_nor_has_a_name(void **state)
{
    (void)state;
    assert_false(ps_state_may_follow(&doors, 3, OPEN));
    assert_false(ps_state_may_follow(&doors, OPEN, 3));
    assert_string_equal(ps_state_name(&doors, 3), "unknown");
    assert_string_equal(ps_state_name(&doors, BROKEN), "broken");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_changes_in_the_table_are_allowed),
        cmocka_unit_test(
            a_state_outside_of_the_table_neither_follows_nor_has_a_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
