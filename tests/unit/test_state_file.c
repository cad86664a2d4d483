/* SPDX-License-Identifier: Apache-2.0 */
#include "net/arena.h"
#include "net/state_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE (UINT64_C(1) << 30)
#define PAGE 4096u

static uint64_t pages_of(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512 / PAGE;
}

static void bytes_outlive_their_process(void **state)
{
    struct ps_state_file *f;
    const char *why;
    uint8_t *data;
    int kept;

    (void)state;
    assert_int_equal(ps_state_file_new(SIZE, &f), 0);
    assert_int_equal(ps_state_file_size(f), SIZE);
    kept = dup(ps_state_file_fd(f));
    assert_true(kept >= 0);
    assert_int_equal(pages_of(kept), 0);
    data = ps_state_file_data(f);
    data[0] = 1;
    data[SIZE - 1] = 2;
    ps_state_file_close(f);
    assert_int_equal(ps_state_file_open(dup(kept), &f, &why), 0);
    assert_int_equal(ps_state_file_size(f), SIZE);
    data = ps_state_file_data(f);
    assert_int_equal(data[0], 1);
    assert_int_equal(data[SIZE - 1], 2);
    ps_state_file_close(f);
    close(kept);
}

static void readers_see_the_bytes_and_cannot_write(void **state)
{
    struct ps_arenas *arenas = ps_arenas_new();
    struct ps_state_file *f;
    uint64_t size;
    int reader;
    int fd;

    (void)state;
    assert_int_equal(ps_state_file_new(SIZE, &f), 0);
    reader = ps_state_file_open_reader(f);
    assert_true(reader >= 0);

    const uint32_t arena = ps_arenas_add(arenas, reader, SIZE);

    assert_int_not_equal(arena, 0);
    assert_int_equal(ps_arenas_fd(arenas, arena, &fd, &size), 0);
    assert_int_equal(fd, reader);
    assert_int_equal(size, SIZE);
    ((uint8_t *)ps_state_file_data(f))[PAGE] = 3;

    const uint8_t *seen = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);

    assert_ptr_not_equal(seen, MAP_FAILED);
    assert_int_equal(seen[PAGE], 3);
    assert_ptr_equal(
        mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
        MAP_FAILED);
    assert_int_equal(munmap((void *)(uintptr_t)seen, SIZE), 0);
    ps_arenas_free(arenas);
    ps_state_file_close(f);
}

static void released_pages_read_as_zeros(void **state)
{
    struct ps_state_file *f;
    uint8_t *data;
    uint64_t pages;

    (void)state;
    assert_int_equal(ps_state_file_new(SIZE, &f), 0);
    data = ps_state_file_data(f);
    memset(data, 7, 1024 * (size_t)PAGE);
    pages = pages_of(ps_state_file_fd(f));
    assert_true(pages >= 1024);
    ps_state_file_release(f, 1 * PAGE, 1000 * (uint64_t)PAGE);
    assert_int_equal(data[PAGE - 1], 7);
    for (size_t i = PAGE; i < 1001 * (size_t)PAGE; i++) {
        assert_int_equal(data[i], 0);
    }
    assert_int_equal(data[1001 * (size_t)PAGE], 7);
    ps_state_file_release(f, 0, SIZE);
    assert_int_equal(pages_of(ps_state_file_fd(f)), 0);
    ps_state_file_close(f);
}

/* A descriptor that could be truncated under the mapping is refused. */
static void other_descriptors_are_refused(void **state)
{
    struct ps_state_file *f = NULL;
    const char *why = NULL;
    int fds[2];
    int fd;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    close(fds[1]);
    assert_int_equal(ps_state_file_open(fds[0], &f, &why), PS_E_INVAL);
    assert_non_null(why);
    fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, PAGE), 0);
    assert_int_equal(ps_state_file_open(fd, &f, &why), PS_E_INVAL);
    assert_string_equal(
        why, "memfd is not sealed against shrinking, growing and sealing");
    assert_null(f);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* Closed. */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_outlive_their_process),
        cmocka_unit_test(readers_see_the_bytes_and_cannot_write),
        cmocka_unit_test(released_pages_read_as_zeros),
        cmocka_unit_test(other_descriptors_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
