/* SPDX-License-Identifier: Apache-2.0 */
/* Dials: connections and probes that the machine asks for, and subflows. A
 * server on this host is dialled by net/shm_peer.h, others by TCP. Results wait
 * in a list until driver_report_dials(), outside of the step that dialled. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/str.h"
#include "net/dial.h"
#include "net/shm_peer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void dial_done(void *ctx, int fd, int rc, const char *detail)
{
    struct dial *dial = ctx;

    dial->fd = fd;
    dial->rc = rc;
    dial->detail = ps_strdup(detail);
    ps_list_remove(&dial->node);
    ps_list_push_back(&dial->driver->dials.ended, &dial->node);
}

/* Connects to a server on this host. False: TCP is needed. */
static bool dial_shm(struct dial *dial)
{
    int rc = ps_shm_dial(dial->address, &dial->fd);
    char peer[PS_CONN_PEER_MAX];

    if (rc == PS_E_PERM) {
        ps_log_of(LOG_DIALS, PS_LOG_WARNING,
                  "server not reached through this host address %s reason "
                  "\"it runs as another user\"",
                  dial->address);
    }
    if (rc == 0) {
        dial->is_shm = true;
        snprintf(peer, sizeof(peer), "host:%s", dial->address);
        dial->detail = ps_strdup(peer);
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
    ps_list_push_back(dial->rc == 0 ? &d->dials.running : &d->dials.ended,
                      &dial->node);
}

void driver_dial(struct ps_driver *d, const struct ps_fx *fx)
{
    struct dial *dial = dial_new(d, fx);
    bool sched = d->opt.scheduler != NULL &&
                 strcmp(dial->address, d->opt.scheduler) == 0;

    dial->peer_roles = 1u << (sched ? PS_ROLE_SCHED : PS_ROLE_SERVER);
    if (!sched && d->opt.same_host && dial->subflow_of == 0 && dial_shm(dial)) {
        ps_list_push_back(&d->dials.ended, &dial->node);
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

void driver_cancel_dials(struct ps_driver *d)
{
    PS_LIST_EACH(node, &d->dials.running)
    {
        ps_dial_cancel(PS_CONTAINER(node, struct dial, node)->dial);
    }
}
