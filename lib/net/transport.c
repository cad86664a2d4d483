/* SPDX-License-Identifier: Apache-2.0 */
/* Transports without encryption: one system call for each operation. */
#include "net/transport.h"

#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_TURN  (1024u * 1024u)
#define WRITE_TURN (4u * 1024u * 1024u)

void ps_transport_fini(struct ps_transport *t)
{
    for (uint32_t i = 0; i < t->fd_count; i++) {
        close(t->fds[i].fd);
    }
    t->fd_count = 0;
    if (t->ops->fini != NULL) {
        t->ops->fini(t);
    }
    t->ctx = NULL;
}

void ps_transport_end(struct ps_transport *t)
{
    if (t->ops->end != NULL) {
        t->ops->end(t);
    } else {
        (void)shutdown(t->fd, SHUT_WR);
    }
}

int ps_transport_pop_fd(struct ps_transport *t)
{
    if (t->fd_count == 0) {
        return -1;
    }
    int fd = t->fds[0].fd;

    t->fd_count--;
    memmove(t->fds, t->fds + 1, t->fd_count * sizeof(t->fds[0]));
    return fd;
}

static ssize_t tcp_read(struct ps_transport *t, struct iovec *iov, int count)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};

    return TEMP_FAILURE_RETRY(recvmsg(t->fd, &m, 0));
}

static ssize_t tcp_write(struct ps_transport *t, struct iovec *iov, int count,
                         int pass_fd)
{
    const struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};

    (void)pass_fd;
    return TEMP_FAILURE_RETRY(sendmsg(t->fd, &m, MSG_NOSIGNAL));
}

/* True if a descriptor is available. MSG_CTRUNC does not tell whether the
 * process ran out of them. */
static bool has_free_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

/* Queues the descriptors of one read of `n` bytes. False: there are too
 * many. */
static bool queue_fds(struct ps_transport *t, struct msghdr *m, size_t n)
{
    bool many = (m->msg_flags & MSG_CTRUNC) != 0;

    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h != NULL;
         h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(fd));
            if (t->fd_count == PS_TRANSPORT_FDS_MAX) {
                many = true;
                close(fd);
                continue;
            }
            t->fds[t->fd_count++] = (struct ps_arrived_fd){
                .fd = fd, .end = t->bytes_read + n};
        }
    }
    if (many && !has_free_fd()) {
        t->failure_rc = PS_E_FULL;
        t->failure = "this daemon has no descriptor left for one that came "
                     "with a message (LimitNOFILE)";
    } else if (many) {
        t->failure_rc = PS_E_PROTO;
        t->failure = "too many descriptors";
    }
    return !many;
}

static ssize_t unix_read(struct ps_transport *t, struct iovec *iov, int count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PS_TRANSPORT_FDS_MAX * sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = iov,
                       .msg_iovlen = (size_t)count,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    ssize_t n = TEMP_FAILURE_RETRY(recvmsg(t->fd, &m, MSG_CMSG_CLOEXEC));
    const bool has_fds = m.msg_controllen > 0 ||
                         (m.msg_flags & MSG_CTRUNC) != 0;

    if (n > 0 && has_fds && !queue_fds(t, &m, (size_t)n)) {
        errno = ECANCELED;
        return -1;
    }
    return n;
}

static ssize_t unix_write(struct ps_transport *t, struct iovec *iov, int count,
                          int pass_fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};

    if (pass_fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);

        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &pass_fd, sizeof(int));
    }
    return TEMP_FAILURE_RETRY(sendmsg(t->fd, &m, MSG_NOSIGNAL));
}

const struct ps_transport_ops ps_transport_tcp = {
    .is_plain = true,
    .is_tcp = true,
    .read_turn = READ_TURN,
    .write_turn = WRITE_TURN,
    .read = tcp_read,
    .write = tcp_write,
};

const struct ps_transport_ops ps_transport_unix = {
    .is_plain = true,
    .read_turn = READ_TURN,
    .write_turn = WRITE_TURN,
    .read = unix_read,
    .write = unix_write,
};
