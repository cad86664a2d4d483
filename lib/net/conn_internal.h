/* SPDX-License-Identifier: Apache-2.0 */
/* What the three files of the connection share: conn.c has its life, and
 * conn_read.c and conn_write.c its two directions. */
#pragma once

#include "base/list.h"
#include "net/conn.h"
#include "net/inflow.h"
#include "net/loop.h"
#include "net/mover.h"
#include "net/near.h"
#include "net/outflow.h"
#include "proto/frame.h"

#include <stddef.h>
#include <uv.h>

/* Staging before the greeting, and after. */
#define STAGING_FIRST 4096u
#define STAGING_MAX   (16u * 1024u)
/* Read ahead behind a large frame: enough for the next header. */
#define STAGING_AHEAD 512u
#define FRAME_LARGE   (16u * 1024u)
/* So many small frames in a row until much is read ahead again: they come
 * between large ones, and what is read ahead of these has to be copied. */
#define SMALL_RUN     16u
/* Near: below this, writing costs less than pointing. */
#define NEAR_MIN      (8u * 1024u)
/* One piece that is pointed at: address and length, big-endian. */
#define NEAR_PIECE    16u
/* Where the number of pieces stands in a prefix: above any payload length. */
#define NEAR_SHIFT    56u
#define NEAR_LEN      ((UINT64_C(1) << NEAR_SHIFT) - 1)
/* A prefix with this code is no frame: so many payloads, pointed at by the
 * reader of this, have been copied; the first says whether we can at all. */
#define NEAR_TAKEN    0u
#define NEAR_CANNOT   1u
#define NEAR_MAPS     2u
/* What else such a prefix says, in the top byte of its payload length: the
 * number below it is an arena, whose descriptor comes along, or which is no
 * more. */
#define NEAR_ARENA    1u
#define NEAR_NO_ARENA 2u
/* No more is pointed at before some is taken, so that the peer's other
 * connections have their turn. */
#define NEAR_HELD_MAX (4u * 1024u * 1024u)
/* Say so at the latest after so many bytes. */
#define NEAR_TELL     (512u * 1024u)

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
#define MOVE_MAX       (1024u * 1024u)

/* What further loops have to do for a connection. While a move is under way
 * nobody else reads, or writes; `in` fills `dst` and what is behind it in
 * staging, `out` takes the first frames of the queue. */
struct conn_moves {
    struct ps_conn *conn;
    struct ps_movers *all;
    struct ps_move_socket socket;
    bool receives;
    bool sends;
    struct ps_move in;
    struct ps_move out;
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
    bool near;
    bool greeted;
    bool in_frame; /* The frame callback runs: descriptors may be taken. */
    enum conn_state state;
    int fd;
    uv_poll_t poll;
    int polled; /* Events asked for. */
    bool poll_closed;
    struct conn_moves *moves; /* NULL: all is done here. */
    int rc;
    char peer[PS_CONN_PEER_MAX];
    char reason[160];

    /* Coming in. */
    enum conn_phase phase;
    bool paused;
    struct ps_frame_prefix prefix;
    uint8_t *staging;
    uint32_t staging_cap;
    uint32_t staging_from;
    uint32_t staging_to;
    uint32_t small_run; /* Small frames since the last large one. */
    uint8_t *header;
    uint32_t header_got;
    struct ps_msg *msg; /* Kept while its payload arrives. */
    uint8_t *dst;
    uint64_t payload_left;
    uint64_t position; /* Stream bytes read. */
    bool adapts;       /* The receive buffer is ours to choose. */
    struct ps_inflow_share share;
    struct arrived_fd fds[PS_CONN_FDS_MAX];
    uint32_t fd_count;
    uint32_t process;      /* Whose memory we can read; 0: nobody's. */
    struct ps_map *mapped; /* Arenas of the peer's. NULL: none ever. */
    unsigned piece_count;
    struct ps_near_piece pieces[PS_NEAR_PIECES_MAX];
    uint64_t taken; /* Payloads copied that the peer has not been told of, */
    uint64_t taken_bytes;

    /* Going out. */
    struct ps_list out;
    uint64_t out_written; /* Bytes of the first frame that are gone. */
    uint64_t queued;
    uint64_t memory; /* That all frames take which wait or are held. */
    bool near_told;  /* The peer said whether it can read our memory, */
    bool near_reads; /* and it can; */
    bool near_maps;  /* and whether it maps arenas. */
    struct ps_arenas *arenas;
    struct ps_map *shown;  /* Numbers of arenas that the peer was told of. */
    uint64_t arenas_freed; /* When it was last told which are no more. */
    struct ps_list held;   /* Written, pointing at payloads not taken yet. */
    uint64_t held_bytes;
    enum ps_tcp_kind tcp;
    bool blocked;      /* The kernel takes no more: wait for writability. */
    bool in_turns;     /* By TCP, and not far: shares net/outflow.h. */
    uint64_t far_look; /* Bytes out at the next look at the round trip. */
    struct ps_turn turn;
    uint64_t unsent; /* TCP_NOTSENT_LOWAT as set; 0: the system's. */
    bool write_shut; /* All is out, and the peer was told. */
    bool peer_ended;
    int write_error; /* errno: nothing more can be written. */

    struct ps_loop_timer timer; /* For the least of these. */
    ps_time greet_at;
    ps_time header_at;
    ps_time payload_at;
    ps_time stall_at;
    ps_time close_at;

    ps_time unacked_since; /* When that was looked at. */
    uint64_t acked_out;    /* Bytes out when nothing was outstanding. */

    struct ps_conn_stats stats;
};

/* conn.c */
void conn_update_poll(struct ps_conn *c);
void conn_arm(struct ps_conn *c);
/* Closes with the words of an error of a system call. */
void conn_fail(struct ps_conn *c, int errnum);
/* Closing: when nothing of it is left, it is closed. */
void conn_part_ended(struct ps_conn *c);
static inline bool conn_alive(const struct ps_conn *c)
{
    return c->state == CONN_OPEN || c->state == CONN_FINISHING;
}

/* A further loop reads, or writes. */
static inline bool conn_receives(const struct ps_conn *c)
{
    return c->moves != NULL && c->moves->receives;
}

static inline bool conn_sends(const struct ps_conn *c)
{
    return c->moves != NULL && c->moves->sends;
}

/* conn_read.c */
void conn_read_fini(struct ps_conn *c);
void conn_readable(struct ps_conn *c);

/* conn_write.c */
/* Writes what may be written now. */
void conn_write_turn(struct ps_turn *turn);
void conn_write_fini(struct ps_conn *c);
/* Near: the peer has taken so many of the payloads we pointed at. False: it
 * cannot have. */
bool conn_write_taken(struct ps_conn *c, uint64_t count);
/* Near: queues a prefix with NEAR_TAKEN. */
void conn_write_tell(struct ps_conn *c, uint64_t count);
/* Near: says what of the peer we can read. */
void conn_write_able(struct ps_conn *c);
