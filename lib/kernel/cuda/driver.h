/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of CUDA's driver and of cuBLAS that this module calls, loaded at
 * run time as api.h has it; types and numbers of the latter are those of
 * cublas_v2.h. */
#pragma once

#include "kernel/cuda/api.h"

#define PS_CU_CALLS(X)                                                         \
    PS_CU_COMMON_CALLS(X)                                                      \
    X(version, "cuDriverGetVersion", (int *ret))                               \
    X(device_count, "cuDeviceGetCount", (int *ret))                            \
    X(device_name, "cuDeviceGetName", (char *name, int cap, ps_cu_device d))   \
    X(device_memory, "cuDeviceTotalMem_v2", (size_t * ret, ps_cu_device d))    \
    X(attribute, "cuDeviceGetAttribute",                                       \
      (int *ret, int attribute, ps_cu_device d))                               \
    X(load, "cuModuleLoadData", (ps_cu_module * ret, const void *image))       \
    X(unload, "cuModuleUnload", (ps_cu_module m))                              \
    X(function, "cuModuleGetFunction",                                         \
      (ps_cu_function * ret, ps_cu_module m, const char *name))                \
    X(alloc, "cuMemAlloc_v2", (ps_cu_address * ret, size_t bytes))             \
    X(free, "cuMemFree_v2", (ps_cu_address at))                                \
    X(host_alloc, "cuMemHostAlloc",                                            \
      (void **ret, size_t bytes, unsigned flags))                              \
    X(host_free, "cuMemFreeHost", (void *at))                                  \
    X(fill, "cuMemsetD8Async",                                                 \
      (ps_cu_address to, unsigned char value, size_t bytes, ps_cu_stream s))   \
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

/* Loads the driver; on failure `why` has the reason. */
int ps_cu_load(struct ps_cu *cu, char *why, uint64_t why_cap);
/* Loads cuBLAS if there is one. */
void ps_cublas_load(struct ps_cublas *blas);
