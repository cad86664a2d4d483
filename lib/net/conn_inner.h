/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the three files of a connection: conn.c holds its lifecycle,
 * conn_read.c and conn_write.c its two directions. */
#pragma once

#include "base/list.h"
#include "net/conn.h"
#include "net/rcvbuf_tuner.h"
#include "net/loop.h"
#include "net/io_pool.h"
#include "net/shm_peer.h"
#include "net/send_scheduler.h"
#include "proto/frame.h"

#include <stddef.h>
#include <uv.h>

/* Bytes of staging before the handshake, and after. */
#define STAGING_FIRST      4096u
#define STAGING_MAX        (16u * 1024u)
/* Read-ahead behind a large frame: enough for the next header. */
#define STAGING_AHEAD      512u
#define FRAME_LARGE        (16u * 1024u)
/* After this many consecutive small frames, read-ahead grows again. Read-ahead
 * before a large frame costs a copy. */
#define SMALL_FRAMES_MAX   16u
/* Least payload sent by reference; below it, writing is cheaper. */
#define SHM_REF_MIN        (8u * 1024u)
/* Limit on unreleased bytes sent by reference, so that the peer's other
 * connections get served in between. */
#define SHM_UNRELEASED_MAX (4u * 1024u * 1024u)
/* A release is sent at the latest after this many bytes. */
#define SHM_RELEASE_BYTES  (512u * 1024u)

enum conn_state {
    CONN_OPEN,
    CONN_FINISHING, /* Writes queued output; discards input. */
    CONN_CLOSING,
    CONN_CLOSED,
};

enum conn_phase {
    PHASE_HEAD,    /* Prefix and header, in staging. */
    PHASE_HEADER,  /* Header too long for staging, in `header`. */
    PHASE_PAYLOAD, /* Payload, to `dst`; discarded if that is NULL. */
};

struct arrived_fd {
    int fd;
    uint64_t end; /* Stream position after the read that brought it. */
};

/* Bytes out before the first check of the round trip. The handshake's own
 * samples may include a queue. */
#define FAR_LOOK_FIRST (64u * 1024u)
/* Memory pieces written by one call. */
#define CONN_IOV       128
/* Bytes of one send task, so that other sockets get served and sent frames are
 * released. */
#define IO_TASK_MAX    (1024u * 1024u)

/* State of a connection's I/O tasks. While a task is in flight the loop thread
 * does not read, or write; `in` fills `dst` and then staging, `out` sends the
 * first frames of the queue. */
struct conn_io {
    struct ps_conn *conn;
    struct ps_io_pool *pool;
    struct ps_io_socket socket;
    bool receives;
    bool sends;
    struct ps_io_task in;
    struct ps_io_task out;
    struct iovec in_iov[2];
    struct iovec out_iov[CONN_IOV];
};

struct ps_conn {
    struct ps_loop *loop;
    const struct ps_conn_ops *ops;
    void *ctx;
    struct ps_conn_limits limits;
    enum ps_role self;
    uint32_t peer_roles;
    uint16_t protocol;
    bool dialled;
    bool local;
    bool is_shm;
    bool is_greeted;
    bool in_frame; /* The frame callback runs; descriptors may be claimed. */
    uint8_t state; /* enum conn_state. */
    int fd;
    uv_poll_t poll;
    int polled_events; /* Events that the poll handle watches. */
    bool poll_closed;
    struct conn_io *io; /* NULL: all I/O is done on the loop thread. */
    int rc;
    char peer[PS_CONN_PEER_MAX];
    char reason[160];

    /* Input. */
    enum conn_phase phase;
    bool is_paused;
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
    uint64_t bytes_read; /* Bytes read from the stream. */
    bool tunes_rcvbuf;   /* The receive buffer is set by rcvbuf_tuner. */
    struct ps_rcvbuf_share rcvbuf;
    struct arrived_fd fds[PS_CONN_FDS_MAX];
    uint32_t fd_count;
    uint32_t peer_process; /* Process whose memory is readable here; 0: none. */
    /* Mapped arenas of the peer; NULL: none so far. */
    struct ps_map *peer_arenas;
    struct ps_fixed_shm_ref refs[PS_FRAME_REFS_MAX];
    /* Referenced payloads copied and not yet reported as released. */
    uint32_t to_release;
    uint64_t to_release_bytes;

    /* Output. */
    struct ps_list out;
    uint64_t out_written; /* Bytes of the first frame that are written. */
    uint64_t queued;
    uint64_t queued_memory; /* Memory of all queued and unreleased frames. */
    bool peer_caps_known;   /* The peer has sent its capabilities. */
    bool peer_reads_memory; /* The peer can read this process's memory. */
    bool peer_maps_arenas;  /* The peer maps arenas. */
    struct ps_arenas *arenas;
    struct ps_map *arenas_sent; /* Numbers of arenas announced to the peer. */
    /* ps_arenas_freed_count() at the last notice of freed arenas. */
    uint64_t arenas_freed_seen;
    /* Frames written by reference that the peer has not released. */
    struct ps_list unreleased;
    uint64_t unreleased_bytes;
    enum ps_tcp_kind tcp;
    bool is_blocked; /* The kernel's buffer is full; waits for writability. */
    /* TCP, and not far: takes turns by net/send_scheduler.h. */
    bool is_scheduled;
    /* Bytes out at the next check of the round trip. */
    uint64_t next_far_check;
    struct ps_send_slot send_slot;
    /* TCP_NOTSENT_LOWAT as set; 0: the system's default. */
    uint64_t unsent_max;
    /* All output is written, and the write side is shut down. */
    bool is_write_shut;
    bool peer_ended;
    int write_error; /* errno of a failed write; nothing more can be written. */

    /* Armed for the earliest of the deadlines below. */
    struct ps_loop_timer timer;
    ps_time greeting_due;
    ps_time header_due;
    ps_time payload_due;
    ps_time stall_due;
    ps_time close_due;

    /* Since when nothing was acknowledged, as of the last check. */
    ps_time unacked_since;
    /* Bytes out when all of them were acknowledged. */
    uint64_t acked_bytes_out;

    struct ps_conn_stats stats;
};

/* conn.c */
void conn_update_poll(struct ps_conn *c);
void conn_arm(struct ps_conn *c);
/* Closes with the error text of a failed system call. */
void conn_fail(struct ps_conn *c, int errnum);
/* Completes a close as soon as the poll handle is closed and no I/O task is in
 * flight. */
void conn_maybe_closed(struct ps_conn *c);
static inline bool conn_is_alive(const struct ps_conn *c)
{
    return c->state == CONN_OPEN || c->state == CONN_FINISHING;
}

/* True while an I/O thread reads, or writes, for the connection. */
static inline bool conn_pool_receives(const struct ps_conn *c)
{
    return c->io != NULL && c->io->receives;
}

static inline bool conn_pool_sends(const struct ps_conn *c)
{
    return c->io != NULL && c->io->sends;
}

/* conn_read.c */
void conn_read_fini(struct ps_conn *c);
void conn_readable(struct ps_conn *c);

/* conn_write.c */
/* Writes within the slot's share of the link. */
void conn_write_slot(struct ps_send_slot *turn);
void conn_write_fini(struct ps_conn *c);
/* Releases the oldest `count` payloads sent by reference. False: fewer are
 * outstanding. */
bool conn_release_refs(struct ps_conn *c, uint64_t count);
/* Queues shm_release. */
void conn_send_release(struct ps_conn *c, uint32_t payloads);
/* Queues a control prefix with this side's capabilities. */
void conn_send_shm_caps(struct ps_conn *c);
