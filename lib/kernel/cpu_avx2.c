/* SPDX-License-Identifier: Apache-2.0 */
/* The loops with vectors of 32 bytes, compiled with -mavx2. */
#include <immintrin.h>

#define STREAM(p, v) _mm256_stream_si256((__m256i *)(p), (__m256i)(v))
#define FENCE()      _mm_sfence()
#define VARIANT      ps_cpu_avx2
#define VARIANT_NAME "avx2"
#define USABLE       (__builtin_cpu_supports("avx2") != 0)
#define VEC_BYTES    32
#include "kernel/cpu_variant.inc"
