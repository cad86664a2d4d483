/* SPDX-License-Identifier: Apache-2.0 */
/* Handling of a scheduler's refusal because another process holds this member's
 * name. A member that was registered has lost its name and its jobs and ends at
 * once. One that was not may have restarted before the scheduler noticed the
 * death of its predecessor: it retries for PS_NAME_CLAIM_TIMEOUT and then ends,
 * because two daemons are configured with one name. */
#pragma once

#include "base/time.h"

#include <stdbool.h>

/* Longer than a scheduler takes to detect a dead member. */
#define PS_NAME_CLAIM_TIMEOUT PS_SECONDS(60)

/* Records a refusal at `now`; *since is the time of the first one, 0 before it.
 * True: the daemon has to end. */
static inline bool ps_name_claim_lost(ps_time *since, bool registered,
                                      ps_time now)
{
    if (*since == 0) {
        *since = now;
    }
    return registered || ps_time_add(*since, PS_NAME_CLAIM_TIMEOUT) <= now;
}
