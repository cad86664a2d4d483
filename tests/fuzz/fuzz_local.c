/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and descriptors on an agent's Unix socket, from the first hello on,
 * through the code that reads them in the daemon. The input is a list of
 * pieces: number of bytes (1), kinds of their descriptors (1), the bytes. For
 * any input the connection ends, and all descriptors are closed. */
#include <assert.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "net/conn.h"
#include "net/local.h"
#include "net/loop.h"

#define SIZE      4096
/* More than an address space has. */
#define HUGE_SIZE (UINT64_C(1) << 60)
#define SEALS     (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static bool closed;

static void on_frame(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                     uint64_t len)
{
    struct ps_buf *buf;
    const char *why;
    int fd;

    (void)ctx;
    (void)len;
    if (msg->code != PS_MSG_L_REGION) {
        return;
    }
    fd = ps_conn_pop_fd(c);
    if (fd < 0) {
        ps_conn_close(c, PS_E_PROTO, "l_region without a descriptor");
        return;
    }
    if (ps_local_map(fd, msg->l_region.size, PROT_READ, &buf, &why) != 0) {
        ps_conn_close(c, PS_E_INVAL, why);
        return;
    }
    assert(buf->size == msg->l_region.size && buf->size > 0);
    (void)*(volatile uint8_t *)(buf->data + buf->size - 1);
    ps_buf_unref(buf);
}

static void on_closed(void *ctx, struct ps_conn *c, int rc)
{
    (void)ctx;
    assert(rc != 0);
    assert(ps_conn_reason(c)[0] != '\0');
    ps_conn_free(c);
    closed = true;
}

static const struct ps_conn_ops ops = {.frame = on_frame, .closed = on_closed};

static int memfd(size_t size, int seals)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    if (seals != 0) {
        assert(fcntl(fd, F_ADD_SEALS, seals) == 0);
    }
    return fd;
}

/* The kind of one descriptor by three bits; -1: none. */
static int make_fd(unsigned kind)
{
    int pipes[2];

    switch (kind) {
    case 1:
        return memfd(SIZE, SEALS);
    case 2:
        return memfd(SIZE, F_SEAL_SHRINK);
    case 3:
        return memfd(HUGE_SIZE, SEALS);
    case 4:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 5:
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case 6:
        assert(pipe2(pipes, O_CLOEXEC) == 0);
        close(pipes[1]);
        return pipes[0];
    case 7:
        return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    default:
        return -1;
    }
}

static void send_piece(int to, const uint8_t *bytes, size_t len, unsigned what)
{
    char control[CMSG_SPACE(20 * sizeof(int))] = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    int fds[20];
    size_t count = 0;
    size_t want = what >> 6 == 3 ? 17 : 1u + (what >> 6);

    for (size_t i = 0; i < want && len > 0; i++) {
        int fd = make_fd(what >> (i % 2 * 3) & 7);

        if (fd >= 0) {
            fds[count++] = fd;
        }
    }
    if (count > 0) {
        struct cmsghdr *h;

        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
        h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(h), fds, count * sizeof(int));
    }
    if (len > 0) {
        (void)!sendmsg(to, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
}

/* The lowest number that a descriptor would get: it falls behind leaks. */
static int next_fd(void)
{
    int fd = dup(0);

    if (fd < 0) {
        fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ps_loop *loop;
    struct ps_conn *conn;
    size_t at = 0;
    int before;
    int fd[2];

    if (loop == NULL) {
        assert(ps_loop_new(&loop) == 0);
    }
    before = next_fd();
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
    struct ps_conn_options opt = {.loop = loop,
                                  .fd = fd[0],
                                  .peer = "fuzz",
                                  .self = PS_ROLE_AGENT,
                                  .peer_roles = 1u << PS_ROLE_WORKER,
                                  .local = true,
                                  .ops = &ops};

    closed = false;
    assert(ps_conn_open(&opt, &conn) == 0);
    while (at + 2 <= size) {
        size_t len = data[at];
        unsigned what = data[at + 1];

        at += 2;
        if (len > size - at) {
            len = size - at;
        }
        send_piece(fd[1], data + at, len, what);
        at += len;
    }
    shutdown(fd[1], SHUT_WR);
    close(fd[1]);
    while (!closed) {
        assert(ps_loop_step(loop) || closed);
    }
    assert(next_fd() == before);
    return 0;
}
