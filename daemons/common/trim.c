/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the recent peak with an earlier one after a delay. */
#include "common/trim.h"

#define TRIM_DELAY PS_SECONDS(3)

static bool is_far_below(uint64_t bytes, uint64_t high)
{
    return bytes + PS_TRIM_LEAST <= high;
}

bool ps_trim_check(struct ps_trim *t, uint64_t peak, uint64_t bytes,
                   ps_time now)
{
    if (!t->is_pending) {
        t->high_water = ps_max_u64(t->high_water, peak);
        if (is_far_below(bytes, t->high_water)) {
            t->is_pending = true;
            t->recent_peak = bytes;
            t->due_at = now + TRIM_DELAY;
        }
        return false;
    }
    t->recent_peak = ps_max_u64(t->recent_peak, peak);
    if (now < t->due_at) {
        return false;
    }
    bool over = is_far_below(t->recent_peak, t->high_water);

    t->is_pending = false;
    t->high_water = t->recent_peak;
    return over;
}

ps_time ps_trim_deadline(const struct ps_trim *t)
{
    return t->is_pending ? t->due_at : PS_TIME_NEVER;
}
