/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"

static void numbers_of_errors_never_change(void **state)
{
    (void)state;
    /* Error codes travel in messages: a change here breaks running clusters. */
    assert_int_equal(PS_E_INVAL, -1);
    assert_int_equal(PS_E_PROTO, -4);
    assert_int_equal(PS_E_TIMEOUT, -6);
    assert_int_equal(PS_E_PEERLOST, -18);
    assert_int_equal(PS_E_CONFIG, -22);
    assert_int_equal(PS_E_BUG, -28);
    assert_int_equal(PS_E_BUSY, -29);
    assert_int_equal(PS_E_MIGRATING, -30);
    assert_int_equal(PS_E_UNCONFIGURED, -31);
    assert_int_equal(PS_E_DISCARDED, -32);
}

static void errors_have_distinct_names_and_texts(void **state)
{
    static const int codes[] = {
#define PS_ERR(name, number, text) PS_E_##name,
#include "base/err.def"
#undef PS_ERR
    };
    const size_t count = sizeof(codes) / sizeof(codes[0]);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        assert_true(codes[i] < 0);
        assert_string_not_equal(ps_strerror(codes[i]), "unknown error");
        assert_int_equal(strncmp(ps_err_name(codes[i]), "PS_E_", 5), 0);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(ps_strerror(codes[i]),
                                    ps_strerror(codes[j]));
            assert_string_not_equal(ps_err_name(codes[i]),
                                    ps_err_name(codes[j]));
        }
    }
    assert_string_equal(ps_err_name(PS_E_NOKEY), "PS_E_NOKEY");
    assert_string_equal(ps_strerror(0), "success");
}

static void unknown_numbers_have_a_text(void **state)
{
    (void)state;
    assert_string_equal(ps_strerror(1), "unknown error");
    assert_string_equal(ps_strerror(-9999), "unknown error");
    assert_string_equal(ps_err_name(7), "PS_E_UNKNOWN");
}

static void errno_maps_to_an_error(void **state)
{
    (void)state;
    assert_int_equal(ps_err_from_errno(0), 0);
    assert_int_equal(ps_err_from_errno(ENOENT), PS_E_NOENT);
    assert_int_equal(ps_err_from_errno(EACCES), PS_E_PERM);
    assert_int_equal(ps_err_from_errno(ECONNREFUSED), PS_E_REFUSED);
    assert_int_equal(ps_err_from_errno(EPIPE), PS_E_CLOSED);
    for (int e = 1; e < 4096; e++) {
        assert_string_not_equal(ps_strerror(ps_err_from_errno(e)),
                                "unknown error");
        assert_true(ps_err_from_errno(e) < 0);
    }
}

static void types_have_sizes_and_names(void **state)
{
    (void)state;
    assert_int_equal(ps_dtype_size(PS_DTYPE_FLOAT32), sizeof(float));
    assert_int_equal(ps_dtype_size(PS_DTYPE_FLOAT64), sizeof(double));
    assert_int_equal(ps_dtype_size(PS_DTYPE_INT32), sizeof(int32_t));
    assert_int_equal(ps_dtype_size(PS_DTYPE_INT64), sizeof(int64_t));
    assert_int_equal(ps_dtype_size(PS_DTYPE_FLOAT16), 2);
    assert_int_equal(ps_dtype_size(PS_DTYPE_BFLOAT16), 2);
    assert_int_equal(ps_dtype_size(PS_DTYPE_BOOL), 1);
    assert_int_equal(ps_dtype_size(8), 0);
    assert_int_equal(ps_dtype_size(UINT32_MAX), 0);
    assert_string_equal(ps_dtype_name(PS_DTYPE_INT64), "int64");
    assert_string_equal(ps_dtype_name(99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_errors_never_change),
        cmocka_unit_test(errors_have_distinct_names_and_texts),
        cmocka_unit_test(unknown_numbers_have_a_text),
        cmocka_unit_test(errno_maps_to_an_error),
        cmocka_unit_test(types_have_sizes_and_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
