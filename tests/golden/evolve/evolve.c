/* SPDX-License-Identifier: Apache-2.0 */
/* How versions live together, on the small protocol of tests/golden/psgen,
 * which is at its second version. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <msgpack.h>

#include "base/alloc.h"
#include "proto/msg_codec.h"
#include "proto/ps_fixed.h"
#include "proto/shape.h"

static const int64_t numbers[] = {-1, INT64_MIN, INT64_MAX};
static const uint16_t later_list[] = {65535};
static const struct ps_rec_point points[] = {
    {.x = -3, .name = "a", .colour = PS_COLOUR_RED},
    {.x = INT32_MIN, .name = "", .colour = PS_COLOUR_AUTO},
};

/* Nothing in it has its default. */
static const struct ps_msg full = {
    .code = PS_MSG_EVERYTHING,
    .seq = 5,
    .everything =
        {
            .yes = true,
            .a = PS_DTYPE_INT64,
            .b = 65535,
            .c = 1,
            .d = INT32_MIN,
            .e = INT64_MIN,
            .f = -0.25,
            .text = "text",
            .blob = {(const uint8_t *)"\0\1\2", 3},
            .numbers = numbers,
            .numbers_count = 3,
            .points = points,
            .points_count = 2,
            .later = 12,
            .later_text = "t",
            .later_list = later_list,
            .later_list_count = 1,
            .later_blob = {(const uint8_t *)"z", 1},
        },
};

/* Encoded for a peer of `version`, then decoded by us. */
static struct ps_msg pass(struct ps_decoder *d, uint16_t version,
                          const struct ps_msg *msg)
{
    uint8_t out[1024];
    struct ps_msg back;
    size_t len;

    assert_int_equal(ps_msg_encode(msg, version, 0, out, sizeof(out), &len), 0);
    assert_true(len <= ps_msg_encoded_bound(msg));
    assert_int_equal(ps_msg_decode(d, msg->code, out + PS_FRAME_PREFIX,
                                   len - PS_FRAME_PREFIX, &back),
                     0);
    return back;
}

static void assert_first_version(const struct ps_msg_everything *m)
{
    assert_true(m->yes);
    assert_int_equal(m->a, PS_DTYPE_INT64);
    assert_int_equal(m->b, 65535);
    assert_int_equal(m->c, 1);
    assert_int_equal(m->d, INT32_MIN);
    assert_true(m->e == INT64_MIN);
    assert_true(m->f == -0.25);
    assert_string_equal(m->text, "text");
    assert_int_equal(m->blob.len, 3);
    assert_memory_equal(m->blob.data, "\0\1\2", 3);
    assert_int_equal(m->numbers_count, 3);
    assert_memory_equal(m->numbers, numbers, sizeof(numbers));
    assert_int_equal(m->points_count, 2);
    assert_int_equal(m->points[0].x, -3);
    assert_string_equal(m->points[0].name, "a");
    assert_int_equal(m->points[1].x, INT32_MIN);
}

static void all_types_survive(void **state)
{
    struct ps_msg back = pass(*state, 2, &full);

    assert_int_equal(back.seq, 5);
    assert_first_version(&back.everything);
    assert_int_equal(back.everything.points[0].colour, PS_COLOUR_RED);
    assert_int_equal(back.everything.later, 12);
    assert_string_equal(back.everything.later_text, "t");
    assert_int_equal(back.everything.later_list_count, 1);
    assert_int_equal(back.everything.later_list[0], 65535);
    assert_int_equal(back.everything.later_blob.len, 1);
}

static void copies_hold_bytes_and_lists(void **state)
{
    size_t live = ps_alloc_live();
    struct ps_msg *copy = ps_msg_dup(&full);

    (void)state;
    assert_int_equal(ps_alloc_live(), live + 1);
    assert_first_version(&copy->everything);
    assert_ptr_not_equal(copy->everything.blob.data, full.everything.blob.data);
    assert_ptr_not_equal(copy->everything.numbers, numbers);
    assert_ptr_not_equal(copy->everything.points[0].name, points[0].name);
    ps_msg_free(copy);
}

static void older_peers_get_the_fields_they_know(void **state)
{
    struct ps_msg back = pass(*state, 1, &full);

    assert_first_version(&back.everything);
    /* Not sent, so these are the defaults. */
    assert_int_equal(back.everything.points[0].colour, PS_COLOUR_AUTO);
    assert_int_equal(back.everything.later, 11);
    assert_string_equal(back.everything.later_text, "new");
    assert_int_equal(back.everything.later_list_count, 0);
    assert_int_equal(back.everything.later_blob.len, 0);
}

static void defaults_are_left_out_and_put_back(void **state)
{
    struct ps_msg plain = {
        .code = PS_MSG_EVERYTHING,
        .everything = {.c = 7,
                       .d = -7,
                       .f = 0.5,
                       .text = "so \"it\" is",
                       .later = 11,
                       .later_text = "new"},
    };
    struct ps_msg back = pass(*state, 2, &plain);
    uint8_t out[64];
    size_t len;

    assert_int_equal(back.everything.c, 7);
    assert_int_equal(back.everything.d, -7);
    assert_true(back.everything.f == 0.5);
    assert_string_equal(back.everything.text, "so \"it\" is");
    assert_int_equal(back.everything.later, 11);
    /* yes, a, b, e, blob, numbers, points: two bytes each, blob three. */
    assert_int_equal(ps_msg_encode(&plain, 2, 0, out, sizeof(out), &len), 0);
    assert_int_equal(len, PS_FRAME_PREFIX + 1 + 7 * 2 + 1);
    /* Zero is not the default here, so it has to travel. */
    plain.everything.c = 0;
    back = pass(*state, 2, &plain);
    assert_int_equal(back.everything.c, 0);
}

/* A frame of a third version: fields we do not know, longer records. */
static void newer_peers_are_understood(void **state)
{
    struct ps_msg back;
    msgpack_sbuffer buf;
    msgpack_packer pk;

    msgpack_sbuffer_init(&buf);
    msgpack_packer_init(&pk, &buf, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 9);
    msgpack_pack_int(&pk, 60);
    msgpack_pack_map(&pk, 1);
    msgpack_pack_nil(&pk);
    msgpack_pack_array(&pk, 1);
    msgpack_pack_float(&pk, 1.5f);
    msgpack_pack_int(&pk, 19);
    msgpack_pack_array(&pk, 1);
    msgpack_pack_array(&pk, 5);
    msgpack_pack_int(&pk, -3);
    msgpack_pack_str_with_body(&pk, "b", 1);
    msgpack_pack_int(&pk, PS_COLOUR_RED);
    msgpack_pack_str_with_body(&pk, "new in 3", 8);
    msgpack_pack_nil(&pk);
    msgpack_pack_int(&pk, 8);
    msgpack_pack_false(&pk);
    msgpack_pack_int(&pk, 10);
    msgpack_pack_int(&pk, 0);
    msgpack_pack_int(&pk, 11);
    msgpack_pack_int(&pk, 2);
    msgpack_pack_int(&pk, 14);
    msgpack_pack_int(&pk, -2);
    msgpack_pack_int(&pk, 17);
    msgpack_pack_bin_with_body(&pk, "", 0);
    msgpack_pack_int(&pk, 18);
    msgpack_pack_array(&pk, 0);
    msgpack_pack_int(&pk, 15);
    msgpack_pack_float(&pk, 1.5f);
    assert_int_equal(ps_msg_decode(*state, PS_MSG_EVERYTHING,
                                   (const uint8_t *)buf.data, buf.size, &back),
                     0);
    assert_int_equal(back.everything.points_count, 1);
    assert_string_equal(back.everything.points[0].name, "b");
    assert_int_equal(back.everything.points[0].colour, PS_COLOUR_RED);
    assert_true(back.everything.e == -2);
    assert_true(back.everything.f == 1.5);
    assert_int_equal(back.everything.later, 11);
    msgpack_sbuffer_destroy(&buf);
}

static void bytes_are_bounded(void **state)
{
    static uint8_t blob[301];
    struct ps_msg msg = full;
    uint8_t out[2048];
    size_t len;

    (void)state;
    msg.everything.blob = (struct ps_bytes){blob, 300};
    assert_int_equal(ps_msg_encode(&msg, 2, 0, out, sizeof(out), &len), 0);
    msg.everything.blob.len = 301;
    assert_int_equal(ps_msg_encode(&msg, 2, 0, out, sizeof(out), &len),
                     PS_E_TOOBIG);
}

static int set_up(void **state)
{
    *state = ps_decoder_new();
    return *state == NULL ? -1 : 0;
}

static int tear_down(void **state)
{
    ps_decoder_free(*state);
    return 0;
}

/* ----------------------------------------------------------- fixed records */

static const struct ps_fixed_placement_part fixed = {
    .whole = -1,
    .brief = 300,
    .colour = PS_COLOUR_AUTO,
    .truth = 1,
    .text = "abcde",
    .gap_17 = {1}, /* Does not travel. */
    .sum = INT64_MIN + 1,
    .real = -0.5,
};

static void fixed_record_has_its_bytes(void **state)
{
    static const uint8_t head[] = {
        0x50, 0x4d, 0x47, 0x31, 0xff, 0xff, 0xff, 0xff, 0x2c, 0x01,
        2,    1,    'a',  'b',  'c',  'd',  'e',  0,    0,    0,
        0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
        0,    0,    1,    0,    0,    0,    0,    0,    0,    0x80};
    uint8_t bytes[PS_FIXED_PLACEMENT_PART_BYTES];
    struct ps_fixed_placement_part back;

    (void)state;
    memset(bytes, 0xa5, sizeof(bytes));
    ps_fixed_put_placement_part(bytes, &fixed);
    assert_memory_equal(bytes, head, sizeof(head));
    for (size_t i = 48; i < sizeof(bytes); i++) {
        assert_int_equal(bytes[i], 0);
    }
    assert_true(ps_fixed_get_placement_part(bytes, &back));
    assert_int_equal(back.magic, PS_FIXED_PLACEMENT_PART_MAGIC);
    assert_int_equal(back.brief, 300);
    assert_true(back.sum == INT64_MIN + 1);
    assert_true(back.real == -0.5);
}

static void malformed_fixed_record_is_refused(void **state)
{
    static const struct {
        unsigned offset;
        uint8_t byte;
    } cases[] = {
        {0, 0x51}, /* Another constant. */
        {4, 0xfe}, /* Below the minimum. */
        {8, 0x2d}, /* Above the maximum. */
        {10, 1},   /* No value of the enum. */
        {11, 2},   /* No truth. */
        {32, 0},   /* Below the minimum of an i64. */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[PS_FIXED_PLACEMENT_PART_BYTES];
        struct ps_fixed_placement_part back = {.brief = 7};

        ps_fixed_put_placement_part(bytes, &fixed);
        bytes[17] = 3; /* A gap: ignored. */
        assert_true(ps_fixed_get_placement_part(bytes, &back));
        back.brief = 7;
        bytes[cases[i].offset] = cases[i].byte;
        assert_false(ps_fixed_get_placement_part(bytes, &back));
        assert_int_equal(back.brief, 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_types_survive),
        cmocka_unit_test(copies_hold_bytes_and_lists),
        cmocka_unit_test(older_peers_get_the_fields_they_know),
        cmocka_unit_test(defaults_are_left_out_and_put_back),
        cmocka_unit_test(newer_peers_are_understood),
        cmocka_unit_test(bytes_are_bounded),
        cmocka_unit_test(fixed_record_has_its_bytes),
        cmocka_unit_test(malformed_fixed_record_is_refused),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
