/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/msg_codec.h"

#include <assert.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "proto/scan.h"
#include "proto/shape.h"

/* Size of the zone's first chunk, reused for each frame; most frames need no
 * other. */
#define ZONE_BYTES  (16u * 1024u)

#define BIT(id)     (UINT64_C(1) << (id))

/* Fields of every message that belong to the link: seq and ack. */
#define LINK_FIELDS (BIT(1) | BIT(2))

struct ps_decoder {
    msgpack_zone zone;
};

/* ----------------------------------------------------------- encode values */

/* Single values with msgpack-c. The first error is kept in `rc`: later puts do
 * nothing and later gets return zeros, so the codec checks it once, at the end. */

/* Output to memory of the caller, never beyond `cap`. */
struct field_out {
    msgpack_packer packer;
    uint8_t *data;
    size_t cap;
    size_t len;
    /* PS_E_FULL: `cap` is too small; PS_E_TOOBIG: a maximum is exceeded. */
    int rc;
};

/* Write callback of msgpack-c, which stops at the first -1; out->rc keeps the
 * reason. */
static int append_packed(void *data, const char *bytes, size_t len)
{
    struct field_out *out = data;

    if (out->rc != 0) {
        return -1;
    }
    if (len > out->cap - out->len) {
        out->rc = PS_E_FULL;
        return -1;
    }
    memcpy(out->data + out->len, bytes, len);
    out->len += len;
    return 0;
}

static void field_out_init(struct field_out *out, uint8_t *data, size_t cap)
{
    *out = (struct field_out){.data = data, .cap = cap};
    msgpack_packer_init(&out->packer, out, append_packed);
}

static bool is_in_range(struct field_out *out, size_t len, uint32_t max)
{
    if (len > max && out->rc == 0) {
        out->rc = PS_E_TOOBIG;
    }
    return out->rc == 0;
}

static void put_array(struct field_out *out, uint32_t count, uint32_t max)
{
    if (is_in_range(out, count, max)) {
        msgpack_pack_array(&out->packer, count);
    }
}

/* NULL is encoded as "". */
static void put_str(struct field_out *out, const char *text, uint32_t max)
{
    size_t len = text != NULL ? strlen(text) : 0;

    if (is_in_range(out, len, max)) {
        msgpack_pack_str(&out->packer, len);
        msgpack_pack_str_body(&out->packer, len > 0 ? text : "", len);
    }
}

static void put_bin(struct field_out *out, struct ps_bytes bytes, uint32_t max)
{
    if (is_in_range(out, bytes.len, max)) {
        msgpack_pack_bin(&out->packer, bytes.len);
        msgpack_pack_bin_body(&out->packer,
                              bytes.len > 0 ? (const void *)bytes.data : "",
                              bytes.len);
    }
}

/* --------------------------------------------------------- encode messages */

static size_t bound_scalar(enum ps_shape_type type, const void *at)
{
    if (type == PS_SHAPE_STR) {
        const char *text = *(const char *const *)at;

        return 5 + (text != NULL ? strlen(text) : 0);
    }
    return type == PS_SHAPE_BIN ? 5 + (size_t)((const struct ps_bytes *)at)->len
                                : 9;
}

static size_t bound_field(const struct ps_shape_field *f, const void *base)
{
    size_t sum = 5;

    if (f->type != PS_SHAPE_LIST) {
        return bound_scalar(f->type, ps_shape_at(f, base));
    }
    for (uint32_t i = 0; i < ps_shape_count(f, base); i++) {
        const void *at = ps_shape_element(f, base, i);

        if (f->record == NULL) {
            sum += bound_scalar(f->of, at);
            continue;
        }
        sum += 5;
        for (size_t j = 0; j < f->record->field_count; j++) {
            sum += bound_field(&f->record->fields[j], at);
        }
    }
    return sum;
}

size_t ps_msg_encoded_bound(const struct ps_msg *msg)
{
    const struct ps_shape_msg *shape = ps_shape_of(msg->code);
    size_t sum = PS_FRAME_PREFIX + 5;

    assert(shape != NULL);
    for (size_t i = 0; i < shape->field_count; i++) {
        sum += 1 + bound_field(&shape->fields[i], msg);
    }
    return sum;
}

/* Compares bits, so that -0 and NaN are sent as they are. */
static bool same_bits(double a, double b)
{
    uint64_t x;
    uint64_t y;

    memcpy(&x, &a, sizeof(x));
    memcpy(&y, &b, sizeof(y));
    return x == y;
}

/* True if the field has its default value, which need not be sent. */
static bool is_default(const struct ps_shape_field *f, const void *base)
{
    const void *at = ps_shape_at(f, base);
    const char *text;

    if (f->required) {
        return false;
    }
    switch (f->type) {
    case PS_SHAPE_BOOL:
    case PS_SHAPE_U8:
    case PS_SHAPE_U16:
    case PS_SHAPE_U32:
    case PS_SHAPE_U64:
        return ps_shape_get_u64(f->type, at) == f->default_.u;
    case PS_SHAPE_I32:
    case PS_SHAPE_I64:
        return ps_shape_get_i64(f->type, at) == f->default_.i;
    case PS_SHAPE_F64:
        return same_bits(*(const double *)at, f->default_.f);
    case PS_SHAPE_STR:
        text = *(const char *const *)at;
        return strcmp(text != NULL ? text : "", f->default_.s) == 0;
    case PS_SHAPE_BIN:
        return ((const struct ps_bytes *)at)->len == 0;
    case PS_SHAPE_LIST:
        return ps_shape_count(f, base) == 0;
    }
    return false;
}

static void put_scalar(struct field_out *out, enum ps_shape_type type,
                       const void *at, uint32_t max)
{
    switch (type) {
    case PS_SHAPE_BOOL:
        if (*(const bool *)at) {
            msgpack_pack_true(&out->packer);
        } else {
            msgpack_pack_false(&out->packer);
        }
        break;
    case PS_SHAPE_U8:
    case PS_SHAPE_U16:
    case PS_SHAPE_U32:
    case PS_SHAPE_U64:
        msgpack_pack_uint64(&out->packer, ps_shape_get_u64(type, at));
        break;
    case PS_SHAPE_I32:
    case PS_SHAPE_I64:
        msgpack_pack_int64(&out->packer, ps_shape_get_i64(type, at));
        break;
    case PS_SHAPE_F64:
        msgpack_pack_double(&out->packer, *(const double *)at);
        break;
    case PS_SHAPE_STR:
        put_str(out, *(const char *const *)at, max);
        break;
    case PS_SHAPE_BIN:
        put_bin(out, *(const struct ps_bytes *)at, max);
        break;
    case PS_SHAPE_LIST:
        assert(false); /* Not a scalar. */
    }
}

static void put_field(struct field_out *out, const struct ps_shape_field *f,
                      const void *base, uint16_t version);

/* Writes an array of the fields that the peer knows; newer fields come last.
 * Fields at the end that have their default values are left out. */
static void put_record(struct field_out *out, const struct ps_shape_record *r,
                       const void *base, uint16_t version)
{
    uint32_t known = 0;

    while (known < r->field_count && r->fields[known].since <= version) {
        known++;
    }
    while (known > 0 && is_default(&r->fields[known - 1], base)) {
        known--;
    }
    put_array(out, known, known);
    for (uint32_t i = 0; i < known; i++) {
        put_field(out, &r->fields[i], base, version);
    }
}

static void put_field(struct field_out *out, const struct ps_shape_field *f,
                      const void *base, uint16_t version)
{
    const void *at = ps_shape_at(f, base);

    if (f->values != NULL &&
        !ps_shape_value_known(f->values, *(const uint8_t *)at) &&
        out->rc == 0) {
        out->rc = PS_E_INVAL;
    }
    if (f->type != PS_SHAPE_LIST) {
        put_scalar(out, f->type, at, f->max);
        return;
    }
    uint32_t count = ps_shape_count(f, base);

    put_array(out, count, f->max);
    for (uint32_t i = 0; i < count && out->rc == 0; i++) {
        const void *element = ps_shape_element(f, base, i);

        if (f->record != NULL) {
            put_record(out, f->record, element, version);
        } else {
            put_scalar(out, f->of, element, 0);
        }
    }
}

/* Ids of the fields to send. */
static uint64_t sent_fields(const struct ps_shape_msg *shape,
                            const struct ps_msg *msg, uint16_t version)
{
    uint64_t send = 0;

    for (size_t i = 0; i < shape->field_count; i++) {
        const struct ps_shape_field *f = &shape->fields[i];

        if (f->since <= version && !is_default(f, msg)) {
            send |= BIT(f->id);
        }
    }
    return send;
}

/* Writes the fields of these ids. */
static void put_fields(struct field_out *out, const struct ps_shape_msg *shape,
                       const struct ps_msg *msg, uint64_t ids, uint16_t version)
{
    for (size_t i = 0; i < shape->field_count && out->rc == 0; i++) {
        const struct ps_shape_field *f = &shape->fields[i];

        if ((ids & BIT(f->id)) != 0) {
            msgpack_pack_uint64(&out->packer, f->id);
            put_field(out, f, msg, version);
        }
    }
}

static void build_prefix(uint8_t *out, const struct ps_msg *msg,
                         size_t header_len, uint64_t payload_len)
{
    ps_frame_build(out, &(struct ps_frame_prefix){
                            .version = PS_FRAME_VERSION,
                            .code = (uint8_t)msg->code,
                            .header_len = (uint32_t)header_len,
                            .payload_len = (uint32_t)payload_len,
                        });
}

int ps_msg_encode(const struct ps_msg *msg, uint16_t version,
                  uint64_t payload_len, uint8_t *out, size_t cap,
                  size_t *ret_len)
{
    const struct ps_shape_msg *shape = ps_shape_of(msg->code);
    struct field_out header;
    uint64_t send;
    int rc;

    assert(shape != NULL);
    if (payload_len > 0 && shape->payload == PS_PAYLOAD_NONE) {
        return PS_E_INVAL;
    }
    if (cap < PS_FRAME_PREFIX) {
        return PS_E_FULL;
    }
    rc = ps_frame_check_payload(shape->payload, payload_len);
    if (rc != 0) {
        return rc; /* The receiver would close the connection. */
    }
    send = sent_fields(shape, msg, version);
    field_out_init(&header, out + PS_FRAME_PREFIX, cap - PS_FRAME_PREFIX);
    msgpack_pack_map(&header.packer, (uint32_t)__builtin_popcountll(send));
    put_fields(&header, shape, msg, send, version);
    if (header.rc != 0) {
        return header.rc;
    }
    /* Checked by the generator for the largest message. */
    assert(header.len <= shape->header_max);
    build_prefix(out, msg, header.len, payload_len);
    *ret_len = PS_FRAME_PREFIX + header.len;
    return 0;
}

int ps_msg_encode_body(const struct ps_msg *msg, uint16_t version,
                       struct ps_msg_body *out, size_t cap)
{
    const struct ps_shape_msg *shape = ps_shape_of(msg->code);
    struct field_out body;
    uint64_t send;

    assert(shape != NULL);
    send = sent_fields(shape, msg, version) & ~LINK_FIELDS;
    field_out_init(&body, out->bytes, cap);
    put_fields(&body, shape, msg, send, version);
    out->version = version;
    out->field_count = (uint32_t)__builtin_popcountll(send);
    out->len = body.len;
    return body.rc;
}

size_t ps_msg_encode_front(const struct ps_msg *msg,
                           const struct ps_msg_body *body,
                           uint8_t out[PS_MSG_FRONT_MAX])
{
    const struct ps_shape_msg *shape = ps_shape_of(msg->code);
    struct field_out front;
    uint64_t send;

    assert(shape != NULL);
    send = sent_fields(shape, msg, body->version) & LINK_FIELDS;
    field_out_init(&front, out + PS_FRAME_PREFIX,
                   PS_MSG_FRONT_MAX - PS_FRAME_PREFIX);
    msgpack_pack_map(&front.packer,
                     (uint32_t)__builtin_popcountll(send) + body->field_count);
    put_fields(&front, shape, msg, send, body->version);
    assert(front.rc == 0 && front.len + body->len <= shape->header_max);
    build_prefix(out, msg, front.len + body->len, 0);
    return PS_FRAME_PREFIX + front.len;
}

/* ----------------------------------------------------------- decode values */

/* Input; decoded strings and bytes are copied into the zone. */
struct field_in {
    msgpack_zone *zone;
    int rc; /* PS_E_PROTO: wrong type or range; PS_E_TOOBIG; PS_E_NOMEM. */
};

/* True if `good` holds and no error came before; else `rc` is recorded. */
static bool expect_value(struct field_in *in, bool good, int rc)
{
    if (in->rc == 0 && !good) {
        in->rc = rc;
    }
    return in->rc == 0;
}

static bool get_bool(struct field_in *in, const msgpack_object *o)
{
    return expect_value(in, o->type == MSGPACK_OBJECT_BOOLEAN, PS_E_PROTO) &&
           o->via.boolean;
}

static uint64_t get_u64(struct field_in *in, const msgpack_object *o,
                        uint64_t max)
{
    if (!expect_value(
            in, o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= max,
            PS_E_PROTO)) {
        return 0;
    }
    return o->via.u64;
}

static int64_t get_i64(struct field_in *in, const msgpack_object *o,
                       int64_t min, int64_t max)
{
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        assert(max >= 0);
        return (int64_t)get_u64(in, o, (uint64_t)max);
    }
    if (!expect_value(
            in, o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER && o->via.i64 >= min,
            PS_E_PROTO)) {
        return 0;
    }
    return o->via.i64;
}

static double get_f64(struct field_in *in, const msgpack_object *o)
{
    if (!expect_value(in,
                      o->type == MSGPACK_OBJECT_FLOAT64 ||
                          o->type == MSGPACK_OBJECT_FLOAT32,
                      PS_E_PROTO)) {
        return 0;
    }
    return o->via.f64; /* msgpack-c converts float32 to double. */
}

/* Zeroed memory with the lifetime of the zone; NULL after an error. */
static void *alloc_in_zone(struct field_in *in, size_t size)
{
    void *p;

    if (in->rc != 0) {
        return NULL;
    }
    p = msgpack_zone_malloc(in->zone, size);
    if (p == NULL) {
        in->rc = PS_E_NOMEM;
        return NULL;
    }
    return memset(p, 0, size);
}

/* Returns a terminated copy of the bytes in the zone. */
static char *copy_bytes(struct field_in *in, const char *bytes, size_t len)
{
    char *copy = alloc_in_zone(in, len + 1);

    if (copy != NULL && len > 0) {
        memcpy(copy, bytes, len);
    }
    return copy;
}

/* Terminated string; an embedded NUL is an error. "" after an error. */
static const char *get_str(struct field_in *in, const msgpack_object *o,
                           uint32_t max)
{
    const msgpack_object_str *s = &o->via.str;
    const char *copy;

    if (!expect_value(in, o->type == MSGPACK_OBJECT_STR, PS_E_PROTO) ||
        !expect_value(in, s->size <= max, PS_E_TOOBIG) ||
        !expect_value(in, s->size == 0 || memchr(s->ptr, '\0', s->size) == NULL,
                      PS_E_PROTO)) {
        return "";
    }
    copy = copy_bytes(in, s->ptr, s->size);
    return copy != NULL ? copy : "";
}

/* The same for text shown to users: each invisible byte (ps_str_visible)
 * becomes '?', because a peer may have chosen it. */
static const char *get_text(struct field_in *in, const msgpack_object *o,
                            uint32_t max)
{
    /* The string is a copy in the zone, so it may be changed. */
    char *text = (char *)(uintptr_t)get_str(in, o, max);
    size_t left = strlen(text);

    for (char *at = text; left > 0;) {
        size_t n = ps_str_visible(at, left);

        if (n == 0) {
            *at = '?';
            n = 1;
        }
        at += n;
        left -= n;
    }
    return text;
}

static struct ps_bytes get_bin(struct field_in *in, const msgpack_object *o,
                               uint32_t max)
{
    const msgpack_object_bin *b = &o->via.bin;
    const char *copy;

    if (!expect_value(in, o->type == MSGPACK_OBJECT_BIN, PS_E_PROTO) ||
        !expect_value(in, b->size <= max, PS_E_TOOBIG)) {
        return (struct ps_bytes){0};
    }
    copy = copy_bytes(in, b->ptr, b->size);
    if (copy == NULL) {
        return (struct ps_bytes){0};
    }
    return (struct ps_bytes){(const uint8_t *)copy, b->size};
}

/* Elements of an array; none after an error. */
static msgpack_object_array get_array(struct field_in *in,
                                      const msgpack_object *o, uint32_t max)
{
    if (!expect_value(in, o->type == MSGPACK_OBJECT_ARRAY, PS_E_PROTO) ||
        !expect_value(in, o->via.array.size <= max, PS_E_TOOBIG)) {
        return (msgpack_object_array){0};
    }
    return o->via.array;
}

/* --------------------------------------------------------- decode messages */

struct ps_decoder *ps_decoder_new(void)
{
    struct ps_decoder *d = malloc(sizeof(*d));

    if (d == NULL) {
        return NULL;
    }
    if (!msgpack_zone_init(&d->zone, ZONE_BYTES)) {
        free(d);
        return NULL;
    }
    return d;
}

void ps_decoder_free(struct ps_decoder *d)
{
    if (d == NULL) {
        return;
    }
    msgpack_zone_destroy(&d->zone);
    free(d);
}

static uint64_t unsigned_max(enum ps_shape_type type)
{
    return type == PS_SHAPE_U64 ? UINT64_MAX : BIT(8 * ps_shape_size(type)) - 1;
}

static void get_scalar(struct field_in *in, enum ps_shape_type type,
                       const msgpack_object *o, uint32_t max, void *at)
{
    switch (type) {
    case PS_SHAPE_BOOL:
        *(bool *)at = get_bool(in, o);
        break;
    case PS_SHAPE_U8:
    case PS_SHAPE_U16:
    case PS_SHAPE_U32:
    case PS_SHAPE_U64:
        ps_shape_set_u64(type, at, get_u64(in, o, unsigned_max(type)));
        break;
    case PS_SHAPE_I32:
        ps_shape_set_i64(type, at, get_i64(in, o, INT32_MIN, INT32_MAX));
        break;
    case PS_SHAPE_I64:
        ps_shape_set_i64(type, at, get_i64(in, o, INT64_MIN, INT64_MAX));
        break;
    case PS_SHAPE_F64:
        *(double *)at = get_f64(in, o);
        break;
    case PS_SHAPE_STR:
        *(const char **)at = get_str(in, o, max);
        break;
    case PS_SHAPE_BIN:
        *(struct ps_bytes *)at = get_bin(in, o, max);
        break;
    case PS_SHAPE_LIST:
        assert(false); /* Not a scalar. */
    }
}

static void set_default(const struct ps_shape_field *f, void *base)
{
    void *at = (char *)base + f->offset;

    switch (f->type) {
    case PS_SHAPE_BOOL:
    case PS_SHAPE_U8:
    case PS_SHAPE_U16:
    case PS_SHAPE_U32:
    case PS_SHAPE_U64:
        ps_shape_set_u64(f->type, at, f->default_.u);
        break;
    case PS_SHAPE_I32:
    case PS_SHAPE_I64:
        ps_shape_set_i64(f->type, at, f->default_.i);
        break;
    case PS_SHAPE_F64:
        *(double *)at = f->default_.f;
        break;
    case PS_SHAPE_STR:
        *(const char **)at = f->default_.s;
        break;
    case PS_SHAPE_BIN:
    case PS_SHAPE_LIST:
        break; /* Empty already. */
    }
}

static void get_field(struct field_in *in, const struct ps_shape_field *f,
                      const msgpack_object *o, void *base);

static void get_record(struct field_in *in, const struct ps_shape_record *r,
                       const msgpack_object *o, void *base)
{
    /* A longer array comes from a newer peer; unknown fields are skipped. */
    msgpack_object_array values = get_array(in, o, UINT32_MAX);

    for (uint32_t i = 0; i < r->field_count && in->rc == 0; i++) {
        if (i < values.size) {
            get_field(in, &r->fields[i], &values.ptr[i], base);
        } else if (r->fields[i].required) {
            in->rc = PS_E_PROTO;
        } else {
            set_default(&r->fields[i], base);
        }
    }
}

static void get_list(struct field_in *in, const struct ps_shape_field *f,
                     const msgpack_object *o, void *base)
{
    msgpack_object_array values = get_array(in, o, f->max);
    size_t size = ps_shape_element_size(f);
    char *elements;

    if (values.size == 0) {
        return;
    }
    elements = alloc_in_zone(in, values.size * size);
    for (uint32_t i = 0; i < values.size && in->rc == 0; i++) {
        if (f->record != NULL) {
            get_record(in, f->record, &values.ptr[i], elements + i * size);
        } else {
            get_scalar(in, f->of, &values.ptr[i], 0, elements + i * size);
        }
    }
    memcpy((char *)base + f->offset, &elements, sizeof(elements));
    memcpy((char *)base + f->offset_count, &values.size, sizeof(values.size));
}

static void get_field(struct field_in *in, const struct ps_shape_field *f,
                      const msgpack_object *o, void *base)
{
    void *at = (char *)base + f->offset;

    if (f->type == PS_SHAPE_LIST) {
        get_list(in, f, o, base);
        return;
    }
    if (f->is_text) {
        *(const char **)at = get_text(in, o, f->max);
        return;
    }
    get_scalar(in, f->type, o, f->max, at);
    if (f->values != NULL && in->rc == 0 &&
        !ps_shape_value_known(f->values, *(const uint8_t *)at)) {
        in->rc = PS_E_PROTO;
    }
}

static const struct ps_shape_field *find_field(const struct ps_shape_msg *s,
                                               uint64_t id)
{
    for (size_t i = 0; i < s->field_count; i++) {
        if (s->fields[i].id == id) {
            return &s->fields[i];
        }
    }
    return NULL;
}

/* Decodes the map of a message: each id at most once, known ones into `msg`. */
static void get_message(struct field_in *in, const struct ps_shape_msg *s,
                        const msgpack_object_map *map, struct ps_msg *msg)
{
    uint64_t seen = 0;

    for (uint32_t i = 0; i < map->size && in->rc == 0; i++) {
        uint64_t id = get_u64(in, &map->ptr[i].key, 63);
        const struct ps_shape_field *f = find_field(s, id);

        if (in->rc == 0 && (id == 0 || (seen & BIT(id)) != 0)) {
            in->rc = PS_E_PROTO;
        }
        seen |= BIT(id);
        if (f != NULL) {
            get_field(in, f, &map->ptr[i].val, msg);
        }
    }
    for (size_t i = 0; i < s->field_count && in->rc == 0; i++) {
        const struct ps_shape_field *f = &s->fields[i];

        if ((seen & BIT(f->id)) != 0) {
            continue;
        }
        if (f->required) {
            in->rc = PS_E_PROTO;
        } else {
            set_default(f, msg);
        }
    }
}

int ps_msg_decode(struct ps_decoder *d, unsigned code, const uint8_t *header,
                  size_t len, struct ps_msg *ret_msg)
{
    const struct ps_shape_msg *shape = ps_shape_of(code);
    struct ps_msg msg = {.code = (enum ps_msg_code)code};
    struct field_in in = {.zone = &d->zone};
    msgpack_object root;
    size_t offset = 0;
    int rc;

    if (shape == NULL) {
        return PS_E_PROTO;
    }
    if (len > shape->header_max) {
        return PS_E_TOOBIG;
    }
    rc = ps_scan(header, len,
                 &(struct ps_scan_limits){.depth_max = PS_MSG_DEPTH_MAX,
                                          .nodes_max = shape->nodes_max});
    if (rc != 0) {
        return rc;
    }
    msgpack_zone_clear(&d->zone);
    switch (
        msgpack_unpack((const char *)header, len, &offset, &d->zone, &root)) {
    case MSGPACK_UNPACK_SUCCESS:
        break;
    case MSGPACK_UNPACK_NOMEM_ERROR:
        return PS_E_NOMEM;
    case MSGPACK_UNPACK_EXTRA_BYTES:
    case MSGPACK_UNPACK_CONTINUE:
    case MSGPACK_UNPACK_PARSE_ERROR:
        /* The scan accepted these bytes, so one of the two parsers is wrong. */
        return PS_E_PROTO;
    }
    if (root.type != MSGPACK_OBJECT_MAP) {
        return PS_E_PROTO;
    }
    get_message(&in, shape, &root.via.map, &msg);
    if (in.rc != 0) {
        return in.rc;
    }
    *ret_msg = msg;
    return 0;
}
