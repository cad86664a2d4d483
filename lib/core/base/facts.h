/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of a daemon's process and host, which a member reports when it
 * registers, so that operators see them in one place. */
#pragma once

#include "base/time.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_VERSION_MAX 32u

struct ps_facts {
    char version[PS_VERSION_MAX + 1]; /* Of the program; "": not stated. */
    uint64_t descriptors;             /* Limit of the process; 0: not stated. */
    /* Nanoseconds since 1970 at time 0 of the machine's clock; 0: not
     * stated. */
    uint64_t wall_zero_ns;
    bool avoids_shm; /* Connects by TCP even within its host. */
};

/* Wall clock at the time `now`; 0: not known. */
static inline uint64_t ps_facts_wall_ns(const struct ps_facts *f, ps_time now)
{
    return f->wall_zero_ns != 0 ? f->wall_zero_ns + now : 0;
}

static inline void ps_facts_fill_hello(const struct ps_facts *f, ps_time now,
                                       struct ps_msg_hello *hello)
{
    hello->version = f->version;
    hello->descriptors = f->descriptors;
    hello->wall_ns = ps_facts_wall_ns(f, now);
    hello->avoids_shm = f->avoids_shm;
}
