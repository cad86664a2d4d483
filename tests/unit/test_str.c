/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void long_text_is_cut_and_marked(void **state)
{
    char data[8];
    struct ps_str s;

    (void)state;
    ps_str_init(&s, data, sizeof(data));
    assert_string_equal(data, "");
    ps_str_add(&s, "abc");
    ps_str_addf(&s, "%d", 1234);
    assert_string_equal(data, "abc1234");
    assert_false(s.truncated);
    ps_str_add(&s, "");
    assert_false(s.truncated);
    ps_str_add(&s, "x");
    assert_true(s.truncated);
    ps_str_addf(&s, "%s", "y");
    assert_string_equal(data, "abc1234");
    assert_int_equal(s.len, 7);
}

/* For every size of the buffer, the text is a prefix of the whole. */
static void text_in_any_size_is_a_prefix(void **state)
{
    static const char whole[] = "node 12 of 3-5,9 'a\\x0ab'";
    static const unsigned numbers[] = {3, 4, 5, 9};

    (void)state;
    for (size_t cap = 1; cap <= sizeof(whole) + 2; cap++) {
        char data[sizeof(whole) + 3];
        struct ps_str s;
        size_t len = cap - 1 < sizeof(whole) - 1 ? cap - 1 : sizeof(whole) - 1;

        memset(data, '#', sizeof(data));
        ps_str_init(&s, data, cap);
        ps_str_addf(&s, "node %d of ", 12);
        ps_str_add_ranges(&s, numbers, 4);
        ps_str_add(&s, " '");
        ps_str_add_escaped(&s, "a\nb", 3, 10);
        ps_str_add(&s, "'");
        assert_int_equal(s.len, len);
        assert_memory_equal(data, whole, len);
        assert_int_equal(data[len], '\0');
        assert_int_equal(data[cap], '#');
        assert_int_equal(s.truncated, cap < sizeof(whole));
    }
}

static void bytes_of_peers_cannot_forge_a_line(void **state)
{
    char data[128];
    struct ps_str s;

    (void)state;
    ps_str_init(&s, data, sizeof(data));
    ps_str_add_escaped(&s, "a b\n\"\\'\x7f\xc3\xa4\0z", 12, 100);
    assert_string_equal(data, "a b\\x0a\\x22\\x5c\\x27\\x7f\\xc3\\xa4\\x00z");
    ps_str_init(&s, data, sizeof(data));
    ps_str_add_escaped(&s, "abcdef", 6, 4);
    assert_string_equal(data, "abcd...");
    ps_str_init(&s, data, sizeof(data));
    ps_str_add_escaped(&s, "abcd", 4, 4);
    assert_string_equal(data, "abcd");
}

static void invisible_characters_are_escaped(void **state)
{
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {
        {"plain 'text' \\ \"", "plain 'text' \\ \""},
        {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", /* Of 2, 3, 4 bytes. */
         "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"a\nb\tc\x1b[0m\x7f", "a\\x0ab\\x09c\\x1b[0m\\x7f"},
        {"\xc2\x9b", "\\xc2\\x9b"},                   /* CSI */
        {"\xe2\x80\xa8", "\\xe2\\x80\\xa8"},          /* Line separator. */
        {"\xe2\x80\xae", "\\xe2\\x80\\xae"},          /* Right to left. */
        {"\xff\x80", "\\xff\\x80"},                   /* No UTF-8. */
        {"\xc0\x8a", "\\xc0\\x8a"},                   /* A long newline. */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},          /* Half a pair. */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* Too large. */
        {"cut \xe2\x82", "cut \\xe2\\x82"},
    };
    char data[128];
    struct ps_str s;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ps_str_init(&s, data, sizeof(data));
        ps_str_add_visible(&s, cases[i].in);
        assert_string_equal(data, cases[i].out);
    }
}

static void consecutive_numbers_are_printed_as_ranges(void **state)
{
    static const unsigned some[] = {1, 2, 3, 7, 9, 10};
    char data[64];
    struct ps_str s;

    (void)state;
    ps_str_init(&s, data, sizeof(data));
    ps_str_add_ranges(&s, some, 6);
    assert_string_equal(data, "1-3,7,9-10");
    ps_str_init(&s, data, sizeof(data));
    ps_str_add_ranges(&s, some, 0);
    assert_string_equal(data, "");
    ps_str_add_ranges(&s, some, 1);
    assert_string_equal(data, "1");
}

static void copy_says_whether_it_fitted(void **state)
{
    char data[4];

    (void)state;
    assert_true(ps_str_copy(data, sizeof(data), "abc"));
    assert_string_equal(data, "abc");
    assert_false(ps_str_copy(data, sizeof(data), "abcd"));
    assert_string_equal(data, "abc");
}

static void a_name_is_one_printable_word(void **state)
{
    (void)state;
    assert_true(ps_str_is_name("job-1/group#2", 13));
    assert_false(ps_str_is_name("job-1/group#2", 12));
    assert_false(ps_str_is_name("", 12));
    assert_false(ps_str_is_name(NULL, 12));
    assert_false(ps_str_is_name("a b", 12));
    assert_false(ps_str_is_name("a\n", 12));
    assert_false(ps_str_is_name("\xc3\xa4", 12));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_text_is_cut_and_marked),
        cmocka_unit_test(text_in_any_size_is_a_prefix),
        cmocka_unit_test(bytes_of_peers_cannot_forge_a_line),
        cmocka_unit_test(invisible_characters_are_escaped),
        cmocka_unit_test(consecutive_numbers_are_printed_as_ranges),
        cmocka_unit_test(a_name_is_one_printable_word),
        cmocka_unit_test(copy_says_whether_it_fitted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
