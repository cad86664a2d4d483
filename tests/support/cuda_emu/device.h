/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA C++ for the host's compiler, as far as the kernels use it. Threads of a
 * launch run one after the other; there are no barriers, no shared memory and
 * no functions of warps. Each kernel is registered by PSKV_KERNEL(name). */
#pragma once

#include "cuda_emu/kernel.h"
#include "cuda_emu/threads.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

/* Not part of its caller, so that the caller's attributes do not apply. */
#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __constant__    const
#define __forceinline__ inline
#define __launch_bounds__(...)

/* Rounding of each operation by itself, which the option -ffp-contract=off
 * makes of the operators. */

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __fsqrt_rn(float a)
{
    return __builtin_sqrtf(a);
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

static inline double __dadd_rn(double a, double b)
{
    return a + b;
}

static inline double __dsub_rn(double a, double b)
{
    return a - b;
}

static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}

static inline double __dsqrt_rn(double a)
{
    return __builtin_sqrt(a);
}

static inline double __fma_rn(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}

/* Bits. */

template <class To, class From> static inline To emu_bits(From from)
{
    To to;

    static_assert(sizeof(to) == sizeof(from), "size");
    memcpy(&to, &from, sizeof(to));
    return to;
}

static inline unsigned __float_as_uint(float x)
{
    return emu_bits<unsigned>(x);
}

static inline int __float_as_int(float x)
{
    return emu_bits<int>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return emu_bits<float>(x);
}

static inline float __int_as_float(int x)
{
    return emu_bits<float>(x);
}

static inline long long __double_as_longlong(double x)
{
    return emu_bits<long long>(x);
}

static inline double __longlong_as_double(long long x)
{
    return emu_bits<double>(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}

static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

/* Loads and stores with hints for the cache. */

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}

template <class T> static inline void __stcs(T *p, T value)
{
    *p = value;
}

/* Vectors. */

#define EMU_VECTOR2(name, type)                                                \
    struct alignas(2 * sizeof(type)) name {                                    \
        type x, y;                                                             \
    };                                                                         \
    static inline name make_##name(type x, type y)                             \
    {                                                                          \
        return name{x, y};                                                     \
    }
#define EMU_VECTOR4(name, type)                                                \
    struct alignas(16) name {                                                  \
        type x, y, z, w;                                                       \
    };                                                                         \
    static inline name make_##name(type x, type y, type z, type w)             \
    {                                                                          \
        return name{x, y, z, w};                                               \
    }
EMU_VECTOR2(int2, int)
EMU_VECTOR2(uint2, unsigned)
EMU_VECTOR2(float2, float)
EMU_VECTOR2(double2, double)
EMU_VECTOR2(ulonglong2, unsigned long long)
EMU_VECTOR4(int4, int)
EMU_VECTOR4(uint4, unsigned)
EMU_VECTOR4(float4, float)

/* Atomic operations. They count as writes: two streams that use them on one
 * word have to be ordered. Other launches run at the same time, so they are
 * atomic on the CPU as well. */

template <class T, class F> static inline T emu_atomic(T *address, F change)
{
    typedef std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> word;
    uint64_t seen = emu_atomic_load(address, sizeof(T));

    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a word of 32 or 64 bits");
    for (;;) {
        T old = emu_bits<T>((word)seen);
        word next = emu_bits<word>(change(old));

        if (emu_atomic_swap(address, sizeof(T), &seen, next)) {
            return old;
        }
    }
}

/* The second operand may have another type, as for CUDA's overloads. */
template <class T> using emu_same = typename std::common_type<T>::type;

#define EMU_ATOMIC(name, result)                                               \
    template <class T> static inline T name(T *address, emu_same<T> value)     \
    {                                                                          \
        return emu_atomic(address, [value](T old) -> T { return result; });    \
    }
EMU_ATOMIC(atomicAdd, (T)(old + value))
EMU_ATOMIC(atomicMax, old < value ? value : old)
EMU_ATOMIC(atomicMin, value < old ? value : old)
EMU_ATOMIC(atomicOr, (T)(old | value))
EMU_ATOMIC(atomicAnd, (T)(old &value))
EMU_ATOMIC(atomicExch, (T)(value + 0 * old))

template <class T>
static inline T atomicCAS(T *address, emu_same<T> compare, emu_same<T> value)
{
    return emu_atomic(address, [compare, value](T old) -> T {
        return old == compare ? value : old;
    });
}

static inline void __threadfence(void)
{
}

/* Registration. */

/* Arguments are in memory of the driver. */
#define EMU_UNCHECKED __attribute__((noinline, no_sanitize("thread")))

template <auto kernel> struct emu_caller;

template <class... Params, void (*kernel)(Params...)>
struct emu_caller<kernel> {
    static constexpr size_t count = sizeof...(Params);
    static constexpr size_t sizes[] = {sizeof(Params)..., 0};

    template <size_t... index>
    EMU_UNCHECKED static void unpack(void **params,
                                     std::index_sequence<index...>)
    {
        (void)params;
        kernel(*static_cast<std::remove_const_t<Params> *>(params[index])...);
    }

    EMU_UNCHECKED static void call(void **params)
    {
        unpack(params, std::index_sequence_for<Params...>());
    }
};

#define PSKV_KERNEL(kernel_name)                                               \
    static struct emu_kernel emu_kernel_##kernel_name = {                      \
        nullptr, #kernel_name, emu_caller<kernel_name>::call,                  \
        emu_caller<kernel_name>::count, emu_caller<kernel_name>::sizes};       \
    __attribute__((constructor)) static void emu_register_##kernel_name(void)  \
    {                                                                          \
        pskv_emu_kernel_register(&emu_kernel_##kernel_name);                   \
    }                                                                          \
    static_assert(true, "a semicolon follows")
