/* SPDX-License-Identifier: Apache-2.0 */
#include "client/memory.h"
#include "client/entry.h"
#include "client/error.h"
#include "client/send.h"
#include "client/state.h"

#include <unistd.h>

static int on_arena_made(void *ctx, uint32_t region, int fd, uint64_t size)
{
    struct psc_client *c = ctx;
    const struct ps_msg m = {.code = PS_MSG_L_REGION,
                             .l_region = {.region = region, .size = size}};

    if (c->rc == 0 && c->reattach.link != LINK_UP) {
        close(fd); /* The next agent gets all arenas offered. */
        return 0;
    }
    /* Flushed with the operation that uses the arena. */
    return c->rc != 0 ? c->rc : ps_sock_put(c->sock, &m, fd);
}

static void on_arena_freed(void *ctx, uint32_t region)
{
    struct psc_client *c = ctx;
    const struct ps_msg m = {.code = PS_MSG_L_REGION_GONE,
                             .l_region_gone = {.region = region}};

    /* On failure the agent keeps a mapping without use. */
    if (client_send(c, &m) != 0) {
        return;
    }
}

void memory_init(struct psc_client *c)
{
    ps_shm_init(&c->shm, &(struct ps_shm_hooks){.on_made = on_arena_made,
                                                .on_freed = on_arena_freed,
                                                .ctx = c});
}

int psc_alloc(struct psc_client *c, size_t size, void **ret_data)
{
    struct ps_shm_block *b;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = c->rc != 0 ? c->rc : ps_shm_get(&c->shm, size, &b);
    if (rc == 0) {
        *ret_data = ps_shm_data(b);
    } else {
        client_error(c, rc, "no shared memory of %zu bytes: %s", size,
                     c->rc != 0 ? c->text : ps_strerror(rc));
    }
    client_leave(c);
    return rc;
}

int psc_free(struct psc_client *c, void *data)
{
    struct ps_shm_block *b;
    int rc;

    if (data == NULL) {
        return 0;
    }
    rc = client_enter(c);
    if (rc != 0) {
        return rc;
    }
    b = ps_shm_find(&c->shm, data, 0);
    if (b == NULL || ps_shm_data(b) != data) {
        rc = client_error(c, PSC_E_INVAL, "not from psc_alloc");
    } else if (b->uses > 0) {
        rc = client_error(c, PSC_E_AGAIN, "%u open operations use this memory",
                          b->uses);
    } else {
        ps_shm_put(&c->shm, b);
    }
    client_leave(c);
    return rc;
}
