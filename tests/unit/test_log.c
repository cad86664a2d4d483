/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct inbox_entry {
    int lines;
    enum ps_log_level level;
    uint64_t kind;
    char text[128];
    size_t len;
};

static void hear(void *ctx, enum ps_log_level level, uint64_t kind,
                 const char *text)
{
    struct inbox_entry *h = ctx;

    h->lines++;
    h->level = level;
    h->kind = kind;
    h->len = strlen(text);
    strncpy(h->text, text, sizeof(h->text) - 1);
}

static void sink_gets_lines_of_its_level(void **state)
{
    struct inbox_entry h = {0};

    (void)state;
    ps_log(PS_LOG_ERROR, "nobody listens");
    ps_log_set(hear, &h, PS_LOG_NOTICE);
    ps_log(PS_LOG_INFO, "node joined node %d", 7);
    assert_int_equal(h.lines, 0);
    ps_log(PS_LOG_NOTICE, "node joined node %d", 7);
    assert_int_equal(h.lines, 1);
    assert_int_equal(h.level, PS_LOG_NOTICE);
    assert_string_equal(h.text, "node joined node 7");
    ps_log_level_set(PS_LOG_TRACE);
    assert_int_equal(ps_log_level_get(), PS_LOG_TRACE);
    ps_log(PS_LOG_TRACE, "frame");
    assert_int_equal(h.lines, 2);
    ps_log_set(NULL, NULL, PS_LOG_INFO);
}

/* The name of a peer contains a line break. */
static void names_cannot_forge_lines(void **state)
{
    struct inbox_entry h = {0};

    (void)state;
    ps_log_set(hear, &h, PS_LOG_NOTICE);
    ps_log_of(7, PS_LOG_NOTICE, "key '%s' of job %s",
              "a\n2026 error\x1b[2J\r\x9b", "j\xc3\xa4\xc2\x9b");
    assert_int_equal(h.kind, 7);
    assert_string_equal(h.text, "key 'a\\x0a2026 error\\x1b[2J\\x0d\\x9b' of "
                                "job j\xc3\xa4\\xc2\\x9b");
    ps_log(PS_LOG_NOTICE, "said at once");
    assert_int_equal(h.kind, 0);
    ps_log_set(NULL, NULL, PS_LOG_INFO);
}

static void long_lines_are_cut(void **state)
{
    struct inbox_entry h = {0};

    (void)state;
    ps_log_set(hear, &h, PS_LOG_INFO);
    ps_log(PS_LOG_ERROR, "%100000d", 1);
    assert_int_equal(h.lines, 1);
    assert_in_range(h.len, 1000, 10000);
    ps_log_set(NULL, NULL, PS_LOG_INFO);
}

static void level_words_and_levels_match(void **state)
{
    (void)state;
    for (int i = PS_LOG_ERROR; i <= PS_LOG_TRACE; i++) {
        const char *name = ps_log_level_name((enum ps_log_level)i);

        assert_int_equal(ps_log_level_parse(name), i);
    }
    assert_int_equal(ps_log_level_parse("warning"), PS_LOG_WARNING);
    assert_int_equal(ps_log_level_parse("loud"), -1);
    assert_int_equal(ps_log_level_parse(""), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sink_gets_lines_of_its_level),
        cmocka_unit_test(names_cannot_forge_lines),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(level_words_and_levels_match),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
