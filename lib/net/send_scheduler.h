/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes next, of the connections of a loop that have something to write.
 * What the system takes at once would leave in the order of its flows, and
 * each peer would wait for the one that is served last. So they write in small
 * pieces by turns, and none gets further ahead of the least advanced than the
 * link carries in a few milliseconds. Nobody waits long for one that is stuck;
 * one alone writes as it likes.
 *
 * Knows neither sockets nor clocks. */
#pragma once

#include "base/list.h"
#include "base/rate_meter.h"

struct ps_send_scheduler {
    struct ps_rate_meter rate;
    struct ps_list active;  /* Have something to write. */
    struct ps_list waiting; /* Of these: for their turn, first come first. */
    uint32_t count;         /* Active ones. */
};

/* What one connection knows; zeroed to begin with, but for `go`. */
struct ps_send_slot {
    struct ps_list_node active;
    struct ps_list_node waiting;
    uint64_t progress;     /* Bytes; comparable with those of others. */
    ps_time moved_at;      /* Wrote last, or became active. */
    ps_time excused_until; /* Nobody waits for it before; 0: all do. */
    /* It may write; it has left `waiting`. */
    void (*on_slot)(struct ps_send_slot *t);
};

void ps_send_scheduler_init(struct ps_send_scheduler *f);

/* Bytes that one may write now that has something to write. 0: not now, `go`
 * will be called. */
uint64_t ps_send_scheduler_request(struct ps_send_scheduler *f,
                                   struct ps_send_slot *t, ps_time now);
/* It has written so much; at `most` it is somebody else's turn, and `go` will
 * be called: true. */
bool ps_send_scheduler_wrote(struct ps_send_scheduler *f,
                             struct ps_send_slot *t, ps_time now,
                             uint64_t bytes, uint64_t most);
/* It has nothing to write any more. */
void ps_send_scheduler_leave(struct ps_send_scheduler *f,
                             struct ps_send_slot *t);

/* Calls `go` of those whose turn it is. */
void ps_send_scheduler_run(struct ps_send_scheduler *f, ps_time now);
/* When to do that; PS_TIME_NEVER. */
ps_time ps_send_scheduler_deadline(struct ps_send_scheduler *f, ps_time now);

/* Bytes that the system should keep unsent of one connection; 0: as it likes.
 * More would be as far ahead as what waits here may not be. */
uint64_t ps_send_scheduler_unsent_max(const struct ps_send_scheduler *f);
