/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other allocators, such as torch's or CuPy's, which the agent opens
 * by an IPC handle. An allocation is offered when an operation first uses it,
 * which is copied, as are others until the agent has answered. Nobody says when
 * it is freed: each operation asks the driver for the number of its allocation,
 * and a new offer is the time to withdraw those that are gone. Until then the
 * agent's mapping keeps their memory. */
#include "client/device/shared_inner.h"
#include "client/state.h"

#include <stdlib.h>

/* Allocations that the agent has at a time. */
#define KEPT_MAX      256u

/* Attributes of a pointer. */
#define DEVICE        GPU_POINTER_DEVICE /* int */
#define NUMBER        7                  /* unsigned long long */
#define IS_EXPORTABLE 10                 /* unsigned */
#define START         11                 /* gpu_address */
#define SIZE          12                 /* size_t */

struct allocation {
    int device;
    unsigned long long id;
    unsigned is_exportable;
    gpu_address at;
    size_t size;
};

static bool find_allocation(const struct shared_table *t, gpu_address at,
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
    return m->uses == 0 && m->answer != ANSWER_NONE;
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
    struct shared_memory **link = &c->shared->foreign;

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

    for (struct shared_memory **link = &c->shared->foreign; *link != NULL;
         link = &(*link)->next) {
        oldest = may_forget(*link) ? link : oldest;
    }
    if (oldest != NULL) {
        forget(c, oldest);
    }
}

void shared_foreign_reset(struct psc_client *c)
{
    for (struct shared_memory *m = c->shared->foreign; m != NULL; m = m->next) {
        m->answer = ANSWER_REFUSED;
    }
    forget_freed(c);
}

void shared_foreign_free(struct shared_table *t)
{
    while (t->foreign != NULL) {
        struct shared_memory *m = t->foreign;

        t->foreign = m->next;
        free(m);
    }
}

/* ------------------------------------------------------------------ offering */

/* Memory of the GPU that the agent has refused for a reason that holds for all
 * of it; NULL: none. */
static const struct shared_memory *refused_memory(const struct shared_table *t,
                                                  const struct gpu *g)
{
    for (const struct shared_memory *m = t->foreign; m != NULL; m = m->next) {
        if (m->gpu == g && m->answer == ANSWER_REFUSED &&
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
    m->next = t->foreign;
    t->foreign = m;
    t->foreign_count++;
    client_flush(c);
    return m;
}

/* The memory of that number, which becomes the first of the list. */
static struct shared_memory *use(struct shared_table *t, unsigned long long id)
{
    struct shared_memory **link = &t->foreign;
    struct shared_memory *m;

    while (*link != NULL && (*link)->id != id) {
        link = &(*link)->next;
    }
    m = *link;
    if (m != NULL) {
        *link = m->next;
        m->next = t->foreign;
        t->foreign = m;
    }
    return m;
}

struct shared_memory *shared_foreign_find(struct psc_client *c, struct gpu *g,
                                          const void *data, size_t bytes)
{
    const gpu_address at = (uintptr_t)data;
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
