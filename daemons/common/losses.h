/* SPDX-License-Identifier: Apache-2.0 */
/* The number of connections of a far link (net/tcp.h), from its losses. Losses
 * and round trip bound the rate of one connection, and each loss delays all
 * that the connection carries by a round trip; n connections of a link have n
 * times the rate, and lose at different times. A link without losses keeps
 * one connection, which fills it alone. */
#pragma once

#include "base/time.h"

#include <stdbool.h>

struct ps_losses {
    uint64_t sent;            /* Bytes sent since `since`, */
    uint64_t retransmitted;   /* and those of them that were retransmissions. */
    ps_time since;            /* The end of the last look. */
    uint32_t lossy_intervals; /* Looks in a row that found losses. */
    uint32_t subflows;        /* Connections; 0: no losses, one connection. */
};

/* Adds bytes that were sent since the last call. `heeded`: the congestion
 * control reduces the rate at each loss. True: `wanted` has grown. */
bool ps_losses_add(struct ps_losses *l, ps_time now, uint64_t sent,
                   uint64_t again, bool heeded);
