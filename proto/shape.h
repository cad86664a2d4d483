/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that describe messages: their fields, the offsets in their structs,
 * and the allowed values. The generated ps_msg.c has the tables; copying,
 * printing, encoding, decoding and samples walk them, so each is written once
 * and no message has code of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/ps_msg.h"

enum ps_shape_type {
    PS_SHAPE_BOOL, /* Up to U64: the unsigned ones. */
    PS_SHAPE_U8,
    PS_SHAPE_U16,
    PS_SHAPE_U32,
    PS_SHAPE_U64,
    PS_SHAPE_I32,
    PS_SHAPE_I64,
    PS_SHAPE_F64,
    PS_SHAPE_STR,
    PS_SHAPE_BIN,
    PS_SHAPE_LIST,
};

struct ps_shape_value {
    uint8_t value;
    const char *name;
};

struct ps_shape_enum {
    const char *name;
    const struct ps_shape_value *values;
    size_t value_count;
};

struct ps_shape_record;

struct ps_shape_field {
    const char *name;
    enum ps_shape_type type;
    enum ps_shape_type of; /* Element type of a list without `record`. */
    uint8_t id; /* 1..63; 0 in records, whose fields are positional. */
    /* str: text for users, which may contain names chosen by peers. */
    bool is_text;
    bool required;       /* false: default_ is the value of an absent field. */
    uint16_t since;      /* Protocol version that introduced it. */
    uint32_t max;        /* str, bin: bytes; list: elements. */
    size_t offset;       /* In struct ps_msg, or in the record's struct. */
    size_t offset_count; /* list: offset of its uint32_t count. */
    const struct ps_shape_enum *values; /* u8: allowed values; NULL: all. */
    /* Element type of a list of records; NULL: other fields. */
    const struct ps_shape_record *record;
    union {
        uint64_t u; /* bool, u8..u64 */
        int64_t i;
        double f;
        const char *s;
    } default_;
};

struct ps_shape_record {
    const char *name;
    const struct ps_shape_field *fields;
    size_t field_count;
    size_t size; /* Bytes of its struct. */
};

/* Offsets of the fields that name what a message is about; 0: there is none. */
struct ps_shape_subject {
    uint16_t gen;
    uint16_t slot;
    uint16_t
        parts; /* List of records; 0: `key` and `index` are the message's. */
    uint16_t count;
    uint16_t size; /* Bytes of a record. */
    uint16_t key;
    uint16_t index;
};

/* Roles are smaller. */
#define PS_SHAPE_ROLES 8u

struct ps_shape_msg {
    const char *name;
    const struct ps_shape_field *fields; /* Envelope fields first. */
    size_t field_count;
    uint32_t from; /* Bits 1 << role. */
    uint32_t to;
    uint8_t authority[PS_SHAPE_ROLES]; /* enum ps_authority, by sender. */
    struct ps_shape_subject subject;
    enum ps_payload_kind payload;
    uint32_t header_max; /* Bytes, with reserve for fields of later versions. */
    /* msgpack values in the header, with the same reserve. */
    uint32_t nodes_max;
};

/* NULL: not a message's code. */
const struct ps_shape_msg *ps_shape_of(unsigned code);

const char *ps_shape_value_name(const struct ps_shape_enum *e, unsigned v);
bool ps_shape_value_known(const struct ps_shape_enum *e, unsigned v);

/* Bytes of a value in memory: of a list, its pointer; of a bin, its struct. */
size_t ps_shape_size(enum ps_shape_type type);
/* Bytes of one element of a list in memory. */
size_t ps_shape_element_size(const struct ps_shape_field *f);

/* Address of the field in `base`, a struct ps_msg or a record. */
static inline const void *ps_shape_at(const struct ps_shape_field *f,
                                      const void *base)
{
    return (const char *)base + f->offset;
}

/* Typed access; `type` must be bool or unsigned, or signed in the i64 ones. */
uint64_t ps_shape_get_u64(enum ps_shape_type type, const void *at);
int64_t ps_shape_get_i64(enum ps_shape_type type, const void *at);
void ps_shape_set_u64(enum ps_shape_type type, void *at, uint64_t v);
void ps_shape_set_i64(enum ps_shape_type type, void *at, int64_t v);

/* Number of elements of the list in `base`, and one of them. */
uint32_t ps_shape_count(const struct ps_shape_field *f, const void *base);
const void *ps_shape_element(const struct ps_shape_field *f, const void *base,
                             uint32_t i);
