/* SPDX-License-Identifier: Apache-2.0 */
/* An event ends each transfer. A function that the driver calls behind it only
 * wakes the thread that waits for the agent, which then asks the event: it may
 * not be called for a GPU that has failed, so waits also ask now and then. */
#include "client/device/gpu.h"
#include "client/arena.h"
#include "client/psclient.h"
#include "client/psclient_stream.h"
#include "client/state.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Events kept for reuse. */
#define SPARE_EVENTS 64u

/* ------------------------------------------------------------------- driver */

static const struct ps_cu_symbol symbols[] = {
#define SYMBOL(member, name, arguments)                                        \
    {name, offsetof(struct gpu_driver, member)},
    GPU_CALLS(SYMBOL)
#undef SYMBOL
};

/* Loads and initialises the driver; on failure `why` has the reason. The library
 * stays loaded: it does not support being unloaded. */
static int load_driver(struct gpu_driver *d, char *why, size_t why_cap)
{
    const char *given = getenv("PSKV_CUDA_DRIVER");
    const char *path = given != NULL ? given : "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *name = "?";
    const char *missing;
    ps_cu_result r;

    if (library == NULL) {
        snprintf(why, why_cap, "%s", dlerror());
        return PSC_E_UNSUPPORTED;
    }
    missing = ps_cu_find_symbols(library, d, symbols,
                                 sizeof(symbols) / sizeof(symbols[0]));
    if (missing != NULL) {
        snprintf(why, why_cap, "%s has no %s", path, missing);
        dlclose(library);
        return PSC_E_UNSUPPORTED;
    }
    d->library = library;
    r = d->init(0);
    if (r != 0) {
        if (d->error_name(r, &name) != 0) {
            name = "?";
        }
        snprintf(why, why_cap, "cuInit: %s (%d)", name, r);
        return PSC_E_UNSUPPORTED;
    }
    return 0;
}

/* --------------------------------------------------------------------- GPUs */

struct gpu {
    struct gpu_table *table;
    struct gpu *next;
    int32_t ordinal;
    ps_cu_device number;
    ps_cu_context context;
    ps_cu_stream streams[2]; /* By direction. */
    ps_cu_stream entrance;   /* See gpu_entrance(); NULL: none. */
    struct ps_list transfers[2];
    ps_cu_event spare_events[SPARE_EVENTS];
    uint32_t spare_event_count;
};

/* Memory of the host that is pinned. */
struct pinned {
    struct pinned *next;
    void *data;
    struct gpu *gpu;
    bool works; /* The driver has pinned it; else it has refused to. */
};

struct gpu_table {
    struct gpu_driver driver;
    struct psc_client *client;
    struct gpu *gpus;
    struct pinned *pinned;
    bool is_dead;  /* A forked child: the driver has to be left alone. */
    char why[256]; /* The last error. */
};

const char *gpu_why(const struct psc_client *c)
{
    return c->gpus != NULL ? c->gpus->why : ps_strerror(PS_E_NOMEM);
}

static int fail(struct gpu_table *t, ps_cu_result r, int32_t ordinal,
                const char *call)
{
    const char *name = NULL;

    if (r == 0) {
        return 0;
    }
    if (t->driver.error_name(r, &name) != 0 || name == NULL) {
        name = "error";
    }
    snprintf(t->why, sizeof(t->why), "%s on GPU %d: %s (%d)", call, ordinal,
             name, r);
    return r == PS_CU_OUT_OF_MEMORY ? PSC_E_NOMEM : PSC_E_IO;
}

int gpu_check(const struct gpu *g, ps_cu_result r, const char *call)
{
    return fail(g->table, r, g->ordinal, call);
}

int gpu_enter(const struct gpu *g)
{
    if (g->table->is_dead) {
        return PSC_E_FORKED;
    }
    return gpu_check(g, g->table->driver.push(g->context), "cuCtxPushCurrent");
}

void gpu_leave(const struct gpu *g)
{
    ps_cu_context ignored;

    (void)g->table->driver.pop(&ignored);
}

const struct gpu_driver *gpu_driver_of(const struct gpu *g)
{
    return &g->table->driver;
}

ps_cu_device gpu_number_of(const struct gpu *g)
{
    return g->number;
}

/* ----------------------------------------------------------------- opening */

static int open_table(struct psc_client *c)
{
    struct gpu_table *t;

    if (c->gpus == NULL) {
        c->gpus = calloc(1, sizeof(*c->gpus));
        if (c->gpus == NULL) {
            return PSC_E_NOMEM;
        }
        c->gpus->client = c;
    }
    t = c->gpus;
    if (t->driver.library != NULL) {
        return 0;
    }
    int rc = load_driver(&t->driver, t->why, sizeof(t->why));

    if (rc == 0) {
        ps_sock_kick(c->sock); /* Makes what wake() uses. */
    }
    return rc;
}

static void close_gpu(struct gpu *g)
{
    const struct gpu_driver *d = &g->table->driver;

    for (size_t i = 0; i < 2; i++) {
        if (g->streams[i] != NULL) {
            /* The last wake() has run afterwards. */
            (void)d->wait(g->streams[i]);
            (void)d->stream_free(g->streams[i]);
        }
    }
    if (g->entrance != NULL) {
        (void)d->stream_free(g->entrance);
    }
    for (uint32_t i = 0; i < g->spare_event_count; i++) {
        (void)d->event_free(g->spare_events[i]);
    }
}

static int open_streams(struct gpu *g)
{
    int rc = 0;

    for (size_t i = 0; i < 2 && rc == 0; i++) {
        rc = gpu_check(g,
                       g->table->driver.stream_new(&g->streams[i],
                                                   PS_CU_STREAM_INDEPENDENT),
                       "cuStreamCreate");
    }
    return rc;
}

static int open_gpu(struct gpu_table *t, int32_t ordinal, struct gpu **ret_gpu)
{
    struct gpu *g = calloc(1, sizeof(*g));
    int rc;

    if (g == NULL) {
        snprintf(t->why, sizeof(t->why), "%s", ps_strerror(PS_E_NOMEM));
        return PSC_E_NOMEM;
    }
    g->table = t;
    g->ordinal = ordinal;
    ps_list_init(&g->transfers[GPU_TO_HOST]);
    ps_list_init(&g->transfers[GPU_TO_DEVICE]);
    rc = gpu_check(g, t->driver.device(&g->number, ordinal), "cuDeviceGet");
    if (rc != 0) {
        goto free_gpu;
    }
    rc = gpu_check(g, t->driver.retain(&g->context, g->number),
                   "cuDevicePrimaryCtxRetain");
    if (rc != 0) {
        goto free_gpu;
    }
    rc = gpu_enter(g);
    if (rc != 0) {
        goto release_context;
    }
    rc = open_streams(g);
    if (rc != 0) {
        close_gpu(g);
    }
    gpu_leave(g);
    if (rc != 0) {
        goto release_context;
    }
    g->next = t->gpus;
    t->gpus = g;
    *ret_gpu = g;
    return 0;

release_context:
    (void)t->driver.unretain(g->number);
free_gpu:
    free(g);
    return rc;
}

/* The GPU of the ordinal, opened. */
static int obtain_gpu(struct psc_client *c, int32_t ordinal,
                      struct gpu **ret_gpu)
{
    for (struct gpu *g = c->gpus->gpus; g != NULL; g = g->next) {
        if (g->ordinal == ordinal) {
            *ret_gpu = g;
            return 0;
        }
    }
    return open_gpu(c->gpus, ordinal, ret_gpu);
}

static int ordinal_of(struct gpu_table *t, const void *array, int32_t *ret)
{
    int found = 0;
    ps_cu_result r = t->driver.pointer(&found, PS_CU_POINTER_DEVICE,
                                       (ps_cu_address)(uintptr_t)array);

    if (r != 0) {
        snprintf(t->why, sizeof(t->why),
                 "the memory at %p is not that of a GPU", array);
        return PSC_E_INVAL;
    }
    *ret = found;
    return 0;
}

int gpu_find(struct psc_client *c, const struct psc_device *where,
             const void *array, struct gpu **ret_gpu)
{
    int32_t ordinal = where->ordinal;
    int rc = open_table(c);

    if (rc != 0) {
        return rc;
    }
    if (where->size != sizeof(*where) || ordinal < PSC_DEVICE_OF_POINTER ||
        (where->flags & ~PSC_DEVICE_COMPLETE) != 0) {
        snprintf(c->gpus->why, sizeof(c->gpus->why),
                 "device %d with flags %u in %u bytes is not a struct "
                 "psc_device",
                 ordinal, where->flags, where->size);
        return PSC_E_INVAL;
    }
    if (ordinal == PSC_DEVICE_OF_POINTER) {
        rc = ordinal_of(c->gpus, array, &ordinal);
    }
    return rc != 0 ? rc : obtain_gpu(c, ordinal, ret_gpu);
}

int gpu_entrance(struct gpu *g, void **ret_stream)
{
    int rc = 0;

    if (g->entrance == NULL) {
        rc = gpu_enter(g);
        if (rc != 0) {
            return rc;
        }
        rc = gpu_check(
            g,
            g->table->driver.stream_new(&g->entrance, PS_CU_STREAM_INDEPENDENT),
            "cuStreamCreate");
        gpu_leave(g);
    }
    if (rc == 0) {
        *ret_stream = g->entrance;
    }
    return rc;
}

/* ------------------------------------------------------------------ events */

static int obtain_event(struct gpu *g, ps_cu_event *ret_event)
{
    if (g->spare_event_count > 0) {
        *ret_event = g->spare_events[--g->spare_event_count];
        return 0;
    }
    return gpu_check(g,
                     g->table->driver.event_new(ret_event, PS_CU_EVENT_NO_TIME),
                     "cuEventCreate");
}

static void drop_event(struct gpu *g, ps_cu_event event)
{
    if (event == NULL) {
        return;
    }
    if (g->spare_event_count < SPARE_EVENTS) {
        g->spare_events[g->spare_event_count++] = event;
    } else {
        (void)g->table->driver.event_free(event);
    }
}

void gpu_drop_event(struct gpu *g, ps_cu_event event)
{
    if (gpu_enter(g) == 0) {
        drop_event(g, event);
        gpu_leave(g);
    }
}

/* A new event behind the work in a stream. */
static int record(struct gpu *g, ps_cu_stream stream, ps_cu_event *ret_event)
{
    ps_cu_event event = NULL;
    int rc = obtain_event(g, &event);

    if (rc != 0) {
        return rc;
    }
    rc = gpu_check(g, g->table->driver.event_record(event, stream),
                   "cuEventRecord");
    if (rc != 0) {
        drop_event(g, event);
        return rc;
    }
    *ret_event = event;
    return 0;
}

int gpu_mark(struct gpu *g, void *stream, ps_cu_event *ret_event)
{
    int rc = gpu_enter(g);

    if (rc == 0) {
        rc = record(g, stream, ret_event);
        gpu_leave(g);
    }
    return rc;
}

/* ----------------------------------------------------------- pinned memory */

static struct pinned *find_pinned(const struct gpu_table *t, const void *data)
{
    for (struct pinned *p = t->pinned; p != NULL; p = p->next) {
        if (p->data == data) {
            return p;
        }
    }
    return NULL;
}

static int pin(struct gpu *g, void *data, size_t size, unsigned flags,
               struct pinned **ret_pinned)
{
    struct pinned *p = calloc(1, sizeof(*p));
    ps_cu_result r;
    int rc;

    if (p == NULL) {
        snprintf(g->table->why, sizeof(g->table->why), "%s",
                 ps_strerror(PS_E_NOMEM));
        return PSC_E_NOMEM;
    }
    rc = gpu_enter(g);
    if (rc != 0) {
        free(p);
        return rc;
    }
    r = g->table->driver.pin(data, size, flags | PS_CU_HOST_PORTABLE);
    gpu_leave(g);
    rc = r == PS_CU_ALREADY_REGISTERED ? 0
                                       : gpu_check(g, r, "cuMemHostRegister");
    *p = (struct pinned){
        .next = g->table->pinned, .data = data, .gpu = g, .works = rc == 0};
    g->table->pinned = p;
    *ret_pinned = p;
    return rc;
}

int gpu_pin_block(struct gpu *g, struct ps_shm_block *b)
{
    size_t size;
    void *data = ps_shm_arena_data(b, &size);
    struct pinned *p = find_pinned(g->table, data);
    int rc;

    if (p != NULL && p->works) {
        return 0;
    }
    if (p != NULL) {
        gpu_forget(g->table->client, data); /* Tried again. */
    }
    rc = pin(g, data, size, 0, &p);
    if (rc == 0) {
        ps_shm_keep_pages(b);
    }
    return rc;
}

bool gpu_pin_results(struct gpu *g, const void *data)
{
    const struct arena *a = arena_around(g->table->client, data);
    struct pinned *p;

    if (a == NULL) {
        return false;
    }
    p = find_pinned(g->table, a->data);
    if (p == NULL && pin(g, (void *)(uintptr_t)a->data, (size_t)a->size,
                         PS_CU_HOST_READ_ONLY, &p) != 0) {
        return false;
    }
    return p->works;
}

static void unpin(struct gpu_table *t, struct pinned *p)
{
    if (p->works && gpu_enter(p->gpu) == 0) {
        (void)t->driver.unpin(p->data);
        gpu_leave(p->gpu);
    }
    free(p);
}

void gpu_forget(struct psc_client *c, const void *data)
{
    struct pinned **link;

    if (c->gpus == NULL) {
        return;
    }
    for (link = &c->gpus->pinned; *link != NULL; link = &(*link)->next) {
        struct pinned *p = *link;

        if (p->data == data) {
            *link = p->next;
            gpu_drain(c);
            unpin(c->gpus, p);
            return;
        }
    }
}

/* ------------------------------------------------------------------ copies */

static int enqueue(struct gpu *g, enum gpu_direction direction,
                   const struct gpu_copy *copy)
{
    const struct gpu_driver *d = &g->table->driver;
    ps_cu_stream s = g->streams[direction];

    if (copy->bytes == 0) {
        return 0;
    }
    if (direction == GPU_TO_HOST) {
        return gpu_check(g,
                         d->to_host(copy->to,
                                    (ps_cu_address)(uintptr_t)copy->from,
                                    copy->bytes, s),
                         "cuMemcpyDtoHAsync");
    }
    return gpu_check(g,
                     d->to_device((ps_cu_address)(uintptr_t)copy->to,
                                  copy->from, copy->bytes, s),
                     "cuMemcpyHtoDAsync");
}

int gpu_copy(struct gpu *g, enum gpu_direction direction, ps_cu_event behind,
             const struct gpu_copy *copies, size_t count)
{
    int rc = gpu_enter(g);

    if (rc != 0) {
        return rc;
    }
    if (behind != NULL) {
        rc = gpu_check(
            g, g->table->driver.stream_wait(g->streams[direction], behind, 0),
            "cuStreamWaitEvent");
    }
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = enqueue(g, direction, &copies[i]);
    }
    gpu_leave(g);
    return rc;
}

/* Runs in a thread of the driver, which must not call it and must not wait. */
static void wake(void *arg)
{
    ps_sock_kick(arg);
}

int gpu_transfer(struct gpu *g, enum gpu_direction direction,
                 struct gpu_transfer *t)
{
    struct gpu_table *table = g->table;
    int rc = gpu_enter(g);

    if (rc != 0) {
        return rc;
    }
    rc = record(g, g->streams[direction], &t->event);
    if (rc == 0) {
        t->gpu = g;
        t->direction = direction;
        ps_list_push_back(&g->transfers[direction], &t->node);
        table->client->gpu_transfers++;
        /* On failure the transfer ends by its event nevertheless. */
        (void)table->driver.call_host(g->streams[direction], wake,
                                      table->client->sock);
    }
    gpu_leave(g);
    return rc;
}

int gpu_delay(struct gpu *g, void *stream, const struct gpu_transfer *t)
{
    int rc = gpu_enter(g);

    if (rc == 0) {
        rc = gpu_check(g, g->table->driver.stream_wait(stream, t->event, 0),
                       "cuStreamWaitEvent");
        gpu_leave(g);
    }
    return rc;
}

/* --------------------------------------------------------------- their end */

static void end_transfer(struct psc_client *c, struct gpu_transfer *t, int rc)
{
    ps_list_remove(&t->node);
    c->gpu_transfers--;
    gpu_drop_event(t->gpu, t->event);
    t->event = NULL;
    t->ended(c, t, rc);
}

/* The first transfer of the direction if it has ended, else NULL. */
static struct gpu_transfer *
first_ended(struct gpu *g, enum gpu_direction direction, int *ret_rc)
{
    struct gpu_transfer *t = PS_LIST_FIRST(struct gpu_transfer, node,
                                           &g->transfers[direction]);
    ps_cu_result r = 0;
    int rc;

    if (t == NULL) {
        return NULL;
    }
    rc = gpu_enter(g);
    if (rc == 0) {
        r = g->table->driver.event_query(t->event);
        gpu_leave(g);
        if (r == PS_CU_NOT_READY) {
            return NULL;
        }
        rc = gpu_check(g, r, "a copy");
    }
    *ret_rc = rc;
    return t;
}

void gpu_poll(struct psc_client *c)
{
    for (struct gpu *g = c->gpus->gpus; g != NULL; g = g->next) {
        for (int d = GPU_TO_HOST; d <= GPU_TO_DEVICE; d++) {
            struct gpu_transfer *t;
            int rc = 0;

            while ((t = first_ended(g, (enum gpu_direction)d, &rc)) != NULL) {
                end_transfer(c, t, rc);
            }
        }
    }
}

void gpu_drain(struct psc_client *c)
{
    while (c->gpu_transfers > 0) {
        for (struct gpu *g = c->gpus->gpus; g != NULL; g = g->next) {
            if (gpu_enter(g) == 0) {
                (void)c->gpus->driver.wait(g->streams[GPU_TO_HOST]);
                (void)c->gpus->driver.wait(g->streams[GPU_TO_DEVICE]);
                gpu_leave(g);
            }
        }
        gpu_poll(c);
    }
}

void gpu_finish(struct gpu *g, enum gpu_direction direction)
{
    if (gpu_enter(g) == 0) {
        (void)g->table->driver.wait(g->streams[direction]);
        gpu_leave(g);
    }
}

void gpu_end_all(struct psc_client *c, bool child)
{
    if (c->gpus == NULL) {
        return;
    }
    c->gpus->is_dead = child;
    if (child && c->rc == 0) {
        c->rc = PSC_E_FORKED; /* Nothing is sent any more. */
    }
    gpu_drain(c);
}

void gpu_free_all(struct psc_client *c)
{
    struct gpu_table *t = c->gpus;

    if (t == NULL) {
        return;
    }
    while (t->pinned != NULL) {
        struct pinned *p = t->pinned;

        t->pinned = p->next;
        unpin(t, p);
    }
    while (t->gpus != NULL) {
        struct gpu *g = t->gpus;

        t->gpus = g->next;
        if (gpu_enter(g) == 0) {
            close_gpu(g);
            gpu_leave(g);
        }
        if (!t->is_dead) {
            (void)t->driver.unretain(g->number);
        }
        free(g);
    }
    free(t);
    c->gpus = NULL;
}
