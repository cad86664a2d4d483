/* SPDX-License-Identifier: Apache-2.0 */
/* Number of connections of a far link (net/tcp.h), from its losses. Losses
 * and round trip bound the rate of one connection, and each loss delays all
 * its data by a round trip; n connections have n times the rate, and lose at
 * different times. A link without losses keeps one connection, which fills
 * it. */
#pragma once

#include "base/time.h"

#include <stdbool.h>

/* Counters of one connection. */
struct ps_path_losses {
    uint64_t sent;          /* Bytes since the connection was made. */
    uint64_t retransmitted; /* Bytes of `sent` that were retransmissions. */
    bool slows_on_loss; /* Congestion control reduces the rate at each loss. */
};

struct ps_losses {
    uint64_t sent;            /* Bytes sent since `since`. */
    uint64_t retransmitted;   /* Bytes of `sent` that were retransmissions. */
    ps_time since;            /* Start of the current interval. */
    uint32_t lossy_intervals; /* Consecutive lossy intervals. */
    uint32_t subflows; /* Connections wanted; 0: no losses, one connection. */
};

/* Adds bytes sent since the last call. `heeded`: the congestion control reduces
 * the rate at each loss. True: `subflows` has grown. */
bool ps_losses_add(struct ps_losses *l, ps_time now, uint64_t sent,
                   uint64_t again, bool heeded);
