/* SPDX-License-Identifier: Apache-2.0 */
/* Transport of a connection: the bytes of its frames, in and out. Frames
 * (net/conn_read.c, net/conn_write.c) lie above, and a socket below. A
 * transport that encrypts keeps its state in `ctx` and fits in between. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct ps_tls_session;

/* Received descriptors that may wait for their message. */
#define PS_TRANSPORT_FDS_MAX 16u

struct ps_transport;

struct ps_transport_ops {
    bool is_plain; /* The stream of the socket has the bytes of the frames. */
    bool is_tcp;   /* The socket is one of TCP. */
    /* Both directions share state: one thread at a time reads or writes. */
    bool is_exclusive;
    /* Bytes that a connection reads and writes before others are served. */
    size_t read_turn;
    size_t write_turn;
    /* Reads bytes to up to `count` places. 0: end of the stream; -1: errno, or
     * ECANCELED and `failure`. EAGAIN: neither socket nor transport has any. */
    ssize_t (*read)(struct ps_transport *t, struct iovec *iov, int count);
    /* Writes bytes; the descriptor `pass_fd` travels with the first, -1: none,
     * as on all transports but that of Unix sockets.
     * -1 with errno as read. Bytes not accepted may be others next time; those
     * accepted may wait in the transport, see `unsent`. */
    ssize_t (*write)(struct ps_transport *t, struct iovec *iov, int count,
                     int pass_fd);
    /* Tells the peer that no output follows, and ends that of the socket; NULL:
     * only the latter. */
    void (*end)(struct ps_transport *t);
    /* Frees `ctx`; NULL: nothing to free. */
    void (*fini)(struct ps_transport *t);
};

extern const struct ps_transport_ops ps_transport_tcp;
extern const struct ps_transport_ops ps_transport_unix;

struct ps_arrived_fd {
    int fd;
    uint64_t end; /* Stream position after the read that brought it. */
};

/* Zeroed at first but for the first three. */
struct ps_transport {
    const struct ps_transport_ops *ops;
    void *ctx; /* State of the operations. */
    int fd;    /* Socket; owned by the connection. */
    uint32_t fd_count;
    struct ps_arrived_fd fds[PS_TRANSPORT_FDS_MAX];
    uint64_t bytes_read;
    /* The next read gets bytes, or a failure, without the socket. */
    bool has_unread;
    /* Output that the transport holds until the socket accepts more. A write of
     * nothing goes on with it; then 0: all of it has left. */
    size_t unsent;
    int failure_rc;      /* Error that has no errno; 0: none. */
    const char *failure; /* Its text. */
};

/* Closes descriptors that nothing claimed, and frees the state. */
void ps_transport_fini(struct ps_transport *t);

/* Oldest descriptor, owned by the caller; -1: none. */
int ps_transport_pop_fd(struct ps_transport *t);
/* Ends the output, which has all left. */
void ps_transport_end(struct ps_transport *t);
