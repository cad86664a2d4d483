/* SPDX-License-Identifier: Apache-2.0 */
/* Frames to bytes. A queued frame is a small block with its encoded header and
 * the place of its payload; many are written per call. A frame with a
 * descriptor begins a call of its own, so that the descriptor arrives with its
 * first byte. A frame by reference stays in memory until the peer releases it.
 * Knows no sockets: its user writes the bytes that it gathers. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ps_msg;
struct ps_msg_body;

/* Memory pieces written by one call. */
#define PS_FRAME_IOV_MAX 128

enum ps_frame_order {
    PS_FRAME_IN_ORDER,
    PS_FRAME_HANDSHAKE, /* Handshake: no frame overtakes it. */
    PS_FRAME_URGENT,    /* Goes ahead of all frames that have not begun. */
};

struct ps_out_frame {
    struct ps_list_node node;
    const struct ps_slice *slices;
    uint32_t slice_count;
    uint32_t header_len;
    /* The rest of the header, which frames to several peers share; NULL:
     * none. */
    const struct ps_msg_body *body;
    /* Bytes to write: header, body, and payload or references. */
    uint64_t len;
    uint64_t memory; /* Bytes released with the frame. */
    int pass_fd;     /* -1: none, or sent already. */
    /* Payload is sent by reference. Placed without padding: thousands of frames
     * may wait. */
    bool by_reference;
    uint8_t order; /* enum ps_frame_order. */
    void (*done)(void *ctx);
    void *ctx;
    uint8_t header[];
};

struct ps_frame_writer {
    uint16_t protocol; /* Version in which headers are encoded. */
    struct ps_list out;
    uint64_t written; /* Bytes of the first frame that are written. */
    /* Bytes not written, and payloads not released. */
    uint64_t queued;
    uint64_t queued_memory; /* Memory of all queued and unreleased frames. */
    /* Frames written by reference that the peer has not released. */
    struct ps_list unreleased;
    uint64_t unreleased_bytes;
};

void ps_frame_writer_init(struct ps_frame_writer *w, uint16_t protocol);
/* Calls `done` of all frames. */
void ps_frame_writer_fini(struct ps_frame_writer *w);

/* Allocates a frame with its encoded header and `extra` bytes behind it. Most
 * headers are far shorter than their bound and are encoded in `scratch` first,
 * of PS_LOOP_SCRATCH bytes: many frames may wait for a peer, and each should
 * take only the memory it needs. NULL: a short message, encoded in place. All
 * other members are zero, but for the lengths. */
PS_MUST_USE int ps_out_frame_new(const struct ps_frame_writer *w,
                                 const struct ps_msg *msg, uint64_t payload_len,
                                 size_t extra, void *scratch,
                                 struct ps_out_frame **ret_frame);
/* The same for a message without payload, of which others have the body;
 * *body is encoded if it is NULL. */
PS_MUST_USE int ps_out_frame_new_shared(const struct ps_frame_writer *w,
                                        const struct ps_msg *msg,
                                        struct ps_msg_body **body,
                                        struct ps_out_frame **ret_frame);
/* Bytes of a payload sent by reference; 0: it is sent otherwise. */
static inline uint64_t ps_out_frame_referenced(const struct ps_out_frame *f)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; f->by_reference && i < f->slice_count; i++) {
        sum += f->slices[i].len;
    }
    return sum;
}

/* Queues a frame at the end; an urgent one before the first frame that has not
 * begun, where it replaces urgent frames that wait. `in_flight` bytes beyond
 * `written` have begun, too. */
void ps_frame_writer_push(struct ps_frame_writer *w, struct ps_out_frame *f,
                          uint64_t in_flight);
/* Gathers queued frames up to `most` bytes, and the rest of the last one;
 * returns the number of pieces. */
int ps_frame_writer_gather(const struct ps_frame_writer *w, uint64_t most,
                           struct iovec iov[PS_FRAME_IOV_MAX]);
/* Descriptor that travels with the next byte; -1: none. */
int ps_frame_writer_fd(const struct ps_frame_writer *w);
/* Counts `n` written bytes. */
void ps_frame_writer_advance(struct ps_frame_writer *w, uint64_t n);
/* Releases the oldest `count` payloads sent by reference. False: fewer are
 * outstanding. */
bool ps_frame_writer_release(struct ps_frame_writer *w, uint64_t count);
