/* SPDX-License-Identifier: Apache-2.0 */
#include "core/round/pacing.h"

#include "base/num.h"

/* Bytes that arrive in this time are a sufficient lead. */
#define LEAD_TIME      PS_MILLIS(3)
#define LEAD_MIN       (64ull * 1024)
#define LEAD_MAX       (4ull * 1024 * 1024)
#define PATIENCE_MIN   PS_MILLIS(5)
#define PATIENCE_MAX   PS_MILLIS(200)
/* Used while the rate is not known. */
#define PATIENCE_FIRST PS_MILLIS(20)

uint64_t ps_pacing_max_lead(const struct ps_rate_meter *r)
{
    uint64_t lead = r->per_second / (PS_SECONDS(1) / LEAD_TIME);

    return ps_min_u64(ps_max_u64(lead, LEAD_MIN), LEAD_MAX);
}

ps_time ps_pacing_patience(const struct ps_rate_meter *r, uint32_t count)
{
    if (r->per_second == 0) {
        return PATIENCE_FIRST;
    }
    ps_time all = ps_pacing_max_lead(r) * count * 2 * PS_SECONDS(1) /
                  r->per_second;

    return ps_min_u64(ps_max_u64(all, PATIENCE_MIN), PATIENCE_MAX);
}
