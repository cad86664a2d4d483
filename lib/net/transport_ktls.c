/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel gets the keys of a direction as soon as the session holds no byte
 * of it: of the output when the handshake has left, of the input when what
 * arrived with the handshake is read. Until then, and where the kernel refuses,
 * the session protects the records. */
#include "net/transport_ktls.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/num.h"
#include "crypto/tls_record.h"
#include "crypto/tls_session.h"
#include "net/ktls.h"
#include "net/transport_tls.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* Content of a record that is not data; longer ones are cut, and refused. */
#define CONTROL_MAX 512u

/* Protection of the records of one direction. */
enum protection {
    BY_SESSION, /* The kernel has not been asked. */
    BY_SESSION_ALONE,
    BY_KERNEL,
};

/* Two threads may use the two directions at the same time. */
struct ps_ktls {
    struct ps_transport session; /* Of net/transport_tls.h. */
    enum protection input;
    enum protection output;
    uint64_t records; /* By the kernel, under the present keys of the output. */
    bool update_due;  /* Those have to change. */
};

static struct ps_tls_session *session_of(const struct ps_ktls *k)
{
    return k->session.ctx;
}

/* Gives the keys of a direction to the kernel, if it is time. */
static enum protection give_keys(const struct ps_ktls *k, bool output)
{
    struct ps_tls_material m;
    int rc = ps_tls_session_export(session_of(k), output, &m);

    if (rc != 0) {
        return rc == PS_E_AGAIN ? BY_SESSION : BY_SESSION_ALONE;
    }
    bool is_started = ps_ktls_start(k->session.fd, output, &m);

    ps_tls_material_erase(&m);
    return is_started ? BY_KERNEL : BY_SESSION_ALONE;
}

static ssize_t ktls_failed(struct ps_transport *t, int rc, const char *text)
{
    t->failure_rc = rc;
    t->failure = text;
    errno = ECANCELED;
    return -1;
}

/* Copies the first `len` bytes of the places. */
static void copy_places(const struct iovec *iov, size_t len, uint8_t *out)
{
    for (size_t at = 0; at < len; iov++) {
        size_t n = (size_t)ps_min_u64(iov->iov_len, len - at);

        memcpy(out + at, iov->iov_base, n);
        at += n;
    }
}

/* A record that is not data has come, to the places of data. -1: no further
 * reading, 0: end of the input, 1: reading goes on. */
static int accept_control(struct ps_transport *t, uint8_t type,
                          const struct iovec *iov, size_t len)
{
    struct ps_ktls *k = t->ctx;
    uint8_t message[CONTROL_MAX];
    bool is_update;

    len = (size_t)ps_min_u64(len, sizeof(message));
    copy_places(iov, len, message);
    int rc = ps_tls_session_control(session_of(k), type, message, len,
                                    &is_update);

    if (rc == PS_E_CLOSED) {
        return 0;
    }
    if (rc != 0) {
        return (int)ktls_failed(t, rc, ps_tls_session_failure(session_of(k)));
    }
    if (is_update && give_keys(k, false) != BY_KERNEL) {
        return (int)ktls_failed(t, PS_E_CLOSED,
                                "the kernel cannot change the keys of its "
                                "input; the link goes on with another "
                                "connection");
    }
    return 1;
}

static ssize_t read_by_kernel(struct ps_transport *t, struct iovec *iov,
                              int count)
{
    for (;;) {
        uint8_t type;
        ssize_t n = ps_ktls_receive(t->fd, iov, count, &type);

        if (n < 0 &&
            (errno == EBADMSG || errno == EMSGSIZE || errno == EINVAL)) {
            return ktls_failed(t, PS_E_PROTO,
                               "TLS record was changed on its way");
        }
        if (n <= 0 || type == PS_TLS_DATA) {
            return n;
        }
        int goes_on = accept_control(t, type, iov, (size_t)n);

        if (goes_on <= 0) {
            return goes_on;
        }
    }
}

static ssize_t ktls_read(struct ps_transport *t, struct iovec *iov, int count)
{
    struct ps_ktls *k = t->ctx;

    if (k->input == BY_SESSION) {
        k->input = give_keys(k, false);
    }
    if (k->input == BY_KERNEL) {
        return read_by_kernel(t, iov, count);
    }
    ssize_t n = ps_transport_tls.read(&k->session, iov, count);

    t->failure_rc = k->session.failure_rc;
    t->failure = k->session.failure;
    return n;
}

/* Announces new keys, and gives them to the kernel. False with errno. */
static bool update_output(struct ps_ktls *k)
{
    static const uint8_t message[] = {PS_TLS_KEY_UPDATE, 0, 0, 1, 0};

    if (!ps_ktls_send_control(k->session.fd, PS_TLS_HANDSHAKE, message,
                              sizeof(message))) {
        return false;
    }
    k->records = 0;
    k->update_due = false;
    if (ps_tls_session_update_output(session_of(k)) != 0 ||
        give_keys(k, true) != BY_KERNEL) {
        errno = EKEYEXPIRED; /* The link goes on with another connection. */
        return false;
    }
    return true;
}

static ssize_t write_by_kernel(struct ps_ktls *k, struct iovec *iov, int count)
{
    /* Kept: the announcement may find the socket full. */
    k->update_due = k->update_due ||
                    ps_tls_session_update_due(session_of(k), k->records);
    if (k->update_due && !update_output(k)) {
        return -1;
    }
    ssize_t n = ps_ktls_send(k->session.fd, iov, count);

    k->records += n > 0 ? (uint64_t)n / PS_TLS_CONTENT + 1 : 0;
    return n;
}

static ssize_t ktls_write(struct ps_transport *t, struct iovec *iov, int count,
                          int pass_fd)
{
    struct ps_ktls *k = t->ctx;

    if (k->output == BY_SESSION &&
        ps_transport_tls.write(&k->session, NULL, 0, -1) == 0) {
        k->output = give_keys(k, true);
    }
    if (k->output == BY_KERNEL) {
        t->unsent = 0;
        return count == 0 ? 0 : write_by_kernel(k, iov, count);
    }
    ssize_t n = ps_transport_tls.write(&k->session, iov, count, pass_fd);

    t->unsent = k->session.unsent;
    return n;
}

static size_t ktls_pending(const struct ps_transport *t)
{
    const struct ps_ktls *k = t->ctx;

    return k->input == BY_KERNEL ? 0 : ps_transport_tls.pending(&k->session);
}

static void ktls_end(struct ps_transport *t)
{
    static const uint8_t close_notify[] = {1, 0};
    struct ps_ktls *k = t->ctx;

    if (k->output != BY_KERNEL) {
        ps_transport_tls.end(&k->session);
        return;
    }
    /* Without shutdown(): the kernel would drop records that TCP has not
     * taken yet. The peer ends its output at the alert. */
    if (!ps_ktls_send_control(t->fd, PS_TLS_ALERT, close_notify,
                              sizeof(close_notify))) {
        (void)shutdown(t->fd, SHUT_WR);
    }
}

static void ktls_fini(struct ps_transport *t)
{
    struct ps_ktls *k = t->ctx;

    ps_transport_fini(&k->session);
    ps_free(k);
}

struct ps_ktls *ps_ktls_new(struct ps_tls_session *session, int fd)
{
    struct ps_ktls *k = ps_calloc(1, sizeof(*k));

    k->session = (struct ps_transport){
        .ops = &ps_transport_tls, .ctx = session, .fd = fd};
    return k;
}

void ps_ktls_release(struct ps_ktls *k)
{
    ps_free(k);
}

const struct ps_transport_ops ps_transport_ktls = {
    .flags = PS_TRANSPORT_IS_TCP | PS_TRANSPORT_IN_PLACE,
    .read_turn = PS_TRANSPORT_TLS_TURN,
    .write_turn = PS_TRANSPORT_TLS_TURN,
    .read = ktls_read,
    .write = ktls_write,
    .pending = ktls_pending,
    .end = ktls_end,
    .fini = ktls_fini,
};

struct ps_tls_session *ps_transport_session(const struct ps_transport *t)
{
    return t->ops == &ps_transport_tls    ? t->ctx
           : t->ops == &ps_transport_ktls ? session_of(t->ctx)
                                          : NULL;
}
