/* SPDX-License-Identifier: Apache-2.0 */
/* Dials: connections and probes that the machine asks for, and subflows. A
 * server on this host is dialled by net/shm_peer.h, others by TCP. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/str.h"
#include "net/dial.h"
#include "net/shm_peer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct dial {
    struct ps_list_node node;
    struct ps_driver *driver;
    struct ps_dial *dial; /* NULL: the dial failed at its start. */
    uint64_t target;
    ps_conn_id subflow_of; /* Main connection of its link; 0: not a subflow. */
    bool is_probe;         /* Only tests whether a process listens. */
    uint32_t peer_roles;
    int rc;
    int fd; /* Same-host connection, already made; else -1. */
    char address[PS_ADDRESS_MAX + 1];
};

static void report_dial_failed(struct ps_driver *d, uint64_t target, int rc,
                               const char *why)
{
    struct ps_event ev = {.type = PS_EV_DIAL_FAILED};

    ev.dial_failed.target = target;
    ev.dial_failed.rc = rc;
    ev.dial_failed.why = why;
    driver_feed(d, &ev);
}

static void report_probe(struct ps_driver *d, uint64_t target, int rc)
{
    struct ps_event ev = {.type = PS_EV_PROBED};

    ev.dial_failed.target = target;
    ev.dial_failed.rc = rc;
    driver_feed(d, &ev);
}

static void dial_done(void *ctx, int fd, int rc, const char *detail)
{
    struct dial *dial = ctx;
    struct ps_driver *d = dial->driver;
    uint64_t target = dial->target;
    uint32_t roles = dial->peer_roles;
    ps_conn_id joins = dial->subflow_of;
    bool probes = dial->is_probe;
    char address[PS_ADDRESS_MAX + 1];

    ps_str_copy(address, sizeof(address), dial->address);
    ps_list_remove(&dial->node);
    ps_free(dial);
    if (d->is_closing) {
        if (fd >= 0) {
            close(fd);
        }
        driver_maybe_closed(d);
        return;
    }
    if (probes) {
        if (fd >= 0) {
            close(fd);
        }
        report_probe(d, target, rc);
        return;
    }
    if (joins != 0) {
        driver_subflow_dialled(d, joins, fd, rc, detail);
        return;
    }
    if (rc != 0) {
        ps_log(PS_LOG_DEBUG, "dial failed reason=\"%s\"", detail);
        report_dial_failed(d, target, rc, detail);
        return;
    }
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};

    ev.open.target = target;
    ev.open.liveness_address = (roles & 1u << PS_ROLE_SCHED) != 0
                                   ? driver_liveness_address(d, fd)
                                   : NULL;
    if (d->opt.same_host && (roles & 1u << PS_ROLE_SERVER) != 0) {
        ps_log_of(LOG_DIALS, PS_LOG_INFO, "server reached by TCP address %s",
                  detail);
    }
    driver_open(d,
                &(struct conn_opening){
                    .fd = fd,
                    .peer_roles = roles,
                    .peer = detail,
                    .address = roles == 1u << PS_ROLE_SERVER ? address : NULL},
                &ev);
}

/* Connects to a server on this host. False: TCP is needed. */
static bool dial_shm(struct dial *dial, const char *address)
{
    int rc = ps_shm_dial(address, &dial->fd);

    if (rc == PS_E_PERM) {
        ps_log_of(LOG_DIALS, PS_LOG_WARNING,
                  "server not reached through this host address %s reason "
                  "\"it runs as another user\"",
                  address);
    }
    if (rc != 0) {
        return false;
    }
    ps_str_copy(dial->address, sizeof(dial->address), address);
    return true;
}

void driver_dial(struct ps_driver *d, uint64_t target, const char *address,
                 ps_time timeout)
{
    struct dial *dial = ps_calloc(1, sizeof(*dial));
    bool sched = d->opt.scheduler != NULL &&
                 strcmp(address, d->opt.scheduler) == 0;

    dial->driver = d;
    dial->target = target;
    dial->fd = -1;
    dial->peer_roles = 1u << (sched ? PS_ROLE_SCHED : PS_ROLE_SERVER);
    if (!sched && d->opt.same_host && dial_shm(dial, address)) {
        ps_list_push_back(&d->ended_dials, &dial->node);
        return;
    }
    ps_str_copy(dial->address, sizeof(dial->address), address);
    dial->rc = ps_dial_start(d->opt.loop, address,
                             timeout != 0 ? timeout : d->opt.dial_timeout,
                             dial_done, dial, &dial->dial);
    ps_list_push_back(dial->rc == 0 ? &d->dials : &d->ended_dials, &dial->node);
}

void driver_probe(struct ps_driver *d, uint64_t target, const char *address,
                  ps_time timeout)
{
    struct dial *dial = ps_calloc(1, sizeof(*dial));

    dial->driver = d;
    dial->target = target;
    dial->fd = -1;
    dial->is_probe = true;
    dial->rc = ps_dial_start(d->opt.loop, address, timeout, dial_done, dial,
                             &dial->dial);
    ps_list_push_back(dial->rc == 0 ? &d->dials : &d->ended_dials, &dial->node);
}

bool driver_report_dials(struct ps_driver *d)
{
    struct ps_list_node *n = ps_list_pop(&d->ended_dials);

    if (n == NULL) {
        return false;
    }
    struct dial *dial = PS_CONTAINER(n, struct dial, node);
    uint64_t target = dial->target;
    int rc = dial->rc;

    if (dial->is_probe) {
        ps_free(dial);
        report_probe(d, target, rc);
        return true;
    }
    if (dial->fd >= 0) {
        struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
        char peer[PS_CONN_PEER_MAX];

        ps_log_of(LOG_DIALS, PS_LOG_INFO,
                  "server reached on this host address %s", dial->address);
        snprintf(peer, sizeof(peer), "host:%s", dial->address);
        ev.open.target = target;
        driver_open(d,
                    &(struct conn_opening){.fd = dial->fd,
                                           .peer_roles = dial->peer_roles,
                                           .peer = peer,
                                           .is_shm = true},
                    &ev);
        ps_free(dial);
        return true;
    }
    ps_free(dial);
    report_dial_failed(d, target, rc, NULL);
    return true;
}

int driver_dial_subflow(struct daemon_conn *first)
{
    struct ps_driver *d = first->driver;
    struct dial *dial = ps_calloc(1, sizeof(*dial));

    dial->driver = d;
    dial->subflow_of = first->id;
    dial->fd = -1;
    int rc = ps_dial_start(d->opt.loop, first->address, d->opt.dial_timeout,
                           dial_done, dial, &dial->dial);

    if (rc != 0) {
        ps_free(dial);
        return rc;
    }
    ps_list_push_back(&d->dials, &dial->node);
    return 0;
}

void driver_cancel_dials(struct ps_driver *d)
{
    struct ps_list_node *n;

    PS_LIST_EACH(node, &d->dials)
    {
        ps_dial_cancel(PS_CONTAINER(node, struct dial, node)->dial);
    }
    while ((n = ps_list_pop(&d->ended_dials)) != NULL) {
        struct dial *dial = PS_CONTAINER(n, struct dial, node);

        if (dial->fd >= 0) {
            close(dial->fd);
        }
        ps_free(dial);
    }
}
