/* SPDX-License-Identifier: Apache-2.0 */
#include "client/arena.h"
#include "client/device/gpu.h"
#include "client/grow.h"
#include "client/state.h"

#include <stdlib.h>
#include <unistd.h>

const struct arena *arena_find(const struct psc_client *c, uint32_t number)
{
    for (size_t i = 0; i < c->arenas.count; i++) {
        if (c->arenas.list[i]->number == number &&
            !c->arenas.list[i]->is_of_lost_agent) {
            return c->arenas.list[i];
        }
    }
    return NULL;
}

static int keep_arena_of_results(struct psc_client *c,
                                 const struct ps_msg_l_arena *m, int fd)
{
    struct arena *a;
    int rc;

    if (arena_find(c, m->arena) != NULL) {
        return PS_E_PROTO;
    }
    rc = client_grow(&c->arenas.list, c->arenas.count, &c->arenas.cap,
                     sizeof(struct arena *));
    if (rc != 0) {
        return rc;
    }
    a = calloc(1, sizeof(*a));
    if (a == NULL) {
        return PS_E_NOMEM;
    }
    a->number = m->arena;
    a->size = m->size;
    rc = ps_shm_map_foreign(fd, m->size, &a->data);
    if (rc != 0) {
        free(a);
        return rc;
    }
    c->arenas.list[c->arenas.count++] = a;
    return 0;
}

void arena_accept(struct psc_client *c, const struct ps_msg_l_arena *m, int fd)
{
    int rc = keep_arena_of_results(c, m, fd);

    close(fd); /* The mapping remains. */
    if (rc != 0) {
        client_fail(c, rc, "cannot map the agent's memory %u: %s", m->arena,
                    ps_strerror(rc));
    }
}

const uint8_t *arena_place(const struct arena *a, uint64_t offset,
                           uint64_t bytes)
{
    if (a == NULL || offset % 8 != 0 || bytes > a->size ||
        offset > a->size - bytes) {
        return NULL;
    }
    return (const uint8_t *)a->data + offset;
}

static void unmap_arena(struct psc_client *c, size_t at)
{
    struct arena *a = c->arenas.list[at];

    gpu_forget(c, a->data);
    ps_shm_unmap_foreign(a->data, a->size);
    free(a);
    c->arenas.list[at] = c->arenas.list[--c->arenas.count];
}

void arena_drop(struct psc_client *c, struct arena *a)
{
    a->uses--;
    for (size_t i = 0; a->uses == 0 && i < c->arenas.count; i++) {
        if (c->arenas.list[i] == a) {
            unmap_arena(c, i);
            return;
        }
    }
}

struct arena *arena_around(const struct psc_client *c, const void *data)
{
    for (size_t i = 0; i < c->arenas.count; i++) {
        struct arena *a = c->arenas.list[i];
        const uint8_t *from = a->data;

        if (!a->is_of_lost_agent && (const uint8_t *)data >= from &&
            (const uint8_t *)data < from + a->size) {
            return a;
        }
    }
    return NULL;
}

void arena_lose_all(struct psc_client *c)
{
    for (size_t i = c->arenas.count; i-- > 0;) {
        c->arenas.list[i]->is_of_lost_agent = true;
        if (c->arenas.list[i]->uses == 0) {
            unmap_arena(c, i);
        }
    }
}

void arena_free_all(struct psc_client *c)
{
    while (c->arenas.count > 0) {
        unmap_arena(c, c->arenas.count - 1);
    }
    free(c->arenas.list);
}
