/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of TCP: listening, accepting and dialling. */
#include "net/socket.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/str.h"
#include "net/addr.h"
#include "net/loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

/* ---------------------------------------------------------------- listening */

/* Accepts in small batches, so that a flood of connections does not starve the
 * existing ones. One descriptor is kept in reserve: when none is left, it is
 * closed to accept and close one connection, because otherwise the waiting
 * connection would wake the loop forever. */

#define ACCEPT_BATCH 16

struct ps_listener {
    uv_poll_t poll;
    int fd;
    int reserve_fd;
    bool is_closing;
    ps_listener_cb accepted;
    void *ctx;
};

static int fill_address(const char *host, uint16_t port,
                        struct sockaddr_storage *sa, socklen_t *ret_len)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)sa;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)sa;

    char number[PS_ADDRESS_MAX + 1];

    if (strcmp(host, "localhost") == 0) {
        host = "127.0.0.1";
    } else if (ps_addr_kind(host) == PS_ADDR_NAME) {
        int rc = ps_addr_lookup(host, number, sizeof(number));

        if (rc != 0) {
            return rc;
        }
        host = number;
    }
    memset(sa, 0, sizeof(*sa));
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        *ret_len = sizeof(*v4);
        return 0;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        *ret_len = sizeof(*v6);
        return 0;
    }
    return PS_E_INVAL;
}

static int bind_error(int errnum)
{
    switch (errnum) {
    case EADDRINUSE:
        return PS_E_EXIST;
    case EADDRNOTAVAIL:
        return PS_E_INVAL;
    default:
        return ps_err_from_errno(errnum);
    }
}

int ps_listen_tcp(const char *host, uint16_t port, int backlog, int *ret_fd,
                  uint16_t *ret_port)
{
    struct sockaddr_storage sa;
    socklen_t len;
    int one = 1;
    int rc = fill_address(host, port, &sa, &len);

    if (rc != 0) {
        return rc;
    }
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    0);

    if (fd < 0) {
        return ps_err_from_errno(errno);
    }
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, (struct sockaddr *)&sa, len) != 0 ||
        listen(fd, backlog) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
        rc = bind_error(errno);
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    /* The port has the same offset in both families. */
    *ret_port = ntohs(((struct sockaddr_in *)&sa)->sin_port);
    return 0;
}

int ps_listen_adopt(int fd, const char *host, uint16_t port, uint16_t *ret_port)
{
    struct sockaddr_storage wanted;
    struct sockaddr_storage actual;
    socklen_t len = sizeof(actual);
    char texts[2][PS_ADDRESS_MAX + 1];
    int rc;

    memset(&actual, 0, sizeof(actual)); /* Short if it is of another family. */
    if (getsockname(fd, (struct sockaddr *)&actual, &len) != 0) {
        return ps_err_from_errno(errno);
    }
    /* The port has the same offset in both families. */
    *ret_port = ntohs(((struct sockaddr_in *)&actual)->sin_port);
    rc = fill_address(host, port != 0 ? port : *ret_port, &wanted, &len);
    if (rc != 0) {
        return rc;
    }
    ps_addr_print((struct sockaddr *)&wanted, texts[0], sizeof(texts[0]));
    ps_addr_print((struct sockaddr *)&actual, texts[1], sizeof(texts[1]));
    return strcmp(texts[0], texts[1]) == 0 ? 0 : PS_E_INVAL;
}

static int open_reserve_fd(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void refuse_one(struct ps_listener *s)
{
    int fd;

    close(s->reserve_fd);
    fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        close(fd);
    }
    s->reserve_fd = open_reserve_fd();
    if (fd >= 0) {
        s->accepted(s->ctx, -1);
    }
}

static void accept_ready(uv_poll_t *handle, int status, int events)
{
    struct ps_listener *s = handle->data;

    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPT_BATCH && !s->is_closing; i++) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            s->accepted(s->ctx, fd);
        } else if (errno == EMFILE || errno == ENFILE) {
            refuse_one(s);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

int ps_listener_open(struct ps_loop *l, int fd, ps_listener_cb accepted,
                     void *ctx, struct ps_listener **ret_listener)
{
    struct ps_listener *s = ps_calloc(1, sizeof(*s));
    int rc = uv_poll_init(ps_loop_uv(l), &s->poll, fd);

    if (rc != 0) {
        ps_free(s);
        return ps_err_from_uv(rc);
    }
    s->poll.data = s;
    s->fd = fd;
    s->reserve_fd = open_reserve_fd();
    s->accepted = accepted;
    s->ctx = ctx;
    rc = uv_poll_start(&s->poll, UV_READABLE, accept_ready);
    if (rc != 0) {
        s->fd = -1; /* The descriptor remains the caller's. */
        ps_listener_close(s);
        return ps_err_from_uv(rc);
    }
    *ret_listener = s;
    return 0;
}

static void listener_closed(uv_handle_t *handle)
{
    ps_free(handle->data);
}

void ps_listener_close(struct ps_listener *s)
{
    if (s == NULL || s->is_closing) {
        return;
    }
    s->is_closing = true;
    uv_close((uv_handle_t *)&s->poll, listener_closed);
    if (s->fd >= 0) {
        close(s->fd);
    }
    close(s->reserve_fd);
}

/* ----------------------------------------------------------------- dialling */

/* One connection attempt: look-up, then one socket after the other. The handle
 * that watches a socket must be closed before the next attempt, which takes an
 * iteration of the loop; the end passes through the same close callback, so
 * that one place calls back. */

struct ps_dial {
    struct ps_loop *loop;
    ps_dial_cb done;
    void *ctx;
    char host[PS_ADDRESS_MAX + 1];
    ps_time timeout; /* Limit on connecting, without the look-up. */
    uv_getaddrinfo_t lookup;
    uv_poll_t poll;
    struct ps_loop_timer timer;
    struct addrinfo *addresses;
    struct addrinfo *next;
    bool is_resolving; /* The look-up is in progress. */
    bool is_polling;
    bool has_ended;
    int fd;
    int rc;
    char detail[PS_DIAL_DETAIL_MAX];
};

static void dial_finish(struct ps_dial *d)
{
    ps_dial_cb done = d->done;
    void *ctx = d->ctx;
    int fd = d->fd;
    int rc = d->rc;
    char detail[PS_DIAL_DETAIL_MAX];

    if (rc != 0 && fd >= 0) {
        close(fd);
        fd = -1;
    }
    ps_str_copy(detail, sizeof(detail), d->detail);
    ps_loop_timer_set(d->loop, &d->timer, PS_TIME_NEVER);
    uv_freeaddrinfo(d->addresses);
    ps_free(d);
    done(ctx, fd, rc, detail);
}

static void next_address(struct ps_dial *d);

static void poll_closed(uv_handle_t *handle)
{
    struct ps_dial *d = handle->data;

    d->is_polling = false;
    if (d->has_ended) {
        dial_finish(d);
    } else {
        next_address(d);
    }
}

static void dial_address_failed(struct ps_dial *d, int rc, const char *words)
{
    d->rc = rc;
    ps_str_copy(d->detail, sizeof(d->detail), words);
}

/* Ends the attempt at one address; ends the dial if it connected. */
static void dial_maybe_done(struct ps_dial *d, int errnum)
{
    if (errnum == 0) {
        d->has_ended = true;
        d->rc = 0;
    } else {
        dial_address_failed(d, ps_err_from_errno(errnum), uv_strerror(-errnum));
        close(d->fd);
        d->fd = -1;
    }
    uv_close((uv_handle_t *)&d->poll, poll_closed);
}

static void dial_connected(uv_poll_t *handle, int status, int events)
{
    struct ps_dial *d = handle->data;
    int error = 0;
    socklen_t len = sizeof(error);

    (void)events;
    if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) {
        error = errno;
    }
    if (error == 0 && status < 0) {
        error = EIO; /* Not a refusal: that would count as evidence of death. */
    }
    dial_maybe_done(d, error);
}

static bool try_address(struct ps_dial *d, const struct addrinfo *ai)
{
    d->fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                   0);
    if (d->fd < 0) {
        dial_address_failed(d, ps_err_from_errno(errno), strerror(errno));
        return false;
    }
    int rc = connect(d->fd, ai->ai_addr, ai->ai_addrlen);
    int error = rc == 0 || errno == EINPROGRESS ? 0 : errno;

    if (error == 0) {
        error = -uv_poll_init(ps_loop_uv(d->loop), &d->poll, d->fd);
    }
    if (error != 0) {
        dial_address_failed(d, ps_err_from_errno(error), uv_strerror(-error));
        close(d->fd);
        d->fd = -1;
        return false;
    }
    d->poll.data = d;
    d->is_polling = true;
    ps_addr_print(ai->ai_addr, d->detail, sizeof(d->detail));
    error = -uv_poll_start(&d->poll, UV_WRITABLE, dial_connected);
    if (error != 0) {
        dial_maybe_done(d, error);
    }
    return true;
}

static void next_address(struct ps_dial *d)
{
    while (d->next != NULL && !d->has_ended) {
        const struct addrinfo *ai = d->next;

        d->next = ai->ai_next;
        if (try_address(d, ai)) {
            return;
        }
    }
    dial_finish(d);
}

static void dial_resolved(uv_getaddrinfo_t *req, int status,
                          struct addrinfo *res)
{
    struct ps_dial *d = req->data;

    d->is_resolving = false;
    d->addresses = res;
    d->next = res;
    ps_loop_timer_set(d->loop, &d->timer, ps_loop_now(d->loop) + d->timeout);
    if (status != 0 && !d->has_ended) {
        dial_address_failed(d, ps_err_from_uv(status), "");
        snprintf(d->detail, sizeof(d->detail), "cannot resolve '%.80s': %s",
                 d->host, uv_strerror(status));
        d->has_ended = true;
    }
    next_address(d);
}

/* Ends the dial early: cancels the look-up or closes the socket's handle. */
static void dial_fail(struct ps_dial *d, int rc, const char *words)
{
    if (d->has_ended) {
        return;
    }
    d->has_ended = true;
    dial_address_failed(d, rc, words);
    if (d->is_resolving) {
        uv_cancel((uv_req_t *)&d->lookup);
    } else if (d->is_polling && !uv_is_closing((uv_handle_t *)&d->poll)) {
        uv_close((uv_handle_t *)&d->poll, poll_closed);
    }
}

static void dial_timed_out(struct ps_loop_timer *t)
{
    struct ps_dial *d = PS_CONTAINER(t, struct ps_dial, timer);

    dial_fail(d, PS_E_TIMEOUT, "no answer in time");
}

int ps_dial_start(struct ps_loop *l, const char *address, ps_time timeout,
                  ps_dial_cb done, void *ctx, struct ps_dial **ret_dial)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct ps_addr a;
    char service[8];
    int rc = ps_addr_parse(address, &a);

    if (rc != 0) {
        return rc;
    }
    if (ps_addr_kind(a.host) != PS_ADDR_NAME) {
        hints.ai_flags = AI_NUMERICHOST;
    }
    struct ps_dial *d = ps_calloc(1, sizeof(*d));

    d->loop = l;
    d->done = done;
    d->ctx = ctx;
    d->timeout = timeout;
    d->fd = -1;
    d->rc = PS_E_UNREACH;
    ps_str_copy(d->host, sizeof(d->host), a.host);
    d->timer.due = dial_timed_out;
    d->lookup.data = d;
    snprintf(service, sizeof(service), "%u", (unsigned)a.port);
    rc = uv_getaddrinfo(ps_loop_uv(l), &d->lookup, dial_resolved, a.host,
                        service, &hints);
    if (rc != 0) {
        ps_free(d);
        return ps_err_from_uv(rc);
    }
    d->is_resolving = true;
    ps_loop_timer_set(l, &d->timer, ps_loop_now(l) + PS_DIAL_LOOKUP_MAX);
    *ret_dial = d;
    return 0;
}

void ps_dial_cancel(struct ps_dial *d)
{
    dial_fail(d, PS_E_CANCELED, "canceled");
}
