/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/scan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct ps_scan_limits usual = {.depth_max = 4, .nodes_max = 1000};

#define BYTES(...)                                                             \
    (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

static int scan(const uint8_t *bytes, size_t len)
{
    return ps_scan(bytes, len, &usual);
}

/* One value of each kind that msgpack has, alone. */
static const struct {
    const char *bytes;
    size_t len;
} whole[] = {
#define ROW(text)                                                              \
    {                                                                          \
        text, sizeof(text) - 1                                                 \
    }
    ROW("\x00"),
    ROW("\x7f"),
    ROW("\xe0"),
    ROW("\xff"),
    ROW("\x80"),
    ROW("\x82\x01\x02\x03\x04"),
    ROW("\x90"),
    ROW("\x93\x01\x02\x03"),
    ROW("\xa0"),
    ROW("\xa3"
        "abc"),
    ROW("\xc0"),
    ROW("\xc2"),
    ROW("\xc3"),
    ROW("\xc4\x02"
        "ab"),
    ROW("\xc5\x00\x02"
        "ab"),
    ROW("\xc6\x00\x00\x00\x02"
        "ab"),
    ROW("\xca\x00\x00\x00\x00"),
    ROW("\xcb\x00\x00\x00\x00\x00\x00\x00\x00"),
    ROW("\xcc\x01"),
    ROW("\xcd\x01\x02"),
    ROW("\xce\x01\x02\x03\x04"),
    ROW("\xcf\x01\x02\x03\x04\x05\x06\x07\x08"),
    ROW("\xd0\x01"),
    ROW("\xd1\x01\x02"),
    ROW("\xd2\x01\x02\x03\x04"),
    ROW("\xd3\x01\x02\x03\x04\x05\x06\x07\x08"),
    ROW("\xd9\x02"
        "ab"),
    ROW("\xda\x00\x02"
        "ab"),
    ROW("\xdb\x00\x00\x00\x02"
        "ab"),
    ROW("\xdc\x00\x02\x01\x02"),
    ROW("\xdd\x00\x00\x00\x02\x01\x02"),
    ROW("\xde\x00\x01\x01\x02"),
    ROW("\xdf\x00\x00\x00\x01\x01\x02"),
#undef ROW
};

static void values_of_all_kinds_are_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        assert_int_equal(scan((const uint8_t *)whole[i].bytes, whole[i].len),
                         0);
    }
}

static void truncated_or_trailing_bytes_are_refused(void **state)
{
    uint8_t more[32];

    (void)state;
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        for (size_t len = 0; len < whole[i].len; len++) {
            assert_int_equal(scan((const uint8_t *)whole[i].bytes, len),
                             PS_E_PROTO);
        }
        memcpy(more, whole[i].bytes, whole[i].len);
        more[whole[i].len] = 0;
        assert_int_equal(scan(more, whole[i].len + 1), PS_E_PROTO);
    }
}

static void extensions_and_the_unused_byte_are_refused(void **state)
{
    (void)state;
    assert_int_equal(scan(BYTES(0xc1)), PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xc7, 1, 1, 0)), PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xc8, 0, 1, 1, 0)), PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xc9, 0, 0, 0, 1, 1, 0)), PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xd4, 1, 0)), PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xd5, 1, 0, 0)), PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xd6, 255, 0, 0, 0, 0)), PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xd7, 1, 0, 0, 0, 0, 0, 0, 0, 0)), PS_E_PROTO);
    assert_int_equal(
        scan(BYTES(0xd8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        PS_E_PROTO);
}

static void impossible_lengths_are_refused(void **state)
{
    (void)state;
    /* An array of 2^28, a map of 2^32-1 within a map. */
    assert_int_equal(scan(BYTES(0xdd, 0x10, 0, 0, 0)), PS_E_PROTO);
    assert_int_equal(
        scan(BYTES(0x8a, 0xff, 0xff, 0xff, 0xdf, 0xff, 0xff, 0xff, 0xff)),
        PS_E_PROTO);
    /* Lengths of strings and bytes beyond the end. */
    assert_int_equal(scan(BYTES(0xdb, 0xff, 0xff, 0xff, 0xff, 'a')),
                     PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xc6, 0xff, 0xff, 0xff, 0xff, 'a')),
                     PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xda, 0xff, 0xff, 'a')), PS_E_PROTO);
    assert_int_equal(scan(BYTES(0xc4, 2, 'a')), PS_E_PROTO);
}

/* Each count would fit into the remaining bytes, their sum does not: detected
 * when the second is read, the second of two allowed values. */
static void containers_share_the_remaining_bytes(void **state)
{
    const struct ps_scan_limits two = {.depth_max = 4, .nodes_max = 2};

    (void)state;
    assert_int_equal(ps_scan(BYTES(0x94, 0x94, 0, 0, 0, 0, 0, 0), &two),
                     PS_E_PROTO);
    assert_int_equal(scan(BYTES(0x94, 0x94, 0, 0, 0, 0, 0, 0, 0)), 0);
}

static void depth_is_counted_with_the_scalar(void **state)
{
    (void)state;
    assert_int_equal(scan(BYTES(0x91, 0x91, 0x91, 0x01)), 0);
    assert_int_equal(scan(BYTES(0x91, 0x91, 0x91, 0x90)), 0);
    assert_int_equal(scan(BYTES(0x91, 0x91, 0x91, 0x91, 0x01)), PS_E_TOOBIG);
    assert_int_equal(scan(BYTES(0x81, 0x01, 0x91, 0x91, 0x81, 0x01, 0x02)),
                     PS_E_TOOBIG);
    /* Closed containers do not count on. */
    assert_int_equal(scan(BYTES(0x92, 0x91, 0x91, 0x01, 0x91, 0x91, 0x01)), 0);
}

static void deep_nesting_is_refused_early(void **state)
{
    uint8_t deep[4096];

    (void)state;
    memset(deep, 0x91, sizeof(deep));
    assert_int_equal(scan(deep, sizeof(deep)), PS_E_TOOBIG);
}

static void number_of_values_is_limited(void **state)
{
    const struct ps_scan_limits few = {.depth_max = 4, .nodes_max = 5};

    (void)state;
    assert_int_equal(ps_scan(BYTES(0x82, 1, 1, 2, 2), &few), 0);
    assert_int_equal(ps_scan(BYTES(0x82, 1, 1, 2, 0x91, 2), &few), PS_E_TOOBIG);
    assert_int_equal(ps_scan(BYTES(0x92, 0x91, 1, 0x91, 1), &few), 0);
    assert_int_equal(ps_scan(BYTES(0x92, 0x91, 1, 0x92, 1, 1), &few),
                     PS_E_TOOBIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_all_kinds_are_accepted),
        cmocka_unit_test(truncated_or_trailing_bytes_are_refused),
        cmocka_unit_test(extensions_and_the_unused_byte_are_refused),
        cmocka_unit_test(impossible_lengths_are_refused),
        cmocka_unit_test(containers_share_the_remaining_bytes),
        cmocka_unit_test(depth_is_counted_with_the_scalar),
        cmocka_unit_test(deep_nesting_is_refused_early),
        cmocka_unit_test(number_of_values_is_limited),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
