/* SPDX-License-Identifier: Apache-2.0 */
/* Rate in bytes per second while bytes arrive, over the last tenths of a
 * second. It rises faster than it falls, because links rarely become slower,
 * they are only used less; and it rises gradually, because queued bytes arrive
 * in bursts. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_rate_meter {
    ps_time interval_start; /* Start of the current interval. */
    uint64_t bytes;         /* Bytes in the interval. */
    uint64_t per_second;    /* Measured rate; 0: not known yet. */
};

/* Counts `bytes`. True: an interval has ended and `per_second` is updated. */
static inline bool ps_rate_meter_add(struct ps_rate_meter *r, ps_time now,
                                     uint64_t bytes)
{
    ps_time took = now - r->interval_start;

    if (r->interval_start == 0 || took > PS_MILLIS(100)) {
        /* After a pause, the time in which these bytes arrived is not known. */
        r->interval_start = now;
        r->bytes = 0;
        return false;
    }
    r->bytes += bytes;
    if (took < PS_MILLIS(10)) {
        return false;
    }
    uint64_t seen = r->bytes * PS_SECONDS(1) / took;

    if (r->per_second == 0) {
        r->per_second = seen;
    } else if (seen > r->per_second) {
        r->per_second += (seen - r->per_second) / 4;
    } else {
        r->per_second -= (r->per_second - seen) / 16;
    }
    r->interval_start = now;
    r->bytes = 0;
    return true;
}
