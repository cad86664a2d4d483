/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation of memory of devices and of pinned memory. */
#include "memory.h"

#include <sys/mman.h>

/* Unit of cuMemAlloc(), and alignment of its pointers. */
#define ALLOCATION 512u
#define PAGE       4096u

static size_t round_up(size_t x, size_t to)
{
    return (x + to - 1) / to * to;
}

/* Maps a backing at new addresses; takes over the caller's reference. */
static CUresult place_backing(struct emu_context *c, enum emu_range_kind kind,
                              struct emu_backing *b, size_t size,
                              CUdeviceptr *ret_address)
{
    struct emu_range like = {
        .kind = kind,
        .size = size,
        .backing = b,
        .context = c,
        .readers = 1u << c->device,
        .writers = 1u << c->device,
    };

    like.base = emu_address_take(b->size, PAGE);
    if (like.base == 0) {
        emu_backing_unref(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (void)emu_range_add(&like);
    emu_backing_unref(b);
    *ret_address = like.base;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize)
{
    struct emu_context *c;
    struct emu_backing *b;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (bytesize == 0) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    bytesize = round_up(bytesize, ALLOCATION);
    rc = emu_backing_new(c->device, bytesize, &b);
    if (rc == CUDA_SUCCESS) {
        rc = place_backing(c, EMU_RANGE_ALLOCATED, b, bytesize, dptr);
    }
    return emu_leave(rc);
}

/* The range that begins at an address and is of this kind, or an end. */
static struct emu_range *range_at(uint64_t address, enum emu_range_kind kind,
                                  const char *call)
{
    struct emu_range *r = emu_range_find(address);

    if (r == NULL || r->base != address || r->kind != kind) {
        emu_die("%s: 0x%llx is freed already, or was never allocated", call,
                (unsigned long long)address);
    }
    return r;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr dptr)
{
    struct emu_context *c;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (dptr != 0) {
        emu_range_remove(range_at(dptr, EMU_RANGE_ALLOCATED, "cuMemFree"),
                         "cuMemFree");
    }
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetInfo(size_t *free, size_t *total)
{
    struct emu_context *c;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    *free = emu.memory_max - emu_stats(c->device)->memory_used;
    *total = emu.memory_max;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *pbase, size_t *psize,
                                      CUdeviceptr dptr)
{
    struct emu_context *c;
    const struct emu_range *r;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    r = emu_range_find(dptr);
    if (r == NULL) {
        return emu_leave(CUDA_ERROR_NOT_FOUND);
    }
    if (pbase != NULL) {
        *pbase = r->base;
    }
    if (psize != NULL) {
        *psize = r->size;
    }
    return emu_leave(CUDA_SUCCESS);
}

static CUresult alloc_host(void **pp, size_t size)
{
    struct emu_context *c;
    void *base;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (size == 0) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    size = round_up(size, PAGE);
    base = emu_fails("host") ? MAP_FAILED
                             : mmap(NULL, size, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    (void)emu_range_add(&(struct emu_range){
        .kind = EMU_RANGE_PINNED,
        .base = (uintptr_t)base,
        .size = size,
        .context = c,
    });
    *pp = base;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAllocHost(void **pp, size_t bytesize)
{
    return alloc_host(pp, bytesize);
}

CUresult CUDAAPI cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    if ((Flags & ~7u) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return alloc_host(pp, bytesize);
}

CUresult CUDAAPI cuMemFreeHost(void *p)
{
    struct emu_context *c;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (p != NULL) {
        emu_range_remove(
            range_at((uintptr_t)p, EMU_RANGE_PINNED, "cuMemFreeHost"),
            "cuMemFreeHost");
    }
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    struct emu_context *c;
    const struct emu_range *next;
    CUdeviceptr base = (uintptr_t)p;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (p == NULL || bytesize == 0 || (Flags & ~15u) != 0 ||
        emu_address_is_device(base)) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    next = emu_range_next(base);
    if (emu_range_find(base) != NULL ||
        (next != NULL && next->base < base + bytesize)) {
        return emu_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    if (emu_fails("register")) {
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    (void)emu_range_add(&(struct emu_range){
        .kind = EMU_RANGE_REGISTERED,
        .base = base,
        .size = bytesize,
        .context = c,
    });
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemHostUnregister(void *p)
{
    struct emu_context *c;
    struct emu_range *r;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    r = emu_range_find((uintptr_t)p);
    if (r == NULL || r->kind != EMU_RANGE_REGISTERED ||
        r->base != (uintptr_t)p) {
        return emu_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    emu_range_remove(r, "cuMemHostUnregister");
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p,
                                           unsigned int Flags)
{
    struct emu_context *c;
    const struct emu_range *r;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    r = emu_range_find((uintptr_t)p);
    if (Flags != 0 || r == NULL || emu_range_is_device(r)) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *pdptr = (uintptr_t)p;
    return emu_leave(CUDA_SUCCESS);
}
