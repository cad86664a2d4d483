/* SPDX-License-Identifier: Apache-2.0 */
/* Budget for busy polling before a thread sleeps. A wake-up takes tens of
 * microseconds on an idle processor, so polling that long pays if an event
 * comes soon; else it wastes processor time that others may need. In automatic
 * mode the budget follows recent success, with an occasional try when polling
 * seldom paid. Reads no clock. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_SPIN_AUTO     PS_TIME_NEVER
#define PS_SPIN_AUTO_MAX PS_MICROS(50)
/* A yield that takes longer shows that other threads need the processor. */
#define PS_SPIN_CROWDED  PS_MICROS(25)

struct ps_spin {
    /* Limit of one polling phase; PS_SPIN_AUTO: automatic; 0: never poll. */
    ps_time time_max;
    uint32_t credit;
    uint32_t skipped;
};

void ps_spin_init(struct ps_spin *s, ps_time most);
/* Time to poll now; 0: sleep at once. */
ps_time ps_spin_budget(struct ps_spin *s);
/* Records the outcome of a polling phase. `crowded`: other threads needed the
 * processor. */
void ps_spin_record(struct ps_spin *s, bool paid, bool crowded);
/* True if polling should stop after a yield that lasted from `before` to
 * `after`. */
static inline bool ps_spin_is_crowded(const struct ps_spin *s, ps_time before,
                                      ps_time after)
{
    return s->time_max == PS_SPIN_AUTO && after - before > PS_SPIN_CROWDED;
}
