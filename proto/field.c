/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/field.h"

#include <assert.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

/* ---------------------------------------------------------------- encode */

/* Write callback of msgpack-c, which stops at the first -1; out->rc keeps the
 * reason. */
static int append_packed(void *data, const char *bytes, size_t len)
{
    struct ps_field_out *out = data;

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

void ps_field_out_init(struct ps_field_out *out, uint8_t *data, size_t cap)
{
    *out = (struct ps_field_out){.data = data, .cap = cap};
    msgpack_packer_init(&out->packer, out, append_packed);
}

void ps_field_put_map(struct ps_field_out *out, uint32_t count)
{
    msgpack_pack_map(&out->packer, count);
}

static bool is_in_range(struct ps_field_out *out, size_t len, uint32_t max)
{
    if (len > max && out->rc == 0) {
        out->rc = PS_E_TOOBIG;
    }
    return out->rc == 0;
}

void ps_field_put_array(struct ps_field_out *out, uint32_t count, uint32_t max)
{
    if (is_in_range(out, count, max)) {
        msgpack_pack_array(&out->packer, count);
    }
}

void ps_field_put_bool(struct ps_field_out *out, bool v)
{
    if (v) {
        msgpack_pack_true(&out->packer);
    } else {
        msgpack_pack_false(&out->packer);
    }
}

void ps_field_put_u64(struct ps_field_out *out, uint64_t v)
{
    msgpack_pack_uint64(&out->packer, v);
}

void ps_field_put_i64(struct ps_field_out *out, int64_t v)
{
    msgpack_pack_int64(&out->packer, v);
}

void ps_field_put_f64(struct ps_field_out *out, double v)
{
    msgpack_pack_double(&out->packer, v);
}

void ps_field_put_str(struct ps_field_out *out, const char *text, uint32_t max)
{
    size_t len = text != NULL ? strlen(text) : 0;

    if (is_in_range(out, len, max)) {
        msgpack_pack_str(&out->packer, len);
        msgpack_pack_str_body(&out->packer, len > 0 ? text : "", len);
    }
}

void ps_field_put_bin(struct ps_field_out *out, struct ps_bytes bytes,
                      uint32_t max)
{
    if (is_in_range(out, bytes.len, max)) {
        msgpack_pack_bin(&out->packer, bytes.len);
        msgpack_pack_bin_body(&out->packer,
                              bytes.len > 0 ? (const void *)bytes.data : "",
                              bytes.len);
    }
}

/* ---------------------------------------------------------------- decode */

/* True if `good` holds and no error came before; else `rc` is recorded. */
static bool expect_value(struct ps_field_in *in, bool good, int rc)
{
    if (in->rc == 0 && !good) {
        in->rc = rc;
    }
    return in->rc == 0;
}

bool ps_field_get_bool(struct ps_field_in *in, const msgpack_object *o)
{
    return expect_value(in, o->type == MSGPACK_OBJECT_BOOLEAN, PS_E_PROTO) &&
           o->via.boolean;
}

uint64_t ps_field_get_u64(struct ps_field_in *in, const msgpack_object *o,
                          uint64_t max)
{
    if (!expect_value(
            in, o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= max,
            PS_E_PROTO)) {
        return 0;
    }
    return o->via.u64;
}

int64_t ps_field_get_i64(struct ps_field_in *in, const msgpack_object *o,
                         int64_t min, int64_t max)
{
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        assert(max >= 0);
        return (int64_t)ps_field_get_u64(in, o, (uint64_t)max);
    }
    if (!expect_value(
            in, o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER && o->via.i64 >= min,
            PS_E_PROTO)) {
        return 0;
    }
    return o->via.i64;
}

double ps_field_get_f64(struct ps_field_in *in, const msgpack_object *o)
{
    if (!expect_value(in,
                      o->type == MSGPACK_OBJECT_FLOAT64 ||
                          o->type == MSGPACK_OBJECT_FLOAT32,
                      PS_E_PROTO)) {
        return 0;
    }
    return o->via.f64; /* msgpack-c converts float32 to double. */
}

void *ps_field_alloc(struct ps_field_in *in, size_t size)
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
static char *copy_bytes(struct ps_field_in *in, const char *bytes, size_t len)
{
    char *copy = ps_field_alloc(in, len + 1);

    if (copy != NULL && len > 0) {
        memcpy(copy, bytes, len);
    }
    return copy;
}

const char *ps_field_get_str(struct ps_field_in *in, const msgpack_object *o,
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

const char *ps_field_get_text(struct ps_field_in *in, const msgpack_object *o,
                              uint32_t max)
{
    /* The string is a copy in the zone, so it may be changed. */
    char *text = (char *)(uintptr_t)ps_field_get_str(in, o, max);
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

struct ps_bytes ps_field_get_bin(struct ps_field_in *in,
                                 const msgpack_object *o, uint32_t max)
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

msgpack_object_array ps_field_get_array(struct ps_field_in *in,
                                        const msgpack_object *o, uint32_t max)
{
    if (!expect_value(in, o->type == MSGPACK_OBJECT_ARRAY, PS_E_PROTO) ||
        !expect_value(in, o->via.array.size <= max, PS_E_TOOBIG)) {
        return (msgpack_object_array){0};
    }
    return o->via.array;
}
