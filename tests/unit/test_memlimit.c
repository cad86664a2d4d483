/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of made-up hosts: a folder stands for /. */
#include "common/memory.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

static char root[64];

/* With the folders above it. */
static void write_file(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(full, 0700);
        *p = '/';
    }
    f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int make_host(void **state)
{
    (void)state;
    strcpy(root, "/tmp/ps-memlimit-XXXXXX");
    assert_non_null(mkdtemp(root));
    write_file("/proc/meminfo", "MemFree: 5 kB\nMemTotal:       16777216 kB\n");
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind,
                      struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static int remove_host(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void put_v2(const char *group)
{
    char line[512];

    snprintf(line, sizeof(line), "0::%s\n", group);
    write_file("/proc/self/cgroup", line);
    write_file(
        "/proc/self/mountinfo",
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 "
        "rw,nsdelegate\n");
}

static void without_groups_the_host_counts(void **state)
{
    (void)state;
    assert_int_equal(ps_memory_limit(root), 16 * GIB);
}

static void groups_without_a_limit_change_nothing(void **state)
{
    (void)state;
    put_v2("/user.slice/a.scope");
    write_file("/sys/fs/cgroup/user.slice/a.scope/memory.max", "max\n");
    write_file("/sys/fs/cgroup/user.slice/a.scope/memory.high", "max\n");
    write_file("/sys/fs/cgroup/user.slice/memory.max", "max\n");
    assert_int_equal(ps_memory_limit(root), 16 * GIB);
}

static void limit_of_the_group(void **state)
{
    (void)state;
    put_v2("/system.slice/psserver.service");
    write_file("/sys/fs/cgroup/system.slice/psserver.service/memory.max",
               "268435456\n");
    write_file("/sys/fs/cgroup/system.slice/memory.max", "max\n");
    assert_int_equal(ps_memory_limit(root), 256 * MIB);
    write_file("/sys/fs/cgroup/system.slice/psserver.service/memory.high",
               "134217728\n");
    assert_int_equal(ps_memory_limit(root), 128 * MIB);
}

static void least_limit_of_the_ancestors(void **state)
{
    (void)state;
    put_v2("/a/b/c");
    write_file("/sys/fs/cgroup/a/b/c/memory.max", "1073741824\n");
    write_file("/sys/fs/cgroup/a/memory.max", "536870912\n");
    assert_int_equal(ps_memory_limit(root), 512 * MIB);
}

/* In a container the mount point is the group itself. */
static void limit_of_the_mount_point(void **state)
{
    (void)state;
    put_v2("/");
    write_file("/sys/fs/cgroup/memory.max", "1073741824\n");
    assert_int_equal(ps_memory_limit(root), GIB);
    put_v2("/../other");
    assert_int_equal(ps_memory_limit(root), GIB);
}

static void more_than_the_host_has(void **state)
{
    (void)state;
    put_v2("/a");
    write_file("/sys/fs/cgroup/a/memory.max", "68719476736\n");
    assert_int_equal(ps_memory_limit(root), 16 * GIB);
}

static void first_version(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "9:name=systemd:/\n"
                                    "4:cpu,memory:/docker/abc/inner\n"
                                    "0::/\n");
    write_file(
        "/proc/self/mountinfo",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup "
        "rw,cpu,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    write_file("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes",
               "9223372036854771712\n");
    assert_int_equal(ps_memory_limit(root), 16 * GIB);
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    assert_int_equal(ps_memory_limit(root), 2 * GIB);
}

static void broken_files_are_passed_over(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "\nnonsense\n7:\n0:\n0::");
    write_file("/proc/self/mountinfo", "a - cgroup2\n - cgroup\n\n-\n");
    assert_int_equal(ps_memory_limit(root), 16 * GIB);
    write_file("/proc/meminfo", "");
    assert_int_equal(ps_memory_limit(root), 0);
}

static void memory_limit_of_this_host_is_read(void **state)
{
    (void)state;
    assert_true(ps_memory_limit("") > MIB);
}

#define ON_HOST(test)                                                          \
    cmocka_unit_test_setup_teardown(test, make_host, remove_host)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_HOST(without_groups_the_host_counts),
        ON_HOST(groups_without_a_limit_change_nothing),
        ON_HOST(limit_of_the_group),
        ON_HOST(least_limit_of_the_ancestors),
        ON_HOST(limit_of_the_mount_point),
        ON_HOST(more_than_the_host_has),
        ON_HOST(first_version),
        ON_HOST(broken_files_are_passed_over),
        cmocka_unit_test(memory_limit_of_this_host_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
