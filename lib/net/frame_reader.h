/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes to frames. Prefix and header go through a small staging buffer; the
 * payload is read straight to its place, and only payload bytes that arrived
 * together with a header are copied. Knows neither sockets nor the rules of
 * messages: its user reads bytes to the places that it names, then asks what
 * they complete.
 *
 *     ps_frame_reader_places()     ... read ...     ps_frame_reader_advance()
 *     ps_frame_reader_prefix()     check it         ps_frame_reader_header()
 *     decode it                    ps_frame_reader_header_done()
 *     ps_frame_reader_begin_payload()               ps_frame_reader_consume()
 *     ps_frame_reader_begin_frame()   deliver it    ps_frame_reader_end_frame()
 */
#pragma once

#include "base/err.h"
#include "proto/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ps_msg;

/* Least payload of a large frame. */
#define PS_FRAME_LARGE (16u * 1024u)

enum ps_frame_phase {
    PS_FRAME_HEAD,        /* Prefix and header, in staging. */
    PS_FRAME_LONG_HEADER, /* Header too long for staging, in `header`. */
    PS_FRAME_PAYLOAD,     /* Payload, to `dst`; discarded if that is NULL. */
    PS_FRAME_PAUSED,      /* The payload has no place yet. */
    PS_FRAME_DELIVERED,   /* The frame is with the user. */
};

/* Zeroed at first, then ps_frame_reader_init(). */
struct ps_frame_reader {
    uint8_t phase; /* enum ps_frame_phase. */
    /* Payloads are read straight to their place; false: through staging. */
    bool in_place;
    struct ps_frame_prefix prefix;
    uint8_t *staging;
    uint32_t staging_cap;
    uint32_t staging_from;
    uint32_t staging_to;
    uint32_t small_frames; /* Small frames since the last large one. */
    uint8_t *header;
    uint32_t header_got;
    struct ps_msg *msg; /* Decoded header, kept while its payload arrives. */
    uint8_t *dst;
    uint64_t payload_left;
};

void ps_frame_reader_init(struct ps_frame_reader *r, bool in_place);
void ps_frame_reader_fini(struct ps_frame_reader *r);

/* Enlarges staging, after the handshake. */
void ps_frame_reader_grow(struct ps_frame_reader *r);

/* Memory for bytes that are discarded. */
struct ps_frame_scratch {
    void *bytes;
    size_t size;
};

/* Names the places of the next read, with at most `most` bytes of payload;
 * returns their number. */
int ps_frame_reader_places(struct ps_frame_reader *r, uint64_t most,
                           const struct ps_frame_scratch *scratch,
                           struct iovec iov[2]);
/* Counts `n` bytes that were read, of which up to `first` belong to the first
 * place. */
void ps_frame_reader_advance(struct ps_frame_reader *r, size_t first, size_t n);

/* Parses the next prefix; PS_E_AGAIN: more bytes are needed. */
PS_MUST_USE int ps_frame_reader_prefix(struct ps_frame_reader *r);
/* Header and references of the parsed prefix, valid until
 * ps_frame_reader_header_done(); NULL: more bytes are needed. */
const uint8_t *ps_frame_reader_header(struct ps_frame_reader *r);
void ps_frame_reader_free_header(struct ps_frame_reader *r);
static inline void ps_frame_reader_header_done(struct ps_frame_reader *r)
{
    if (r->header != NULL) {
        ps_frame_reader_free_header(r);
    }
}

/* The payload follows. */
void ps_frame_reader_begin_payload(struct ps_frame_reader *r);
/* Waits for a place of the payload, with a copy of the header. */
void ps_frame_reader_pause(struct ps_frame_reader *r, const struct ps_msg *msg);
void ps_frame_reader_resume(struct ps_frame_reader *r);
/* Takes staged bytes of the payload; returns how many it copied to `dst`. */
uint32_t ps_frame_reader_consume(struct ps_frame_reader *r);

/* The frame is complete, and with the user until ps_frame_reader_end_frame(). */
void ps_frame_reader_begin_frame(struct ps_frame_reader *r);
void ps_frame_reader_end_frame(struct ps_frame_reader *r);

static inline uint32_t ps_frame_reader_staged(const struct ps_frame_reader *r)
{
    return r->staging_to - r->staging_from;
}

/* True if part of a prefix or header is there. */
static inline bool ps_frame_reader_in_header(const struct ps_frame_reader *r)
{
    return r->phase == PS_FRAME_LONG_HEADER ||
           (r->phase == PS_FRAME_HEAD && ps_frame_reader_staged(r) > 0);
}

/* True if part of a frame is there. */
static inline bool ps_frame_reader_in_frame(const struct ps_frame_reader *r)
{
    return r->phase != PS_FRAME_HEAD || ps_frame_reader_staged(r) > 0;
}
