/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"

static void prefix_has_these_bytes(void **state)
{
    static const uint8_t expected[PS_FRAME_PREFIX] = {
        'P',  'S',  1,    49,   0x03, 0x02, 0x01, 0x00,
        0x06, 0x05, 0x00, 0x04, 0x03, 0x00, 0x00, 0x00};
    const struct ps_frame_prefix in = {
        .version = PS_FRAME_VERSION,
        .code = PS_MSG_PUSH,
        .header_len = 0x010203,
        .payload_len = 0x04000506,
        .ref_count = 3,
    };
    struct ps_frame_prefix out;
    uint8_t bytes[PS_FRAME_PREFIX];

    (void)state;
    ps_frame_build(bytes, &in);
    assert_memory_equal(bytes, expected, sizeof(expected));
    assert_int_equal(ps_frame_parse(bytes, &out), 0);
    assert_int_equal(out.version, in.version);
    assert_int_equal(out.code, in.code);
    assert_int_equal(out.header_len, in.header_len);
    assert_int_equal(out.payload_len, in.payload_len);
    assert_int_equal(out.ref_count, in.ref_count);
}

static void put_start(uint8_t *bytes, char second, uint8_t version)
{
    bytes[0] = 'P';
    bytes[1] = (uint8_t)second;
    bytes[2] = version;
}

static void lengths_of_the_prefix_use_all_their_bytes(void **state)
{
    struct ps_frame_prefix out;
    uint8_t bytes[PS_FRAME_PREFIX];

    (void)state;
    memset(bytes, 0, sizeof(bytes));
    memset(bytes, 0xff, 12);
    put_start(bytes, 'S', 1);
    assert_int_equal(ps_frame_parse(bytes, &out), 0);
    assert_int_equal(out.code, 255);
    assert_true(out.header_len == UINT32_MAX);
    assert_true(out.payload_len == UINT32_MAX);
    assert_int_equal(out.ref_count, 0);
}

static void last_bytes_are_references_and_zeros(void **state)
{
    const struct ps_frame_prefix in = {.version = PS_FRAME_VERSION,
                                       .code = PS_MSG_PUSH};
    struct ps_frame_prefix out;
    uint8_t bytes[PS_FRAME_PREFIX];

    (void)state;
    for (unsigned i = 12; i < PS_FRAME_PREFIX; i++) {
        ps_frame_build(bytes, &in);
        bytes[i] = 5;
        assert_int_equal(ps_frame_parse(bytes, &out), PS_E_PROTO);
    }
    ps_frame_build(bytes, &in);
    ps_frame_set_ref_count(bytes, PS_FRAME_REFS_MAX);
    assert_int_equal(ps_frame_parse(bytes, &out), 0);
    assert_int_equal(out.ref_count, PS_FRAME_REFS_MAX);
    /* References to nothing. */
    out.header_len = 9;
    assert_int_equal(ps_frame_check(&out, PS_ROLE_AGENT, PS_ROLE_SERVER),
                     PS_E_PROTO);
}

static void prefix_of_another_protocol_is_refused(void **state)
{
    struct ps_frame_prefix out = {.code = 7};
    uint8_t bytes[PS_FRAME_PREFIX] = "GET / HTTP/1.1\r";

    (void)state;
    assert_int_equal(ps_frame_parse(bytes, &out), PS_E_PROTO);
    put_start(bytes, 'T', 1);
    assert_int_equal(ps_frame_parse(bytes, &out), PS_E_PROTO);
    put_start(bytes, 'S', 2);
    assert_int_equal(ps_frame_parse(bytes, &out), PS_E_VERSION);
    put_start(bytes, 'S', 0);
    assert_int_equal(ps_frame_parse(bytes, &out), PS_E_VERSION);
    assert_int_equal(out.code, 7); /* Written only on success. */
}

static int check(unsigned code, uint32_t header_len, uint32_t payload_len,
                 enum ps_role from, enum ps_role to)
{
    struct ps_frame_prefix p = {
        .version = PS_FRAME_VERSION,
        .code = (uint8_t)code,
        .header_len = header_len,
        .payload_len = payload_len,
    };

    return ps_frame_check(&p, from, to);
}

static void frame_in_the_wrong_direction_is_refused(void **state)
{
    (void)state;
    assert_int_equal(check(PS_MSG_PUSH, 9, 64, PS_ROLE_AGENT, PS_ROLE_SERVER),
                     0);
    assert_int_equal(check(PS_MSG_PUSH, 9, 64, PS_ROLE_SERVER, PS_ROLE_AGENT),
                     PS_E_PERM);
    assert_int_equal(check(PS_MSG_PUSH, 9, 64, PS_ROLE_CTL, PS_ROLE_SERVER),
                     PS_E_PERM);
    assert_int_equal(check(PS_MSG_L_HELLO, 9, 0, PS_ROLE_WORKER, PS_ROLE_AGENT),
                     0);
    assert_int_equal(check(PS_MSG_L_HELLO, 9, 0, PS_ROLE_WORKER, PS_ROLE_SCHED),
                     PS_E_PERM);
}

static void unknown_codes_are_refused(void **state)
{
    unsigned known = 0;

    (void)state;
    for (unsigned code = 0; code < 256; code++) {
        if (ps_msg_header_max(code) != 0) {
            assert_string_not_equal(ps_msg_name(code), "?");
            known++;
            continue;
        }
        assert_string_equal(ps_msg_name(code), "?");
        for (unsigned from = PS_ROLE_SCHED; from <= PS_ROLE_CTL; from++) {
            assert_int_equal(check(code, 9, 0, from, PS_ROLE_SCHED),
                             PS_E_PROTO);
        }
    }
    assert_true(known > 40);
}

static void header_has_a_limit_for_each_message(void **state)
{
    uint32_t max = ps_msg_header_max(PS_MSG_HELLO);

    (void)state;
    assert_true(max < 8192); /* The maximum before a handshake. */
    assert_int_equal(check(PS_MSG_HELLO, 0, 0, PS_ROLE_AGENT, PS_ROLE_SERVER),
                     PS_E_PROTO);
    assert_int_equal(check(PS_MSG_HELLO, max, 0, PS_ROLE_AGENT, PS_ROLE_SERVER),
                     0);
    assert_int_equal(
        check(PS_MSG_HELLO, max + 1, 0, PS_ROLE_AGENT, PS_ROLE_SERVER),
        PS_E_TOOBIG);
    for (unsigned code = 0; code < 256; code++) {
        assert_true(ps_msg_header_max(code) <= PS_HEADER_MAX);
    }
}

static void payload_of_a_message_without_one_is_refused(void **state)
{
    (void)state;
    assert_int_equal(check(PS_MSG_PULL, 9, 1, PS_ROLE_AGENT, PS_ROLE_SERVER),
                     PS_E_PROTO);
    assert_int_equal(
        check(PS_MSG_PUSH, 9, PS_PAYLOAD_MAX, PS_ROLE_AGENT, PS_ROLE_SERVER),
        0);
    assert_int_equal(check(PS_MSG_PUSH, 9, PS_PAYLOAD_MAX + 1, PS_ROLE_AGENT,
                           PS_ROLE_SERVER),
                     PS_E_TOOBIG);
    assert_int_equal(
        check(PS_MSG_PUSH, 9, UINT32_MAX, PS_ROLE_AGENT, PS_ROLE_SERVER),
        PS_E_TOOBIG);
}

static void placement_is_rows_of_eight_bytes(void **state)
{
    const uint32_t most = 8u * PS_KEY_PARTS_MAX;

    (void)state;
    assert_int_equal(
        check(PS_MSG_KEY_OPENED, 9, 0, PS_ROLE_SCHED, PS_ROLE_AGENT), 0);
    assert_int_equal(
        check(PS_MSG_KEY_OPENED, 9, 16, PS_ROLE_SCHED, PS_ROLE_AGENT), 0);
    assert_int_equal(
        check(PS_MSG_KEY_OPENED, 9, 12, PS_ROLE_SCHED, PS_ROLE_AGENT),
        PS_E_PROTO);
    assert_int_equal(
        check(PS_MSG_KEY_OPENED, 9, most, PS_ROLE_SCHED, PS_ROLE_AGENT), 0);
    assert_int_equal(
        check(PS_MSG_KEY_OPENED, 9, most + 8, PS_ROLE_SCHED, PS_ROLE_AGENT),
        PS_E_TOOBIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefix_has_these_bytes),
        cmocka_unit_test(lengths_of_the_prefix_use_all_their_bytes),
        cmocka_unit_test(last_bytes_are_references_and_zeros),
        cmocka_unit_test(prefix_of_another_protocol_is_refused),
        cmocka_unit_test(frame_in_the_wrong_direction_is_refused),
        cmocka_unit_test(unknown_codes_are_refused),
        cmocka_unit_test(header_has_a_limit_for_each_message),
        cmocka_unit_test(payload_of_a_message_without_one_is_refused),
        cmocka_unit_test(placement_is_rows_of_eight_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
