/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the three files of a connection: conn.c holds its lifecycle,
 * conn_read.c and conn_write.c its two directions. Between them and the socket
 * are the parts that it is made of. */
#pragma once

#include "net/conn.h"
#include "net/conn_shm.h"
#include "net/conn_tcp.h"
#include "net/conn_timers.h"
#include "net/frame_reader.h"
#include "net/frame_writer.h"
#include "net/io_pool.h"
#include "net/loop.h"
#include "net/transport.h"

#include <uv.h>

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

/* State of a connection's I/O tasks. While a task is in flight the loop thread
 * does not read, or write; `in` fills the payload's place and then staging,
 * `out` sends the first frames of the queue. A transport that one thread at a
 * time may use belongs to the I/O thread then: input and output that come in
 * the meantime, of any size, are tasks, too. */
struct conn_io {
    struct ps_conn *conn;
    struct ps_io_pool *pool;
    struct ps_io_socket socket;
    bool is_exclusive; /* PS_TRANSPORT_ONE_THREAD. */
    bool receives;
    bool sends;
    struct ps_io_task in;
    size_t in_first; /* Bytes of the first place of `in`. */
    void *discarded; /* Place of bytes that are discarded; NULL: not needed. */
    struct ps_io_task out;
    struct iovec in_iov[2];
    struct iovec out_iov[PS_FRAME_IOV_MAX];
};

struct ps_conn {
    struct ps_loop *loop;
    const struct ps_conn_ops *ops;
    void *ctx;
    struct ps_conn_limits limits;
    enum ps_role self;
    uint32_t peer_roles;
    bool dialled;
    bool is_handshake_done;
    bool peer_ended;
    uint8_t state;   /* enum conn_state. */
    uint8_t output;  /* enum conn_output. */
    int write_error; /* errno of a failed write. */
    int rc;
    uv_poll_t poll;
    int polled_events;  /* Events that the poll handle watches. */
    struct conn_io *io; /* NULL: all I/O is done on the loop thread. */
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

static inline bool conn_is_paused(const struct ps_conn *c)
{
    return c->reader.phase == PS_FRAME_PAUSED;
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

/* True while this thread must not use the transport at all. */
static inline bool conn_pool_has_transport(const struct ps_conn *c)
{
    /* ps_conn_finish() stops the receive task. */
    return c->io != NULL && c->io->is_exclusive &&
           (c->io->sends || (c->io->receives && c->state == CONN_OPEN));
}

/* conn_read.c */
void conn_readable(struct ps_conn *c);

/* conn_write.c */
/* The socket accepts output again. */
void conn_writable(struct ps_conn *c);
/* Writes within the slot's share of the link. */
void conn_write_slot(struct ps_send_slot *slot);
