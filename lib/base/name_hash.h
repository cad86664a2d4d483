/* SPDX-License-Identifier: Apache-2.0 */
/* A number for the name of a key, so that a server can be told about a key
 * without knowing its name. Names that share a label can be made up: the
 * scheduler refuses the second one of a job. */
#pragma once

#include <stdint.h>

/* The hash of the name, never 0. The lowest bit says whether the name ends
 * with "gamma", "beta" or "bias", as names of arrays do that optimizers treat
 * as no weights. */
uint64_t ps_name_hash(const char *name);

/* A number for a partition of a key that has this label, by which a map finds
 * it. Without the seed nobody can choose names that lie at one place. */
uint64_t ps_name_hash_slot(uint64_t seed, uint64_t label, uint32_t index);
