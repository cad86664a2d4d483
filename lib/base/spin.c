/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spin.h"

#define CREDIT_INITIAL 4u
#define CREDIT_MAX     8u
#define CREDIT_MIN     3u /* Below it, only one of TRY_EVERY waits spins. */
#define TRY_EVERY      32u

void ps_spin_init(struct ps_spin *s, ps_time most)
{
    *s = (struct ps_spin){.time_max = most, .credit = CREDIT_INITIAL};
}

ps_time ps_spin_budget(struct ps_spin *s)
{
    if (s->time_max != PS_SPIN_AUTO) {
        return s->time_max;
    }
    if (s->credit < CREDIT_MIN && ++s->skipped < TRY_EVERY) {
        return 0;
    }
    s->skipped = 0;
    return PS_SPIN_AUTO_MAX;
}

void ps_spin_record(struct ps_spin *s, bool paid, bool crowded)
{
    if (crowded) {
        s->credit = 0;
    } else if (!paid) {
        s->credit -= s->credit > 0;
    } else if (s->credit < CREDIT_MAX) {
        s->credit++;
    }
}
