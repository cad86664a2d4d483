/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a hashes. Their values are part of names, identities and files, and
 * never change. Collisions can be constructed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Hash of nothing. */
#define PS_FNV1A_32 2166136261u
#define PS_FNV1A_64 0xcbf29ce484222325u

/* Adds one unit to the hash `h`: a byte, or a word where the format of the
 * caller says so. */
static inline uint32_t ps_fnv1a_32_add(uint32_t h, uint32_t unit)
{
    return (h ^ unit) * 16777619u;
}

static inline uint64_t ps_fnv1a_64_add(uint64_t h, uint64_t unit)
{
    return (h ^ unit) * 0x100000001b3u;
}

/* Adds `len` bytes to the hash `h`. */
static inline uint32_t ps_fnv1a_32(uint32_t h, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++) {
        h = ps_fnv1a_32_add(h, p[i]);
    }
    return h;
}

static inline uint64_t ps_fnv1a_64(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++) {
        h = ps_fnv1a_64_add(h, p[i]);
    }
    return h;
}
