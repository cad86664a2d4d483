/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that this process may use, and when freed memory goes back to the
 * system. */
#pragma once

#include "base/num.h"
#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

/* -------------------------------------------------------------------- limit */

/* The memory that this process may use: that of the host, or less where a control
 * group (cgroup v2 or v1) of the process or an ancestor sets a limit. Beyond a
 * group's limit the kernel ends the process, whatever the host has free, so
 * shares of memory (`80%`) are shares of this. */

/* Bytes; 0: unknown. `root` is prefixed to every path: "" for this host, a
 * folder in tests. */
uint64_t ps_memory_limit(const char *root);

/* ------------------------------------------------------------------- bursts */

/* Decides when freed memory goes back to the system. The allocator keeps freed
 * memory for reuse; after a burst, such as output queued for one slow peer,
 * nothing reuses it. A job that allocates and frees much memory in each round
 * is no burst: memory counts as left over when peak use stays far below an
 * earlier peak for a while. The end of a burst is detected within 4 s. */

/* Least difference that is worth returning. */
#define PS_TRIM_LEAST (4u * 1024u * 1024u)

/* Zeroed at first. */
struct ps_trim {
    uint64_t high_water;  /* Peak use since the last decision. */
    uint64_t recent_peak; /* Peak use while `is_pending`. */
    ps_time due_at;       /* Time at which a pending decision is made. */
    bool is_pending;      /* Use has fallen far below `high_water`. */
};

/* True if a burst has ended, so that ps_trim_check() makes a decision pending.
 * Until then, and until the deadline of that decision, it need not be called:
 * `peak` is the peak use since its last call. */
static inline bool ps_trim_is_burst_over(const struct ps_trim *t, uint64_t peak,
                                         uint64_t bytes)
{
    return !t->is_pending &&
           bytes + PS_TRIM_LEAST <= ps_max_u64(t->high_water, peak);
}

/* Updates the state; `peak` is the peak use since the last call, `bytes` the
 * present use. True: return memory to the system. */
bool ps_trim_check(struct ps_trim *t, uint64_t peak, uint64_t bytes,
                   ps_time now);
/* Time of the next ps_trim_check() without other events; PS_TIME_NEVER:
 * none. */
ps_time ps_trim_deadline(const struct ps_trim *t);
