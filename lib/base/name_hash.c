/* SPDX-License-Identifier: Apache-2.0 */
#include "base/name_hash.h"

#include "base/fnv1a.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static const char *const kind_names[] = {
    [PS_KEY_KIND_STRING] = "string",
    [PS_KEY_KIND_INTEGER] = "integer",
    [PS_KEY_KIND_COLLECTIVE] = "collective",
};

const char *ps_key_kind_name(unsigned kind)
{
    return kind < sizeof(kind_names) / sizeof(kind_names[0]) ? kind_names[kind]
                                                             : "?";
}

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

/* "%.20s/%.9s#" and two hashes of 16 digits fill PS_NAME_MAX but for one. */
#define GROUP_JOB_BYTES  20
#define GROUP_NAME_BYTES 9
#define HASH_DIGITS      16u

static uint64_t text_hash(const char *text)
{
    return ps_fnv1a_64(PS_FNV1A_64, text, strlen(text));
}

void ps_group_name(const char *job, const char *name,
                   char ret_text[PS_NAME_MAX + 1])
{
    struct ps_str s;

    ps_str_init(&s, ret_text, PS_NAME_MAX + 1);
    if (strlen(job) + 1 + strlen(name) <= PS_NAME_MAX) {
        ps_str_addf(&s, "%s/%s", job, name);
        return;
    }
    ps_str_addf(&s, "%.*s/%.*s#%016llx%016llx", GROUP_JOB_BYTES, job,
                GROUP_NAME_BYTES, name, (unsigned long long)text_hash(job),
                (unsigned long long)text_hash(name));
}

bool ps_group_name_is_of(const char *name, const char *job)
{
    const size_t name_len = strlen(name);
    const size_t job_len = strlen(job);
    struct ps_str hash = PS_STR_ROOM(HASH_DIGITS + 2);

    if (strncmp(name, job, job_len) == 0 && name[job_len] == '/') {
        return true;
    }
    if (job_len <= GROUP_JOB_BYTES ||
        name_len <= GROUP_JOB_BYTES + 1 + 2 * HASH_DIGITS + 1 ||
        strncmp(name, job, GROUP_JOB_BYTES) != 0 ||
        name[GROUP_JOB_BYTES] != '/') {
        return false;
    }
    ps_str_addf(&hash, "#%016llx", (unsigned long long)text_hash(job));
    return strncmp(name + name_len - 2 * HASH_DIGITS - 1, hash.data,
                   hash.len) == 0;
}
