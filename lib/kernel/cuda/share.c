/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and events of other processes: import and release. */
#include "kernel/cuda/share.h"

#include "base/err.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ps_cuda_share_fail(const struct ps_cuda_share *s, const char *call,
                       ps_cu_result error, char *why)
{
    (void)snprintf(why, PS_SHARE_WHY_MAX, "%s: %s", call,
                   ps_cuda_error(s->devices[0].cuda, error));
    return error == PS_CU_OUT_OF_MEMORY ? PS_E_NOMEM : PS_E_IO;
}

static const struct ps_cu_symbol share_symbols[] = {
#define SYMBOL(member, name, arguments)                                        \
    {name, offsetof(struct ps_cu_share, member)},
    PS_CU_SHARE_CALLS(SYMBOL)
#undef SYMBOL
};

/* ----------------------------------------------------------------- devices */

static void close_share(void *share)
{
    struct ps_cuda_share *s = share;

    if (s == NULL) {
        return;
    }
    for (uint32_t i = 0; i < s->count; i++) {
        ps_kernel_plugin.close(s->devices[i].cuda);
    }
    free(s);
}

/* Opens device `i`. PS_E_NOENT: there are no more. */
static int open_device(struct ps_cuda_share *s, uint32_t i, char *why)
{
    struct ps_cuda_shared_device *d = &s->devices[i];
    void *cuda;
    int count = 0;
    int rc;

    if (i > 0 && (s->devices[0].cuda->cu.device_count(&count) != 0 ||
                  i >= (uint32_t)count)) {
        return PS_E_NOENT;
    }
    rc = ps_kernel_plugin.open(i, &cuda, why, PS_SHARE_WHY_MAX);
    if (rc != 0) {
        return rc;
    }
    d->cuda = cuda;
    s->count = i + 1;
    if (i == 0) {
        const char *missing = ps_cu_find_symbols(
            d->cuda->cu.library, &s->cu, share_symbols,
            sizeof(share_symbols) / sizeof(share_symbols[0]));

        if (missing != NULL) {
            (void)snprintf(why, PS_SHARE_WHY_MAX, "the CUDA driver has no %s",
                           missing);
            return PS_E_UNSUPPORTED;
        }
    }
    const ps_cu_result error = s->cu.uuid(&d->uuid, d->cuda->device);

    return error == 0 ? 0
                      : ps_cuda_share_fail(s, "cuDeviceGetUuid", error, why);
}

static int32_t open_share(void **ret_share, char *why)
{
    struct ps_cuda_share *s = calloc(1, sizeof(*s));
    int rc = s == NULL ? PS_E_NOMEM : 0;

    for (uint32_t i = 0; i < PS_SHARE_DEVICES && rc == 0; i++) {
        rc = open_device(s, i, why);
        if (rc == PS_E_NOENT && i > 0) {
            rc = 0;
            break;
        }
    }
    if (rc != 0) {
        close_share(s);
        return rc;
    }
    *ret_share = s;
    return 0;
}

static void describe(void *share, char *text, uint64_t cap)
{
    const struct ps_cuda_share *s = share;
    int len = snprintf(text, cap, "GPUs %u ", s->count);

    if (len > 0 && (uint64_t)len < cap) {
        ps_kernel_plugin.describe(s->devices[0].cuda, text + len,
                                  cap - (uint64_t)len);
    }
}

/* Makes the device with that identity current; -1: there is none, or it has
 * failed, for the reason in *ret_rc and `why`. */
static int enter_device(struct ps_cuda_share *s, const uint8_t *uuid, char *why,
                        int *ret_rc)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (memcmp(s->devices[i].uuid.bytes, uuid, PS_SHARE_UUID) == 0) {
            const struct ps_cuda *c = s->devices[i].cuda;
            const ps_cu_result error = c->cu.push(c->context);

            if (error != 0) {
                *ret_rc = ps_cuda_share_fail(s, "cuCtxPushCurrent", error, why);
                return -1;
            }
            return (int)i;
        }
    }
    (void)snprintf(why, PS_SHARE_WHY_MAX,
                   "the worker's GPU is none of those of the agent "
                   "(CUDA_VISIBLE_DEVICES)");
    *ret_rc = PS_E_NOENT;
    return -1;
}

static void leave_device(struct ps_cuda_share *s, uint32_t device)
{
    ps_cu_context old;

    (void)s->devices[device].cuda->cu.pop(&old);
}

/* ------------------------------------------------------------------ memory */

static struct ps_cu_access access_of(uint32_t device)
{
    return (struct ps_cu_access){
        .location = {.type = PS_CU_LOCATION_DEVICE, .id = (int)device},
        .flags = PS_CU_READ_WRITE,
    };
}

/* Maps `m->bytes` of `from`, for all devices that can have them. */
static int map_memory(struct ps_cuda_share *s, ps_cu_memory from,
                      struct ps_cuda_memory *m, char *why)
{
    struct ps_cu_access own = access_of(m->device);
    ps_cu_result error = s->cu.reserve(&m->at, m->bytes, 0, 0, 0);

    if (error != 0) {
        return ps_cuda_share_fail(s, "cuMemAddressReserve", error, why);
    }
    error = s->cu.map(m->at, m->bytes, 0, from, 0);
    if (error != 0) {
        (void)s->cu.unreserve(m->at, m->bytes);
        return ps_cuda_share_fail(s, "cuMemMap", error, why);
    }
    error = s->cu.set_access(m->at, m->bytes, &own, 1);
    if (error != 0) {
        (void)s->cu.unmap(m->at, m->bytes);
        (void)s->cu.unreserve(m->at, m->bytes);
        return ps_cuda_share_fail(s, "cuMemSetAccess", error, why);
    }
    m->readers = 1u << m->device;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct ps_cu_access peer = access_of(i);

        /* Without access, sums copy it first. */
        if (i != m->device &&
            s->cu.set_access(m->at, m->bytes, &peer, 1) == 0) {
            m->readers |= 1u << i;
        }
    }
    return 0;
}

static int import_mapped(struct ps_cuda_share *s, int32_t fd,
                         struct ps_cuda_memory *m, char *why)
{
    struct ps_cu_properties p = {0};
    ps_cu_memory from;
    ps_cu_result error = s->cu.import(&from, (void *)(intptr_t)fd,
                                      PS_CU_DESCRIPTOR);
    int rc;

    if (error != 0) {
        return ps_cuda_share_fail(s, "cuMemImportFromShareableHandle", error,
                                  why);
    }
    error = s->cu.properties(&p, from);
    if (error != 0) {
        rc = ps_cuda_share_fail(s, "cuMemGetAllocationPropertiesFromHandle",
                                error, why);
    } else if (p.location.type != PS_CU_LOCATION_DEVICE ||
               p.location.id != (int)m->device) {
        (void)snprintf(why, PS_SHARE_WHY_MAX,
                       "the memory is on another GPU than the worker says");
        rc = PS_E_INVAL;
    } else {
        rc = map_memory(s, from, m, why);
    }
    (void)s->cu.release(from); /* A mapping keeps the memory. */
    return rc;
}

static int import_opened(struct ps_cuda_share *s, const uint8_t *handle,
                         struct ps_cuda_memory *m, char *why)
{
    struct ps_cu_handle h;
    ps_cu_address base = 0;
    size_t bytes = 0;
    ps_cu_result error;

    memcpy(h.bytes, handle, sizeof(h.bytes));
    error = s->cu.open_memory(&m->at, h, PS_CU_LAZY_PEER_ACCESS);
    if (error != 0) {
        return ps_cuda_share_fail(s, "cuIpcOpenMemHandle", error, why);
    }
    error = s->cu.range(&base, &bytes, m->at);
    /* The driver may map a block that has other allocations, too. */
    if (error != 0 || base > m->at || bytes < m->bytes ||
        m->at - base > bytes - m->bytes) {
        (void)s->cu.close_memory(m->at);
        (void)snprintf(why, PS_SHARE_WHY_MAX,
                       "the memory is smaller than the worker says");
        return PS_E_INVAL;
    }
    m->readers = 1u << m->device;
    return 0;
}

static int32_t import(void *share, const struct ps_share_source *from,
                      void **ret_memory, char *why)
{
    struct ps_cuda_share *s = share;
    struct ps_cuda_memory *m = calloc(1, sizeof(*m));
    int rc = PS_E_NOMEM;
    int device = m == NULL ? -1 : enter_device(s, from->uuid, why, &rc);

    if (device >= 0) {
        m->device = (uint32_t)device;
        m->bytes = from->bytes;
        m->is_mapped = from->handle == NULL;
        rc = m->is_mapped ? import_mapped(s, from->fd, m, why)
                          : import_opened(s, from->handle, m, why);
        leave_device(s, m->device);
    }
    if (rc != 0) {
        free(m);
        return rc;
    }
    *ret_memory = m;
    return 0;
}

static void release_memory(void *share, void *memory)
{
    struct ps_cuda_share *s = share;
    struct ps_cuda_memory *m = memory;
    const struct ps_cuda *c = s->devices[m->device].cuda;

    if (c->cu.push(c->context) == 0) {
        if (m->is_mapped) {
            (void)s->cu.unmap(m->at, m->bytes);
            (void)s->cu.unreserve(m->at, m->bytes);
        } else {
            (void)s->cu.close_memory(m->at);
        }
        leave_device(s, m->device);
    }
    free(m);
}

static uint64_t address(const void *memory)
{
    return ((const struct ps_cuda_memory *)memory)->at;
}

/* ------------------------------------------------------------------ events */

struct shared_event {
    ps_cu_event event;
    uint32_t device;
};

static int32_t import_event(void *share, const uint8_t *uuid,
                            const uint8_t *handle, void **ret_event, char *why)
{
    struct ps_cuda_share *s = share;
    struct shared_event *e = calloc(1, sizeof(*e));
    struct ps_cu_handle h;
    int rc = PS_E_NOMEM;
    int device = e == NULL ? -1 : enter_device(s, uuid, why, &rc);

    if (device >= 0) {
        memcpy(h.bytes, handle, sizeof(h.bytes));
        e->device = (uint32_t)device;

        const ps_cu_result error = s->cu.open_event(&e->event, h);

        rc = error == 0
                 ? 0
                 : ps_cuda_share_fail(s, "cuIpcOpenEventHandle", error, why);
        leave_device(s, e->device);
    }
    if (rc != 0) {
        free(e);
        return rc;
    }
    *ret_event = e;
    return 0;
}

static void release_event(void *share, void *event)
{
    struct ps_cuda_share *s = share;
    struct shared_event *e = event;
    const struct ps_cuda *c = s->devices[e->device].cuda;

    if (c->cu.push(c->context) == 0) {
        (void)s->cu.event_free(e->event);
        leave_device(s, e->device);
    }
    free(e);
}

/* An event of a device that has failed counts as over: the sum then fails, and
 * says why. */
static int32_t is_over(void *share, void *event)
{
    struct ps_cuda_share *s = share;
    const struct shared_event *e = event;
    const struct ps_cuda *c = s->devices[e->device].cuda;
    ps_cu_result error;

    if (c->cu.push(c->context) != 0) {
        return 1;
    }
    error = s->cu.event_query(e->event);
    leave_device(s, e->device);
    return error != PS_CU_NOT_READY;
}

/* ---------------------------------------------------------- pinned memory */

static int32_t pin_or_unpin(struct ps_cuda_share *s, void *data, uint64_t bytes)
{
    const struct ps_cuda *c = s->devices[0].cuda;
    ps_cu_result error = c->cu.push(c->context);

    if (error == 0) {
        error = bytes > 0 ? s->cu.pin(data, bytes, PS_CU_HOST_PORTABLE)
                          : s->cu.unpin(data);
        leave_device(s, 0);
    }
    return error == 0 ? 0 : PS_E_IO;
}

static int32_t pin(void *share, void *data, uint64_t bytes)
{
    return pin_or_unpin(share, data, bytes);
}

static void unpin(void *share, void *data)
{
    (void)pin_or_unpin(share, data, 0);
}

static void stats(void *share, struct ps_share_stats *ret)
{
    struct ps_cuda_share *s = share;

    *ret = (struct ps_share_stats){
        .to_host = atomic_load(&s->to_host),
        .to_device = atomic_load(&s->to_device),
        .between = atomic_load(&s->between),
        .folded = atomic_load(&s->folded),
    };
}

__attribute__((
    visibility("default"))) extern const struct ps_share_api ps_share_plugin;

const struct ps_share_api ps_share_plugin = {
    .abi = PS_SHARE_ABI,
    .size = sizeof(struct ps_share_api),
    .open = open_share,
    .close = close_share,
    .describe = describe,
    .import = import,
    .release = release_memory,
    .address = address,
    .import_event = import_event,
    .release_event = release_event,
    .is_over = is_over,
    .fold = ps_cuda_share_fold,
    .fetch = ps_cuda_share_fetch,
    .deliver = ps_cuda_share_deliver,
    .pin = pin,
    .unpin = unpin,
    .stats = stats,
};
