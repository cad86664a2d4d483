/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to frames and back. Walks the tables of proto/shape.h, so it has no
 * code for single messages.
 *
 * A received frame passes ps_frame_parse, ps_frame_check, then ps_msg_decode
 * with exactly header_len bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/frame.h"
#include "proto/ps_msg.h"

/* Upper bound of the bytes of prefix and header of this message. */
size_t ps_msg_encoded_bound(const struct ps_msg *msg);

/* Writes prefix and header; the caller sends `payload_len` bytes after them.
 * Fields newer than `version`, which is negotiated with the peer, are left out.
 * Allocates nothing. PS_E_FULL: `cap` is too small; PS_E_TOOBIG: a string, list
 * or payload exceeds its maximum; PS_E_INVAL: an invalid enum value, or a
 * payload that is not allowed. */
PS_MUST_USE int ps_msg_encode(const struct ps_msg *msg, uint16_t version,
                              uint64_t payload_len, uint8_t *out, size_t cap,
                              size_t *ret_len);

/* Header of a message as several peers get it: its fields but for `seq` and
 * `ack`, which differ between them. */
struct ps_msg_body {
    uint16_t version; /* Negotiated with these peers. */
    uint32_t field_count;
    size_t len;
    uint8_t bytes[];
};

/* Writes the body into `out->bytes`, which has `cap` bytes. Errors as those of
 * ps_msg_encode(). */
PS_MUST_USE int ps_msg_encode_body(const struct ps_msg *msg, uint16_t version,
                                   struct ps_msg_body *out, size_t cap);
/* Bytes of what one peer gets before the body, at most. */
#define PS_MSG_FRONT_MAX (PS_FRAME_PREFIX + 5u + 2u * 10u)
/* Writes that: together with the body it is the same as ps_msg_encode()'s. The
 * message has no payload. Returns its length. */
size_t ps_msg_encode_front(const struct ps_msg *msg,
                           const struct ps_msg_body *body,
                           uint8_t out[PS_MSG_FRONT_MAX]);

/* Memory of one decoded message. One decoder serves all connections of a
 * thread. */
struct ps_decoder;

/* NULL if memory is used up; the client library must not abort. */
struct ps_decoder *ps_decoder_new(void);
void ps_decoder_free(struct ps_decoder *d);

/* Decodes a header of message `code`. The message borrows memory of the decoder
 * until the next call (ps_msg_dup makes a copy), none of `header`. PS_E_PROTO:
 * malformed; PS_E_TOOBIG: beyond a limit; PS_E_NOMEM. */
PS_MUST_USE int ps_msg_decode(struct ps_decoder *d, unsigned code,
                              const uint8_t *header, size_t len,
                              struct ps_msg *ret_msg);
