/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"

#include "base/limits.h"

_Static_assert(PS_PAYLOAD_MAX <= UINT32_MAX, "a prefix states the length");

int ps_frame_parse(const uint8_t in[PS_FRAME_PREFIX],
                   struct ps_frame_prefix *ret_prefix)
{
    struct ps_fixed_frame_prefix p;

    if (in[0] != 'P' || in[1] != 'S') {
        return PS_E_PROTO;
    }
    /* Other versions may have other bytes behind it. */
    if (in[offsetof(struct ps_fixed_frame_prefix, version)] !=
        PS_FRAME_VERSION) {
        return PS_E_VERSION;
    }
    if (!ps_fixed_get_frame_prefix(in, &p)) {
        return PS_E_PROTO;
    }
    *ret_prefix = (struct ps_frame_prefix){.version = p.version,
                                           .code = p.code,
                                           .header_len = p.header_len,
                                           .payload_len = p.payload_len,
                                           .ref_count = p.ref_count};
    return 0;
}

void ps_frame_build(uint8_t out[PS_FRAME_PREFIX],
                    const struct ps_frame_prefix *prefix)
{
    ps_fixed_put_frame_prefix(
        out, &(struct ps_fixed_frame_prefix){.version = prefix->version,
                                             .code = prefix->code,
                                             .header_len = prefix->header_len,
                                             .payload_len = prefix->payload_len,
                                             .ref_count = prefix->ref_count});
}

void ps_frame_set_ref_count(uint8_t prefix[PS_FRAME_PREFIX], uint8_t count)
{
    prefix[offsetof(struct ps_fixed_frame_prefix, ref_count)] = count;
}

int ps_frame_check_payload(enum ps_payload_kind kind, uint64_t len)
{
    switch (kind) {
    case PS_PAYLOAD_NONE:
        return len == 0 ? 0 : PS_E_PROTO;
    case PS_PAYLOAD_TENSOR:
        return len <= PS_PAYLOAD_MAX ? 0 : PS_E_TOOBIG;
    case PS_PAYLOAD_PLACEMENT:
        if (len > (uint64_t)PS_FIXED_PLACEMENT_PART_BYTES * PS_KEY_PARTS_MAX) {
            return PS_E_TOOBIG;
        }
        return len % PS_FIXED_PLACEMENT_PART_BYTES == 0 ? 0 : PS_E_PROTO;
    }
    return PS_E_PROTO;
}

int ps_frame_check(const struct ps_frame_prefix *prefix, enum ps_role from,
                   enum ps_role to)
{
    uint32_t header_max = ps_msg_header_max(prefix->code);

    if (header_max == 0 || prefix->header_len == 0 ||
        (prefix->ref_count > 0 && prefix->payload_len == 0)) {
        return PS_E_PROTO;
    }
    if (!ps_msg_allowed(prefix->code, from, to)) {
        return PS_E_PERM;
    }
    if (prefix->header_len > header_max) {
        return PS_E_TOOBIG;
    }
    return ps_frame_check_payload(ps_msg_payload(prefix->code),
                                  prefix->payload_len);
}
