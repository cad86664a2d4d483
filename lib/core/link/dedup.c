/* SPDX-License-Identifier: Apache-2.0 */
/* A number's bit is cleared when `received` advances over it, so a position is
 * free again before the next number with the same position can enter the window
 * (rule L6). */
#include "core/link/dedup.h"

#include <string.h>

static uint64_t seen_mask(uint64_t seq)
{
    return UINT64_C(1) << (seq % 64);
}

static uint32_t seen_word(uint64_t seq)
{
    return (uint32_t)(seq % PS_LINK_IN_FLIGHT_MAX / 64);
}

void ps_dedup_reset(struct ps_dedup *d)
{
    memset(d, 0, sizeof(*d));
}

bool ps_dedup_is_new(const struct ps_dedup *d, uint64_t seq)
{
    return seq > d->received && seq - d->received <= PS_LINK_IN_FLIGHT_MAX &&
           (d->seen[seen_word(seq)] & seen_mask(seq)) == 0;
}

bool ps_dedup_add(struct ps_dedup *d, uint64_t seq)
{
    if (!ps_dedup_is_new(d, seq)) {
        return false;
    }
    d->seen[seen_word(seq)] |= seen_mask(seq);
    for (uint64_t next = d->received + 1;
         (d->seen[seen_word(next)] & seen_mask(next)) != 0; next++) {
        d->seen[seen_word(next)] &= ~seen_mask(next);
        d->received = next;
    }
    return true;
}
