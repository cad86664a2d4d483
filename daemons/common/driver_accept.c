/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that others made. */
#include "common/driver_inner.h"

#include "base/limits.h"
#include "base/map.h"
#include "base/num.h"
#include "net/addr.h"
#include "net/local.h"
#include "net/near.h"

#include <stdio.h>
#include <sys/resource.h>
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

/* NULL: `fd` may be kept. A descriptor is the lowest that is free, so its number
 * says how many are in use. */
static const char *no_room(const struct ps_driver *d, int fd, bool local)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 &&
        (rlim_t)fd + ps_min_u64(PS_DESCRIPTORS_KEPT, lim.rlim_cur / 4) >=
            lim.rlim_cur) {
        return "this daemon has nearly all the descriptors open that it may "
               "have (LimitNOFILE)";
    }
    if (local) {
        return d->local_count >= d->opt.local_max
                   ? "too many local connections (client.max_clients)"
                   : NULL;
    }
    return ps_map_count(d->conns) - d->local_count >= d->opt.connections_max
               ? "too many connections (limits.connections)"
               : NULL;
}

void ps_driver_accept(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    char peer[PS_CONN_PEER_MAX];

    (void)getpeername(fd, (struct sockaddr *)&sa, &len);
    ps_addr_print((struct sockaddr *)&sa, peer, sizeof(peer));
    const char *why = no_room(d, fd, false);

    if (d->closing) {
        close(fd);
    } else if (why != NULL) {
        driver_refuse(d, fd, peer, why);
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
    const char *why = ps_near_trusts(fd) ? no_room(d, fd, false)
                                         : "an agent of another user";

    if (why != NULL) {
        driver_refuse(d, fd, peer, why);
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
    const char *why = no_room(d, fd, true);

    if (why != NULL) {
        driver_refuse(d, fd, peer, why);
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
