/* SPDX-License-Identifier: Apache-2.0 */
/* Large copies with streaming stores. An ordinary store first reads the line
 * that it overwrites, and evicts other data from the cache; a streaming store
 * does neither, which makes a copy larger than the cache half as fast again. */
#include "kernel/kernel.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* A smaller copy is likely to be read again while it is in the cache. */
#define STREAM_MIN (512u * 1024u)
/* A smaller part of a copy does not profit. */
#define PART_MIN   (32u * 1024u)
#define LINE       64u

#ifdef __SSE2__
/* Copies whole lines to aligned `dst`. */
static void copy_lines_streaming(uint8_t *dst, const uint8_t *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE) {
        const __m128i *from = (const __m128i *)(const void *)(src + i);
        __m128i *to = (__m128i *)(void *)(dst + i);
        __m128i a = _mm_loadu_si128(from);
        __m128i b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2);
        __m128i d = _mm_loadu_si128(from + 3);

        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    /* Orders the streaming stores before the stores that announce the copy. */
    _mm_sfence();
}

static void copy_streaming(void *dst, const void *src, size_t bytes)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    size_t lines = (bytes - head) / LINE * LINE;

    memcpy(to, from, head);
    copy_lines_streaming(to + head, from + head, lines);
    memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}
#else
static void copy_streaming(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}
#endif

void ps_kernel_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes < STREAM_MIN) {
        memcpy(dst, src, bytes);
    } else {
        copy_streaming(dst, src, bytes);
    }
}

void ps_kernel_copy_part(void *dst, const void *src, size_t bytes)
{
    if (bytes < PART_MIN) {
        memcpy(dst, src, bytes);
    } else {
        copy_streaming(dst, src, bytes);
    }
}
