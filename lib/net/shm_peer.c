/* SPDX-License-Identifier: Apache-2.0 */
/* Same-host peers: abstract Unix sockets, and copies from mapped arenas or
 * by process_vm_readv(). */
#include "net/shm_peer.h"

#include "base/buf.h"
#include "base/map.h"
#include "kernel/kernel.h"
#include "net/local.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/* Abstract names begin with a zero byte; the address length ends them. */
static int fill_abstract_name(const char *address, struct sockaddr_un *sa,
                              socklen_t *ret_len)
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

/* Makes a socket, and the name of the server in the abstract namespace. */
static int open_socket(const char *address, struct sockaddr_un *sa,
                       socklen_t *ret_len, int *ret_fd)
{
    int rc = fill_abstract_name(address, sa, ret_len);

    if (rc != 0) {
        return rc;
    }
    *ret_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *ret_fd < 0 ? ps_err_from_errno(errno) : 0;
}

int ps_shm_listen(const char *address, int backlog, int *ret_fd)
{
    struct sockaddr_un sa;
    socklen_t len;
    int fd;
    int rc = open_socket(address, &sa, &len, &fd);

    if (rc != 0) {
        return rc;
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

bool ps_shm_peer_is_trusted(int fd)
{
    struct ps_local_peer peer;

    return ps_local_peer(fd, &peer) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

int ps_shm_dial(const char *address, int *ret_fd)
{
    struct sockaddr_un sa;
    socklen_t len;
    int fd;
    int rc = open_socket(address, &sa, &len, &fd);

    if (rc != 0) {
        return rc;
    }
    /* Connects at once or not at all: a full backlog is a failure. */
    if (connect(fd, (struct sockaddr *)&sa, len) != 0) {
        rc = PS_E_UNREACH;
    } else if (!ps_shm_peer_is_trusted(fd)) {
        rc = PS_E_PERM;
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

uint32_t ps_shm_peer_process(int fd)
{
    struct ps_local_peer peer;
    uint8_t byte;
    struct iovec local = {&byte, 1};
    struct iovec remote = {NULL, 1};

    if (ps_local_peer(fd, &peer) != 0 || peer.pid == 0) {
        return 0;
    }
    /* NULL is never mapped: EFAULT means that reading is permitted. Without
     * permission, the call fails with EPERM first. */
    if (process_vm_readv((pid_t)peer.pid, &local, 1, &remote, 1, 0) >= 0 ||
        errno != EFAULT) {
        return 0;
    }
    return peer.pid;
}

/* Rule S8: true while the peer's end is open. A sender keeps referenced memory
 * until it is released or its end is closed, so bytes read while the end was
 * open are valid; and a process with an open end is alive, so its pid was not
 * reused. */
static bool is_peer_connected(int fd)
{
    struct pollfd p = {.fd = fd};

    return poll(&p, 1, 0) >= 0 && (p.revents & (POLLHUP | POLLERR)) == 0;
}

int ps_shm_map_arena(int arena_fd, struct ps_buf **ret_buf,
                     const char **ret_why)
{
    struct stat st;

    if (fstat(arena_fd, &st) != 0 || st.st_size <= 0) {
        close(arena_fd);
        *ret_why = "an arena without a size";
        return PS_E_INVAL;
    }
    return ps_local_map(arena_fd, (uint64_t)st.st_size, ret_buf, ret_why);
}

static bool read_arena(const struct ps_shm_peer *peer,
                       const struct ps_fixed_shm_ref *piece, void *dst)
{
    const uint64_t offset = piece->place;
    const struct ps_buf *b = peer->arenas == NULL
                                 ? NULL
                                 : ps_map_get(peer->arenas, piece->arena);

    if (b == NULL || offset > b->size || piece->len > b->size - offset) {
        return false;
    }
    ps_kernel_copy_part(dst, b->data + offset, piece->len);
    return true;
}

static bool read_process(const struct ps_shm_peer *peer,
                         const struct ps_fixed_shm_ref *piece, uint8_t *dst)
{
    uint64_t got = 0;

    while (peer->process != 0 && got < piece->len) {
        struct iovec local = {dst + got, piece->len - got};
        struct iovec remote = {(void *)(uintptr_t)(piece->place + got),
                               piece->len - got};
        ssize_t n = process_vm_readv((pid_t)peer->process, &local, 1, &remote,
                                     1, 0);

        if (n <= 0) {
            return false;
        }
        got += (uint64_t)n;
    }
    return got == piece->len;
}

int ps_shm_read(const struct ps_shm_peer *peer,
                const struct ps_fixed_shm_ref *pieces, unsigned count,
                void *dst)
{
    uint8_t *to = dst;
    bool ok = true;

    for (unsigned i = 0; ok && i < count; i++) {
        ok = pieces[i].arena != 0 ? read_arena(peer, &pieces[i], to)
                                  : read_process(peer, &pieces[i], to);
        to += pieces[i].len;
    }
    if (!is_peer_connected(peer->fd)) {
        return PS_E_CLOSED;
    }
    return ok ? 0 : PS_E_PROTO;
}
