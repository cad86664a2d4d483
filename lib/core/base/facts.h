/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of a daemon's process and host, which a member reports when it
 * registers, so that operators see them in one place. */
#pragma once

#include "base/time.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_VERSION_MAX  32u
#define PS_GPU_NAME_MAX 128u

/* The GPU on which a daemon computes. The daemon keeps the figures up to date
 * while a machine reads them. */
struct ps_gpu {
    char name[PS_GPU_NAME_MAX + 1]; /* "": there is none. */
    uint64_t memory;                /* Bytes of its memory; */
    uint64_t memory_held;           /* of them, allocated by the daemon. */
    uint64_t bytes_up;              /* Copied to it, */
    uint64_t bytes_down;            /* and from it. */
};

struct ps_facts {
    char version[PS_VERSION_MAX + 1]; /* Of the program; "": not stated. */
    uint64_t descriptors;             /* Limit of the process; 0: not stated. */
    /* Nanoseconds since 1970 at time 0 of the machine's clock; 0: not
     * stated. */
    uint64_t wall_zero_ns;
    bool avoids_shm; /* Connects by TCP even within its host. */
    bool ktls;       /* The kernel protects the records of its connections. */
    const struct ps_gpu *gpu; /* Not owned; NULL: not stated. */
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
    hello->ktls = f->ktls;
    hello->gpu = f->gpu != NULL ? f->gpu->name : "";
    hello->gpu_memory = f->gpu != NULL ? f->gpu->memory : 0;
}

static inline void ps_facts_fill_ping(const struct ps_facts *f,
                                      struct ps_msg_ping *ping)
{
    if (f->gpu != NULL) {
        ping->gpu_held = f->gpu->memory_held;
        ping->gpu_up = f->gpu->bytes_up;
        ping->gpu_down = f->gpu->bytes_down;
    }
}
