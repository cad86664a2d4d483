/* SPDX-License-Identifier: Apache-2.0 */
/* Each read fills up to two places: the destination of the current payload, and
 * the staging buffer for the bytes that follow it. */
#include "net/frame_reader.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/state_table.h"
#include "proto/msg_codec.h"
#include "proto/ps_fixed.h"

#include <string.h>

/* Bytes of staging before the handshake, and after. */
#define STAGING_FIRST    4096u
#define STAGING_MAX      (16u * 1024u)
/* Read-ahead behind a large frame: enough for the next header. */
#define STAGING_AHEAD    512u
/* After this many consecutive small frames, read-ahead grows again. Read-ahead
 * before a large frame costs a copy. */
#define SMALL_FRAMES_MAX 16u

static const char *const phase_names[] = {
    [PS_FRAME_HEAD] = "HEAD",           [PS_FRAME_LONG_HEADER] = "LONG_HEADER",
    [PS_FRAME_PAYLOAD] = "PAYLOAD",     [PS_FRAME_PAUSED] = "PAUSED",
    [PS_FRAME_DELIVERED] = "DELIVERED",
};

static const uint32_t successors[] = {
    /* A message of the connection itself is not delivered. */
    [PS_FRAME_HEAD] = PS_STATE_BIT(PS_FRAME_LONG_HEADER) |
                      PS_STATE_BIT(PS_FRAME_PAYLOAD) |
                      PS_STATE_BIT(PS_FRAME_DELIVERED),
    /* The header is complete. */
    [PS_FRAME_LONG_HEADER] = PS_STATE_BIT(PS_FRAME_HEAD),
    [PS_FRAME_PAYLOAD] = PS_STATE_BIT(PS_FRAME_PAUSED) |
                         PS_STATE_BIT(PS_FRAME_DELIVERED),
    /* The user has memory again. */
    [PS_FRAME_PAUSED] = PS_STATE_BIT(PS_FRAME_PAYLOAD),
    [PS_FRAME_DELIVERED] = PS_STATE_BIT(PS_FRAME_HEAD),
};

/* A frame that arrives. */
static const struct ps_state_table phases = {
    .name = "frame being read",
    .states = phase_names,
    .count = sizeof(phase_names) / sizeof(phase_names[0]),
    .allowed = successors,
};

static void set_phase(struct ps_frame_reader *r, enum ps_frame_phase to)
{
    ps_state_change(&phases, &r->phase, (uint8_t)to);
}

void ps_frame_reader_init(struct ps_frame_reader *r, bool in_place)
{
    r->in_place = in_place;
    r->staging_cap = STAGING_FIRST;
    r->staging = ps_alloc(r->staging_cap);
}

void ps_frame_reader_fini(struct ps_frame_reader *r)
{
    ps_msg_free(r->msg);
    ps_free(r->header);
    ps_free(r->staging);
    r->msg = NULL;
    r->header = NULL;
    r->staging = NULL;
}

void ps_frame_reader_grow(struct ps_frame_reader *r)
{
    uint32_t len = ps_frame_reader_staged(r);
    uint8_t *more = ps_alloc(STAGING_MAX);

    memcpy(more, r->staging + r->staging_from, len);
    ps_free(r->staging);
    r->staging = more;
    r->staging_cap = STAGING_MAX;
    r->staging_from = 0;
    r->staging_to = len;
}

/* Bytes between prefix and payload: header and references. */
static uint32_t head_len(const struct ps_frame_reader *r)
{
    return r->prefix.header_len + r->prefix.ref_count * PS_FIXED_SHM_REF_BYTES;
}

static bool is_large(const struct ps_frame_reader *r)
{
    return r->prefix.payload_len >= PS_FRAME_LARGE && r->prefix.ref_count == 0;
}

/* Bytes to read ahead into staging. */
static uint32_t read_ahead_bytes(const struct ps_frame_reader *r)
{
    uint32_t space = r->staging_cap - r->staging_to;
    uint32_t have = ps_frame_reader_staged(r);

    if (r->phase == PS_FRAME_HEAD && have >= PS_FRAME_PREFIX) {
        /* The prefix is parsed: read the rest of the header, and small payloads
         * with it. */
        uint32_t missing = PS_FRAME_PREFIX + head_len(r) - have;

        return (uint32_t)ps_min_u64(is_large(r) ? missing : space, space);
    }
    bool large = r->phase == PS_FRAME_HEAD
                     ? r->small_frames < SMALL_FRAMES_MAX
                     : r->prefix.payload_len >= PS_FRAME_LARGE;

    return (uint32_t)ps_min_u64(large ? STAGING_AHEAD : space, space);
}

int ps_frame_reader_places(struct ps_frame_reader *r, uint64_t most,
                           const struct ps_frame_scratch *scratch,
                           struct iovec iov[2])
{
    int n = 0;
    bool ahead = true;

    if (r->staging_from > 0) {
        memmove(r->staging, r->staging + r->staging_from,
                ps_frame_reader_staged(r));
        r->staging_to -= r->staging_from;
        r->staging_from = 0;
    }
    if (!r->in_place) {
        iov[0] = (struct iovec){r->staging + r->staging_to,
                                r->staging_cap - r->staging_to};
        return 1;
    }
    if (r->phase == PS_FRAME_LONG_HEADER) {
        iov[n++] = (struct iovec){r->header + r->header_got,
                                  head_len(r) - r->header_got};
    } else if (r->phase == PS_FRAME_PAYLOAD && r->dst != NULL) {
        ahead = r->payload_left <= most;
        iov[n++] = (struct iovec){r->dst, ps_min_u64(r->payload_left, most)};
    } else if (r->phase == PS_FRAME_PAYLOAD) {
        ahead = r->payload_left <= scratch->size;
        iov[n++] = (struct iovec){scratch->bytes,
                                  ps_min_u64(r->payload_left, scratch->size)};
    }
    if (ahead) {
        iov[n++] = (struct iovec){r->staging + r->staging_to,
                                  read_ahead_bytes(r)};
    }
    return n;
}

void ps_frame_reader_advance(struct ps_frame_reader *r, size_t first, size_t n)
{
    first = r->phase != PS_FRAME_HEAD && r->in_place ? ps_min_u64(n, first) : 0;
    if (r->phase == PS_FRAME_LONG_HEADER) {
        r->header_got += (uint32_t)first;
    } else if (r->phase == PS_FRAME_PAYLOAD) {
        r->payload_left -= first;
        r->dst = r->dst != NULL ? r->dst + first : NULL;
    }
    r->staging_to += (uint32_t)(n - first);
}

int ps_frame_reader_prefix(struct ps_frame_reader *r)
{
    if (r->phase == PS_FRAME_LONG_HEADER) {
        return 0;
    }
    if (ps_frame_reader_staged(r) < PS_FRAME_PREFIX) {
        return PS_E_AGAIN;
    }
    return ps_frame_parse(r->staging + r->staging_from, &r->prefix);
}

/* Adds staged bytes to a long header. True: it is complete. */
static bool continue_long_header(struct ps_frame_reader *r)
{
    uint32_t n = (uint32_t)ps_min_u64(ps_frame_reader_staged(r),
                                      head_len(r) - r->header_got);

    memcpy(r->header + r->header_got, r->staging + r->staging_from, n);
    r->header_got += n;
    r->staging_from += n;
    return r->header_got == head_len(r);
}

const uint8_t *ps_frame_reader_header(struct ps_frame_reader *r)
{
    const uint32_t need = PS_FRAME_PREFIX + head_len(r);

    if (r->phase == PS_FRAME_LONG_HEADER) {
        if (!continue_long_header(r)) {
            return NULL;
        }
        set_phase(r, PS_FRAME_HEAD);
        return r->header;
    }
    if (ps_frame_reader_staged(r) >= need) {
        const uint8_t *header = r->staging + r->staging_from + PS_FRAME_PREFIX;

        r->staging_from += need;
        return header;
    }
    if (need > r->staging_cap) {
        r->header = ps_alloc(head_len(r));
        r->header_got = 0;
        r->staging_from += PS_FRAME_PREFIX;
        set_phase(r, PS_FRAME_LONG_HEADER);
        (void)continue_long_header(r);
    }
    return NULL;
}

void ps_frame_reader_free_header(struct ps_frame_reader *r)
{
    ps_free(r->header);
    r->header = NULL;
}

void ps_frame_reader_begin_payload(struct ps_frame_reader *r)
{
    set_phase(r, PS_FRAME_PAYLOAD);
    r->payload_left = r->prefix.payload_len;
}

void ps_frame_reader_pause(struct ps_frame_reader *r, const struct ps_msg *msg)
{
    set_phase(r, PS_FRAME_PAUSED);
    r->msg = ps_msg_dup(msg);
}

void ps_frame_reader_resume(struct ps_frame_reader *r)
{
    set_phase(r, PS_FRAME_PAYLOAD);
}

uint32_t ps_frame_reader_consume(struct ps_frame_reader *r)
{
    uint32_t n = (uint32_t)ps_min_u64(ps_frame_reader_staged(r),
                                      r->payload_left);
    uint32_t copied = 0;

    if (r->dst != NULL && n > 0) {
        memcpy(r->dst, r->staging + r->staging_from, n);
        r->dst += n;
        copied = n;
    }
    r->staging_from += n;
    r->payload_left -= n;
    return copied;
}

void ps_frame_reader_begin_frame(struct ps_frame_reader *r)
{
    set_phase(r, PS_FRAME_DELIVERED);
    r->dst = NULL;
    if (is_large(r)) {
        r->small_frames = 0;
    } else if (r->small_frames < SMALL_FRAMES_MAX) {
        r->small_frames++;
    }
}

void ps_frame_reader_end_frame(struct ps_frame_reader *r)
{
    set_phase(r, PS_FRAME_HEAD);
}
