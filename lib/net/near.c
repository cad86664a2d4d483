/* SPDX-License-Identifier: Apache-2.0 */
#include "net/near.h"

#include "net/local.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/* Abstract names begin with a zero byte and end with the length. */
static int name(const char *address, struct sockaddr_un *sa, socklen_t *ret_len)
{
    size_t cap = sizeof(sa->sun_path) - 1;
    int n;

    memset(sa, 0, sizeof(*sa));
    sa->sun_family = AF_UNIX;
    n = snprintf(sa->sun_path + 1, cap, "pskv-server/%s", address);
    if (n < 0 || (size_t)n >= cap) {
        return PS_E_TOOBIG;
    }
    *ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                           (size_t)n);
    return 0;
}

static int new_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int ps_near_listen(const char *address, int backlog, int *ret_fd)
{
    struct sockaddr_un sa;
    socklen_t len;
    int rc = name(address, &sa, &len);
    int fd;

    if (rc != 0) {
        return rc;
    }
    fd = new_socket();
    if (fd < 0) {
        return ps_err_from_errno(errno);
    }
    if (bind(fd, (struct sockaddr *)&sa, len) != 0 ||
        listen(fd, backlog) != 0) {
        rc = errno == EADDRINUSE ? PS_E_EXIST : ps_err_from_errno(errno);
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

bool ps_near_trusts(int fd)
{
    struct ps_local_peer peer;

    return ps_local_peer(fd, &peer) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

int ps_near_dial(const char *address, int *ret_fd)
{
    struct sockaddr_un sa;
    socklen_t len;
    int rc = name(address, &sa, &len);
    int fd;

    if (rc != 0) {
        return rc;
    }
    fd = new_socket();
    if (fd < 0) {
        return ps_err_from_errno(errno);
    }
    /* It is connected at once or not at all: a full backlog is a failure. */
    if (connect(fd, (struct sockaddr *)&sa, len) != 0) {
        rc = PS_E_UNREACH;
    } else if (!ps_near_trusts(fd)) {
        rc = PS_E_PERM;
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

uint32_t ps_near_process(int fd)
{
    struct ps_local_peer peer;
    uint8_t byte;
    struct iovec here = {&byte, 1};
    struct iovec there = {NULL, 1};

    if (ps_local_peer(fd, &peer) != 0 || peer.pid == 0) {
        return 0;
    }
    /* Nothing lies at NULL. Who may not look is told that before. */
    if (process_vm_readv((pid_t)peer.pid, &here, 1, &there, 1, 0) >= 0 ||
        errno != EFAULT) {
        return 0;
    }
    return peer.pid;
}

/* A sender keeps what it points at until we have it or it has closed its end.
 * So what was read while the end was open is good; and a process whose end is
 * open has not ended, and its number is its own. */
static bool peer_is_there(int fd)
{
    struct pollfd p = {.fd = fd};

    return poll(&p, 1, 0) >= 0 && (p.revents & (POLLHUP | POLLERR)) == 0;
}

int ps_near_read(int fd, uint32_t process, const struct ps_near_piece *pieces,
                 unsigned count, void *dst)
{
    uint8_t *to = dst;

    for (unsigned i = 0; i < count; i++) {
        uint64_t got = 0;

        while (got < pieces[i].len) {
            struct iovec here = {to, pieces[i].len - got};
            struct iovec there = {(void *)(uintptr_t)(pieces[i].address + got),
                                  pieces[i].len - got};
            ssize_t n = process_vm_readv((pid_t)process, &here, 1, &there, 1,
                                         0);

            if (n <= 0) {
                return peer_is_there(fd) ? PS_E_PROTO : PS_E_CLOSED;
            }
            got += (uint64_t)n;
            to += n;
        }
    }
    return peer_is_there(fd) ? 0 : PS_E_CLOSED;
}
