/* SPDX-License-Identifier: Apache-2.0 */
/* The option tables of the three daemons have no mistakes. */
#include "psched/options.h"
#include "psserver/options.h"
#include "psworker-agent/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void check(const struct ps_option_set *set)
{
    char text[4096];
    struct ps_str report;

    ps_str_init(&report, text, sizeof(text));
    int rc = ps_option_set_check(set, &report);

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(psched_rows),
        cmocka_unit_test(psserver_rows),
        cmocka_unit_test(psagent_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
