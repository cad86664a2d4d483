/* SPDX-License-Identifier: Apache-2.0 */
/* Beats between a member and the scheduler, as the member sees them. */
#pragma once

#include "base/time.h"

/* Until a welcome says how often. */
#define PS_HEARTBEAT_DEFAULT PS_SECONDS(1)

/* Without a word from the scheduler for so long, the connection counts as
 * broken, though nobody said so: two seconds, but where that is few beats four
 * of them, and where it is many no more than eight. */
static inline ps_time ps_heartbeat_timeout(ps_time beat)
{
    ps_time one = ps_time_min(beat, PS_TIME_NEVER / 8);
    ps_time few = 4 * one;
    ps_time some = ps_time_min(8 * one, PS_SECONDS(2));

    return few > some ? few : some;
}
