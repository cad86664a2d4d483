/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of a pointer. */
#include "memory.h"

#include <string.h>

/* Writes one attribute to `data`, whose type depends on it. */
static CUresult write_attribute(void *data, CUpointer_attribute attribute,
                                CUdeviceptr ptr, const struct emu_range *r)
{
    bool on_device = emu_range_is_device(r);

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = r->kind == EMU_RANGE_MAPPED
                                 ? NULL
                                 : (CUcontext)r->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = on_device ? CU_MEMORYTYPE_DEVICE
                                      : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (on_device) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *(void **)data = (void *)(uintptr_t)ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = r->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = on_device ? emu_backing_device(r->backing)
                                 : (int)r->context->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = r->kind == EMU_RANGE_ALLOCATED ? 1u : 0u;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = r->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = r->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data =
            r->kind == EMU_RANGE_MAPPED
                ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                : 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult CUDAAPI cuPointerGetAttribute(void *data,
                                       CUpointer_attribute attribute,
                                       CUdeviceptr ptr)
{
    const struct emu_range *r;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    r = emu_range_find(ptr);
    return emu_leave(r == NULL ? CUDA_ERROR_INVALID_VALUE
                               : write_attribute(data, attribute, ptr, r));
}

/* Size of the attributes whose value may be asked for of any pointer. */
static size_t size_of_attribute(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return sizeof(unsigned);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return sizeof(int);
    default:
        return sizeof(uint64_t);
    }
}

/* Of a pointer that is not known all attributes are zero, as in CUDA; but the
 * number of the device is -2. */
CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes,
                                        CUpointer_attribute *attributes,
                                        void **data, CUdeviceptr ptr)
{
    const struct emu_range *r;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    r = emu_range_find(ptr);
    for (unsigned i = 0; i < numAttributes; i++) {
        memset(data[i], 0, size_of_attribute(attributes[i]));
        if (r != NULL) {
            (void)write_attribute(data[i], attributes[i], ptr, r);
        } else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            *(int *)data[i] = -2;
        }
    }
    return emu_leave(CUDA_SUCCESS);
}
