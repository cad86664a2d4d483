/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the emulated driver's own tests, and those that its cuBLAS
 * launches. */
#include "cuda_emu/device.h"

#define EACH(i, n)                                                             \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;         \
         i < (n); i += (uint64_t)gridDim.x * blockDim.x)

struct test_sum {
    float *to;
    const float *from[2];
    uint64_t count;
};

extern "C" __global__ void emu_test_sum(struct test_sum a)
{
    EACH(i, a.count)
    {
        a.to[i] = __fadd_rn(a.from[0][i], a.from[1][i]);
    }
}

extern "C" __global__ void emu_test_count(unsigned *total, uint64_t count)
{
    EACH(i, count)
    {
        atomicAdd(total, 1u);
    }
}

/* The product is rounded once, as the hardware does it. */
extern "C" __global__ void emu_axpy_f32(uint64_t n, float alpha, const float *x,
                                        float *y)
{
    EACH(i, n)
    {
        y[i] = __fmaf_rn(alpha, x[i], y[i]);
    }
}

extern "C" __global__ void emu_axpy_f64(uint64_t n, double alpha,
                                        const double *x, double *y)
{
    EACH(i, n)
    {
        y[i] = __fma_rn(alpha, x[i], y[i]);
    }
}

extern "C" __global__ void emu_scal_f32(uint64_t n, float alpha, float *x)
{
    EACH(i, n)
    {
        x[i] = __fmul_rn(alpha, x[i]);
    }
}

extern "C" __global__ void emu_scal_f64(uint64_t n, double alpha, double *x)
{
    EACH(i, n)
    {
        x[i] = __dmul_rn(alpha, x[i]);
    }
}

PSKV_KERNEL(emu_test_sum);
PSKV_KERNEL(emu_test_count);
PSKV_KERNEL(emu_axpy_f32);
PSKV_KERNEL(emu_axpy_f64);
PSKV_KERNEL(emu_scal_f32);
PSKV_KERNEL(emu_scal_f64);
