/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to frames and back. Walks the tables of proto/shape.h, so it knows
 * every message and names none.
 *
 * Coming in, a frame passes in this order: ps_frame_parse, ps_frame_check,
 * then ps_codec_decode with exactly header_len bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/frame.h"
#include "proto/ps_msg.h"

/* Bytes that suffice for prefix and header of this message. */
size_t ps_msg_encoded_bound(const struct ps_msg *msg);

/* Writes prefix and header; `payload_len` bytes are to follow from elsewhere.
 * Fields younger than `version`, the one agreed with the peer, are left out.
 * Allocates nothing. PS_E_FULL: `cap` is too small; PS_E_TOOBIG: a string or
 * list is longer than its max; PS_E_INVAL: an enum field holds none of its
 * values, or a payload where none belongs; PS_E_TOOBIG for a payload that is
 * longer than any. */
PS_MUST_USE int ps_msg_encode(const struct ps_msg *msg, uint16_t version,
                              uint64_t payload_len, uint8_t *out, size_t cap,
                              size_t *ret_len);

/* Memory of one decoded message at a time. One decoder serves all the
 * connections of a thread. */
struct ps_decoder;

/* NULL when memory is gone; the client library must not abort. */
struct ps_decoder *ps_decoder_new(void);
void ps_decoder_free(struct ps_decoder *d);

/* Decodes a header of message `code`. The message borrows from the decoder
 * until the next call with it (ps_msg_dup keeps one longer); not from
 * `header`. PS_E_PROTO: malformed; PS_E_TOOBIG: beyond a limit; PS_E_NOMEM. */
PS_MUST_USE int ps_msg_decode(struct ps_decoder *d, unsigned code,
                              const uint8_t *header, size_t len,
                              struct ps_msg *ret_msg);
