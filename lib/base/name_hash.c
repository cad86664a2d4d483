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

static uint64_t add_byte(uint64_t h, uint8_t byte)
{
    return (h ^ byte) * 0x100000001b3u; /* FNV-1a. */
}

uint64_t ps_name_hash(enum ps_key_kind kind, const char *name)
{
    uint64_t h = add_byte(0xcbf29ce484222325u, kind_letter(kind));

    h = add_byte(h, ':');
    for (const char *at = name; *at != '\0'; at++) {
        h = add_byte(h, (uint8_t)*at);
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
