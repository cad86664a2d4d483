/* SPDX-License-Identifier: Apache-2.0 */
/* The loader of modules, and the change to the CPU, with modules that have a
 * fault each (tests/support/kernel_fake.c). */
#include "kernel/device.h"
#include "kernel/plugin.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 100 };

static float a[COUNT], b[COUNT], out[COUNT];
static const void *const src[] = {a, b};

static const char *module(const char *name)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s/kernel_fake_%s.so", FAKE_FOLDER,
                   name);
    return path;
}

static struct ps_device *opened(const char *name)
{
    struct ps_device *d = NULL;
    char why[256] = "";

    if (ps_device_open(module(name), 0, &d, why, sizeof(why)) != 0) {
        fail_msg("%s", why);
    }
    return d;
}

static struct ps_job sum_of_two(void)
{
    for (unsigned i = 0; i < COUNT; i++) {
        a[i] = (float)i;
        b[i] = 0.5F;
        out[i] = -1;
    }
    return (struct ps_job){.op = PS_JOB_SUM,
                           .dtype = PS_DTYPE_FLOAT32,
                           .count = COUNT,
                           .src_count = 2,
                           .src = src,
                           .dst = out};
}

static void assert_sum(void)
{
    for (unsigned i = 0; i < COUNT; i++) {
        assert_true(out[i] == (float)i + 0.5F);
    }
}

static void assert_refused(const char *name, int code, const char *text)
{
    struct ps_device *d = NULL;
    char why[256] = "";

    assert_int_equal(ps_device_open(module(name), 0, &d, why, sizeof(why)),
                     code);
    assert_null(d);
    if (strstr(why, text) == NULL) {
        fail_msg("'%s' does not say '%s'", why, text);
    }
}

static void modules_that_cannot_be_used_say_why(void **state)
{
    struct ps_device *d = NULL;
    char why[256] = "";
    char version[64];

    (void)state;
    /* dlopen() would search folders for it. */
    assert_int_equal(ps_device_open("libm.so.6", 0, &d, why, sizeof(why)),
                     PS_E_NOENT);
    assert_string_equal(why, "libm.so.6 is no path; give the whole path of the "
                             "module");
    assert_refused("none", PS_E_NOENT, "kernel_fake_none.so: cannot open");
    assert_refused("symbol", PS_E_UNSUPPORTED, "has no symbol");
    snprintf(version, sizeof(version), "its interface is version %u",
             PS_KERNEL_ABI + 1);
    assert_refused("abi", PS_E_VERSION, version);
    assert_refused("open", PS_E_NOENT, "the fake has no device");
}

static void jobs_of_the_module_are_computed_there(void **state)
{
    struct ps_device *d = opened("good");
    struct ps_job job = sum_of_two();
    struct ps_device_stats stats;
    char text[64];

    (void)state;
    ps_device_describe(d, text, sizeof(text));
    assert_string_equal(text, "fake");
    assert_true(ps_device_accepts(d, &job));
    assert_int_equal(ps_device_run_range(d, &job, NULL, 0, 32), 0);
    assert_int_equal(ps_device_run_range(d, &job, NULL, 32, COUNT), 0);
    assert_sum();
    ps_device_stats(d, &stats);
    assert_int_equal(stats.computed, 2);
    ps_device_close(d);
}

static void jobs_that_the_module_lacks_run_on_the_cpu(void **state)
{
    struct ps_device *d = opened("good");
    struct ps_job job = sum_of_two();
    struct ps_device_stats stats;
    const void *three[] = {a, b, b};

    (void)state;
    job.src = three;
    job.src_count = 3;
    job.divide_by = 2;
    assert_int_equal(ps_device_run_range(d, &job, NULL, 0, COUNT), 0);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_true(out[i] == ((float)i + 1) / 2);
    }
    ps_device_stats(d, &stats);
    assert_int_equal(stats.refused, 1);
    assert_null(ps_device_failure(d));
    ps_device_close(d);
}

static void an_invalid_job_is_refused(void **state)
{
    struct ps_device *d = opened("good");
    struct ps_job job = sum_of_two();

    (void)state;
    assert_int_equal(ps_device_run_range(d, &job, NULL, 8, COUNT), PS_E_INVAL);
    job.src_count = 0;
    assert_int_equal(ps_device_run_range(d, &job, NULL, 0, COUNT), PS_E_INVAL);
    assert_true(out[0] == -1);
    ps_device_close(d);
    ps_device_close(NULL);
}

/* The device fails in the middle: the CPU computes the rest, and all jobs from
 * then on. */
static void a_device_that_fails_gets_no_more_jobs(void **state)
{
    struct ps_device *d = opened("submit");
    struct ps_job job = sum_of_two();
    struct ps_device_stats stats;

    (void)state;
    assert_int_equal(ps_device_run_range(d, &job, NULL, 0, COUNT), 0);
    assert_sum();
    assert_string_equal(ps_device_failure(d), "the fake is lost");
    assert_false(ps_device_accepts(d, &job));
    job = sum_of_two();
    assert_int_equal(ps_device_run_range(d, &job, NULL, 0, COUNT), 0);
    assert_sum();
    ps_device_stats(d, &stats);
    assert_int_equal(stats.failed, 1);
    assert_int_equal(stats.computed, 0);
    ps_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_that_cannot_be_used_say_why),
        cmocka_unit_test(jobs_of_the_module_are_computed_there),
        cmocka_unit_test(jobs_that_the_module_lacks_run_on_the_cpu),
        cmocka_unit_test(an_invalid_job_is_refused),
        cmocka_unit_test(a_device_that_fails_gets_no_more_jobs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
