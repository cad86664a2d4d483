/* SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"

#include <assert.h>

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

/* SplitMix64: expands a small seed to the full state, which must not be
 * zero. */
static uint64_t split_mix(uint64_t *x)
{
    uint64_t z = (*x += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void ps_rng_init(struct ps_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        r->s[i] = split_mix(&seed);
    }
}

uint64_t ps_rng_next(struct ps_rng *r)
{
    uint64_t *s = r->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t ps_rng_below(struct ps_rng *r, uint64_t n)
{
    assert(n > 0);
    /* Discards 2^64 mod n numbers, so that the others are uniform modulo n. */
    uint64_t least = (0 - n) % n;
    uint64_t x;

    do {
        x = ps_rng_next(r);
    } while (x < least);
    return x % n;
}

bool ps_rng_chance(struct ps_rng *r, uint32_t per_mille)
{
    return ps_rng_below(r, 1000) < per_mille;
}
