/* SPDX-License-Identifier: Apache-2.0 */
/* New connections: from the listeners, within limits, and from dials. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/num.h"
#include "net/addr.h"
#include "net/local.h"
#include "net/shm_peer.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static uint32_t count_unserved(enum ps_role self)
{
    return self == PS_ROLE_SCHED
               ? 1u << PS_ROLE_SERVER | 1u << PS_ROLE_AGENT | 1u << PS_ROLE_CTL
               : 1u << PS_ROLE_AGENT;
}

/* The scheduler's Unix socket is for tools, an agent's for workers. */
static uint32_t count_local_unserved(enum ps_role self)
{
    return 1u << (self == PS_ROLE_SCHED ? PS_ROLE_CTL : PS_ROLE_WORKER);
}

/* Reason to refuse `fd`; NULL: it is accepted. The kernel assigns the lowest
 * free descriptor, so its number tells how many are in use. */
static const char *refuse_beyond_limit(const struct ps_driver *d, int fd,
                                       bool local)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 &&
        (rlim_t)fd + ps_min_u64(PS_DESCRIPTORS_RESERVED, lim.rlim_cur / 4) >=
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
    const char *why = refuse_beyond_limit(d, fd, false);

    if (d->is_closing) {
        close(fd);
    } else if (why != NULL) {
        driver_refuse(d, fd, peer, why);
    } else {
        driver_open(
            d,
            &(struct conn_opening){.fd = fd,
                                   .peer_roles = count_unserved(d->opt.self),
                                   .peer = peer},
            &ev);
    }
}

void ps_driver_accept_shm(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct ps_local_peer who;
    char peer[PS_CONN_PEER_MAX];

    if (d->is_closing || ps_local_peer(fd, &who) != 0) {
        close(fd);
        return;
    }
    snprintf(peer, sizeof(peer), "host:uid=%u,pid=%u", who.uid, who.pid);
    const char *why = ps_shm_peer_is_trusted(fd)
                          ? refuse_beyond_limit(d, fd, false)
                          : "an agent of another user";

    if (why != NULL) {
        driver_refuse(d, fd, peer, why);
    } else {
        driver_open(
            d,
            &(struct conn_opening){.fd = fd,
                                   .peer_roles = count_unserved(d->opt.self),
                                   .peer = peer,
                                   .is_shm = true},
            &ev);
    }
}

void ps_driver_accept_local(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_LOCAL}};
    struct ps_local_peer who;
    char peer[PS_CONN_PEER_MAX];
    int rc = ps_local_peer(fd, &who);

    if (rc != 0) {
        ps_log_of(LOG_REFUSED, PS_LOG_WARNING,
                  "connection refused peer=local reason=\"its process is not "
                  "known: %s\"",
                  ps_strerror(rc));
    }
    if (rc != 0 || d->is_closing) {
        close(fd);
        return;
    }
    snprintf(peer, sizeof(peer), "local:uid=%u,pid=%u", who.uid, who.pid);
    const char *why = refuse_beyond_limit(d, fd, true);

    if (why != NULL) {
        driver_refuse(d, fd, peer, why);
        return;
    }
    ev.open.uid = who.uid;
    ev.open.pid = who.pid;
    driver_open(
        d,
        &(struct conn_opening){.fd = fd,
                               .peer_roles = count_local_unserved(d->opt.self),
                               .peer = peer},
        &ev);
}

/* -------------------------------------------------------------------- dials */

static void report_dial_failed(struct ps_driver *d, const struct dial *dial)
{
    struct ps_event ev = {.type = PS_EV_DIAL_FAILED};

    if (dial->detail != NULL) {
        ps_log(PS_LOG_DEBUG, "dial failed reason=\"%s\"", dial->detail);
    }
    ev.dial_failed.target = dial->target;
    ev.dial_failed.rc = dial->rc;
    ev.dial_failed.why = dial->detail;
    driver_feed(d, &ev);
}

static void report_probe(struct ps_driver *d, uint64_t target, int rc)
{
    struct ps_event ev = {.type = PS_EV_PROBED};

    ev.dial_failed.target = target;
    ev.dial_failed.rc = rc;
    driver_feed(d, &ev);
}

/* Opens the subflow to which a dial has led, if its link has not ended. */
static void subflow_dialled(struct ps_driver *d, const struct dial *dial)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    struct daemon_conn *main = ps_map_get(d->conns, dial->subflow_of);

    if (main == NULL) {
        if (dial->rc == 0) {
            close(dial->fd);
        }
    } else if (dial->rc != 0) {
        ps_path_dial_failed(&main->path, ps_loop_now(d->opt.loop));
    } else {
        driver_open(d,
                    &(struct conn_opening){.fd = dial->fd,
                                           .peer_roles = 1u << PS_ROLE_SERVER,
                                           .peer = dial->detail,
                                           .main = &main->path},
                    &ev);
    }
}

static void open_dialled(struct ps_driver *d, const struct dial *dial)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    bool server = dial->peer_roles == 1u << PS_ROLE_SERVER;

    ev.open.target = dial->target;
    ev.open.liveness_address = server ? NULL
                                      : driver_liveness_address(d, dial->fd);
    if (d->opt.same_host && server) {
        ps_log_of(LOG_DIALS, PS_LOG_INFO,
                  dial->is_shm ? "server reached on this host address %s"
                               : "server reached by TCP address %s",
                  dial->is_shm ? dial->address : dial->detail);
    }
    driver_open(d,
                &(struct conn_opening){.fd = dial->fd,
                                       .peer_roles = dial->peer_roles,
                                       .peer = dial->detail,
                                       .is_shm = dial->is_shm,
                                       .address = dial->address},
                &ev);
}

/* Reports the end of a dial. */
static void report_dial(struct ps_driver *d, const struct dial *dial)
{
    if (dial->fd >= 0 && (d->is_closing || dial->is_probe)) {
        close(dial->fd);
    }
    if (d->is_closing) {
        return;
    }
    if (dial->is_probe) {
        report_probe(d, dial->target, dial->rc);
    } else if (dial->subflow_of != 0) {
        subflow_dialled(d, dial);
    } else if (dial->rc != 0) {
        report_dial_failed(d, dial);
    } else {
        open_dialled(d, dial);
    }
}

bool driver_report_dials(struct ps_driver *d)
{
    struct ps_list_node *n;
    bool any = false;

    while ((n = ps_list_pop(&d->dials.ended)) != NULL) {
        struct dial *dial = PS_CONTAINER(n, struct dial, node);

        report_dial(d, dial);
        ps_free(dial->detail);
        ps_free(dial);
        any = true;
    }
    driver_maybe_closed(d);
    return any;
}
