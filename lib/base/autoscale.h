/* SPDX-License-Identifier: Apache-2.0 */
/* Decision to add one more worker thread: due when the present ones have been
 * busy most of the time for several consecutive periods. Reads no clock. To be
 * called whenever work is done; a long pause counts as one idle period. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_autoscale {
    /* Length of a period; set by the owner, like the next two. */
    ps_time period;
    /* Least average share of busy time in a busy period, in percent. */
    unsigned busy_percent;
    /* Consecutive busy periods after which one more is due. */
    unsigned periods;
    ps_time period_start;   /* Start of the current period; 0: none yet. */
    uint64_t busy_at_start; /* Total busy time at that start. */
    unsigned busy_periods;  /* Consecutive busy periods so far. */
};

/* `busy` is the total time that the `count` present ones have been busy since
 * the beginning. True: add one more; all counts start again. */
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
