/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void count_follows_what_is_alive(void **state)
{
    size_t before = ps_alloc_live();
    char *a = ps_alloc(10);
    char *b = ps_calloc(3, 4);
    char *c = ps_strdup("word");
    char *d = ps_realloc(NULL, 5);

    (void)state;
    assert_int_equal(ps_alloc_live(), before + 4);
    a = ps_realloc(a, 10000);
    assert_int_equal(ps_alloc_live(), before + 4);
    assert_memory_equal(b, "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
    assert_string_equal(c, "word");
    ps_free(a);
    ps_free(b);
    ps_free(c);
    ps_free(d);
    ps_free(NULL);
    assert_int_equal(ps_alloc_live(), before);
}

static void nothing_is_still_a_pointer(void **state)
{
    char *a = ps_alloc(0);
    char *b = ps_calloc(0, 8);
    char *c = ps_calloc(8, 0);

    (void)state;
    a = ps_realloc(a, 0);
    assert_ptr_not_equal(a, b);
    assert_ptr_not_equal(b, c);
    ps_free(a);
    ps_free(b);
    ps_free(c);
}

/* The product of a hostile count must not wrap to something small. */
static void too_much_ends_the_process(void **state)
{
    pid_t pid = fork();
    int status;

    (void)state;
    if (pid == 0) {
        close(STDERR_FILENO);
        void *volatile p = ps_calloc(SIZE_MAX / 2, 4);

        _exit(p == NULL ? 1 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    /* Sanitizers end it in their own way. */
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void sizes_of_peers_are_tried(void **state)
{
    size_t before = ps_alloc_live();
    unsigned char *a = ps_try_calloc(3, 5);
    void *b = ps_try_alloc(0);

    (void)state;
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(a[14], 0);
    assert_int_equal(ps_alloc_live(), before + 2);
    ps_free(a);
    ps_free(b);
#ifndef __SANITIZE_ADDRESS__ /* Ends the process in its own way. */
    volatile size_t huge = SIZE_MAX / 2;

    assert_null(ps_try_alloc(huge));
    assert_null(ps_try_calloc(huge, 4));
#endif
    assert_int_equal(ps_alloc_live(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(count_follows_what_is_alive),
        cmocka_unit_test(nothing_is_still_a_pointer),
        cmocka_unit_test(too_much_ends_the_process),
        cmocka_unit_test(sizes_of_peers_are_tried),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
