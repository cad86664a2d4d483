/* SPDX-License-Identifier: Apache-2.0 */
/* Output: frames are encoded into one growing buffer. A descriptor is attached
 * to the first byte of its frame, and one sendmsg() never carries bytes of two
 * descriptors. Input: the kernel delivers descriptors in the order of the bytes
 * they came with, so the n-th descriptor belongs to the n-th message that has
 * one. The epoll descriptor outlives a connection, so that programs can poll it
 * across a re-attach. */
#include "client/sock.h"
#include "client/grow.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/num.h"
#include "proto/frame.h"
#include "proto/msg_codec.h"

/* Larger than any frame that an agent sends to a worker. */
#define RX_BYTES (64u * 1024)
/* Received descriptors whose messages are incomplete, and those of one read. */
#define FDS_MAX  64u
/* Limit of unsent bytes; at this size the peer has stopped reading for
 * good. */
#define TX_MAX   (size_t)(256u * 1024 * 1024)

struct passed_fd {
    uint64_t stream_offset; /* Position of its frame in the stream. */
    int fd;
};

struct ps_sock {
    int fd;
    int epoll;
    int kick_fd;    /* An eventfd in `epoll`; -1: not created. */
    int alarm_fd;   /* A timerfd in `epoll`; -1: not created. */
    bool polls_out; /* EPOLLOUT is set. */
    int error;      /* Cause of a failed read or flush; ECONNRESET: the peer
                       closed with bytes unread. */
    struct ps_decoder *decoder;

    uint8_t *tx;
    size_t tx_cap;
    size_t tx_from; /* First unsent byte. */
    size_t tx_to;
    uint64_t tx_at;               /* Stream position of tx[tx_from]. */
    struct passed_fd *passed_fds; /* Descriptors not sent yet. */
    size_t passed_fd_count;
    size_t passed_fd_cap;

    int rx_fds[FDS_MAX];
    size_t rx_fd_count;
    size_t rx_from;
    size_t rx_to;
    uint64_t frames;
    uint64_t sends;
    uint64_t receives;
    uint8_t rx[RX_BYTES];
};

/* -------------------------------------------------------------------- life */

/* Keeps a descriptor that has just been made, and waits for it; -1: `errno` is
 * why it was not. */
static int adopt(const struct ps_sock *s, int fd, int *ret_fd)
{
    struct epoll_event ev = {.events = EPOLLIN};

    if (fd < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) != 0) {
        int rc = ps_err_from_errno(errno);

        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

static int connect_to(struct ps_sock *s, const char *path, int flags,
                      int *ret_errno)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    int fd;

    if (len == 0 || len >= sizeof(a.sun_path)) {
        return PS_E_TOOBIG;
    }
    memcpy(a.sun_path, path, len);
    if (path[0] == '@') {
        a.sun_path[0] = '\0'; /* Abstract namespace. */
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&a,
                           (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
                                       len)) != 0) {
        int rc = errno;

        close(fd);
        *ret_errno = rc;
        return rc == ENOENT || rc == ECONNREFUSED || rc == EINTR || rc == EAGAIN
                   ? PS_E_UNREACH
                   : ps_err_from_errno(rc);
    }
    return adopt(s, fd, &s->fd);
}

int ps_sock_open(const char *path, struct ps_sock **ret_sock, int *ret_errno)
{
    struct ps_sock *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL) {
        return PS_E_NOMEM;
    }
    s->fd = -1;
    s->kick_fd = -1;
    s->alarm_fd = -1;
    s->decoder = ps_decoder_new();
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    rc = s->epoll < 0         ? ps_err_from_errno(errno)
         : s->decoder == NULL ? PS_E_NOMEM
                              : 0;
    if (rc == 0) {
        /* Blocking: waits for a full backlog, which is short. */
        rc = connect_to(s, path, 0, ret_errno);
    }
    if (rc != 0) {
        ps_sock_free(s);
        return rc;
    }
    *ret_sock = s;
    return 0;
}

static void close_passed_fds(struct ps_sock *s)
{
    for (size_t i = 0; i < s->passed_fd_count; i++) {
        close(s->passed_fds[i].fd);
    }
    for (size_t i = 0; i < s->rx_fd_count; i++) {
        close(s->rx_fds[i]);
    }
    s->passed_fd_count = 0;
    s->rx_fd_count = 0;
}

void ps_sock_hang_up(struct ps_sock *s)
{
    struct epoll_event ignored;

    close_passed_fds(s);
    s->tx_from = 0;
    s->tx_to = 0;
    s->tx_at = 0;
    s->rx_from = 0;
    s->rx_to = 0;
    s->frames = 0;
    s->polls_out = false;
    s->error = 0;
    if (s->fd >= 0) {
        /* Explicitly: the epoll entry stays while a forked child has a copy. */
        (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->fd, &ignored);
        close(s->fd);
        s->fd = -1;
    }
}

int ps_sock_dial(struct ps_sock *s, const char *path, int *ret_errno)
{
    assert(s->fd < 0);
    return connect_to(s, path, SOCK_NONBLOCK, ret_errno);
}

int ps_sock_alarm(struct ps_sock *s, int after_ms)
{
    struct itimerspec t = {0};
    int rc;

    if (s->alarm_fd < 0) {
        if (after_ms < 0) {
            return 0;
        }
        rc = adopt(s,
                   timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                   &s->alarm_fd);
        if (rc != 0) {
            return rc;
        }
    }
    if (after_ms >= 0) {
        t.it_value.tv_sec = after_ms / 1000;
        /* Zero would disarm the timer. */
        t.it_value.tv_nsec = after_ms % 1000 * 1000000L + 1;
    }
    return timerfd_settime(s->alarm_fd, 0, &t, NULL) == 0
               ? 0
               : ps_err_from_errno(errno);
}

void ps_sock_close_copy(struct ps_sock *s)
{
    if (s != NULL && s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

void ps_sock_free(struct ps_sock *s)
{
    if (s == NULL) {
        return;
    }
    close_passed_fds(s);
    if (s->epoll >= 0) {
        close(s->epoll);
    }
    if (s->kick_fd >= 0) {
        close(s->kick_fd);
    }
    if (s->alarm_fd >= 0) {
        close(s->alarm_fd);
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    ps_decoder_free(s->decoder);
    free(s->passed_fds);
    free(s->tx);
    free(s);
}

/* --------------------------------------------------------------------- out */

static int reserve_tx(struct ps_sock *s, size_t more)
{
    size_t cap = s->tx_cap == 0 ? 4096 : s->tx_cap;
    uint8_t *grown;

    if (s->tx_from > 0 && s->tx_cap - s->tx_to < more) {
        memmove(s->tx, s->tx + s->tx_from, s->tx_to - s->tx_from);
        s->tx_to -= s->tx_from;
        s->tx_from = 0;
    }
    if (s->tx_cap - s->tx_to >= more) {
        return 0;
    }
    while (cap - s->tx_to < more) {
        cap *= 2;
    }
    if (cap > TX_MAX) {
        return PS_E_FULL;
    }
    grown = realloc(s->tx, cap);
    if (grown == NULL) {
        return PS_E_NOMEM;
    }
    s->tx = grown;
    s->tx_cap = cap;
    return 0;
}

/* Keeps a copy of the descriptor for the frame that comes next. */
static int keep_fd(struct ps_sock *s, int fd)
{
    int rc = client_grow(&s->passed_fds, s->passed_fd_count, &s->passed_fd_cap,
                         sizeof(*s->passed_fds));
    int copy = rc == 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;

    if (copy < 0) {
        return rc != 0 ? rc : ps_err_from_errno(errno);
    }
    s->passed_fds[s->passed_fd_count++] = (struct passed_fd){
        .stream_offset = s->tx_at + (s->tx_to - s->tx_from), .fd = copy};
    return 0;
}

int ps_sock_put(struct ps_sock *s, const struct ps_msg *msg, int fd)
{
    size_t len;
    int rc = reserve_tx(s, ps_msg_encoded_bound(msg));

    if (rc == 0) {
        rc = ps_msg_encode(msg, PS_PROTOCOL, 0, s->tx + s->tx_to,
                           s->tx_cap - s->tx_to, &len);
    }
    if (rc == 0 && fd >= 0) {
        rc = keep_fd(s, fd);
    }
    if (rc != 0) {
        return rc;
    }
    s->tx_to += len;
    s->frames++;
    return 0;
}

int ps_sock_put_frame(struct ps_sock *s, const void *frame, size_t len)
{
    int rc = reserve_tx(s, len);

    if (rc == 0) {
        memcpy(s->tx + s->tx_to, frame, len);
        s->tx_to += len;
        s->frames++;
    }
    return rc;
}

size_t ps_sock_pending(const struct ps_sock *s)
{
    return s->tx_to - s->tx_from;
}

static void pop_passed_fd(struct ps_sock *s)
{
    close(s->passed_fds[0].fd);
    s->passed_fd_count--;
    memmove(s->passed_fds, s->passed_fds + 1,
            s->passed_fd_count * sizeof(struct passed_fd));
}

/* One sendmsg: either the bytes before the next descriptor's frame, or that
 * frame and the bytes up to the one after it. */
static ssize_t send_some(struct ps_sock *s)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    size_t next = s->passed_fd_count > 0 &&
                          s->passed_fds[0].stream_offset == s->tx_at
                      ? 1
                      : 0;
    struct iovec io = {.iov_base = s->tx + s->tx_from,
                       .iov_len = s->tx_to - s->tx_from};
    struct msghdr h = {.msg_iov = &io, .msg_iovlen = 1};
    ssize_t n;

    if (next < s->passed_fd_count) {
        io.iov_len = (size_t)(s->passed_fds[next].stream_offset - s->tx_at);
    }
    if (next == 1) {
        struct cmsghdr *c;

        h.msg_control = control.bytes;
        h.msg_controllen = sizeof(control.bytes);
        c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &s->passed_fds[0].fd, sizeof(int));
    }
    do {
        s->sends++;
        n = sendmsg(s->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n > 0 && next == 1) {
        pop_passed_fd(s);
    }
    return n;
}

int ps_sock_flush(struct ps_sock *s)
{
    bool is_full = false;

    while (s->tx_from < s->tx_to && !is_full) {
        ssize_t n = send_some(s);

        if (n >= 0) {
            s->tx_from += (size_t)n;
            s->tx_at += (uint64_t)n;
        } else if (errno == EAGAIN) {
            is_full = true;
        } else {
            s->error = errno;
            return errno == EPIPE || errno == ECONNRESET
                       ? PS_E_CLOSED
                       : ps_err_from_errno(errno);
        }
    }
    if (!is_full) {
        s->tx_from = 0;
        s->tx_to = 0;
    }
    if (s->polls_out != is_full) {
        struct epoll_event ev = {.events = is_full ? EPOLLIN | EPOLLOUT
                                                   : EPOLLIN};

        if (epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->fd, &ev) != 0) {
            return ps_err_from_errno(errno);
        }
        s->polls_out = is_full;
    }
    return 0;
}

/* ---------------------------------------------------------------------- in */

static int queue_fds(struct ps_sock *s, struct msghdr *h)
{
    int rc = (h->msg_flags & MSG_CTRUNC) != 0 ? PS_E_PROTO : 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c != NULL;
         c = CMSG_NXTHDR(h, c)) {
        size_t count;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (s->rx_fd_count < FDS_MAX) {
                s->rx_fds[s->rx_fd_count++] = fd;
            } else {
                close(fd);
                rc = PS_E_PROTO;
            }
        }
    }
    return rc;
}

int ps_sock_read(struct ps_sock *s)
{
    union {
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec io;
    struct msghdr h = {.msg_iov = &io,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    ssize_t n;

    if (s->rx_from > 0) {
        memmove(s->rx, s->rx + s->rx_from, s->rx_to - s->rx_from);
        s->rx_to -= s->rx_from;
        s->rx_from = 0;
    }
    io.iov_base = s->rx + s->rx_to;
    io.iov_len = RX_BYTES - s->rx_to;
    assert(io.iov_len > 0); /* ps_sock_next refuses longer frames. */
    do {
        s->receives++;
        n = recvmsg(s->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n == 0) {
        return PS_E_CLOSED;
    }
    if (n < 0 && errno == EAGAIN) {
        return PS_E_AGAIN;
    }
    if (n < 0) {
        s->error = errno;
        return errno == ECONNRESET ? PS_E_CLOSED : ps_err_from_errno(errno);
    }
    s->rx_to += (size_t)n;
    return queue_fds(s, &h);
}

static int pop_fd(struct ps_sock *s, int *ret_fd)
{
    if (s->rx_fd_count == 0) {
        return PS_E_PROTO;
    }
    *ret_fd = s->rx_fds[0];
    s->rx_fd_count--;
    memmove(s->rx_fds, s->rx_fds + 1, s->rx_fd_count * sizeof(int));
    return 0;
}

int ps_sock_next(struct ps_sock *s, struct ps_msg *ret_msg, int *ret_fd)
{
    const uint8_t *at = s->rx + s->rx_from;
    size_t have = s->rx_to - s->rx_from;
    struct ps_frame_prefix p;
    size_t need;
    int rc;

    if (have < PS_FRAME_PREFIX) {
        return PS_E_AGAIN;
    }
    rc = ps_frame_parse(at, &p);
    if (rc == 0) {
        rc = ps_frame_check(&p, PS_ROLE_AGENT, PS_ROLE_WORKER);
    }
    if (rc == 0 && p.header_len > RX_BYTES - PS_FRAME_PREFIX) {
        rc = PS_E_TOOBIG;
    }
    if (rc != 0) {
        return rc;
    }
    need = PS_FRAME_PREFIX + p.header_len;
    if (have < need) {
        return PS_E_AGAIN;
    }
    rc = ps_msg_decode(s->decoder, p.code, at + PS_FRAME_PREFIX, p.header_len,
                       ret_msg);
    if (rc != 0) {
        return rc;
    }
    s->rx_from += need;
    *ret_fd = -1;
    return p.code == PS_MSG_L_ARENA || p.code == PS_MSG_L_RESIDUAL_SEGMENT
               ? pop_fd(s, ret_fd)
               : 0;
}

/* -------------------------------------------------------------------- wait */

int ps_sock_wait(struct ps_sock *s, int timeout_ms)
{
    struct epoll_event ev;
    int n = epoll_wait(s->epoll, &ev, 1, timeout_ms);

    if (n > 0) {
        return 0;
    }
    if (n < 0) {
        /* The caller checks its clock and calls again. */
        return errno == EINTR ? 0 : ps_err_from_errno(errno);
    }
    return PS_E_TIMEOUT;
}

void ps_sock_kick(struct ps_sock *s)
{
    if (s->kick_fd < 0 &&
        adopt(s, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), &s->kick_fd) != 0) {
        return; /* The thread wakes later, by its own event. */
    }
    if (eventfd_write(s->kick_fd, 1) != 0) {
        /* A full counter is readable, too. */
    }
}

void ps_sock_unkick(struct ps_sock *s)
{
    eventfd_t ignored;

    if (s->kick_fd >= 0 && eventfd_read(s->kick_fd, &ignored) != 0) {
        /* The counter was zero. */
    }
}

int ps_sock_fd(const struct ps_sock *s)
{
    return s->epoll;
}

int ps_sock_end(struct ps_sock *s, int timeout_ms)
{
    struct pollfd p = {.fd = s->fd, .events = POLLIN};

    if (shutdown(s->fd, SHUT_WR) != 0) {
        return PS_E_CLOSED;
    }
    /* Discards input: closing with bytes unread would look like a crash to the
     * peer. */
    while (poll(&p, 1, timeout_ms) > 0) {
        s->rx_from = 0;
        s->rx_to = 0;
        while (s->rx_fd_count > 0) {
            close(s->rx_fds[--s->rx_fd_count]);
        }
        if (ps_sock_read(s) != 0) {
            break;
        }
    }
    return s->error == ECONNRESET ? PS_E_CLOSED : 0;
}

uint64_t ps_sock_frames(const struct ps_sock *s)
{
    return s->frames;
}

uint64_t ps_sock_sends(const struct ps_sock *s)
{
    return s->sends;
}

uint64_t ps_sock_receives(const struct ps_sock *s)
{
    return s->receives;
}
