/* SPDX-License-Identifier: Apache-2.0 */
/* Names of errors, and entry points by name. */
#include "emu.h"

#include <dlfcn.h>
#include <stdio.h>

#define NAME(e)                                                                \
    {                                                                          \
        e, #e                                                                  \
    }

static const struct {
    CUresult error;
    const char *name;
} names[] = {
    NAME(CUDA_SUCCESS),
    NAME(CUDA_ERROR_INVALID_VALUE),
    NAME(CUDA_ERROR_OUT_OF_MEMORY),
    NAME(CUDA_ERROR_NOT_INITIALIZED),
    NAME(CUDA_ERROR_DEVICE_UNAVAILABLE),
    NAME(CUDA_ERROR_NO_DEVICE),
    NAME(CUDA_ERROR_INVALID_DEVICE),
    NAME(CUDA_ERROR_INVALID_CONTEXT),
    NAME(CUDA_ERROR_ALREADY_MAPPED),
    NAME(CUDA_ERROR_NO_BINARY_FOR_GPU),
    NAME(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
    NAME(CUDA_ERROR_OPERATING_SYSTEM),
    NAME(CUDA_ERROR_INVALID_HANDLE),
    NAME(CUDA_ERROR_NOT_FOUND),
    NAME(CUDA_ERROR_NOT_READY),
    NAME(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
    NAME(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED),
    NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    NAME(CUDA_ERROR_LAUNCH_FAILED),
    NAME(CUDA_ERROR_NOT_PERMITTED),
    NAME(CUDA_ERROR_NOT_SUPPORTED),
    NAME(CUDA_ERROR_SYSTEM_NOT_READY),
    NAME(CUDA_ERROR_UNKNOWN),
};

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **pStr)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].error == error) {
            *pStr = names[i].name;
            return CUDA_SUCCESS;
        }
    }
    *pStr = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **pStr)
{
    return cuGetErrorName(error, pStr);
}

/* This library, which may have been opened without its names being global. */
static void *own_library(void)
{
    Dl_info info;

    return dladdr((const void *)&names, &info) == 0
               ? RTLD_DEFAULT
               : dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

/* The versioned name that is exported, of the highest version first. */
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn,
                                  int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *symbolStatus)
{
    static const char *const suffixes[] = {"_v3", "_v2", ""};
    void *library = own_library();
    void *found = NULL;

    (void)cudaVersion;
    (void)flags;
    for (int i = 0; i < 3 && found == NULL; i++) {
        char name[128];

        (void)snprintf(name, sizeof(name), "%s%s", symbol, suffixes[i]);
        found = dlsym(library, name);
    }
    *pfn = found;
    if (symbolStatus != NULL) {
        *symbolStatus = found != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
