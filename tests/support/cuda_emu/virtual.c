/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory: memory apart from its addresses, exported as a descriptor. A
 * handle is the address of its backing; reserved addresses without memory have
 * no range. */
#include "memory.h"

#include <fcntl.h>

#define GRANULARITY (2ull << 20)

static bool is_valid_prop(const CUmemAllocationProp *prop)
{
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id >= 0 && prop->location.id < (int)emu.device_count;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(
    size_t *granularity, const CUmemAllocationProp *prop,
    CUmemAllocationGranularity_flags option)
{
    CUresult rc = emu_enter();

    (void)option;
    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (!is_valid_prop(prop)) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *granularity = GRANULARITY;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                             const CUmemAllocationProp *prop,
                             unsigned long long flags)
{
    struct emu_backing *b;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (!is_valid_prop(prop) || size == 0 || size % GRANULARITY != 0 ||
        flags != 0) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (emu.device[prop->location.id].lost) {
        return emu_leave(CUDA_ERROR_LAUNCH_FAILED);
    }
    rc = emu_backing_new(prop->location.id, size, &b);
    if (rc == CUDA_SUCCESS) {
        b->exportable = (prop->requestedHandleTypes &
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
        b->handles = 1;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)b;
    }
    return emu_leave(rc);
}

/* The memory of a handle that has not been released, or an end. */
static struct emu_backing *backing_of(CUmemGenericAllocationHandle handle,
                                      const char *call)
{
    struct emu_backing *b = emu_backing_of(handle);

    if (b == NULL || b->handles == 0) {
        emu_die("%s: the handle of memory is released, or never existed", call);
    }
    return b;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct emu_backing *b;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    b = backing_of(handle, "cuMemRelease");
    b->handles--;
    emu_backing_unref(b);
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemExportToShareableHandle(
    void *shareableHandle, CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType handleType, unsigned long long flags)
{
    struct emu_backing *b;
    int fd;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    b = backing_of(handle, "cuMemExportToShareableHandle");
    if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 ||
        !b->exportable) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    fd = fcntl(b->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return emu_leave(CUDA_ERROR_OPERATING_SYSTEM);
    }
    emu_backing_share(b);
    *(int *)shareableHandle = fd;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemImportFromShareableHandle(
    CUmemGenericAllocationHandle *handle, void *osHandle,
    CUmemAllocationHandleType shHandleType)
{
    struct emu_backing *b;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        emu_fails("import")) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    rc = emu_backing_import((int)(intptr_t)osHandle, &b);
    if (rc == CUDA_SUCCESS) {
        b->exportable = true;
        b->handles++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)b;
    }
    return emu_leave(rc);
}

CUresult CUDAAPI
cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    const struct emu_range *r;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    r = emu_range_find((uintptr_t)addr);
    if (r == NULL || r->kind != EMU_RANGE_MAPPED) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    r->backing->handles++;
    r->backing->refs++;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)r->backing;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    const struct emu_backing *b;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    b = backing_of(handle, "cuMemGetAllocationPropertiesFromHandle");
    *prop = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                     .id = emu_backing_device(b)},
    };
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *ptr, size_t size,
                                     size_t alignment, CUdeviceptr addr,
                                     unsigned long long flags)
{
    CUresult rc = emu_enter();

    (void)addr; /* A wish that need not be granted. */
    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (size == 0 || size % GRANULARITY != 0 || flags != 0) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *ptr = emu_address_take(size,
                            alignment < GRANULARITY ? GRANULARITY : alignment);
    return emu_leave(*ptr == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (!emu_address_is_free(ptr, size)) {
        emu_die("cuMemAddressFree of addresses that are mapped, or were not "
                "reserved");
    }
    emu_address_give(ptr);
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle,
                          unsigned long long flags)
{
    struct emu_backing *b;
    CUdevice device;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    b = backing_of(handle, "cuMemMap");
    if (flags != 0 || offset != 0 || size == 0 || size > b->size ||
        size % GRANULARITY != 0 || ptr % GRANULARITY != 0 ||
        !emu_address_is_free(ptr, size)) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    device = emu_backing_device(b);
    (void)emu_range_add(&(struct emu_range){
        .kind = EMU_RANGE_MAPPED,
        .base = ptr,
        .size = size,
        .backing = b,
        .context = &emu.device[device].context,
    });
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size,
                                const CUmemAccessDesc *desc, size_t count)
{
    CUresult rc = emu_enter();
    CUdeviceptr at = ptr;

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    while (at < ptr + size) {
        struct emu_range *r = emu_range_find(at);

        if (r == NULL || r->kind != EMU_RANGE_MAPPED || r->base != at ||
            r->base + r->size > ptr + size) {
            return emu_leave(CUDA_ERROR_INVALID_VALUE);
        }
        for (size_t i = 0; i < count; i++) {
            uint32_t bit;

            if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                desc[i].location.id < 0 ||
                desc[i].location.id >= (int)emu.device_count) {
                return emu_leave(CUDA_ERROR_INVALID_DEVICE);
            }
            bit = 1u << desc[i].location.id;
            r->readers &= ~bit;
            r->writers &= ~bit;
            r->readers |= desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? 0
                                                                         : bit;
            r->writers |= desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                              ? bit
                              : 0;
        }
        at += r->size;
    }
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult rc = emu_enter();
    CUdeviceptr at = ptr;

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    while (at < ptr + size) {
        struct emu_range *r = emu_range_find(at);

        if (r == NULL || r->kind != EMU_RANGE_MAPPED || r->base != at ||
            r->base + r->size > ptr + size) {
            emu_die("cuMemUnmap of addresses that are not mapped so");
        }
        at += r->size;
        emu_range_remove(r, "cuMemUnmap");
    }
    return emu_leave(CUDA_SUCCESS);
}
