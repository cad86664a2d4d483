/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/sanitized.h"

static void count_follows_live_allocations(void **state)
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

static void allocation_of_no_bytes_returns_a_pointer(void **state)
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
static void allocation_beyond_memory_ends_the_process(void **state)
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
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

static void allocation_of_a_size_from_outside_may_fail(void **state)
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
    volatile size_t huge = SIZE_MAX / 2;

    assert_null(ps_try_alloc(huge));
    assert_null(ps_try_calloc(huge, 4));
    assert_int_equal(ps_alloc_live(), before);
}

/* The failing allocation gets its memory from the reserve. */
static void the_reserve_serves_the_failing_allocation(void **state)
{
    (void)state;
    assert_false(ps_alloc_use_reserve());
    assert_true(ps_alloc_reserve(1 << 20));
    assert_false(ps_alloc_is_starved());
    ps_alloc_fail_at(2, 1);
    void *a = ps_alloc(10);

    assert_false(ps_alloc_is_starved());
    void *b = ps_calloc(10, 10);

    assert_true(ps_alloc_is_starved());
    assert_false(ps_alloc_reserve(1 << 20));
    assert_true(ps_alloc_is_starved());
    assert_true(ps_alloc_reserve(1 << 20));
    assert_false(ps_alloc_is_starved());
    ps_alloc_fail_at(1, 0);
    a = ps_realloc(a, 10000);
    assert_true(ps_alloc_is_starved());
    assert_true(ps_alloc_reserve(0));
    assert_false(ps_alloc_is_starved());
    ps_free(a);
    ps_free(b);
}

#if !PS_TEST_SANITIZED
/* These need all of the address space. */
/* Without memory of the system, freed memory becomes the reserve again. */
static int use_up_memory(void)
{
    static void *blocks[1 << 16];
    const struct rlimit limit = {UINT64_C(1) << 29, UINT64_C(1) << 29};
    size_t count = 0;

    if (!ps_alloc_reserve(8 << 20) || setrlimit(RLIMIT_AS, &limit) != 0) {
        return 1;
    }
    while (!ps_alloc_is_starved()) {
        blocks[count++] = ps_alloc(16384);
    }
    if (count < 1000 || ps_alloc_reserve(8 << 20)) {
        return 2;
    }
    for (size_t i = 0; i < 1000; i++) {
        ps_free(blocks[i]); /* 16 MiB. */
    }
    return ps_alloc_reserve(8 << 20) && !ps_alloc_is_starved() ? 0 : 3;
}

static void reserve_is_refilled_after_its_use(void **state)
{
    pid_t pid = fork();
    int status;

    (void)state;
    if (pid == 0) {
        _exit(use_up_memory());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(count_follows_live_allocations),
        cmocka_unit_test(allocation_of_no_bytes_returns_a_pointer),
        cmocka_unit_test(allocation_beyond_memory_ends_the_process),
        cmocka_unit_test(allocation_of_a_size_from_outside_may_fail),
        cmocka_unit_test(the_reserve_serves_the_failing_allocation),
#if !PS_TEST_SANITIZED
        cmocka_unit_test(reserve_is_refilled_after_its_use),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
