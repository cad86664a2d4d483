/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that work on every message by its tables: copy, print, look up.
 *
 * A copy is one block: the struct, followed by the targets of its pointers. One
 * function walks the message twice, to measure and to copy, so the two cannot
 * differ. */
#include "proto/ps_msg.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "proto/shape.h"

/* Limits of a log line: bytes of one string, elements of one list. */
#define PRINT_STR_MAX  64u
#define PRINT_LIST_MAX 4u

#define BLOCK_ALIGN    8u /* Alignment of every element of a list. */

/* ------------------------------------------------------------------- dup */

struct block {
    char *data; /* NULL while measuring. */
    size_t used;
};

/* Reserves `size` bytes in the block and copies `from` there. Returns NULL
 * while measuring. */
static void *copy_to_arena(struct block *b, const void *from, size_t size)
{
    size_t start = (b->used + BLOCK_ALIGN - 1) & ~(size_t)(BLOCK_ALIGN - 1);

    b->used = start + size;
    if (b->data == NULL) {
        return NULL;
    }
    memcpy(b->data + start, from, size);
    return b->data + start;
}

static void dup_fields(struct block *b, const struct ps_shape_field *fields,
                       size_t count, const void *from, void *to);

static void dup_list(struct block *b, const struct ps_shape_field *f,
                     const void *from, void *to)
{
    uint32_t count = ps_shape_count(f, from);
    char *copy = NULL;

    if (count > 0) {
        copy = copy_to_arena(b, ps_shape_element(f, from, 0),
                             count * ps_shape_element_size(f));
    }
    if (to != NULL) {
        memcpy((char *)to + f->offset, &copy, sizeof(copy));
    }
    for (uint32_t i = 0; f->record != NULL && i < count; i++) {
        dup_fields(b, f->record->fields, f->record->field_count,
                   ps_shape_element(f, from, i),
                   copy != NULL ? copy + i * f->record->size : NULL);
    }
}

/* Copies the targets of all pointers in `from` into the block; the pointers of
 * `to`, a flat copy of it, are set to these copies. */
static void dup_fields(struct block *b, const struct ps_shape_field *fields,
                       size_t count, const void *from, void *to)
{
    for (size_t i = 0; i < count; i++) {
        const struct ps_shape_field *f = &fields[i];
        const void *at = ps_shape_at(f, from);

        if (f->type == PS_SHAPE_LIST) {
            dup_list(b, f, from, to);
        } else if (f->type == PS_SHAPE_STR) {
            const char *text = *(const char *const *)at;
            char *copy;

            if (text == NULL) {
                continue;
            }
            copy = copy_to_arena(b, text, strlen(text) + 1);
            if (to != NULL) {
                memcpy((char *)to + f->offset, &copy, sizeof(copy));
            }
        } else if (f->type == PS_SHAPE_BIN) {
            struct ps_bytes bytes = *(const struct ps_bytes *)at;

            if (bytes.len == 0) {
                continue;
            }
            bytes.data = copy_to_arena(b, bytes.data, bytes.len);
            if (to != NULL) {
                memcpy((char *)to + f->offset, &bytes, sizeof(bytes));
            }
        }
    }
}

struct ps_msg *ps_msg_dup_sized(const struct ps_msg *msg, size_t *ret_size)
{
    const struct ps_shape_msg *shape = ps_shape_of(msg->code);
    struct block b = {0};

    assert(shape != NULL);
    copy_to_arena(&b, msg, sizeof(*msg));
    dup_fields(&b, shape->fields, shape->field_count, msg, NULL);

    b.data = ps_alloc(b.used);
    b.used = 0;
    struct ps_msg *copy = copy_to_arena(&b, msg, sizeof(*msg));
    dup_fields(&b, shape->fields, shape->field_count, msg, copy);
    *ret_size = b.used;
    return copy;
}

struct ps_msg *ps_msg_dup(const struct ps_msg *msg)
{
    size_t size;

    return ps_msg_dup_sized(msg, &size);
}

void ps_msg_free(struct ps_msg *msg)
{
    ps_free(msg);
}

/* ---------------------------------------------------------------- look up */

const char *ps_msg_name(unsigned code)
{
    const struct ps_shape_msg *shape = ps_shape_of(code);

    return shape != NULL ? shape->name : "?";
}

enum ps_payload_kind ps_msg_payload(unsigned code)
{
    const struct ps_shape_msg *shape = ps_shape_of(code);

    return shape != NULL ? shape->payload : PS_PAYLOAD_NONE;
}

bool ps_msg_allowed(unsigned code, enum ps_role from, enum ps_role to)
{
    const struct ps_shape_msg *shape = ps_shape_of(code);

    return shape != NULL && (shape->from & (1u << from)) != 0 &&
           (shape->to & (1u << to)) != 0;
}

enum ps_authority ps_msg_authority(unsigned code, enum ps_role from)
{
    const struct ps_shape_msg *shape = ps_shape_of(code);

    return shape != NULL && (unsigned)from < PS_SHAPE_ROLES
               ? (enum ps_authority)shape->authority[from]
               : PS_AUTHORITY_NONE;
}

/* Field of a type at this offset of the message. */
#define FIELD_AT(type, msg, offset)                                            \
    (*(const type *)(const void *)((const uint8_t *)(msg) + (offset)))

bool ps_msg_subject(const struct ps_msg *msg, struct ps_msg_subject *ret)
{
    const struct ps_shape_msg *shape = ps_shape_of(msg->code);

    if (shape == NULL || shape->subject.gen == 0) {
        return false;
    }
    const struct ps_shape_subject *at = &shape->subject;

    *ret = (struct ps_msg_subject){
        .gen = FIELD_AT(uint64_t, msg, at->gen),
        .slot = at->slot != 0 ? FIELD_AT(uint32_t, msg, at->slot) : UINT32_MAX,
        .part_count = at->parts != 0 ? FIELD_AT(uint32_t, msg, at->count)
                      : at->key != 0 ? 1
                                     : 0,
        .parts = at->parts != 0 ? FIELD_AT(const uint8_t *, msg, at->parts)
                                : (const uint8_t *)msg,
        .part_size = at->size,
        .key_at = at->key,
        .index_at = at->index};
    return true;
}

uint32_t ps_msg_header_max(unsigned code)
{
    const struct ps_shape_msg *shape = ps_shape_of(code);

    return shape != NULL ? shape->header_max : 0;
}

/* ------------------------------------------------------------------ print */

static void print_scalar(struct ps_str *out, enum ps_shape_type type,
                         const void *at)
{
    switch (type) {
    case PS_SHAPE_BOOL:
        ps_str_add(out, ps_shape_get_u64(type, at) != 0 ? "true" : "false");
        break;
    case PS_SHAPE_U8:
    case PS_SHAPE_U16:
    case PS_SHAPE_U32:
    case PS_SHAPE_U64:
        ps_str_addf(out, "%" PRIu64, ps_shape_get_u64(type, at));
        break;
    case PS_SHAPE_I32:
    case PS_SHAPE_I64:
        ps_str_addf(out, "%" PRId64, ps_shape_get_i64(type, at));
        break;
    case PS_SHAPE_F64:
        ps_str_addf(out, "%.17g", *(const double *)at);
        break;
    case PS_SHAPE_STR: {
        const char *text = *(const char *const *)at;

        text = text != NULL ? text : "";
        ps_str_add(out, "\"");
        ps_str_add_escaped(out, text, strlen(text), PRINT_STR_MAX);
        ps_str_add(out, "\"");
        break;
    }
    case PS_SHAPE_BIN:
        ps_str_addf(out, "<%" PRIu32 " bytes>",
                    ((const struct ps_bytes *)at)->len);
        break;
    case PS_SHAPE_LIST:
        assert(false); /* Not a scalar. */
    }
}

static void print_field(struct ps_str *out, const struct ps_shape_field *f,
                        const void *base);

static void print_list(struct ps_str *out, const struct ps_shape_field *f,
                       const void *base)
{
    uint32_t count = ps_shape_count(f, base);

    ps_str_addf(out, "[%" PRIu32, count);
    for (uint32_t i = 0; i < count && i < PRINT_LIST_MAX; i++) {
        const void *at = ps_shape_element(f, base, i);

        ps_str_add(out, i == 0 ? ": " : ", ");
        if (f->record == NULL) {
            print_scalar(out, f->of, at);
            continue;
        }
        for (size_t j = 0; j < f->record->field_count; j++) {
            ps_str_add(out, j == 0 ? "" : " ");
            print_field(out, &f->record->fields[j], at);
        }
    }
    ps_str_add(out, count > PRINT_LIST_MAX ? ", ...]" : "]");
}

static void print_field(struct ps_str *out, const struct ps_shape_field *f,
                        const void *base)
{
    const void *at = ps_shape_at(f, base);

    ps_str_add(out, f->name);
    ps_str_add(out, " ");
    if (f->type == PS_SHAPE_LIST) {
        print_list(out, f, base);
    } else if (f->values != NULL) {
        ps_str_add(out, ps_shape_value_name(f->values, *(const uint8_t *)at));
    } else {
        print_scalar(out, f->type, at);
    }
}

size_t ps_msg_print(const struct ps_msg *msg, char *out, size_t cap)
{
    const struct ps_shape_msg *shape = ps_shape_of(msg->code);
    struct ps_str s;

    if (cap == 0) {
        return 0;
    }
    ps_str_init(&s, out, cap);
    ps_str_add(&s, ps_msg_name(msg->code));
    for (size_t i = 0; shape != NULL && i < shape->field_count; i++) {
        ps_str_add(&s, " ");
        print_field(&s, &shape->fields[i], msg);
    }
    return s.len;
}
