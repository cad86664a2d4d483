/* SPDX-License-Identifier: Apache-2.0 */
/* Liveness port of an agent: every connection is accepted and closed at once.
 * When the process ends, for whatever reason, the kernel refuses connections
 * there, so the scheduler detects the death in a moment instead of after a
 * lease. The port is bound to the address from which the agent reaches the
 * scheduler. Without a port the agent works, and its lease decides. */
#include "driver/inner.h"

#include "base/log.h"
#include "net/addr.h"
#include "net/listen.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 8

static void refuse_caller(void *ctx, int fd)
{
    (void)ctx;
    if (fd >= 0) {
        close(fd);
    }
}

/* Local numeric address of `fd`, without port. */
static bool host_of_socket(int fd, char *out, size_t cap, bool *ret_v6)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    struct ps_addr a;
    char text[PS_CONN_PEER_MAX];

    if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
        return false;
    }
    ps_addr_print((struct sockaddr *)&sa, text, sizeof(text));
    if (ps_addr_parse(text, &a) != 0) {
        return false;
    }
    *ret_v6 = sa.ss_family == AF_INET6;
    return snprintf(out, cap, "%s", a.host) < (int)cap;
}

/* Listens on the first free port of the configured ones. */
static int listen_free(const struct ps_driver *d, const char *host, int *ret_fd,
                       uint16_t *ret_port)
{
    int rc = PS_E_EXIST;

    for (uint16_t i = 0; rc == PS_E_EXIST && i < d->opt.liveness_port_count;
         i++) {
        rc = ps_listen_tcp(host, (uint16_t)(d->opt.liveness_port + i), BACKLOG,
                           ret_fd, ret_port);
    }
    if (rc == PS_E_EXIST && d->opt.liveness_any) {
        rc = ps_listen_tcp(host, 0, BACKLOG, ret_fd, ret_port);
    }
    return rc;
}

void driver_liveness_close(struct ps_driver *d)
{
    ps_listener_close(d->liveness.listener);
    d->liveness.listener = NULL;
    d->liveness.host[0] = '\0';
}

const char *driver_liveness_address(struct ps_driver *d, int fd)
{
    char host[PS_ADDRESS_MAX + 1];
    bool v6;
    uint16_t port;
    int sock;
    int rc;

    if (d->opt.liveness_port_count == 0 || d->is_closing ||
        !host_of_socket(fd, host, sizeof(host), &v6)) {
        return NULL;
    }
    if (d->liveness.listener != NULL && strcmp(host, d->liveness.host) == 0) {
        return d->liveness.address;
    }
    driver_liveness_close(d);
    rc = listen_free(d, host, &sock, &port);
    if (rc != 0) {
        ps_log(PS_LOG_WARNING,
               "no liveness port at %s port %u: %s; a death of this agent is "
               "noticed only when its lease ends; see listen.port",
               host, (unsigned)d->opt.liveness_port, ps_strerror(rc));
        return NULL;
    }
    if (ps_listener_open(d->opt.loop, sock, refuse_caller, NULL,
                         &d->liveness.listener) != 0) {
        close(sock);
        return NULL;
    }
    snprintf(d->liveness.host, sizeof(d->liveness.host), "%.200s", host);
    snprintf(d->liveness.address, sizeof(d->liveness.address),
             v6 ? "[%.200s]:%u" : "%.200s:%u", host, (unsigned)port);
    return d->liveness.address;
}
