/* SPDX-License-Identifier: Apache-2.0 */
/* Fair order of writing among the connections of a loop. Bytes given to the
 * system at once would leave in the order of its flows, and each peer would
 * wait for the one that is served last. So connections write small pieces in
 * turns, and none gets further ahead of the least advanced than the link
 * carries in a few milliseconds. A connection without progress holds up the
 * others only briefly; a single one writes without limit.
 *
 * Knows neither sockets nor clocks. */
#pragma once

#include "base/list.h"
#include "base/rate_meter.h"

struct ps_send_scheduler {
    struct ps_rate_meter rate;
    struct ps_list active; /* Slots with output. */
    /* Active slots that wait for their turn, in order of arrival. */
    struct ps_list waiting;
    uint32_t count; /* Number of active slots. */
};

/* State of one connection; zeroed at first, but for `on_slot`. */
struct ps_send_slot {
    struct ps_list_node active;
    struct ps_list_node waiting;
    /* Bytes written, raised to the others' level; comparable between slots. */
    uint64_t progress;
    ps_time moved_at; /* Time of the last write, or of becoming active. */
    /* Until then no other slot waits for it; 0: the others wait. */
    ps_time excused_until;
    /* Called when the slot may write; it is no longer in `waiting`. */
    void (*on_slot)(struct ps_send_slot *t);
};

void ps_send_scheduler_init(struct ps_send_scheduler *f);

/* Bytes that a connection with output may write now; makes it active. 0: none,
 * and `on_slot` will be called. */
uint64_t ps_send_scheduler_request(struct ps_send_scheduler *f,
                                   struct ps_send_slot *t, ps_time now);
/* Counts `bytes` written of the `most` allowed. True: the share is used up, and
 * `on_slot` will be called for the next one. */
bool ps_send_scheduler_wrote(struct ps_send_scheduler *f,
                             struct ps_send_slot *t, ps_time now,
                             uint64_t bytes, uint64_t most);
/* The connection has no more output. */
void ps_send_scheduler_leave(struct ps_send_scheduler *f,
                             struct ps_send_slot *t);

/* Calls `on_slot` of the slots whose turn it is. */
void ps_send_scheduler_run(struct ps_send_scheduler *f, ps_time now);
/* Time of the next ps_send_scheduler_run(); PS_TIME_NEVER: none. */
ps_time ps_send_scheduler_deadline(struct ps_send_scheduler *f, ps_time now);

/* Limit on unsent bytes in the kernel for one connection; 0: the system's. More
 * would exceed the lead that waiting bytes are held to. */
uint64_t ps_send_scheduler_unsent_max(const struct ps_send_scheduler *f);
