/* SPDX-License-Identifier: Apache-2.0 */
/* A code and a header of a peer: a message that decodes can be printed, copied
 * and encoded again, and decodes to the same at the other end. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "proto/msg_codec.h"

/* Encodes into memory of just the size that the bound promises. */
static uint8_t *encode(const struct ps_msg *msg, size_t *ret_len)
{
    size_t cap = ps_msg_encoded_bound(msg);
    uint8_t *out = malloc(cap);
    int rc;

    assert(out != NULL);
    rc = ps_msg_encode(msg, PS_PROTOCOL, 0, out, cap, ret_len);
    assert(rc == 0);
    return out;
}

static void check_line(const struct ps_msg *msg)
{
    char line[200];
    size_t len = ps_msg_print(msg, line, sizeof(line));

    assert(len < sizeof(line) && strlen(line) == len);
    assert(strchr(line, '\n') == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ps_decoder *decoder;
    struct ps_msg msg;
    struct ps_msg back;
    struct ps_msg *copy;
    uint8_t *sent;
    uint8_t *again;
    size_t sent_len;
    size_t again_len;
    int rc;

    if (decoder == NULL) {
        decoder = ps_decoder_new();
        assert(decoder != NULL);
    }
    if (size == 0) {
        return 0;
    }
    rc = ps_msg_decode(decoder, data[0], data + 1, size - 1, &msg);
    if (rc != 0) {
        assert(rc == PS_E_PROTO || rc == PS_E_TOOBIG);
        return 0;
    }
    check_line(&msg);
    copy = ps_msg_dup(&msg);
    sent = encode(&msg, &sent_len);
    rc = ps_msg_decode(decoder, msg.code, sent + PS_FRAME_PREFIX,
                       sent_len - PS_FRAME_PREFIX, &back);
    assert(rc == 0);
    again = encode(&back, &again_len);
    assert(again_len == sent_len && memcmp(again, sent, sent_len) == 0);
    free(again);
    again = encode(copy, &again_len);
    assert(again_len == sent_len && memcmp(again, sent, sent_len) == 0);
    free(again);
    free(sent);
    ps_msg_free(copy);
    return 0;
}
