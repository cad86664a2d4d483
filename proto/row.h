/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the rows of psched's file: a message and its payload as one frame,
 * without a connection. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/msg_codec.h"

/* Writes the frame into memory that the caller frees with ps_free. PS_E_TOOBIG,
 * PS_E_INVAL: as ps_msg_encode(). */
PS_MUST_USE int ps_row_encode(const struct ps_msg *msg,
                              const struct ps_slice *payload, uint32_t count,
                              uint8_t **ret_bytes, size_t *ret_len);
/* Reads a frame that fills `bytes`. The message borrows memory of the decoder
 * until its next call; *ret_payload has a buffer that the caller releases, or
 * NULL: there is no payload. PS_E_PROTO and other errors of ps_msg_decode(). */
PS_MUST_USE int ps_row_decode(struct ps_decoder *d, const uint8_t *bytes,
                              size_t len, struct ps_msg *ret_msg,
                              struct ps_slice *ret_payload);
