/* SPDX-License-Identifier: Apache-2.0 */
/* TCP options of connections between daemons, and the kernel's view of them.
 * After a loss TCP sends again after 200 ms, and doubles that time up to
 * minutes: meanwhile a live peer is silent, and a repaired network stays
 * unused. */
#pragma once

#include "base/time.h"

#include <stdbool.h>

enum ps_tcp_kind {
    PS_TCP_OTHER,  /* Of tools. */
    PS_TCP_BULK,   /* Between agents and servers. */
    PS_TCP_LEASES, /* Few and small messages, whose silence means death. */
};

/* All of these are wishes: an older kernel knows some of them only. */
void ps_tcp_prepare(int fd, enum ps_tcp_kind kind);

/* The time since which the peer's host has acknowledged none of the bytes that
 * were sent, as of the last look; PS_TIME_NEVER: nothing is outstanding. */
ps_time ps_tcp_unacked_since(int fd, ps_time before, ps_time now);
