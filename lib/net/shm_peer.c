/* SPDX-License-Identifier: Apache-2.0 */
/* Same-host peers: abstract Unix sockets; copies from mapped arenas or by
 * process_vm_readv(); and the part of a connection that sends and receives
 * payloads by reference. */
#include "net/shm_peer.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/map.h"
#include "kernel/kernel.h"
#include "net/arena.h"
#include "net/conn_inner.h"
#include "net/local.h"
#include "proto/msg_codec.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/* ---------------------------------------------------------------- discovery */

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

/* ----------------------------------------------------- part of a connection */

/* Least payload sent by reference; below it, writing is cheaper. */
#define REF_MIN    (8u * 1024u)
/* Limit on mapped arenas of one peer. */
#define ARENAS_MAX 65536u

/* Process at the other end; 0: its memory is not readable. */
static uint32_t peer_process(int fd)
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

struct conn_shm *conn_shm_new(int fd, struct ps_arenas *arenas,
                              struct ps_frame_writer *writer)
{
    struct conn_shm *s = ps_calloc(1, sizeof(*s));

    s->process = peer_process(fd);
    s->arenas = arenas;
    s->writer = writer;
    return s;
}

void conn_shm_free(struct conn_shm *s)
{
    struct ps_map_cursor at = {0};
    struct ps_buf *b;

    if (s == NULL) {
        return;
    }
    while (s->peer_arenas != NULL &&
           (b = ps_map_next(s->peer_arenas, &at)) != NULL) {
        ps_buf_unref(b);
    }
    ps_map_free(s->peer_arenas);
    ps_map_free(s->arenas_sent);
    ps_free(s);
}

/* Input */

/* Maps an arena whose descriptor came with the message. */
static int map_peer_arena(struct conn_shm *s, struct ps_transport *t,
                          uint32_t number, const char **ret_why)
{
    struct ps_buf *buf;
    struct stat st;
    int fd;
    int rc;

    if (s->peer_arenas == NULL) {
        s->peer_arenas = ps_map_new();
    }
    if (t->fd_count == 0) {
        *ret_why = "arena without a descriptor";
        return PS_E_PROTO;
    }
    if (number == 0 || ps_map_get(s->peer_arenas, number) != NULL ||
        ps_map_count(s->peer_arenas) == ARENAS_MAX) {
        *ret_why = "arena announced twice, or too many arenas";
        return PS_E_PROTO;
    }
    fd = ps_transport_pop_fd(t);
    if (fstat(fd, &st) != 0 || st.st_size <= 0) {
        close(fd);
        *ret_why = "an arena without a size";
        return PS_E_INVAL;
    }
    rc = ps_local_map(fd, (uint64_t)st.st_size, PROT_READ, &buf, ret_why);
    if (rc == 0) {
        ps_map_put(s->peer_arenas, number, buf);
    }
    return rc;
}

static int unmap_peer_arena(struct conn_shm *s, uint32_t number,
                            const char **ret_why)
{
    struct ps_buf *b = s->peer_arenas == NULL
                           ? NULL
                           : ps_map_remove(s->peer_arenas, number);

    if (b == NULL) {
        *ret_why = "end of an arena that was not announced";
        return PS_E_PROTO;
    }
    ps_buf_unref(b);
    return 0;
}

static int accept_caps(struct conn_shm *s, const struct ps_msg_shm_caps *m,
                       const char **ret_why)
{
    if (s->peer_caps != 0) {
        *ret_why = "shm_caps sent twice";
        return PS_E_PROTO;
    }
    s->peer_caps = (uint8_t)(CONN_SHM_KNOWN |
                             (m->reads_memory ? CONN_SHM_READS_MEMORY : 0) |
                             (m->maps_arenas ? CONN_SHM_MAPS_ARENAS : 0));
    s->may_refer = m->reads_memory || m->maps_arenas;
    return 0;
}

int conn_shm_accept(struct conn_shm *s, struct ps_transport *t,
                    const struct ps_msg *msg, const char **ret_why)
{
    switch (msg->code) {
    case PS_MSG_SHM_CAPS:
        return accept_caps(s, &msg->shm_caps, ret_why);
    case PS_MSG_SHM_MAP:
        return map_peer_arena(s, t, msg->shm_map.arena, ret_why);
    case PS_MSG_SHM_UNMAP:
        return unmap_peer_arena(s, msg->shm_unmap.arena, ret_why);
    default:
        break;
    }
    if (msg->shm_release.payloads == 0 ||
        !ps_frame_writer_release(s->writer, msg->shm_release.payloads)) {
        *ret_why = "receipt for a payload that was not sent";
        return PS_E_PROTO;
    }
    return 0;
}

bool conn_shm_parse_refs(struct conn_shm *s,
                         const struct ps_frame_prefix *prefix,
                         const uint8_t *at)
{
    uint64_t left = prefix->payload_len;
    bool ok = true;

    for (unsigned i = 0; ok && i < prefix->ref_count; i++) {
        ok = ps_fixed_get_shm_ref(at, &s->refs[i]) && s->refs[i].len <= left;
        left -= ok ? s->refs[i].len : 0;
        at += PS_FIXED_SHM_REF_BYTES;
    }
    return ok && left == 0;
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

static bool read_arena(const struct conn_shm *s,
                       const struct ps_fixed_shm_ref *piece, void *dst)
{
    const uint64_t offset = piece->place;
    const struct ps_buf *b = s->peer_arenas == NULL
                                 ? NULL
                                 : ps_map_get(s->peer_arenas, piece->arena);

    if (b == NULL || offset > b->size || piece->len > b->size - offset) {
        return false;
    }
    ps_kernel_copy_part(dst, b->data + offset, piece->len);
    return true;
}

static bool read_process(const struct conn_shm *s,
                         const struct ps_fixed_shm_ref *piece, uint8_t *dst)
{
    uint64_t got = 0;

    while (s->process != 0 && got < piece->len) {
        struct iovec local = {dst + got, piece->len - got};
        struct iovec remote = {(void *)(uintptr_t)(piece->place + got),
                               piece->len - got};
        ssize_t n = process_vm_readv((pid_t)s->process, &local, 1, &remote, 1,
                                     0);

        if (n <= 0) {
            return false;
        }
        got += (uint64_t)n;
    }
    return got == piece->len;
}

int conn_shm_read(struct conn_shm *s, int fd, unsigned ref_count, void *dst,
                  uint64_t len)
{
    uint8_t *to = dst;
    bool ok = true;

    for (unsigned i = 0; dst != NULL && ok && i < ref_count; i++) {
        ok = s->refs[i].arena != 0 ? read_arena(s, &s->refs[i], to)
                                   : read_process(s, &s->refs[i], to);
        to += s->refs[i].len;
    }
    if (dst != NULL && !is_peer_connected(fd)) {
        return PS_E_CLOSED;
    }
    if (!ok) {
        return PS_E_PROTO;
    }
    s->to_release++;
    s->to_release_bytes += len;
    return 0;
}

/* Output */

/* Queues a message of the connection itself. Takes over the descriptor. */
static void send_shm_msg(struct conn_shm *s, const struct ps_msg *msg,
                         enum ps_frame_order order, int fd)
{
    struct ps_out_frame *f;
    int rc = ps_out_frame_new(s->writer, msg, 0, 0, NULL, &f);

    assert(rc == 0); /* Only integers, within their bound. */
    (void)rc;
    f->pass_fd = fd;
    f->order = (uint8_t)order;
    ps_frame_writer_push(s->writer, f, 0);
}

void conn_shm_send_release(struct conn_shm *s)
{
    send_shm_msg(s,
                 &(struct ps_msg){.code = PS_MSG_SHM_RELEASE,
                                  .shm_release = {.payloads = s->to_release}},
                 PS_FRAME_AHEAD, -1);
    s->to_release = 0;
    s->to_release_bytes = 0;
}

void conn_shm_send_caps(struct conn_shm *s)
{
    send_shm_msg(s,
                 &(struct ps_msg){.code = PS_MSG_SHM_CAPS,
                                  .shm_caps = {.reads_memory = s->process != 0,
                                               .maps_arenas = true}},
                 PS_FRAME_IN_ORDER, -1);
}

bool conn_shm_send_freed_arenas(struct conn_shm *s)
{
    struct ps_map_cursor at = {0};
    bool any = false;
    void *number;

    if (s->arenas_sent == NULL ||
        s->arenas_freed_seen == ps_arenas_freed_count(s->arenas)) {
        return false;
    }
    s->arenas_freed_seen = ps_arenas_freed_count(s->arenas);
    while ((number = ps_map_next(s->arenas_sent, &at)) != NULL) {
        const uint32_t arena = (uint32_t)(uintptr_t)number;
        uint64_t size;
        int fd;

        if (ps_arenas_fd(s->arenas, arena, &fd, &size) != 0) {
            (void)ps_map_remove(s->arenas_sent, arena);
            send_shm_msg(s,
                         &(struct ps_msg){.code = PS_MSG_SHM_UNMAP,
                                          .shm_unmap = {.arena = arena}},
                         PS_FRAME_IN_ORDER, -1);
            any = true;
        }
    }
    return any;
}

/* Announces an arena to the peer. False: impossible now. */
static bool send_arena(struct conn_shm *s, uint32_t arena)
{
    uint64_t size;
    int fd;

    if (s->arenas_sent != NULL && ps_map_get(s->arenas_sent, arena) != NULL) {
        return true;
    }
    if (s->arenas_sent == NULL) {
        s->arenas_sent = ps_map_new();
        s->arenas_freed_seen = ps_arenas_freed_count(s->arenas);
    }
    if (ps_map_count(s->arenas_sent) == ARENAS_MAX) {
        (void)conn_shm_send_freed_arenas(s);
    }
    if (ps_map_count(s->arenas_sent) == ARENAS_MAX ||
        ps_arenas_fd(s->arenas, arena, &fd, &size) != 0) {
        return false;
    }
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return false; /* Out of descriptors: the payload is sent otherwise. */
    }
    send_shm_msg(
        s,
        &(struct ps_msg){.code = PS_MSG_SHM_MAP, .shm_map = {.arena = arena}},
        PS_FRAME_IN_ORDER, fd);
    ps_map_put(s->arenas_sent, arena, (void *)(uintptr_t)arena);
    return true;
}

void conn_shm_refer(struct conn_shm *s, struct ps_out_frame *f,
                    uint64_t payload_len)
{
    uint8_t *at = f->header + f->header_len;

    if (payload_len < REF_MIN || f->slice_count > PS_FRAME_REFS_MAX) {
        return;
    }
    for (uint32_t i = 0; i < f->slice_count; i++) {
        const struct ps_slice *p = &f->slices[i];
        struct ps_fixed_shm_ref ref = {.len = (uint32_t)p->len};

        if (p->len == 0) {
            return;
        }
        if ((s->peer_caps & CONN_SHM_MAPS_ARENAS) != 0 && s->arenas != NULL &&
            p->buf->tag != 0) {
            if (!send_arena(s, p->buf->tag)) {
                return;
            }
            ref.arena = p->buf->tag;
            ref.place = p->buf->offset + p->offset;
        } else if ((s->peer_caps & CONN_SHM_READS_MEMORY) != 0) {
            ref.place = (uintptr_t)ps_slice_data(p);
        } else {
            return;
        }
        ps_fixed_put_shm_ref(at, &ref);
        at += PS_FIXED_SHM_REF_BYTES;
    }
    ps_frame_set_ref_count(f->header, (uint8_t)f->slice_count);
    f->header_len += f->slice_count * PS_FIXED_SHM_REF_BYTES;
    f->len = f->header_len;
    f->by_reference = true;
}
