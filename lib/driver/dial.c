/* SPDX-License-Identifier: Apache-2.0 */
/* Dials: connections and probes that the machine asks for, and subflows. A
 * server on this host is dialled by net/shm_peer.h, others by TCP. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
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
    bool is_shm;           /* To a server on this host, not by TCP. */
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

/* Opens the subflow to which a dial has led, if its link has not ended. */
static void subflow_dialled(struct ps_driver *d, ps_conn_id id, int fd, int rc,
                            const char *peer)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    struct daemon_conn *main = ps_map_get(d->conns, id);

    if (main == NULL) {
        if (rc == 0) {
            close(fd);
        }
    } else if (rc != 0) {
        ps_path_dial_failed(&main->path, ps_loop_now(d->opt.loop));
    } else {
        driver_open(d,
                    &(struct conn_opening){.fd = fd,
                                           .peer_roles = 1u << PS_ROLE_SERVER,
                                           .peer = peer,
                                           .main = &main->path},
                    &ev);
    }
}

static void open_dialled(const struct dial *dial, int fd, const char *peer)
{
    struct ps_driver *d = dial->driver;
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    bool server = dial->peer_roles == 1u << PS_ROLE_SERVER;

    ev.open.target = dial->target;
    ev.open.liveness_address = server ? NULL : driver_liveness_address(d, fd);
    if (d->opt.same_host && server) {
        ps_log_of(LOG_DIALS, PS_LOG_INFO,
                  dial->is_shm ? "server reached on this host address %s"
                               : "server reached by TCP address %s",
                  dial->is_shm ? dial->address : peer);
    }
    driver_open(d,
                &(struct conn_opening){.fd = fd,
                                       .peer_roles = dial->peer_roles,
                                       .peer = peer,
                                       .is_shm = dial->is_shm,
                                       .address = dial->address},
                &ev);
}

/* Reports the end of a dial, which is in no list any more, and frees it. */
static void dial_ended(struct dial *dial, int fd, int rc, const char *detail)
{
    struct ps_driver *d = dial->driver;

    if (fd >= 0 && (d->is_closing || dial->is_probe)) {
        close(fd);
    }
    if (d->is_closing) {
        ps_free(dial);
        driver_maybe_closed(d);
        return;
    }
    if (dial->is_probe) {
        report_probe(d, dial->target, rc);
    } else if (dial->subflow_of != 0) {
        subflow_dialled(d, dial->subflow_of, fd, rc, detail);
    } else if (rc != 0) {
        report_dial_failed(d, dial->target, rc, detail);
    } else {
        open_dialled(dial, fd, detail);
    }
    ps_free(dial);
}

static void dial_done(void *ctx, int fd, int rc, const char *detail)
{
    struct dial *dial = ctx;

    ps_list_remove(&dial->node);
    if (rc != 0) {
        ps_log(PS_LOG_DEBUG, "dial failed reason=\"%s\"", detail);
    }
    dial_ended(dial, fd, rc, detail);
}

/* Connects to a server on this host. False: TCP is needed. */
static bool dial_shm(struct dial *dial)
{
    int rc = ps_shm_dial(dial->address, &dial->fd);

    if (rc == PS_E_PERM) {
        ps_log_of(LOG_DIALS, PS_LOG_WARNING,
                  "server not reached through this host address %s reason "
                  "\"it runs as another user\"",
                  dial->address);
    }
    return rc == 0;
}

static struct dial *dial_new(struct ps_driver *d, const struct ps_fx *fx)
{
    struct dial *dial = ps_calloc(1, sizeof(*dial));

    dial->driver = d;
    dial->target = fx->dial.target;
    dial->subflow_of = fx->dial.subflow_of;
    dial->fd = -1;
    ps_str_copy(dial->address, sizeof(dial->address), fx->dial.address);
    return dial;
}

static void start_dial(struct dial *dial, ps_time timeout)
{
    struct ps_driver *d = dial->driver;

    dial->rc = ps_dial_start(d->opt.loop, dial->address, timeout, dial_done,
                             dial, &dial->dial);
    ps_list_push_back(dial->rc == 0 ? &d->dials : &d->ended_dials, &dial->node);
}

void driver_dial(struct ps_driver *d, const struct ps_fx *fx)
{
    struct dial *dial = dial_new(d, fx);
    bool sched = d->opt.scheduler != NULL &&
                 strcmp(dial->address, d->opt.scheduler) == 0;

    dial->peer_roles = 1u << (sched ? PS_ROLE_SCHED : PS_ROLE_SERVER);
    if (!sched && d->opt.same_host && dial->subflow_of == 0 && dial_shm(dial)) {
        dial->is_shm = true;
        ps_list_push_back(&d->ended_dials, &dial->node);
        return;
    }
    start_dial(dial,
               fx->dial.timeout != 0 ? fx->dial.timeout : d->opt.dial_timeout);
}

void driver_probe(struct ps_driver *d, const struct ps_fx *fx)
{
    struct dial *dial = dial_new(d, fx);

    dial->is_probe = true;
    start_dial(dial, fx->dial.timeout);
}

bool driver_report_dials(struct ps_driver *d)
{
    struct ps_list_node *n = ps_list_pop(&d->ended_dials);
    char peer[PS_CONN_PEER_MAX];

    if (n == NULL) {
        return false;
    }
    struct dial *dial = PS_CONTAINER(n, struct dial, node);

    snprintf(peer, sizeof(peer), "host:%s", dial->address);
    dial_ended(dial, dial->fd, dial->rc, dial->rc == 0 ? peer : NULL);
    return true;
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
