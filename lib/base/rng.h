/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded generator (xoshiro256**), passed by pointer, so that every random
 * choice of the core can be replayed. Source: Blackman and Vigna, "Scrambled
 * linear pseudorandom number generators", 2018. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ps_rng {
    uint64_t s[4];
};

void ps_rng_init(struct ps_rng *r, uint64_t seed);
uint64_t ps_rng_next(struct ps_rng *r);
/* Uniform in [0, n); n > 0. */
uint64_t ps_rng_below(struct ps_rng *r, uint64_t n);
/* True with probability per_mille / 1000. */
bool ps_rng_chance(struct ps_rng *r, uint32_t per_mille);
