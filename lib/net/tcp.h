/* SPDX-License-Identifier: Apache-2.0 */
/* What TCP is told of a connection between daemons, and what it tells. After
 * a loss TCP sends again after 200 ms, and doubles that time up to minutes:
 * meanwhile a peer that lives is silent, and a network that is whole again
 * stays unused. */
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

/* Since when nothing of what was sent has been acknowledged by the other end's
 * host, as far as it was looked at; PS_TIME_NEVER: nothing is outstanding. */
ps_time ps_tcp_unacked_since(int fd, ps_time before, ps_time now);
