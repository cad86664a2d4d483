/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of keys; the 64-bit hash of a key's kind and name, by which a server
 * identifies the key without its name; and names of groups. Collisions can be
 * constructed; the scheduler refuses the second key with one hash in a job. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

/* Their numbers are part of the protocol. */
enum ps_key_kind {
    PS_KEY_KIND_STRING = 0,
    PS_KEY_KIND_INTEGER = 1,
    PS_KEY_KIND_COLLECTIVE = 2,
};

/* Name of the kind; "?" for other numbers. */
const char *ps_key_kind_name(unsigned kind);

/* Hash of a key, never 0. The lowest bit is set if the name ends with "gamma",
 * "beta" or "bias": norm-exempt arrays. The value never changes: codecs draw
 * random numbers by it, and the residual log stores it. */
uint64_t ps_name_hash(enum ps_key_kind kind, const char *name);

/* Hash of one partition of the key with name hash `name_hash`, for maps. The seed
 * keeps peers from choosing names with equal hashes. */
uint64_t ps_name_hash_slot(uint64_t seed, uint64_t name_hash, uint32_t index);

/* Name of the job that is group `name` of `job`: "job/name". One that would be
 * too long has the first bytes of both, and their hashes. */
void ps_group_name(const char *job, const char *name,
                   char ret_text[PS_NAME_MAX + 1]);

/* True: `name` is a name of ps_group_name() for a group of `job`. */
bool ps_group_name_is_of(const char *name, const char *job);
