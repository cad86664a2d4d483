/* SPDX-License-Identifier: Apache-2.0 */
/* How long to go on looking before sleeping. A wake-up takes tens of
 * microseconds on an idle processor, so looking that long pays when what is
 * waited for comes soon; it wastes the processor when it does not, and harms
 * when somebody else could use it. By itself ("auto") this keeps count of what
 * paid lately and, when little did, only tries now and then. Knows no clock. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_SPIN_AUTO     PS_TIME_NEVER
#define PS_SPIN_AUTO_MAX PS_MICROS(50)
/* Who yields the processor and gets it back only after this was in the way of
 * others. */
#define PS_SPIN_CROWDED  PS_MICROS(25)

struct ps_spin {
    ps_time time_max; /* PS_SPIN_AUTO; 0: never look. */
    uint32_t credit;
    uint32_t skipped;
};

void ps_spin_init(struct ps_spin *s, ps_time most);
/* How long to look now; 0: sleep at once. */
ps_time ps_spin_budget(struct ps_spin *s);
/* What became of it. `crowded`: others wanted the processor. */
void ps_spin_record(struct ps_spin *s, bool paid, bool crowded);
/* Go on, having yielded from `before` to `after`? */
static inline bool ps_spin_is_crowded(const struct ps_spin *s, ps_time before,
                                      ps_time after)
{
    return s->time_max == PS_SPIN_AUTO && after - before > PS_SPIN_CROWDED;
}
