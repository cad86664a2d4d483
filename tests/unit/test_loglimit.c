/* SPDX-License-Identifier: Apache-2.0 */
#include "common/logsink.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ps_loglimit limit;
static char out[1024];
static enum ps_log_level level;

static int set_up(void **state)
{
    (void)state;
    memset(&limit, 0, sizeof(limit));
    return 0;
}

static bool line(uint64_t kind, const char *text, ps_time now)
{
    return ps_loglimit_admit(&limit, kind, PS_LOG_WARNING, text, now);
}

/* The count that is due now; "" without one. */
static const char *count_at(ps_time now, bool all)
{
    struct ps_str s;

    ps_str_init(&s, out, sizeof(out));
    (void)ps_loglimit_next_summary(&limit, now, all, &level, &s);
    return out;
}

static void few_lines_are_all_written(void **state)
{
    (void)state;
    for (unsigned i = 0; i < PS_LOG_BURST; i++) {
        assert_true(line(1, "cut", PS_SECONDS(5)));
    }
    assert_int_equal(ps_loglimit_deadline(&limit), PS_TIME_NEVER);
    assert_false(line(1, "cut", PS_SECONDS(5)));
    assert_true(line(2, "another", PS_SECONDS(5)));
    /* Lines are written if there is at most one a second. */
    set_up(NULL);
    for (ps_time t = 1; t < 1000; t++) {
        assert_true(line(1, "cut", PS_SECONDS(t)));
    }
}

static void suppressed_lines_are_counted(void **state)
{
    ps_time now = PS_SECONDS(5);
    unsigned written = 0;

    (void)state;
    for (unsigned i = 0; i < 20000; i++) {
        char text[32];

        snprintf(text, sizeof(text), "cut %u", i);
        written += line(1, text, now);
    }
    assert_int_equal(written, PS_LOG_BURST);
    now = ps_loglimit_deadline(&limit);
    assert_in_range(now, PS_SECONDS(5), PS_SECONDS(6));
    assert_string_equal(count_at(now - 1, false), "");
    snprintf(out, sizeof(out), "cut 19999 (and %u more lines of this kind)",
             20000 - PS_LOG_BURST - 1);
    char *expected = strdup(out);

    assert_string_equal(count_at(now, false), expected);
    free(expected);
    assert_int_equal(level, PS_LOG_WARNING);
    assert_string_equal(count_at(now, false), "");
    assert_int_equal(ps_loglimit_deadline(&limit), PS_TIME_NEVER);
}

/* Ten minutes of a flood. */
static void counts_of_a_flood_are_written_ever_more_rarely(void **state)
{
    unsigned written = 0;

    (void)state;
    for (ps_time now = 0; now < PS_SECONDS(600); now += PS_MILLIS(10)) {
        written += line(1, "cut", now);
        while (count_at(now, false)[0] != '\0') {
            written++;
        }
    }
    assert_in_range(written, PS_LOG_BURST + 70, PS_LOG_BURST + 90);
    /* After a pause the kind counts as new. */
    (void)count_at(PS_SECONDS(620), false);
    assert_true(line(1, "cut", PS_SECONDS(900)));
    assert_true(line(1, "cut", PS_SECONDS(900)));
}

static void remaining_counts_are_written_at_the_end(void **state)
{
    (void)state;
    for (unsigned i = 0; i < PS_LOG_BURST + 1; i++) {
        (void)line(1, "cut", 1);
    }
    assert_string_equal(count_at(1, true), "cut");
    assert_string_equal(count_at(1, true), "");
}

/* More kinds than there is memory for. */
static void kinds_beyond_the_table_share_one_limit(void **state)
{
    (void)state;
    for (uint64_t kind = 1; kind < 10000; kind++) {
        assert_true(line(kind, "once", 1));
    }
    /* All entries are in use by floods: further kinds share one. */
    for (uint64_t kind = 1; kind <= PS_LOG_KINDS_MAX; kind++) {
        while (line(kind, "flood", 1)) {
        }
    }
    unsigned written = 0;

    for (uint64_t kind = 1000; kind < 2000; kind++) {
        written += line(kind, "late", 1);
    }
    assert_int_equal(written, 0);
    unsigned counted = 0;

    while (count_at(1, true)[0] != '\0') {
        counted++;
    }
    assert_int_equal(counted, PS_LOG_KINDS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(few_lines_are_all_written, set_up),
        cmocka_unit_test_setup(suppressed_lines_are_counted, set_up),
        cmocka_unit_test_setup(counts_of_a_flood_are_written_ever_more_rarely,
                               set_up),
        cmocka_unit_test_setup(remaining_counts_are_written_at_the_end, set_up),
        cmocka_unit_test_setup(kinds_beyond_the_table_share_one_limit, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
