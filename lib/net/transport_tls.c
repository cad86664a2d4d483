/* SPDX-License-Identifier: Apache-2.0 */
#include "net/transport_tls.h"

#include "base/err.h"
#include "crypto/tls_session.h"

#include <errno.h>
#include <sys/socket.h>

static ssize_t tls_failed(struct ps_transport *t, int rc, const char *text)
{
    t->failure_rc = rc;
    t->failure = text;
    errno = ECANCELED;
    return -1;
}

/* Reads from the socket once. */
static ssize_t receive_records(const struct ps_transport *t)
{
    size_t room;
    void *place = ps_tls_session_place(t->ctx, &room);
    ssize_t n;

    do {
        n = recv(t->fd, place, room, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n > 0) {
        ps_tls_session_received(t->ctx, (size_t)n);
    }
    return n;
}

static ssize_t tls_read(struct ps_transport *t, struct iovec *iov, int count)
{
    ssize_t n = ps_tls_session_read(t->ctx, iov, count);

    if (n == PS_E_AGAIN) {
        ssize_t got = receive_records(t);

        if (got <= 0) {
            return got;
        }
        n = ps_tls_session_read(t->ctx, iov, count);
    }
    if (n == PS_E_AGAIN) {
        errno = EAGAIN; /* The rest of a record is still to come. */
        return -1;
    }
    if (n == PS_E_CLOSED) {
        return 0;
    }
    return n > 0 ? n : tls_failed(t, (int)n, ps_tls_session_failure(t->ctx));
}

/* Writes sealed records; false with errno: some are left. */
static bool send_records(struct ps_transport *t)
{
    for (;;) {
        size_t len;
        const void *bytes = ps_tls_session_output(t->ctx, &len);
        ssize_t n;

        t->unsent = len;
        if (len == 0) {
            return true;
        }
        do {
            n = send(t->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        } while (n < 0 && errno == EINTR);
        if (n < 0) {
            return false;
        }
        ps_tls_session_sent(t->ctx, (size_t)n);
    }
}

static ssize_t tls_write(struct ps_transport *t, struct iovec *iov, int count,
                         int pass_fd)
{
    ssize_t n;

    (void)pass_fd;
    if (!send_records(t)) {
        return -1;
    }
    if (count == 0) {
        return 0;
    }
    n = ps_tls_session_write(t->ctx, iov, count);
    if (n < 0) {
        errno = EIO;
        return -1;
    }
    (void)send_records(t); /* An error comes again with the next call. */
    return n;
}

static size_t tls_pending(const struct ps_transport *t)
{
    return ps_tls_session_pending(t->ctx);
}

static void tls_end(struct ps_transport *t)
{
    ps_tls_session_end(t->ctx);
    (void)send_records(t);
    (void)shutdown(t->fd, SHUT_WR);
}

static void tls_fini(struct ps_transport *t)
{
    ps_tls_session_free(t->ctx);
}

const struct ps_transport_ops ps_transport_tls = {
    .flags = PS_TRANSPORT_IS_TCP | PS_TRANSPORT_IN_PLACE,
    .read_turn = PS_TRANSPORT_TLS_TURN,
    .write_turn = PS_TRANSPORT_TLS_TURN,
    .read = tls_read,
    .write = tls_write,
    .pending = tls_pending,
    .end = tls_end,
    .fini = tls_fini,
};
