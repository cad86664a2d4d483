/* SPDX-License-Identifier: Apache-2.0 */
/* What the three files of the connection share: conn.c has its life, and
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

/* Staging before the greeting, and after. */
#define STAGING_FIRST      4096u
#define STAGING_MAX        (16u * 1024u)
/* Read ahead behind a large frame: enough for the next header. */
#define STAGING_AHEAD      512u
#define FRAME_LARGE        (16u * 1024u)
/* So many small frames in a row until much is read ahead again: they come
 * between large ones, and what is read ahead of these has to be copied. */
#define SMALL_FRAMES_MAX   16u
/* Near: below this, writing costs less than pointing. */
#define SHM_REF_MIN        (8u * 1024u)
/* One piece that is pointed at: address and length, big-endian. */
#define SHM_REF_SIZE       16u
/* Where the number of pieces stands in a prefix: above any payload length. */
#define SHM_COUNT_SHIFT    56u
#define SHM_LEN_MASK       ((UINT64_C(1) << SHM_COUNT_SHIFT) - 1)
/* A prefix with this code is no frame: so many payloads, pointed at by the
 * reader of this, have been copied; the first says whether we can at all. */
#define SHM_RELEASED       0u
#define SHM_CANNOT_READ    1u
#define SHM_MAPS_ARENAS    2u
/* What else such a prefix says, in the top byte of its payload length: the
 * number below it is an arena, whose descriptor comes along, or which is no
 * more. */
#define SHM_ARENA_ADDED    1u
#define SHM_ARENA_REMOVED  2u
/* No more is pointed at before some is taken, so that the peer's other
 * connections have their turn. */
#define SHM_UNRELEASED_MAX (4u * 1024u * 1024u)
/* Say so at the latest after so many bytes. */
#define SHM_RELEASE_BYTES  (512u * 1024u)

enum conn_state {
    CONN_OPEN,
    CONN_FINISHING, /* Writes what is left; input is thrown away. */
    CONN_CLOSING,
    CONN_CLOSED,
};

enum conn_phase {
    PHASE_HEAD,    /* Prefix and header, in staging. */
    PHASE_HEADER,  /* A header too long for staging, in `header`. */
    PHASE_PAYLOAD, /* Into `dst`, or nowhere when it is NULL. */
};

struct arrived_fd {
    int fd;
    uint64_t end; /* Stream position behind the read that brought it. */
};

/* Bytes out at the first look at the round trip. The handshake alone may have
 * met a queue. */
#define FAR_LOOK_FIRST (64u * 1024u)
/* Pieces of memory that go out in one call. */
#define CONN_IOV       128
/* Bytes in one move: others have their turn, and what is gone is let go. */
#define IO_TASK_MAX    (1024u * 1024u)

/* What further loops have to do for a connection. While a move is under way
 * nobody else reads, or writes; `in` fills `dst` and what is behind it in
 * staging, `out` takes the first frames of the queue. */
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
    bool in_frame; /* The frame callback runs: descriptors may be taken. */
    enum conn_state state;
    int fd;
    uv_poll_t poll;
    int polled_events; /* Events asked for. */
    bool poll_closed;
    struct conn_io *io; /* NULL: all is done here. */
    int rc;
    char peer[PS_CONN_PEER_MAX];
    char reason[160];

    /* Coming in. */
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
    struct ps_msg *msg; /* Kept while its payload arrives. */
    uint8_t *dst;
    uint64_t payload_left;
    uint64_t bytes_read; /* Stream bytes read. */
    bool tunes_rcvbuf;   /* The receive buffer is ours to choose. */
    struct ps_rcvbuf_share rcvbuf;
    struct arrived_fd fds[PS_CONN_FDS_MAX];
    uint32_t fd_count;
    uint32_t peer_process;      /* Whose memory we can read; 0: nobody's. */
    struct ps_map *peer_arenas; /* Arenas of the peer's. NULL: none ever. */
    unsigned ref_count;
    struct ps_shm_ref refs[PS_SHM_REFS_MAX];
    uint64_t
        to_release; /* Payloads copied that the peer has not been told of, */
    uint64_t to_release_bytes;

    /* Going out. */
    struct ps_list out;
    uint64_t out_written; /* Bytes of the first frame that are gone. */
    uint64_t queued;
    uint64_t queued_memory; /* That all frames take which wait or are held. */
    bool peer_caps_known;   /* The peer said whether it can read our memory, */
    bool peer_reads_memory; /* and it can; */
    bool peer_maps_arenas;  /* and whether it maps arenas. */
    struct ps_arenas *arenas;
    struct ps_map
        *arenas_sent; /* Numbers of arenas that the peer was told of. */
    uint64_t arenas_freed_seen; /* When it was last told which are no more. */
    struct ps_list
        unreleased; /* Written, pointing at payloads not taken yet. */
    uint64_t unreleased_bytes;
    enum ps_tcp_kind tcp;
    bool is_blocked;   /* The kernel takes no more: wait for writability. */
    bool is_scheduled; /* By TCP, and not far: shares net/send_scheduler.h. */
    uint64_t next_far_check; /* Bytes out at the next look at the round trip. */
    struct ps_send_slot send_slot;
    uint64_t unsent_max; /* TCP_NOTSENT_LOWAT as set; 0: the system's. */
    bool is_write_shut;  /* All is out, and the peer was told. */
    bool peer_ended;
    int write_error; /* errno: nothing more can be written. */

    struct ps_loop_timer timer; /* For the least of these. */
    ps_time greeting_due;
    ps_time header_due;
    ps_time payload_due;
    ps_time stall_due;
    ps_time close_due;

    ps_time unacked_since;    /* When that was looked at. */
    uint64_t acked_bytes_out; /* Bytes out when nothing was outstanding. */

    struct ps_conn_stats stats;
};

/* conn.c */
void conn_update_poll(struct ps_conn *c);
void conn_arm(struct ps_conn *c);
/* Closes with the words of an error of a system call. */
void conn_fail(struct ps_conn *c, int errnum);
/* Closing: when nothing of it is left, it is closed. */
void conn_maybe_closed(struct ps_conn *c);
static inline bool conn_is_alive(const struct ps_conn *c)
{
    return c->state == CONN_OPEN || c->state == CONN_FINISHING;
}

/* A further loop reads, or writes. */
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
/* Writes what may be written now. */
void conn_write_slot(struct ps_send_slot *turn);
void conn_write_fini(struct ps_conn *c);
/* Near: the peer has taken so many of the payloads we pointed at. False: it
 * cannot have. */
bool conn_release_refs(struct ps_conn *c, uint64_t count);
/* Near: queues a prefix with SHM_RELEASED. */
void conn_send_release(struct ps_conn *c, uint64_t count);
/* Near: says what of the peer we can read. */
void conn_send_shm_caps(struct ps_conn *c);
