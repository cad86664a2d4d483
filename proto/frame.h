/* SPDX-License-Identifier: Apache-2.0 */
/* The 16 bytes in front of every frame, big-endian:
 *
 *     'P' 'S'  version  code  header length (4)  payload length (8)
 *
 * then the header (msgpack) and the payload (raw bytes). The code stands here
 * so that direction and lengths are judged before a byte of the header is
 * read or a byte of memory is had for it. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "proto/ps_msg.h"

#define PS_FRAME_PREFIX  16u
/* Of the prefix itself; what messages may hold is agreed in hello. */
#define PS_FRAME_VERSION 1u

struct ps_frame_prefix {
    uint8_t version;
    uint8_t code;
    uint32_t header_len;
    uint64_t payload_len;
};

/* PS_E_PROTO: these are not our bytes; PS_E_VERSION: a later prefix. */
PS_MUST_USE int ps_frame_parse(const uint8_t in[PS_FRAME_PREFIX],
                               struct ps_frame_prefix *ret_prefix);
void ps_frame_build(uint8_t out[PS_FRAME_PREFIX],
                    const struct ps_frame_prefix *prefix);

/* May a frame that carries this kind carry so many bytes? 0, PS_E_PROTO,
 * PS_E_TOOBIG. */
PS_MUST_USE int ps_frame_check_payload(enum ps_payload_kind kind, uint64_t len);
/* May `from` send such a frame to `to`? PS_E_PROTO: no such message, no
 * header, a payload where none belongs or of an odd length; PS_E_PERM: wrong
 * direction; PS_E_TOOBIG: header longer than this message can have, or payload
 * longer than any. */
PS_MUST_USE int ps_frame_check(const struct ps_frame_prefix *prefix,
                               enum ps_role from, enum ps_role to);
