/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/row.h"

#include "base/alloc.h"
#include "proto/frame.h"

#include <string.h>

int ps_row_encode(const struct ps_msg *msg, const struct ps_slice *payload,
                  uint32_t count, uint8_t **ret_bytes, size_t *ret_len)
{
    const size_t cap = ps_msg_encoded_bound(msg);
    uint64_t payload_len = 0;
    uint8_t *bytes;
    size_t len = 0;
    int rc;

    for (uint32_t i = 0; i < count; i++) {
        payload_len += payload[i].len;
    }
    bytes = ps_alloc(cap + payload_len);
    rc = ps_msg_encode(msg, PS_PROTOCOL, payload_len, bytes, cap, &len);
    if (rc != 0) {
        ps_free(bytes);
        return rc;
    }
    for (uint32_t i = 0; i < count; i++) {
        memcpy(bytes + len, ps_slice_data(&payload[i]), payload[i].len);
        len += payload[i].len;
    }
    *ret_bytes = bytes;
    *ret_len = len;
    return 0;
}

int ps_row_decode(struct ps_decoder *d, const uint8_t *bytes, size_t len,
                  struct ps_msg *ret_msg, struct ps_slice *ret_payload)
{
    struct ps_frame_prefix prefix;
    int rc = len >= PS_FRAME_PREFIX ? ps_frame_parse(bytes, &prefix)
                                    : PS_E_PROTO;

    if (rc == 0 && (prefix.ref_count != 0 || prefix.header_len == 0 ||
                    prefix.header_len > ps_msg_header_max(prefix.code) ||
                    (uint64_t)prefix.header_len + prefix.payload_len !=
                        len - PS_FRAME_PREFIX)) {
        rc = PS_E_PROTO;
    }
    if (rc == 0) {
        rc = ps_frame_check_payload(ps_msg_payload(prefix.code),
                                    prefix.payload_len);
    }
    if (rc == 0) {
        rc = ps_msg_decode(d, prefix.code, bytes + PS_FRAME_PREFIX,
                           prefix.header_len, ret_msg);
    }
    if (rc != 0) {
        return rc;
    }
    *ret_payload = (struct ps_slice){0};
    if (prefix.payload_len > 0) {
        ret_payload->buf = ps_buf_new(prefix.payload_len);
        ret_payload->len = prefix.payload_len;
        memcpy(ret_payload->buf->data,
               bytes + PS_FRAME_PREFIX + prefix.header_len, prefix.payload_len);
    }
    return 0;
}
