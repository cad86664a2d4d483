/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/barrier.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

void ps_barrier_init(struct ps_barrier *b, uint32_t ranks)
{
    assert(ranks > 0);
    *b = (struct ps_barrier){
        .entered = ps_calloc(ranks, sizeof(*b->entered)),
        .rank_count = ranks,
        .behind_count = ranks,
    };
}

void ps_barrier_fini(struct ps_barrier *b)
{
    ps_free(b->entered);
    memset(b, 0, sizeof(*b));
}

/* Advances last_open to the least entry of all ranks, once none is behind.
 * True: further barriers are open. */
static bool advance_last_open(struct ps_barrier *b, ps_time now)
{
    uint64_t least = PS_BARRIER_LEFT;

    for (uint32_t i = 0; i < b->rank_count; i++) {
        if (b->entered[i] < least) {
            least = b->entered[i];
        }
    }
    if (least == PS_BARRIER_LEFT) {
        return false; /* All ranks have left. */
    }
    b->last_open = least;
    b->behind_count = 0;
    for (uint32_t i = 0; i < b->rank_count; i++) {
        b->behind_count += b->entered[i] <= least;
    }
    b->waiting_since = now;
    return true;
}

static bool set_entered(struct ps_barrier *b, uint32_t rank, uint64_t number,
                        ps_time now)
{
    uint64_t was = b->entered[rank];

    if (number <= was) {
        return false;
    }
    b->entered[rank] = number;
    if (was > b->last_open || number <= b->last_open) {
        return false;
    }
    assert(b->behind_count > 0);
    b->behind_count--;
    return b->behind_count == 0 && advance_last_open(b, now);
}

bool ps_barrier_enter(struct ps_barrier *b, uint32_t rank, uint64_t number,
                      ps_time now)
{
    assert(rank < b->rank_count && number != PS_BARRIER_LEFT);
    if (!ps_barrier_is_waiting(b)) {
        b->waiting_since = now;
    }
    if (b->entered[rank] != PS_BARRIER_LEFT && number > b->highest_entered) {
        b->highest_entered = number;
    }
    return set_entered(b, rank, number, now);
}

bool ps_barrier_leave(struct ps_barrier *b, uint32_t rank, ps_time now)
{
    assert(rank < b->rank_count);
    return set_entered(b, rank, PS_BARRIER_LEFT, now);
}

bool ps_barrier_is_waiting(const struct ps_barrier *b)
{
    return b->highest_entered > b->last_open;
}

bool ps_barrier_is_missing(const struct ps_barrier *b, uint32_t rank,
                           uint64_t number)
{
    assert(rank < b->rank_count);
    return number > b->last_open && b->entered[rank] < number;
}
