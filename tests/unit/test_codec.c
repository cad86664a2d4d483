/* SPDX-License-Identifier: Apache-2.0 */
/* The codec over every message of the protocol: round trips of all samples,
 * copies, and hostile bytes. tests/golden/evolve tests different versions. */
#include "proto/msg_codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <msgpack.h>

#include "base/alloc.h"
#include "proto/ps_samples.h"
#include "proto/shape.h"
#include "support/sanitized.h"

/* ---------------------------------------------------------------- helpers */

struct frame {
    uint8_t *bytes; /* Prefix and header. */
    size_t len;
};

static struct frame encode(const struct ps_msg *msg)
{
    struct frame f = {.len = 0};
    size_t cap = ps_msg_encoded_bound(msg);

    f.bytes = malloc(cap);
    assert_non_null(f.bytes);
    assert_int_equal(ps_msg_encode(msg, PS_PROTOCOL, 0, f.bytes, cap, &f.len),
                     0);
    assert_true(f.len <= cap);
    return f;
}

static int decode(struct ps_decoder *d, const struct ps_msg *like,
                  struct frame f, struct ps_msg *ret_msg)
{
    return ps_msg_decode(d, like->code, f.bytes + PS_FRAME_PREFIX,
                         f.len - PS_FRAME_PREFIX, ret_msg);
}

static void assert_same_value(enum ps_shape_type type, const void *a,
                              const void *b)
{
    struct ps_bytes x, y;

    switch (type) {
    case PS_SHAPE_STR:
        assert_string_equal(*(const char *const *)a, *(const char *const *)b);
        break;
    case PS_SHAPE_BIN:
        x = *(const struct ps_bytes *)a;
        y = *(const struct ps_bytes *)b;
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.data, y.data, x.len);
        break;
    case PS_SHAPE_BOOL:
    case PS_SHAPE_U8:
    case PS_SHAPE_U16:
    case PS_SHAPE_U32:
    case PS_SHAPE_U64:
    case PS_SHAPE_I32:
    case PS_SHAPE_I64:
    case PS_SHAPE_F64:
        assert_memory_equal(a, b, ps_shape_size(type));
        break;
    case PS_SHAPE_LIST:
        fail();
    }
}

static void assert_same_fields(const struct ps_shape_field *fields,
                               size_t count, const void *a, const void *b)
{
    for (size_t i = 0; i < count; i++) {
        const struct ps_shape_field *f = &fields[i];

        if (f->type != PS_SHAPE_LIST) {
            assert_same_value(f->type, ps_shape_at(f, a), ps_shape_at(f, b));
            continue;
        }
        assert_int_equal(ps_shape_count(f, a), ps_shape_count(f, b));
        for (uint32_t j = 0; j < ps_shape_count(f, a); j++) {
            const void *x = ps_shape_element(f, a, j);
            const void *y = ps_shape_element(f, b, j);

            if (f->record != NULL) {
                assert_same_fields(f->record->fields, f->record->field_count, x,
                                   y);
            } else {
                assert_same_value(f->of, x, y);
            }
        }
    }
}

static void assert_same(const struct ps_msg *a, const struct ps_msg *b)
{
    const struct ps_shape_msg *shape = ps_shape_of(a->code);

    assert_int_equal(a->code, b->code);
    assert_non_null(shape);
    assert_same_fields(shape->fields, shape->field_count, a, b);
}

/* A header written by hand, for one message. */
struct hand {
    msgpack_sbuffer buf;
    msgpack_packer pk;
};

static void hand_start(struct hand *h)
{
    msgpack_sbuffer_init(&h->buf);
    msgpack_packer_init(&h->pk, &h->buf, msgpack_sbuffer_write);
}

/* Decodes what was written and forgets it. */
static int hand_decode(struct hand *h, unsigned code, struct ps_decoder *d,
                       struct ps_msg *ret_msg)
{
    int rc = ps_msg_decode(d, code, (const uint8_t *)h->buf.data, h->buf.size,
                           ret_msg);

    msgpack_sbuffer_destroy(&h->buf);
    return rc;
}

static void hand_str(struct hand *h, const char *bytes, size_t len)
{
    msgpack_pack_str_with_body(&h->pk, bytes, len);
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

/* ------------------------------------------------------------ every sample */

static void samples_of_all_messages_are_decoded_unchanged(void **state)
{
    unsigned codes = 0;

    for (size_t i = 0; i < ps_samples_count(); i++) {
        const struct ps_msg *sample = ps_sample(i);
        struct frame f = encode(sample);
        struct ps_frame_prefix prefix;
        struct ps_msg msg;

        assert_int_equal(ps_frame_parse(f.bytes, &prefix), 0);
        assert_int_equal(prefix.code, sample->code);
        assert_int_equal(prefix.header_len, f.len - PS_FRAME_PREFIX);
        assert_true(prefix.header_len <= ps_msg_header_max(sample->code));
        assert_int_equal(decode(*state, sample, f, &msg), 0);
        assert_same(sample, &msg);
        free(f.bytes);
        codes += ps_sample_kind(i) == PS_SAMPLE_LEAST ? 1 : 0;
    }
    for (unsigned code = 0; code < 256; code++) {
        codes -= ps_msg_header_max(code) != 0 ? 1 : 0;
    }
    assert_int_equal(codes, 0); /* No message lacks its samples. */
}

static void fixed_records_are_decoded_unchanged(void **state)
{
    (void)state;
    for (size_t i = 0; i < ps_fixed_samples_count(); i++) {
        const struct ps_fixed_sample *sample = ps_fixed_sample(i);
        uint8_t bytes[1024];
        uint64_t back[sizeof(bytes) / sizeof(uint64_t)];
        uint8_t again[sizeof(bytes)];

        assert_true(sample->size <= sizeof(bytes));
        sample->put(bytes, sample->value);
        assert_true(sample->get(bytes, back));
        sample->put(again, back);
        assert_memory_equal(again, bytes, sample->size);
    }
}

static void fields_with_their_default_are_not_sent(void **state)
{
    const struct ps_msg ack = {.code = PS_MSG_ACK};
    struct frame f = encode(&ack);

    (void)state;
    assert_int_equal(f.len, PS_FRAME_PREFIX + 1);
    assert_int_equal(f.bytes[PS_FRAME_PREFIX], 0x80);
    free(f.bytes);
}

/* Fields before the last one that differs from its default are sent. */
static void records_end_at_the_last_field_that_is_no_default(void **state)
{
    struct ps_rec_part part = {.key = 1, .round = 2, .count = 3};
    const struct ps_msg pull = {.code = PS_MSG_PULL,
                                .pull = {.parts = &part, .parts_count = 1}};
    struct frame f = encode(&pull);
    const size_t least = f.len;

    (void)state;
    free(f.bytes);
    part.attempt = 1;
    f = encode(&pull);
    assert_int_equal(f.len, least + 1);
    free(f.bytes);
    part.attempt = 0;
    part.clock = 1;
    f = encode(&pull);
    assert_int_equal(f.len, least + 6);
    free(f.bytes);
}

static void copies_are_one_allocation(void **state)
{
    (void)state;
    for (size_t i = 0; i < ps_samples_count(); i++) {
        const struct ps_msg *sample = ps_sample(i);
        size_t live = ps_alloc_live();
        struct ps_msg *copy = ps_msg_dup(sample);
        struct ps_msg *again;

        assert_int_equal(ps_alloc_live(), live + 1);
        assert_same(sample, copy);
        /* The second outlives the first: nothing is shared. */
        again = ps_msg_dup(copy);
        ps_msg_free(copy);
        assert_same(sample, again);
        ps_msg_free(again);
        assert_int_equal(ps_alloc_live(), live);
    }
    ps_msg_free(NULL);
}

static void null_strings_are_encoded_as_empty(void **state)
{
    struct ps_msg out = {.code = PS_MSG_REJECT, .reject.error = PS_E_REFUSED};
    struct ps_msg *copy = ps_msg_dup(&out);
    struct frame f = encode(&out);
    struct ps_msg msg;

    assert_null(copy->reject.text);
    assert_int_equal(decode(*state, &out, f, &msg), 0);
    assert_string_equal(msg.reject.text, "");
    assert_int_equal(msg.reject.error, PS_E_REFUSED);
    free(f.bytes);
    ps_msg_free(copy);
}

/* Texts contain names chosen by peers: they arrive as one line. Names
 * themselves travel unchanged. */
static void texts_are_printed_escaped(void **state)
{
    struct ps_msg msg = {
        .code = PS_MSG_L_DONE,
        .l_done = {.op_id = 1, .text = "key 'a\n\x1b[2J' of \xc3\xa4\xff"}};
    struct ps_msg key = {.code = PS_MSG_KEY_ROW,
                         .key_row = {.job = "j", .name = "a\nb", .server = ""}};
    struct ps_decoder *d = *state;
    struct frame f = encode(&msg);
    struct ps_msg got;

    assert_int_equal(decode(d, &msg, f, &got), 0);
    assert_string_equal(got.l_done.text, "key 'a??[2J' of \xc3\xa4?");
    free(f.bytes);
    f = encode(&key);
    assert_int_equal(decode(d, &key, f, &got), 0);
    assert_string_equal(got.key_row.name, "a\nb");
    free(f.bytes);
}

static void decoded_message_does_not_need_its_bytes(void **state)
{
    const struct ps_msg *sample = NULL;
    struct ps_msg msg;
    struct frame f;

    for (size_t i = 0; sample == NULL; i++) {
        if (ps_sample(i)->code == PS_MSG_HELLO &&
            ps_sample_kind(i) == PS_SAMPLE_TYPICAL) {
            sample = ps_sample(i);
        }
    }
    f = encode(sample);
    assert_int_equal(decode(*state, sample, f, &msg), 0);
    memset(f.bytes, 0xaa, f.len);
    assert_same(sample, &msg);
    free(f.bytes);
}

/* ---------------------------------------------------------------- printing */

static void messages_print_as_one_line(void **state)
{
    const struct ps_rec_param params[] = {{"lr", 0.5}, {"momentum", 0.25}};
    const struct ps_msg msg = {
        .code = PS_MSG_L_OPTIMIZER,
        .seq = 3,
        .l_optimizer.op_id = 7,
        .l_optimizer.name = "s\"g\nd",
        .l_optimizer.params = params,
        .l_optimizer.params_count = 2,
    };
    const char *expected = "l_optimizer seq 3 ack 0 op_id 7 "
                           "name \"s\\x22g\\x0ad\" params "
                           "[2: name \"lr\" value 0.5, "
                           "name \"momentum\" value 0.25] tunings [0]";
    char line[256];
    char tight[8];

    (void)state;
    assert_int_equal(ps_msg_print(&msg, line, sizeof(line)), strlen(expected));
    assert_string_equal(line, expected);
    assert_int_equal(ps_msg_print(&msg, tight, sizeof(tight)), 7);
    assert_string_equal(tight, "l_optim");
    assert_int_equal(ps_msg_print(&msg, tight, 0), 0);
}

static void enums_print_their_names(void **state)
{
    const struct ps_rec_part parts[6] = {{.key = 1}};
    const struct ps_msg msg = {
        .code = PS_MSG_PUSH,
        .push.reduce = PS_REDUCE_MEAN,
        .push.parts = parts,
        .push.parts_count = 6,
    };
    char line[1024];

    (void)state;
    ps_msg_print(&msg, line, sizeof(line));
    assert_non_null(strstr(line, " reduce mean "));
    assert_non_null(strstr(line, "[6: key 1 "));
    assert_non_null(strstr(line, " dtype float32 "));
    assert_non_null(strstr(line, ", ...] rule none"));
}

static void greatest_messages_print_in_bounds(void **state)
{
    char line[512];

    (void)state;
    for (size_t i = 0; i < ps_samples_count(); i++) {
        size_t len = ps_msg_print(ps_sample(i), line, sizeof(line));

        assert_true(len < sizeof(line));
        assert_int_equal(strlen(line), len);
        assert_null(strchr(line, '\n'));
    }
}

/* ------------------------------------------------------------ what we send */

static void encoder_keeps_within_its_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < ps_samples_count(); i++) {
        const struct ps_msg *sample = ps_sample(i);
        struct frame f = encode(sample);
        size_t step = f.len > 4096 ? f.len / 50 : 1;
        size_t len = 12345;

        for (size_t cap = 0; cap < f.len; cap += step) {
            uint8_t *exact = malloc(cap + 1); /* Sanitizers watch its end. */

            assert_non_null(exact);
            exact[cap] = 0x5a;
            assert_int_equal(
                ps_msg_encode(sample, PS_PROTOCOL, 0, exact, cap, &len),
                PS_E_FULL);
            assert_int_equal(exact[cap], 0x5a);
            free(exact);
        }
        assert_int_equal(len, 12345);
        free(f.bytes);
    }
}

static int try_encode(const struct ps_msg *msg, uint64_t payload_len)
{
    uint8_t *out = malloc(1 << 20);
    size_t len;
    int rc;

    assert_non_null(out);
    rc = ps_msg_encode(msg, PS_PROTOCOL, payload_len, out, 1 << 20, &len);
    free(out);
    return rc;
}

static void encoder_refuses_messages_that_a_peer_would_refuse(void **state)
{
    static struct ps_rec_part parts[257];
    char name[66];
    struct ps_msg msg = {.code = PS_MSG_PULL, .pull.parts = parts};

    (void)state;
    msg.pull.parts_count = 256;
    assert_int_equal(try_encode(&msg, 0), 0);
    msg.pull.parts_count = 257;
    assert_int_equal(try_encode(&msg, 0), PS_E_TOOBIG);
    msg.pull.parts_count = 1;
    parts[0].dtype = 8;
    assert_int_equal(try_encode(&msg, 0), PS_E_INVAL);
    parts[0].dtype = PS_DTYPE_INT64;
    assert_int_equal(try_encode(&msg, 0), 0);
    assert_int_equal(try_encode(&msg, 8), PS_E_INVAL);

    memset(name, 'n', sizeof(name));
    name[65] = '\0';
    msg = (struct ps_msg){.code = PS_MSG_QUERY, .query.job = name};
    assert_int_equal(try_encode(&msg, 0), PS_E_TOOBIG);
    name[64] = '\0';
    assert_int_equal(try_encode(&msg, 0), 0);
    msg.query.what = 9;
    assert_int_equal(try_encode(&msg, 0), PS_E_INVAL);
}

static void payload_length_stands_in_the_prefix(void **state)
{
    const struct ps_msg msg = {.code = PS_MSG_PUSH};
    struct ps_frame_prefix prefix;
    uint8_t out[128];
    size_t len;

    (void)state;
    assert_int_equal(
        ps_msg_encode(&msg, PS_PROTOCOL, 1 << 20, out, sizeof(out), &len), 0);
    assert_int_equal(ps_frame_parse(out, &prefix), 0);
    assert_int_equal(prefix.payload_len, 1 << 20);
    assert_int_equal(ps_frame_check(&prefix, PS_ROLE_AGENT, PS_ROLE_SERVER), 0);
}

/* --------------------------------------------------------- malformed bytes */

static void every_truncation_is_refused(void **state)
{
    for (size_t i = 0; i < ps_samples_count(); i++) {
        const struct ps_msg *sample = ps_sample(i);
        struct frame f = encode(sample);
        size_t step = f.len > 4096 ? f.len / 50 : 1;
        struct ps_msg msg = {.seq = 77};

        for (size_t len = PS_FRAME_PREFIX; len < f.len; len += step) {
            assert_int_not_equal(
                decode(*state, sample, (struct frame){f.bytes, len}, &msg), 0);
        }
        assert_int_equal(msg.seq, 77);
        free(f.bytes);
    }
}

/* Bytes that still decode are an ordinary message: it can be encoded, and
 * decodes to the same message. */
static void assert_good_or_refused(struct ps_decoder *d,
                                   struct ps_decoder *other, unsigned code,
                                   const uint8_t *header, size_t len)
{
    struct ps_msg msg;
    struct ps_msg back;
    struct frame f;
    char line[256];

    if (ps_msg_decode(d, code, header, len, &msg) != 0) {
        return;
    }
    ps_msg_print(&msg, line, sizeof(line));
    f = encode(&msg);
    assert_int_equal(decode(other, &msg, f, &back), 0);
    assert_same(&msg, &back);
    free(f.bytes);
}

static void messages_with_a_corrupted_byte_are_decoded_or_refused(void **state)
{
    static const uint8_t nasty[] = {
        0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc3, 0xc6,
        0xc7, 0xca, 0xcb, 0xcc, 0xcf, 0xd3, 0xd9, 0xdb, 0xdd, 0xdf, 0xe0, 0xff};
    struct ps_decoder *other = ps_decoder_new();

    assert_non_null(other);
    for (size_t i = 0; i < ps_samples_count(); i++) {
        const struct ps_msg *sample = ps_sample(i);
        struct frame f = encode(sample);
        uint8_t *header = f.bytes + PS_FRAME_PREFIX;
        size_t len = f.len - PS_FRAME_PREFIX;
        size_t step = len > 1024 ? len / 16 : PS_TEST_SANITIZED ? 3 : 1;

        for (size_t at = 0; at < len; at += step) {
            uint8_t was = header[at];

            for (size_t j = 0; j < sizeof(nasty); j++) {
                header[at] = nasty[j];
                assert_good_or_refused(*state, other, sample->code, header,
                                       len);
            }
            for (unsigned bit = 0; bit < 8; bit++) {
                header[at] = (uint8_t)(was ^ (1u << bit));
                assert_good_or_refused(*state, other, sample->code, header,
                                       len);
            }
            header[at] = was;
        }
        free(f.bytes);
    }
    ps_decoder_free(other);
}

/* Removes each field from the map in turn, doubles it, and adds an unknown one. */
static void fields_are_required_unique_or_skipped(void **state)
{
    for (size_t i = PS_SAMPLE_TYPICAL; i < ps_samples_count(); i += 3) {
        const struct ps_msg *sample = ps_sample(i);
        const struct ps_shape_msg *shape = ps_shape_of(sample->code);
        struct frame f = encode(sample);
        msgpack_unpacked whole;
        struct ps_msg msg;
        struct hand h;

        msgpack_unpacked_init(&whole);
        assert_int_equal(msgpack_unpack_next(&whole,
                                             (char *)f.bytes + PS_FRAME_PREFIX,
                                             f.len - PS_FRAME_PREFIX, NULL),
                         MSGPACK_UNPACK_SUCCESS);
        assert_int_equal(whole.data.type, MSGPACK_OBJECT_MAP);
        msgpack_object_map map = whole.data.via.map;

        assert_int_equal(map.size, shape->field_count);
        for (uint32_t j = 0; j < map.size; j++) {
            msgpack_object_map less = map;
            msgpack_object_kv rest[64];

            assert_int_equal(map.ptr[j].key.via.u64, shape->fields[j].id);
            memcpy(rest, map.ptr, map.size * sizeof(rest[0]));
            rest[j] = rest[map.size - 1];
            less.ptr = rest;
            less.size--;
            hand_start(&h);
            msgpack_pack_object(
                &h.pk, (msgpack_object){MSGPACK_OBJECT_MAP, {.map = less}});
            assert_int_equal(hand_decode(&h, sample->code, *state, &msg),
                             shape->fields[j].required ? PS_E_PROTO : 0);

            memcpy(rest, map.ptr, map.size * sizeof(rest[0]));
            rest[map.size] = map.ptr[j];
            less.size = map.size + 1;
            hand_start(&h);
            msgpack_pack_object(
                &h.pk, (msgpack_object){MSGPACK_OBJECT_MAP, {.map = less}});
            assert_int_equal(hand_decode(&h, sample->code, *state, &msg),
                             PS_E_PROTO);

            rest[map.size].key.type = MSGPACK_OBJECT_POSITIVE_INTEGER;
            rest[map.size].key.via.u64 = 63;
            hand_start(&h);
            msgpack_pack_object(
                &h.pk, (msgpack_object){MSGPACK_OBJECT_MAP, {.map = less}});
            assert_int_equal(hand_decode(&h, sample->code, *state, &msg), 0);
            assert_same(sample, &msg);
        }
        msgpack_unpacked_destroy(&whole);
        free(f.bytes);
    }
}

/* pull: {8: gen, 9: epoch, 10: slot, 11: parts}; parts is left to write. */
static void start_pull(struct hand *h)
{
    hand_start(h);
    msgpack_pack_map(&h->pk, 4);
    for (unsigned id = 8; id < 11; id++) {
        msgpack_pack_int(&h->pk, (int)id);
        msgpack_pack_int(&h->pk, 1);
    }
    msgpack_pack_int(&h->pk, 11);
}

/* Fields of a part, those without a default first; the one at ALL_SKIPPED is a
 * bool. */
enum { DTYPE = 3, REQUIRED_FIELDS = 5, ALL_SKIPPED = 9, PART_FIELDS = 11 };

static void pack_part_field(struct hand *h, unsigned i, int value)
{
    if (i == ALL_SKIPPED) {
        msgpack_pack_true(&h->pk);
    } else {
        msgpack_pack_int(&h->pk, value);
    }
}

/* As a part, `count` values, the dtype being `dtype`. */
static int pull_part(struct ps_decoder *d, unsigned count, int dtype)
{
    struct ps_msg msg;
    struct hand h;
    int rc;

    start_pull(&h);
    msgpack_pack_array(&h.pk, 1);
    msgpack_pack_array(&h.pk, count);
    for (unsigned i = 0; i < count; i++) {
        pack_part_field(&h, i, i == DTYPE ? dtype : 5);
    }
    rc = hand_decode(&h, PS_MSG_PULL, d, &msg);
    if (rc == 0) {
        assert_int_equal(msg.pull.parts_count, 1);
        assert_int_equal(msg.pull.parts[0].count, 5);
        assert_int_equal(msg.pull.parts[0].dtype, dtype);
        assert_int_equal(msg.pull.parts[0].all_skipped, count > ALL_SKIPPED);
        assert_int_equal(msg.pull.parts[0].clock, count >= PART_FIELDS ? 5 : 0);
    }
    return rc;
}

static void records_may_grow_but_not_lack_required_fields(void **state)
{
    assert_int_equal(pull_part(*state, REQUIRED_FIELDS - 1, 0), PS_E_PROTO);
    for (unsigned count = REQUIRED_FIELDS; count < PART_FIELDS; count++) {
        assert_int_equal(pull_part(*state, count, 0), 0);
    }
    assert_int_equal(pull_part(*state, PART_FIELDS, 0), 0);
    assert_int_equal(pull_part(*state, PART_FIELDS + 1, 0), 0);
    assert_int_equal(pull_part(*state, 200, 0), 0);
    assert_int_equal(pull_part(*state, 0, 0), PS_E_PROTO);
}

static void enums_are_closed_sets(void **state)
{
    assert_int_equal(pull_part(*state, PART_FIELDS, 1), 0);
    assert_int_equal(pull_part(*state, PART_FIELDS, 8), PS_E_PROTO);
    assert_int_equal(pull_part(*state, PART_FIELDS, 6), 0);
    assert_int_equal(pull_part(*state, PART_FIELDS, 9), PS_E_PROTO);
    assert_int_equal(pull_part(*state, PART_FIELDS, 256), PS_E_PROTO);
    assert_int_equal(pull_part(*state, PART_FIELDS, -1), PS_E_PROTO);
}

static void lists_longer_than_their_limit_are_refused(void **state)
{
    struct ps_msg msg;
    struct hand h;

    for (unsigned count = 255; count < 258; count++) {
        start_pull(&h);
        msgpack_pack_array(&h.pk, count);
        for (unsigned i = 0; i < count; i++) {
            msgpack_pack_array(&h.pk, PART_FIELDS);
            for (unsigned j = 0; j < PART_FIELDS; j++) {
                pack_part_field(&h, j, 0);
            }
        }
        assert_int_equal(hand_decode(&h, PS_MSG_PULL, *state, &msg),
                         count <= 256 ? 0 : PS_E_TOOBIG);
    }
}

/* query: {8: what, 9: job}. */
static int query_job(struct ps_decoder *d, const char *bytes, size_t len)
{
    struct ps_msg msg;
    struct hand h;
    int rc;

    hand_start(&h);
    msgpack_pack_map(&h.pk, 2);
    msgpack_pack_int(&h.pk, 9);
    hand_str(&h, bytes, len);
    msgpack_pack_int(&h.pk, 8);
    msgpack_pack_int(&h.pk, PS_QUERY_STALL);
    rc = hand_decode(&h, PS_MSG_QUERY, d, &msg);
    if (rc == 0) {
        assert_int_equal(strlen(msg.query.job), len);
        assert_memory_equal(msg.query.job, bytes, len);
        assert_int_equal(msg.query.what, PS_QUERY_STALL);
    }
    return rc;
}

static void strings_are_bounded_and_without_nul(void **state)
{
    char text[65];

    memset(text, 't', sizeof(text));
    assert_int_equal(query_job(*state, text, 0), 0);
    assert_int_equal(query_job(*state, text, 64), 0);
    assert_int_equal(query_job(*state, text, 65), PS_E_TOOBIG);
    text[10] = '\0';
    assert_int_equal(query_job(*state, text, 64), PS_E_PROTO);
    assert_int_equal(query_job(*state, text, 10), 0);
}

/* stall_query: {8: gen, 9: request, 10: key, 11: round, 12: barrier}, with
 * the value of `id` left to write. */
static void start_stall_query(struct hand *h, int id)
{
    hand_start(h);
    msgpack_pack_map(&h->pk, 5);
    for (int i = 8; i <= 12; i++) {
        if (i == id) {
            continue;
        }
        msgpack_pack_int(&h->pk, i);
        if (i == 12) {
            msgpack_pack_true(&h->pk);
        } else {
            msgpack_pack_int(&h->pk, 1);
        }
    }
    msgpack_pack_int(&h->pk, id);
}

static void types_are_exact(void **state)
{
    struct ps_msg msg;
    struct hand h;

    start_stall_query(&h, 10);
    msgpack_pack_uint64(&h.pk, UINT32_MAX);
    assert_int_equal(hand_decode(&h, PS_MSG_STALL_QUERY, *state, &msg), 0);
    assert_true(msg.stall_query.key == UINT32_MAX);
    start_stall_query(&h, 10);
    msgpack_pack_uint64(&h.pk, UINT64_C(1) << 32);
    assert_int_equal(hand_decode(&h, PS_MSG_STALL_QUERY, *state, &msg),
                     PS_E_PROTO);
    start_stall_query(&h, 10);
    msgpack_pack_int(&h.pk, -1);
    assert_int_equal(hand_decode(&h, PS_MSG_STALL_QUERY, *state, &msg),
                     PS_E_PROTO);
    start_stall_query(&h, 10);
    msgpack_pack_double(&h.pk, 1.0);
    assert_int_equal(hand_decode(&h, PS_MSG_STALL_QUERY, *state, &msg),
                     PS_E_PROTO);
    start_stall_query(&h, 10);
    hand_str(&h, "1", 1);
    assert_int_equal(hand_decode(&h, PS_MSG_STALL_QUERY, *state, &msg),
                     PS_E_PROTO);
    start_stall_query(&h, 10);
    msgpack_pack_nil(&h.pk);
    assert_int_equal(hand_decode(&h, PS_MSG_STALL_QUERY, *state, &msg),
                     PS_E_PROTO);
    start_stall_query(&h, 12);
    msgpack_pack_int(&h.pk, 1);
    assert_int_equal(hand_decode(&h, PS_MSG_STALL_QUERY, *state, &msg),
                     PS_E_PROTO);
    start_stall_query(&h, 12);
    msgpack_pack_false(&h.pk);
    assert_int_equal(hand_decode(&h, PS_MSG_STALL_QUERY, *state, &msg), 0);
    assert_false(msg.stall_query.barrier);
}

static void ids_are_small_positive_integers(void **state)
{
    static const char *const headers[] = {
        "\x81\x00\x01",         /* 0 */
        "\x81\x40\x01",         /* 64 */
        "\x81\xff\x01",         /* -1 */
        "\x81\xa1\x31\x01",     /* "1" */
        "\x81\xc3\x01",         /* true */
        "\x81\x90\x01",         /* [] */
        "\x82\x20\x01\x20\x01", /* An unknown one, twice. */
    };
    struct ps_msg msg;

    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        size_t len = i == 0 ? 3 : strlen(headers[i]);

        assert_int_equal(ps_msg_decode(*state, PS_MSG_ACK,
                                       (const uint8_t *)headers[i], len, &msg),
                         PS_E_PROTO);
    }
    assert_int_equal(ps_msg_decode(*state, PS_MSG_ACK,
                                   (const uint8_t *)"\x81\x20\x01", 3, &msg),
                     0);
}

static void only_a_map_is_a_message(void **state)
{
    static const char *const headers[] = {"\x90", "\x01", "\xc0", "\xa0",
                                          "\x91\x80"};
    struct ps_msg msg;

    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        assert_int_equal(ps_msg_decode(*state, PS_MSG_ACK,
                                       (const uint8_t *)headers[i],
                                       strlen(headers[i]), &msg),
                         PS_E_PROTO);
    }
    assert_int_equal(
        ps_msg_decode(*state, PS_MSG_ACK, (const uint8_t *)"", 0, &msg),
        PS_E_PROTO);
    assert_int_equal(
        ps_msg_decode(*state, 255, (const uint8_t *)"\x80", 1, &msg),
        PS_E_PROTO);
}

static void impossible_lengths_are_refused_for_every_message(void **state)
{
    static const uint8_t five[] = {0xdd, 0x10, 0, 0, 0};
    static const uint8_t nine[] = {0x8a, 0xff, 0xff, 0xff, 0xdf,
                                   0xff, 0xff, 0xff, 0xff};
    static const uint8_t text[] = {0x81, 0x08, 0xdb, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t blob[] = {0x81, 0x20, 0xc6, 0xff, 0xff, 0xff, 0xff};
    /* An unknown field with more values than any known one could have. */
    static const uint8_t lead[] = {0x81, 0x20, 0xdc, 0x0f, 0xfb};
    uint8_t nodes[4096];
    uint8_t deep[4096];
    struct ps_msg msg;

    memset(nodes, 0, sizeof(nodes));
    memcpy(nodes, lead, sizeof(lead));
    memset(deep, 0x91, sizeof(deep));
    for (unsigned code = 0; code < 256; code++) {
        assert_int_equal(ps_msg_decode(*state, code, five, sizeof(five), &msg),
                         PS_E_PROTO);
        assert_int_equal(ps_msg_decode(*state, code, nine, sizeof(nine), &msg),
                         PS_E_PROTO);
        assert_int_equal(ps_msg_decode(*state, code, text, sizeof(text), &msg),
                         PS_E_PROTO);
        assert_int_equal(ps_msg_decode(*state, code, blob, sizeof(blob), &msg),
                         PS_E_PROTO);
        if (ps_msg_header_max(code) == 0) {
            continue;
        }
        assert_int_equal(ps_msg_decode(*state, code, deep, sizeof(deep), &msg),
                         PS_E_TOOBIG);
        if (ps_shape_of(code)->nodes_max < sizeof(nodes) - 2) {
            assert_int_equal(
                ps_msg_decode(*state, code, nodes, sizeof(nodes), &msg),
                PS_E_TOOBIG);
        }
    }
}

static void headers_beyond_their_max_are_refused(void **state)
{
    static const uint8_t lead[] = {0x81, 0x20, 0xda};
    uint32_t max = ps_msg_header_max(PS_MSG_ACK);
    uint8_t *header = calloc(1, max + 1);
    struct ps_msg msg;

    assert_non_null(header);
    memcpy(header, lead, sizeof(lead));
    for (uint32_t len = max; len <= max + 1; len++) {
        header[3] = (uint8_t)((len - 5) >> 8);
        header[4] = (uint8_t)(len - 5);
        assert_int_equal(ps_msg_decode(*state, PS_MSG_ACK, header, len, &msg),
                         len == max ? 0 : PS_E_TOOBIG);
    }
    free(header);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

/* Frames to several peers: what one gets and what all get are the whole. */
static void front_and_body_are_the_encoded_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < ps_samples_count(); i++) {
        for (uint64_t link = 0; link < 3; link++) {
            struct ps_msg msg = *ps_sample(i);
            uint8_t front[PS_MSG_FRONT_MAX];
            struct ps_msg_body *body;
            struct frame whole;
            size_t len;

            msg.seq = link * UINT32_MAX;
            msg.ack = link == 1 ? 0 : UINT64_MAX;
            body = malloc(sizeof(*body) + ps_msg_encoded_bound(&msg));
            assert_non_null(body);
            assert_int_equal(ps_msg_encode_body(&msg, PS_PROTOCOL, body,
                                                ps_msg_encoded_bound(&msg)),
                             0);
            len = ps_msg_encode_front(&msg, body, front);
            whole = encode(&msg);
            assert_int_equal(len + body->len, whole.len);
            assert_memory_equal(front, whole.bytes, len);
            assert_memory_equal(body->bytes, whole.bytes + len, body->len);
            free(whole.bytes);
            free(body);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(samples_of_all_messages_are_decoded_unchanged),
        TEST(fixed_records_are_decoded_unchanged),
        TEST(fields_with_their_default_are_not_sent),
        TEST(records_end_at_the_last_field_that_is_no_default),
        TEST(copies_are_one_allocation),
        TEST(null_strings_are_encoded_as_empty),
        TEST(texts_are_printed_escaped),
        TEST(decoded_message_does_not_need_its_bytes),
        TEST(messages_print_as_one_line),
        TEST(enums_print_their_names),
        TEST(greatest_messages_print_in_bounds),
        TEST(encoder_keeps_within_its_memory),
        TEST(encoder_refuses_messages_that_a_peer_would_refuse),
        TEST(payload_length_stands_in_the_prefix),
        TEST(every_truncation_is_refused),
        TEST(messages_with_a_corrupted_byte_are_decoded_or_refused),
        TEST(fields_are_required_unique_or_skipped),
        TEST(records_may_grow_but_not_lack_required_fields),
        TEST(enums_are_closed_sets),
        TEST(lists_longer_than_their_limit_are_refused),
        TEST(strings_are_bounded_and_without_nul),
        TEST(types_are_exact),
        TEST(ids_are_small_positive_integers),
        TEST(only_a_map_is_a_message),
        TEST(impossible_lengths_are_refused_for_every_message),
        TEST(headers_beyond_their_max_are_refused),
        cmocka_unit_test(front_and_body_are_the_encoded_message),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
