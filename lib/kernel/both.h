/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of functions that are compiled for the CPU and, from the same source,
 * for a GPU (cuda/kernels.cu). They use nothing but arithmetic that IEEE 754
 * rounds exactly, so that both give the same bits. */
#pragma once

#if defined(__CUDACC__)
#define PS_BOTH           static __host__ __device__ __forceinline__
/* Correctly rounded on the device, but for options that ask for speed. */
#define PS_ROOT_FLOAT(x)  sqrtf(x)
#define PS_ROOT_DOUBLE(x) sqrt(x)
#else
#define PS_BOTH           static inline __attribute__((always_inline))
#define PS_ROOT_FLOAT(x)  __builtin_sqrtf(x)
#define PS_ROOT_DOUBLE(x) __builtin_sqrt(x)
#endif
