/* SPDX-License-Identifier: Apache-2.0 */
#include "client/device/gpu.h"
#include "client/mapping.h"
#include "client/state.h"
#include "client/threads.h"

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

static void on_arena_unmap(void *ctx, const void *data)
{
    gpu_forget(ctx, data);
}

void memory_init(struct psc_client *c)
{
    ps_shm_init(&c->shm, &(struct ps_shm_hooks){.on_made = on_arena_made,
                                                .on_freed = on_arena_freed,
                                                .on_unmap = on_arena_unmap,
                                                .ctx = c});
}

int psc_alloc(struct psc_client *c, size_t size, void **ret_data)
{
    struct ps_shm_block *b;
    int rc = client_enter_with(c, ret_data, "ret_data");

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
    if (b == NULL || ps_shm_data(b) != data ||
        ps_shm_registered(&c->shm, data) != NULL) {
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

/* -------------------------------------------------- memory of the program */

/* Reason why operations copy the memory; NULL: it is shared and registered. */
static const char *share_memory(struct psc_client *c, void *data, size_t size,
                                uint32_t flags, int *ret_rc)
{
    struct ps_shm_mapping m;
    const char *why = NULL;
    int rc = mapping_find(data, size, (flags & PSC_BUF_KEEP_SEALS) == 0, &m,
                          &why);

    if (rc != 0) {
        *ret_rc = rc;
        return why;
    }
    rc = ps_shm_register(&c->shm, data, size, &m);
    if (rc != 0) {
        close(m.fd);
        why = rc == PSC_E_FULL ? "the agent maps no more than 128 files for "
                                 "this client"
                               : ps_strerror(rc);
    }
    *ret_rc = rc;
    return why;
}

static int check_memory(struct psc_client *c, const void *data, size_t size,
                        uint32_t flags)
{
    const uint8_t *at = data;

    if (c->rc != 0) {
        return client_error(c, c->rc, "%s", c->text);
    }
    if (data == NULL || size == 0 || size > UINTPTR_MAX - (uintptr_t)at ||
        (flags & ~(PSC_BUF_KEEP_SEALS | PSC_BUF_MUST_SHARE)) != 0) {
        return client_error(c, PSC_E_INVAL,
                            "%zu bytes at %p with flags %u cannot be "
                            "registered",
                            size, data, flags);
    }
    if (ps_shm_find(&c->shm, data, 0) != NULL ||
        ps_shm_find(&c->shm, at + size - 1, 0) != NULL) {
        return client_error(c, PSC_E_EXIST,
                            "the memory at %p is shared already", data);
    }
    return 0;
}

static int register_locked(struct psc_client *c, void *data, size_t size,
                           uint32_t flags, enum psc_buf_state *ret_state)
{
    const char *why;
    int rc = check_memory(c, data, size, flags);

    if (rc != 0) {
        return rc;
    }
    why = share_memory(c, data, size, flags, &rc);
    if (why == NULL) {
        client_flush(c);
        *ret_state = PSC_BUF_SHARED;
        return 0;
    }
    if ((flags & PSC_BUF_MUST_SHARE) != 0 ||
        (rc != PSC_E_UNSUPPORTED && rc != PSC_E_FULL)) {
        return client_error(c, rc, "the memory at %p is not shared: %s", data,
                            why);
    }
    rc = ps_shm_register(&c->shm, data, size, NULL);
    if (rc != 0) {
        return client_error(c, rc, "the memory at %p is not registered: %s",
                            data, ps_strerror(rc));
    }
    (void)client_error(c, 0, "operations copy the memory at %p: %s", data, why);
    *ret_state = PSC_BUF_COPIED;
    return 0;
}

int psc_buf_register(struct psc_client *c, void *data, size_t size,
                     uint32_t flags, enum psc_buf_state *ret_state)
{
    enum psc_buf_state state = PSC_BUF_COPIED;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = register_locked(c, data, size, flags, &state);
    if (rc == 0 && ret_state != NULL) {
        *ret_state = state;
    }
    client_leave(c);
    return rc;
}

int psc_buf_unregister(struct psc_client *c, void *data)
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
    b = ps_shm_registered(&c->shm, data);
    if (b == NULL) {
        rc = client_error(c, PSC_E_INVAL, "no registered memory begins at %p",
                          data);
    } else if (b->uses > 0) {
        rc = client_error(c, PSC_E_AGAIN, "%u open operations use this memory",
                          b->uses);
    } else {
        ps_shm_unregister(&c->shm, b);
    }
    client_leave(c);
    return rc;
}
