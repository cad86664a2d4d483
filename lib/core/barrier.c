/* SPDX-License-Identifier: Apache-2.0 */
#include "core/barrier.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

void ps_barrier_init(struct ps_barrier *b, uint32_t ranks)
{
    assert(ranks > 0);
    *b = (struct ps_barrier){
        .at = ps_calloc(ranks, sizeof(*b->at)),
        .count = ranks,
        .behind = ranks,
    };
}

void ps_barrier_fini(struct ps_barrier *b)
{
    ps_free(b->at);
    memset(b, 0, sizeof(*b));
}

/* All have gone beyond what was open: find out how far. */
static bool advance(struct ps_barrier *b, ps_time now)
{
    uint64_t least = PS_BARRIER_LEFT;

    for (uint32_t i = 0; i < b->count; i++) {
        if (b->at[i] < least) {
            least = b->at[i];
        }
    }
    if (least == PS_BARRIER_LEFT) {
        return false; /* All have left; nobody waits. */
    }
    b->open = least;
    b->behind = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        b->behind += b->at[i] <= least;
    }
    b->since = now;
    return true;
}

static bool put(struct ps_barrier *b, uint32_t rank, uint64_t number,
                ps_time now)
{
    uint64_t was = b->at[rank];

    if (number <= was) {
        return false;
    }
    b->at[rank] = number;
    if (was > b->open || number <= b->open) {
        return false;
    }
    assert(b->behind > 0);
    b->behind--;
    return b->behind == 0 && advance(b, now);
}

bool ps_barrier_enter(struct ps_barrier *b, uint32_t rank, uint64_t number,
                      ps_time now)
{
    assert(rank < b->count && number != PS_BARRIER_LEFT);
    if (!ps_barrier_waits(b)) {
        b->since = now;
    }
    if (b->at[rank] != PS_BARRIER_LEFT && number > b->most) {
        b->most = number;
    }
    return put(b, rank, number, now);
}

bool ps_barrier_leave(struct ps_barrier *b, uint32_t rank, ps_time now)
{
    assert(rank < b->count);
    return put(b, rank, PS_BARRIER_LEFT, now);
}

bool ps_barrier_waits(const struct ps_barrier *b)
{
    return b->most > b->open;
}

bool ps_barrier_missing(const struct ps_barrier *b, uint32_t rank,
                        uint64_t number)
{
    assert(rank < b->count);
    return number > b->open && b->at[rank] < number;
}
