/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that the agent maps, of this library and of other allocators,
 * and events that the agent asks. */
#include "client/device/shared.h"
#include "client/state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

/* Allocations that the agent has at a time. */
#define KEPT_MAX      256u

/* Attributes of a pointer. */
#define DEVICE        PS_CU_POINTER_DEVICE /* int */
#define NUMBER        7                    /* unsigned long long */
#define IS_EXPORTABLE 10                   /* unsigned */
#define START         11                   /* ps_cu_address */
#define SIZE          12                   /* size_t */

/* X(member, name, arguments) */
#define SHARED_CALLS(X)                                                        \
    PS_CU_MEMORY_CALLS(X)                                                      \
    X(granularity, "cuMemGetAllocationGranularity",                            \
      (size_t * ret, const struct ps_cu_properties *p, int option))            \
    X(create, "cuMemCreate",                                                   \
      (ps_cu_memory * ret, size_t bytes, const struct ps_cu_properties *p,     \
       unsigned long long flags))                                              \
    X(export_memory, "cuMemExportToShareableHandle",                           \
      (void *ret, ps_cu_memory m, int type, unsigned long long flags))         \
    X(export_event, "cuIpcGetEventHandle",                                     \
      (struct ps_cu_handle * ret, ps_cu_event e))                              \
    X(export_allocation, "cuIpcGetMemHandle",                                  \
      (struct ps_cu_handle * ret, ps_cu_address at))                           \
    X(attributes, "cuPointerGetAttributes",                                    \
      (unsigned count, const int *attributes, void **values,                   \
       ps_cu_address at))

struct shared_calls {
#define MEMBER(member, name, arguments) ps_cu_result(*member) arguments;
    SHARED_CALLS(MEMBER)
#undef MEMBER
};

struct shared_table {
    struct shared_calls calls;
    bool is_loaded;
    /* Of this library and of other allocators; of the latter, the last one used
     * is the first. */
    struct shared_memory *memory;
    uint32_t foreign_count; /* Of other allocators. */
    bool is_explained; /* The program has the reason why arrays are copied. */
    struct shared_event *events;
    struct shared_event *spare_events;
    uint32_t last_event;
};

static bool is_foreign(const struct shared_memory *m)
{
    return m->fd < 0;
}

/* -------------------------------------------------------------------- calls */

static const struct ps_cu_symbol symbols[] = {
#define SYMBOL(member, name, arguments)                                        \
    {name, offsetof(struct shared_calls, member)},
    SHARED_CALLS(SYMBOL)
#undef SYMBOL
};

int shared_load(struct psc_client *c, const struct gpu *g)
{
    struct shared_table *t = c->shared;
    const char *missing;

    if (t == NULL) {
        t = calloc(1, sizeof(*t));
        if (t == NULL) {
            return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
        }
        c->shared = t;
    }
    missing = t->is_loaded
                  ? NULL
                  : ps_cu_find_symbols(gpu_driver_of(g)->library, &t->calls,
                                       symbols,
                                       sizeof(symbols) / sizeof(symbols[0]));
    if (missing != NULL) {
        return client_error(c, PSC_E_UNSUPPORTED, "the CUDA driver has no %s",
                            missing);
    }
    t->is_loaded = true;
    return 0;
}

/* Identity of the GPU, which is current. */
static int shared_find_uuid(const struct shared_calls *calls,
                            const struct gpu *g, struct ps_cu_uuid *ret_uuid)
{
    return gpu_check(g, calls->uuid(ret_uuid, gpu_number_of(g)),
                     "cuDeviceGetUuid");
}

/* ----------------------------------------------------------------- messages */

/* Offers memory to the agent; the answer comes later. */
static int shared_memory_announce(struct psc_client *c, struct shared_memory *m)
{
    struct ps_msg msg = {
        .code = PS_MSG_L_DEVICE,
        .l_device = {.region = m->region,
                     .size = m->size,
                     .uuid = {.data = m->uuid.bytes, .len = PS_CU_UUID_BYTES}}};

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
                                                .len = PS_CU_HANDLE_BYTES};
    }
    return c->rc != 0 ? c->rc : ps_sock_put(c->sock, &msg, m->fd);
}

/* The agent unmaps memory that it has. */
static void shared_memory_withdraw(struct psc_client *c,
                                   const struct shared_memory *m)
{
    const struct ps_msg gone = {.code = PS_MSG_L_REGION_GONE,
                                .l_region_gone = {.region = m->region}};

    if (m->answer == ANSWER_TAKEN && client_send(c, &gone) != 0) {
        return; /* The client has failed: the agent drops all of it. */
    }
}

/* --------------------------------------------------- memory of this library */

/* Memory of the driver's virtual-memory API, whose descriptor the agent gets. It
 * stays this process's own. */

/* Maps new memory of the driver. With the GPU current. */
static int map_memory(const struct shared_calls *calls, ps_cu_memory from,
                      const struct ps_cu_properties *p, struct shared_memory *m)
{
    const struct ps_cu_access access = {.location = p->location,
                                        .flags = PS_CU_READ_WRITE};
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
    rc = gpu_check(m->gpu,
                   calls->export_memory(&m->fd, from, PS_CU_DESCRIPTOR, 0),
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
    const struct ps_cu_properties p = {
        .type = PS_CU_PINNED,
        .handle_types = PS_CU_DESCRIPTOR,
        .location = {.type = PS_CU_LOCATION_DEVICE,
                     .id = gpu_number_of(m->gpu)},
    };
    size_t unit = 0;
    ps_cu_memory made;
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
        if (!is_foreign(m) && at >= m->at && at - m->at <= m->size &&
            bytes <= m->size - (at - m->at)) {
            return m;
        }
    }
    return NULL;
}

/* ----------------------------------------------- memory of other allocators */

/* Memory of other allocators, such as torch's or CuPy's, which the agent opens
 * by an IPC handle. An allocation is offered when an operation first uses it,
 * which is copied, as are others until the agent has answered. Nobody says when
 * it is freed: each operation asks the driver for the number of its allocation,
 * and a new offer is the time to withdraw those that are gone. Until then the
 * agent's mapping keeps their memory. */

struct allocation {
    int device;
    unsigned long long id;
    unsigned is_exportable;
    ps_cu_address at;
    size_t size;
};

static bool find_allocation(const struct shared_table *t, ps_cu_address at,
                            struct allocation *ret)
{
    static const int attributes[] = {DEVICE, NUMBER, IS_EXPORTABLE, START,
                                     SIZE};
    struct allocation a = {.device = -1};
    void *values[] = {&a.device, &a.id, &a.is_exportable, &a.at, &a.size};

    if (t->calls.attributes(sizeof(attributes) / sizeof(attributes[0]),
                            attributes, values, at) != 0) {
        return false;
    }
    *ret = a;
    return a.id != 0 && a.size > 0;
}

void shared_explain(struct psc_client *c, const struct gpu *g, const char *why)
{
    if (!c->shared->is_explained) {
        c->shared->is_explained = true;
        (void)client_error(c, 0, "operations copy memory of GPU %d: %s",
                           gpu_number_of(g), why);
    }
}

/* ---------------------------------------------------------------- forgetting */

static bool may_forget(const struct shared_memory *m)
{
    return is_foreign(m) && m->uses == 0 && m->answer != ANSWER_NONE;
}

/* Removes the memory that the link points to. */
static void forget(struct psc_client *c, struct shared_memory **link)
{
    struct shared_memory *m = *link;

    shared_memory_withdraw(c, m);
    *link = m->next;
    c->shared->foreign_count--;
    free(m);
}

static void forget_freed(struct psc_client *c)
{
    struct shared_memory **link = &c->shared->memory;

    while (*link != NULL) {
        const struct shared_memory *m = *link;
        struct allocation a;

        if (may_forget(m) &&
            (!find_allocation(c->shared, m->at, &a) || a.id != m->id)) {
            forget(c, link);
        } else {
            link = &(*link)->next;
        }
    }
}

/* Forgets the one whose last use is the longest ago. */
static void forget_oldest(struct psc_client *c)
{
    struct shared_memory **oldest = NULL;

    for (struct shared_memory **link = &c->shared->memory; *link != NULL;
         link = &(*link)->next) {
        oldest = may_forget(*link) ? link : oldest;
    }
    if (oldest != NULL) {
        forget(c, oldest);
    }
}

/* ------------------------------------------------------------------ offering */

/* Memory of the GPU that the agent has refused for a reason that holds for all
 * of it; NULL: none. */
static const struct shared_memory *refused_memory(const struct shared_table *t,
                                                  const struct gpu *g)
{
    for (const struct shared_memory *m = t->memory; m != NULL; m = m->next) {
        if (is_foreign(m) && m->gpu == g && m->answer == ANSWER_REFUSED &&
            (m->error == PS_E_UNSUPPORTED || m->error == PS_E_NOENT)) {
            return m;
        }
    }
    return NULL;
}

/* Exports the allocation. */
static int export_memory(const struct shared_table *t, struct shared_memory *m)
{
    int rc = gpu_enter(m->gpu);

    if (rc != 0) {
        return rc;
    }
    rc = shared_find_uuid(&t->calls, m->gpu, &m->uuid);
    if (rc == 0) {
        rc = gpu_check(m->gpu, t->calls.export_allocation(&m->handle, m->at),
                       "cuIpcGetMemHandle");
    }
    gpu_leave(m->gpu);
    return rc;
}

/* Announces an allocation. NULL: the driver does not export it. */
static struct shared_memory *announce(struct psc_client *c, struct gpu *g,
                                      const struct allocation *a)
{
    struct shared_table *t = c->shared;
    struct shared_memory *m;

    forget_freed(c);
    if (t->foreign_count >= KEPT_MAX) {
        forget_oldest(c);
    }
    m = t->foreign_count < KEPT_MAX ? calloc(1, sizeof(*m)) : NULL;
    if (m == NULL) {
        return NULL;
    }
    *m = (struct shared_memory){.gpu = g,
                                .at = a->at,
                                .size = a->size,
                                .fd = -1,
                                .id = a->id,
                                .region = c->shm.next_region};
    if (export_memory(t, m) != 0) {
        shared_explain(c, g, gpu_why(c));
        free(m);
        return NULL;
    }
    if (shared_memory_announce(c, m) != 0) {
        free(m); /* The client fails at its next message. */
        return NULL;
    }
    c->shm.next_region++;
    m->next = t->memory;
    t->memory = m;
    t->foreign_count++;
    client_flush(c);
    return m;
}

/* The allocation of that number, which is not 0. It becomes the first of the
 * list. */
static struct shared_memory *use(struct shared_table *t, unsigned long long id)
{
    struct shared_memory **link = &t->memory;
    struct shared_memory *m;

    while (*link != NULL && (*link)->id != id) {
        link = &(*link)->next;
    }
    m = *link;
    if (m != NULL) {
        *link = m->next;
        m->next = t->memory;
        t->memory = m;
    }
    return m;
}

struct shared_memory *shared_foreign_find(struct psc_client *c, struct gpu *g,
                                          const void *data, size_t bytes)
{
    const ps_cu_address at = (uintptr_t)data;
    struct shared_memory *m;
    const struct shared_memory *refused;
    struct allocation a;

    if (!find_allocation(c->shared, at, &a) || a.device != gpu_number_of(g) ||
        at < a.at || at - a.at > a.size || bytes > a.size - (at - a.at)) {
        return NULL;
    }
    if (a.is_exportable == 0) {
        shared_explain(c, g,
                       "its allocator uses memory that the driver cannot share "
                       "by a handle, such as memory pools of the driver");
        return NULL;
    }
    m = use(c->shared, a.id);
    if (m != NULL) {
        return m;
    }
    refused = refused_memory(c->shared, g);
    if (refused != NULL) {
        shared_explain(c, g, refused->why);
        return NULL;
    }
    return announce(c, g, &a);
}

/* ------------------------------------------------------------------- events */

/* They are made when there is no spare one, and kept, so that a steady state makes
 * and announces none. */

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
        rc = gpu_check(g,
                       d->event_new(&e->event, PS_CU_EVENT_NO_TIME |
                                                   PS_CU_EVENT_INTERPROCESS),
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
            .uuid = {.data = e->uuid.bytes, .len = PS_CU_UUID_BYTES},
            .handle = {.data = e->handle.bytes, .len = PS_CU_HANDLE_BYTES}}};
    int rc = e->is_announced ? 0 : client_put(c, &m);

    e->is_announced = rc == 0;
    return rc;
}

static void shared_events_free(struct psc_client *c)
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

/* --------------------------------------------------------------- the agent */

void shared_accept_info(struct psc_client *c,
                        const struct ps_msg_l_device_info *m)
{
    struct shared_memory *x = c->shared != NULL ? c->shared->memory : NULL;

    while (x != NULL && x->region != m->region) {
        x = x->next;
    }
    if (x == NULL) {
        return; /* Freed meanwhile. */
    }
    x->answer = m->error == 0 ? ANSWER_TAKEN : ANSWER_REFUSED;
    x->error = m->error;
    ps_str_copy(x->why, sizeof(x->why), m->text);
    client_changed(c);
}

int shared_announce_all(struct psc_client *c)
{
    int rc = 0;

    if (c->shared == NULL) {
        return 0;
    }
    for (struct shared_event *e = c->shared->events; e != NULL;
         e = e->next_of_all) {
        e->is_announced = false;
    }
    for (struct shared_memory *m = c->shared->memory; m != NULL; m = m->next) {
        /* The new agent has none: those that are freed may be forgotten. */
        m->answer = is_foreign(m) ? ANSWER_REFUSED : m->answer;
    }
    forget_freed(c);
    for (struct shared_memory *m = c->shared->memory; m != NULL && rc == 0;
         m = m->next) {
        rc = shared_memory_announce(c, m);
    }
    return rc;
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
    shared_events_free(c);
    free(t);
    c->shared = NULL;
}
