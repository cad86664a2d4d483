/* SPDX-License-Identifier: Apache-2.0 */
#include "base/name_hash.h"

#include "base/fnv1a.h"

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

/* Byte of the hash that stands for the kind. */
static uint8_t kind_letter(enum ps_key_kind kind)
{
    switch (kind) {
    case PS_KEY_KIND_INTEGER:
        return 'i';
    case PS_KEY_KIND_COLLECTIVE:
        return 'c';
    default:
        return 's';
    }
}

uint64_t ps_name_hash(enum ps_key_kind kind, const char *name)
{
    uint64_t h = ps_fnv1a_64_add(PS_FNV1A_64, kind_letter(kind));

    h = ps_fnv1a_64_add(h, ':');
    h = ps_fnv1a_64(h, name, strlen(name));
    h ^= h >> 32; /* The upper bits of FNV-1a are mixed better. */
    h &= ~(uint64_t)1;
    return (h != 0 ? h : 2) | (is_norm_exempt(name) ? 1u : 0u);
}

uint64_t ps_name_hash_slot(uint64_t seed, uint64_t name_hash, uint32_t index)
{
    uint64_t h = (name_hash ^ seed) * 0x9e3779b97f4a7c15u;

    h = (h ^ h >> 32 ^ index) * 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}
