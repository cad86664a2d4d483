/* SPDX-License-Identifier: Apache-2.0 */
/* Credit: credit = received - held + window, and never less than announced
 * before. An extra grant needs no state of its own: it raises the announced
 * credit, which the rule reaches later. */
#include "core/part/credit.h"

#include "base/limits.h"
#include "base/num.h"

#include <string.h>

void ps_credit_init(struct ps_credit *f, const struct ps_credit_limits *limits)
{
    memset(f, 0, sizeof(*f));
    f->initial = limits->initial != 0 ? limits->initial : PS_CREDIT_INITIAL;
    f->window = ps_max_u64(limits->window, f->initial);
    ps_credit_reset(f);
}

void ps_credit_reset(struct ps_credit *f)
{
    f->received = 0;
    f->announced = f->initial;
}

bool ps_credit_admits(const struct ps_credit *f, uint64_t len)
{
    return len <= PS_PAYLOAD_MAX &&
           f->received + len < f->announced + PS_PAYLOAD_MAX;
}

void ps_credit_on_receive(struct ps_credit *f, uint64_t len)
{
    f->received += len;
}

static uint64_t allowed_credit(const struct ps_credit *f, uint64_t held)
{
    uint64_t reach = f->received + f->window;

    return held < reach ? reach - held : 0;
}

uint64_t ps_credit_announce(struct ps_credit *f, uint64_t held)
{
    f->announced = ps_max_u64(f->announced, allowed_credit(f, held));
    return f->announced;
}

bool ps_credit_announce_due(const struct ps_credit *f, uint64_t held)
{
    uint64_t now = allowed_credit(f, held);

    return now > f->announced &&
           (now - f->announced >= f->window / 2 || ps_credit_is_exhausted(f));
}

bool ps_credit_is_exhausted(const struct ps_credit *f)
{
    return f->received >= f->announced;
}

void ps_credit_grant_extra(struct ps_credit *f)
{
    /* The last frame may have exceeded the credit by more than this. */
    f->announced = ps_max_u64(f->announced, f->received) +
                   ps_max_u64(f->window / 4, 1);
}

/* ------------------------------------------------------------------- pacing */

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
