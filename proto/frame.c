/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"

#include "base/limits.h"
#include "proto/ps_fixed.h"

static uint64_t get_be(const uint8_t *in, unsigned size)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < size; i++) {
        v = v << 8 | in[i];
    }
    return v;
}

static void put_be(uint8_t *out, unsigned size, uint64_t v)
{
    for (unsigned i = size; i-- > 0; v >>= 8) {
        out[i] = (uint8_t)v;
    }
}

int ps_frame_parse(const uint8_t in[PS_FRAME_PREFIX],
                   struct ps_frame_prefix *ret_prefix)
{
    if (in[0] != 'P' || in[1] != 'S') {
        return PS_E_PROTO;
    }
    if (in[2] != PS_FRAME_VERSION) {
        return PS_E_VERSION;
    }
    *ret_prefix = (struct ps_frame_prefix){
        .version = in[2],
        .code = in[3],
        .header_len = (uint32_t)get_be(in + 4, 4),
        .payload_len = get_be(in + 8, 8),
    };
    return 0;
}

void ps_frame_build(uint8_t out[PS_FRAME_PREFIX],
                    const struct ps_frame_prefix *prefix)
{
    out[0] = 'P';
    out[1] = 'S';
    out[2] = prefix->version;
    out[3] = prefix->code;
    put_be(out + 4, 4, prefix->header_len);
    put_be(out + 8, 8, prefix->payload_len);
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

    if (header_max == 0 || prefix->header_len == 0) {
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
