/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_check.h"

#include "base/err.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char got[PS_TOKEN_TEXT_MAX + 1];
static char reason[256];

static int read_from(const char *path, const char *fd)
{
    struct ps_str why;

    ps_str_init(&why, reason, sizeof(reason));
    memset(got, 'x', sizeof(got));
    return ps_token_text_read(path, fd, got, &why);
}

/* Number of a descriptor with this content, as text. */
static const char *make_fd(const char *content, size_t len)
{
    static char number[16];
    int fd = memfd_create("token", 0);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, len), (ssize_t)len);
    snprintf(number, sizeof(number), "%d", fd);
    return number;
}

static void nothing_is_no_token(void **state)
{
    (void)state;
    assert_int_equal(read_from(NULL, NULL), 0);
    assert_string_equal(got, "");
    assert_int_equal(read_from("", ""), 0);
    assert_string_equal(got, "");
}

static void descriptor_is_read_again_and_again(void **state)
{
    const char *fd = make_fd("pskv1.abc\n", 10);

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(read_from(NULL, fd), 0);
        assert_string_equal(got, "pskv1.abc");
    }
    close(atoi(fd));
    assert_int_equal(read_from(NULL, fd), PS_E_IO);
    assert_int_equal(read_from(NULL, "one"), PS_E_INVAL);
    assert_int_equal(read_from(NULL, "-1"), PS_E_INVAL);
}

static void pipe_is_read_to_its_end(void **state)
{
    char number[16];
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "pskv1.abc", 9), 9);
    close(fds[1]);
    snprintf(number, sizeof(number), "%d", fds[0]);
    assert_int_equal(read_from(NULL, number), 0);
    assert_string_equal(got, "pskv1.abc");
    close(fds[0]);
}

static void file_that_others_may_read_is_refused(void **state)
{
    char path[] = "/tmp/test_token_text.XXXXXX";
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "pskv1.abc\r\n", 11), 11);
    assert_int_equal(read_from(path, NULL), 0);
    assert_string_equal(got, "pskv1.abc");
    assert_int_equal(fchmod(fd, 0640), 0);
    assert_int_equal(read_from(path, NULL), PS_E_INVAL);
    assert_non_null(strstr(reason, "other users may read this token"));
    close(fd);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(read_from(path, NULL), PS_E_IO);
}

static void other_contents_are_no_token(void **state)
{
    static char longest[PS_TOKEN_TEXT_MAX + 2] = "pskv1.";
    static const struct {
        const char *content;
        size_t len;
    } wrong[] = {{"", 0},
                 {"\n", 1},
                 {"pskv2.abc", 9},
                 {"pskv1.a\0b", 9},
                 {longest, PS_TOKEN_TEXT_MAX + 1}};

    (void)state;
    memset(longest + 6, 'a', PS_TOKEN_TEXT_MAX - 5);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const char *fd = make_fd(wrong[i].content, wrong[i].len);

        assert_int_equal(read_from(NULL, fd), PS_E_INVAL);
        assert_non_null(strstr(reason, "it has no token"));
        close(atoi(fd));
    }
    assert_int_equal(read_from(NULL, make_fd(longest, PS_TOKEN_TEXT_MAX)), 0);
    assert_int_equal(strlen(got), PS_TOKEN_TEXT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_no_token),
        cmocka_unit_test(descriptor_is_read_again_and_again),
        cmocka_unit_test(pipe_is_read_to_its_end),
        cmocka_unit_test(file_that_others_may_read_is_refused),
        cmocka_unit_test(other_contents_are_no_token),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
