/* SPDX-License-Identifier: Apache-2.0 */
/* Whether one more should do what several do side by side: yes, once those
 * there are have been busy most of the time, for several periods on end. Knows
 * no clock. Is asked whenever work has been done; a long time without is one
 * period in which they were idle. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_grow {
    ps_time period;   /* As set, like the next two. */
    unsigned percent; /* Of its time that each is busy, at least; */
    unsigned periods; /* in so many periods on end. */
    ps_time since;    /* Of the period; 0: there was none yet. */
    uint64_t busy;    /* Of all together when it began. */
    unsigned full;    /* Periods on end. */
};

/* `busy` is the time that `count` of them have been busy since the beginning,
 * summed up. True: one more; then it counts from the beginning. */
static inline bool ps_grow_ask(struct ps_grow *g, ps_time now, uint64_t busy,
                               unsigned count)
{
    ps_time took = now - g->since;

    if (g->since == 0) {
        g->since = now;
        g->busy = busy;
        return false;
    }
    if (took < g->period) {
        return false;
    }
    bool full = (busy - g->busy) / count >= took / 100 * g->percent;

    g->full = full ? g->full + 1 : 0;
    g->since = now;
    g->busy = busy;
    if (g->full < g->periods) {
        return false;
    }
    g->full = 0;
    g->since = 0;
    return true;
}
