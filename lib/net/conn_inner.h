/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of a connection: conn.c holds its lifecycle and
 * deadlines, conn_read.c and conn_write.c its two directions, frame_writer.c the
 * queue of the output, shm_peer.c payloads by reference, tcp.c what TCP needs. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"
#include "net/conn.h"
#include "net/io_pool.h"
#include "net/loop.h"
#include "net/tcp.h"
#include "net/transport.h"
#include "proto/frame.h"
#include "proto/ps_fixed.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <uv.h>

struct ps_arenas;
struct ps_map;
struct ps_msg;
struct ps_msg_body;

/* ---------------------------------- deadlines, all on one timer of the loop */

enum conn_deadline {
    CONN_DUE_CLOSE,     /* To close, after the last write or its failure. */
    CONN_DUE_HANDSHAKE, /* To complete the handshake. */
    CONN_DUE_HEADER,    /* To complete a header. */
    CONN_DUE_STALL,     /* To accept queued output. */
    CONN_DUE_PAYLOAD,   /* To continue a payload. */
    CONN_DUE_READ,      /* To read bytes that the loop does not see. */
    CONN_DEADLINES,
};

struct conn_timers {
    struct ps_loop_timer timer;
    ps_time armed;               /* For the earliest deadline or before. */
    ps_time due[CONN_DEADLINES]; /* PS_TIME_NEVER: not set. */
};

/* --------------------------------------------------- input: bytes to frames */

enum ps_frame_phase {
    PS_FRAME_HEAD,        /* Prefix and header, in staging. */
    PS_FRAME_LONG_HEADER, /* Header too long for staging, in `header`. */
    PS_FRAME_PAYLOAD,     /* Payload, to `dst`; discarded if that is NULL. */
    PS_FRAME_PAUSED,      /* The payload has no place yet. */
    PS_FRAME_DELIVERED,   /* The frame is with the user. */
};

/* Zeroed at first, then ps_frame_reader_init(). */
struct ps_frame_reader {
    uint8_t phase;      /* enum ps_frame_phase. */
    bool is_large;      /* The payload is read straight to its place. */
    bool has_checksums; /* As the frame in progress has them. */
    struct ps_frame_prefix prefix;
    /* Of the frame in progress. */
    struct ps_fixed_frame_checksums checksums;
    /* Bytes after the prefix: checksums, header and references. */
    uint32_t head_len;
    uint8_t *staging;
    uint32_t staging_cap;
    uint32_t staging_from; /* Place of the first byte not parsed. */
    uint32_t staged;       /* Number of bytes not parsed. */
    uint32_t small_frames; /* Small frames since the last large one. */
    uint8_t *header;
    uint32_t header_got;
    struct ps_msg *msg; /* Decoded header, kept while its payload arrives. */
    uint8_t *dst;
    uint64_t payload_left;
};

void ps_frame_reader_init(struct ps_frame_reader *r);
void ps_frame_reader_fini(struct ps_frame_reader *r);

/* -------------------------------------------------- output: frames to bytes */

/* Memory pieces written by one call. */
#define PS_FRAME_IOV_MAX 128

enum ps_frame_order {
    PS_FRAME_IN_ORDER,
    PS_FRAME_HANDSHAKE, /* Handshake: no frame overtakes it. */
    PS_FRAME_AHEAD,     /* Goes ahead of all frames that have not begun. */
    PS_FRAME_URGENT,    /* The same, and replaces an urgent one that waits. */
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

/* Pieces of memory that one call writes. */
struct ps_frame_batch {
    int count;   /* Number of pieces. */
    int pass_fd; /* Descriptor that travels with the first byte; -1: none. */
    uint64_t bytes;
    struct iovec iov[PS_FRAME_IOV_MAX];
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
                                        const struct ps_msg *msg, size_t extra,
                                        struct ps_msg_body **body,
                                        struct ps_out_frame **ret_frame);
/* Inserts the checksums of header and payload (rule F4), for which the frame has
 * space. */
void ps_out_frame_add_checksums(struct ps_out_frame *f);
/* That of a header of `len` bytes. */
uint64_t ps_frame_header_checksum(const struct ps_frame_prefix *prefix,
                                  const void *header, size_t len);

/* Queues a frame at the end; one that goes ahead before the first frame that has
 * not begun, where an urgent one replaces urgent frames that wait. `in_flight`
 * bytes beyond `written` have begun, too. */
void ps_frame_writer_push(struct ps_frame_writer *w, struct ps_out_frame *f,
                          uint64_t in_flight);
/* Gathers queued frames up to `most` bytes, and the rest of the last one. No
 * pieces: nothing is queued, or it waits for releases. */
void ps_frame_writer_gather(const struct ps_frame_writer *w, uint64_t most,
                            struct ps_frame_batch *ret_batch);
/* Counts `n` written bytes. */
void ps_frame_writer_advance(struct ps_frame_writer *w, uint64_t n);
/* Releases the oldest `count` payloads sent by reference. False: fewer are
 * outstanding. */
bool ps_frame_writer_release(struct ps_frame_writer *w, uint64_t count);

/* --------------------------------------------------------- a same-host peer */

/* Payloads sent by reference in both directions, the arenas that they lie in, and
 * the messages about both, which the connection's user does not see (rule S9). */

/* Capabilities of a peer, as bits. */
enum conn_shm_cap {
    CONN_SHM_KNOWN = 1,        /* The peer has sent its capabilities. */
    CONN_SHM_READS_MEMORY = 2, /* The peer can read this process's memory. */
    CONN_SHM_MAPS_ARENAS = 4,
};

struct conn_shm {
    /* Input. */
    uint32_t process; /* Process whose memory is readable here; 0: none. */
    /* Mapped arenas of the peer; NULL: none so far. */
    struct ps_map *peer_arenas;
    struct ps_fixed_shm_ref refs[PS_FRAME_REFS_MAX];
    /* Referenced payloads copied and not yet reported as released. */
    uint32_t to_release;
    uint64_t to_release_bytes;

    /* Output. */
    uint8_t peer_caps; /* enum conn_shm_cap. */
    bool may_refer;    /* The peer can read this process's memory or arenas. */
    struct ps_frame_writer *writer;
    struct ps_arenas *arenas;   /* Arenas that the peer may map; NULL: none. */
    struct ps_map *arenas_sent; /* Numbers of arenas announced to the peer. */
    /* ps_arenas_freed_count() at the last notice of freed arenas. */
    uint64_t arenas_freed_seen;
};

/* `fd` is the socket of the connection that `writer` belongs to. */
struct conn_shm *conn_shm_new(int fd, struct ps_arenas *arenas,
                              struct ps_frame_writer *writer);
/* NULL is allowed. */
void conn_shm_free(struct conn_shm *s);

/* Handles a message about shared memory. Its descriptors come from `t`. Errors close the
 * connection, with the reason in *ret_why. */
PS_MUST_USE int conn_shm_accept(struct conn_shm *s, struct ps_transport *t,
                                const struct ps_msg *msg, const char **ret_why);

/* Parses the references after a header, of which there are some. False: one is malformed, or their
 * lengths do not match the payload's. */
bool conn_shm_parse_refs(struct conn_shm *s,
                         const struct ps_frame_prefix *prefix,
                         const uint8_t *at);
/* Copies a payload of `len` bytes that was sent by reference; NULL: nowhere.
 * PS_E_CLOSED: the peer closed its end meanwhile and may have reused the memory;
 * PS_E_PROTO: not memory of the peer. `dst` is undefined after an error. */
PS_MUST_USE int conn_shm_read(struct conn_shm *s, int fd, unsigned ref_count,
                              void *dst, uint64_t len);

/* A release is sent at the latest after this many bytes. */
#define CONN_SHM_RELEASE_BYTES (512u * 1024u)

/* Queues the report of the released payloads, of which there are some, ahead of
 * payloads that wait for the peer's report (rule S7a). */
void conn_shm_send_release(struct conn_shm *s);
/* Queues a message with this side's capabilities. */
void conn_shm_send_caps(struct conn_shm *s);
/* Queues notices of freed arenas; true if there was any. */
bool conn_shm_send_freed_arenas(struct conn_shm *s);
/* Space that a frame has for references. */
#define CONN_SHM_REFS_BYTES (PS_FRAME_REFS_MAX * PS_FIXED_SHM_REF_BYTES)
/* Replaces the payload of a frame by references to its place, where that is
 * possible. Requires `may_refer`, and the space. */
void conn_shm_refer(struct conn_shm *s, struct ps_out_frame *f,
                    uint64_t payload_len);

/* ------------------------------------------------------------- a connection */

/* In the order of a connection's life: before CONN_CLOSING it uses its
 * socket. */
enum conn_state {
    CONN_OPEN,
    CONN_FINISHING, /* Writes queued output; discards input. */
    CONN_CLOSING,
    CONN_DETACHED, /* The loop has left the socket. */
    CONN_CLOSED,
};

/* States of the output. */
enum conn_output {
    CONN_WRITABLE,
    CONN_BLOCKED, /* The kernel's buffer is full; waits for writability. */
    CONN_FAILED,  /* A write failed; nothing more can be written. */
    CONN_SHUT,    /* All output is written, and the write side is shut down. */
};

/* Checksums of frames, which hello and welcome agree on (rule F5). */
enum conn_checksums {
    CONN_CHECKSUMS_NONE,
    CONN_CHECKSUMS_ASKED, /* By this side, or by the peer's hello. */
    CONN_CHECKSUMS_ON,    /* Each frame from now on has them. */
};

/* Tasks that are in flight in the I/O threads; none without a pool. Meanwhile
 * the loop thread does not read, or write. A transport that one thread at a time
 * may use belongs to the I/O thread then: input and output that come in the
 * meantime, of any size, are tasks, too. */
struct conn_pool_use {
    bool receives;
    bool sends;
};

/* The I/O tasks of a connection: `in` fills the payload's place and then
 * staging, `out` sends the first frames of the queue. */
struct conn_io {
    struct ps_conn *conn;
    struct ps_io_pool *pool;
    struct ps_io_socket socket;
    struct ps_io_task in;
    size_t in_first; /* Bytes of the first place of `in`. */
    void *discarded; /* Place of bytes that are discarded; NULL: not needed. */
    struct ps_io_task out;
    struct iovec in_iov[2];
    struct iovec out_iov[PS_FRAME_IOV_MAX];
};

struct ps_conn {
    struct ps_loop *loop;
    const struct ps_loop_shared *shared;
    const struct ps_conn_ops *ops;
    void *ctx;
    struct ps_conn_limits limits;
    enum ps_role self;
    uint32_t peer_roles;
    bool dialled;
    bool is_handshake_done;
    bool peer_ended;
    uint8_t state;     /* enum conn_state. */
    uint8_t output;    /* enum conn_output. */
    uint8_t checksums; /* enum conn_checksums. */
    int write_error;   /* errno of a failed write. */
    int rc;
    uv_poll_t poll;
    int polled_events;  /* Events that the poll handle watches. */
    struct conn_io *io; /* NULL: all I/O is done on the loop thread. */
    struct conn_pool_use pool;
    struct ps_transport transport;
    struct ps_frame_reader reader;
    struct ps_frame_writer writer;
    struct conn_timers timers;
    struct conn_shm *shm; /* NULL: the peer is none of the same host. */
    struct conn_tcp tcp;
    struct ps_conn_stats stats;
    char peer[PS_CONN_PEER_MAX];
    char reason[PS_CONN_REASON_MAX];
};

/* conn.c */
void conn_update_poll(struct ps_conn *c);
/* Sets a deadline. One that is cancelled, by PS_TIME_NEVER in its place, or
 * moved back leaves the timer as it is, and the timer finds nothing due: no heap
 * operation per frame. */
void conn_set_due(struct ps_conn *c, enum conn_deadline which, ps_time at);
/* Closes with the error text of a failed system call. */
void conn_fail(struct ps_conn *c, int errnum);
/* Completes a close as soon as the poll handle is closed and no I/O task is in
 * flight. */
void conn_maybe_closed(struct ps_conn *c);

/* conn_read.c */
void conn_readable(struct ps_conn *c);

/* conn_write.c */
/* The socket accepts output again. */
void conn_writable(struct ps_conn *c);
/* Writes within the slot's share of the link. */
void conn_write_slot(struct ps_send_slot *slot);
