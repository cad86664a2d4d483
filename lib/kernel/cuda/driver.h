/* SPDX-License-Identifier: Apache-2.0 */
/* The part of CUDA's driver API and of cuBLAS that this module uses, loaded at
 * run time: neither is linked, and neither is needed to build. Types and
 * numbers are those of cuda.h and cublas_v2.h, which do not change. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int ps_cu_result; /* CUresult; 0: success. */
typedef int ps_cu_device;
typedef struct ps_cu_context_tag *ps_cu_context;
typedef struct ps_cu_module_tag *ps_cu_module;
typedef struct ps_cu_function_tag *ps_cu_function;
typedef struct ps_cu_stream_tag *ps_cu_stream;
typedef unsigned long long ps_cu_address;

#define PS_CU_OUT_OF_MEMORY      2
#define PS_CU_UNKNOWN            999
/* Attributes of a device. */
#define PS_CU_MULTIPROCESSORS    16
#define PS_CU_CAPABILITY_MAJOR   75
#define PS_CU_CAPABILITY_MINOR   76
/* Flags. */
#define PS_CU_HOST_PORTABLE      0x01u
#define PS_CU_STREAM_INDEPENDENT 0x01u

/* X(member, name, arguments) */
#define PS_CU_CALLS(X)                                                         \
    X(init, "cuInit", (unsigned flags))                                        \
    X(version, "cuDriverGetVersion", (int *ret))                               \
    X(error_name, "cuGetErrorName", (ps_cu_result error, const char **ret))    \
    X(device_count, "cuDeviceGetCount", (int *ret))                            \
    X(device, "cuDeviceGet", (ps_cu_device * ret, int number))                 \
    X(device_name, "cuDeviceGetName", (char *name, int cap, ps_cu_device d))   \
    X(device_memory, "cuDeviceTotalMem_v2", (size_t * ret, ps_cu_device d))    \
    X(attribute, "cuDeviceGetAttribute",                                       \
      (int *ret, int attribute, ps_cu_device d))                               \
    X(retain, "cuDevicePrimaryCtxRetain",                                      \
      (ps_cu_context * ret, ps_cu_device d))                                   \
    X(unretain, "cuDevicePrimaryCtxRelease_v2", (ps_cu_device d))              \
    X(push, "cuCtxPushCurrent_v2", (ps_cu_context c))                          \
    X(pop, "cuCtxPopCurrent_v2", (ps_cu_context * ret))                        \
    X(load, "cuModuleLoadData", (ps_cu_module * ret, const void *image))       \
    X(unload, "cuModuleUnload", (ps_cu_module m))                              \
    X(function, "cuModuleGetFunction",                                         \
      (ps_cu_function * ret, ps_cu_module m, const char *name))                \
    X(alloc, "cuMemAlloc_v2", (ps_cu_address * ret, size_t bytes))             \
    X(free, "cuMemFree_v2", (ps_cu_address at))                                \
    X(host_alloc, "cuMemHostAlloc",                                            \
      (void **ret, size_t bytes, unsigned flags))                              \
    X(host_free, "cuMemFreeHost", (void *at))                                  \
    X(to_device, "cuMemcpyHtoDAsync_v2",                                       \
      (ps_cu_address to, const void *from, size_t bytes, ps_cu_stream s))      \
    X(to_host, "cuMemcpyDtoHAsync_v2",                                         \
      (void *to, ps_cu_address from, size_t bytes, ps_cu_stream s))            \
    X(fill, "cuMemsetD8Async",                                                 \
      (ps_cu_address to, unsigned char value, size_t bytes, ps_cu_stream s))   \
    X(stream_new, "cuStreamCreate", (ps_cu_stream * ret, unsigned flags))      \
    X(stream_free, "cuStreamDestroy_v2", (ps_cu_stream s))                     \
    X(wait, "cuStreamSynchronize", (ps_cu_stream s))                           \
    X(launch, "cuLaunchKernel",                                                \
      (ps_cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z,    \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,  \
       ps_cu_stream s, void **arguments, void **extra))

struct ps_cu {
    void *library;
#define MEMBER(member, name, arguments) ps_cu_result(*member) arguments;
    PS_CU_CALLS(MEMBER)
#undef MEMBER
};

typedef struct ps_cublas_tag *ps_cublas_handle;

#define PS_CUBLAS_CALLS(X)                                                     \
    X(create, "cublasCreate_v2", (ps_cublas_handle * ret))                     \
    X(destroy, "cublasDestroy_v2", (ps_cublas_handle h))                       \
    X(version, "cublasGetVersion_v2", (ps_cublas_handle h, int *ret))          \
    X(set_stream, "cublasSetStream_v2", (ps_cublas_handle h, ps_cu_stream s))  \
    X(saxpy, "cublasSaxpy_v2",                                                 \
      (ps_cublas_handle h, int n, const float *alpha, const float *x,          \
       int x_step, float *y, int y_step))                                      \
    X(daxpy, "cublasDaxpy_v2",                                                 \
      (ps_cublas_handle h, int n, const double *alpha, const double *x,        \
       int x_step, double *y, int y_step))

struct ps_cublas {
    void *library; /* NULL: there is none. */
#define MEMBER(member, name, arguments) int(*member) arguments;
    PS_CUBLAS_CALLS(MEMBER)
#undef MEMBER
};

/* A function of a library, and where its address goes. */
struct ps_cu_symbol {
    const char *name;
    size_t offset; /* Of the member that points to the function. */
};

/* Fills in a table of functions. Returns the name of one that the library lacks;
 * NULL: none. */
const char *ps_cu_find_symbols(void *library, void *table,
                               const struct ps_cu_symbol *symbols,
                               size_t count);
/* Loads the driver; on failure `why` has the reason. */
int ps_cu_load(struct ps_cu *cu, char *why, uint64_t why_cap);
/* Loads cuBLAS if there is one. */
void ps_cublas_load(struct ps_cublas *blas);
