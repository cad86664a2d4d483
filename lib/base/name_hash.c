/* SPDX-License-Identifier: Apache-2.0 */
#include "base/name_hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static bool is_norm_exempt(const char *name)
{
    static const char *const ends[] = {"gamma", "beta", "bias"};
    const size_t len = strlen(name);

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const size_t end = strlen(ends[i]);

        if (len >= end && strcmp(name + len - end, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

uint64_t ps_name_hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a. */

    for (const char *at = name; *at != '\0'; at++) {
        h = (h ^ (uint8_t)*at) * 0x100000001b3u;
    }
    h ^= h >> 32; /* The upper bits of FNV-1a are mixed better. */
    h &= ~(uint64_t)1;
    return (h != 0 ? h : 2) | (is_norm_exempt(name) ? 1u : 0u);
}

uint64_t ps_name_hash_slot(uint64_t seed, uint64_t label, uint32_t index)
{
    uint64_t h = (label ^ seed) * 0x9e3779b97f4a7c15u;

    h = (h ^ h >> 32 ^ index) * 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}
