/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, their primary contexts, and which context a thread has. */
#include "memory.h"
#include "stream.h"

#include <stdio.h>
#include <string.h>

#define STACK_MAX 32u

static _Thread_local struct emu_context *stack[STACK_MAX];
static _Thread_local unsigned stack_count;

struct emu_context *emu_current(void)
{
    return stack_count == 0 ? NULL : stack[stack_count - 1];
}

struct emu_context *emu_context_of(CUcontext handle)
{
    for (unsigned i = 0; i < emu.device_count; i++) {
        if ((void *)handle == (void *)&emu.device[i].context) {
            return emu.device[i].context.refs > 0 ? &emu.device[i].context
                                                  : NULL;
        }
    }
    return NULL;
}

int emu_device_of_physical(unsigned physical)
{
    for (unsigned i = 0; i < emu.device_count; i++) {
        if (emu.device[i].physical == physical) {
            return (int)i;
        }
    }
    return -1;
}

CUresult CUDAAPI cuInit(unsigned int Flags)
{
    return Flags != 0 ? CUDA_ERROR_INVALID_VALUE : emu_init();
}

CUresult CUDAAPI cuDriverGetVersion(int *driverVersion)
{
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    *count = (int)emu.device_count;
    return emu_leave(CUDA_SUCCESS);
}

/* Enters if the device exists. */
static CUresult enter_device(CUdevice dev)
{
    CUresult rc = emu_enter();

    if (rc == CUDA_SUCCESS && (dev < 0 || dev >= (int)emu.device_count)) {
        return emu_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    return rc;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult rc = enter_device(ordinal);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    *device = ordinal;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetName(char *name, int len, CUdevice dev)
{
    CUresult rc = enter_device(dev);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    (void)snprintf(name, (size_t)len, "Emulated device");
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    CUresult rc = enter_device(dev);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    memset(uuid, 0, sizeof(*uuid));
    (void)snprintf(uuid->bytes, sizeof(uuid->bytes), "emulated %u",
                   emu.device[dev].physical);
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice dev)
{
    CUresult rc = enter_device(dev);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    *bytes = emu.memory_max;
    return emu_leave(CUDA_SUCCESS);
}

static const struct {
    CUdevice_attribute name;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
};

CUresult CUDAAPI cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib,
                                      CUdevice dev)
{
    CUresult rc = enter_device(dev);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    *pi = attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
              ? (int)emu.device[dev].physical + 1
              : 0;
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        if (attributes[i].name == attrib) {
            *pi = attributes[i].value;
        }
    }
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    CUresult rc = enter_device(dev);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (emu.device[dev].lost) {
        return emu_leave(CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
    emu.device[dev].context.refs++;
    *pctx = (CUcontext)&emu.device[dev].context;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
    CUresult rc = enter_device(dev);
    struct emu_context *c;

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    c = &emu.device[dev].context;
    if (c->refs == 0) {
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    if (c->refs == 1) {
        (void)emu_stream_drain_all(c);
        emu_stream_close_all(c);
        emu_range_remove_all(c);
        c->legacy = NULL;
        c->peers = 0;
    }
    c->refs--;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags,
                                            int *active)
{
    CUresult rc = enter_device(dev);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    *flags = 0;
    *active = emu.device[dev].context.refs > 0;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx)
{
    CUresult rc = emu_enter();
    struct emu_context *c;

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (ctx == NULL) {
        stack_count = stack_count > 0 ? stack_count - 1 : 0;
        return emu_leave(CUDA_SUCCESS);
    }
    c = emu_context_of(ctx);
    if (c == NULL) {
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    stack_count = stack_count == 0 ? 1 : stack_count;
    stack[stack_count - 1] = c;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *pctx)
{
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    *pctx = (CUcontext)emu_current();
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx)
{
    CUresult rc = emu_enter();
    struct emu_context *c;

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    c = emu_context_of(ctx);
    if (c == NULL || stack_count == STACK_MAX) {
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    stack[stack_count++] = c;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *pctx)
{
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (stack_count == 0) {
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    stack_count--;
    if (pctx != NULL) {
        *pctx = (CUcontext)stack[stack_count];
    }
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
    struct emu_context *c;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    *device = c->device;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev,
                                       CUdevice peerDev)
{
    CUresult rc = enter_device(dev);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (peerDev < 0 || peerDev >= (int)emu.device_count) {
        return emu_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    *canAccessPeer = dev != peerDev && !emu_fails("p2p");
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peerContext,
                                       unsigned int Flags)
{
    struct emu_context *c;
    const struct emu_context *peer;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    peer = emu_context_of(peerContext);
    if (peer == NULL || peer == c) {
        return emu_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    if (Flags != 0) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if ((c->peers & 1u << peer->device) != 0) {
        return emu_leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    if (emu_fails("p2p")) {
        return emu_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    c->peers |= 1u << peer->device;
    return emu_leave(CUDA_SUCCESS);
}
