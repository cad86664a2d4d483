/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_check.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[32];
static char path[64];
static char report_text[512];
static int fd;

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/pskv-check-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/key", folder);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return fd >= 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    close(fd);
    unlink(path);
    rmdir(folder);
    return 0;
}

static int check(enum ps_file_kind kind, mode_t mode)
{
    struct ps_str report;

    ps_str_init(&report, report_text, sizeof(report_text));
    assert_int_equal(fchmod(fd, mode), 0);
    return ps_file_check(fd, path, kind, &report);
}

static void expect_refusal(enum ps_file_kind kind, mode_t mode,
                           const char *what)
{
    char expected[512];

    assert_int_equal(check(kind, mode), PS_E_CONFIG);
    snprintf(expected, sizeof(expected), "%s: owner %u, mode %04o: %s %s'\n",
             path, (unsigned)geteuid(), (unsigned)mode, what, path);
    assert_string_equal(report_text, expected);
}

static void file_that_others_can_write_is_refused(void **state)
{
    const char *what = "other users can write it; run 'chmod go-w";

    (void)state;
    for (int kind = PS_FILE_TRUSTED; kind <= PS_FILE_SECRET; kind++) {
        assert_int_equal(check(kind, 0600), 0);
        assert_int_equal(check(kind, 0400), 0);
        expect_refusal(kind, 0620, what);
        expect_refusal(kind, 0602, what);
        expect_refusal(kind, 0666, what);
    }
    assert_int_equal(check(PS_FILE_TRUSTED, 0644), 0);
    assert_string_equal(report_text, "");
}

static void secret_that_others_can_read_is_refused(void **state)
{
    (void)state;
    expect_refusal(PS_FILE_SECRET, 0604,
                   geteuid() == 0 ? "other users can read it; run 'chmod o-r"
                                  : "other users can read it; run 'chmod go-r");
    if (geteuid() == 0) {
        assert_int_equal(check(PS_FILE_SECRET, 0640), 0);
        assert_int_equal(fchown(fd, 4321, 0), 0);
        assert_int_equal(check(PS_FILE_SECRET, 0600), PS_E_CONFIG);
        assert_int_equal(seteuid(4321), 0);
        assert_int_equal(check(PS_FILE_SECRET, 0600), 0);
        expect_refusal(PS_FILE_SECRET, 0640,
                       "other users can read it; run 'chmod go-r");
        assert_int_equal(seteuid(0), 0);
    } else {
        expect_refusal(PS_FILE_SECRET, 0640,
                       "other users can read it; run 'chmod go-r");
    }
}

static void file_of_another_user_is_refused(void **state)
{
    char expected[512];

    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    assert_int_equal(fchown(fd, 4321, (gid_t)-1), 0);
    assert_int_equal(check(PS_FILE_TRUSTED, 0644), PS_E_CONFIG);
    snprintf(expected, sizeof(expected),
             "%s: owner 4321, mode 0644: user 4321 can change it; run this as "
             "user 4321 if the daemon is that user's, else run 'chown 0 %s'\n",
             path, path);
    assert_string_equal(report_text, expected);
}

static void pipe_passes(void **state)
{
    struct ps_str report;
    int pair[2];

    (void)state;
    ps_str_init(&report, report_text, sizeof(report_text));
    assert_int_equal(pipe(pair), 0);
    assert_int_equal(ps_file_check(pair[0], "pipe", PS_FILE_SECRET, &report),
                     0);
    close(pair[0]);
    close(pair[1]);
}

static int check_folder(const char *name, mode_t mode)
{
    struct ps_str report;

    ps_str_init(&report, report_text, sizeof(report_text));
    assert_int_equal(chmod(folder, mode), 0);
    return ps_file_check_folder(name, &report);
}

static void folder_in_which_others_can_replace_files_is_refused(void **state)
{
    char expected[512];

    (void)state;
    assert_int_equal(check_folder(path, 0755), 0);
    assert_int_equal(check_folder(path, 01777), 0);
    assert_string_equal(report_text, "");
    assert_int_equal(check_folder(path, 0775), PS_E_CONFIG);
    snprintf(expected, sizeof(expected),
             "%s: owner %u, mode 0775: other users can replace the socket; run "
             "'chmod go-w %s', or choose another path\n",
             folder, (unsigned)geteuid(), folder);
    assert_string_equal(report_text, expected);
    assert_int_equal(check_folder(path, 0757), PS_E_CONFIG);
    assert_int_equal(check_folder("/nonexistent/none", 0700), 0);
    assert_int_equal(check_folder("/x", 0700), 0);

    char here[256];

    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(check_folder("x", 0700), 0);
    assert_int_equal(check_folder("x", 0777), PS_E_CONFIG);
    assert_int_equal(chdir(here), 0);
    assert_int_equal(ps_alloc_live(), 0);
}

/* Not even the sticky bit keeps its owner from replacing files. */
static void folder_of_another_user_is_refused(void **state)
{
    char expected[512];

    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    assert_int_equal(chown(folder, 4321, (gid_t)-1), 0);
    assert_int_equal(check_folder(path, 0755), PS_E_CONFIG);
    snprintf(
        expected, sizeof(expected),
        "%s: owner 4321, mode 0755: user 4321 can replace the socket; run "
        "this as user 4321 if the daemon is that user's, else run 'chown 0 "
        "%s', or choose another path\n",
        folder, folder);
    assert_string_equal(report_text, expected);
    assert_int_equal(check_folder(path, 01777), PS_E_CONFIG);
    assert_int_equal(seteuid(4321), 0);
    assert_int_equal(check_folder(path, 0755), 0);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(chown(folder, 0, (gid_t)-1), 0);
}

static void expect_file(const char *text, mode_t mode)
{
    char read[32] = "";
    struct stat st;
    FILE *f = fopen(path, "re");

    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    assert_int_equal(st.st_mode & 07777, mode);
    assert_int_equal(fread(read, 1, sizeof(read) - 1, f), strlen(text));
    assert_string_equal(read, text);
    assert_int_equal(fclose(f), 0);
}

static void replaced_file_is_whole_and_a_failure_keeps_the_former(void **state)
{
    char other[128];

    (void)state;
    assert_int_equal(ps_file_replace(path, "one", 3, 0644, PS_FILE_PASSING), 0);
    expect_file("one", 0644);
    /* A file that an interrupted run left. */
    snprintf(other, sizeof(other), "%s.new", path);
    assert_int_equal(symlink("key", other), 0);
    assert_int_equal(ps_file_replace(path, "second", 6, 0600, PS_FILE_DURABLE),
                     0);
    expect_file("second", 0600);
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(ps_file_replace(path, "third", 5, 0600, PS_FILE_DURABLE),
                     EEXIST);
    expect_file("second", 0600);
    assert_int_equal(rmdir(other), 0);
    assert_int_equal(
        ps_file_replace("/nonexistent/x", "", 0, 0600, PS_FILE_PASSING),
        ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(file_that_others_can_write_is_refused,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(secret_that_others_can_read_is_refused,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(file_of_another_user_is_refused, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(pipe_passes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            folder_in_which_others_can_replace_files_is_refused, set_up,
            tear_down),
        cmocka_unit_test_setup_teardown(folder_of_another_user_is_refused,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            replaced_file_is_whole_and_a_failure_keeps_the_former, set_up,
            tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
