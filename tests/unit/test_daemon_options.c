/* SPDX-License-Identifier: Apache-2.0 */
/* The option tables of the three daemons and of jobs have no mistakes, and options of
 * psched that are `auto` take values which follow from those that are set. */
#include "psched/options.h"
#include "pslaunch/options.h"
#include "psserver/options.h"
#include "psworker-agent/options.h"
#include "support/option_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void check(const struct ps_option_set *set)
{
    char text[4096];
    struct ps_str report;

    ps_str_init(&report, text, sizeof(text));
    int rc = option_set_check(set, &report);

    if (rc != 0) {
        fail_msg("%s", text);
    }
}

static void psched_rows(void **state)
{
    (void)state;
    check(&psched_set);
}

static void psserver_rows(void **state)
{
    (void)state;
    check(&psserver_set);
}

static void psagent_rows(void **state)
{
    (void)state;
    check(&psagent_set);
}

static void job_rows(void **state)
{
    (void)state;
    check(&job_set);
}

static void member_is_dead_after_two_seconds_by_default(void **state)
{
    struct psched_options o = {0};

    (void)state;
    assert_int_equal(psched_heartbeat(&o), PS_MILLIS(500));
    assert_int_equal(psched_suspect_after(&o), PS_MILLIS(1000));
    assert_int_equal(psched_dead_after(&o), PS_MILLIS(2000));
}

static void dead_after_follows_its_option(void **state)
{
    struct psched_options o = {.heartbeat = PS_MILLIS(100),
                               .suspect_after = PS_MILLIS(300),
                               .dead_after = PS_MILLIS(700)};

    (void)state;
    assert_int_equal(psched_dead_after(&o), PS_MILLIS(700));
    assert_int_equal(psched_suspect_after(&o), PS_MILLIS(300));
    assert_int_equal(psched_heartbeat(&o), PS_MILLIS(100));
}

static void automatic_dead_after_is_twice_suspect_after(void **state)
{
    struct psched_options o = {.suspect_after = PS_MILLIS(3000)};

    (void)state;
    assert_int_equal(psched_dead_after(&o), PS_MILLIS(6000));
    o.suspect_after = PS_MILLIS(200); /* At least 2 s. */
    assert_int_equal(psched_dead_after(&o), PS_MILLIS(2000));
}

static void automatic_dead_after_grows_with_the_heartbeat(void **state)
{
    struct psched_options o = {.heartbeat = PS_MILLIS(4000)};

    (void)state;
    assert_int_equal(psched_suspect_after(&o), PS_MILLIS(8000));
    assert_int_equal(psched_dead_after(&o), PS_MILLIS(16000));
}

static void short_dead_after_shortens_the_other_times(void **state)
{
    struct psched_options o = {.dead_after = PS_MILLIS(400)};

    (void)state;
    assert_int_equal(psched_heartbeat(&o), PS_MILLIS(100));
    assert_int_equal(psched_suspect_after(&o), PS_MILLIS(250));
    assert_int_equal(psched_dead_after(&o), PS_MILLIS(400));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(psched_rows),
        cmocka_unit_test(psserver_rows),
        cmocka_unit_test(psagent_rows),
        cmocka_unit_test(job_rows),
        cmocka_unit_test(member_is_dead_after_two_seconds_by_default),
        cmocka_unit_test(dead_after_follows_its_option),
        cmocka_unit_test(automatic_dead_after_is_twice_suspect_after),
        cmocka_unit_test(automatic_dead_after_grows_with_the_heartbeat),
        cmocka_unit_test(short_dead_after_shortens_the_other_times),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
