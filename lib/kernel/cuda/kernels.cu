/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on the GPU. Their arithmetic on elements is that of the CPU, from the
 * same files, compiled without contraction and with exact division and roots,
 * so that the bits are equal; kernel.h and codec.h have the formulas.
 *
 * The same source is compiled by the host's compiler for the emulated driver of
 * the tests. It uses the indices of a thread, atomic additions and maxima of
 * integers, and nothing else of CUDA: threads of a launch do not wait for each
 * other, and launches of one stream follow each other. */
#if defined(PSKV_CUDA_EMU)
#include "cuda_emu/device.h"
#endif

#include "kernel/cuda/kernels.h"

#include "kernel/codec_ops.h"
#include "kernel/half.h"
#include "kernel/normal.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define EACH(i, n)                                                             \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;         \
         i < (n); i += (uint64_t)gridDim.x * blockDim.x)

#define KERNEL extern "C" __global__ void

#if defined(__CUDACC__)
#define UNROLL    _Pragma("unroll")
/* The argument of a kernel, which no thread copies. */
#define ARGUMENT  const __grid_constant__
#else
#define UNROLL
#define ARGUMENT  const
#endif

#define NAN_OF_FLOAT(v) ((v) != (v))

/* ------------------------------------------------------------------- folds */

#include "kernel/cuda/fold.inc"

#define ELEM        float
#define ELEM_FLOAT  1
#define NAME(x)     x##_f32
#define ROOT(x)     PS_ROOT_FLOAT(x)
#define VALUE(x)    (x)
#define IS_NAN(v)   NAN_OF_FLOAT(v)
#define PLUS(a, b)  ((a) + (b))
#define TIMES(a, b) ((a) * (b))
#include "kernel/cuda/type.inc"
#include "kernel/cuda/step.inc"
#undef ELEM
#undef NAME
#undef ROOT

#define ELEM    double
#define NAME(x) x##_f64
#define ROOT(x) PS_ROOT_DOUBLE(x)
#include "kernel/cuda/type.inc"
#include "kernel/cuda/step.inc"
#undef ELEM
#undef ELEM_FLOAT
#undef NAME
#undef ROOT
#undef VALUE
#undef IS_NAN

#define ELEM_FLOAT 0
#define ELEM_SIGN  1
#define IS_NAN(v)  0

#define ELEM       uint32_t
#define NAME(x)    x##_i32
#define VALUE(x)   ((int32_t)(x))
#include "kernel/cuda/type.inc"
#undef ELEM
#undef NAME
#undef VALUE

#define ELEM     uint64_t
#define NAME(x)  x##_i64
#define VALUE(x) ((int64_t)(x))
#include "kernel/cuda/type.inc"
#undef ELEM
#undef NAME
#undef VALUE
#undef PLUS
#undef TIMES

#define ELEM        uint8_t
#define NAME(x)     x##_i8
#define VALUE(x)    ((int8_t)(x))
#define PLUS(a, b)  ((uint8_t)((a) + (b)))
#define TIMES(a, b) ((uint8_t)((a) * (b)))
#include "kernel/cuda/type.inc"
#undef NAME
#undef VALUE
#undef ELEM_SIGN

#define ELEM_SIGN 0
#define NAME(x)   x##_u8
#define VALUE(x)  (x)
#include "kernel/cuda/type.inc"
#undef NAME
#undef PLUS
#undef TIMES

#define NAME(x)     x##_bool
#define PLUS(a, b)  ((uint8_t)((a) | (b)))
#define TIMES(a, b) ((uint8_t)((a) & (b)))
#include "kernel/cuda/type.inc"
#undef ELEM
#undef ELEM_FLOAT
#undef ELEM_SIGN
#undef NAME
#undef VALUE
#undef IS_NAN
#undef PLUS
#undef TIMES

/* The types of 16 bits: every operation is rounded to the type. */
#define ELEM       uint16_t
#define ELEM_HALF  1
#define IS_NAN(v)  NAN_OF_FLOAT(v)
#define VALUE(x)   WIDE(x)
#define PLUS(a, b) NARROW(WIDE(a) + WIDE(b))
#define TIMES(a, b) NARROW(WIDE(a) * WIDE(b))

#define NAME(x)    x##_f16
#define WIDE(h)    ps_float_of_fp16(h)
#define NARROW(x)  ps_fp16_of_float(x)
#include "kernel/cuda/type.inc"
#undef NAME
#undef WIDE
#undef NARROW

#define NAME(x)   x##_bf16
#define WIDE(h)   ps_float_of_bf16(h)
#define NARROW(x) ps_bf16_of_float(x)
#include "kernel/cuda/type.inc"
#undef NAME
#undef WIDE
#undef NARROW
#undef ELEM
#undef ELEM_HALF
#undef IS_NAN
#undef VALUE
#undef PLUS
#undef TIMES

/* Sources of 16 bits that are computed in float. */
struct type_f32_of_f16 : type_f32 {
    typedef uint16_t source;
    static __device__ float load(uint16_t h)
    {
        return ps_float_of_fp16(h);
    }
};

struct type_f32_of_bf16 : type_f32 {
    typedef uint16_t source;
    static __device__ float load(uint16_t h)
    {
        return ps_float_of_bf16(h);
    }
};

KERNEL ps_fold_f32_of_f16(ARGUMENT struct ps_cuda_fold a)
{
    fold_sources<type_f32_of_f16>(a);
}

KERNEL ps_fold_f32_of_bf16(ARGUMENT struct ps_cuda_fold a)
{
    fold_sources<type_f32_of_bf16>(a);
}

/* ------------------------------------------------------------ square sums */

/* Adds v * 2^power to a row, whose digit 0 stands for 2^-1088 (square_sum.c).
 */
static __device__ void add_scaled(unsigned long long *row, uint64_t v,
                                  int power)
{
    const unsigned at = (unsigned)(power + 1088);
    const unsigned shift = at % 32;
    const uint64_t low = v << shift;
    const uint64_t high = shift > 0 ? v >> (64 - shift) : 0;

    row += at / 32;
    if ((low & 0xffffffffu) != 0) {
        atomicAdd(&row[0], (unsigned long long)(low & 0xffffffffu));
    }
    if (low >> 32 != 0) {
        atomicAdd(&row[1], (unsigned long long)(low >> 32));
    }
    if (high != 0) {
        atomicAdd(&row[2], (unsigned long long)high);
    }
}

static __device__ unsigned long long *own_row(const struct ps_cuda_square *a)
{
    return (unsigned long long *)a->rows + blockIdx.x * PS_CUDA_SQUARE_WORDS;
}

KERNEL ps_square_f32(ARGUMENT struct ps_cuda_square a)
{
    unsigned long long *row = own_row(&a);

    EACH(i, a.count)
    {
        const uint32_t bits = ps_float_bits(((const float *)a.x)[i]);
        const uint32_t e = bits >> 23 & 255;
        const uint64_t m = (bits & 0x7fffff) | (uint32_t)(e != 0) << 23;

        if (e == 255) {
            atomicAdd(&row[PS_SQUARE_SUM_DIGITS], 1ULL);
        } else if (m != 0) {
            /* Subnormal numbers have the exponent of the least normal ones. */
            add_scaled(row, m * m, 2 * ((e == 0 ? 1 : (int)e) - 150));
        }
    }
}

KERNEL ps_square_f64(ARGUMENT struct ps_cuda_square a)
{
    unsigned long long *row = own_row(&a);

    EACH(i, a.count)
    {
        const double x = ((const double *)a.x)[i];
        const double square = x * x;
        uint64_t bits;

        memcpy(&bits, &square, sizeof(bits));
        const int e = (int)(bits >> 52 & 2047);
        const uint64_t m = bits & 0xfffffffffffff;

        if (e == 2047) {
            atomicAdd(&row[PS_SQUARE_SUM_DIGITS], 1ULL);
        } else if (bits != 0) {
            add_scaled(row, e == 0 ? m : m | (uint64_t)1 << 52,
                       (e == 0 ? 1 : e) - 1075);
        }
    }
}

#include "kernel/cuda/codec.inc"

#if defined(PSKV_CUDA_EMU)
#define REGISTER(name, type) PSKV_KERNEL(name);
PS_CUDA_KERNELS(REGISTER)
#undef REGISTER
#endif
