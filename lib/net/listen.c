/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts in small batches, so that a flood of connections does not starve the
 * existing ones. One descriptor is kept in reserve: when none is left, it is
 * closed to accept and close one connection, because otherwise the waiting
 * connection would wake the loop forever. */
#include "net/listen.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "net/addr.h"
#include "net/loop.h"
#include "net/uverr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

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

static bool same_address(const struct sockaddr_storage *a,
                         const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family) {
        return false;
    }
    return a->ss_family == AF_INET
               ? memcmp(&((const struct sockaddr_in *)a)->sin_addr,
                        &((const struct sockaddr_in *)b)->sin_addr,
                        sizeof(struct in_addr)) == 0
               : memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                        &((const struct sockaddr_in6 *)b)->sin6_addr,
                        sizeof(struct in6_addr)) == 0;
}

int ps_listen_adopt(int fd, const char *host, uint16_t port, uint16_t *ret_port)
{
    struct sockaddr_storage wanted;
    struct sockaddr_storage actual = {0};
    socklen_t wanted_len;
    socklen_t len = sizeof(actual);
    int rc = fill_address(host, port, &wanted, &wanted_len);

    if (rc != 0) {
        return rc;
    }
    if (getsockname(fd, (struct sockaddr *)&actual, &len) != 0) {
        return ps_err_from_errno(errno);
    }
    *ret_port = ps_addr_port((const struct sockaddr *)&actual);
    return same_address(&wanted, &actual) && (port == 0 || port == *ret_port)
               ? 0
               : PS_E_INVAL;
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

static void handle_closed(uv_handle_t *handle)
{
    ps_free(handle->data);
}

void ps_listener_close(struct ps_listener *s)
{
    if (s == NULL || s->is_closing) {
        return;
    }
    s->is_closing = true;
    uv_close((uv_handle_t *)&s->poll, handle_closed);
    if (s->fd >= 0) {
        close(s->fd);
    }
    close(s->reserve_fd);
}
