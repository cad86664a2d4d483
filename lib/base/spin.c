/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spin.h"

#define CREDIT_FIRST 4u
#define CREDIT_MAX   8u
#define CREDIT_LEAST 3u /* Below it only every so many waits are tried. */
#define TRY_EVERY    32u

void ps_spin_init(struct ps_spin *s, ps_time most)
{
    *s = (struct ps_spin){.most = most, .credit = CREDIT_FIRST};
}

ps_time ps_spin_budget(struct ps_spin *s)
{
    if (s->most != PS_SPIN_AUTO) {
        return s->most;
    }
    if (s->credit < CREDIT_LEAST && ++s->skipped < TRY_EVERY) {
        return 0;
    }
    s->skipped = 0;
    return PS_SPIN_AUTO_MAX;
}

void ps_spin_ended(struct ps_spin *s, bool paid, bool crowded)
{
    if (crowded) {
        s->credit = 0;
    } else if (!paid) {
        s->credit -= s->credit > 0;
    } else if (s->credit < CREDIT_MAX) {
        s->credit++;
    }
}
