/* SPDX-License-Identifier: Apache-2.0 */
/* One connection that carries frames, over TCP or a Unix socket.
 *
 * Input: prefix and header go through a small staging buffer, are checked in
 * the order of proto/msg_codec.h, and are passed to `header`, which returns the
 * place of the payload; the payload is read straight there. Only payload bytes
 * that arrived together with a header are copied, and little is read ahead when
 * frames are large. Output: frames wait in order and are written many per call,
 * header and payload from where they lie. A large payload to a same-host peer
 * (net/shm_peer.h) is sent by reference and counts as queued until the peer
 * releases it. Where there is an I/O pool (net/io_pool.h), its threads read and
 * write the large payloads of TCP connections; checks, frames and callbacks
 * stay on the loop thread.
 *
 * Reasons for closing: the peer closes (PS_E_CLOSED); a malformed or forbidden
 * frame (PS_E_PROTO, PS_E_PERM, PS_E_TOOBIG, PS_E_VERSION); no handshake or an
 * incomplete header for too long (PS_E_TIMEOUT); more queued output than
 * allowed, or no progress of it for too long (PS_E_FULL, PS_E_TIMEOUT); a
 * failed system call, or a wrong checksum (PS_E_IO ...); or this side closes.
 * ps_conn_reason() returns the text.
 *
 * Callbacks run from the loop and inside ps_conn_resume(); a frame's `done`
 * also inside ps_conn_flush(). Each may close the connection. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/time.h"
#include "net/tcp.h"
#include "net/transport.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_arenas;
struct ps_loop;
struct ps_io_pool;
struct ps_conn;
struct ps_tls_session;

#define PS_CONN_PEER_MAX   320u
#define PS_CONN_REASON_MAX 160u

struct ps_conn_ops {
    /* A frame with `len` > 0 payload bytes begins. 0 with *ret_dst: payload is
     * read to there; the memory stays valid until `frame` or `closed`.
     * PS_E_AGAIN: reading pauses until ps_conn_resume(), which calls this
     * again. Other codes: payload is read and discarded. `msg` is borrowed. */
    int (*header)(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                  uint64_t len, void **ret_dst);
    /* A whole frame has arrived; `msg` is borrowed. */
    void (*frame)(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                  uint64_t len);
    /* Output progressed, other than by ps_conn_flush(); `queued` bytes
     * remain. */
    void (*sent)(void *ctx, struct ps_conn *c, uint64_t queued);
    /* Last callback; ps_conn_free() is allowed from now on. */
    void (*closed)(void *ctx, struct ps_conn *c, int rc);
};

struct ps_conn_limits {
    ps_time handshake_timeout; /* To complete the handshake; 0: 5 s. */
    /* From a header's first byte to its last; 0: 10 s. */
    ps_time header_timeout;
    ps_time stall_timeout; /* Queued output without progress; 0: 60 s. */
    /* Wait for the peer to close after this side did; 0: 1 s. */
    ps_time linger_timeout;
    /* Limit on queued bytes; 0: 1 GiB. 256 KiB at most before the handshake. */
    uint64_t output_max;
};

/* Whether this side wants checksums in the frames of a connection by plain TCP
 * (rules F4 to F7). */
enum ps_conn_checksums {
    PS_CONN_CHECKSUMS_AUTO, /* If the peer is on another host. */
    PS_CONN_CHECKSUMS_WANTED,
    PS_CONN_CHECKSUMS_UNWANTED,
};

struct ps_conn_options {
    struct ps_loop *loop;
    int fd; /* Connected socket; owned by the connection if open succeeds. */
    const char *peer; /* Name of the peer for logs. */
    enum ps_role self;
    uint32_t peer_roles; /* Roles that the peer may have: bits 1 << role. */
    bool dialled;        /* This side sends its handshake first. */
    bool local;          /* Unix socket that passes descriptors. */
    /* Unix socket to a same-host peer (net/shm_peer.h): payloads are sent by
     * reference where the receiver can read this memory. */
    bool is_shm;
    /* Bytes in and out, and their state; NULL: without encryption. */
    const struct ps_transport_ops *transport;
    void *transport_ctx;
    /* Arenas that a same-host peer may map; NULL: none. */
    struct ps_arenas *arenas;
    struct ps_io_pool *io_pool; /* I/O threads for TCP; NULL: none. */
    enum ps_conn_checksums checksums;
    enum ps_tcp_kind tcp;
    uint32_t receive_buffer; /* SO_RCVBUF; 0: chosen by the system. */
    uint32_t send_buffer;
    struct ps_conn_limits limits;
    const struct ps_conn_ops *ops;
    void *ctx;
};

PS_MUST_USE int ps_conn_open(const struct ps_conn_options *opt,
                             struct ps_conn **ret_conn);
/* Requires that `closed` has run. */
void ps_conn_free(struct ps_conn *c);

/* A frame to write. `slices` must stay valid until `done`, which runs once the
 * kernel or a same-host peer has all bytes, or the connection is closed. */
struct ps_conn_frame {
    const struct ps_msg *msg; /* Encoded by ps_conn_send(); not kept. */
    const struct ps_slice *slices;
    uint32_t slice_count;
    uint64_t memory; /* Bytes that `done` releases, for ps_conn_output(). */
    /* Of a message without payload for several peers: its body, encoded by the
     * first ps_conn_send() and kept until `done`, then freed with ps_free().
     * NULL: the frame has the whole message. */
    struct ps_msg_body **body;
    int pass_fd; /* Descriptor to pass along, duplicated; -1: none. */
    /* Goes ahead of all frames that have not begun, except a handshake, and
     * replaces an urgent frame that waits. Has neither payload nor
     * descriptor. */
    bool is_urgent;
    void (*done)(void *ctx);
    void *ctx;
};

/* Queues a frame at the end, or ahead if it is urgent; ps_conn_flush() writes.
 * On failure `done` is not called: PS_E_CLOSED; PS_E_FULL, and the connection
 * closes; encoder errors leave the connection open. */
PS_MUST_USE int ps_conn_send(struct ps_conn *c,
                             const struct ps_conn_frame *frame);
/* Writes as much as the kernel accepts; the rest follows from the loop. To be
 * called when a batch is complete. True if any byte was written. */
bool ps_conn_flush(struct ps_conn *c);
/* The same, and calls `sent` if any byte was written and the connection is
 * open, which it returns. */
bool ps_conn_flush_and_report(struct ps_conn *c);

/* Continues after `header` returned PS_E_AGAIN: calls it again and handles the
 * input that has arrived. Not from a callback. */
void ps_conn_resume(struct ps_conn *c);

/* Writes the queued output, then closes. Input is discarded, and no payload
 * memory is written any more. */
void ps_conn_finish(struct ps_conn *c);
/* Closes now. `rc` and `reason` are for `closed` and the log; both are ignored
 * if the connection is closing already. */
void ps_conn_close(struct ps_conn *c, int rc, const char *reason);

/* The peer's process has ended: reads what it wrote before, then closes, even
 * if another process holds a copy of the socket. Not from a callback. */
void ps_conn_peer_ended(struct ps_conn *c);

/* Sets the version agreed on in the handshake. */
void ps_conn_set_protocol(struct ps_conn *c, uint16_t protocol);

/* Same-host only: queues notices of freed arenas for the next flush. True if it
 * queued any. */
bool ps_conn_send_freed_arenas(struct ps_conn *c);

/* Only inside `frame`: oldest descriptor that came with it, owned by the
 * caller; -1: none. A descriptor left unclaimed closes the connection. */
int ps_conn_pop_fd(struct ps_conn *c);

/* Time for which TCP has had no acknowledgement of written bytes from the
 * peer's host; 0: nothing is outstanding. Measured between calls, so call it a
 * few times a second. */
ps_time ps_conn_unacked(struct ps_conn *c);

struct ps_conn_losses {
    uint64_t sent;          /* Bytes since the connection was made. */
    uint64_t retransmitted; /* Bytes of `sent` that were retransmissions. */
    bool slows_on_loss; /* Congestion control reduces the rate at each loss. */
};
/* False if the connection is not far (net/tcp.h), or the kernel does not
 * count. */
bool ps_conn_losses(const struct ps_conn *c, struct ps_conn_losses *ret_losses);

/* Neither finishing nor closing. */
bool ps_conn_is_open(const struct ps_conn *c);
bool ps_conn_is_handshake_done(const struct ps_conn *c);
bool ps_conn_is_paused(const struct ps_conn *c);
/* After the handshake. */
enum ps_role ps_conn_peer_role(const struct ps_conn *c);

struct ps_conn_output {
    bool is_open;    /* As ps_conn_is_open(). */
    uint64_t queued; /* Bytes not written, and payloads not released. */
    /* Bytes of memory that queued and unreleased frames take: blocks of frames,
     * and the `memory` of each frame. */
    uint64_t memory;
    /* Large payloads are sent by reference: the peer reported that it can read
     * them. */
    bool is_by_reference;
};
struct ps_conn_output ps_conn_output(const struct ps_conn *c);

const char *ps_conn_peer(const struct ps_conn *c);
/* NULL: the connection is not encrypted. */
const struct ps_tls_session *ps_conn_session(const struct ps_conn *c);
/* Reason for closing, of up to PS_CONN_REASON_MAX bytes; "" before. */
const char *ps_conn_reason(const struct ps_conn *c);

struct ps_conn_stats {
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t frames_in; /* Including the one being delivered. */
    uint64_t reads;     /* System calls. */
    uint64_t writes;
    uint64_t copied;        /* Payload bytes that passed through staging. */
    uint64_t by_reference;  /* Payload bytes copied from the peer's memory. */
    uint64_t moved_by_pool; /* Bytes received and sent by I/O threads. */
    uint64_t corrupt; /* Frames with a wrong checksum; the first one closes. */
};
void ps_conn_stats(const struct ps_conn *c, struct ps_conn_stats *ret_stats);
