/* SPDX-License-Identifier: Apache-2.0 */
/* Events that the agent asks. They are made when there is no spare one, and kept,
 * so that a steady state makes and announces none. */
#include "client/device/shared_inner.h"
#include "client/state.h"

#include <stdlib.h>

#define INTERPROCESS 4u

/* With the GPU current. */
static int make_event(struct psc_client *c, struct gpu *g,
                      struct shared_event **ret_event)
{
    struct shared_event *e = calloc(1, sizeof(*e));
    const struct gpu_driver *d = gpu_driver_of(g);
    int rc;

    if (e == NULL) {
        return PSC_E_NOMEM;
    }
    rc = shared_find_uuid(&c->shared->calls, g, &e->uuid);
    if (rc == 0) {
        rc = gpu_check(
            g, d->event_new(&e->event, GPU_EVENT_NO_TIME | INTERPROCESS),
            "cuEventCreate");
    }
    if (rc != 0) {
        free(e);
        return rc;
    }
    rc = gpu_check(g, c->shared->calls.export_event(&e->handle, e->event),
                   "cuIpcGetEventHandle");
    if (rc != 0) {
        (void)d->event_free(e->event);
        free(e);
        return rc;
    }
    e->gpu = g;
    e->number = ++c->shared->last_event;
    e->next_of_all = c->shared->events;
    c->shared->events = e;
    *ret_event = e;
    return 0;
}

int shared_event_record(struct psc_client *c, struct gpu *g, void *stream,
                        struct shared_event **ret_event)
{
    struct shared_event **link = &c->shared->spare_events;
    struct shared_event *e;
    int rc;

    while (*link != NULL && (*link)->gpu != g) {
        link = &(*link)->next;
    }
    e = *link;
    rc = gpu_enter(g);
    if (rc != 0) {
        return rc;
    }
    if (e == NULL) {
        rc = make_event(c, g, &e);
    } else {
        *link = e->next;
    }
    if (rc == 0) {
        rc = gpu_check(g, gpu_driver_of(g)->event_record(e->event, stream),
                       "cuEventRecord");
        *ret_event = e;
    }
    gpu_leave(g);
    return rc;
}

void shared_event_put(struct psc_client *c, struct shared_event *e)
{
    e->next = c->shared->spare_events;
    c->shared->spare_events = e;
}

int shared_event_announce(struct psc_client *c, struct shared_event *e)
{
    const struct ps_msg m = {
        .code = PS_MSG_L_DEVICE_EVENT,
        .l_device_event = {
            .event = e->number,
            .uuid = {.data = e->uuid.bytes, .len = SHARED_UUID_BYTES},
            .handle = {.data = e->handle.bytes, .len = SHARED_HANDLE_BYTES}}};
    int rc = e->is_announced ? 0 : client_put(c, &m);

    e->is_announced = rc == 0;
    return rc;
}

void shared_events_forget(struct psc_client *c)
{
    for (struct shared_event *e = c->shared->events; e != NULL;
         e = e->next_of_all) {
        e->is_announced = false;
    }
}

void shared_events_free(struct psc_client *c)
{
    while (c->shared->events != NULL) {
        struct shared_event *e = c->shared->events;

        c->shared->events = e->next_of_all;
        if (gpu_enter(e->gpu) == 0) {
            (void)gpu_driver_of(e->gpu)->event_free(e->event);
            gpu_leave(e->gpu);
        }
        free(e);
    }
}
