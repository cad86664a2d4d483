/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of frames between two roles, read as a receiver does: prefix, check,
 * header, payload, next. The first two bytes choose the roles. */
#include <assert.h>
#include <string.h>

#include "base/limits.h"
#include "fuzz.h"
#include "proto/msg_codec.h"

static enum ps_role choose_role(uint8_t byte)
{
    return (enum ps_role)(PS_ROLE_SCHED +
                          byte % (PS_ROLE_CTL - PS_ROLE_SCHED + 1));
}

/* A parsed prefix builds the same bytes. */
static void check_rebuild(const struct ps_frame_prefix *p, const uint8_t *in)
{
    uint8_t out[PS_FRAME_PREFIX];

    ps_frame_build(out, p);
    assert(memcmp(out, in, sizeof(out)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ps_decoder *decoder;
    enum ps_role from;
    enum ps_role to;

    if (decoder == NULL) {
        decoder = ps_decoder_new();
        assert(decoder != NULL);
    }
    if (size < 2) {
        return 0;
    }
    from = choose_role(data[0]);
    to = choose_role(data[1]);
    data += 2;
    size -= 2;
    while (size >= PS_FRAME_PREFIX) {
        struct ps_frame_prefix p;
        struct ps_msg msg;

        if (ps_frame_parse(data, &p) != 0) {
            return 0;
        }
        check_rebuild(&p, data);
        if (ps_frame_check(&p, from, to) != 0) {
            return 0;
        }
        assert(ps_msg_allowed(p.code, from, to));
        assert(p.header_len <= PS_HEADER_MAX);
        assert(p.payload_len <= PS_PAYLOAD_MAX);
        data += PS_FRAME_PREFIX;
        size -= PS_FRAME_PREFIX;
        if (p.header_len > size ||
            ps_msg_decode(decoder, p.code, data, p.header_len, &msg) != 0) {
            return 0;
        }
        data += p.header_len;
        size -= p.header_len;
        if (p.payload_len > size) {
            return 0;
        }
        data += p.payload_len;
        size -= p.payload_len;
    }
    return 0;
}
