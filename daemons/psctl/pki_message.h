/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between `psctl enroll` and `psctl pki serve`, one in each
 * direction. */
#pragma once

#include "base/err.h"
#include "proto/msg_codec.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest frame of this message. */
size_t pki_message_bytes(enum ps_msg_code code);
/* Decodes the bytes that have been received so far, of which the frame of a
 * message of this code must be all. PS_E_AGAIN: more bytes are needed; another
 * error: they are malformed. The message borrows from the decoder. */
PS_MUST_USE int pki_message_read(struct ps_decoder *d, enum ps_msg_code code,
                                 const uint8_t *bytes, size_t len,
                                 struct ps_msg *ret_msg);
