/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when freed memory goes back to the system. The allocator keeps freed
 * memory for reuse; after a burst, such as output that piled up for one peer,
 * nothing reuses it. A job that takes and frees much memory in each round is no
 * burst: memory counts as left over when the peak of use has stayed far below
 * an earlier peak for a while. The end of a burst is detected within 4 s. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

/* Zeroed to begin with. */
struct ps_trim {
    uint64_t high_water; /* The most in use since memory was last given back. */
    uint64_t recent_peak; /* The most in use while `waits`. */
    ps_time due_at;       /* When it has lasted. */
    bool is_pending;      /* Much less than `high` was in use once. */
};

/* `peak` is the most in use since the last call, `bytes` is in use now. True:
 * give memory back. */
bool ps_trim_check(struct ps_trim *t, uint64_t peak, uint64_t bytes,
                   ps_time now);
/* When to look again even if nothing happens; PS_TIME_NEVER: not at all. */
ps_time ps_trim_deadline(const struct ps_trim *t);
