/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines in the format of Chrome's trace viewer. */
#include "base/timeline.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void slices_that_overlap_are_in_different_threads(void **state)
{
    int64_t busy_until[2];
    struct ps_timeline_lanes l = {.busy_until = busy_until, .max = 2};

    (void)state;
    assert_int_equal(ps_timeline_place(&l, 1500, 2500), 0);
    assert_int_equal(ps_timeline_place(&l, 2000, 2000), 1);
    assert_int_equal(ps_timeline_place(&l, 2499, 2600), 1);
    assert_int_equal(l.count, 2);
    assert_int_equal(ps_timeline_place(&l, 2499, 2500), UINT32_MAX);
    assert_int_equal(ps_timeline_place(&l, 2500, 2500), 0);
    assert_int_equal(l.count, 2);
}

static void events_are_json(void **state)
{
    struct ps_timeline t;
    char *text = NULL;
    size_t size = 0;

    (void)state;
    ps_timeline_begin(&t, open_memstream(&text, &size));
    ps_timeline_event(&t, "X", "step", 2, 192);
    ps_timeline_time(&t, "ts", 1500);
    ps_timeline_time(&t, "dur", 1000001);
    fputs("}", t.out);
    ps_timeline_name(&t, "thread_name", 2, 193, "a\"\\b\n\xff\u00e9");
    ps_timeline_end(&t);
    fputs("}\n", t.out);
    fclose(t.out);
    assert_int_equal(t.events, 2);
    assert_string_equal(
        text, "{\"traceEvents\":[\n"
              "{\"ph\":\"X\",\"name\":\"step\",\"pid\":2,\"tid\":192,"
              "\"ts\":1.500,\"dur\":1000.001},\n"
              "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":2,\"tid\":193,"
              "\"args\":{\"name\":\"a\\\"\\\\b\\u000a\\u00ff\u00e9\"}}\n"
              "],\"displayTimeUnit\":\"ms\"}\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_that_overlap_are_in_different_threads),
        cmocka_unit_test(events_are_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
