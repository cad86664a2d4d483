/* SPDX-License-Identifier: Apache-2.0 */
#include "net/local.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/sanitized.h"

#define KIB   ((size_t)1024)
#define MIB   (KIB * KIB)
#define COUNT 2000u

static void *map(size_t size)
{
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(data, MAP_FAILED);
    return data;
}

static bool is_mapped(void *page)
{
    unsigned char resident;

    return mincore(page, 1, &resident) == 0 || errno != ENOMEM;
}

/* Maps memory whose end `watch` reports, at `at` if that is not NULL. */
static char *map_watched(int watch, void *at, size_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    char path[64];
    char *data;

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    data = mmap(at, size, PROT_READ | PROT_WRITE,
                MAP_SHARED | (at != NULL ? MAP_FIXED : 0), fd, 0);
    assert_ptr_not_equal(data, MAP_FAILED);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    assert_true(inotify_add_watch(watch, path, IN_DELETE_SELF) >= 0);
    close(fd);
    return data;
}

/* Returns when nothing holds as many of the watched memories any more. */
static void await_ends(int watch, uint32_t count)
{
    while (count > 0) {
        struct inotify_event e;

        assert_int_equal(read(watch, &e, sizeof(e)), sizeof(e));
        count -= (e.mask & IN_DELETE_SELF) != 0;
    }
}

static void a_small_range_is_unmapped_at_once(void **state)
{
    char *data = map(64 * KIB);

    (void)state;
    ps_unmap(data, 64 * KIB);
    assert_false(is_mapped(data));
    assert_false(is_mapped(data + 60 * KIB));
}

/* Both ends and the middle of a range that is not a multiple of a piece. */
static void a_large_range_is_unmapped_soon(void **state)
{
    size_t size = 50 * MIB + 4 * KIB;
    int watch = inotify_init1(IN_CLOEXEC);
    char *data = map_watched(watch, NULL, size);

    (void)state;
    memset(data, 1, size);
    ps_unmap(data, size);
    await_ends(watch, 1);
    assert_false(is_mapped(data));
    assert_false(is_mapped(data + 25 * MIB));
    assert_false(is_mapped(data + size - 4 * KIB));
    close(watch);
}

/* More than the ring has places, each with its own memory around it. */
static void many_ranges_are_unmapped_and_nothing_else(void **state)
{
    static char *data[COUNT];
    size_t size = 512 * KIB;
    int watch = inotify_init1(IN_CLOEXEC);

    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        data[i] = map(size + 8 * KIB);
        (void)map_watched(watch, data[i] + 4 * KIB, size);
        data[i][0] = (char)i;
        data[i][4 * KIB] = 1;
        data[i][size + 4 * KIB] = (char)i;
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        ps_unmap(data[i] + 4 * KIB, size);
    }
    await_ends(watch, COUNT);
    close(watch);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_false(is_mapped(data[i] + 4 * KIB));
        assert_false(is_mapped(data[i] + size));
        assert_int_equal(data[i][0], (char)i);
        assert_int_equal(data[i][size + 4 * KIB], (char)i);
        ps_unmap(data[i], 4 * KIB);
        ps_unmap(data[i] + size + 4 * KIB, 4 * KIB);
    }
}

#if !PS_TEST_SANITIZED
/* Addresses without pages do not wait for the thread. */
static void a_huge_range_is_unmapped_at_once(void **state)
{
    size_t size = MIB * MIB + MIB;
    char *data = mmap(NULL, size, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)state;
    assert_ptr_not_equal(data, MAP_FAILED);
    ps_unmap(data, size);
    assert_false(is_mapped(data));
}
#endif

static void *unmap_some(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < 200; i++) {
        char *data = map(MIB);

        data[0] = 1;
        ps_unmap(data, MIB);
    }
    return NULL;
}

static void several_threads_may_unmap(void **state)
{
    pthread_t threads[4];

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, unmap_some, NULL),
                         0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_range_is_unmapped_at_once),
        cmocka_unit_test(a_large_range_is_unmapped_soon),
#if !PS_TEST_SANITIZED
        cmocka_unit_test(a_huge_range_is_unmapped_at_once),
#endif
        cmocka_unit_test(many_ranges_are_unmapped_and_nothing_else),
        cmocka_unit_test(several_threads_may_unmap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
