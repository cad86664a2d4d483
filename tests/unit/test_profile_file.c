/* SPDX-License-Identifier: Apache-2.0 */
/* Events of a server's recording, in rows of the trace viewer. */
#include "client/profile_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t count_of(const char *text, const char *what)
{
    uint32_t count = 0;

    while ((text = strstr(text, what)) != NULL) {
        count++;
        text++;
    }
    return count;
}

static void events_that_overlap_are_in_different_rows(void **state)
{
    const struct ps_rec_profile_event events[] = {
        {.kind = PS_PROFILE_KIND_STEP,
         .name_hash = 5,
         .round = 1,
         .start_ns = 1500,
         .duration_ns = 1000,
         .bytes = 8},
        {.kind = PS_PROFILE_KIND_STEP, .name_hash = 6, .start_ns = 2000},
        {.kind = PS_PROFILE_KIND_STEP, .name_hash = 5, .start_ns = 2500},
        {.kind = PS_PROFILE_KIND_PUSH, .name_hash = 5, .slot = 3},
    };
    struct profile_timeline t = {.rank = 2, .server = "s", .dropped = 9};
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    (void)state;
    t.names = calloc(1, sizeof(*t.names));
    t.names[t.name_count++] = (struct profile_name){5, "a\"\\b\n\xff\u00e9"};
    assert_int_equal(profile_timeline_add(&t, events + 1, 3), 0);
    assert_int_equal(profile_timeline_add(&t, events, 1), 0);
    profile_timeline_write(&t, f);
    fclose(f);
    assert_non_null(strstr(text, "{\"name\": \"step\", \"cat\": \"step\", "
                                 "\"ph\": \"X\", \"pid\": 2, \"tid\": 192, "
                                 "\"ts\": 1.500, \"dur\": 1.000, \"args\": "
                                 "{\"key\": "));
    assert_int_equal(count_of(text, "\"tid\": 192, \"ts\""), 2);
    assert_int_equal(count_of(text, "\"tid\": 193, \"ts\""), 1);
    assert_non_null(strstr(text, "\"a\\\"\\\\b\\u000a\\u00ff\u00e9\""));
    assert_non_null(strstr(text, "\"key 0000000000000006\""));
    assert_non_null(strstr(text, "\"slot\": 3"));
    assert_non_null(strstr(text, "\"server 2 (s)\""));
    assert_non_null(strstr(text, "{\"name\": \"step 2\"}"));
    assert_non_null(strstr(text, "{\"events\": 9}}\n]}\n"));
    free(text);
    profile_timeline_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_that_overlap_are_in_different_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
