/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that others made. */
#include "common/driver_inner.h"

#include "base/map.h"
#include "net/addr.h"
#include "net/local.h"
#include "net/near.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static uint32_t callers(enum ps_role self)
{
    return self == PS_ROLE_SCHED
               ? 1u << PS_ROLE_SERVER | 1u << PS_ROLE_AGENT | 1u << PS_ROLE_CTL
               : 1u << PS_ROLE_AGENT;
}

/* The scheduler's Unix socket is for tools, an agent's for training
 * processes. */
static uint32_t local_callers(enum ps_role self)
{
    return 1u << (self == PS_ROLE_SCHED ? PS_ROLE_CTL : PS_ROLE_WORKER);
}

void ps_driver_accept(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    char peer[PS_CONN_PEER_MAX];

    (void)getpeername(fd, (struct sockaddr *)&sa, &len);
    ps_addr_print((struct sockaddr *)&sa, peer, sizeof(peer));
    if (d->closing) {
        close(fd);
    } else if (ps_map_count(d->conns) - d->local_count >=
               d->opt.connections_max) {
        driver_refuse(d, fd, peer, "too many connections");
    } else {
        driver_open(d,
                    &(struct opening){.fd = fd,
                                      .peer_roles = callers(d->opt.self),
                                      .peer = peer},
                    &ev);
    }
}

void ps_driver_accept_near(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct ps_local_peer who;
    char peer[PS_CONN_PEER_MAX];

    if (d->closing || ps_local_peer(fd, &who) != 0) {
        close(fd);
        return;
    }
    snprintf(peer, sizeof(peer), "host:uid=%u,pid=%u", who.uid, who.pid);
    if (!ps_near_trusts(fd)) {
        driver_refuse(d, fd, peer, "an agent of another user");
    } else if (ps_map_count(d->conns) - d->local_count >=
               d->opt.connections_max) {
        driver_refuse(d, fd, peer, "too many connections");
    } else {
        driver_open(d,
                    &(struct opening){.fd = fd,
                                      .peer_roles = callers(d->opt.self),
                                      .peer = peer,
                                      .near = true},
                    &ev);
    }
}

void ps_driver_accept_local(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_LOCAL}};
    struct ps_local_peer who;
    char peer[PS_CONN_PEER_MAX];
    int rc = ps_local_peer(fd, &who);

    if (rc != 0 || d->closing) {
        close(fd);
        return;
    }
    snprintf(peer, sizeof(peer), "local:uid=%u,pid=%u", who.uid, who.pid);
    if (d->local_count >= d->opt.local_max) {
        driver_refuse(d, fd, peer, "too many local connections");
        return;
    }
    ev.open.uid = who.uid;
    ev.open.pid = who.pid;
    driver_open(d,
                &(struct opening){.fd = fd,
                                  .peer_roles = local_callers(d->opt.self),
                                  .peer = peer},
                &ev);
}
