/* SPDX-License-Identifier: Apache-2.0 */
/* When to give memory back to the system. The allocator keeps what was freed,
 * for the next time; after a burst, such as a peer that let output pile up,
 * there is none. A job that takes and frees much in each round is not a burst:
 * memory counts as left over when the most in use has been far below what it
 * was for a while. Within 4 s of the end of a burst it is said. */
#pragma once

#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

/* Zeroed to begin with. */
struct ps_trim {
    uint64_t high;   /* The most in use since memory was last given back. */
    uint64_t recent; /* The most in use while `waits`. */
    ps_time due;     /* When it has lasted. */
    bool waits;      /* Much less than `high` was in use once. */
};

/* `peak` is the most in use since the last call, `bytes` is in use now. True:
 * give memory back. */
bool ps_trim_look(struct ps_trim *t, uint64_t peak, uint64_t bytes,
                  ps_time now);
/* When to look again even if nothing happens; PS_TIME_NEVER: not at all. */
ps_time ps_trim_deadline(const struct ps_trim *t);
