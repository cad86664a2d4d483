/* SPDX-License-Identifier: Apache-2.0 */
#include "psctl/pki_message.h"

#include "proto/frame.h"

size_t pki_message_bytes(enum ps_msg_code code)
{
    return PS_FRAME_PREFIX + ps_msg_header_max(code);
}

int pki_message_read(struct ps_decoder *d, enum ps_msg_code code,
                     const uint8_t *bytes, size_t len, struct ps_msg *ret_msg)
{
    struct ps_frame_prefix prefix;
    int rc;

    if (len < PS_FRAME_PREFIX) {
        return PS_E_AGAIN;
    }
    rc = ps_frame_parse(bytes, &prefix);
    if (rc == 0) {
        rc = ps_frame_check(&prefix, PS_ROLE_CTL, PS_ROLE_CTL);
    }
    if (rc != 0) {
        return rc;
    }
    if (prefix.code != code || len > PS_FRAME_PREFIX + prefix.header_len) {
        return PS_E_PROTO;
    }
    if (len < PS_FRAME_PREFIX + prefix.header_len) {
        return PS_E_AGAIN;
    }
    return ps_msg_decode(d, code, bytes + PS_FRAME_PREFIX, prefix.header_len,
                         ret_msg);
}
