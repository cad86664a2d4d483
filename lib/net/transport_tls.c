/* SPDX-License-Identifier: Apache-2.0 */
#include "net/transport.h"

#include "base/err.h"
#include "crypto/tls.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

static ssize_t tls_read(struct ps_transport *t, struct iovec *iov, int count)
{
    ssize_t n = ps_tls_session_read(t->ctx, iov, count);

    t->has_unread = ps_tls_session_has_unread(t->ctx);
    switch (n) {
    case PS_E_AGAIN:
        errno = EAGAIN;
        return -1;
    case PS_E_IO:
        return -1;
    case PS_E_CLOSED:
        return 0;
    default:
        break;
    }
    if (n < 0) {
        t->failure_rc = (int)n;
        t->failure = ps_tls_session_failure(t->ctx);
        errno = ECANCELED;
        return -1;
    }
    return n;
}

static ssize_t tls_write(struct ps_transport *t, struct iovec *iov, int count,
                         int pass_fd)
{
    ssize_t n = ps_tls_session_write(t->ctx, iov, count);

    (void)pass_fd;
    t->unsent = ps_tls_session_unsent(t->ctx);
    if (n == PS_E_AGAIN) {
        errno = EAGAIN;
    } else if (n == PS_E_IO && errno == EKEYEXPIRED) {
        t->failure_rc = PS_E_CLOSED;
        t->failure = "the kernel cannot change the keys of its output; the "
                     "link goes on with another connection";
    }
    return n < 0 ? -1 : n;
}

/* The kernel would drop sealed records that TCP has not taken yet: the peer
 * ends the connection at the message instead. */
static void tls_end(struct ps_transport *t)
{
    ps_tls_session_end(t->ctx);
    if (!ps_tls_session_is_sealed_by_kernel(t->ctx)) {
        (void)shutdown(t->fd, SHUT_WR);
    }
}

static void tls_fini(struct ps_transport *t)
{
    ps_tls_session_free(t->ctx);
}

const struct ps_transport_ops ps_transport_tls = {
    .flags = PS_TRANSPORT_IS_TCP | PS_TRANSPORT_IN_PLACE |
             PS_TRANSPORT_ONE_THREAD,
    .read_turn = PS_TLS_BATCH_BYTES,
    .write_turn = PS_TLS_BATCH_BYTES,
    .read = tls_read,
    .write = tls_write,
    .end = tls_end,
    .fini = tls_fini,
};

struct ps_tls_session *ps_transport_session(const struct ps_transport *t)
{
    return t->ops == &ps_transport_tls ? t->ctx : NULL;
}

bool ps_transport_kernel_has_tls(void)
{
    static const char name[] = "tls";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has_tls = false;

    if (fd >= 0) {
        /* The error of a socket without connection, if the module is here. */
        has_tls = setsockopt(fd, IPPROTO_TCP, TCP_ULP, name, sizeof(name)) ==
                      0 ||
                  errno == ENOTCONN;
        close(fd);
    }
    return has_tls;
}
