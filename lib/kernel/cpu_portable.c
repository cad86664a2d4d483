/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for any processor, with vectors of 16 bytes, which every x86-64
 * has. */
#if defined(__SSE2__)
#include <emmintrin.h>
#define STREAM(p, v) _mm_stream_si128((__m128i *)(p), (__m128i)(v))
#define FENCE()      _mm_sfence()
#else
#define STREAM(p, v) (void)(VEC_AT(p, 0) = (v))
#define FENCE()      (void)0
#endif

#define VARIANT      ps_cpu_portable
#define VARIANT_NAME "portable"
#define USABLE       true
#define VEC_BYTES    16
#include "kernel/cpu_variant.inc"
