/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"

#include <stdlib.h>
#include <string.h>

/* Index of the first component that is not before `timeline`. */
static uint32_t position_of(const struct emu_clock *c, uint64_t timeline)
{
    uint32_t low = 0;
    uint32_t high = c->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (c->ticks[middle].timeline < timeline) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void emu_clock_raise(struct emu_clock *c, uint64_t timeline, uint64_t time)
{
    uint32_t at = position_of(c, timeline);

    if (at < c->count && c->ticks[at].timeline == timeline) {
        if (c->ticks[at].time < time) {
            c->ticks[at].time = time;
        }
        return;
    }
    if (c->count == c->capacity) {
        c->capacity = c->capacity == 0 ? 8 : 2 * c->capacity;
        c->ticks = realloc(c->ticks, c->capacity * sizeof(*c->ticks));
        if (c->ticks == NULL) {
            abort();
        }
    }
    memmove(c->ticks + at + 1, c->ticks + at,
            (c->count - at) * sizeof(*c->ticks));
    c->ticks[at] = (struct emu_tick){timeline, time};
    c->count++;
}

void emu_clock_join(struct emu_clock *c, const struct emu_tick *ticks,
                    uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        emu_clock_raise(c, ticks[i].timeline, ticks[i].time);
    }
}

uint64_t emu_clock_at(const struct emu_clock *c, uint64_t timeline)
{
    uint32_t at = position_of(c, timeline);

    return at < c->count && c->ticks[at].timeline == timeline
               ? c->ticks[at].time
               : 0;
}

void emu_clock_fini(struct emu_clock *c)
{
    free(c->ticks);
    *c = (struct emu_clock){0};
}
