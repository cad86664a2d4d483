/* SPDX-License-Identifier: Apache-2.0 */
#include "device_memory.h"

#include "cuda_emu/control.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS(X)                                                               \
    X(init, "cuInit", (unsigned flags))                                        \
    X(find, "cuDeviceGet", (int *ret, int ordinal))                            \
    X(retain, "cuDevicePrimaryCtxRetain", (void **ret, int device))            \
    X(use, "cuCtxSetCurrent", (void *context))                                 \
    X(alloc, "cuMemAlloc_v2", (unsigned long long *ret, size_t bytes))         \
    X(free, "cuMemFree_v2", (unsigned long long at))                           \
    X(stream_new, "cuStreamCreate", (void **ret, unsigned flags))              \
    X(put, "cuMemcpyHtoDAsync_v2",                                             \
      (unsigned long long to, const void *from, size_t bytes, void *stream))   \
    X(get, "cuMemcpyDtoHAsync_v2",                                             \
      (void *to, unsigned long long from, size_t bytes, void *stream))         \
    X(wait, "cuStreamSynchronize", (void *stream))

struct device {
#define MEMBER(member, name, arguments) int(*member) arguments;
    CALLS(MEMBER)
#undef MEMBER
    void *library;
    void *stream;
    int ordinal;
};

static void check(int result, const char *call)
{
    if (result != 0) {
        fprintf(stderr, "worker: %s: error %d\n", call, result);
        exit(96);
    }
}

struct device *device_open(int ordinal)
{
    static const struct {
        const char *name;
        size_t offset;
    } calls[] = {
#define SYMBOL(member, name, arguments) {name, offsetof(struct device, member)},
        CALLS(SYMBOL)
#undef SYMBOL
    };
    struct device *d = calloc(1, sizeof(*d));
    void *context;
    int number;

    d->ordinal = ordinal;

    d->library = dlopen(getenv("PSKV_CUDA_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *found = d->library == NULL ? NULL
                                         : dlsym(d->library, calls[i].name);

        check(found == NULL, calls[i].name);
        memcpy((char *)d + calls[i].offset, &found, sizeof(found));
    }
    check(d->init(0), "cuInit");
    check(d->find(&number, ordinal), "cuDeviceGet");
    check(d->retain(&context, number), "cuDevicePrimaryCtxRetain");
    check(d->use(context), "cuCtxSetCurrent");
    check(d->stream_new(&d->stream, 1), "cuStreamCreate");
    return d;
}

int device_ordinal(const struct device *d)
{
    return d->ordinal;
}

void *device_stream(const struct device *d)
{
    return d->stream;
}

void *device_alloc(const struct device *d, size_t bytes)
{
    unsigned long long at = 0;

    check(d->alloc(&at, bytes), "cuMemAlloc");
    return (void *)(uintptr_t)at;
}

void device_free(const struct device *d, void *data)
{
    check(d->free((uintptr_t)data), "cuMemFree");
}

void device_put(const struct device *d, void *to, const void *from,
                size_t bytes)
{
    check(d->put((uintptr_t)to, from, bytes, d->stream), "cuMemcpyHtoDAsync");
}

void device_get(const struct device *d, void *to, const void *from,
                size_t bytes)
{
    check(d->get(to, (uintptr_t)from, bytes, d->stream), "cuMemcpyDtoHAsync");
    check(d->wait(d->stream), "cuStreamSynchronize");
}

void device_hold(const struct device *d)
{
    pskv_emu_control_fn *control = NULL;
    void *found = dlsym(d->library, "pskv_emu_control");

    check(found == NULL, "pskv_emu_control");
    memcpy(&control, &found, sizeof(found));
    control()->hold(d->stream);
}
