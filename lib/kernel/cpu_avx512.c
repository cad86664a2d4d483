/* SPDX-License-Identifier: Apache-2.0 */
/* The loops with vectors of 64 bytes, compiled with the sets in USABLE. */
#include <immintrin.h>

#define STREAM(p, v) _mm512_stream_si512((__m512i *)(p), (__m512i)(v))
#define FENCE()      _mm_sfence()
#define VARIANT      ps_cpu_avx512
#define VARIANT_NAME "avx512"
#define USABLE                                                                 \
    (__builtin_cpu_supports("avx512f") != 0 &&                                 \
     __builtin_cpu_supports("avx512bw") != 0 &&                                \
     __builtin_cpu_supports("avx512dq") != 0 &&                                \
     __builtin_cpu_supports("avx512vl") != 0)
#define VEC_BYTES 64
#include "kernel/cpu_variant.inc"
