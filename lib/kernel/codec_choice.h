/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of codecs, and the choice of elements by randomk: one source
 * for the CPU (codec.c) and for a GPU (cuda/codec.inc). */
#pragma once

#include "kernel/both.h"

#include <stdint.h>

PS_BOTH uint64_t hash_u64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* First element of range `i` when `count` elements are divided into `k` ranges.
 * Both are below 2^32. */
PS_BOTH uint64_t stretch_of_index(uint64_t i, uint64_t k, uint64_t count)
{
    return i * count / k;
}

/* Element that randomk chooses from range `i`. */
PS_BOTH uint64_t chosen_index(uint64_t stream, uint64_t i, uint64_t k,
                              uint64_t count)
{
    uint64_t first = stretch_of_index(i, k, count);
    uint64_t len = stretch_of_index(i + 1, k, count) - first;

    return first + (((hash_u64(stream + i) >> 32) * len) >> 32);
}
