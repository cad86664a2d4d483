/* SPDX-License-Identifier: Apache-2.0 */
/* Bitmap of a size fixed at init, with a count of set bits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ps_bits {
    uint64_t *words;
    uint32_t size;  /* Bits. */
    uint32_t count; /* Bits set. */
};

void ps_bits_init(struct ps_bits *b, uint32_t size);
void ps_bits_fini(struct ps_bits *b);
bool ps_bits_get(const struct ps_bits *b, uint32_t i);
/* Set or clear bit `i`; true if it changed. */
bool ps_bits_set(struct ps_bits *b, uint32_t i);
bool ps_bits_clear(struct ps_bits *b, uint32_t i);
void ps_bits_zero(struct ps_bits *b);
static inline bool ps_bits_full(const struct ps_bits *b)
{
    return b->count == b->size;
}
/* First clear bit at or after `from`, or `size`. */
uint32_t ps_bits_next_clear(const struct ps_bits *b, uint32_t from);
