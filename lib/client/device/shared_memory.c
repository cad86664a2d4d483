/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the driver's virtual-memory API, whose descriptor the agent gets. It
 * stays this process's own. And messages about all memory. */
#include "client/device/shared_inner.h"
#include "client/state.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

#define DESCRIPTOR     1 /* A type of handles of memory. */
#define PINNED         1 /* A type of allocations: not pageable. */
#define ON_DEVICE      1 /* A type of places. */
#define READ_AND_WRITE 3

/* ------------------------------------------------------------------- calls */

static const struct symbol {
    const char *name;
    size_t offset; /* Of the member that points to the function. */
} symbols[] = {
#define SYMBOL(member, name, arguments)                                        \
    {name, offsetof(struct shared_calls, member)},
    SHARED_CALLS(SYMBOL)
#undef SYMBOL
};

int shared_load(struct psc_client *c, const struct gpu *g)
{
    struct shared_table *t = c->shared;

    if (t == NULL) {
        t = calloc(1, sizeof(*t));
        if (t == NULL) {
            return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
        }
        c->shared = t;
    }
    for (size_t i = 0;
         !t->is_loaded && i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(gpu_driver_of(g)->library, symbols[i].name);

        if (found == NULL) {
            return client_error(c, PSC_E_UNSUPPORTED,
                                "the CUDA driver has no %s", symbols[i].name);
        }
        memcpy((char *)&t->calls + symbols[i].offset, &found, sizeof(found));
    }
    t->is_loaded = true;
    return 0;
}

int shared_find_uuid(const struct shared_calls *calls, const struct gpu *g,
                     struct gpu_uuid *ret_uuid)
{
    return gpu_check(g, calls->uuid(ret_uuid, gpu_number_of(g)),
                     "cuDeviceGetUuid");
}

/* ------------------------------------------------------------------ memory */

int shared_memory_announce(struct psc_client *c, struct shared_memory *m)
{
    struct ps_msg msg = {.code = PS_MSG_L_DEVICE,
                         .l_device = {.region = m->region,
                                      .size = m->size,
                                      .uuid = {.data = m->uuid.bytes,
                                               .len = SHARED_UUID_BYTES}}};
    int fd;
    int rc;

    m->answer = ANSWER_NONE;
    m->error = 0;
    if (!c->id.agent_takes_devices) {
        m->answer = ANSWER_REFUSED;
        m->error = PS_E_UNSUPPORTED;
        ps_str_copy(m->why, sizeof(m->why),
                    "the agent is of a version that uses no memory of GPUs");
        return 0;
    }
    if (c->reattach.link != LINK_UP) {
        return 0; /* The next agent gets all of it offered. */
    }
    if (m->fd < 0) {
        msg.l_device.handle = (struct ps_bytes){.data = m->handle.bytes,
                                                .len = SHARED_HANDLE_BYTES};
        return client_put(c, &msg);
    }
    fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return PS_E_NOMEM;
    }
    rc = ps_sock_put(c->sock, &msg, fd);
    if (rc != 0) {
        close(fd);
    }
    return rc;
}

/* Maps new memory of the driver. With the GPU current. */
static int map_memory(const struct shared_calls *calls, gpu_memory from,
                      const struct gpu_properties *p, struct shared_memory *m)
{
    const struct gpu_access access = {.location = p->location,
                                      .flags = READ_AND_WRITE};
    int rc = gpu_check(m->gpu, calls->reserve(&m->at, m->size, 0, 0, 0),
                       "cuMemAddressReserve");

    if (rc != 0) {
        return rc;
    }
    rc = gpu_check(m->gpu, calls->map(m->at, m->size, 0, from, 0), "cuMemMap");
    if (rc != 0) {
        goto unreserve;
    }
    rc = gpu_check(m->gpu, calls->set_access(m->at, m->size, &access, 1),
                   "cuMemSetAccess");
    if (rc != 0) {
        goto unmap;
    }
    rc = gpu_check(m->gpu, calls->export_memory(&m->fd, from, DESCRIPTOR, 0),
                   "cuMemExportToShareableHandle");
    if (rc != 0) {
        goto unmap;
    }
    return 0;

unmap:
    (void)calls->unmap(m->at, m->size);
unreserve:
    (void)calls->unreserve(m->at, m->size);
    return rc;
}

/* With the GPU current. */
static int make_memory(const struct shared_calls *calls,
                       struct shared_memory *m)
{
    const struct gpu_properties p = {
        .type = PINNED,
        .handle_types = DESCRIPTOR,
        .location = {.type = ON_DEVICE, .id = gpu_number_of(m->gpu)},
    };
    size_t unit = 0;
    gpu_memory made;
    int rc = shared_find_uuid(calls, m->gpu, &m->uuid);

    if (rc == 0) {
        rc = gpu_check(m->gpu, calls->granularity(&unit, &p, 0),
                       "cuMemGetAllocationGranularity");
    }
    if (rc != 0) {
        return rc;
    }
    m->size = (m->size + unit - 1) / unit * unit;
    rc = gpu_check(m->gpu, calls->create(&made, m->size, &p, 0), "cuMemCreate");
    if (rc != 0) {
        return rc;
    }
    rc = map_memory(calls, made, &p, m);
    (void)calls->release(made); /* The mapping keeps it. */
    return rc;
}

static void free_memory(const struct shared_calls *calls,
                        struct shared_memory *m)
{
    if (m->fd >= 0 && gpu_enter(m->gpu) == 0) {
        (void)calls->unmap(m->at, m->size);
        (void)calls->unreserve(m->at, m->size);
        gpu_leave(m->gpu);
    }
    if (m->fd >= 0) {
        close(m->fd);
    }
    free(m);
}

int shared_memory_new(struct psc_client *c, struct gpu *g, size_t size,
                      struct shared_memory **ret_memory)
{
    struct shared_memory *m = calloc(1, sizeof(*m));
    int rc;

    if (m == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    *m = (struct shared_memory){
        .gpu = g, .size = size, .fd = -1, .region = c->shm.next_region};
    rc = gpu_enter(g);
    if (rc == 0) {
        rc = make_memory(&c->shared->calls, m);
        gpu_leave(g);
    }
    if (rc != 0) {
        free_memory(&c->shared->calls, m);
        return client_error(c, rc, "no memory of %zu bytes on the GPU: %s",
                            size, gpu_why(c));
    }
    rc = shared_memory_announce(c, m);
    if (rc != 0) {
        free_memory(&c->shared->calls, m);
        return client_error(c, rc,
                            "memory of a GPU is not announced to the agent: "
                            "%s",
                            ps_strerror(rc));
    }
    c->shm.next_region++;
    m->next = c->shared->memory;
    c->shared->memory = m;
    client_flush(c);
    *ret_memory = m;
    return 0;
}

/* Removes memory from the list. */
static void unlink_memory(struct shared_table *t, const struct shared_memory *m)
{
    struct shared_memory **link = &t->memory;

    while (*link != m) {
        link = &(*link)->next;
    }
    *link = m->next;
}

void shared_memory_withdraw(struct psc_client *c, const struct shared_memory *m)
{
    const struct ps_msg gone = {.code = PS_MSG_L_REGION_GONE,
                                .l_region_gone = {.region = m->region}};

    if (m->answer == ANSWER_TAKEN && client_send(c, &gone) != 0) {
        return; /* The client has failed: the agent drops all of it. */
    }
}

void shared_memory_free(struct psc_client *c, struct shared_memory *m)
{
    gpu_drain(c);
    shared_memory_withdraw(c, m);
    unlink_memory(c->shared, m);
    free_memory(&c->shared->calls, m);
}

struct shared_memory *shared_memory_find(const struct psc_client *c,
                                         const void *data, size_t bytes)
{
    const uint64_t at = (uintptr_t)data;

    for (struct shared_memory *m = c->shared != NULL ? c->shared->memory : NULL;
         m != NULL; m = m->next) {
        if (at >= m->at && at - m->at <= m->size &&
            bytes <= m->size - (at - m->at)) {
            return m;
        }
    }
    return NULL;
}

/* --------------------------------------------------------------- the agent */

static struct shared_memory *find_region(struct shared_memory *list,
                                         uint32_t region)
{
    while (list != NULL && list->region != region) {
        list = list->next;
    }
    return list;
}

void shared_accept_info(struct psc_client *c,
                        const struct ps_msg_l_device_info *m)
{
    const struct shared_table *t = c->shared;
    struct shared_memory *x = t != NULL ? find_region(t->memory, m->region)
                                        : NULL;

    if (x == NULL && t != NULL) {
        x = find_region(t->foreign, m->region);
    }
    if (x == NULL) {
        return; /* Freed meanwhile. */
    }
    x->answer = m->error == 0 ? ANSWER_TAKEN : ANSWER_REFUSED;
    x->error = m->error;
    ps_str_copy(x->why, sizeof(x->why), m->text);
    client_changed(c);
}

static int announce_list(struct psc_client *c, struct shared_memory *list)
{
    int rc = 0;

    for (; list != NULL && rc == 0; list = list->next) {
        rc = shared_memory_announce(c, list);
    }
    return rc;
}

int shared_announce_all(struct psc_client *c)
{
    int rc;

    if (c->shared == NULL) {
        return 0;
    }
    shared_events_forget(c);
    shared_foreign_reset(c);
    rc = announce_list(c, c->shared->memory);
    return rc != 0 ? rc : announce_list(c, c->shared->foreign);
}

void shared_free_all(struct psc_client *c)
{
    struct shared_table *t = c->shared;

    if (t == NULL) {
        return;
    }
    while (t->memory != NULL) {
        struct shared_memory *m = t->memory;

        t->memory = m->next;
        free_memory(&t->calls, m);
    }
    shared_foreign_free(t);
    shared_events_free(c);
    free(t);
    c->shared = NULL;
}
