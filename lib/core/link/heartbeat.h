/* SPDX-License-Identifier: Apache-2.0 */
/* Interval and timeout of a member's heartbeats to the scheduler. */
#pragma once

#include "base/time.h"

/* Interval before a welcome sets another one. */
#define PS_HEARTBEAT_DEFAULT PS_SECONDS(1)

/* Time without any message of the scheduler after which the member drops the
 * connection: two seconds, but at least four and at most eight intervals. */
static inline ps_time ps_heartbeat_timeout(ps_time beat)
{
    ps_time one = ps_time_min(beat, PS_TIME_NEVER / 8);
    ps_time few = 4 * one;
    ps_time some = ps_time_min(8 * one, PS_SECONDS(2));

    return few > some ? few : some;
}
