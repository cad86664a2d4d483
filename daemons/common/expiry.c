/* SPDX-License-Identifier: Apache-2.0 */
#include "common/expiry.h"

#define HOUR INT64_C(3600)
#define DAY  (24 * HOUR)

static int64_t less(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

bool ps_expiry_check(struct ps_expiry *e, int64_t now, int64_t *ret_wait)
{
    const int64_t validity = e->ends_at - e->begins_at;
    const int64_t first = less(30 * DAY, validity / 3);
    const int64_t second = less(7 * DAY, validity / 10);
    const int64_t left = e->ends_at - now;
    bool warns = false;

    if (left <= second) {
        e->stage = 2;
        *ret_wait = second < DAY ? HOUR : DAY;
        return true;
    }
    if (left <= first) {
        warns = e->stage == 0;
        e->stage = 1;
        *ret_wait = less(left - second, DAY);
        return warns;
    }
    e->stage = 0;
    *ret_wait = less(left - first, DAY);
    return false;
}
