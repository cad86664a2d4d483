/* SPDX-License-Identifier: Apache-2.0 */
/* A member whose name the scheduler refuses because another process has it.
 * One that was registered has lost its name, and its jobs with it: it ends at
 * once. One that was not may have been restarted before the scheduler
 * knows that the process before it is dead: it tries for a while, then it
 * ends, because two daemons have one name in their configuration. */
#pragma once

#include "base/time.h"

#include <stdbool.h>

/* Longer than schedulers take to notice a death. */
#define PS_NAME_CLAIM_TIMEOUT PS_SECONDS(60)

/* The name is refused now, since *since (0: for the first time). True: the
 * daemon is to end. */
static inline bool ps_name_claim_lost(ps_time *since, bool registered,
                                      ps_time now)
{
    if (*since == 0) {
        *since = now;
    }
    return registered || ps_time_add(*since, PS_NAME_CLAIM_TIMEOUT) <= now;
}
