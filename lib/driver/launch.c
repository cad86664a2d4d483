/* SPDX-License-Identifier: Apache-2.0 */
/* Supervisors that the machine asks for: each is started by a child process,
 * the shim (daemons/pslaunch/shim.c), which gets the order on standard input,
 * reports on standard output, and lives as long as the job's processes on this
 * host. The report "ok" is success; any other one is the reason. The machine
 * gets the events outside of the step that asked. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "net/child.h"
#include "proto/msg_codec.h"

#include <stdio.h>
#include <string.h>

static void mark_changed(struct launch *l)
{
    ps_list_remove(&l->node);
    ps_list_push_back(&l->driver->launches.changed, &l->node);
}

static void child_reported(void *ctx, const char *report)
{
    struct launch *l = ctx;

    l->rc = strcmp(report, "ok") == 0 ? 0 : PS_E_IO;
    snprintf(l->text, sizeof(l->text), "%s",
             report[0] != '\0' ? report : "pslaunch --shim has ended");
    l->is_reported = true;
    mark_changed(l);
}

static void child_ended(void *ctx)
{
    struct launch *l = ctx;

    l->has_ended = true;
    mark_changed(l);
}

static int start_child(struct launch *l, const struct ps_msg *order)
{
    struct ps_driver *d = l->driver;
    const char *const argv[] = {d->opt.launch.program, "--shim",
                                d->opt.launch.socket, NULL};
    size_t cap = ps_msg_encoded_bound(order);
    uint8_t *bytes = ps_alloc(cap);
    size_t len = 0;
    int rc = ps_msg_encode(order, PS_PROTOCOL, 0, bytes, cap, &len);

    if (rc == 0) {
        rc = ps_child_start(
            &(struct ps_child_options){.loop = d->opt.loop,
                                       .argv = argv,
                                       .input = bytes,
                                       .input_len = len,
                                       .reported = child_reported,
                                       .ended = child_ended,
                                       .ctx = l},
            &l->child);
    }
    ps_free(bytes);
    return rc;
}

void driver_launch(struct ps_driver *d, const struct ps_fx *fx)
{
    struct launch *l = ps_calloc(1, sizeof(*l));

    l->driver = d;
    l->id = fx->launch.id;
    l->rc = d->opt.launch.program != NULL && !d->is_closing
                ? start_child(l, fx->launch.order)
                : PS_E_UNSUPPORTED;
    if (l->rc == 0) {
        ps_list_push_back(&d->launches.running, &l->node);
        return;
    }
    snprintf(l->text, sizeof(l->text), "cannot start %.200s: %s",
             d->opt.launch.program != NULL ? d->opt.launch.program : "pslaunch",
             ps_strerror(l->rc));
    l->is_reported = true;
    l->has_ended = true;
    ps_list_push_back(&d->launches.changed, &l->node);
}

void driver_release_launches(struct ps_driver *d)
{
    PS_LIST_EACH(n, &d->launches.running)
    {
        ps_child_release(PS_CONTAINER(n, struct launch, node)->child);
    }
}

void driver_abandon_launches(struct ps_driver *d)
{
    PS_LIST_EACH(n, &d->launches.running)
    {
        ps_child_abandon(PS_CONTAINER(n, struct launch, node)->child);
    }
}
