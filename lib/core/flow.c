/* SPDX-License-Identifier: Apache-2.0 */
/* credit = what was received - what is held + the window, and never less than
 * was announced before. A raise is no state of its own: it is announced credit
 * that the rule catches up with later. */
#include "core/flow.h"

#include "base/limits.h"
#include "base/num.h"

#include <string.h>

void ps_flow_init(struct ps_flow *f, const struct ps_flow_limits *limits)
{
    memset(f, 0, sizeof(*f));
    f->first = limits->first != 0 ? limits->first : PS_CREDIT_FIRST;
    f->window = ps_max_u64(limits->window, f->first);
    ps_flow_reset(f);
}

void ps_flow_reset(struct ps_flow *f)
{
    f->received = 0;
    f->credit = f->first;
}

bool ps_flow_admits(const struct ps_flow *f, uint64_t len)
{
    return len <= PS_PAYLOAD_MAX &&
           f->received + len < f->credit + PS_PAYLOAD_MAX;
}

void ps_flow_receive(struct ps_flow *f, uint64_t len)
{
    f->received += len;
}

static uint64_t allowed(const struct ps_flow *f, uint64_t held)
{
    uint64_t reach = f->received + f->window;

    return held < reach ? reach - held : 0;
}

uint64_t ps_flow_announce(struct ps_flow *f, uint64_t held)
{
    f->credit = ps_max_u64(f->credit, allowed(f, held));
    return f->credit;
}

bool ps_flow_due(const struct ps_flow *f, uint64_t held)
{
    uint64_t now = allowed(f, held);

    return now > f->credit &&
           (now - f->credit >= f->window / 2 || ps_flow_spent(f));
}

bool ps_flow_spent(const struct ps_flow *f)
{
    return f->received >= f->credit;
}

void ps_flow_raise(struct ps_flow *f)
{
    /* The last frame may have gone beyond the credit by more than this. */
    f->credit = ps_max_u64(f->credit, f->received) +
                ps_max_u64(f->window / 4, 1);
}
