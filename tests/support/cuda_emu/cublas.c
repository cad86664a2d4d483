/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated cuBLAS: its functions launch kernels by the emulated driver, in the
 * stream of the handle. Vectors are dense, and scalars in memory of the host. */
#include <stdint.h>
#include <stdlib.h>

#pragma GCC visibility push(default)
#include <cublas_v2.h>
#include <cuda.h>
#pragma GCC visibility pop

struct cublasContext {
    CUmodule module;
    CUstream stream;
    cublasPointerMode_t pointer_mode;
};

cublasStatus_t CUBLASWINAPI cublasCreate_v2(cublasHandle_t *handle)
{
    static const char image[] = "emulated";
    struct cublasContext *h = calloc(1, sizeof(*h));

    if (h == NULL) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    if (cuModuleLoadData(&h->module, image) != CUDA_SUCCESS) {
        free(h);
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle = h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasDestroy_v2(cublasHandle_t handle)
{
    CUresult rc = cuModuleUnload(handle->module);

    free(handle);
    return rc == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS
                              : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t CUBLASWINAPI cublasGetVersion_v2(cublasHandle_t handle,
                                                int *version)
{
    (void)handle;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasSetStream_v2(cublasHandle_t handle,
                                               cudaStream_t streamId)
{
    handle->stream = streamId;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasSetPointerMode_v2(cublasHandle_t handle,
                                                    cublasPointerMode_t mode)
{
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasSetMathMode(cublasHandle_t handle,
                                              cublasMath_t mode)
{
    (void)handle;
    (void)mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasSetWorkspace_v2(cublasHandle_t handle,
                                                  void *workspace,
                                                  size_t workspaceSizeInBytes)
{
    (void)handle;
    (void)workspace;
    (void)workspaceSizeInBytes;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t launch(cublasHandle_t handle, const char *name, int n,
                             void **params)
{
    CUfunction function;

    if (handle->pointer_mode != CUBLAS_POINTER_MODE_HOST) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (n <= 0) {
        return n == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    }
    if (cuModuleGetFunction(&function, handle->module, name) != CUDA_SUCCESS) {
        return CUBLAS_STATUS_INTERNAL_ERROR;
    }
    return cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, handle->stream,
                          params, NULL) == CUDA_SUCCESS
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t CUBLASWINAPI cublasSaxpy_v2(cublasHandle_t handle, int n,
                                           const float *alpha, const float *x,
                                           int incx, float *y, int incy)
{
    uint64_t count = (uint64_t)n;
    float factor = *alpha;
    void *params[] = {&count, &factor, &x, &y};

    return incx != 1 || incy != 1 ? CUBLAS_STATUS_NOT_SUPPORTED
                                  : launch(handle, "emu_axpy_f32", n, params);
}

cublasStatus_t CUBLASWINAPI cublasDaxpy_v2(cublasHandle_t handle, int n,
                                           const double *alpha, const double *x,
                                           int incx, double *y, int incy)
{
    uint64_t count = (uint64_t)n;
    double factor = *alpha;
    void *params[] = {&count, &factor, &x, &y};

    return incx != 1 || incy != 1 ? CUBLAS_STATUS_NOT_SUPPORTED
                                  : launch(handle, "emu_axpy_f64", n, params);
}

cublasStatus_t CUBLASWINAPI cublasSscal_v2(cublasHandle_t handle, int n,
                                           const float *alpha, float *x,
                                           int incx)
{
    uint64_t count = (uint64_t)n;
    float factor = *alpha;
    void *params[] = {&count, &factor, &x};

    return incx != 1 ? CUBLAS_STATUS_NOT_SUPPORTED
                     : launch(handle, "emu_scal_f32", n, params);
}

cublasStatus_t CUBLASWINAPI cublasDscal_v2(cublasHandle_t handle, int n,
                                           const double *alpha, double *x,
                                           int incx)
{
    uint64_t count = (uint64_t)n;
    double factor = *alpha;
    void *params[] = {&count, &factor, &x};

    return incx != 1 ? CUBLAS_STATUS_NOT_SUPPORTED
                     : launch(handle, "emu_scal_f64", n, params);
}
