/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/shape.h"

#include <assert.h>

static const struct ps_shape_value *find_shape(const struct ps_shape_enum *e,
                                               unsigned v)
{
    for (size_t i = 0; i < e->value_count; i++) {
        if (e->values[i].value == v) {
            return &e->values[i];
        }
    }
    return NULL;
}

const char *ps_shape_value_name(const struct ps_shape_enum *e, unsigned v)
{
    const struct ps_shape_value *found = find_shape(e, v);

    return found != NULL ? found->name : "?";
}

bool ps_shape_value_known(const struct ps_shape_enum *e, unsigned v)
{
    return find_shape(e, v) != NULL;
}

size_t ps_shape_size(enum ps_shape_type type)
{
    static const uint8_t sizes[] = {
        [PS_SHAPE_BOOL] = sizeof(bool),
        [PS_SHAPE_U8] = sizeof(uint8_t),
        [PS_SHAPE_U16] = sizeof(uint16_t),
        [PS_SHAPE_U32] = sizeof(uint32_t),
        [PS_SHAPE_U64] = sizeof(uint64_t),
        [PS_SHAPE_I32] = sizeof(int32_t),
        [PS_SHAPE_I64] = sizeof(int64_t),
        [PS_SHAPE_F64] = sizeof(double),
        [PS_SHAPE_STR] = sizeof(const char *),
        [PS_SHAPE_BIN] = sizeof(struct ps_bytes),
        [PS_SHAPE_LIST] = sizeof(const void *),
    };

    return sizes[type];
}

size_t ps_shape_element_size(const struct ps_shape_field *f)
{
    return f->record != NULL ? f->record->size : ps_shape_size(f->of);
}

/* A bool has the value 0 or 1 of its byte. */
uint64_t ps_shape_get_u64(enum ps_shape_type type, const void *at)
{
    assert(type <= PS_SHAPE_U64);
    switch (ps_shape_size(type)) {
    case sizeof(uint8_t):
        return *(const uint8_t *)at;
    case sizeof(uint16_t):
        return *(const uint16_t *)at;
    case sizeof(uint32_t):
        return *(const uint32_t *)at;
    default:
        return *(const uint64_t *)at;
    }
}

void ps_shape_set_u64(enum ps_shape_type type, void *at, uint64_t v)
{
    assert(type <= PS_SHAPE_U64);
    switch (ps_shape_size(type)) {
    case sizeof(uint8_t):
        *(uint8_t *)at = (uint8_t)v;
        return;
    case sizeof(uint16_t):
        *(uint16_t *)at = (uint16_t)v;
        return;
    case sizeof(uint32_t):
        *(uint32_t *)at = (uint32_t)v;
        return;
    default:
        *(uint64_t *)at = v;
        return;
    }
}

int64_t ps_shape_get_i64(enum ps_shape_type type, const void *at)
{
    assert(type == PS_SHAPE_I32 || type == PS_SHAPE_I64);
    return type == PS_SHAPE_I32 ? *(const int32_t *)at : *(const int64_t *)at;
}

void ps_shape_set_i64(enum ps_shape_type type, void *at, int64_t v)
{
    assert(type == PS_SHAPE_I32 || type == PS_SHAPE_I64);
    if (type == PS_SHAPE_I32) {
        *(int32_t *)at = (int32_t)v;
    } else {
        *(int64_t *)at = v;
    }
}

uint32_t ps_shape_count(const struct ps_shape_field *f, const void *base)
{
    assert(f->type == PS_SHAPE_LIST);
    return *(const uint32_t *)((const char *)base + f->offset_count);
}

const void *ps_shape_element(const struct ps_shape_field *f, const void *base,
                             uint32_t i)
{
    const char *first = *(const char *const *)ps_shape_at(f, base);

    assert(i < ps_shape_count(f, base));
    return first + i * ps_shape_element_size(f);
}
