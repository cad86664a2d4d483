/* SPDX-License-Identifier: Apache-2.0 */
/* Counts consecutive intervals with losses, and multiplies the connections
 * when there are enough. */
#include "core/link/losses.h"

#include "base/limits.h"
#include "base/num.h"

/* Least time and bytes of an interval. */
#define LOOK_TIME    PS_SECONDS(1)
#define LOOK_BYTES   (1024u * 1024u)
/* Divisor: an interval is lossy if this part of its bytes, or more, was
 * retransmitted. */
#define SHARE        2000u
/* Consecutive lossy intervals that make a link lossy: a queue that overflows
 * while a connection finds its rate affects only one. */
#define LOOKS        3u
#define GROWTH       4u
/* Limit on connections where losses do not reduce the rate. */
#define UNHEEDED_MAX 4u

bool ps_losses_add(struct ps_losses *l, ps_time now, uint64_t sent,
                   uint64_t again, bool heeded)
{
    const uint32_t most = heeded ? PS_LINK_CONNECTIONS_MAX : UNHEEDED_MAX;

    l->sent += sent;
    l->retransmitted += again;
    if (l->sent < LOOK_BYTES || now < ps_time_add(l->since, LOOK_TIME)) {
        return false;
    }
    l->lossy_intervals = l->retransmitted >= l->sent / SHARE
                             ? l->lossy_intervals + 1
                             : 0;
    l->sent = 0;
    l->retransmitted = 0;
    l->since = now;
    if (l->lossy_intervals < LOOKS || l->subflows >= most) {
        return false;
    }
    l->lossy_intervals = 0;
    l->subflows = (uint32_t)ps_min_u64(
        l->subflows == 0 ? GROWTH : (uint64_t)l->subflows * GROWTH, most);
    return true;
}
