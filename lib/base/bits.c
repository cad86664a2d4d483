/* SPDX-License-Identifier: Apache-2.0 */
/* Bitmap with a running count of set bits, so that a test for a full set is one
 * comparison. Unused bits of the last word stay clear. */
#include "base/bits.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

static size_t word_count(uint32_t size)
{
    return ((size_t)size + 63) / 64;
}

static uint64_t mask_of(uint32_t i)
{
    return UINT64_C(1) << (i % 64);
}

void ps_bits_init(struct ps_bits *b, uint32_t size)
{
    *b = (struct ps_bits){
        .words = ps_calloc(word_count(size), sizeof(b->words[0])),
        .size = size,
    };
}

void ps_bits_fini(struct ps_bits *b)
{
    ps_free(b->words);
    *b = (struct ps_bits){0};
}

bool ps_bits_get(const struct ps_bits *b, uint32_t i)
{
    assert(i < b->size);
    return (b->words[i / 64] & mask_of(i)) != 0;
}

bool ps_bits_set(struct ps_bits *b, uint32_t i)
{
    if (ps_bits_get(b, i)) {
        return false;
    }
    b->words[i / 64] |= mask_of(i);
    b->count++;
    return true;
}

bool ps_bits_clear(struct ps_bits *b, uint32_t i)
{
    if (!ps_bits_get(b, i)) {
        return false;
    }
    b->words[i / 64] &= ~mask_of(i);
    b->count--;
    return true;
}

void ps_bits_zero(struct ps_bits *b)
{
    size_t n = word_count(b->size);

    if (n > 0) {
        memset(b->words, 0, n * sizeof(b->words[0]));
    }
    b->count = 0;
}

uint32_t ps_bits_next_clear(const struct ps_bits *b, uint32_t from)
{
    while (from < b->size) {
        uint64_t clear = ~b->words[from / 64] & ~(mask_of(from) - 1);

        if (clear != 0) {
            uint32_t i = from / 64 * 64 + (uint32_t)__builtin_ctzll(clear);

            return i < b->size ? i : b->size;
        }
        if (b->size - from <= 64 - from % 64) {
            break;
        }
        from += 64 - from % 64;
    }
    return b->size;
}
