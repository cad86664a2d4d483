/* SPDX-License-Identifier: Apache-2.0 */
/* One connection that carries frames, over TCP or a Unix socket.
 *
 * Coming in: prefix and header go through a small staging buffer, are checked
 * in the order of proto/msg_codec.h, and handed to `header`, which says where
 * the payload is to lie; it is read straight there. Only payload bytes that
 * came along with a header are copied, and little is read ahead when frames
 * are large. Going out: frames wait in order and are written many at a time,
 * header and payload from where they lie. Where the peer is near (net/shm_peer.h)
 * a large payload is pointed at instead, and counts as queued until the peer
 * says that it has it. Where there are further loops (net/io_pool.h) they read
 * and write what is large of TCP connections; checks, frames and callbacks
 * stay on this one.
 *
 * What closes a connection: the peer does (PS_E_CLOSED); a malformed or
 * forbidden frame (PS_E_PROTO, PS_E_PERM, PS_E_TOOBIG, PS_E_VERSION); no
 * greeting or half a header for too long (PS_E_TIMEOUT); more output waiting
 * than allowed, or none taken for too long (PS_E_FULL, PS_E_TIMEOUT); a failed
 * system call (PS_E_IO ...); or we do. ps_conn_reason() has the words.
 *
 * Callbacks run from the loop, and inside ps_conn_resume(); a frame's `done`
 * also inside ps_conn_flush(). Each may close the connection. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/time.h"
#include "net/tcp.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_arenas;
struct ps_loop;
struct ps_io_pool;
struct ps_conn;

#define PS_CONN_PEER_MAX 320u
/* Descriptors that may wait for the message they belong to. */
#define PS_CONN_FDS_MAX  16u

struct ps_conn_ops {
    /* A frame with `len` > 0 payload bytes begins. 0 with *ret_dst: read them
     * there; the memory stays until `frame` or `closed`. PS_E_AGAIN: read no
     * further until ps_conn_resume(), which asks again. Anything else: read
     * them and throw them away. `msg` is borrowed. */
    int (*header)(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                  uint64_t len, void **ret_dst);
    /* A whole frame has arrived; `msg` is borrowed. */
    void (*frame)(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                  uint64_t len);
    /* Bytes went to the kernel by themselves; `queued` are left. */
    void (*sent)(void *ctx, struct ps_conn *c, uint64_t queued);
    /* The last of all; ps_conn_free() may be called from now on. */
    void (*closed)(void *ctx, struct ps_conn *c, int rc);
};

struct ps_conn_limits {
    ps_time greeting_timeout; /* To finish the greeting; 0: 5 s. */
    ps_time
        header_timeout; /* From a header's first byte to its last; 0: 10 s. */
    ps_time stall_timeout;  /* Output waits and none is taken; 0: 60 s. */
    ps_time linger_timeout; /* For the peer to close after us; 0: 1 s. */
    uint64_t output_max; /* Bytes waiting; 0: 1 GiB. Before the greeting it is
                          * 256 KiB at most. */
};

struct ps_conn_options {
    struct ps_loop *loop;
    int fd; /* Connected; the connection owns it when open succeeds. */
    const char *peer; /* For humans. */
    enum ps_role self;
    uint32_t peer_roles; /* Bits 1 << role: what the peer may be. */
    bool dialled;        /* We greet first and are answered. */
    bool local;          /* A Unix socket: takes and sends descriptors. */
    bool
        is_shm; /* A Unix socket to a peer of net/shm_peer.h: payloads are pointed
                * at where the receiver can read our memory. */
    struct ps_arenas *arenas;   /* Near: which it may map; NULL: none. */
    struct ps_io_pool *io_pool; /* For TCP; NULL: none. */
    enum ps_tcp_kind tcp;
    uint32_t receive_buffer; /* SO_RCVBUF; 0: the system decides. */
    uint32_t send_buffer;
    struct ps_conn_limits limits;
    const struct ps_conn_ops *ops;
    void *ctx;
};

PS_MUST_USE int ps_conn_open(const struct ps_conn_options *opt,
                             struct ps_conn **ret_conn);
/* Only after `closed`. */
void ps_conn_free(struct ps_conn *c);

/* A frame to write. `slices` must stay until `done`, which runs once the
 * kernel or a near peer has all of it, or the connection has closed. */
struct ps_conn_frame {
    const struct ps_msg *msg; /* Encoded here; not kept. */
    const struct ps_slice *slices;
    uint32_t slice_count;
    uint64_t memory; /* That `done` gives back, for ps_conn_memory(). */
    int pass_fd;     /* Travels beside it; -1: none. Duplicated. */
    bool
        is_urgent; /* Of all that has not begun, but for a greeting, and in place
                  * of another such frame. Without payload and descriptor. */
    void (*done)(void *ctx);
    void *ctx;
};

/* Puts a frame at the end of the queue, or ahead; ps_conn_flush() writes. On
 * failure `done` is not called: PS_E_CLOSED; PS_E_FULL, and the connection
 * closes; errors of the encoder, and the connection stays. */
PS_MUST_USE int ps_conn_send(struct ps_conn *c,
                             const struct ps_conn_frame *frame);
/* Hands to the kernel what it takes; what is left goes by itself. Call it when
 * a batch is complete. True when any byte went. */
bool ps_conn_flush(struct ps_conn *c);

/* After `header` said PS_E_AGAIN: asks it again, and goes on with what has
 * arrived already. Not from a callback. */
void ps_conn_resume(struct ps_conn *c);

/* Writes what is queued, then closes; input is thrown away meanwhile, and
 * nothing more is written to where a payload was to lie. */
void ps_conn_finish(struct ps_conn *c);
/* Closes now. The words are for the log; both are ignored when it is closing
 * already. */
void ps_conn_close(struct ps_conn *c, int rc, const char *reason);

/* The peer's process has ended: what it wrote before is taken, then the
 * connection closes, though others may hold a copy of the socket. Not from a
 * callback. */
void ps_conn_peer_ended(struct ps_conn *c);

/* The version agreed on in the greeting. */
void ps_conn_set_protocol(struct ps_conn *c, uint16_t protocol);

/* Near: tell the peer of arenas that are no more, with the next flush. True:
 * there is something to flush. */
bool ps_conn_send_freed_arenas(struct ps_conn *c);

/* In `frame`: the oldest descriptor that came with it, now the caller's; -1:
 * there is none. One that nobody takes closes the connection. */
int ps_conn_pop_fd(struct ps_conn *c);

/* For how long the host at the other end has acknowledged nothing of what was
 * written, by TCP; 0: nothing is outstanding. Counts from one question to the
 * next: it is to be asked a few times a second. */
ps_time ps_conn_unacked(struct ps_conn *c);

struct ps_conn_losses {
    uint64_t sent;          /* Bytes since the connection was made, */
    uint64_t retransmitted; /* and those of them that were retransmissions. */
    bool slows_on_loss; /* The congestion control reduces the rate at each. */
};
/* False: the connection is not far (net/tcp.h), or the kernel does not count. */
bool ps_conn_losses(const struct ps_conn *c, struct ps_conn_losses *ret_losses);

bool ps_conn_is_open(const struct ps_conn *c); /* Not closing either. */
bool ps_conn_is_greeted(const struct ps_conn *c);
bool ps_conn_is_paused(const struct ps_conn *c);
/* Large payloads are pointed at: the peer said that it can read them. */
bool ps_conn_refers_to_arenas(const struct ps_conn *c);
enum ps_role ps_conn_peer_role(const struct ps_conn *c); /* Once greeted. */
uint64_t ps_conn_queued(const struct ps_conn *c);
/* Bytes of memory that output takes which waits, or which the peer points at:
 * blocks of frames, and what each frame said that it keeps. */
uint64_t ps_conn_memory(const struct ps_conn *c);
/* Frames that have arrived, the one that is being delivered included. */
uint64_t ps_conn_frames(const struct ps_conn *c);
const char *ps_conn_peer(const struct ps_conn *c);
/* Why it closed; "" before. */
const char *ps_conn_reason(const struct ps_conn *c);

struct ps_conn_stats {
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t frames_in;
    uint64_t frames_out;
    uint64_t reads; /* System calls. */
    uint64_t writes;
    uint64_t copied;        /* Payload bytes that passed through staging. */
    uint64_t by_reference;  /* Payload bytes copied from the peer's memory. */
    uint64_t moved_by_pool; /* Bytes in and out by further loops. */
};
void ps_conn_stats(const struct ps_conn *c, struct ps_conn_stats *ret_stats);
