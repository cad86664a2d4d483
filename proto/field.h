/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding of single values with msgpack-c. The first error is
 * kept in `rc`: later puts do nothing and later gets return zeros, so the codec
 * checks it once, at the end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msgpack.h>

#include "proto/ps_msg.h"

/* Output to memory of the caller, never beyond `cap`. */
struct ps_field_out {
    msgpack_packer packer;
    uint8_t *data;
    size_t cap;
    size_t len;
    /* PS_E_FULL: `cap` is too small; PS_E_TOOBIG: a maximum is exceeded. */
    int rc;
};

void ps_field_out_init(struct ps_field_out *out, uint8_t *data, size_t cap);
void ps_field_put_map(struct ps_field_out *out, uint32_t count);
void ps_field_put_array(struct ps_field_out *out, uint32_t count, uint32_t max);
void ps_field_put_bool(struct ps_field_out *out, bool v);
void ps_field_put_u64(struct ps_field_out *out, uint64_t v);
void ps_field_put_i64(struct ps_field_out *out, int64_t v);
void ps_field_put_f64(struct ps_field_out *out, double v);
/* NULL is encoded as "". */
void ps_field_put_str(struct ps_field_out *out, const char *text, uint32_t max);
void ps_field_put_bin(struct ps_field_out *out, struct ps_bytes bytes,
                      uint32_t max);

/* Input; decoded strings and bytes are copied into the zone. */
struct ps_field_in {
    msgpack_zone *zone;
    int rc; /* PS_E_PROTO: wrong type or range; PS_E_TOOBIG; PS_E_NOMEM. */
};

bool ps_field_get_bool(struct ps_field_in *in, const msgpack_object *o);
uint64_t ps_field_get_u64(struct ps_field_in *in, const msgpack_object *o,
                          uint64_t max);
int64_t ps_field_get_i64(struct ps_field_in *in, const msgpack_object *o,
                         int64_t min, int64_t max);
double ps_field_get_f64(struct ps_field_in *in, const msgpack_object *o);
/* Terminated string; an embedded NUL is an error. "" after an error. */
const char *ps_field_get_str(struct ps_field_in *in, const msgpack_object *o,
                             uint32_t max);
/* The same for text shown to users: each invisible byte (ps_str_visible)
 * becomes '?', because a peer may have chosen it. */
const char *ps_field_get_text(struct ps_field_in *in, const msgpack_object *o,
                              uint32_t max);
struct ps_bytes ps_field_get_bin(struct ps_field_in *in,
                                 const msgpack_object *o, uint32_t max);
/* Elements of an array; none after an error. */
msgpack_object_array ps_field_get_array(struct ps_field_in *in,
                                        const msgpack_object *o, uint32_t max);
/* Zeroed memory with the lifetime of the zone; NULL after an error. */
void *ps_field_alloc(struct ps_field_in *in, size_t size);
