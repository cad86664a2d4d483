/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes a second while any come, as the last tenths of a second had them: up
 * faster than down, because links do not become slower, they are only used
 * less; and not at once, because what waited comes in a burst. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_rate_meter {
    ps_time interval_start; /* Of the stretch that is being counted. */
    uint64_t bytes;         /* In it. */
    uint64_t per_second;    /* 0: not known yet. */
};

/* Bytes came. True: a stretch has ended, and `per_second` is new. */
static inline bool ps_rate_meter_add(struct ps_rate_meter *r, ps_time now,
                                     uint64_t bytes)
{
    ps_time took = now - r->interval_start;

    if (r->interval_start == 0 || took > PS_MILLIS(100)) {
        /* There was a pause. These may have come together in any time. */
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
