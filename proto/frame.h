/* SPDX-License-Identifier: Apache-2.0 */
/* Prefix in front of every frame, the record frame_prefix; then the header
 * (msgpack) and the payload (raw bytes) or references to it. The code is part
 * of the prefix so that direction and lengths are checked before the header is
 * read and before memory is allocated for it. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "proto/ps_fixed.h"
#include "proto/ps_msg.h"

#define PS_FRAME_PREFIX   PS_FIXED_FRAME_PREFIX_BYTES
/* References of one payload. */
#define PS_FRAME_REFS_MAX PS_FIXED_FRAME_PREFIX_REF_COUNT_MAX
/* Version of the prefix; hello negotiates the version of messages. */
#define PS_FRAME_VERSION  1u

struct ps_frame_prefix {
    uint8_t version;
    uint8_t code;
    uint32_t header_len;
    uint32_t payload_len;
    uint8_t ref_count; /* 0: the payload follows; else references to it. */
};

/* PS_E_PROTO: the bytes are not a prefix; PS_E_VERSION: a later version. */
PS_MUST_USE int ps_frame_parse(const uint8_t in[PS_FRAME_PREFIX],
                               struct ps_frame_prefix *ret_prefix);
void ps_frame_build(uint8_t out[PS_FRAME_PREFIX],
                    const struct ps_frame_prefix *prefix);

/* Sets the number of references in the bytes of a prefix. */
void ps_frame_set_ref_count(uint8_t prefix[PS_FRAME_PREFIX], uint8_t count);

/* Checks a payload length against the kind of payload. 0, PS_E_PROTO,
 * PS_E_TOOBIG. */
PS_MUST_USE int ps_frame_check_payload(enum ps_payload_kind kind, uint64_t len);
/* Checks if `from` may send such a frame to `to`. PS_E_PROTO: unknown message,
 * no header, references to no payload, or a payload that is not allowed or of
 * invalid length; PS_E_PERM:
 * wrong direction; PS_E_TOOBIG: header longer than this message's maximum, or
 * payload longer than any. */
PS_MUST_USE int ps_frame_check(const struct ps_frame_prefix *prefix,
                               enum ps_role from, enum ps_role to);
