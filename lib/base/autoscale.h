/* SPDX-License-Identifier: Apache-2.0 */
/* Whether one more should do what several do side by side: yes, once those
 * there are have been busy most of the time, for several periods on end. Knows
 * no clock. Is asked whenever work has been done; a long time without is one
 * period in which they were idle. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_autoscale {
    ps_time period;         /* As set, like the next two. */
    unsigned busy_percent;  /* Of its time that each is busy, at least; */
    unsigned periods;       /* in so many periods on end. */
    ps_time period_start;   /* Of the period; 0: there was none yet. */
    uint64_t busy_at_start; /* Of all together when it began. */
    unsigned busy_periods;  /* Periods on end. */
};

/* `busy` is the time that `count` of them have been busy since the beginning,
 * summed up. True: one more; then it counts from the beginning. */
static inline bool ps_autoscale_is_due(struct ps_autoscale *g, ps_time now,
                                       uint64_t busy, unsigned count)
{
    ps_time took = now - g->period_start;

    if (g->period_start == 0) {
        g->period_start = now;
        g->busy_at_start = busy;
        return false;
    }
    if (took < g->period) {
        return false;
    }
    bool full = (busy - g->busy_at_start) / count >=
                took / 100 * g->busy_percent;

    g->busy_periods = full ? g->busy_periods + 1 : 0;
    g->period_start = now;
    g->busy_at_start = busy;
    if (g->busy_periods < g->periods) {
        return false;
    }
    g->busy_periods = 0;
    g->period_start = 0;
    return true;
}
