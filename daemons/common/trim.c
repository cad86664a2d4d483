/* SPDX-License-Identifier: Apache-2.0 */
#include "common/trim.h"

#include "base/num.h"

/* Less is not worth the work. */
#define LEAST (4u * 1024u * 1024u)
#define PAUSE PS_SECONDS(3)

static bool is_far_below(uint64_t bytes, uint64_t high)
{
    return high >= LEAST && bytes <= high - LEAST;
}

bool ps_trim_look(struct ps_trim *t, uint64_t peak, uint64_t bytes, ps_time now)
{
    if (!t->waits) {
        t->high = ps_max_u64(t->high, peak);
        if (is_far_below(bytes, t->high)) {
            t->waits = true;
            t->recent = bytes;
            t->due = now + PAUSE;
        }
        return false;
    }
    t->recent = ps_max_u64(t->recent, peak);
    if (now < t->due) {
        return false;
    }
    bool over = is_far_below(t->recent, t->high);

    t->waits = false;
    t->high = t->recent;
    return over;
}

ps_time ps_trim_deadline(const struct ps_trim *t)
{
    return t->waits ? t->due : PS_TIME_NEVER;
}
